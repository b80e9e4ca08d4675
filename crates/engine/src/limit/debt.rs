//! `carry_debt`: debts of windows and periods that are paid by later ones. A debt is what reported costs charge beyond N.
//!
//! In windows the hits of a debt are charged at places in the future: the first at which they would have fitted. A hit
//! counts from its charge until its place has left the window. So the debt takes exactly the room that earlier hits leave,
//! and no hit is admitted while a part of it waits: whenever one is, all that was charged and carried in the k windows before
//! is at most N × (k + 1). Calendar budgets subtract N at each end of a period instead.
//!
//! A counter holds at most N, and [`DEBT_WINDOWS`] times N of debts. What costs are beyond that is dropped. But while other hits
//! take the room, those of a larger N from before, they may leave within a window. Then as much of a cost counts, without being
//! carried, as makes N that count for a window from now. If N is 0, it counts as 1 here.

use crate::limit::counter::{Pending, report_max_of_count};
use crate::limit::search::search;
use crate::limit::{CARRYING_NANOS_MAX, COUNT_REQUESTS_MAX, Limit};
use crate::time::SECOND_NANOS;

/// A counter holds the debts of so many windows or periods; a bucket, above `burst`, what drains in them. More is not owed: a
/// cost that was reported by mistake could take a lifetime to pay.
pub(super) const DEBT_WINDOWS: u64 = 16;

/// The most pieces that a cost is cut into: what fits, and what each window takes.
pub(super) const PIECES_MAX: usize = DEBT_WINDOWS as usize + 3;

/// No place is further ahead than so many windows, each with a bucket more. It would be if N became larger.
pub(super) const WINDOWS_AHEAD: u64 = DEBT_WINDOWS + 1;

/// The same in nanoseconds, by any limit that carries debts: a bucket may be as long as its window.
pub(super) const AHEAD_NANOS_MAX: u64 = 2 * WINDOWS_AHEAD * CARRYING_NANOS_MAX;

/// The days of a long period of a calendar, and the seconds of a mean one: 365.2425 days are a mean year.
const CALENDARS: [(u64, u64); 5] =
    [(1, 86_400), (7, 7 * 86_400), (31, 2_629_746), (92, 3 * 2_629_746), (366, 12 * 2_629_746)];

impl Limit {
    /// How many hits of a debt a window or a period pays.
    pub(super) fn paid_at_once(&self) -> u64 {
        self.requests().max(1)
    }

    /// The most hits of a reported cost that are carried where so many are there.
    pub(super) fn debt_room(&self, count: u64) -> u64 {
        ((1 + DEBT_WINDOWS) * self.paid_at_once()).min(COUNT_REQUESTS_MAX).saturating_sub(count)
    }

    /// Which of the calendars it has, from 1: day, week, month, quarter, year. 0: none, its periods are aligned windows.
    pub fn calendar_number(&self) -> u8 {
        let days = self.periods().map_or(0, |_| self.window_nanos() / (86_400 * SECOND_NANOS));
        CALENDARS.iter().position(|&(most, _)| most == days).map_or(0, |place| place as u8 + 1)
    }

    /// How long a period of its calendar lasts in the mean, in nanoseconds.
    pub(super) fn period_nanos(&self) -> u64 {
        let place = usize::from(self.calendar_number()).checked_sub(1);
        let of_calendar = place.and_then(|place| CALENDARS.get(place));
        of_calendar.map_or(self.window_nanos(), |&(_, secs)| secs * SECOND_NANOS)
    }
}

/// A counter whose hits have places in the order of time: stamps, or numbers of buckets.
pub(super) trait Placed {
    /// All hits that count.
    fn hits(&self) -> u64;

    /// The place of hits that are charged now. None has a later one.
    fn place_now(&self, limit: &Limit) -> u64;

    /// The first place at which so many of the oldest hits do not count any more.
    fn place_without(&self, limit: &Limit, hits: u64) -> u64;

    /// The first place at which hits of the latest time do not count any more.
    fn place_after(&self, limit: &Limit) -> u64;

    /// The last place that a debt may have.
    fn last_place(&self, limit: &Limit) -> u64;

    /// Adds hits at a place. None has a later one.
    fn put(&mut self, limit: &Limit, place: u64, hits: u64);
}

/// The most hits that a reported cost adds after the pending ones, whether the limit carries debts or not.
pub(super) fn report_max(counter: &impl Placed, limit: &Limit, pending: Pending) -> u64 {
    let count = pending.on(counter.hits());
    let of_count = report_max_of_count(count);
    if !limit.carries_debt() {
        return of_count;
    }
    let (room, most) = (limit.debt_room(count), limit.paid_at_once());
    if room >= most {
        return room.min(of_count);
    }
    let after = counter.place_after(limit);
    let ends_before = |hits: usize| counter.place_without(limit, hits as u64 + 1) < after;
    let lasting = counter.hits() - search(counter.hits() as usize, ends_before) as u64;
    room.max(most.saturating_sub(lasting)).min(of_count)
}

/// Charges a reported cost. What fits at the newest place goes there, and then pieces of at most N each to the first
/// place at which that many fit. What is not carried goes to the last of these places.
pub(super) fn charge(counter: &mut impl Placed, limit: &Limit, cost: u64) {
    let (most, mut left) = (limit.paid_at_once(), cost.min(limit.debt_room(counter.hits())));
    let (beyond, mut place) = (cost - left, counter.place_now(limit));
    let is_gone = |gone: usize| counter.place_without(limit, gone as u64 + 1) <= place;
    let gone = search(counter.hits() as usize, is_gone) as u64;
    let mut piece = left.min(most.saturating_sub(counter.hits() - gone));
    loop {
        if piece > 0 {
            counter.put(limit, place, piece);
        }
        left -= piece;
        if left == 0 {
            break;
        }
        piece = left.min(most);
        let too_many = (counter.hits() + piece).saturating_sub(most);
        let fits_at = counter.place_without(limit, too_many).min(counter.last_place(limit));
        place = place.max(fits_at);
    }
    if beyond > 0 {
        counter.put(limit, place, beyond);
    }
}
