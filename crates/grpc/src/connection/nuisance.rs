//! A score of frames that make work and bring none: PING, SETTINGS, RST_STREAM, WINDOW_UPDATE, DATA that are tiny or that
//! nobody reads, streams that have to be reset. Each answer that a client took its call for lowers it, and each second
//! halves it, so whoever asks may also cancel, and whoever only cancels is told to calm down.

use std::time::{Duration, Instant};

use super::{ErrorCode, Fatal, fatal};

/// Half of it is forgotten in a second, so this is reached by some 5,000 useless frames a second for long.
const MAX: u32 = 10_000;
const HALVED_AFTER: Duration = Duration::from_secs(1);

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
pub struct Nuisance {
    score: u32,
    cooled: Instant,
}

impl Nuisance {
    pub fn new(now: Instant) -> Self {
        Self { score: 0, cooled: now }
    }

    /// Forgets what is long ago.
    pub fn cool(&mut self, now: Instant) {
        let elapsed = now.saturating_duration_since(self.cooled);
        if elapsed >= HALVED_AFTER {
            let halvings = u32::try_from(elapsed.as_secs()).unwrap_or(u32::MAX);
            self.score = self.score.checked_shr(halvings).unwrap_or(0);
            self.cooled = now;
        }
    }

    #[inline]
    pub fn add(&mut self, cost: u32) {
        self.score = self.score.saturating_add(cost);
    }

    /// A frame with this payload, which nobody reads.
    #[inline]
    pub fn unread(&mut self, bytes: usize) {
        // A payload has at most 16 MiB.
        self.add(FRAME + (bytes / BYTES_OF_FRAME) as u32);
    }

    #[inline]
    pub fn answered(&mut self) {
        self.score = self.score.saturating_sub(ANSWER);
    }

    /// An error once it is too much.
    #[inline]
    pub fn check(&self) -> Result<(), Fatal> {
        if self.score <= MAX {
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
        let mut nuisance = Nuisance::new(now);
        nuisance.add(MAX);
        assert_eq!(nuisance.check(), Ok(()));
        nuisance.add(FRAME);
        assert!(nuisance.check().is_err());
        nuisance.answered();
        assert_eq!((nuisance.check(), nuisance.score), (Ok(()), MAX - 1));
        now += Duration::from_millis(999);
        nuisance.cool(now);
        assert_eq!(nuisance.score, MAX - 1);
        nuisance.cool(now + Duration::from_millis(2_001));
        assert_eq!(nuisance.score, (MAX - 1) / 8);
        nuisance.cool(now + Duration::from_secs(100_000));
        assert_eq!(nuisance.score, 0);
        nuisance.unread(8);
        nuisance.unread(16 * 1_024);
        assert_eq!(nuisance.score, 1 + 5);
    }
}
