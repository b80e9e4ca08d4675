//! The last five minutes of the process, a sample a second, and its last day, a sample a minute.
//!
//! In: cumulative counts, each with the time at which they were read. Out: what happened between two readings. Bounded:
//! [`SAMPLES_MAX`] and [`MINUTES_MAX`] samples.

use std::collections::VecDeque;

use tidegate_redis::RoundTrips;
use tidegate_serve::metrics::{Answered, WithoutRule};

/// Samples of seconds that are kept.
const SAMPLES_MAX: usize = 300;

/// Seconds in a sample of a minute.
const MINUTE: u64 = 60;

/// Samples of minutes that are kept: a day.
const MINUTES_MAX: usize = 24 * 60;

/// Readings of round trips that are kept: they span ten seconds.
const READINGS_MAX: usize = 11;

/// Counts of all round trips to Redis, by duration.
pub(super) type RoundTripCounts = [u64; RoundTrips::BOUNDS.len() + 1];

/// Everything that is sampled, as it was read.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reading {
    /// Milliseconds since the start of the process.
    pub(super) at_millis: u64,
    /// Requests.
    pub(super) answered: Answered,
    /// Decisions, and the nanoseconds that the engine took for all of them.
    pub(super) decisions: (u64, u64),
    /// CPU time of the process in nanoseconds.
    pub(super) cpu_nanos: u64,
    /// Round trips to Redis by duration, and the nanoseconds that all of them took.
    pub(super) round_trips: (RoundTripCounts, u64),
    /// Calls to Redis without an answer.
    pub(super) redis_failures: u64,
    /// Bytes that counters take now.
    pub(super) store_bytes: u64,
    /// Connections of clients that are open now.
    pub(super) connections: u64,
    /// Descriptors that met no rule.
    pub(super) without_rule: WithoutRule,
    /// Events that were dropped.
    pub(super) events_dropped: u64,
}

/// What happened between two readings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sample {
    /// The end, in milliseconds since the start of the process.
    pub(super) at_millis: u64,
    /// The length. About 1,000, more on a busy machine.
    pub(super) span_millis: u64,
    pub(super) ok: u64,
    pub(super) over_limit: u64,
    pub(super) failed: u64,
    pub(super) cpu_nanos: u64,
    /// The mean of a decision.
    pub(super) decision_nanos: u64,
    pub(super) round_trips: u64,
    /// The mean of a round trip.
    pub(super) round_trip_nanos: u64,
    pub(super) redis_failures: u64,
    pub(super) store_bytes: u64,
    pub(super) connections: u64,
    pub(super) without_rule: WithoutRule,
    pub(super) events_dropped: u64,
}

/// The samples.
#[derive(Debug, Default)]
pub(super) struct History {
    last: Reading,
    samples: VecDeque<Sample>,
    /// Samples that were ever taken.
    taken: u64,
    minute_began: Reading,
    minutes: VecDeque<Sample>,
    round_trips: VecDeque<RoundTripCounts>,
}

impl Sample {
    fn between(last: &Reading, now: &Reading) -> Self {
        let since = |now: u64, last: u64| now.saturating_sub(last);
        let mean = |sum: u64, count: u64| sum.checked_div(count).unwrap_or(0);
        let decisions = since(now.decisions.0, last.decisions.0);
        let round_trips = since(now.round_trips.0.iter().sum(), last.round_trips.0.iter().sum());
        Self {
            at_millis: now.at_millis,
            span_millis: since(now.at_millis, last.at_millis),
            ok: since(now.answered.ok, last.answered.ok),
            over_limit: since(now.answered.over_limit, last.answered.over_limit),
            failed: since(now.answered.failed, last.answered.failed),
            cpu_nanos: since(now.cpu_nanos, last.cpu_nanos),
            decision_nanos: mean(since(now.decisions.1, last.decisions.1), decisions),
            round_trips,
            round_trip_nanos: mean(since(now.round_trips.1, last.round_trips.1), round_trips),
            redis_failures: since(now.redis_failures, last.redis_failures),
            store_bytes: now.store_bytes,
            connections: now.connections,
            without_rule: WithoutRule {
                in_domain: since(now.without_rule.in_domain, last.without_rule.in_domain),
                without_domain: since(now.without_rule.without_domain, last.without_rule.without_domain),
            },
            events_dropped: since(now.events_dropped, last.events_dropped),
        }
    }
}

impl History {
    /// Adds a sample: what happened since the reading before.
    pub(super) fn add(&mut self, now: Reading) {
        self.samples.push_back(Sample::between(&self.last, &now));
        self.round_trips.push_back(now.round_trips.0);
        self.taken += 1;
        if self.taken.is_multiple_of(MINUTE) {
            self.minutes.push_back(Sample::between(&self.minute_began, &now));
            self.minute_began = now;
        }
        keep_newest(&mut self.samples, SAMPLES_MAX);
        keep_newest(&mut self.minutes, MINUTES_MAX);
        keep_newest(&mut self.round_trips, READINGS_MAX);
        self.last = now;
    }

    /// Samples that were ever taken. The last one has this number, the first one had 1.
    pub(super) fn taken(&self) -> u64 {
        self.taken
    }

    /// The samples with greater numbers than `number`, if they are kept, the oldest first.
    pub(super) fn since(&self, number: u64) -> impl Iterator<Item = &Sample> {
        newest(&self.samples, self.taken.saturating_sub(number))
    }

    /// The minutes that ended after the sample with this number, in the same way.
    pub(super) fn minutes_since(&self, number: u64) -> impl Iterator<Item = &Sample> {
        newest(&self.minutes, (self.taken / MINUTE).saturating_sub(number / MINUTE))
    }

    /// The bound in nanoseconds within which 99 % of the round trips of the last ten seconds were. `None`: there were
    /// none, or more than 1 % took longer than any bound.
    pub(super) fn round_trip_p99_nanos(&self) -> Option<u64> {
        let (first, last) = (self.round_trips.front()?, self.round_trips.back()?);
        let counts = last.iter().zip(first).map(|(last, first)| last.saturating_sub(*first));
        let wanted = counts.clone().sum::<u64>() * 99;
        let mut so_far = 0;
        let reaches = |count: u64| {
            so_far += count * 100;
            so_far >= wanted
        };
        RoundTrips::BOUNDS
            .get(counts.map(reaches).position(|reaches| reaches)?)
            .copied()
            .filter(|_| wanted > 0)
    }
}

fn newest<T>(all: &VecDeque<T>, count: u64) -> impl Iterator<Item = &T> {
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    all.range(all.len().saturating_sub(count)..)
}

fn keep_newest<T>(all: &mut VecDeque<T>, max: usize) {
    all.drain(..all.len().saturating_sub(max));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(second: u64, ok: u64) -> Reading {
        Reading {
            at_millis: second * 1_000,
            answered: Answered { ok, ..Answered::default() },
            ..Reading::default()
        }
    }

    #[test]
    fn a_sample_is_what_happened_between_two_readings() {
        let mut history = History::default();
        let decisions = [(0, 0), (4, 2_000)];
        for (second, decisions) in (1..).zip(decisions) {
            history.add(Reading { decisions, ..reading(second, second * second * 10) });
        }
        let samples: Vec<_> = history.since(0).collect();
        assert_eq!((samples[0].ok, samples[1].ok, samples[1].span_millis), (10, 30, 1_000));
        assert_eq!((samples[0].decision_nanos, samples[1].decision_nanos), (0, 500));
    }

    #[test]
    fn old_samples_go_and_numbers_stay() {
        let mut history = History::default();
        (1..=1_000).for_each(|second| history.add(reading(second, 0)));
        let first = |number| history.since(number).next().map(|sample| sample.at_millis / 1_000);
        assert_eq!((history.taken(), history.since(0).count(), first(0)), (1_000, SAMPLES_MAX, Some(701)));
        assert_eq!((first(998), first(1_000), first(u64::MAX)), (Some(999), None, None));
    }

    #[test]
    fn a_day_is_known_by_its_minutes() {
        let mut history = History::default();
        let two_days = 2 * 24 * 3_600;
        (1..=two_days).for_each(|second| history.add(reading(second, second * 3)));
        let minutes: Vec<_> = history.minutes_since(0).collect();
        let [first, last] = [minutes[0], minutes[minutes.len() - 1]];
        assert_eq!((minutes.len(), first.span_millis, first.ok), (MINUTES_MAX, 60_000, 180));
        assert_eq!((first.at_millis, last.at_millis), ((two_days / 2 + 60) * 1_000, two_days * 1_000));
        let since = |number: u64| history.minutes_since(number).count();
        assert_eq!((since(two_days), since(two_days - 1), since(two_days - 61)), (0, 1, 2));
    }

    #[test]
    fn the_slowest_round_trips_of_ten_seconds_are_known() {
        let mut history = History::default();
        let mut counts = RoundTripCounts::default();
        let add = |history: &mut History, counts| {
            history.add(Reading { round_trips: (counts, 0), ..Reading::default() });
        };
        counts[9] = 1_000;
        add(&mut history, counts);
        assert_eq!(history.round_trip_p99_nanos(), None, "none since the first reading");
        counts[1] += 990;
        counts[3] += 10;
        add(&mut history, counts);
        assert_eq!(history.round_trip_p99_nanos(), Some(RoundTrips::BOUNDS[1]));
        counts[3] += 1;
        add(&mut history, counts);
        assert_eq!(history.round_trip_p99_nanos(), Some(RoundTrips::BOUNDS[3]));
        counts[RoundTrips::BOUNDS.len()] += 1_000;
        add(&mut history, counts);
        assert_eq!(history.round_trip_p99_nanos(), None, "beyond all bounds");
        (0..READINGS_MAX).for_each(|_| add(&mut history, counts));
        assert_eq!(history.round_trip_p99_nanos(), None, "ten seconds later there are none");
    }
}
