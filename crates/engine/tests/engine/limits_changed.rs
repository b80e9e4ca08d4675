//! Buckets whose N and `burst` change while they are in use: examples with their exact numbers, and random sequences
//! compared with an oracle that shares no code with the engine. It keeps the level as a sum of hits and drains it a
//! microsecond at a time while it is above `burst`.

use tidegate_engine::limit::{Algorithm, Limit, Verdict};
use tidegate_engine::plan::Hits;
use tidegate_engine::time::{SECOND_NANOS, Timestamp};

use crate::asking::{TestCounter, check, key, plan, small_store};
use crate::random::Random;

const BUCKETS: [Algorithm; 2] = [Algorithm::TokenBucket, Algorithm::LeakyBucket];
const MINUTE: u64 = 60 * SECOND_NANOS;
const MICRO: u64 = 1_000;

/// N a minute.
fn a_minute(algorithm: Algorithm, requests: u32) -> Limit {
    Limit::new(algorithm, requests.into(), MINUTE)
}

/// Runs an example for both algorithms, on a counter with this limit.
fn each_bucket(requests: u32, burst: u32, example: impl Fn(TestCounter, &dyn Fn(u32) -> Limit)) {
    for algorithm in BUCKETS {
        let own_burst = |requests| a_minute(algorithm, requests).with_burst(burst.into());
        example(TestCounter::new(own_burst(requests)), &own_burst);
    }
}

#[test]
fn a_smaller_n_refills_no_bucket_and_locks_none_afterwards() {
    each_bucket(600, 50, |mut counter, own_burst| {
        assert_eq!(counter.passed(60, 1.0), 50);
        counter.limit = own_burst(6);
        let denied = counter.take(1, 1.0);
        assert_eq!((denied.over, denied.before, denied.reset_nanos), (true, 50, 10 * SECOND_NANOS));
        assert_eq!([1.0, 10.9, 11.0, 11.0].map(|at| counter.passed(9, at)), [0, 0, 1, 0]);
        counter.limit = own_burst(600);
        assert_eq!(counter.take(1, 11.0).reset_nanos, SECOND_NANOS / 10);
        assert_eq!([15.9, 16.0].map(|at| counter.take(0, at).remaining), [49, 50]);
    });
}

#[test]
fn a_larger_n_leaves_what_was_spent_and_refills_faster() {
    each_bucket(6, 50, |mut counter, own_burst| {
        assert_eq!(counter.passed(60, 1.0), 50);
        counter.limit = own_burst(600);
        assert_eq!([1.0, 1.1, 2.1].map(|at| counter.passed(99, at)), [0, 1, 10]);
    });
    for algorithm in BUCKETS {
        let mut counter = TestCounter::new(a_minute(algorithm, 10));
        assert_eq!(counter.passed(11, 1.0), 10);
        counter.limit = a_minute(algorithm, 30);
        assert_eq!(counter.passed(99, 1.0), 20, "a burst that is N follows it");
    }
}

/// 100 of 100 a minute, and 10 a minute from then on: what is above 10 drains as before, in 54 s, and then a hit in 6 s.
#[test]
fn a_smaller_burst_locks_for_no_longer_than_the_limit_before() {
    for algorithm in BUCKETS {
        let mut counter = TestCounter::new(a_minute(algorithm, 100));
        assert_eq!(counter.passed(101, 1.0), 100);
        counter.limit = a_minute(algorithm, 10);
        for (at, wait) in [(1.0, 60), (2.0, 59), (31.0, 30), (55.0, 6), (60.0, 1)] {
            assert_eq!(counter.take(1, at).reset_nanos, wait * SECOND_NANOS, "at {at}");
        }
        assert_eq!([60.9, 61.0, 66.9, 67.0].map(|at| counter.passed(9, at)), [0, 1, 0, 1]);

        let mut counter = TestCounter::new(Limit::new(algorithm, 10_000, 86_400 * SECOND_NANOS));
        assert!(counter.passes(10_000, 0.0));
        counter.limit = Limit::new(algorithm, 100, 86_400 * SECOND_NANOS);
        // A day less a hundredth, and a hundredth of a day for one hit.
        assert_eq!(counter.take(1, 0.0).reset_nanos, 86_400 * SECOND_NANOS);
    }
}

/// As if the exception had never been: it neither refills nor locks.
#[test]
fn an_exception_that_ends_while_its_bucket_is_above_the_burst_leaves_no_trace() {
    for algorithm in BUCKETS {
        let [mut counter, same] = [(); 2].map(|()| TestCounter::new(a_minute(algorithm, 100)));
        assert!(counter.passes(100, 1.0) && same.passes(100, 1.0));
        counter.limit = a_minute(algorithm, 10);
        assert!([1.0, 9.3, 28.0].iter().all(|&at| !counter.passes(1, at)));
        counter.limit = a_minute(algorithm, 100);
        assert_eq!(counter.take(0, 28.0), same.take(0, 28.0));
        assert_eq!(counter.take(0, 28.0).remaining, 45);
    }
}

#[test]
fn a_bucket_that_nobody_asked_drains_by_the_smaller_n() {
    for (from, to) in [(600, 6), (6, 600)] {
        each_bucket(from, 50, |mut counter, own_burst| {
            assert!(counter.passes(50, 1.0));
            counter.limit = own_burst(to);
            assert_eq!(counter.passed(9, 21.0), 2, "{from} to {to}");
        });
    }
}

#[test]
fn while_n_is_0_a_bucket_drains_by_the_n_before() {
    each_bucket(600, 50, |mut counter, own_burst| {
        assert!(counter.passes(50, 1.0));
        counter.limit = own_burst(0);
        assert_eq!([1.0, 2.0, 3.0].map(|at| counter.passed(1, at)), [0, 0, 0]);
        counter.limit = own_burst(600);
        assert_eq!(counter.passed(99, 3.0), 20);
    });
}

#[test]
fn a_smaller_burst_of_the_same_n_denies_until_the_level_is_below_it() {
    each_bucket(60, 20, |mut counter, _| {
        assert_eq!(counter.passed(21, 1.0), 20);
        counter.limit = counter.limit.with_burst(5);
        let denied = counter.take(1, 1.0);
        assert_eq!((denied.before, denied.reset_nanos), (20, 16 * SECOND_NANOS));
        assert!(counter.passes(1, 17.0));
    });
}

#[test]
fn a_refund_after_a_change_gives_back_hits_of_any_limit() {
    each_bucket(600, 50, |mut counter, own_burst| {
        assert!(counter.passes(50, 1.0));
        counter.limit = own_burst(6);
        counter.verdict(Hits::GiveBack(20), Timestamp::from_secs(1));
        assert_eq!(counter.passed(99, 1.0), 20);
        counter.limit = own_burst(6).with_burst(10);
        assert_eq!(counter.passed(9, 1.0), 0);
        counter.verdict(Hits::GiveBack(45), Timestamp::from_secs(1));
        assert_eq!(counter.passed(99, 1.0), 5);
    });
}

/// A bucket that was lowered is kept until it is empty by the smaller N, and a file holds all of it.
#[test]
fn a_lowered_bucket_is_kept_and_written_whole() {
    use tidegate_engine::memory::{Encoded, ExportPlace};
    for algorithm in BUCKETS {
        let mut counter = TestCounter::new(a_minute(algorithm, 100));
        assert!(counter.passes(100, 1.0));
        counter.limit = a_minute(algorithm, 10);
        assert!(!counter.passes(1, 1.0));
        while !counter.store.sweep(Timestamp::from_secs(114)).round_done {}
        let mut bytes = Vec::new();
        let now = Timestamp::from_secs(60);
        let copied = counter.store.export(&mut ExportPlace::default(), now, &mut bytes).expect("it is there");
        let encoded = Encoded { algorithm, counters: copied.counters, bytes: &bytes, copied_at: now };
        let other = TestCounter::new(counter.limit);
        other.store.import(&encoded).expect("counters of ours");
        assert_eq!([60.9, 61.0].map(|at| other.passed(9, at)), [0, 1]);
    }
}

/// A bucket by definition. Its level is in parts of a hit, W to one.
#[derive(Default)]
struct Naive {
    level: u128,
    latest: u64,
    requests: u32,
    /// The largest N since the level was within `burst`.
    largest: u32,
    /// Something was charged.
    exists: bool,
}

impl Naive {
    /// Drains what is above `burst` a microsecond at a time, and the rest by `slow`. Returns the level, and how long
    /// something was above.
    fn drained(&self, limit: &Limit, slow: u32, nanos: u64) -> (u128, u64) {
        let capacity = u128::from(limit.burst()) * u128::from(limit.window_nanos());
        let (mut level, mut above) = (self.level, 0);
        while level > capacity {
            let to_next_micro = MICRO - (self.latest + above) % MICRO;
            let step = to_next_micro.min(nanos - above);
            let after = level.saturating_sub(u128::from(step) * u128::from(self.largest));
            if step < to_next_micro {
                return (after.max(capacity + 1), nanos);
            }
            (level, above) = (after.max(capacity), above + step);
        }
        (level.saturating_sub(u128::from(nanos - above) * u128::from(slow)), above)
    }

    fn ask(&mut self, limit: &Limit, now: u64) {
        if !self.exists {
            *self = Self { latest: now, ..Self::default() };
        }
        let (n, before) = (limit.requests() as u32, self.requests);
        let at = now.max(self.latest);
        let nanos = at - self.latest;
        let is_changed = n != before || self.largest > before;
        self.level = match is_changed && n > 0 && before > 0 {
            true => self.drained(limit, n.min(before), nanos).0,
            false => self.level.saturating_sub(u128::from(nanos) * u128::from(before)),
        };
        self.latest = at;
        if n > 0 {
            let capacity = u128::from(limit.burst()) * u128::from(limit.window_nanos());
            self.largest = if self.level > capacity { self.largest.max(n) } else { n };
            self.requests = n;
        }
    }

    /// Hits that fit, and hits that count, rounded up.
    fn counts(&self, limit: &Limit, level: u128) -> (u64, u64) {
        let before = level.div_ceil(limit.window_nanos().into()) as u64;
        let left = limit.burst().saturating_sub(before);
        (if limit.requests() == 0 { 0 } else { left }, before)
    }

    fn wait(&self, limit: &Limit, hits: u64) -> u64 {
        if hits > limit.burst() || limit.requests() == 0 {
            return limit.window_nanos();
        }
        let slow = limit.requests() as u32;
        let is_above = self.largest > slow;
        let after = |nanos| match is_above {
            true => self.drained(limit, slow, nanos).0,
            false => self.level.saturating_sub(u128::from(nanos) * u128::from(slow)),
        };
        let (mut low, mut high) = (0, 1 << 50);
        if is_above {
            low = self.drained(limit, slow, high).1;
        }
        while low < high {
            let middle = (low + high) / 2;
            let level = after(middle);
            if self.counts(limit, level).0 >= hits { high = middle } else { low = middle + 1 }
        }
        low
    }

    fn answer(&mut self, limit: &Limit, now: u64, hits: Hits, reported: bool) -> Verdict {
        let window = u128::from(limit.window_nanos());
        self.ask(limit, now);
        let taken = match hits {
            Hits::Take(hits) => hits,
            Hits::GiveBack(hits) => {
                self.level = self.level.saturating_sub(window.saturating_mul(hits.into()));
                if self.level <= u128::from(limit.burst()) * window {
                    self.largest = self.requests;
                }
                0
            }
        };
        let (left, before) = self.counts(limit, self.level);
        let over = taken.max(1) > left;
        let most = u128::from(limit.burst()) * window + 16 * u128::from(limit.requests()) * window;
        let reports = most.saturating_sub(self.level) / window * u128::from(limit.requests().min(1));
        let charged = if reported {
            taken.min(reports as u64)
        } else if over {
            0
        } else {
            taken
        };
        self.level += u128::from(charged) * window;
        self.exists |= charged > 0;
        let (remaining, counted) = self.counts(limit, self.level);
        let wanted = if reported { 1 } else { taken.max(1) };
        let reset_nanos = match (over, counted) {
            (true, _) => self.wait(limit, wanted),
            (false, 0) => 0,
            (false, _) => self.wait(limit, remaining + 1),
        };
        Verdict { over, before, after: before + taken, remaining, reset_nanos, is_counted: true }
    }
}

fn random_limit(random: &mut Random, algorithm: Algorithm, window: u64) -> Limit {
    let requests = random.pick(&[0, 1, 2, 3, 10, 10, 100, 997]);
    let burst = random.pick(&[requests, requests, 1, 5, 20, 300]).max(1);
    Limit::new(algorithm, requests, window).with_burst(burst)
}

#[test]
fn changes_of_n_and_burst_are_as_defined() {
    let store = small_store();
    for seed in 0..4_000 {
        let mut random = Random(seed);
        let algorithm = BUCKETS[random.below(2) as usize];
        let micros = 1 + random.below(300);
        let window = random.pick(&[micros * MICRO, micros * MICRO, 777]);
        let mut limit = random_limit(&mut random, algorithm, window);
        let (mut naive, mut now, mut history) = (Naive::default(), 10 * window, Vec::new());
        for _ in 0..1 + random.below(24) {
            if random.one_in(3) {
                limit = random_limit(&mut random, algorithm, window);
            }
            let earlier = now.saturating_sub(random.below(window));
            let later = now + random.below(window / 10 + 2);
            now = random.pick(&[now, now, now + 1, now + MICRO, later, later, now + window, earlier]);
            let burst = limit.burst();
            let hits = random.pick(&[0, 1, 1, 2, burst / 2, burst, burst + 1, 400]);
            let gives = random.one_in(8);
            let mut check =
                check(limit, key(seed), if gives { Hits::GiveBack(hits) } else { Hits::Take(hits) });
            check.reported = !gives && hits > 0 && random.one_in(4);
            let is =
                store.apply(&plan([check]), Timestamp::from_nanos(now))[0].expect("a check has a verdict");
            let should = naive.answer(&limit, now, check.hits, check.reported);
            history.push((now, limit.requests(), limit.burst(), check.hits, check.reported));
            assert_eq!(is, should, "seed {seed}, window {window}: {history:?}");
        }
    }
}
