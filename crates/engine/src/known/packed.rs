//! An entry of the cache in three bits, the lower half of N, and two words for the fields that few records have:
//!
//! | word | bits | |
//! | --- | --- | --- |
//! | 0 | 0 to 31 | `burst`; without one, the upper half of N |
//! | | 32 to 56 | multiplier of the unit: 366 days are 25 bits of seconds |
//! | | 57, 58 | it is unlimited; there is a `burst` |
//! | | 59, 60 | there is a word on shadow mode; shadow mode |
//! | | 61 to 63 | unit: its place in the list of all, from 1; 0 for none |
//! | 1 | 0 to 54 | granularity in nanoseconds: 366 days are 55 bits of them; 0 for none. Or an anchor: no record has both |
//! | | 60 | there is an anchor |
//! | | 61 to 63 | algorithm, as the unit |

use crate::limit::Algorithm;
use crate::overlay::Record;
use crate::unit::{Anchor, Unit, Window};

pub(super) const IS_KNOWN: u32 = 1;
const HAS_RECORD: u32 = 1 << 1;
/// It has more than N.
pub(super) const HAS_MORE: u32 = 1 << 2;
pub(super) const FLAGS: u32 = IS_KNOWN | HAS_RECORD | HAS_MORE;

const MULTIPLIER_AT: u32 = 32;
const MULTIPLIER_MAX: u64 = (1 << 25) - 1;
const UNLIMITED: u64 = 1 << 57;
const HAS_BURST: u64 = 1 << 58;
const HAS_SHADOW: u64 = 1 << 59;
const SHADOW: u64 = 1 << 60;
const PLACE_AT: u32 = 61;
const GRANULARITY_MAX: u64 = (1 << 55) - 1;
const HAS_ANCHOR: u64 = 1 << 60;
const _: () = assert!(Algorithm::NAMED.len() < 8 && Unit::ALL.len() < 8, "a place takes three bits");

/// What is known of a key.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Packed {
    /// Other bits of it mean nothing here.
    pub(super) flags: u32,
    pub(super) requests: u32,
    pub(super) more: More,
}

/// The fields of a record besides N.
pub(super) type More = [u64; 2];

/// A record, or that there is none. A window or granularity above 366 days is stored as at least 366 days: limits cut
/// it anyway.
pub(super) fn pack(record: Option<Record>) -> Packed {
    let Some(record) = record else { return Packed { flags: IS_KNOWN, ..Packed::default() } };
    let more = more(&record);
    let flags = IS_KNOWN | HAS_RECORD | if more == More::default() { 0 } else { HAS_MORE };
    Packed { flags, requests: record.requests as u32, more }
}

fn more(record: &Record) -> More {
    let &Record { requests, burst, window, algorithm, granularity_nanos, anchor, shadow, unlimited } = record;
    let flag = |is_set: bool, flag: u64| if is_set { flag } else { 0 };
    let (multiplier, unit) =
        window.map_or((0, 0), |Window { unit, multiplier }| (multiplier.into(), unit_place(unit)));
    let first = burst.unwrap_or(requests >> 32)
        | MULTIPLIER_MAX.min(multiplier) << MULTIPLIER_AT
        | flag(unlimited, UNLIMITED)
        | flag(burst.is_some(), HAS_BURST)
        | flag(shadow.is_some(), HAS_SHADOW)
        | flag(shadow == Some(true), SHADOW)
        | unit << PLACE_AT;
    let algorithm = algorithm.map_or(0, |algorithm| 1 + u64::from(algorithm.number()));
    let last = match anchor {
        Some(anchor) => HAS_ANCHOR | u64::from(anchor.number()),
        None => GRANULARITY_MAX.min(granularity_nanos.unwrap_or(0)),
    };
    [first, last | algorithm << PLACE_AT]
}

/// The inverse of [`pack`].
#[inline]
pub(super) fn unpack(Packed { flags, requests, more: [first, second] }: Packed) -> Option<Record> {
    if flags & HAS_RECORD == 0 {
        return None;
    }
    if flags & HAS_MORE == 0 {
        return Some(Record::of(requests.into()));
    }
    let has = |flag: u64| first & flag != 0;
    let place = |word: u64| ((word >> PLACE_AT) as usize).checked_sub(1);
    let multiplier = (first >> MULTIPLIER_AT & MULTIPLIER_MAX) as u32;
    let (low, has_burst) = (first & u64::from(u32::MAX), has(HAS_BURST));
    let (last, has_anchor) = (second & GRANULARITY_MAX, second & HAS_ANCHOR != 0);
    Some(Record {
        requests: u64::from(requests) | if has_burst { 0 } else { low << 32 },
        burst: has_burst.then_some(low),
        window: place(first).and_then(|unit| Some(Window { unit: *Unit::ALL.get(unit)?, multiplier })),
        algorithm: place(second).and_then(|algorithm| Algorithm::NAMED.get(algorithm).copied()),
        granularity_nanos: (last > 0 && !has_anchor).then_some(last),
        anchor: if has_anchor { Anchor::numbered(last as u16) } else { None },
        shadow: has(HAS_SHADOW).then_some(has(SHADOW)),
        unlimited: has(UNLIMITED),
    })
}

/// The place of a unit in the list of all, from 1.
fn unit_place(unit: Unit) -> u64 {
    1 + Unit::ALL.into_iter().position(|other| other == unit).expect("the list has all units") as u64
}
