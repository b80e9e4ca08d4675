//! Logs peers that misbehave: one line for a closed connection, and at most one line a second. Otherwise a peer that
//! floods the port would flood the log too.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use crate::clock;
use tidegate_grpc::connection::Ended;

/// Nanoseconds between two lines.
const PAUSE_NANOS: u64 = 1_000_000_000;

/// Limits how often a line is logged. Shared by all threads.
pub struct PeerLog {
    began: Instant,
    /// When the last line was logged, in nanoseconds since `began`, plus 1; 0: never.
    last: AtomicU64,
    suppressed: AtomicU64,
}

impl Default for PeerLog {
    fn default() -> Self {
        Self { began: clock::monotonic(), last: AtomicU64::new(0), suppressed: AtomicU64::new(0) }
    }
}

impl PeerLog {
    /// Logs how a connection ended, if the peer misbehaved.
    pub fn log(&self, ended: Ended) {
        let Some(why) = ended.why else { return };
        match self.admit(clock::nanos_since(self.began)) {
            Some(0) => tracing::warn!(code = ?ended.code, "closed a gRPC connection: {why}"),
            Some(others) => {
                tracing::warn!(code = ?ended.code, others, "closed a gRPC connection, and others before: {why}");
            }
            None => {}
        }
    }

    /// `Some` if a line may be logged at this time: the number of lines that were suppressed since the last.
    fn admit(&self, nanos: u64) -> Option<u64> {
        let (last, now) = (self.last.load(Relaxed), nanos + 1);
        let may = last == 0 || now >= last + PAUSE_NANOS;
        // If two threads come at once, only one of them logs.
        if may && self.last.compare_exchange(last, now, Relaxed, Relaxed).is_ok() {
            return Some(self.suppressed.swap(0, Relaxed));
        }
        self.suppressed.fetch_add(1, Relaxed);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_second_with_the_number_of_suppressed_ones() {
        let peer_log = PeerLog::default();
        assert_eq!(peer_log.admit(5), Some(0));
        assert_eq!(peer_log.admit(6), None);
        assert_eq!(peer_log.admit(PAUSE_NANOS + 4), None);
        assert_eq!(peer_log.admit(PAUSE_NANOS + 5), Some(2));
        assert_eq!(peer_log.admit(2 * PAUSE_NANOS + 5), Some(0));
    }
}
