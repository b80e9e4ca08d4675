//! The mark of a primary: since when nothing that was counted there is missing. With COLD_START=deny only.
//!
//! In: what `primary` reads, and what replies say. Out: the mark that each call names.
//!
//! A mark is a key that is named after the process that is primary. So a server that was restarted or flushed has none,
//! and nor has a replica that takes over, whatever it knows. The script of a call reads the mark before it decides,
//! and writes one if it is not there: from then on nothing is missing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;

use crate::options::DenyCold;
use crate::script::{Memory, told_cold};

/// A mark, as a connection knows it.
#[derive(Debug)]
pub(super) struct Mark {
    /// Its key.
    pub(super) key: Vec<u8>,
    /// The last argument of calls.
    pub(super) told: Vec<u8>,
    /// Since when nothing is missing, in microseconds of the server's clock.
    pub(super) since_micros: u64,
    /// The longest lease time of nodes.
    pub(super) lease_micros: u64,
    /// Whether calls name it among their keys. In a Cluster it is in another slot than their counters.
    is_named: bool,
}

/// The mark of the server of one connection. Empty: it was not read, or counters that are lost begin anew.
#[derive(Debug, Default)]
pub(super) struct Marked(Mutex<Option<Arc<Mark>>>);

impl Marked {
    /// The mark, as it was last read.
    pub(super) fn get(&self) -> Option<Arc<Mark>> {
        self.0.lock().clone()
    }

    /// Keeps a mark that was read. Returns whether it is another one.
    pub(super) fn set(&self, mark: Mark) -> bool {
        let mut known = self.0.lock();
        let is_other = known.as_ref().is_none_or(|known| known.told != mark.told);
        if is_other {
            *known = Some(Arc::new(mark));
        }
        is_other
    }

    /// Notes where memory begins, as the reply to a call has it. Returns whether that is later than it was known.
    pub(super) fn begins(&self, begins: Begins, deny: &DenyCold) -> bool {
        let known = self.get().filter(|known| known.since_micros < begins.since_micros);
        known.is_some_and(|known| {
            let said = (begins.since_micros, known.lease_micros);
            self.set(Mark::new(known.key.clone(), said, deny, known.is_named))
        })
    }
}

/// The lease times of all nodes that share the servers of one store, as a mark last had them.
#[derive(Debug, Default)]
pub(super) struct LeaseTimes {
    longest_micros: AtomicU64,
    differ: AtomicBool,
}

impl LeaseTimes {
    /// The longest, in microseconds.
    pub(super) fn longest(&self, deny: &DenyCold) -> u64 {
        self.longest_micros.load(Relaxed).max(micros(deny.lease_time))
    }

    /// Notes what a mark says, and logs when lease times begin to differ.
    pub(super) fn read(&self, longest_micros: u64, differ: bool, deny: &DenyCold) {
        self.longest_micros.store(longest_micros, Relaxed);
        if differ && !self.differ.swap(differ, Relaxed) {
            tracing::warn!(
                "redis: nodes differ in REDIS_LEASE_TIME: {:?} here, {:?} is the longest (COLD_START=deny needs the same \
                 on all)",
                deny.lease_time,
                Duration::from_micros(longest_micros)
            );
        }
        self.differ.store(differ, Relaxed);
    }

    /// Whether nodes differ.
    pub(super) fn differ(&self) -> bool {
        self.differ.load(Relaxed)
    }
}

/// Where the memory of a server begins that a call met: since when nothing is missing, and the server's time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Begins {
    pub(super) since_micros: u64,
    pub(super) now_micros: u64,
}

impl Mark {
    /// The key, if calls name it among theirs.
    pub(super) fn named(&self) -> Option<&Vec<u8>> {
        Some(&self.key).filter(|_| self.is_named)
    }

    /// The memory in which hits are charged, if nothing is missing since this time.
    pub(super) fn memory(&self, since_micros: u64) -> Memory {
        let generation = (since_micros as f64).to_le_bytes().to_vec();
        // The key names the process: connections are not told apart.
        Memory { key: self.key.clone(), generation, connection: 0 }
    }

    pub(super) fn new(
        key: Vec<u8>,
        (since_micros, lease_micros): (u64, u64),
        deny: &DenyCold,
        is_named: bool,
    ) -> Self {
        let told = told_cold(micros(deny.window_max), lease_micros, since_micros, &key);
        Self { key, told, since_micros, lease_micros, is_named }
    }
}

/// Whole microseconds, in which Redis counts.
pub(super) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_that_did_not_change_is_kept() {
        let deny = DenyCold { window_max: Duration::from_secs(60), lease_time: Duration::ZERO };
        let (marked, mark) = (Marked::default(), |said| Mark::new(b"m".to_vec(), said, &deny, true));
        assert!(marked.get().is_none());
        let said = [(5, 0), (5, 0), (6, 0), (6, 1)];
        assert_eq!(said.map(|said| marked.set(mark(said))), [true, false, true, true]);
    }
}
