//! The cache of records under weak memory, where a load may return an older value than the latest if its order allows that.
//! `loom` tries each such value, in the interleavings of a reader with a writer of few steps. The larger models of
//! `tests/models` know sequential consistency only.
//!
//! The module is compiled here a second time, with `loom`'s locks and atomics instead of those of `src/sync.rs`.
//!
//! `loom` 0.7 has two limits. It knows only the last access to each atomic, so it does not try a write before a read of
//! another thread if the writer has read there since: here the writer is the first thread, which reads before the other. And
//! a load may return what a store has replaced if a `fetch_or` came between, even after a join: nothing is looked for then.

use std::sync::Arc;

use loom::model::Builder;
use loom::thread;
use tidegate_engine::{key, limit, overlay, unit};

use self::key::Key;
use self::overlay::Record;
use self::src::known::RecordCache;

#[path = "../src"]
#[allow(dead_code, reason = "the models ask less than the crate has")]
mod src {
    pub mod known;
}

mod sync {
    pub(crate) use loom::sync::MutexGuard;
    pub(crate) use loom::sync::atomic::{AtomicU16, AtomicU32, AtomicU64};

    /// Like `parking_lot`'s, whose guard is no `Result`.
    #[derive(Debug, Default)]
    pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().expect("no panic")
        }
    }
}

/// Looks for each key while the last entry is put. What is found of a key was put for it, or nothing is found.
fn explore<const LEN: usize>(entries: [(Key, Option<Record>); LEN]) {
    for (sought, _) in entries {
        let mut builder = Builder::new();
        builder.preemption_bound = Some(1);
        builder.check(move || {
            let known = Arc::new(RecordCache::new(LEN));
            let put = |(key, record)| known.insert(key, record);
            entries[..LEN - 1].iter().copied().for_each(put);
            let reader = Arc::clone(&known);
            let reads = thread::spawn(move || reader.get(sought));
            put(entries[LEN - 1]);
            let found = reads.join().expect("no panic");
            assert!(found.is_none_or(|found| entries.contains(&(sought, found))), "{sought:?}: {found:?}");
        });
    }
}

/// A key by the parts of it that are kept.
fn key(high: u64, low: u16) -> Key {
    Key(u128::from(high) << 64 | u128::from(low))
}

/// A record that uses every word of an entry.
fn long() -> Option<Record> {
    Some(Record { burst: Some(1), granularity_nanos: Some(1), ..Record::of(1) })
}

fn short() -> Option<Record> {
    Some(Record::of(2))
}

#[test]
fn a_record_is_read_as_it_was_written() {
    explore([(key(1, 1), long()), (key(1, 1), short())]);
}

/// With the third key the table grows. The first moves to the new pair, and each other to the slot of the key before it, which
/// has the same low half, or the same high half.
#[test]
fn no_key_has_the_record_of_another_while_the_table_grows() {
    explore([(key(1, 1), long()), (key(2, 1), short()), (key(2, 2), None)]);
}
