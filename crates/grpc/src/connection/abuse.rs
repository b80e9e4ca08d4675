//! The abuse score: it counts frames that make work but are part of no call, such as PING, SETTINGS, RST_STREAM,
//! WINDOW_UPDATE, tiny or unread DATA, and streams that have to be reset. Each answer lowers the score, and each
//! second halves it. So a client that takes answers may also cancel; one that only cancels gets ENHANCE_YOUR_CALM.

use std::time::{Duration, Instant};

use super::{ErrorCode, Fatal, fatal};

/// The highest score that is allowed. It halves each second, so about 5,000 useless frames a second, sustained,
/// exceed it.
const MAX: u32 = 10_000;
const HALF_LIFE: Duration = Duration::from_secs(1);

/// Points of a useless frame.
pub const FRAME: u32 = 1;
/// Unread bytes that count as much as a frame.
const BYTES_OF_FRAME: usize = 4 * 1_024;
/// Points of a stream that we have to reset.
pub const RESET: u32 = 4;
/// Points of a SETTINGS frame, which may change every stream.
pub const SETTINGS: u32 = 16;
/// Points that an answer takes away.
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

    /// Halves the points once for each second that has passed.
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

    /// Adds an unread frame with a payload of this size.
    #[inline]
    pub fn add_unread(&mut self, bytes: usize) {
        // A payload has at most 16 MiB.
        self.add(FRAME + (bytes / BYTES_OF_FRAME) as u32);
    }

    #[inline]
    pub fn answered(&mut self) {
        self.points = self.points.saturating_sub(ANSWER);
    }

    /// An error if the score is too high.
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
