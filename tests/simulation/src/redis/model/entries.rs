//! The sliding log and the sliding window: hits in order, under their times or the numbers of their buckets.

use std::collections::VecDeque;

use tidegate_engine::limit::Algorithm;

use super::check::{Check, DEBT_WINDOWS, Stamp};
use super::counter::{Ahead, Kind, Look, room_of_count};

/// Hits go back to no entry that has more entries after it.
const LATER_MAX: usize = 500;

/// Such a counter.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Entries {
    latest: i64,
    /// The oldest first.
    entries: VecDeque<Entry>,
    /// All their hits.
    total: i64,
}

/// Hits under one place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Entry {
    pub(super) place: i64,
    pub(super) hits: i64,
}

impl Entries {
    pub(super) fn new(latest: i64, entries: VecDeque<Entry>) -> Self {
        let total = entries.iter().map(|entry| entry.hits).sum();
        Self { latest, entries, total }
    }

    /// Adds hits to the newest entry if it is not earlier, or else as a new one. A log with as many entries as it may
    /// have, `more` than N, moves its newest one.
    fn put(&mut self, check: &Check<'_>, place: i64, hits: i64, more: i64) -> Option<i64> {
        let hits = hits.min(room_of_count(self.total));
        if hits < 1 {
            return None;
        }
        let (most, total) = (check.requests.max(1) + more, self.total);
        let is_full =
            check.algorithm == Algorithm::SlidingLog && total >= most && self.entries.len() >= most as usize;
        self.total += hits;
        match self.entries.back_mut() {
            Some(newest) if place <= newest.place => {
                newest.hits += hits;
                return None;
            }
            Some(newest) if is_full => *newest = Entry { place, hits: newest.hits + hits },
            _ => self.entries.push_back(Entry { place, hits }),
        }
        Some(check.counts_until(place))
    }

    /// Charges a cost of which each window pays so many hits: what fits at the newest place, and then pieces where they
    /// fit first.
    fn charge_debt(&mut self, check: &Check<'_>, cost: i64, pays: i64) -> Option<i64> {
        let now = check.place_of(self.latest);
        let windows = match check.algorithm {
            Algorithm::SlidingLog => check.window,
            _ => check.place_of(check.window) + 1,
        };
        let last = now + (1 + DEBT_WINDOWS) * windows;
        let mut place = now.max(self.newest());
        let counts = |entry: &&Entry| entry.place + windows > place;
        let count: i64 = self.entries.iter().filter(counts).map(|entry| entry.hits).sum();
        let mut left = check.room_of_debt(self.total).map_or(cost, |room| cost.min(room));
        let beyond = cost - left;
        let (mut piece, mut kept) = (left.min((pays - count).max(0)), None);
        loop {
            if piece > 0 {
                kept = self.put(check, place, piece, DEBT_WINDOWS + 3).or(kept);
            }
            left -= piece;
            if left == 0 {
                let more = if beyond > 0 { self.put(check, place, beyond, DEBT_WINDOWS + 3) } else { None };
                return more.or(kept);
            }
            piece = left.min(pays);
            let gone = self.reaching(self.total + piece - pays).unwrap_or(place);
            place = (gone + windows).min(last).max(place);
        }
    }

    fn drop_oldest(&mut self) {
        self.total -= self.entries.pop_front().map_or(0, |entry| entry.hits);
    }

    /// The place of the first entry with which so many hits are reached.
    fn reaching(&self, through: i64) -> Option<i64> {
        let mut sum = 0;
        self.entries.iter().find_map(|entry| {
            sum += entry.hits;
            (sum >= through).then_some(entry.place)
        })
    }
}

impl Kind for Entries {
    fn latest(&self) -> i64 {
        self.latest
    }

    fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn advance(&mut self, check: &Check<'_>, now: i64) -> Option<i64> {
        if now <= self.latest {
            return None;
        }
        self.latest = now;
        let gone = check.gone_at(now);
        while self.entries.front().is_some_and(|entry| entry.place <= gone) {
            self.drop_oldest();
        }
        None
    }

    fn look(&self, check: &Check<'_>, hits: i64, ahead: Ahead) -> Look {
        Look::at_count(check.requests, ahead.after(self.total), hits)
    }

    fn report_max(&self, check: &Check<'_>, ahead: Ahead) -> i64 {
        let (count, now) = (ahead.after(self.total), check.place_of(self.latest));
        let room = room_of_count(count);
        let Some((debt, pays)) = check.room_of_debt(count).zip(check.pays) else { return room };
        let lasting: i64 = self.entries.iter().filter(|it| it.place >= now).map(|it| it.hits).sum();
        room.min(if debt < pays { debt.max(pays - lasting) } else { debt })
    }

    fn charge(&mut self, check: &Check<'_>, hits: i64) -> Option<i64> {
        match check.carries() {
            Some(pays) => self.charge_debt(check, hits, pays),
            None => self.put(check, check.place_of(self.latest), hits, 0),
        }
    }

    fn charge_at(&mut self, check: &Check<'_>, time: i64, hits: i64, _: Ahead) -> Option<i64> {
        let place = check.place_of(time);
        if place > check.gone_at(self.latest) { self.put(check, place, hits, 0) } else { None }
    }

    fn refund(&mut self, _: &Check<'_>, mut hits: i64) -> Option<i64> {
        while hits > 0
            && let Some(oldest) = self.entries.front_mut()
        {
            if oldest.hits > hits {
                oldest.hits -= hits;
                self.total -= hits;
                break;
            }
            hits -= oldest.hits;
            self.drop_oldest();
        }
        None
    }

    fn give_back(&mut self, check: &Check<'_>, stamp: Stamp) -> Option<i64> {
        let index = self.entries.binary_search_by_key(&stamp.at, |entry| entry.place).ok()?;
        if self.entries.len() - 1 - index > LATER_MAX {
            return None;
        }
        let entry = &mut self.entries[index];
        let back = check.hits.min(entry.hits);
        entry.hits -= back;
        self.total -= back;
        if entry.hits == 0 {
            self.entries.remove(index);
        }
        None
    }

    /// The place whose end brings room (-1: there is room already, -2: never), and the newest place.
    fn state(&self, check: &Check<'_>, hits: i64, over: bool) -> [Option<i64>; 3] {
        let newest = self.entries.back().map_or(-1, |entry| entry.place);
        if self.total == 0 && !over {
            return [Some(-1), Some(-1), None];
        }
        let place = match self.total + hits - check.requests {
            _ if hits > check.requests => -2,
            ..=0 => -1,
            through => self.reaching(through).unwrap_or(newest),
        };
        [Some(place), Some(newest), None]
    }

    fn newest(&self) -> i64 {
        self.entries.back().map_or(0, |entry| entry.place)
    }
}
