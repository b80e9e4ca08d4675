//! What operators do in addition to reloads: exceptions that come and go, and resets of counters.
//!
//! In: a scenario that was drawn. Out: more events in it.

use tidegate_engine::overlay::Effect;

use super::{ASKED, Fault, Scenario, What, Whom};
use crate::random::Random;
use crate::world::{MILLI, SECOND, Time};

/// An exception is in force at every node that receives it, after so long at the latest.
const IN_FORCE_AFTER: Time = 250 * MILLI;

/// Operators of some scenarios are busy.
pub(super) fn add(random: &mut Random, scenario: &mut Scenario) {
    if random.one_in(4) {
        (0..1 + random.below(3)).for_each(|_| except(random, scenario));
    }
    if random.one_in(3) {
        (1..=random.pick(&[1, 1, 2, 6])).for_each(|epoch| reset(random, scenario, epoch));
    }
    scenario.faults.sort_by_key(|fault| fault.at);
}

/// An exception, made at each node, and ended there.
fn except(random: &mut Random, scenario: &mut Scenario) {
    let number = random.index(scenario.limits.len());
    except_of_limit(random, scenario, number);
}

/// The same of this limit.
pub(super) fn except_of_limit(random: &mut Random, scenario: &mut Scenario, number: usize) {
    let whom = random.pick(&[Whom::All, Whom::One(0), Whom::One(1)]);
    except_whom(random, scenario, number, whom);
}

/// The same for these counters of it.
pub(super) fn except_whom(random: &mut Random, scenario: &mut Scenario, number: usize, whom: Whom) {
    let requests = Some(random.pick(&[1, 5, 20, 40, 200]));
    let effect = random.pick(&[
        Effect::Limit { requests, burst: None },
        Effect::Limit { requests, burst: None },
        Effect::Unlimited,
        Effect::Deny,
    ]);
    except_by(random, scenario, (number, whom), effect);
}

/// An exception of this effect.
pub(super) fn except_by(
    random: &mut Random,
    scenario: &mut Scenario,
    (number, whom): (usize, Whom),
    effect: Effect,
) {
    let limit = &mut scenario.limits[number];
    let most = if let Effect::Limit { requests: Some(requests), .. } = effect { requests } else { 0 };
    limit.excepted = limit.excepted.max(Some(most as u32));
    let at = SECOND + random.below(ASKED / 2);
    let lasts = random.pick(&[50 * MILLI, SECOND, 5 * SECOND]);
    for node in 0..scenario.clocks.len() {
        let lasts = lasts + random.below(IN_FORCE_AFTER);
        let what = What::Except { node, limit: number, whom, effect, lasts };
        scenario.faults.push(Fault { at: at + random.below(IN_FORCE_AFTER), what });
    }
}

/// A reset of one counter, of all counters of one limit, or of all limits. It reaches the nodes one after the other.
/// What belongs to an older epoch (leases, hits that go back, denials that are remembered) may not change a newer one:
/// to the judge, each epoch is another counter.
fn reset(random: &mut Random, scenario: &mut Scenario, epoch: u64) {
    let limit = Some(random.index(scenario.limits.len())).filter(|_| !random.one_in(3));
    let key = limit.filter(|_| random.one_in(2)).map(|_| random.pick(&[0, 0, 1]));
    let at = SECOND + random.below(ASKED - SECOND);
    let heard_within = random.pick(&[0, MILLI, 50 * MILLI, 500 * MILLI]);
    scenario.faults.push(Fault { at, what: What::Reset { limit, key, epoch, heard_within } });
}
