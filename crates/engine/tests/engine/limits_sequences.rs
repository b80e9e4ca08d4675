//! Compares random sequences of hits, questions, refunds and reports with the naive oracle: every field of every
//! verdict. Times are equal, ordered and going back; N changes in between as a reload would change it.

#![allow(clippy::disallowed_methods, reason = "a run of real seconds, as long as its variable says")]

use std::collections::VecDeque;

use tidegate_engine::limit::{Algorithm, Limit, Verdict};
use tidegate_engine::memory::MemoryStore;
use tidegate_engine::plan::Hits;
use tidegate_engine::time::{SECOND_NANOS, Timestamp};

use crate::asking::{check, key, plan, small_store};
use crate::limits_oracle::{Answer, Naive, Terms};
use crate::random::Random;
use crate::seeds::seeds_while_there_is_time;

const SEQUENCES: u64 = 10_000;
const STEPS_MAX: u64 = 24;
const YEAR: u64 = 366 * 86_400 * SECOND_NANOS;

/// A limit of every kind: tiny windows, where every edge is met, and real ones.
pub(crate) fn terms(random: &mut Random, algorithm: Algorithm) -> Terms {
    let tiny = 1 + random.below(200);
    let window =
        random.pick(&[tiny, 60, 600, 1_000_000, SECOND_NANOS, 60 * SECOND_NANOS, 3_600 * SECOND_NANOS, YEAR]);
    let (some, other) = (1 + random.below(12), 1 + random.below(100));
    let requests = random.pick(&[0, 1, 2, 3, some, some, some, 100, algorithm.requests_max()]);
    let burst = random.pick(&[requests, requests, 1, some * 2, other]).max(1);
    let finest = window.div_ceil(3_600);
    let granularity = (window > 1)
        .then(|| random.pick(&[finest, window / 7 + 1, window / 2, window]))
        .map(|g| g.clamp(finest, window));
    let granularity = if random.one_in(2) { None } else { granularity };
    let burst = if requests == 0 { 1 } else { burst };
    Terms { algorithm, requests, burst, window, granularity }
}

/// The next time: the same, a little later, about a bucket or a window later, or back.
pub(crate) fn next_time(random: &mut Random, now: u64, window: u64) -> u64 {
    let edge = |random: &mut Random, length: u64| (length + random.below(3)).saturating_sub(1);
    match random.below(12) {
        0..=2 => now,
        3 => now + 1,
        4 | 5 => now + random.below(window / 10 + 2),
        6 => now + random.below(window + 1),
        7 => now + edge(random, window / 60),
        8 => now + edge(random, window),
        9 => now.saturating_sub(random.below(2 * window)),
        10 => (now / window + 1) * window + edge(random, 0),
        _ => now + random.below(3 * window),
    }
}

pub(crate) fn next_hits(random: &mut Random, terms: &Terms) -> u64 {
    let capacity = terms.capacity();
    random.pick(&[0, 1, 1, 1, 1, 2, 3, capacity / 2, capacity, capacity + 1, u64::MAX])
}

fn same(verdict: Verdict, answer: Answer) -> bool {
    let Verdict { over, before, after, remaining, reset_nanos, .. } = verdict;
    Answer { over, before, after, remaining, reset_nanos } == answer
}

/// One random sequence on a counter of its own. Panics with everything that is needed to repeat it.
fn run(store: &MemoryStore, algorithm: Algorithm, seed: u64) {
    let mut random = Random(seed);
    let mut terms = terms(&mut random, algorithm);
    let (key, mut naive) = (key(seed), Naive::default());
    let today = 1_790_000_000 * SECOND_NANOS + random.below(terms.window);
    let mut now = random.pick(&[0, terms.window, today]);
    let buckets = matches!(algorithm, Algorithm::TokenBucket | Algorithm::LeakyBucket);
    let mut history = Vec::new();
    for _ in 0..1 + random.below(STEPS_MAX) {
        now = next_time(&mut random, now, terms.window);
        if !buckets && random.one_in(10) {
            terms.requests = random.below(12);
        }
        let (hits, reported) = (next_hits(&mut random, &terms), random.one_in(4));
        let giving_back = random.one_in(6);
        let asked = if giving_back { Hits::GiveBack(hits) } else { Hits::Take(hits) };
        let mut check = check(terms.limit(), key, asked);
        check.reported = reported && hits > 0;
        let verdict =
            store.apply(&plan([check]), Timestamp::from_nanos(now))[0].expect("a check has a verdict");
        let answer = if giving_back {
            naive.give_back(&terms, now, hits)
        } else {
            naive.take(&terms, now, hits, check.reported)
        };
        history.push((now, asked, check.reported, terms.requests));
        assert!(
            same(verdict, answer),
            "seed {seed}\n{terms:?}\n{history:#?}\nis     {verdict:?}\nshould {answer:?}"
        );
    }
}

fn run_all(algorithm: Algorithm) {
    let store = small_store();
    for seed in 0..SEQUENCES {
        run(&store, algorithm, seed);
    }
    assert!(store.counters() > SEQUENCES / 2, "most sequences must have counted something");
}

/// Sequences that once went wrong: an algorithm and a seed a line.
const REGRESSIONS: &str = include_str!("regressions.txt");

#[test]
fn what_once_went_wrong_is_right() {
    let store = small_store();
    for line in REGRESSIONS.lines().filter(|line| !line.starts_with('#')) {
        let (name, seed) = line.split_once(' ').expect("an algorithm and a seed");
        let named = |algorithm: &&Algorithm| format!("{algorithm:?}") == name;
        let algorithm = Algorithm::OF_HITS.iter().find(named).expect("the name of an algorithm");
        run(&store, *algorithm, seed.parse().expect("a seed is a number"));
    }
}

#[test]
fn as_many_more_as_there_is_time_for() {
    for seed in seeds_while_there_is_time() {
        let (store, mut random) = (small_store(), Random(seed));
        for algorithm in Algorithm::OF_HITS.repeat(100) {
            run(&store, algorithm, random.next());
        }
    }
}

/// Thousands of stamps and buckets alive at once: blocks that grow, move down, lose their oldest hits to refunds and shrink
/// again.
#[test]
fn long_runs_keep_their_counts() {
    for (algorithm, width) in [(Algorithm::SlidingLog, 0), (Algorithm::SlidingWindow, 50)] {
        let window = 100_000;
        // When a hit stops counting: W after it, or after the end of its bucket.
        let gone_at =
            |time: u64| time.checked_div(width).map_or(time, |bucket| (bucket + 1) * width) + window;
        let limit = Limit::new(algorithm, 3_000, window).with_granularity(width);
        let (store, mut random, mut now) = (small_store(), Random(11), 10 * window);
        let mut admitted: VecDeque<(u64, u64)> = VecDeque::new();
        let mut most_alive = 0;
        for step in 0..30_000 {
            now += if random.one_in(3_000) { window } else { random.below(90) };
            while admitted.front().is_some_and(|hit| gone_at(hit.0) <= now) {
                admitted.pop_front();
            }
            most_alive = most_alive.max(admitted.len());
            let before: u64 = admitted.iter().map(|hit| hit.1).sum();
            let hits = random.pick(&[1, 1, 1, 2, 3]);
            if random.one_in(9) {
                let hits = if random.one_in(50) { 900 } else { hits };
                store.apply(&plan([check(limit, key(1), Hits::GiveBack(hits))]), Timestamp::from_nanos(now));
                give_back(&mut admitted, hits);
                continue;
            }
            let verdict = store.take(&limit, key(1), hits, Timestamp::from_nanos(now));
            assert_eq!(
                (verdict.before, verdict.over),
                (before, before + hits > 3_000),
                "step {step}: {algorithm:?}"
            );
            if !verdict.over {
                admitted.push_back((now, hits));
                continue;
            }
            // As many hits as are too many have to go, the oldest first.
            let mut too_many = before + hits - 3_000;
            let enough = |hit: &&(u64, u64)| {
                too_many = too_many.saturating_sub(hit.1);
                too_many == 0
            };
            let last_to_go = admitted.iter().find(enough).expect("there are as many");
            assert_eq!(verdict.reset_nanos, gone_at(last_to_go.0) - now, "step {step}: {algorithm:?}");
        }
        assert!(most_alive > 1_000, "{most_alive}");
        while !store.sweep(Timestamp::MAX).round_done {}
        assert_eq!((store.counters(), store.bytes()), (0, 0), "{algorithm:?}");
    }
}

fn give_back(admitted: &mut VecDeque<(u64, u64)>, mut hits: u64) {
    while let Some(oldest) = admitted.front_mut().filter(|_| hits > 0) {
        let back = hits.min(oldest.1);
        (oldest.1, hits) = (oldest.1 - back, hits - back);
        if oldest.1 == 0 {
            admitted.pop_front();
        }
    }
}

#[test]
fn sliding_log_is_what_it_says() {
    run_all(Algorithm::SlidingLog);
}

#[test]
fn sliding_window_is_what_it_says() {
    run_all(Algorithm::SlidingWindow);
}

#[test]
fn sliding_window_weighted_is_what_it_says() {
    run_all(Algorithm::SlidingWindowWeighted);
}

#[test]
fn a_calendar_of_aligned_windows_is_what_it_says() {
    run_all(Algorithm::Calendar);
}

#[test]
fn fixed_window_is_what_it_says() {
    run_all(Algorithm::FixedWindow);
}

#[test]
fn token_bucket_is_what_it_says() {
    run_all(Algorithm::TokenBucket);
}

#[test]
fn leaky_bucket_is_what_it_says() {
    run_all(Algorithm::LeakyBucket);
}
