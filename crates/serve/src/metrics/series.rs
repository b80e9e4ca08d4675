//! The table of all series: from the name of a series to its counter slots, which are neighbours. Bounded in number.
//!
//! Names of rules are entered when a rule set is installed, up to a bound on their number over the life of the process.
//! Names that come from requests are entered when they are first seen. They have bounds of their own, on their number
//! and on their total bytes. When there is no room, the caller counts in another series. A series is never removed: a
//! counter that went back to 0 or vanished would break every `rate()` over it.
//! Looking up a name takes a read lock of one of many shards; going through all series takes no lock.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use hashbrown::HashTable;
use parking_lot::RwLock;

use super::chunked::Chunked;
use super::striped::{Slot, Striped};

/// Series that each count for several names without room.
const OTHERS_MAX: usize = 100;

/// The bound on the bytes of all names from requests, per name.
const REQUEST_NAME_BYTES_MEAN_MAX: usize = 256;

const SHARDS: usize = 32;

/// A series: its name and its first counter slot.
#[derive(Debug)]
pub(super) struct Series {
    pub(super) name: Arc<str>,
    pub(super) first: Slot,
}

/// The series of one kind.
pub(super) struct SeriesTable {
    hasher: RandomState,
    shards: Box<[RwLock<Names>]>,
    /// All series in the order in which they were entered.
    list: Chunked<OnceLock<Series>>,
    count: AtomicU32,
    slots_each: u32,
    rules_left: AtomicUsize,
    others_left: AtomicUsize,
    requests_left: AtomicUsize,
    request_bytes_left: AtomicUsize,
}

/// The first slot of each series, by its name. The caller hashes the name, because the hash also chooses the shard.
type Names = HashTable<(Arc<str>, Slot)>;

/// Where the names of a series come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Rules,
    /// A series that counts for names without room.
    Others,
    Requests,
}

impl SeriesTable {
    /// Room for `rules_max` series of rules and `requests_max` series of requests, each with `slots_each` counters.
    pub(super) fn new(rules_max: usize, requests_max: usize, slots_each: u32) -> Self {
        Self {
            hasher: RandomState::new(),
            shards: (0..SHARDS).map(|_| RwLock::default()).collect(),
            list: Chunked::new(rules_max.saturating_add(requests_max).saturating_add(OTHERS_MAX)),
            count: AtomicU32::new(0),
            slots_each,
            rules_left: AtomicUsize::new(rules_max),
            others_left: AtomicUsize::new(OTHERS_MAX),
            requests_left: AtomicUsize::new(requests_max),
            request_bytes_left: AtomicUsize::new(requests_max.saturating_mul(REQUEST_NAME_BYTES_MEAN_MAX)),
        }
    }

    /// The most slots that such a table can need.
    pub(super) const fn slots_max(rules_max: usize, requests_max: usize, slots_each: usize) -> usize {
        rules_max.saturating_add(requests_max).saturating_add(OTHERS_MAX).saturating_mul(slots_each)
    }

    /// The first slot of the series with this name, if there is one.
    pub(super) fn find(&self, name: &str) -> Option<Slot> {
        let hash = self.hasher.hash_one(name);
        find(&self.shard(hash).read(), hash, name)
    }

    /// The first slot of the series with this name. A new name is entered; `None` when there is no room.
    pub(super) fn enter(&self, striped: &Striped, source: Source, name: &str) -> Option<Slot> {
        let hash = self.hasher.hash_one(name);
        let shard = self.shard(hash);
        if let Some(slot) = find(&shard.read(), hash, name) {
            return Some(slot);
        }
        if !self.has_room(source, name) {
            return None;
        }
        let mut names = shard.write();
        if let Some(slot) = find(&names, hash, name) {
            return Some(slot);
        }
        let series = self.add(striped, source, name)?;
        let entry = (Arc::clone(&series.name), series.first);
        names.insert_unique(hash, entry, |(known, _)| self.hasher.hash_one(&**known));
        Some(series.first)
    }

    fn shard(&self, hash: u64) -> &RwLock<Names> {
        // The hash table uses the lowest and the highest bits, so the shard takes those between.
        &self.shards[(hash >> 32) as usize % SHARDS]
    }

    pub(super) fn len(&self) -> usize {
        self.count.load(Ordering::Acquire) as usize
    }

    /// The series with this number, in the order in which they were entered.
    pub(super) fn get(&self, number: usize) -> Option<&Series> {
        self.list.get(number)?.get()
    }

    /// All series, in the order in which they were entered.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Series> {
        self.iter_from(0)
    }

    /// All series but the first `start`.
    pub(super) fn iter_from(&self, start: usize) -> impl Iterator<Item = &Series> {
        (start..self.len()).filter_map(|number| self.get(number))
    }

    /// Takes no lock: otherwise every unknown name would take a write lock once the table is full.
    fn has_room(&self, source: Source, name: &str) -> bool {
        let left = |left: &AtomicUsize| left.load(Ordering::Relaxed);
        match source {
            Source::Rules => left(&self.rules_left) > 0,
            Source::Others => left(&self.others_left) > 0,
            Source::Requests => left(&self.requests_left) > 0 && left(&self.request_bytes_left) >= name.len(),
        }
    }

    fn add(&self, striped: &Striped, source: Source, name: &str) -> Option<&Series> {
        match source {
            Source::Rules => take(&self.rules_left, 1)?,
            Source::Others => take(&self.others_left, 1)?,
            Source::Requests => {
                take(&self.request_bytes_left, name.len())?;
                take(&self.requests_left, 1)?;
            }
        }
        let first = striped.reserve(self.slots_each)?;
        let index = self.count.fetch_add(1, Ordering::AcqRel) as usize;
        Some(self.list.get_or_init(index)?.get_or_init(|| Series { name: name.into(), first }))
    }
}

fn find(names: &Names, hash: u64, name: &str) -> Option<Slot> {
    names.find(hash, |(known, _)| **known == *name).map(|&(_, slot)| slot)
}

fn take(left: &AtomicUsize, amount: usize) -> Option<()> {
    let taken = |left: usize| left.checked_sub(amount);
    left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, taken).ok().map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(table: &SeriesTable) -> Vec<String> {
        table.iter().map(|series| series.name.to_string()).collect()
    }

    #[test]
    fn a_name_keeps_its_series_and_different_names_have_different_ones() {
        let (striped, table) = (Striped::new(0, 100), SeriesTable::new(10, 10, 6));
        let enter = |name| table.enter(&striped, Source::Requests, name).expect("room");
        let (a, b) = (enter("a"), enter("b"));
        assert_ne!(a, b);
        assert_eq!((enter("a"), enter("b")), (a, b));
        assert_eq!(table.enter(&striped, Source::Rules, "a"), Some(a));
        assert_eq!(names(&table), ["a", "b"]);
    }

    #[test]
    fn names_from_requests_are_bounded_in_number_and_rules_are_not_kept_out_by_them() {
        let (striped, table) = (Striped::new(0, 1000), SeriesTable::new(1, 3, 1));
        for index in 0..10 {
            let entered = table.enter(&striped, Source::Requests, &index.to_string());
            assert_eq!(entered.is_some(), index < 3);
        }
        assert!(table.enter(&striped, Source::Requests, "2").is_some(), "known names stay");
        assert!(table.enter(&striped, Source::Rules, "rule").is_some());
        assert!(table.enter(&striped, Source::Rules, "another").is_none(), "rules have a bound of their own");
        assert!(table.enter(&striped, Source::Others, "other").is_some());
        assert_eq!(names(&table), ["0", "1", "2", "rule", "other"]);
        assert!(table.find("rule").is_some() && table.find("another").is_none());
    }

    #[test]
    fn names_from_requests_are_bounded_in_bytes() {
        let (striped, table) = (Striped::new(0, 1000), SeriesTable::new(0, 4, 1));
        let long = |index: usize| index.to_string() + &"x".repeat(511);
        let entered = (0..4).map(|index| table.enter(&striped, Source::Requests, &long(index)).is_some());
        assert_eq!(entered.collect::<Vec<_>>(), [true, true, false, false]);
    }

    #[test]
    fn the_same_names_from_many_threads_are_entered_once() {
        let (striped, table) = (Striped::new(0, 10_000), SeriesTable::new(0, 1000, 1));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for index in 0..1000 {
                        assert!(table.enter(&striped, Source::Requests, &index.to_string()).is_some());
                    }
                });
            }
        });
        let mut all = names(&table);
        all.sort();
        all.dedup();
        assert_eq!((all.len(), table.iter().count()), (1000, 1000));
    }
}
