//! What the tests of limits and stores share: plans made by hand, without rules.

use tidegate_engine::decision::conclude;
use tidegate_engine::key::{Key, KeySecret};
use tidegate_engine::limit::{Algorithm, Limit, Verdict};
use tidegate_engine::memory::{MemoryOptions, MemoryStore};
use tidegate_engine::plan::{Check, Hits, Modes, Origin, Plan, Step};
use tidegate_engine::rules::Unit;
use tidegate_engine::time::{SECOND_NANOS, Timestamp};
use tidegate_engine::unit::Window;

/// The key of the counter with this number.
pub(crate) fn key(number: u64) -> Key {
    KeySecret::new([3; 16]).seed([b"test".as_slice()]).key([number.to_string().as_str()])
}

/// A check of hits on a counter, in no mode.
pub(crate) fn check(limit: Limit, key: Key, hits: Hits) -> Check<'static> {
    Check::new(Origin::Override { window: Window::of(Unit::Second) }, limit, key, hits)
}

/// A plan of these checks.
pub(crate) fn plan(checks: impl IntoIterator<Item = Check<'static>>) -> Plan<'static> {
    let steps = checks.into_iter().map(Step::Check).collect();
    Plan { steps, domain_known: true, ..Plan::empty(Modes::default()) }
}

/// A store that is large enough for any test.
pub(crate) fn store() -> MemoryStore {
    MemoryStore::new(MemoryOptions::new(1 << 30))
}

/// Nanoseconds of a time that is given in seconds, exact to the nanosecond.
pub(crate) fn at(seconds: f64) -> Timestamp {
    Timestamp::from_nanos((seconds * SECOND_NANOS as f64).round() as u64)
}

/// One limit and its counter in a store of its own.
pub(crate) struct TestCounter {
    pub(crate) store: MemoryStore,
    pub(crate) limit: Limit,
}

impl TestCounter {
    pub(crate) fn new(limit: Limit) -> Self {
        Self { store: store(), limit }
    }

    /// N hits in `window_secs`.
    pub(crate) fn of(algorithm: Algorithm, requests: u32, window_secs: u64) -> Self {
        Self::new(Limit::new(algorithm, requests.into(), window_secs * SECOND_NANOS))
    }

    pub(crate) fn verdict(&self, hits: Hits, now: Timestamp) -> Verdict {
        let plan = plan([check(self.limit, key(1), hits)]);
        let verdicts = self.store.apply(&plan, now);
        let verdict = verdicts[0].expect("a check has a verdict");
        let passes = conclude(&plan, &verdicts).code == tidegate_engine::decision::Code::Ok;
        assert_eq!(passes, !verdict.over);
        verdict
    }

    /// Takes hits at a time in seconds.
    pub(crate) fn take(&self, hits: u64, seconds: f64) -> Verdict {
        self.verdict(Hits::Take(hits), at(seconds))
    }

    /// Whether these hits pass.
    pub(crate) fn passes(&self, hits: u64, seconds: f64) -> bool {
        !self.take(hits, seconds).over
    }

    /// How many of `count` single hits at one time pass.
    pub(crate) fn passed(&self, count: usize, seconds: f64) -> usize {
        (0..count).filter(|_| self.passes(1, seconds)).count()
    }
}

/// A store of few shards, so that tables grow large enough to be tested.
pub(crate) fn small_store() -> MemoryStore {
    MemoryStore::new(MemoryOptions::new(64 << 20))
}
