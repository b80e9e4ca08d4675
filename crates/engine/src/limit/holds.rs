//! `holds`: hits that reservations hold, next to the counter of their limit. Rules choose it by `reserve`.
//!
//! A reservation names itself by an id and holds hits until it ends: by a commit, which removes exactly this hold, or at its
//! expiry, W (the `ttl` of the rule) after it began. What is held counts in the limit as if an earlier descriptor of the
//! request took it: the store adds it to the pending hits of the limit's counter. An expired hold counts for as long as hits
//! of that time do (`expired: charge`), or ends with its expiry (`expired: free`).
//!
//! A hold need not be the worst case: then it has two numbers, and the limit is asked twice. What is held has to fit into N, and
//! what the calls may cost at most into N and its overdraft (see `plan`).
//!
//! - **Invariant:** `held` and `worst` are the sums of all holds that count at `latest`.
//! - **An id that has ended is remembered** for one `ttl`: who repeats a commit must not pay twice, and a reservation that
//!   comes after its commit holds nothing.
//! - **A hold has two names**, as a slot has: the id is chosen by the caller, the number is made for each attempt. Hits that a
//!   slot of a Cluster gives back are those of one attempt.
//! - **Error:** none. An expired hold of a bucket counts in full for the time in which a full bucket drains.
//!
//! A check takes the hits that it holds; with a name and [`Limit::ends_hold`] it ends the hold; otherwise it only looks.
//! `before` of its verdict is what others hold, and `remaining` says what it [`Found`] under its id.

use std::fmt;
use std::num::NonZeroU64;

use crate::limit::bytes::{Append as _, Damage, Reader};
use crate::limit::counter::{Counter, Pending};
use crate::limit::indexed_heap::{IndexedHeap, Item};
use crate::limit::{COUNT_REQUESTS_MAX, Limit, Periods, Preview, Share, Slot};
use crate::time::{SECOND_NANOS, Timestamp};

/// The most holds and remembered ids of a counter: all of them may change at one time.
pub const HOLDS_MAX: usize = 100_000;

/// The most hits of a reservation. It and the numbers that are made of it are exact in Redis and in JSON.
pub const AMOUNT_MAX: u64 = (1 << 53) - 8;

/// The most hits that all holds of a counter hold together, and the most that their calls may cost. No limit is larger, but in
/// shadow mode more than the limit is held. Up to here sums are exact in Redis too.
const SUM_MAX: u64 = COUNT_REQUESTS_MAX;

/// How holds of a limit end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HoldTerms {
    /// How long a hold lasts that nobody ends.
    pub ttl_nanos: u64,
    /// For how long a hold still counts after its expiry. 0: not at all.
    pub after_secs: u32,
    /// It counts after its expiry until the end of the period that it expires in.
    pub periods: Option<Periods>,
    /// What a call may cost at most: of a rule, `max` of its `hold`; of a reservation, also no more than its amount.
    /// 0: a hold is its own worst case.
    pub worst: u32,
    /// How much of the limit the worst cases may take: all of it, and an overdraft.
    pub share: Share,
}

/// The terms as rules write them: `ttl: 600s, expired: charge, overdraft: 0.5, max: 8000`.
impl fmt::Display for HoldTerms {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let charges = self.after_secs > 0 || self.periods.is_some();
        let expired = if charges { "charge" } else { "free" };
        write!(out, "ttl: {}s, expired: {expired}", self.ttl_nanos / SECOND_NANOS)?;
        match self.worst {
            0 => Ok(()),
            max => write!(out, ", overdraft: {}, max: {max}", self.share.overdraft()),
        }
    }
}

impl HoldTerms {
    /// Until when a hold counts that expires at this time.
    fn counts_until(&self, expires: Timestamp) -> Timestamp {
        match self.periods {
            Some(periods) => periods.around(expires).1,
            None => expires.plus(u64::from(self.after_secs) * SECOND_NANOS),
        }
    }

    /// The most that a call may cost whose hold is this.
    fn worst_of(&self, hits: u64) -> u64 {
        if self.worst == 0 { hits } else { self.worst.into() }
    }
}

/// What a check found under the id that it names. A verdict has it as a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Nothing: the id is new, or was forgotten.
    Nothing,
    /// An open hold of the same worst case.
    Open,
    /// An open hold of another worst case.
    Other,
    /// A hold that was ended.
    Ended,
    /// Nothing, and there is no room for one more, or for so many hits.
    Full,
    /// A hold that has expired, of which so many hits were charged.
    Expired(u64),
}

impl Found {
    /// Its number: the last one and above are expired holds.
    const fn number(self) -> u64 {
        match self {
            Self::Nothing => 0,
            Self::Open => 1,
            Self::Other => 2,
            Self::Ended => 3,
            Self::Full => 4,
            Self::Expired(charged) => 5 + charged,
        }
    }

    /// What this number means.
    pub fn numbered(number: u64) -> Self {
        match number {
            0 => Self::Nothing,
            1 => Self::Open,
            2 => Self::Other,
            3 => Self::Ended,
            4 => Self::Full,
            charged => Self::Expired(charged - 5),
        }
    }

    /// What of the actual cost of a reservation is still to be charged.
    pub fn owes(self, cost: u64) -> u64 {
        match self {
            Self::Ended => 0,
            Self::Expired(charged) => cost.saturating_sub(charged),
            _ => cost,
        }
    }
}

/// A hold, or the id of one that has ended.
#[derive(Clone, Copy, Debug)]
struct Hold {
    slot: Slot,
    /// When it expires. The beginning of time: it was ended.
    expires: Timestamp,
    /// Until when its hits count. The beginning of time: they do not.
    until: Timestamp,
    /// When its id is forgotten.
    forgotten: Timestamp,
    hits: u64,
    /// The most that the call may cost. Once its hits do not count any more: what was charged for it at its expiry.
    worst: u64,
}

impl Item for Hold {
    fn id(&self) -> NonZeroU64 {
        self.slot.id
    }

    fn due(&self) -> Timestamp {
        if self.counts() { self.until } else { self.forgotten }
    }
}

impl Hold {
    /// It at this time.
    fn at(self, now: Timestamp) -> Self {
        if self.until > now || !self.counts() {
            return self;
        }
        let worst = if self.until > self.expires { self.worst } else { 0 };
        Self { until: Timestamp::default(), hits: 0, worst, ..self }
    }

    fn counts(&self) -> bool {
        self.until > Timestamp::default()
    }

    fn is_ended(&self) -> bool {
        self.expires == Timestamp::default()
    }

    fn is_open(&self, now: Timestamp) -> bool {
        self.expires > now
    }

    /// What still counts once it is ended with this cost. Of an expired hold the surplus goes back, from its own time: the cost
    /// counts as long as the hold would have.
    fn stays(&self, cost: u64, now: Timestamp) -> u64 {
        if self.is_open(now) { 0 } else { self.counted().1.min(cost) }
    }

    /// What it holds, and its worst case, if they count.
    fn counted(&self) -> (u64, u64) {
        if self.counts() { (self.hits, self.worst) } else { (0, 0) }
    }
}

/// The state: 96 bytes, and up to 96 for each hold.
#[derive(Debug, Default)]
pub(crate) struct Holds {
    latest: Timestamp,
    /// All ids are forgotten at this time.
    last: Timestamp,
    held: u64,
    worst: u64,
    /// None of them changes until `latest`.
    holds: IndexedHeap<Hold>,
}

impl Holds {
    fn of(&self, limit: &Limit) -> Option<&Hold> {
        self.holds.find(limit.slot()?.id)
    }

    /// What others hold and what their calls may cost, given the hold under the id of this check. If the check ends an expired
    /// hold, what it leaves of that is a part of both.
    fn others(&self, hold: Option<&Hold>, limit: &Limit, hits: u64) -> (u64, u64) {
        let is_own = |hold: &&Hold| hold.is_open(self.latest) || limit.ends_hold() && !hold.is_ended();
        let Some(own) = hold.filter(is_own) else { return (self.held, self.worst) };
        let (held, worst) = own.counted();
        let stays = own.stays(hits.saturating_sub(1), self.latest);
        (self.held - held + stays, self.worst - worst + stays)
    }

    fn found(&self, hold: Option<&Hold>, limit: &Limit, hits: u64) -> Found {
        match hold {
            None if self.holds.len() >= HOLDS_MAX || self.is_too_much(limit, hits) => Found::Full,
            None => Found::Nothing,
            Some(hold) if hold.is_ended() => Found::Ended,
            Some(hold) if !hold.is_open(self.latest) => Found::Expired(hold.worst),
            Some(_) if limit.ends_hold() => Found::Open,
            Some(hold) => {
                let worst = limit.hold_terms().map(|terms| terms.worst_of(saturated(hits)));
                if worst == Some(hold.worst) { Found::Open } else { Found::Other }
            }
        }
    }

    /// Whether a hold of so many hits makes a sum too large.
    fn is_too_much(&self, limit: &Limit, hits: u64) -> bool {
        let Some(terms) = limit.hold_terms().filter(|_| hits > 0 && !limit.ends_hold()) else { return false };
        let hits = saturated(hits);
        (self.held + hits).max(self.worst + terms.worst_of(hits)) > SUM_MAX
    }

    /// Takes what a hold counts out of the sums.
    fn uncount(&mut self, hold: &Hold) {
        let (held, worst) = hold.counted();
        (self.held, self.worst) = (self.held - held, self.worst - worst);
    }

    /// Puts a hold in the place of the one with its id, which is not in the sums any more.
    fn put(&mut self, hold: Hold) {
        let hold = hold.at(self.latest);
        let (held, worst) = hold.counted();
        (self.held, self.worst) = (self.held + held, self.worst + worst);
        self.last = self.last.max(hold.forgotten);
        self.holds.put(hold);
    }

    fn hold(&mut self, slot: Slot, terms: &HoldTerms, hits: u64) {
        if let Some(hold) = self.holds.find(slot.id).copied() {
            // The same reservation again: it is held under the number of the new attempt.
            return self.holds.put(Hold { slot, ..hold });
        }
        let expires = self.latest.plus(terms.ttl_nanos);
        let until = terms.counts_until(expires);
        let forgotten = until.max(expires.plus(terms.ttl_nanos));
        let hits = saturated(hits);
        self.put(Hold { slot, expires, until, forgotten, hits, worst: terms.worst_of(hits) });
    }

    fn end(&mut self, slot: Slot, terms: &HoldTerms, cost: u64) {
        let forgotten = self.latest.plus(terms.ttl_nanos);
        let (expires, until) = Default::default();
        let ended = Hold { slot, expires, until, forgotten, hits: 0, worst: 0 };
        let hold = match self.holds.find(slot.id) {
            Some(hold) => *hold,
            None if self.holds.len() >= HOLDS_MAX => return,
            None => return self.put(ended),
        };
        if hold.is_ended() {
            return;
        }
        self.uncount(&hold);
        let stays = hold.stays(cost, self.latest);
        let until = if stays > 0 { hold.until } else { until };
        self.put(Hold { until, hits: stays, worst: stays, forgotten: forgotten.max(until), ..ended });
    }
}

/// Hits as a hold has them.
fn saturated(hits: u64) -> u64 {
    hits.min(AMOUNT_MAX)
}

impl Counter for Holds {
    fn advance(&mut self, _limit: &Limit, now: Timestamp) {
        self.latest = self.latest.max(now);
        while let Some(hold) = self.holds.first().filter(|hold| hold.due() <= self.latest).copied() {
            self.uncount(&hold);
            if hold.forgotten > self.latest {
                self.put(hold);
                continue;
            }
            self.holds.remove(hold.slot.id);
            if self.holds.is_empty() {
                *self = Self { latest: self.latest, ..Self::default() };
            }
        }
    }

    fn look(&self, limit: &Limit, _pending: Pending, hits: u64) -> Preview {
        let hold = self.of(limit);
        let found = self.found(hold, limit, hits);
        let (before, _) = self.others(hold, limit, hits);
        let holds = hits > 0 && !limit.ends_hold();
        let over = holds && !matches!(found, Found::Nothing | Found::Open);
        Preview { over, left: found.number(), before }
    }

    fn worst_case(&self, limit: &Limit, hits: u64) -> u64 {
        self.others(self.of(limit), limit, hits).1
    }

    fn charge(&mut self, limit: &Limit, hits: u64) {
        let (Some(slot), Some(terms)) = (limit.slot(), limit.hold_terms()) else { return };
        match limit.ends_hold() {
            // One hit more than the cost: a commit of 0 hits is charged too.
            true => self.end(slot, &terms, hits - 1),
            false => self.hold(slot, &terms, hits),
        }
    }

    fn after(&self, _limit: &Limit, now: Preview, _hits: u64) -> Preview {
        now
    }

    fn refund(&mut self, _limit: &Limit, _hits: u64) {}

    fn wait_nanos(&self, _limit: &Limit, _hits: u64) -> u64 {
        0
    }

    fn expires_at(&self) -> Timestamp {
        self.last
    }

    fn latest(&self) -> Timestamp {
        self.latest
    }

    /// Files of older programs have one number for each hold, of 32 bits, or two: the id comes again before the second one. Where
    /// these two are equal, both numbers follow with all their bits.
    fn encode(&self, out: &mut Vec<u8>) {
        out.u64(self.latest.as_nanos());
        for &Hold { slot, expires, until, forgotten, hits, worst } in self.holds.in_order() {
            out.u64(slot.id.get());
            out.u64(slot.number);
            [expires, until, forgotten].into_iter().for_each(|time| out.u64(time.as_nanos()));
            let short = u32::try_from(hits).ok().zip(u32::try_from(worst).ok());
            let (hits32, worst32) = short.unwrap_or_default();
            out.u32(hits32);
            if worst != hits || short.is_none() {
                out.u64(slot.id.get());
                out.u32(worst32);
            }
            if short.is_none() {
                out.u64(hits);
                out.u64(worst);
            }
        }
        out.u64(0);
    }

    fn decode(bytes: &mut Reader<'_>) -> Result<Self, Damage> {
        let latest = Timestamp::from_nanos(bytes.u64()?);
        let mut holds: Vec<Hold> = Vec::new();
        while let Some(id) = NonZeroU64::new(bytes.u64()?) {
            if let Some(hold) = holds.last_mut().filter(|hold| hold.slot.id == id && hold.worst == hold.hits)
            {
                hold.worst = bytes.u32()?.into();
                if hold.worst == hold.hits {
                    (hold.hits, hold.worst) = (bytes.u64()?, bytes.u64()?);
                    if hold.hits.max(hold.worst) <= u32::MAX.into() {
                        return Err("numbers that need no more than 32 bits");
                    }
                }
                continue;
            }
            let slot = Slot { id, number: bytes.u64()? };
            let mut time = || bytes.u64().map(Timestamp::from_nanos);
            let (expires, until, forgotten) = (time()?, time()?, time()?);
            let hits = bytes.u32()?.into();
            if holds.last().is_some_and(|before| before.slot.id >= id) {
                return Err("the holds are not in order");
            }
            if forgotten <= latest || until > forgotten {
                return Err("a hold that has ended");
            }
            if expires > latest && until < expires {
                return Err("an open hold that does not count");
            }
            if holds.len() == HOLDS_MAX {
                return Err("more holds than a counter has");
            }
            holds.push(Hold { slot, expires, until, forgotten, hits, worst: hits });
        }
        let mut state = Self { latest, ..Self::default() };
        for hold in holds {
            if hold.hits.max(hold.worst) > AMOUNT_MAX {
                return Err("a hold of too many hits");
            }
            state.put(hold);
            if state.held.max(state.worst) > SUM_MAX {
                return Err("holds of too many hits");
            }
        }
        if state.holds.is_empty() { Err("no hold") } else { Ok(state) }
    }

    fn invariants(&self, _limit: &Limit) -> Result<(), &'static str> {
        let counted = self.holds.iter().map(Hold::counted);
        let sums = counted.fold((0, 0), |sums, (held, worst)| (sums.0 + held, sums.1 + worst));
        let last = self.holds.iter().map(|hold| hold.forgotten).max();
        let is_right = self.holds.is_right() && last.is_none_or(|last| last <= self.last);
        match is_right && sums == (self.held, self.worst) {
            true => Ok(()),
            false => Err("a hold in the wrong place, or a wrong sum"),
        }
    }

    fn heap_bytes(&self) -> usize {
        self.holds.heap_bytes()
    }

    fn growth_bytes(&self, limit: &Limit) -> usize {
        match self.holds.growth_bytes(1) {
            bytes if bytes > 0 && self.of(limit).is_none() => bytes,
            _ => 0,
        }
    }

    fn growth_bytes_after_others(&self, _limit: &Limit) -> usize {
        self.holds.growth_bytes(self.holds.len().max(4))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A hold as programs wrote it that knew one number: five hits.
    fn old_bytes() -> Vec<u8> {
        let mut bytes = Vec::new();
        let (latest, id, number, expires, until, forgotten) = (100, 7, 9, 200, 300, 400);
        [latest, id, number, expires, until, forgotten].into_iter().for_each(|number| bytes.u64(number));
        bytes.u32(5);
        bytes.u64(0);
        bytes
    }

    fn decoded(bytes: &[u8]) -> Result<Holds, Damage> {
        Holds::decode(&mut Reader::new(bytes))
    }

    #[test]
    fn what_was_written_with_one_number_is_read_and_written_as_before() {
        let holds = decoded(&old_bytes()).expect("a counter");
        assert_eq!((holds.held, holds.worst, holds.latest().as_nanos()), (5, 5, 100));
        let mut bytes = Vec::new();
        holds.encode(&mut bytes);
        assert_eq!(bytes, old_bytes());
    }

    #[test]
    fn a_worst_case_is_written_once_and_only_if_it_is_another_number() {
        let with_worst = |numbers: &[u32]| {
            let mut bytes = old_bytes();
            bytes.truncate(bytes.len() - 8);
            for worst in numbers {
                bytes.u64(7);
                bytes.u32(*worst);
            }
            bytes.u64(0);
            bytes
        };
        let holds = decoded(&with_worst(&[8])).expect("a counter");
        assert_eq!((holds.held, holds.worst), (5, 8));
        let mut bytes = Vec::new();
        holds.encode(&mut bytes);
        assert_eq!(bytes, with_worst(&[8]));
        for wrong in [&[5][..], &[8, 9]] {
            assert!(decoded(&with_worst(wrong)).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn holds_that_no_counter_has_are_refused() {
        let read = |latest: u64, holds: &[(u64, [u64; 3], u64)]| {
            let mut bytes = Vec::new();
            bytes.u64(latest);
            for (id, times, hits) in holds {
                [*id, 9].iter().chain(times).for_each(|number| bytes.u64(*number));
                bytes.u32(0);
                bytes.u64(*id);
                bytes.u32(0);
                [*hits, *hits].into_iter().for_each(|number| bytes.u64(number));
            }
            bytes.u64(0);
            decoded(&bytes).map(|holds| holds.held)
        };
        let (open, expired) = ([200, 300, 400], [50, 0, 400]);
        assert_eq!(read(100, &[(1, open, AMOUNT_MAX), (2, expired, AMOUNT_MAX)]), Ok(AMOUNT_MAX));
        for too_many in [AMOUNT_MAX + 1, u64::MAX] {
            assert!(read(100, &[(1, open, too_many)]).is_err(), "{too_many}");
            assert!(read(100, &[(1, expired, too_many)]).is_err(), "{too_many}");
        }
        assert!(read(100, &[(1, open, AMOUNT_MAX), (2, open, AMOUNT_MAX)]).is_err(), "in all");
        for until in [0, 99, 199] {
            assert!(read(100, &[(1, [200, until, 400], 1 << 40)]).is_err(), "open, but counts until {until}");
        }
    }

    #[test]
    fn numbers_of_more_than_32_bits_are_written_with_all_of_them() {
        for (hits, worst) in [(1 << 40, 0), (5, 1 << 33), (AMOUNT_MAX, 0), (u32::MAX.into(), 0)] {
            let worst = if worst == 0 { hits } else { worst };
            let (slot, time) = (Slot::of(7, 9), Timestamp::from_nanos);
            let mut holds = Holds { latest: time(100), ..Holds::default() };
            holds.put(Hold { slot, expires: time(200), until: time(300), forgotten: time(400), hits, worst });
            let mut bytes = Vec::new();
            holds.encode(&mut bytes);
            let read = decoded(&bytes).expect("a counter");
            assert_eq!((read.held, read.worst), (hits, worst));
            let mut again = Vec::new();
            read.encode(&mut again);
            assert_eq!(again, bytes);
        }
        let mut small = old_bytes();
        small.truncate(small.len() - 8);
        small.u64(7);
        small.u32(5);
        [5, 5, 0].into_iter().for_each(|number| small.u64(number));
        assert!(decoded(&small).is_err(), "numbers that would have fitted");
    }
}
