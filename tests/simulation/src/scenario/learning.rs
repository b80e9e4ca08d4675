//! Learning: what is held follows what calls cost, also after the reset of a counter.
//!
//! In: a scenario that was drawn. Out: the same with cheap calls of one counter and dear ones of another. Then the first one is
//! reset in half of them, and several of its calls begin at once: they have room together if what they cost was learnt.

use super::{ASKED, Ask, Fault, Hold, Item, LimitSpec, Reservation, Scenario, What, reservations, resets};
use crate::random::Random;
use crate::world::{MILLI, SECOND, Time};

/// So many calls of each counter: more than are enough to learn.
const CALLS: u64 = 24;
/// So many of the first counter are dear in the end.
const DEARER: u64 = 6;
/// From one call to the next of its counter.
const APART: Time = 350 * MILLI;
/// A counter that others ask less often than the first one.
const CHEAP: u64 = 3;
/// The same.
const DEAR: u64 = 4;

/// In half of the scenarios in which reservations hold what was learnt.
pub(super) fn add(random: &mut Random, scenario: &mut Scenario) {
    let learns = |limit: &LimitSpec| limit.shape.reserve.is_some_and(|reserve| reserve.hold.is_some());
    let Some(limit) = scenario.limits.iter().position(learns).filter(|_| random.one_in(2)) else { return };
    let own = &mut scenario.limits[limit];
    if own.burst.is_none() && !own.is_operated() {
        own.requests = [100; 2];
    }
    // So many calls take half of N.
    let dear = u64::from(own.requests[0]) * APART / (2 * own.window_secs[0] * SECOND);
    if dear < 2 {
        return;
    }
    let at_once = u64::from(own.requests[0]) / dear + 2;
    if let Some(reserve) = &mut scenario.limits[limit].shape.reserve {
        let percentile = random.pick(&[50, 90, 99]);
        reserve.hold =
            Some(Hold { percentile, is_of_counter: true, initial: dear, max: 2 * dear, overdraft: 10_000 });
    }
    let (node, lasts) = (random.index(scenario.clocks.len()), random.pick(&[MILLI, 20 * MILLI, 200 * MILLI]));
    let mut call = |at: Time, key: u64, cost: u64| {
        let id = reservations::next_id(scenario);
        for (at, hits, is_commit) in [(at, 2 * dear, false), (at + lasts, cost, true)] {
            let reserves = Some(Reservation { id, hits, is_commit });
            scenario.asks.push(Ask { reserves, ..Ask::new(at, node, vec![Item::new(limit, key, hits)]) });
        }
    };
    for number in 0..CALLS {
        call(SECOND + number * APART, CHEAP, 1);
        call(SECOND + number * APART + APART / 2, DEAR, dear);
    }
    let is_reset_at = SECOND + CALLS * APART;
    let begins = is_reset_at + random.pick(&[SECOND, 6 * SECOND]);
    (0..at_once).for_each(|number| call(begins + number, CHEAP, 1));
    // Later some of its calls are dear too.
    let later = begins + SECOND;
    (0..DEARER).for_each(|number| call(later + number * APART, CHEAP, dear));
    debug_assert!(later + DEARER * APART < ASKED, "who asks later is not there");
    if random.one_in(2) {
        let epoch = resets::next_epoch(scenario);
        let what = What::Reset { limit: Some(limit), key: Some(CHEAP), epoch, heard_within: MILLI };
        scenario.faults.push(Fault { at: is_reset_at, what });
    }
    scenario.asks.sort_by_key(|ask| ask.at);
    scenario.faults.sort_by_key(|fault| fault.at);
}
