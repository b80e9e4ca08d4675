//! The verdict about a run: what the oracle has to know of it, and what the oracle finds.
//!
//! In: what was noted while the run was played. Out: the first thing that may not happen and did, and how much could be judged.

use std::sync::atomic::Ordering::Relaxed;

use super::troubles::STARTED_WITHIN;
use super::{Kind, Run, Violation};
use crate::oracle::{
    Census, Counter, Rules, census, left_too_little, starved, too_much, wrong_bans, wrong_explanations,
    wrong_holds, wrong_slots, wrongly_left_holds, wrongly_left_slots,
};
use crate::scenario::What;
use crate::world::{MICRO, SECOND, Span, lock};

impl Run {
    /// What may not happen and did, by all that was answered; and how much of it could be judged.
    pub(super) fn judged(&self) -> (Option<Violation>, Census) {
        let troubles = self.troubles(|_| true);
        let losses = lock(&self.losses);
        let of_kind = |kind| move |what| Violation { kind, what };
        let undue = lock(&self.network.undue).take();
        let found = undue.or_else(|| self.late_reset(&troubles, &losses)).map(of_kind(Kind::WrongReset));
        let found = found.or_else(|| self.error());
        if found.is_some() {
            return (found, Census::default());
        }
        let scenario = &self.scenario;
        let rules = Rules {
            limits: &scenario.judged(),
            losses: &losses,
            refunds: &lock(&self.refunds),
            ban_changes: &lock(&self.ban_changes),
            troubles: &troubles,
            has_redis: scenario.layout.servers() > 0,
            remembers_denials: scenario.deny_cache_bytes > 0,
            lease_time: scenario.lease_time(),
            local_share_percent: scenario.local_share_percent(),
            stops_increment: scenario.modes.stop_increment_when_over,
            timeout: scenario.timeout,
            cold_max: scenario.cold_max(),
            knows_losses: self.nodes_know_losses(),
            knows_late: !self.all_deny_cold(),
            lag: self.lag.load(Relaxed),
            lead: scenario.lead(),
            is_calm: scenario.is_calm(),
        };
        let (records, releases) = (lock(&self.records), lock(&self.releases));
        let counters = Counter::all(rules.limits, &records);
        let found = too_much(&rules, &counters).map(of_kind(Kind::TooMuch));
        let found = found.or_else(|| starved(&rules, &counters).map(of_kind(Kind::Starved)));
        let found = found.or_else(|| left_too_little(&rules, &counters).map(of_kind(Kind::Starved)));
        let found = found.or_else(|| {
            let asked = (records.as_slice(), releases.as_slice());
            wrong_explanations(&rules, &counters, asked, &lock(&self.explained))
                .map(of_kind(Kind::WrongAnswer))
        });
        let found = found.or_else(|| wrong_slots(&rules, &records, &releases).map(of_kind(Kind::WrongSlot)));
        let found =
            found.or_else(|| wrongly_left_slots(&rules, &records, &releases).map(of_kind(Kind::WrongSlot)));
        let found = found.or_else(|| wrong_bans(&rules, &records).map(of_kind(Kind::WrongBan)));
        let found = found.or_else(|| wrong_holds(&rules, &records).map(of_kind(Kind::WrongHold)));
        let found = found.or_else(|| wrongly_left_holds(&rules, &records).map(of_kind(Kind::WrongHold)));
        (found, census(&rules, &counters, &records, &releases))
    }

    /// An error for an answer, though nothing failed. A node has the time to find its servers first. While slots of a
    /// Cluster move, the server that is asked sends the node to the other one.
    fn error(&self) -> Option<Violation> {
        let troubles = self.troubles(|what| !matches!(what, What::MoveSlots { .. }));
        let errors = lock(&self.errors);
        let error = errors.iter().find(|(Span { node, from, until }, _)| {
            let is_early = *from < STARTED_WITHIN.max(troubles.far_until(*node));
            // Idle connections that were lost are found by a look, and opened again after a pause.
            !is_early && troubles.of(*node, from.saturating_sub(SECOND), *until).is_none()
        });
        let (Span { node, until, .. }, what) = error?;
        let what = format!("node {node}: {what} at {} us, though nothing failed", until / MICRO);
        Some(Violation { kind: Kind::NoAnswer, what })
    }

    /// With COLD_START=deny what was lost counts as full until it would be over: nothing is admitted once more. But nodes
    /// know nothing of counters that move, nor of an old master that serves other nodes for a window.
    fn nodes_know_losses(&self) -> bool {
        let is_known = |what| match what {
            What::MoveSlots { .. } => false,
            What::FailOver { lacks, .. } => lacks < SECOND,
            _ => true,
        };
        self.all_deny_cold() && self.scenario.faults.iter().all(|fault| is_known(fault.what))
    }

    fn all_deny_cold(&self) -> bool {
        self.scenario.all_settings().all(|it| it.denies_cold)
    }
}
