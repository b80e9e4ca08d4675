//! How long to wait before the next attempt to reach a control plane.
//!
//! The pause before attempt k (from 0) is `initial × factor^k`, clamped to `initial` and `max`, as in
//! `envoyproxy/ratelimit`: a factor of at most 1 never grows it. Jitter draws evenly between `initial` and that pause.

use std::time::Duration;

/// The factor when the configured one is 0 or less.
const FACTOR_DEFAULT: f64 = 2.0;

/// How gRPC's own clients pace their connections, that of `envoyproxy/ratelimit` too.
const CONNECT_INITIAL: Duration = Duration::from_secs(1);
const CONNECT_FACTOR: f64 = 1.6;

/// Pauses between attempts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backoff {
    /// The first pause, and the shortest.
    pub initial: Duration,
    /// The longest pause; `initial` where that is longer.
    pub max: Duration,
    /// Each pause is the one before times this factor.
    pub factor: f64,
    /// Whether pauses are random.
    pub jitter: bool,
}

impl Backoff {
    /// Pauses between attempts to connect: 1 s, 1.6 s and so on, never longer than these.
    pub fn of_connections(self) -> Self {
        Self { initial: self.initial.min(CONNECT_INITIAL), factor: CONNECT_FACTOR, ..self }
    }

    /// The pause before attempt `attempt`, for a `random` number from 0 to 1.
    pub fn pause(&self, attempt: u32, random: f64) -> Duration {
        let factor = if self.factor > 0.0 { self.factor } else { FACTOR_DEFAULT };
        let (initial, max) = (self.initial.as_secs_f64(), self.max.max(self.initial).as_secs_f64());
        let exponent = i32::try_from(attempt).unwrap_or(i32::MAX);
        let pause = (initial * factor.powi(exponent)).clamp(initial, max);
        let drawn = if self.jitter { initial + (pause - initial) * random } else { pause };
        // `drawn` lies between two durations; only rounding could leave the range.
        Duration::try_from_secs_f64(drawn).unwrap_or(self.initial)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: Backoff = Backoff {
        initial: Duration::from_secs(10),
        max: Duration::from_secs(60),
        factor: 2.0,
        jitter: false,
    };

    fn pauses(backoff: Backoff) -> [u64; 5] {
        [0, 1, 2, 3, u32::MAX].map(|attempt| backoff.pause(attempt, 0.5).as_secs())
    }

    #[test]
    fn pauses_grow_to_the_longest() {
        assert_eq!(pauses(EXAMPLE), [10, 20, 40, 60, 60]);
        assert_eq!(pauses(Backoff { factor: 0.0, ..EXAMPLE }), [10, 20, 40, 60, 60]);
        assert_eq!(pauses(Backoff { factor: -1.0, ..EXAMPLE }), [10, 20, 40, 60, 60]);
    }

    #[test]
    fn a_factor_of_at_most_one_never_grows() {
        assert_eq!(pauses(Backoff { factor: 0.5, ..EXAMPLE }), [10; 5]);
        assert_eq!(pauses(Backoff { factor: 1.0, ..EXAMPLE }), [10; 5]);
    }

    #[test]
    fn jitter_draws_between_the_shortest_and_the_pause() {
        let jitter = Backoff { jitter: true, ..EXAMPLE };
        assert_eq!(pauses(jitter), [10, 15, 25, 35, 35]);
        assert_eq!(jitter.pause(2, 0.0), jitter.initial);
        assert_eq!(jitter.pause(2, 1.0), Duration::from_secs(40));
    }

    #[test]
    fn connections_are_tried_sooner_than_streams() {
        let millis = |backoff: Backoff| {
            [0, 1, 2, 20].map(|attempt| backoff.of_connections().pause(attempt, 0.5).as_millis())
        };
        assert_eq!(millis(EXAMPLE), [1_000, 1_600, 2_560, 60_000]);
        let short =
            Backoff { initial: Duration::from_millis(50), max: Duration::from_millis(100), ..EXAMPLE };
        assert_eq!(millis(short), [50, 80, 100, 100]);
    }

    #[test]
    fn a_longest_pause_below_the_first_is_the_first() {
        assert_eq!(pauses(Backoff { max: Duration::ZERO, ..EXAMPLE }), [10; 5]);
    }
}
