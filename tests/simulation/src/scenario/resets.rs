//! Resets through Redis, and resets of single counters close together.
//!
//! In: a scenario that was drawn. Out: the same, in which nodes read resets from Redis and operators write them there, and
//! failures come close to a reset.

use super::{ASKED, Fault, Scenario, What};
use crate::random::Random;
use crate::redis::server::Refusal;
use crate::world::{MILLI, SECOND, Time};

/// Some scenarios have resets of counters of the same limit. In half of those that have resets and Redis they go through it.
pub(super) fn add(random: &mut Random, scenario: &mut Scenario) {
    // The reset of one counter resets a ban that other counters share.
    let has_shared_ban =
        scenario.limits.iter().any(|limit| limit.shape.ban.is_some_and(|ban| ban.on.is_some()));
    if random.one_in(6) && !has_shared_ban {
        add_neighbours(random, scenario);
    }
    let has_resets = scenario.faults.iter().any(|fault| matches!(fault.what, What::Reset { .. }));
    if has_resets && scenario.layout.servers() > 0 && random.one_in(2) {
        scenario.follows_resets = true;
        if random.one_in(2) {
            add_failures(random, scenario);
        }
    }
    scenario.faults.sort_by_key(|fault| fault.at);
}

/// Two or three counters of one limit, each by itself, one soon after the other.
fn add_neighbours(random: &mut Random, scenario: &mut Scenario) {
    let limit = Some(limit(random, scenario));
    let (mut at, mut epoch) = (SECOND + random.below(ASKED - SECOND), next_epoch(scenario));
    for key in 0..random.pick(&[2, 2, 3]) {
        let heard_within = random.pick(&[0, MILLI, 50 * MILLI]);
        let what = What::Reset { limit, key: Some(key), epoch, heard_within };
        scenario.faults.push(Fault { at, what });
        (at, epoch) = (at + random.pick(&[MILLI, 100 * MILLI, 600 * MILLI]), epoch + 1);
    }
}

/// A limit that is the first one of its rule.
fn limit(random: &mut Random, scenario: &Scenario) -> usize {
    let firsts = scenario.limits.iter().filter(|limit| limit.further.is_none()).count();
    random.index(firsts)
}

/// An epoch that no reset has.
pub(super) fn next_epoch(scenario: &Scenario) -> u64 {
    let epoch = |fault: &Fault| if let What::Reset { epoch, .. } = fault.what { epoch } else { 0 };
    1 + scenario.faults.iter().map(epoch).max().unwrap_or(0)
}

/// A reset while a node stands still for long, while one of its connections is lost, or shortly before servers lose it and
/// refuse what is written.
fn add_failures(random: &mut Random, scenario: &mut Scenario) {
    let (nodes, servers) = (scenario.clocks.len(), scenario.layout.servers());
    let (node, server) = (random.index(nodes), random.index(servers));
    let at = SECOND + random.below(ASKED / 2);
    let (reset_at, failures) = match random.below(3) {
        0 => {
            let what = What::Pause { node, lasts: 5_200 * MILLI + random.below(2 * SECOND) };
            // What it has asked for arrives while it stands still.
            let cut = What::Cut { node, server, lasts: 400 * MILLI };
            (at + 400 * MILLI + random.below(SECOND), vec![(0, cut), (random.below(400 * MILLI), what)])
        }
        1 => {
            let cut = What::Cut { node, server, lasts: random.pick(&[SECOND, 2 * SECOND]) };
            let failures = vec![(0, What::LoseOne { node, server }), (900 * MILLI, cut)];
            (at + random.below(300 * MILLI), failures)
        }
        _ => {
            let lacks = random.pick(&[50, 150, 250]) * MILLI;
            let refuses = |server| {
                let lasts = random.pick(&[SECOND, 3 * SECOND]);
                (lacks + MILLI, What::Refuse { server, lasts, why: Refusal::Full })
            };
            let mut failures: Vec<(Time, What)> = (0..servers).map(refuses).collect();
            failures.push((0, What::FailOver { server, lacks }));
            (at + lacks - random.below(lacks.min(100 * MILLI)), failures)
        }
    };
    scenario.faults.extend(failures.into_iter().map(|(after, what)| Fault { at: at + after, what }));
    let limit = Some(limit(random, scenario)).filter(|_| random.one_in(2));
    let what = What::Reset { limit, key: None, epoch: next_epoch(scenario), heard_within: 0 };
    scenario.faults.push(Fault { at: reset_at, what });
}
