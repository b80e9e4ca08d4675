//! A server's clock, as one connection knows it from replies that hold the time.
//!
//! In: when a call was sent, when its reply came, and the server's time in the reply. Out: the server's time at a
//! moment. It is never earlier than the real one. It is later by at most the time that the fastest call of the last
//! 10 to 20 seconds took to the server. So a reply to a slow call does not make later calls valid for longer. It
//! reads no clock itself.

use std::time::{Duration, Instant};

/// The fastest call of this period and of the one before counts.
const PERIOD: Duration = Duration::from_secs(10);

/// The known offsets: the server's microseconds at `base`.
#[derive(Debug)]
pub(super) struct ServerClock {
    base: Instant,
    began: Instant,
    /// The smallest possible offset of this period, and of the period before.
    now: i64,
    before: i64,
}

impl ServerClock {
    /// Starts from the server's time in the reply to a call.
    pub(super) fn new(sent: Instant, micros: u64) -> Self {
        let offset = i64::try_from(micros).unwrap_or(i64::MAX);
        Self { base: sent, began: sent, now: offset, before: offset }
    }

    /// Notes the server's time in another reply.
    pub(super) fn note(&mut self, (sent, received): (Instant, Instant), micros: u64) {
        let micros = i64::try_from(micros).unwrap_or(i64::MAX);
        // The server read its clock between these two moments.
        let most = micros.saturating_sub(self.since_base(sent));
        let least = micros.saturating_sub(self.since_base(received));
        if received.saturating_duration_since(self.began) >= PERIOD {
            (self.before, self.now, self.began) = (self.now, most, received);
        } else {
            self.now = self.now.min(most);
        }
        // The server's clock was set forward: the older offsets are too early now.
        if self.offset() < least {
            (self.before, self.now) = (most, most);
        }
    }

    /// The server's time at this moment, in microseconds.
    pub(super) fn at(&self, moment: Instant) -> u64 {
        self.offset().saturating_add(self.since_base(moment)).unsigned_abs()
    }

    fn offset(&self) -> i64 {
        self.now.min(self.before)
    }

    fn since_base(&self, moment: Instant) -> i64 {
        i64::try_from(moment.saturating_duration_since(self.base).as_micros()).unwrap_or(i64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::monotonic;

    /// A server whose clock shows a million at `began`, and a connection that asks it.
    struct Asked {
        began: Instant,
        clock: ServerClock,
        /// How many microseconds the server's clock was set forward.
        stepped: i64,
    }

    impl Asked {
        fn new() -> Self {
            let began = monotonic();
            Self { began, clock: ServerClock::new(began, 1_000_100), stepped: 0 }
        }

        fn after(&self, micros: u64) -> Instant {
            self.began + Duration::from_micros(micros)
        }

        /// A call that is sent at this moment and takes so long there and back.
        fn ask(&mut self, sent: u64, there: u64, back: u64) {
            let micros = (1_000_000 + sent + there).saturating_add_signed(self.stepped);
            let times = (self.after(sent), self.after(sent + there + back));
            self.clock.note(times, micros);
        }

        /// How much later than the real time the known time is.
        fn late(&self, at: u64) -> i64 {
            self.clock.at(self.after(at)) as i64 - (1_000_000 + at) as i64 - self.stepped
        }
    }

    #[test]
    fn it_is_late_by_what_the_fastest_call_took_to_the_server() {
        let mut asked = Asked::new();
        assert_eq!(asked.late(0), 100, "the first call took no longer");
        asked.ask(1_000, 70, 900_000);
        assert_eq!(asked.late(2_000), 70, "the way back says nothing");
        asked.ask(1_000_000, 900_000, 10);
        assert_eq!(asked.late(2_000_000), 70, "a call that was long on its way does not make it later");
    }

    #[test]
    fn a_fast_call_long_ago_is_forgotten() {
        let mut asked = Asked::new();
        for second in 1..40 {
            asked.ask(second * 1_000_000, if second < 10 { 50 } else { 300 }, 10);
            let late = asked.late(second * 1_000_000);
            assert!(if second < 20 { late == 50 } else { late == 300 || second < 31 }, "{second}: {late}");
        }
    }

    #[test]
    fn a_clock_that_steps_is_followed_at_once() {
        let mut asked = Asked::new();
        asked.stepped = 5_000_000;
        asked.ask(10_000, 80, 80);
        assert_eq!(asked.late(10_000), 80);
        asked.stepped = -500_000;
        asked.ask(20_000, 90, 80);
        assert_eq!(asked.late(20_000), 90);
    }
}
