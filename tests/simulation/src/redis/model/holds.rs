//! Holds of reservations: hits that are held until a commit or their expiry, by the ids of their reservations.

use std::collections::BTreeMap;

use super::check::{Check, MOST, Reader, Slot, Stamp};
use super::counter::{Ahead, Kind, Look};
use crate::redis::database::Sorted;

/// By how much the scores of `latest` and `last` are behind all times of holds.
const BEHIND: i64 = 1 << 52;
const HOLDS_MAX: usize = 100_000;
/// What is found under an id. More is an expired hold, with the hits that were charged of it.
const NOTHING: i64 = 0;
const OPEN: i64 = 1;
const OTHER: i64 = 2;
const ENDED: i64 = 3;
const FULL: i64 = 4;
const EXPIRED: i64 = 5;

/// The holds of a limit. Times are in microseconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Holds {
    latest: i64,
    /// When all ids are forgotten.
    last: i64,
    /// What counts, all in all.
    held: i64,
    /// What it may cost at most.
    worst: i64,
    by_id: BTreeMap<[u8; 8], Hold>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Hold {
    number: [u8; 8],
    /// 0: it was ended.
    expires: i64,
    /// Until when its hits count.
    till: i64,
    forgotten: i64,
    hits: i64,
    worst: i64,
}

impl Hold {
    fn counts(&self, at: i64) -> bool {
        self.till > at
    }

    /// What still counts once it is ended with this cost: of an expired one so much as the cost is.
    fn stays(&self, cost: i64, at: i64) -> i64 {
        if self.expires <= at && self.counts(at) { self.worst.min(cost) } else { 0 }
    }
}

impl Holds {
    /// Those in a sorted set: see `holds.lua`.
    pub(super) fn of_sorted(sorted: &Sorted) -> Self {
        let (mut holds, mut worst) = (Self::default(), None);
        for (member, &score) in sorted {
            match &member[..] {
                b"latest" => holds.latest = score - BEHIND,
                b"last" => holds.last = score - BEHIND,
                b"sum" => holds.held = -score,
                b"worst" => worst = Some(-score),
                [b'h', packed @ ..] => {
                    let mut from = Reader::new(packed);
                    let Slot { id, number } = from.slot();
                    let [expires, till, forgotten, hits] = [(); 4].map(|()| from.double());
                    let worst = if from.is_empty() { hits } else { from.double() };
                    holds.by_id.insert(id, Hold { number, expires, till, forgotten, hits, worst });
                }
                _ => {}
            }
        }
        holds.worst = worst.unwrap_or(holds.held);
        holds
    }

    fn of(&self, check: &Check<'_>) -> Option<Hold> {
        self.by_id.get(&check.slot?.id).copied()
    }

    fn found(&self, check: &Check<'_>, hits: i64) -> i64 {
        match self.of(check) {
            None if self.by_id.len() >= HOLDS_MAX => FULL,
            None => NOTHING,
            Some(hold) if hold.expires == 0 => ENDED,
            Some(hold) if hold.expires <= self.latest => {
                EXPIRED + if hold.till > hold.expires { hold.worst } else { 0 }
            }
            Some(hold) if check.is_reported() || hold.worst == worst_of(check, hits) => OPEN,
            Some(_) => OTHER,
        }
    }

    pub(super) fn is_open(found: i64) -> bool {
        found == OPEN
    }

    /// What of the cost of a reservation is still to be charged, by what was found.
    pub(super) fn owes(found: i64, cost: i64) -> i64 {
        if found == ENDED { 0 } else { (cost - (found - EXPIRED).max(0)).max(0) }
    }

    fn put(&mut self, id: [u8; 8], hold: Hold) -> Option<i64> {
        self.by_id.insert(id, hold);
        self.last = self.last.max(hold.forgotten);
        self.sum();
        Some(self.last)
    }

    fn sum(&mut self) {
        let counting = || self.by_id.values().filter(|hold| hold.counts(self.latest));
        let worst = counting().map(|hold| hold.worst).sum();
        (self.held, self.worst) = (counting().map(|hold| hold.hits).sum(), worst);
    }

    /// What others hold, and what their calls may cost. If this check ends an expired hold, what it leaves of that is a part of
    /// both.
    fn others(&self, check: &Check<'_>, hits: i64) -> (i64, i64) {
        let is_own = |hold: &Hold| hold.expires > self.latest || check.is_reported() && hold.expires > 0;
        let Some(own) = self.of(check).filter(is_own) else { return (self.held, self.worst) };
        let (held, worst) = if own.counts(self.latest) { (own.hits, own.worst) } else { (0, 0) };
        let stays = own.stays(hits - 1, self.latest);
        (self.held - held + stays, self.worst - worst + stays)
    }

    /// The same reservation again is held under the number of the new attempt.
    fn hold(&mut self, check: &Check<'_>, Slot { id, number }: Slot, hits: i64) -> Option<i64> {
        if let Some(hold) = self.of(check) {
            return self.put(id, Hold { number, ..hold });
        }
        let expires = self.latest + check.window;
        let till = match check.period {
            Some((_, 0)) => expires + check.denominator,
            Some((begins, _)) if expires < begins => begins,
            Some((_, ends)) => ends,
            None => unreachable!("whoever names a hold names a period"),
        };
        let forgotten = till.max(expires + check.window);
        self.put(id, Hold { number, expires, till, forgotten, hits, worst: worst_of(check, hits) })
    }

    fn end(&mut self, check: &Check<'_>, Slot { id, number }: Slot, cost: i64) -> Option<i64> {
        let forgotten = self.latest + check.window;
        let ended = Hold { number, expires: 0, till: 0, forgotten, hits: 0, worst: 0 };
        match self.of(check) {
            None if self.by_id.len() >= HOLDS_MAX => None,
            None => self.put(id, ended),
            Some(hold) if hold.expires == 0 => None,
            Some(hold) => {
                let hits = hold.stays(cost, self.latest);
                let till = if hits > 0 { hold.till } else { 0 };
                self.put(id, Hold { till, hits, worst: hits, forgotten: forgotten.max(till), ..ended })
            }
        }
    }
}

/// The most that a call may cost which holds so many hits.
fn worst_of(check: &Check<'_>, hits: i64) -> i64 {
    if check.worst > 0 { check.worst } else { hits }
}

impl Kind for Holds {
    fn latest(&self) -> i64 {
        self.latest
    }

    fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    fn advance(&mut self, _: &Check<'_>, now: i64) -> Option<i64> {
        if now <= self.latest {
            return None;
        }
        let before = std::mem::replace(&mut self.latest, now);
        self.by_id.retain(|_, hold| hold.forgotten > now);
        self.sum();
        let is_changed = self.by_id.values().any(|hold| hold.counts(before) && !hold.counts(now));
        is_changed.then_some(self.last)
    }

    fn look(&self, check: &Check<'_>, hits: i64, _: Ahead) -> Look {
        let found = self.found(check, hits);
        let (before, _) = self.others(check, hits);
        Look { over: hits > 0 && !check.is_reported() && found > OPEN, left: found, before }
    }

    fn worst(&self, check: &Check<'_>) -> i64 {
        self.others(check, check.hits).1
    }

    fn report_max(&self, _: &Check<'_>, _: Ahead) -> i64 {
        MOST
    }

    fn charge(&mut self, check: &Check<'_>, hits: i64) -> Option<i64> {
        let slot = check.slot?;
        match check.is_reported() {
            // One hit more than the cost.
            true => self.end(check, slot, hits - 1),
            false => self.hold(check, slot, hits),
        }
    }

    fn charge_at(&mut self, _: &Check<'_>, _: i64, _: i64, _: Ahead) -> Option<i64> {
        None
    }

    fn refund(&mut self, _: &Check<'_>, _: i64) -> Option<i64> {
        None
    }

    fn renews(&self, check: &Check<'_>) -> bool {
        !check.is_reported() && self.of(check).is_some()
    }

    /// What was held before stays.
    fn give_back(&mut self, check: &Check<'_>, renewed: Stamp) -> Option<i64> {
        let (slot, hold) = check.slot.zip(self.of(check))?;
        if renewed.at == 0 && hold.expires > 0 && hold.number == slot.number {
            self.by_id.remove(&slot.id);
            self.sum();
        }
        None
    }

    fn state(&self, _: &Check<'_>, _: i64, _: bool) -> [Option<i64>; 3] {
        [Some(0), Some(0), None]
    }
}
