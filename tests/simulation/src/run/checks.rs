//! What has to hold in a run, in addition to what the oracle reads from its records.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

use tidegate_engine::limit::Algorithm;
use tidegate_engine::overlay::Effect;
use tidegate_engine::rules::StoreFailure;
use tidegate_redis::LeaseTotals;
use tidegate_serve::service::Service;

use super::{Kind, Run, State, Violation};
use crate::node::Node;
use crate::oracle::{
    Census, Counter, Outcome, Record, Rules, Trouble, Troubles, census, starved, too_much, wrong_bans,
    wrong_holds, wrong_slots,
};
use crate::scenario::{DAY_ENDS, DAY_SECS, DEBT_WINDOWS, Fault, Item, Layout, What};
use crate::world::{MICRO, MILLI, SECOND, Time, lock};

/// How often leases are accounted for.
const ACCOUNTED: Time = SECOND;
/// What a client waits for at least. Answers to a node that is not far away are there before.
const DEADLINE_MIN: Time = MILLI;
/// A node that starts has found its servers after so long.
const STARTED_WITHIN: Time = 3 * SECOND;

impl Run {
    /// When nothing has failed for a window, all of N is there again.
    pub(super) fn check_recovered(self: &Arc<Self>) {
        self.end_exceptions();
        let calm = self.world.now();
        let mut limits: Vec<(Time, usize)> =
            self.first_limits().map(|number| (self.recovers_with_further(number), number)).collect();
        // A period that has begun while clients asked lasts for days.
        limits.retain(|&(_, number)| self.scenario.limits[number].shape.ending.is_none());
        limits.sort_unstable();
        for (after, number) in limits {
            self.world.run_until(self.world.now().max(calm + after));
            self.check_recovered_limit(number);
        }
    }

    /// The limits that are asked by themselves.
    fn first_limits(&self) -> impl Iterator<Item = usize> {
        let limits = self.scenario.limits.iter().enumerate();
        limits.filter(|(_, limit)| limit.further.is_none()).map(|(number, _)| number)
    }

    /// How long it takes until all of N is there again, of all limits of a rule.
    fn recovers_with_further(&self, number: usize) -> Time {
        let is_further =
            |other: &usize| self.scenario.limits[*other].further.is_some_and(|(of, _)| of == number);
        let all = (0..self.scenario.limits.len()).filter(is_further).chain([number]);
        all.map(|number| self.recovers_after(number)).max().unwrap_or(0)
    }

    /// How long it takes until all of N is there again.
    fn recovers_after(&self, number: usize) -> Time {
        let limit = &self.scenario.limits[number];
        // What was reported, or admitted alone, fills a bucket beyond its size: with what drains in 16 windows at most.
        let is_reported = limit.is_reported || limit.shape.reserve.is_some();
        let overflows = is_reported || limit.failure == StoreFailure::Local;
        let mut windows = match limit.algorithm.is_bucket() && overflows {
            true => 18,
            false if limit.shape.carries_debt => 2 + DEBT_WINDOWS,
            false => 2,
        };
        let other = |fault: &Fault| match fault.what {
            What::Record { terms: Some((requests, secs)), .. } => Some((Some(requests), secs)),
            What::Except { effect: Effect::Limit { requests, .. }, .. } => {
                Some((requests.map(|requests| requests as u32), None))
            }
            _ => None,
        };
        let others: Vec<_> = self.scenario.faults.iter().filter_map(other).collect();
        let others_secs = others.iter().filter_map(|&(_, secs)| secs);
        let window = limit.window_secs.into_iter().chain(others_secs).max().unwrap_or(0);
        if limit.algorithm.is_bucket() {
            // While nodes have different N, a bucket drains by the least of them.
            let others_requests = others.iter().filter_map(|&(requests, _)| requests);
            let all: Vec<_> = limit.requests.into_iter().chain(others_requests).collect();
            let least = all.iter().copied().filter(|&requests| requests > 0).min().unwrap_or(1);
            windows += Time::from(all.into_iter().max().unwrap_or(0).div_ceil(least));
        }
        // A call may be renewed after the last question.
        let renewals =
            self.scenario.asks.iter().filter_map(|ask| ask.renewed).filter(|_| self.has_slots(number));
        let renewed = renewals.map(|renewal| renewal.times * renewal.every).max().unwrap_or(0);
        let by_operators =
            |fault: &Fault| if let What::Ban { lasts, .. } = fault.what { lasts } else { None };
        let by_operators = self.scenario.faults.iter().filter_map(by_operators).max().unwrap_or(0);
        let banned = limit.shape.ban.map_or(0, |ban| ban.longest.max(by_operators));
        let ttl = limit.shape.reserve.map(|reserve| reserve.ttl);
        let empties = match limit.algorithm {
            Algorithm::Calendar => self.day_ends().saturating_sub(self.world.now()) + SECOND,
            _ => windows * window * SECOND + ttl.map_or(0, |ttl| ttl + limit.empties_in(window * SECOND)),
        };
        renewed + banned + empties + self.scenario.lease_time() + self.lag.load(Relaxed)
    }

    /// When the day is over in which clients asked: the one after it, if the wall clock of a node was stepped into it.
    fn day_ends(&self) -> Time {
        let step = |fault: &Fault| if let What::StepWall { ahead, .. } = fault.what { ahead } else { 0 };
        let ahead: Time = self.scenario.faults.iter().map(step).sum();
        if self.scenario.asked_until() + ahead < DAY_ENDS { DAY_ENDS } else { DAY_ENDS + DAY_SECS * SECOND }
    }

    fn check_recovered_limit(self: &Arc<Self>, number: usize) {
        let node = (self.scenario.seed % self.scenario.clocks.len() as u64) as usize;
        let version = lock(&self.nodes)[node].version;
        let own = self.scenario.limits[number].requests[version];
        let requests = self.recorded_now((number, 0)).unwrap_or(own);
        let limit = &self.scenario.limits[number];
        // The first class has the largest share.
        let last = limit.shape.classes.map(|_| 0);
        let hits = limit.capacity(requests, limit.share(last));
        if requests == 0 || hits == 0 {
            return;
        }
        // A call takes one slot.
        let (many, hits) = if self.has_slots(number) { (hits, 1) } else { (1, hits) };
        let items = vec![Item { last, ..Item::new(number, 0, hits) }; many as usize];
        let request = self.scenario.asks.len() + number;
        let Some(task) = self.request(request, node, (items, None), 1) else {
            return self.wrong(Kind::NotRecovered, format!("node {node} did not come back"));
        };
        let answer = Arc::new(Mutex::new(None));
        let slot = Arc::clone(&answer);
        self.world.spawn(node, async move { *lock(&slot) = Some(task.await) });
        self.world.run_until(self.world.now() + SECOND);
        let answer = *lock(&answer);
        // A call may have been renewed meanwhile.
        let records = lock(&self.records);
        let is_full = records.iter().rfind(|it| it.request == request).is_some_and(|it| it.is_full);
        drop(records);
        if answer != Some(Some(true)) && !is_full {
            self.wrong(
                Kind::NotRecovered,
                format!("limit {number}: {hits} hits were not there again: {answer:?}"),
            );
        }
    }

    /// Every leased hit is accounted for when all nodes have ended.
    pub(super) fn check_leases(self: &Arc<Self>) {
        for node in 0..self.scenario.clocks.len() {
            self.stop_node(node);
        }
        self.world.run_until(self.world.now() + 5 * SECOND);
    }

    /// Leased hits are accounted for all the time.
    pub(super) fn check_accounts_until(self: &Arc<Self>, end: Time) {
        let (run, next) = (Arc::clone(self), self.world.now() + ACCOUNTED);
        if next > end {
            return;
        }
        self.world.at(next, move |_| {
            for node in 0..run.scenario.clocks.len() {
                let (service, asking, started) = {
                    let State { service, asking, started, .. } = &lock(&run.nodes)[node];
                    (service.clone(), asking.load(Relaxed), *started)
                };
                // A request that waits may hold some.
                if let (Some(service), 0) = (service, asking) {
                    run.check_accounts((node, started), &service);
                }
            }
            run.check_accounts_until(end);
        });
    }

    /// Leased hits of a node that has served since it was started then.
    pub(super) fn check_accounts(&self, (node, started): (usize, Time), service: &Service<Node>) {
        let Some(store) = service.counters().shared() else { return };
        let LeaseTotals { hits_taken, hits_spent, hits_given_back, .. } = store.leases();
        let hits_left = store.leased_hits_left();
        if hits_taken != hits_spent + hits_left + hits_given_back {
            let what = format!(
                "node {node} took leases of {hits_taken} hits, of which {hits_spent} were spent, {hits_left} are left, \
                 and {hits_given_back} went back"
            );
            self.wrong(Kind::Unaccounted, what);
        }
        if hits_spent == 0 {
            return;
        }
        // What a lease is spent for is admitted at once, or when other counters or records are known.
        let may_be_leased = |it: &Record| {
            let Some(limit) = self.scenario.limits.get(it.limit) else { return false };
            let is_at_once = it.answered == it.asked || !it.is_single || limit.recorded.is_some();
            let is_spent = it.outcome == Outcome::Unknown || it.outcome == Outcome::Admitted && is_at_once;
            it.node == node && limit.is_leased && is_spent
        };
        let records = lock(&self.records);
        let own = records[records.partition_point(|it| it.asked < started)..].iter();
        let hits: u64 = own.filter(|it| may_be_leased(it)).map(|it| it.hits).sum();
        if hits_spent > hits {
            let what = format!(
                "node {node} spent {hits_spent} leased hits, though at most {hits} were asked of them"
            );
            self.wrong(Kind::Unaccounted, what);
        }
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

    /// When nodes may have had no answer from Redis.
    fn troubles(&self) -> Troubles {
        let slow = lock(&self.network.slow).clone();
        let slow = slow.into_iter().map(|(node, from, until)| (Some(node), from, until, false));
        let failed = self.scenario.faults.iter().filter_map(|fault| {
            let (node, lasts, forgets) = match fault.what {
                What::Cut { node, lasts, .. } | What::Pause { node, lasts } => (Some(node), lasts, false),
                What::Break { node, .. } | What::Lose { node, .. } | What::LoseOne { node, .. } => {
                    (Some(node), 0, false)
                }
                What::Crash { node, lasts }
                | What::StopNode { node, lasts }
                | What::Upgrade { node, lasts } => (Some(node), lasts, true),
                What::Stop { lasts, .. }
                | What::Refuse { lasts, .. }
                | What::Restart { lasts, .. }
                | What::FailOver { lacks: lasts, .. }
                | What::MoveSlots { lasts, .. } => (None, lasts, false),
                What::Flush { .. } | What::StepServers { .. } => (None, 0, false),
                What::Reload { .. }
                | What::Except { .. }
                | What::Ban { .. }
                | What::Record { .. }
                | What::OfRecords { .. }
                | What::RecordsAway { .. }
                | What::Die { .. }
                | What::StepWall { .. }
                | What::Reset { .. } => return None,
            };
            Some((node, fault.at, fault.at + lasts, forgets))
        });
        let trouble = |(node, from, until, forgets)| Trouble { node, from, until, forgets };
        let mut all: Vec<_> = slow.chain(failed).map(trouble).collect();
        // Clients that wait for a shorter time than an answer takes open the breaker, for all.
        let is_far = |far: &[Time; 2]| far[0] + far[1] >= DEADLINE_MIN;
        let far_until = |far| if is_far(far) { self.scenario.asked_until() } else { 0 };
        let far_until: Vec<Time> = self.scenario.far.iter().map(far_until).collect();
        // Where something fails while a node starts, its pauses grow until it has found its servers.
        let troubles = Troubles::new(far_until.clone(), &all);
        let starts = lock(&self.starts);
        let late = starts
            .iter()
            .filter(|(node, from, _)| troubles.of(*node, *from, from + STARTED_WITHIN).is_some());
        let until_found = |&(node, from, found): &(usize, Time, Time)| {
            (Some(node), from, found.min(self.world.now()), false)
        };
        all.extend(late.map(until_found).map(trouble));
        Troubles::new(far_until, &all)
    }

    /// An error for an answer, though nothing failed. A node has the time to find its servers first.
    fn error(&self, troubles: &Troubles) -> Option<Violation> {
        let errors = lock(&self.errors);
        let error = errors.iter().find(|(node, [asked, now], _)| {
            let is_early = *asked < STARTED_WITHIN.max(troubles.far_until(*node));
            // Idle connections that were lost are found by a look, and opened again after a pause.
            !is_early && troubles.of(*node, asked.saturating_sub(SECOND), *now).is_none()
        });
        let (node, [_, now], what) = error?;
        let what = format!("node {node}: {what} at {} us, though nothing failed", now / MICRO);
        Some(Violation { kind: Kind::NoAnswer, what })
    }

    /// What may not happen and did, by all that was answered; and how much of it could be judged.
    pub(super) fn judged(&self) -> (Option<Violation>, Census) {
        let (losses, starts) = (lock(&self.losses), lock(&self.nodes).iter().map(|node| node.starts).sum());
        let is_calm = self.scenario.is_calm();
        let troubles = self.troubles();
        let undue = lock(&self.network.undue).take();
        if let Some(what) = undue.or_else(|| self.late_reset(&troubles, &losses)) {
            return (Some(Violation { kind: Kind::WrongReset, what }), Census::default());
        }
        if let Some(violation) = self.error(&troubles) {
            return (Some(violation), Census::default());
        }
        let refunds = lock(&self.refunds);
        let (limits, ban_changes) = (self.scenario.judged(), lock(&self.ban_changes).clone());
        let rules = Rules {
            limits: &limits,
            starts,
            losses: &losses,
            knows_losses: self.nodes_know_losses(),
            refunds: &refunds,
            ban_changes: &ban_changes,
            troubles: &troubles,
            remembers_denials: self.scenario.deny_cache_bytes > 0,
            lease_time: self.scenario.lease_time(),
            timeout: self.scenario.timeout,
            is_calm,
            knows_late: !self.all_deny_cold(),
            cold_max: self.scenario.all_settings().any(|it| it.denies_cold).then_some(
                match self.scenario.layout {
                    Layout::Alone(alone) => alone.cold_max,
                    _ => Time::MAX,
                },
            ),
            lag: self.lag.load(Relaxed),
            lead: self.scenario.lead(),
            has_redis: !self.is_alone(),
            local_share_percent: self
                .scenario
                .all_settings()
                .map(|it| it.local_share_percent)
                .max()
                .unwrap_or(100),
            stops_increment: self.scenario.modes.stop_increment_when_over,
        };
        let records = lock(&self.records);
        let of_kind = |kind| move |what| Violation { kind, what };
        let counters = Counter::all(&limits, &records);
        let found = too_much(&rules, &counters).map(of_kind(Kind::TooMuch));
        let found = found.or_else(|| starved(&rules, &counters).map(of_kind(Kind::Starved)));
        let releases = lock(&self.releases);
        let found = found.or_else(|| wrong_slots(&rules, &records, &releases).map(of_kind(Kind::WrongSlot)));
        let found = found.or_else(|| wrong_bans(&rules, &records).map(of_kind(Kind::WrongBan)));
        let found = found.or_else(|| wrong_holds(&rules, &records).map(of_kind(Kind::WrongHold)));
        (found, census(&rules, &counters, &records, &releases))
    }
}
