//! A score of frames that make work and bring none: PING, SETTINGS, RST_STREAM, WINDOW_UPDATE, DATA that are tiny or that
//! nobody reads, streams that have to be reset. Each answer that a client took its call for lowers it, and each second
//! halves it, so whoever asks may also cancel, and whoever only cancels is told to calm down.

use std::time::{Duration, Instant};

use super::{ErrorCode, Fatal, fatal};

/// Half of it is forgotten in a second, so this is reached by some 5,000 useless frames a second for long.
const MAX: u32 = 10_000;
const HALF_LIFE: Duration = Duration::from_secs(1);

/// What a frame costs that brings nothing.
pub const FRAME: u32 = 1;
/// Bytes that nobody reads and that cost as much as a frame.
const BYTES_OF_FRAME: usize = 4 * 1_024;
/// A stream that we have to reset.
pub const RESET: u32 = 4;
/// Settings, which may change every stream.
pub const SETTINGS: u32 = 16;
/// What an answer is worth.
const ANSWER: u32 = 2;

/// The score of one connection.
#[derive(Debug)]
pub struct AbuseScore {
    points: u32,
    decayed_at: Instant,
}

impl AbuseScore {
    pub fn new(now: Instant) -> Self {
        Self { points: 0, decayed_at: now }
    }

    /// Forgets what is long ago.
    pub fn decay(&mut self, now: Instant) {
        let elapsed = now.saturating_duration_since(self.decayed_at);
        if elapsed >= HALF_LIFE {
            let halvings = u32::try_from(elapsed.as_secs()).unwrap_or(u32::MAX);
            self.points = self.points.checked_shr(halvings).unwrap_or(0);
            self.decayed_at = now;
        }
    }

    #[inline]
    pub fn add(&mut self, cost: u32) {
        self.points = self.points.saturating_add(cost);
    }

    /// A frame with this payload, which nobody reads.
    #[inline]
    pub fn add_unread(&mut self, bytes: usize) {
        // A payload has at most 16 MiB.
        self.add(FRAME + (bytes / BYTES_OF_FRAME) as u32);
    }

    #[inline]
    pub fn answered(&mut self) {
        self.points = self.points.saturating_sub(ANSWER);
    }

    /// An error once it is too much.
    #[inline]
    pub fn check(&self) -> Result<(), Fatal> {
        if self.points <= MAX {
            return Ok(());
        }
        fatal(ErrorCode::EnhanceYourCalm, "too many frames that ask for nothing")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_engine::clock;

    #[test]
    fn useless_frames_add_up_answers_and_time_take_away() {
        let mut now = clock::monotonic();
        let mut abuse = AbuseScore::new(now);
        abuse.add(MAX);
        assert_eq!(abuse.check(), Ok(()));
        abuse.add(FRAME);
        assert!(abuse.check().is_err());
        abuse.answered();
        assert_eq!((abuse.check(), abuse.points), (Ok(()), MAX - 1));
        now += Duration::from_millis(999);
        abuse.decay(now);
        assert_eq!(abuse.points, MAX - 1);
        abuse.decay(now + Duration::from_millis(2_001));
        assert_eq!(abuse.points, (MAX - 1) / 8);
        abuse.decay(now + Duration::from_secs(100_000));
        assert_eq!(abuse.points, 0);
        abuse.add_unread(8);
        abuse.add_unread(16 * 1_024);
        assert_eq!(abuse.points, 1 + 5);
    }
}
