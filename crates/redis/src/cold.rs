//! Since when the counters of a store count as full, because hits may be missing: the latest over all its servers.
//!
//! In: where the memory of each server begins, by its own clock. Out: that moment by this node's clock, and a line in
//! the log for each loss. Only people read it: it is the scripts that deny.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::address::Address;
use crate::mark::Begins;

/// Nodes that come to a new primary one after the other make one loss.
const ONE_LOSS: Duration = Duration::from_secs(1);

/// The latest moment.
#[derive(Debug, Default)]
pub(super) struct ColdSince(Mutex<Times>);

#[derive(Debug, Default)]
struct Times {
    /// The latest of all.
    latest: Option<Instant>,
    /// The last that was logged.
    logged: Option<Instant>,
    is_known: bool,
}

impl ColdSince {
    /// The latest moment since which nothing is missing, if any counter may be cold because of that.
    pub(super) fn get(&self) -> Option<Instant> {
        self.0.lock().latest
    }

    /// Notes at `now` where the memory of a server begins. Returns whether it was lost since another was noted.
    pub(super) fn note(&self, server: &Address, begins: Begins, held: Duration, now: Instant) -> bool {
        let Begins { since_micros, now_micros } = begins;
        let age = Duration::from_micros(now_micros.saturating_sub(since_micros));
        let mut times = self.0.lock();
        let was_known = std::mem::replace(&mut times.is_known, true);
        // Otherwise nothing counts any more that may be missing.
        let Some(since) = now.checked_sub(age).filter(|_| age < held) else { return false };
        let since = since + Duration::from_micros(since_micros.saturating_sub(now_micros));
        times.latest = times.latest.max(Some(since));
        if times.logged.is_some_and(|logged| since < logged + ONE_LOSS) {
            return false;
        }
        times.logged = Some(since);
        drop(times);
        tracing::warn!(
            "cold: redis: {server} may lack hits of before, so each counter counts as full until its window has passed, \
             for {} s at most; windows longer than {held:?} begin anew (COLD_START=deny, COLD_START_MAX_WINDOW)",
            (since + held).saturating_duration_since(now).as_secs_f64().ceil()
        );
        was_known
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::monotonic;

    #[test]
    fn the_latest_moment_counts_and_one_loss_is_one() {
        let (cold, began, held) = (ColdSince::default(), monotonic(), Duration::from_secs(60));
        let at = |millis| began + Duration::from_secs(1_000) + Duration::from_millis(millis);
        let note = |since_millis: u64, millis: u64| {
            let begins = Begins { since_micros: since_millis * 1_000, now_micros: millis * 1_000 };
            cold.note(&Address::Tcp("redis.test".to_owned(), 6_379), begins, held, at(millis))
        };
        assert!(!note(10_000, 100_000), "nothing of it counts any more");
        assert_eq!(cold.get(), None);
        assert!(note(99_000, 100_000));
        assert!(!note(95_000, 101_000), "another server, of before");
        assert!(!note(99_900, 101_000), "another node came to the same primary");
        assert_eq!(cold.get(), Some(at(99_900)));
        assert!(note(130_000, 130_000));
    }
}
