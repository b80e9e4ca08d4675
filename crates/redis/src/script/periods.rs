//! The periods of calendars in the arguments of a call: a script has no table of them, so it gets the one that holds the
//! deadline of the call.

use std::borrow::Cow;
use std::ops::Range;

use super::{ALGORITHM, CARRIES, DENOMINATOR, PERIOD, WINDOW, double};
use tidegate_engine::limit::{Algorithm, Limit, Periods};
use tidegate_engine::time::Timestamp;

/// The checks of a call with this deadline.
pub(super) fn named(checks: &[Vec<u8>], deadline: Timestamp) -> Cow<'_, [Vec<u8>]> {
    let mut named = Cow::Borrowed(checks);
    let is_of = |check: &Vec<u8>, of: Algorithm| {
        check.get(ALGORITHM).is_some_and(|algorithm| algorithm & !CARRIES == of.number())
    };
    let is_budget = |check: &Vec<u8>| is_of(check, Algorithm::Calendar);
    let makes_hold = |check: &Vec<u8>| is_of(check, Algorithm::Holds) && check.len() >= PERIOD.end;
    if checks.iter().any(|check| is_budget(check) || makes_hold(check)) {
        for check in named.to_mut() {
            if is_budget(check) {
                name_period(check, deadline);
            } else if makes_hold(check) {
                name_period_of_hold(check, deadline);
            }
        }
    }
    named
}

/// Puts the period of a calendar that holds a time into a check, for the script: its begin in place of the window, its
/// end in place of the denominator. Before, there were the window, and the number of the table or 0.
fn name_period(check: &mut [u8], at: Timestamp) {
    let number = |range: Range<usize>| check[range].try_into().map_or(0.0, f64::from_le_bytes) as u64;
    let (window_nanos, table) = (number(WINDOW) * 1_000, number(DENOMINATOR) as u16);
    let limit = match Periods::numbered(table) {
        Some(periods) => Limit::calendar(0, window_nanos, periods),
        None => Limit::new(Algorithm::Calendar, 0, window_nanos),
    };
    let (begin, end) = limit.period_around(at);
    check[WINDOW].copy_from_slice(&double(begin.as_nanos() / 1_000));
    check[DENOMINATOR].copy_from_slice(&double(end.as_nanos() / 1_000));
}

/// Puts the period in which a hold expires that is made at this time into its check, if it is of a calendar budget.
fn name_period_of_hold(check: &mut [u8], at: Timestamp) {
    let ttl_micros = check[WINDOW].try_into().map_or(0.0, f64::from_le_bytes) as u64;
    // The number of its table, or 0.
    let table = check[PERIOD].first_chunk().map_or(0.0, |number| f64::from_le_bytes(*number)) as u16;
    let Some(periods) = Periods::numbered(table) else { return };
    let expires = at.plus(ttl_micros.saturating_mul(1_000));
    let (begin, end) = Limit::calendar(0, ttl_micros, periods).period_around(expires);
    let period = [begin, end].map(|time| double(time.as_nanos() / 1_000));
    check[PERIOD].copy_from_slice(period.as_flattened());
}
