//! When nodes may have had no answer: from the servers of counters, and from the server of records.
//!
//! In: what goes wrong in a scenario, and which messages took long. Out: for each node the times at which the oracle allows for it.

use super::Run;
use crate::oracle::{Trouble, Troubles};
use crate::scenario::{Fault, Outage, Scenario, What};
use crate::world::{MILLI, SECOND, Span, Time, lock};

/// What a client waits for at least. Answers to a node that is not far away are there before.
const DEADLINE_MIN: Time = MILLI;
/// A node that starts has found its servers after so long.
pub(super) const STARTED_WITHIN: Time = 3 * SECOND;
/// Three attempts to open a connection take so much longer, with the pauses between them.
const OPENED_LATE: Time = 8 * SECOND;

impl Run {
    /// When nodes may have had no answer from Redis, if these of its faults are why.
    pub(super) fn troubles(&self, may_fail: impl Fn(What) -> bool) -> Troubles {
        let at_node =
            |&Span { node, from, until }: &Span| Trouble { node: Some(node), from, until, forgets: false };
        let slow = lock(&self.network.slow);
        let slow = slow.iter().take(self.scenario.layout.servers()).flatten().map(at_node);
        let faults = self.scenario.faults.iter().filter(|fault| may_fail(fault.what));
        let failed = faults.filter_map(|fault| {
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
                | What::Explain { .. }
                | What::Ban { .. }
                | What::Record { .. }
                | What::OfRecords { .. }
                | What::RecordsAway { .. }
                | What::OfDisk { .. }
                | What::Die { .. }
                | What::StepWall { .. }
                | What::Reset { .. } => return None,
            };
            Some(Trouble { node, from: fault.at, until: fault.at + lasts, forgets })
        });
        let mut all: Vec<_> = slow.chain(failed).collect();
        // Clients that wait for a shorter time than an answer takes open the breaker, for all.
        let is_far = |far: &[Time; 2]| far[0] + far[1] >= DEADLINE_MIN;
        let far_until = |far| if is_far(far) { self.scenario.asked_until() } else { 0 };
        let far_until: Vec<Time> = self.scenario.far.iter().map(far_until).collect();
        // Where something fails while a node starts, its pauses grow until it has found its servers.
        let troubles = Troubles::new(far_until.clone(), &all);
        let starts = lock(&self.starts);
        let is_late =
            |start: &&Span| troubles.of(start.node, start.from, start.from + STARTED_WITHIN).is_some();
        let until_found = |start: &Span| Span { until: start.until.min(self.world.now()), ..*start };
        all.extend(starts.iter().filter(is_late).map(|start| at_node(&until_found(start))));
        Troubles::new(far_until, &all)
    }
}

/// When nodes may not reach the server of records.
pub(super) fn of_records(scenario: &Scenario) -> Troubles {
    let of_fault = |fault: &Fault| {
        let (node, lasts, forgets) = match fault.what {
            What::RecordsAway { node, lasts } | What::Pause { node, lasts } => (Some(node), lasts, false),
            What::Crash { node, lasts } | What::StopNode { node, lasts } | What::Upgrade { node, lasts } => {
                (Some(node), lasts, true)
            }
            // It begins again when its folder lets it.
            What::Die { node, lasts, .. } => (Some(node), lasts + SECOND, true),
            What::OfRecords { what: Outage::Lose(node), .. } => (Some(node), 0, false),
            What::OfRecords { what: Outage::Flush, .. } => (None, 0, false),
            What::OfRecords { lasts, .. } => (None, lasts, false),
            _ => return None,
        };
        Some(Trouble { node, from: fault.at, until: fault.at + lasts, forgets })
    };
    let begun = Trouble { node: None, from: 0, until: 0, forgets: true };
    let all: Vec<_> = scenario.faults.iter().filter_map(of_fault).chain([begun]).collect();
    // A node that starts while it cannot reach the server tries again after pauses that double.
    let late = all.iter().filter(|it| it.forgets).flat_map(|Trouble { node, until: starts, .. }| {
        let meets = |it: &&Trouble| it.from <= *starts && *starts < it.until;
        let later =
            move |it: &Trouble| Trouble { node: *node, until: 2 * it.until - starts + 2 * SECOND, ..*it };
        all.iter().filter(meets).map(later)
    });
    // A connection that is opened while a message takes long is tried again after such pauses too.
    let more = if scenario.slow_one_in.is_some() { OPENED_LATE } else { 0 };
    let all: Vec<_> =
        late.chain(all.iter().copied()).map(|it| Trouble { until: it.until + more, ..it }).collect();
    Troubles::new(vec![0; scenario.clocks.len()], &all)
}
