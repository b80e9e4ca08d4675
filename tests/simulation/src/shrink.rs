//! A scenario that goes wrong, made short: whatever can be left out is left out, as long as it still goes wrong.

use crate::run::{Kind, Outcome, run};
use crate::scenario::Scenario;

/// So many scenarios are tried.
const TRIES_MAX: usize = 2_000;

/// The short scenario, and its story.
pub fn shrink(mut scenario: Scenario, kind: Kind) -> (Scenario, Outcome) {
    let mut tries = 0;
    let mut is_wrong = |scenario: &Scenario| {
        tries += 1;
        tries <= TRIES_MAX && run(scenario, false).violation.is_some_and(|it| it.kind == kind)
    };
    loop {
        let before = (scenario.asks.len(), scenario.faults.len());
        without_nodes(&mut scenario, &mut is_wrong);
        without_parts(&mut scenario, |scenario| &mut scenario.faults, &mut is_wrong);
        without_parts(&mut scenario, |scenario| &mut scenario.asks, &mut is_wrong);
        if (scenario.asks.len(), scenario.faults.len()) == before {
            break;
        }
    }
    let outcome = run(&scenario, true);
    (scenario, outcome)
}

/// Leaves out nodes, the last one first.
fn without_nodes(scenario: &mut Scenario, is_wrong: &mut impl FnMut(&Scenario) -> bool) {
    while scenario.clocks.len() > 1 {
        let fewer = scenario.without_last_node();
        if !is_wrong(&fewer) {
            break;
        }
        *scenario = fewer;
    }
}

/// Leaves out parts of a list: halves, then quarters, and so on down to single ones.
fn without_parts<T: Clone>(
    scenario: &mut Scenario,
    list: impl Fn(&mut Scenario) -> &mut Vec<T>,
    is_wrong: &mut impl FnMut(&Scenario) -> bool,
) {
    let mut size = list(scenario).len().div_ceil(2);
    while size > 0 {
        let mut from = 0;
        while from < list(scenario).len() {
            let mut shorter = scenario.clone();
            let end = (from + size).min(list(&mut shorter).len());
            list(&mut shorter).drain(from..end);
            if is_wrong(&shorter) {
                *scenario = shorter;
            } else {
                from += size;
            }
        }
        size = if size == 1 { 0 } else { size.div_ceil(2) };
    }
}
