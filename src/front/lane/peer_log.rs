//! What the log says of peers that misbehave: one line a closed connection, and not more than a few a second, because
//! whoever floods a port would flood the log too.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use crate::clock;
use tidegate_grpc::connection::Ended;

/// Nanoseconds between two lines.
const PAUSE_NANOS: u64 = 1_000_000_000;

/// Lets one line through now and then. Shared by all threads.
pub struct PeerLog {
    began: Instant,
    /// When the last line was let through, in nanoseconds since `began`, and one more; 0: none was.
    last: AtomicU64,
    suppressed: AtomicU64,
}

impl Default for PeerLog {
    fn default() -> Self {
        Self { began: clock::monotonic(), last: AtomicU64::new(0), suppressed: AtomicU64::new(0) }
    }
}

impl PeerLog {
    /// Logs how a connection ended, if that was the peer's fault.
    pub fn log(&self, ended: Ended) {
        let Some(why) = ended.why else { return };
        match self.admit(clock::nanos_since(self.began)) {
            Some(0) => tracing::warn!(code = ?ended.code, "closed a gRPC connection: {why}"),
            Some(others) => {
                tracing::warn!(code = ?ended.code, others, "closed a gRPC connection (and others before): {why}");
            }
            None => {}
        }
    }

    /// Whether a line may be written at this time, and how many were not since the last.
    fn admit(&self, nanos: u64) -> Option<u64> {
        let (last, now) = (self.last.load(Relaxed), nanos + 1);
        let may = last == 0 || now >= last + PAUSE_NANOS;
        // Of two threads at a time one writes.
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
