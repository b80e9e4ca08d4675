//! The contract suite: random sequences, in whole microseconds, run on the memory store and on the script in a real
//! Redis or Valkey, single or Cluster. Every field of every verdict is the same, with COLD_START=deny too.

use tidegate_engine::decision::Verdicts;
use tidegate_engine::limit::{Algorithm, BanTerms, Limit, Share, Slot};
use tidegate_engine::memory::{Cold, MemoryStore};
use tidegate_engine::plan::{Candidate, Check, Hits, Plan, Step};
use tidegate_engine::time::Timestamp;

use crate::asking::{check, key, plan, store};
use crate::random::Random;
use crate::script::{Asked, SHIFT_MILLIS};
use crate::server::{Server, cluster};

const SECOND: u64 = 1_000_000;
const YEAR: u64 = 366 * 86_400 * SECOND;
const TODAY: u64 = 1_790_000_000 * SECOND;
/// The script counts no further than this.
const HITS_MAX: u64 = 1 << 48;

/// A limit of every kind, its window in microseconds.
fn limit(random: &mut Random, algorithm: Algorithm) -> (Limit, u64) {
    let tiny = 1 + random.below(200);
    let window = random.pick(&[tiny, tiny, 60, 600, SECOND, 10 * SECOND, 60 * SECOND, 3_600 * SECOND, YEAR]);
    let some = 1 + random.below(12);
    if algorithm == Algorithm::Ban {
        let first_secs = 1 + random.below(100) as u32;
        let terms = BanTerms {
            strikes: some as u32,
            within_nanos: window * 1_000,
            every_nanos: random.pick(&[0, window / 7, window / 3]) * 1_000,
            first_secs,
            longest_secs: first_secs * random.pick(&[1, 1, 2, 5, 1_000]),
        };
        return (Limit::ban(&terms), window);
    }
    let requests =
        random.pick(&[0, 1, 2, 3, some, some, some, 100, 1_000_003, algorithm.requests_max().min(1 << 46)]);
    let burst = random.pick(&[requests, requests, 1, some * 2, 97]).max(1);
    let limit = Limit::new(algorithm, requests, window * 1_000).with_burst(burst);
    let finest = window.div_ceil(3_600);
    let granularity = random.pick(&[finest, window / 7 + 1, window / 2 + 1, window]).clamp(finest, window);
    let granular = algorithm == Algorithm::SlidingWindow && random.one_in(2);
    let limit = if granular { limit.with_granularity(granularity * 1_000) } else { limit };
    (if random.one_in(2) { limit.carrying_debt() } else { limit }, window)
}

/// The limit as a class of importance has it.
fn of_a_class(random: &mut Random, limit: Limit) -> Limit {
    let share = random.pick(&["1", "0.85", "0.5", "0.333333", "0.000001"]);
    limit.with_share(Share::parse(share).expect("a share"))
}

fn next_time(random: &mut Random, now: u64, window: u64) -> u64 {
    match random.below(12) {
        0..=2 => now,
        3 => now + 1,
        4 | 5 => now + random.below(window / 10 + 2),
        6 => now + random.below(window + 1),
        7 => now + (window / 60 + random.below(3)).saturating_sub(1),
        8 => now + (window + random.below(3)).saturating_sub(1),
        9 => now.saturating_sub(random.below(2 * window)),
        10 => ((now / window + 1) * window + random.below(3)).saturating_sub(1),
        _ => now + random.below(3 * window),
    }
}

fn next_hits(random: &mut Random, limit: &Limit) -> u64 {
    let capacity = limit.burst();
    random.pick(&[0, 1, 1, 1, 1, 2, 3, capacity / 2, capacity, capacity + 1, HITS_MAX])
}

/// The requests to the stores, and their modes.
fn next_check(random: &mut Random, limit: Limit, counter: u64) -> Check<'static> {
    let (hits, gives) = (next_hits(random, &limit), random.one_in(6));
    if limit.algorithm() == Algorithm::Concurrency {
        // As a plan has it: one hit takes a slot, a give-back releases one, and none asks: for any slot, or for that of a
        // call which the request has named before.
        let slot = limit.for_slot(Slot::of(1 + random.below(9), random.below(2)));
        let (limit, hits) = random.pick(&[
            (slot, Hits::Take(1)),
            (slot, Hits::Take(1)),
            (slot, Hits::Take(1)),
            (slot, Hits::GiveBack(0)),
            (slot, Hits::GiveBack(0)),
            (slot, Hits::Take(0)),
            (limit, Hits::Take(0)),
        ]);
        return check(limit, key(counter), hits);
    }
    if limit.algorithm() == Algorithm::Ban {
        // Requests ask, strikes come one at a time, and an operator begins or lifts a ban.
        let at_once = Hits::Take(limit.requests().max(2));
        let (ask, strike, lift) = (Hits::Take(0), Hits::Take(1), Hits::GiveBack(1));
        let hits = random.pick(&[ask, ask, strike, strike, strike, strike, at_once, lift]);
        let mut check = check(limit, key(counter), hits);
        check.shadow = random.one_in(6);
        return check;
    }
    let mut check = check(limit, key(counter), if gives { Hits::GiveBack(hits) } else { Hits::Take(hits) });
    check.reported = !gives && hits > 0 && random.one_in(4);
    check.shadow = random.one_in(6);
    check.quota = random.one_in(6);
    check
}

fn begin(random: &mut Random, window: u64) -> u64 {
    // With tiny windows, only whole nanoseconds could hold the numbers of today's buckets.
    let today = if window < SECOND { 3 * window } else { TODAY + random.below(window) };
    random.pick(&[0, window, today])
}

/// A random sequence of requests of one to five descriptors over one to four counters.
fn run(memory: &MemoryStore, asked: &mut Asked, seed: u64, algorithms: &[Algorithm], single: bool) {
    let mut random = Random(seed);
    let count = if single { 1 } else { 1 + random.below(4) };
    let mut limits: Vec<(Limit, u64)> = (0..count)
        .map(|_| {
            let algorithm = random.pick(algorithms);
            limit(&mut random, algorithm)
        })
        .collect();
    let window = limits[0].1;
    let mut now = begin(&mut random, limits.iter().map(|limit| limit.1).min().unwrap());
    let mut lost = asked.denies().then(|| Lost::new(asked, &mut random, seed, now, window));
    let has_classes = random.one_in(3);
    let mut steps = Vec::new();
    for step in 0..1 + random.below(20) {
        // What is lost is lost when it is asked for first.
        if step > 0 || lost.is_none() {
            now = next_time(&mut random, now, window);
        }
        lost = lost.map(|lost| lost.at(now));
        let memory = lost.as_ref().map_or(memory, |lost| &lost.memory);
        if random.one_in(if limits[0].0.algorithm().is_bucket() { 3 } else { 10 }) {
            let burst = random.pick(&[None, Some(1), Some(7), Some(97)]);
            limits[0].0 = limits[0].0.with_numbers(Some(random.below(12)), burst);
        }
        let asks = if single { 1 } else { 1 + random.below(5) };
        let counters: Vec<u64> = (0..asks).map(|_| random.below(count)).collect();
        let mut plan = plan(counters.iter().map(|&counter| {
            let limit = limits[counter as usize].0;
            let is_shared = has_classes && limit.algorithm() != Algorithm::Ban;
            let limit = if is_shared { of_a_class(&mut random, limit) } else { limit };
            next_check(&mut random, limit, seed.wrapping_mul(8) + counter)
        }));
        plan.modes.quota = random.one_in(10);
        plan.modes.stop_increment_when_over = random.one_in(4);
        if random.one_in(3) {
            plan.steps.push(Step::Unmatched);
        }
        if !single && random.one_in(2) {
            plan.candidates = candidates(&mut random, &plan, &counters, seed);
        }
        let name = |index: usize| format!("{{{seed}}}:{}", counters[index]);
        let memory = memory.apply(&plan, Timestamp::from_nanos(now * 1_000));
        let redis = asked.apply(&plan, name, now);
        steps.push(format!("at {now}: {}", short(&plan)));
        assert_eq!(redis, memory, "redis is left, memory is right; seed {seed}\n{}", steps.join("\n"));
    }
}

/// All counters are lost in Redis, and in this memory too.
struct Lost {
    memory: MemoryStore,
    since: u64,
    held_max: u64,
}

impl Lost {
    fn new(asked: &mut Asked, random: &mut Random, seed: u64, now: u64, window: u64) -> Self {
        let since = random.one_in(2).then(|| now.saturating_sub(random.below(window)));
        let held_max = random.pick(&[window / 2, window, window + 1, 10 * window, 100 * YEAR]);
        asked.lose(&format!("{{{seed}}}:mark"), since, held_max);
        Self { memory: store(), since: since.unwrap_or(now), held_max }
    }

    /// The clock of Redis may have been set back. What was lost was lost before it shows this time.
    fn at(self, now: u64) -> Self {
        let since = self.since.min(now);
        let cold = Cold::since(Timestamp::from_nanos(since * 1_000), self.held_max * 1_000);
        Self { memory: self.memory.cold(cold), since, ..self }
    }
}

/// Candidates for some of the counters. Each has always the same limit: half of the numbers, and one more.
fn candidates(
    random: &mut Random,
    plan: &Plan<'static>,
    counters: &[u64],
    seed: u64,
) -> Vec<Candidate<'static>> {
    let (chosen, together) = (random.next(), random.one_in(3));
    let candidate = |(step, &counter): (usize, &u64)| {
        let Step::Check(check) = plan.steps[step] else {
            panic!("a step that checks nothing has no counter")
        };
        let half = |number: u64| number / 2 + 1;
        let limit =
            check.limit.with_requests(half(check.limit.requests())).with_burst(half(check.limit.burst()));
        let key = key(u64::MAX - seed.wrapping_mul(8) - counter);
        // Rules may have several counters in one request.
        let rule = if together { counter as usize / 2 } else { counter as usize };
        let is_chosen = chosen >> rule & 1 == 1;
        is_chosen.then_some(Candidate { step, rule, check: Check { limit, key, ..check } })
    };
    counters.iter().enumerate().filter_map(candidate).collect()
}

fn short(plan: &Plan<'_>) -> String {
    let checks = plan.steps.iter().map(|step| match step {
        Step::Check(check) => format!(
            "\n    {:?} {:?} reported {} shadow {} quota {}\n    {:?}",
            check.key, check.hits, check.reported, check.shadow, check.quota, check.limit
        ),
        other => format!("{other:?}"),
    });
    format!("{:?} {}", plan.modes, checks.collect::<String>())
}

fn run_all(algorithms: &[Algorithm], seeds: std::ops::Range<u64>, single: bool) {
    run_all_on(&Server::start(&[]), algorithms, seeds, single);
}

fn run_all_on(server: &Server, algorithms: &[Algorithm], seeds: std::ops::Range<u64>, single: bool) {
    let (memory, mut asked) = (store(), Asked::new(vec![server.connect()]));
    for seed in seeds {
        run(&memory, &mut asked, seed, algorithms, single);
    }
    every_key_expires(&mut asked);
}

/// Every key expires by itself, and not only by what the suite adds.
fn every_key_expires(asked: &mut Asked) {
    let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(asked.connection()).unwrap();
    assert!(keys.len() > 100, "most sequences must have counted something: {}", keys.len());
    for key in keys {
        let ttl: i64 = redis::cmd("PTTL").arg(&key).query(asked.connection()).unwrap();
        assert!(ttl > SHIFT_MILLIS / 2 - 2 * 366 * 86_400_000, "{key} lives {ttl} ms");
        assert!(ttl != -1, "{key} lives for ever");
    }
}

#[test]
fn sliding_log_is_the_same_in_redis() {
    run_all(&[Algorithm::SlidingLog], 0..1_500, true);
}

#[test]
fn sliding_window_is_the_same_in_redis() {
    run_all(&[Algorithm::SlidingWindow], 0..1_500, true);
}

#[test]
fn sliding_window_weighted_is_the_same_in_redis() {
    run_all(&[Algorithm::SlidingWindowWeighted], 0..1_500, true);
}

#[test]
fn a_calendar_is_the_same_in_redis() {
    run_all(&[Algorithm::Calendar], 0..1_500, true);
}

#[test]
fn slots_are_the_same_in_redis() {
    run_all(&[Algorithm::Concurrency], 0..1_500, true);
    run_all(&[Algorithm::Concurrency, Algorithm::SlidingLog], 0..500, false);
}

#[test]
fn bans_are_the_same_in_redis() {
    run_all(&[Algorithm::Ban], 0..1_500, true);
    run_all(&[Algorithm::Ban, Algorithm::FixedWindow, Algorithm::SlidingLog], 0..1_000, false);
}

#[test]
fn fixed_window_is_the_same_in_redis() {
    run_all(&[Algorithm::FixedWindow], 0..1_500, true);
}

#[test]
fn the_buckets_are_the_same_in_redis() {
    run_all(&[Algorithm::TokenBucket, Algorithm::LeakyBucket], 0..2_000, true);
}

#[test]
fn requests_of_several_descriptors_are_the_same_in_redis() {
    run_all(&Algorithm::OF_HITS, 10_000..13_000, false);
}

/// With COLD_START=deny: counters were full until the clock showed the time of the loss again.
#[test]
fn a_clock_that_is_set_back_an_hour_costs_one_window() {
    const WINDOW: u64 = 60 * SECOND;
    const SET_BACK: u64 = TODAY - 3_600 * SECOND;
    for server in [Server::start(&[]), Server::valkey()] {
        let mut asked = Asked::denying(vec![server.connect()]);
        for algorithm in Algorithm::NAMED {
            let (limit, name) = (Limit::new(algorithm, 10, WINDOW * 1_000), algorithm.name());
            asked.lose(&format!("{name}:mark"), None, WINDOW);
            let mut over = |counter: &str, now: u64| {
                let plan = plan([check(limit, key(1), Hits::Take(1))]);
                let verdicts = asked.apply(&plan, |_| format!("{name}:{counter}"), now);
                verdicts[0].expect("a verdict of the only check").over
            };
            let asks = [
                ("a", TODAY),
                ("b", SET_BACK),
                ("b", SET_BACK + WINDOW - 1),
                ("b", SET_BACK + WINDOW),
                ("c", SET_BACK + 2 * WINDOW),
                ("c", TODAY + 1),
            ];
            let is_over = asks.map(|(counter, now)| over(counter, now));
            assert_eq!(is_over, [true, true, true, false, false, false], "{name}");
        }
    }
}

/// With COLD_START=deny.
fn lost_counters_are_full_on(server: &Server) {
    let (unused, mut asked) = (store(), Asked::denying(vec![server.connect()]));
    for (at, algorithm) in (0..).zip(Algorithm::OF_HITS) {
        let first = 50_000 + at * 1_000;
        (first..first + 150).for_each(|seed| run(&unused, &mut asked, seed, &[algorithm], true));
    }
    (60_000..60_500).for_each(|seed| run(&unused, &mut asked, seed, &Algorithm::OF_HITS, false));
    every_key_expires(&mut asked);
}

#[test]
fn lost_counters_are_full_in_redis_as_in_memory() {
    lost_counters_are_full_on(&Server::start(&[]));
}

#[test]
fn lost_counters_are_full_in_valkey_as_in_memory() {
    lost_counters_are_full_on(&Server::valkey());
}

fn a_cluster_of(program: &str) {
    let servers = cluster(program);
    let (memory, mut asked) = (store(), Asked::new(servers.iter().map(Server::connect).collect()));
    for seed in 20_000..21_000 {
        run(&memory, &mut asked, seed, &Algorithm::OF_HITS, false);
    }
}

#[test]
fn a_cluster_answers_the_same() {
    a_cluster_of("redis-server");
}

#[test]
fn valkey_answers_the_same() {
    run_all_on(&Server::valkey(), &Algorithm::OF_HITS, 30_000..33_000, true);
    run_all_on(&Server::valkey(), &Algorithm::OF_HITS, 40_000..42_000, false);
}

#[test]
fn a_cluster_of_valkey_answers_the_same() {
    a_cluster_of("valkey-server");
}

/// More counters than a byte can number. Each denies or admits for itself.
#[test]
fn a_request_of_many_counters_is_the_same_in_redis() {
    let server = Server::start(&[]);
    let (memory, mut asked) = (store(), Asked::new(vec![server.connect()]));
    let checks = |shadow: bool| {
        (0..600).map(move |counter| {
            let limit = Limit::new(Algorithm::SlidingWindow, counter % 3, 60 * 1_000_000_000);
            Check { shadow, ..check(limit, key(counter), Hits::Take(1)) }
        })
    };
    for (later, shadow) in [(0, true), (1, false), (2, true), (3, true)] {
        let (now, plan) = (TODAY + later * SECOND, plan(checks(shadow)));
        let answer = asked.apply(&plan, |index| format!("many{index}"), now);
        assert_eq!(answer, memory.apply(&plan, Timestamp::from_nanos(now * 1_000)), "{later} s later");
    }
}

/// Thousands of entries at once: searching them, and dropping many at a time.
#[test]
fn long_logs_are_the_same_in_redis() {
    let server = Server::start(&[]);
    let (memory, mut asked) = (store(), Asked::new(vec![server.connect()]));
    for (number, algorithm) in [Algorithm::SlidingLog, Algorithm::SlidingWindow].into_iter().enumerate() {
        let limit = Limit::new(algorithm, 3_000, 100_000_000).with_granularity(50_000);
        let (mut random, mut now) = (Random(number as u64), TODAY);
        for _ in 0..12_000 {
            now += if random.one_in(3_000) { 60_000 } else { random.below(90) };
            let hits = random.pick(&[1, 1, 1, 2, 3]);
            let many = if random.one_in(50) { 900 } else { hits };
            let hits = if random.one_in(9) { Hits::GiveBack(many) } else { Hits::Take(hits) };
            // With other counters it takes the long way through the script.
            let other = Limit::new(Algorithm::FixedWindow, u32::MAX.into(), YEAR * 1_000);
            let beside = random.one_in(3).then(|| check(other, key(99), Hits::Take(1)));
            let plan = plan([check(limit, key(number as u64), hits)].into_iter().chain(beside));
            let answer: Verdicts = asked.apply(&plan, |step| format!("long{}", [number, 99][step]), now);
            assert_eq!(
                answer,
                memory.apply(&plan, Timestamp::from_nanos(now * 1_000)),
                "{algorithm:?} at {now}"
            );
        }
    }
}

/// Unsynced hits are charged at their own times: the count is as if Redis had been asked then.
#[test]
fn unsynced_hits_count_from_their_own_times() {
    use tidegate_redis::script::{Call, RequestSummary};
    let server = Server::start(&[]);
    let (memory, mut asked) = (store(), Asked::new(vec![server.connect()]));
    for (number, algorithm) in Algorithm::OF_HITS.into_iter().enumerate().filter(|(_, it)| !it.is_bucket()) {
        let limit = Limit::new(algorithm, 10, 60 * 1_000_000_000);
        let counter = key(number as u64);
        let question = check(limit, counter, Hits::Take(0));
        for (age, hits) in [(50, 3), (20, 2), (1, 1)] {
            let at = Timestamp::from_nanos((TODAY - age * SECOND) * 1_000);
            memory.apply(&plan([check(limit, counter, Hits::Take(hits))]), at);
        }
        let mut call = Call::new(&RequestSummary::default());
        call.push(format!("unsynced{number}").into_bytes(), &question, false);
        for (age, hits) in [(50, 3), (20, 2), (1, 1)] {
            call.add_unsynced((age * SECOND, hits));
        }
        asked.invoke(&call, TODAY, TODAY);
        for later in [0, 9, 11, 39, 41, 58, 60, 70, 120] {
            let (now, plan) = (TODAY + later * SECOND, plan([question]));
            let answer = asked.apply(&plan, |_| format!("unsynced{number}"), now);
            let should = memory.apply(&plan, Timestamp::from_nanos(now * 1_000));
            assert_eq!(answer, should, "{algorithm:?} {later} s later");
        }
    }
}

/// Unsynced reported hits are charged beyond N as they would have been at once, with the same bound.
#[test]
fn unsynced_costs_count_beyond_the_limit() {
    use tidegate_redis::script::{Call, RequestSummary};
    let server = Server::start(&[]);
    let (memory, mut asked) = (store(), Asked::new(vec![server.connect()]));
    for (number, algorithm) in Algorithm::OF_HITS.into_iter().enumerate() {
        for (cost, hits) in [7, 35, 500, HITS_MAX].into_iter().enumerate() {
            let limit = Limit::new(algorithm, 10, 60 * 1_000_000_000);
            let (counter, name) = (key((number * 10 + cost) as u64), format!("costs{number}:{cost}"));
            // The hits for a bucket are what it still has at the time of the call.
            let costs: &[(u64, u64)] =
                if algorithm.is_bucket() { &[(0, hits)] } else { &[(50, 6), (20, hits)] };
            let question = check(limit, counter, Hits::Take(0));
            let mut call = Call::new(&RequestSummary::default());
            call.push(name.clone().into_bytes(), &question, false);
            for &(age, hits) in costs {
                let report = Check { reported: true, ..check(limit, counter, Hits::Take(hits)) };
                memory.apply(&plan([report]), Timestamp::from_nanos((TODAY - age * SECOND) * 1_000));
                call.add_unsynced((age * SECOND, hits));
            }
            asked.invoke(&call, TODAY, TODAY);
            for later in [0, 9, 11, 39, 41, 58, 60, 70, 120, 900, 3_600] {
                let (now, plan) = (TODAY + later * SECOND, plan([question]));
                let answer = asked.apply(&plan, |_| name.clone(), now);
                let should = memory.apply(&plan, Timestamp::from_nanos(now * 1_000));
                assert_eq!(answer, should, "{hits} to {algorithm:?}, {later} s later");
            }
        }
    }
}

/// Hits as many as a ban takes are an operator's.
#[test]
fn a_ban_by_an_operator_replaces_any_other_in_redis_too() {
    let server = Server::start(&[]);
    let mut asked = Asked::new(vec![server.connect()]);
    let check = |secs: u32, hits: u64| {
        let terms = BanTerms {
            strikes: 1,
            within_nanos: 60_000_000_000,
            every_nanos: 0,
            first_secs: secs,
            longest_secs: secs,
        };
        check(Limit::ban(&terms), key(1), Hits::Take(hits))
    };
    let mut ask = |second: u64, check: Check<'static>| {
        let plan = plan([check]);
        let verdict = asked.apply(&plan, |_| "operated".to_owned(), TODAY + second * SECOND)[0];
        verdict.expect("a verdict of the only check")
    };
    assert!(!ask(0, check(100, 1)).over, "a denial begins a ban of 100 seconds");
    for (second, secs, hits) in [(1, 7, 2), (2, 600, 2), (3, 2, 2)] {
        let verdict = ask(second, check(secs, hits));
        assert!(!verdict.over && verdict.is_counted);
        assert_eq!(ask(second, check(100, 0)).reset_nanos, u64::from(secs) * 1_000_000_000);
    }
    assert_eq!([4, 5].map(|second| ask(second, check(100, 0)).over), [true, false]);
}

/// A node that had no answer reports a denial again, perhaps after the ban that it began: that is no denial after the ban.
#[test]
fn a_denial_from_before_the_end_of_a_ban_does_not_count_after_it() {
    use tidegate_redis::script::{Answered, Call, RequestSummary};
    let server = Server::start(&[]);
    let mut asked = Asked::new(vec![server.connect()]);
    let terms =
        BanTerms { strikes: 1, within_nanos: 60_000_000_000, every_nanos: 0, first_secs: 2, longest_secs: 8 };
    let question = check(Limit::ban(&terms), key(1), Hits::Take(0));
    let report = |asked: &mut Asked, second: u64, age: u64| {
        let mut call = Call::new(&RequestSummary::default());
        call.push(b"strikes".to_vec(), &question, false);
        call.add_unsynced((age * SECOND, 1));
        let reply = asked.invoke(&call, TODAY + second * SECOND, TODAY + second * SECOND);
        let answered = Answered::read(&reply, [&question]).expect("a reply").counters[0];
        answered.verdict.over
    };
    assert!(report(&mut asked, 0, 0), "a ban of two seconds begins");
    assert_eq!([(3, 3), (3, 2), (4, 4)].map(|(second, age)| report(&mut asked, second, age)), [false; 3]);
    assert!(report(&mut asked, 4, 1), "a denial after the ban begins the next");
    let mut lift = Call::new(&RequestSummary::default());
    let lifting = Check { hits: Hits::GiveBack(1), ..question };
    lift.push(b"strikes".to_vec(), &lifting, false);
    asked.invoke(&lift, TODAY + 5 * SECOND, TODAY + 5 * SECOND);
    assert_eq!(
        [2, 1].map(|age| report(&mut asked, 6, age)),
        [false, true],
        "nor does one from before a lift"
    );
}

/// Until then nodes may report denials from before it.
#[test]
fn a_ban_is_known_for_one_window_after_its_end() {
    let server = Server::start(&[]);
    let mut asked = Asked::new(vec![server.connect()]);
    let terms =
        BanTerms { strikes: 2, within_nanos: 60_000_000_000, every_nanos: 0, first_secs: 2, longest_secs: 8 };
    let strike = plan([check(Limit::ban(&terms), key(1), Hits::Take(1))]);
    let mut known_until = || -> i64 {
        asked.apply(&strike, |_| "strikes".to_owned(), TODAY);
        redis::cmd("PEXPIRETIME").arg("strikes").query(asked.connection()).expect("an answer")
    };
    let strike_counts_until = known_until();
    assert_eq!(known_until() - strike_counts_until, 2_000, "a window after a ban of two seconds");
}

/// Reports of denials come late. One that counts no longer begins no ban together with others.
#[test]
fn denials_from_before_the_window_are_none() {
    use tidegate_redis::script::{Answered, Call, RequestSummary};
    let server = Server::start(&[]);
    let mut asked = Asked::new(vec![server.connect()]);
    let terms = BanTerms {
        strikes: 3,
        within_nanos: 60_000_000_000,
        every_nanos: 0,
        first_secs: 100,
        longest_secs: 100,
    };
    let question = check(Limit::ban(&terms), key(1), Hits::Take(0));
    let begins_ban = |first: u64| {
        let mut call = Call::new(&RequestSummary::default());
        call.push(format!("late{first}").into_bytes(), &question, false);
        [first, 2, 1].into_iter().for_each(|age| call.add_unsynced((age * SECOND, 1)));
        let reply = asked.invoke(&call, TODAY, TODAY);
        Answered::read(&reply, [&question]).expect("a reply").counters[0].verdict.over
    };
    assert_eq!([59, 60, 61].map(begins_ban), [true, false, false]);
}

#[test]
fn a_slot_that_is_renewed_under_a_lowered_ttl_ends_no_earlier() {
    let server = Server::start(&[]);
    let mut asked = Asked::new(vec![server.connect()]);
    let mut is_over = |ttl_secs: u64, id: u64, second: u64| {
        let limit = Limit::concurrency(1, ttl_secs * 1_000_000_000).for_slot(Slot::of(id, id));
        let plan = plan([check(limit, key(1), Hits::Take(1))]);
        asked.apply(&plan, |_| "renewed".to_owned(), TODAY + second * SECOND)[0].expect("a verdict").over
    };
    assert_eq!([is_over(60, 1, 0), is_over(10, 1, 1)], [false, false]);
    assert_eq!([is_over(10, 2, 11), is_over(10, 2, 59), is_over(10, 2, 60)], [true, true, false]);
}

/// The key has to stay as long as the slot that ends last.
#[test]
fn slots_do_not_end_with_one_that_was_taken_later_under_a_lowered_ttl() {
    let server = Server::start(&[]);
    let mut asked = Asked::new(vec![server.connect()]);
    for (ttl_secs, id) in [(60, 1), (10, 2)] {
        let limit = Limit::concurrency(2, ttl_secs * 1_000_000_000).for_slot(Slot::of(id, id));
        let plan = plan([check(limit, key(1), Hits::Take(1))]);
        assert!(!asked.apply(&plan, |_| "lowered".to_owned(), TODAY)[0].expect("a verdict").over);
    }
    let millis: i64 = redis::cmd("PTTL").arg("lowered").query(asked.connection()).expect("an answer");
    assert!(millis - SHIFT_MILLIS > 30_000, "it lives {millis} ms");
}

/// No stamp knows how much of a bucket has drained under another N.
#[test]
fn hits_of_a_bucket_whose_n_has_changed_do_not_go_back() {
    use tidegate_redis::script::{Answered, Call, DataId, RequestSummary};
    let server = Server::start(&[]);
    let mut asked = Asked::new(vec![server.connect()]);
    redis::cmd("SET").arg("generation").arg("now").exec(asked.connection()).expect("Redis answers");
    let generation = DataId { key: b"generation".to_vec(), generation: "now".into(), connection: 1 };
    for algorithm in [Algorithm::TokenBucket, Algorithm::LeakyBucket] {
        let limit = |requests| Limit::new(algorithm, requests, 10 * 1_000_000_000).with_burst(10);
        let name = format!("{algorithm:?} of two").into_bytes();
        let ask = |asked: &mut Asked, requests: u64, hits: u64, second: u64| {
            let (check, now) = (check(limit(requests), key(1), Hits::Take(hits)), TODAY + second * SECOND);
            let mut call = Call::new(&RequestSummary::default());
            call.push(name.clone(), &check, false);
            let reply = asked.invoke(&call, now, now);
            Answered::read(&reply, [&check]).expect("a reply").counters[0]
        };
        let charged = ask(&mut asked, 10, 5, 0);
        [0, 1].into_iter().for_each(|second| _ = ask(&mut asked, 100, 0, second));
        assert_eq!(ask(&mut asked, 10, 5, 1).verdict.remaining, 5, "the first five have drained");
        let mut back = Call::giving_back(&generation);
        back.push_give_back(name.clone(), &limit(10), charged.stamp, 5);
        asked.give_back(&back, TODAY + SECOND);
        assert_eq!(ask(&mut asked, 10, 0, 1).verdict.remaining, 5);
    }
}

/// A bucket gives back the hits of a request that another slot denied, except those that have drained since: it is
/// as if the request had never come.
#[test]
fn a_bucket_gets_back_all_that_was_charged() {
    use tidegate_redis::script::{Answered, Call, DataId, RequestSummary};
    let server = Server::start(&[]);
    let mut asked = Asked::new(vec![server.connect()]);
    redis::cmd("SET").arg("generation").arg("now").exec(asked.connection()).expect("Redis answers");
    let generation = DataId { key: b"generation".to_vec(), generation: "now".into(), connection: 1 };
    for algorithm in [Algorithm::TokenBucket, Algorithm::LeakyBucket] {
        for seed in 0..300 {
            let mut random = Random(seed);
            let (requests, burst) = (1 + random.below(9) as u32, 1 + random.below(9) as u32);
            let limit = Limit::new(algorithm, requests.into(), 10 * 1_000_000_000).with_burst(burst.into());
            let memory = store();
            let (name, counter, mut now) = (format!("{algorithm:?}{seed}"), key(seed), TODAY);
            // Other requests take hits before, between and after. Memory never sees the request that is denied
            // elsewhere.
            let others = |asked: &mut Asked, now: u64, hits| {
                let plan = plan([check(limit, counter, Hits::Take(hits))]);
                let answer = asked.apply(&plan, |_| name.clone(), now)[0].expect("a verdict");
                (answer, memory.apply(&plan, Timestamp::from_nanos(now * 1_000))[0].expect("a verdict"))
            };
            for _ in 0..20 {
                now += random.below(4 * SECOND);
                others(&mut asked, now, random.below(2));
                let denied = check(limit, counter, Hits::Take(1));
                let mut call = Call::new(&RequestSummary::default());
                call.push(name.clone().into_bytes(), &denied, false);
                now += random.below(3_000);
                let reply = asked.invoke(&call, now, now);
                let charged = Answered::read(&reply, [&denied]).expect("a reply").counters[0];
                now += random.below(3_000);
                if random.one_in(2) {
                    // Another request only asks. The level drains meanwhile, maybe to nothing.
                    others(&mut asked, now, 0);
                    now += random.below(2 * SECOND);
                    others(&mut asked, now, 0);
                }
                if charged.charged > 0 {
                    let mut back = Call::giving_back(&generation);
                    back.push_give_back(name.clone().into_bytes(), &limit, charged.stamp, charged.charged);
                    asked.give_back(&back, now);
                }
                let (answer, should) = others(&mut asked, now, 0);
                assert_eq!(answer, should, "seed {seed}: {limit:?}");
            }
        }
    }
}

/// Requests of several nodes are denied, and their hits go back in any order, some late. Hits of other requests
/// stay, whatever drained or went back in between. The hits that do not go back for that reason are few, and drain.
#[test]
fn a_bucket_never_gets_back_hits_of_other_requests() {
    use tidegate_redis::script::{Answered, Call, DataId, RequestSummary};
    let server = Server::start(&[]);
    let mut asked = Asked::new(vec![server.connect()]);
    redis::cmd("SET").arg("generation").arg("now").exec(asked.connection()).expect("Redis answers");
    let generation = DataId { key: b"generation".to_vec(), generation: "now".into(), connection: 1 };
    for seed in 0..600 {
        let mut random = Random(seed);
        let algorithm = random.pick(&[Algorithm::TokenBucket, Algorithm::LeakyBucket]);
        let (requests, burst) = (1 + random.below(9) as u32, 1 + random.below(20) as u32);
        let limit = |requests| Limit::new(algorithm, requests, 10 * 1_000_000_000).with_burst(burst.into());
        let (mut limit, changed) = (limit(requests.into()), limit(1 + random.below(30)));
        let memory = store();
        let (name, counter, mut now) = (format!("{algorithm:?}{seed}"), key(seed), TODAY);
        let mut under_way = Vec::new();
        for _ in 0..60 {
            now += random.below(2) * random.below(2 * SECOND);
            match random.below(4) {
                // A request that another slot denies.
                0 | 1 => {
                    let denied = check(limit, counter, Hits::Take(1 + random.below(5)));
                    // One of several ways through the script.
                    let mut call = Call::new(&RequestSummary {
                        quotas: random.below(2) as u32,
                        ..RequestSummary::default()
                    });
                    call.push(name.clone().into_bytes(), &denied, false);
                    let reply = asked.invoke(&call, now, now);
                    let charged = Answered::read(&reply, [&denied]).expect("a reply").counters[0];
                    if charged.charged > 0 {
                        under_way.push((limit, charged));
                    }
                }
                2 if !under_way.is_empty() => {
                    let any = random.below(under_way.len() as u64) as usize;
                    let (limit, charged) = under_way.swap_remove(any);
                    let mut back = Call::giving_back(&generation);
                    back.push_give_back(name.clone().into_bytes(), &limit, charged.stamp, charged.charged);
                    asked.give_back(&back, now);
                }
                // Both are asked before it and after: since it was asked last, a bucket drains by the smaller N.
                2 if random.one_in(8) => {
                    for limit in [limit, changed] {
                        let asks = plan([check(limit, counter, Hits::Take(0))]);
                        asked.apply(&asks, |_| name.clone(), now);
                        memory.apply(&asks, Timestamp::from_nanos(now * 1_000));
                    }
                    limit = changed;
                }
                // Other requests. Memory sees what they were charged, and nothing of what was denied elsewhere.
                _ => {
                    let hits = random.below(4);
                    let plan = plan([check(limit, counter, Hits::Take(hits))]);
                    let answer = asked.apply(&plan, |_| name.clone(), now)[0].expect("a verdict");
                    if !answer.over {
                        let should =
                            memory.apply(&plan, Timestamp::from_nanos(now * 1_000))[0].expect("a verdict");
                        assert!(!should.over, "seed {seed}: {hits} of {limit:?} after {should:?}");
                        assert!(answer.remaining <= should.remaining, "seed {seed}: {answer:?}, {should:?}");
                    }
                }
            }
        }
    }
}

/// A call that the server refuses because of one key did nothing to the others, so it may be repeated.
#[test]
fn a_call_that_is_refused_has_charged_nothing() {
    use tidegate_redis::script::{Call, RequestSummary};
    let server = Server::start(&[]);
    let mut asked = Asked::new(vec![server.connect()]);
    redis::cmd("HSET").arg("theirs").arg("a").arg("b").exec(asked.connection()).expect("Redis answers");
    for algorithm in Algorithm::OF_HITS {
        let limit = Limit::new(algorithm, 10, 60 * 1_000_000_000);
        let question = check(limit, key(1), Hits::Take(0));
        let name = format!("{algorithm:?}");
        // There are hits already, which the unsynced hits may be merged with.
        let taken = plan([check(limit, key(1), Hits::Take(2))]);
        asked.apply(&taken, |_| name.clone(), TODAY);
        let mut call = Call::new(&RequestSummary::default());
        call.push(name.clone().into_bytes(), &question, false);
        call.add_unsynced((0, 3));
        call.push(b"theirs".to_vec(), &check(limit, key(2), Hits::Take(0)), false);
        asked.try_invoke(&call, TODAY + 1_000, TODAY + 1_000).expect_err("no counter stands there");
        let left = asked.apply(&plan([question]), |_| name.clone(), TODAY + 1_000)[0];
        assert_eq!(left.map(|left| left.remaining), Some(8), "{algorithm:?}");
    }
}

/// The short way through the script, the long way, and many calls in one command have the same results, leases
/// included.
#[test]
fn a_counter_that_is_asked_alone_has_the_same_answer() {
    use tidegate_redis::script::{Call, RequestSummary, numbers};
    let server = Server::start(&[]);
    let mut asked = Asked::new(vec![server.connect()]);
    for seed in 0..1_500 {
        let mut random = Random(seed);
        let algorithm = random.pick(&Algorithm::OF_HITS);
        let (limit, window) = limit(&mut random, algorithm);
        let mut now = begin(&mut random, window);
        for _ in 0..1 + random.below(20) {
            now = next_time(&mut random, now, window);
            let mut check = check(limit, key(seed), Hits::Take(next_hits(&mut random, &limit)));
            check.reported = check.hits != Hits::Take(0) && random.one_in(4);
            let leases = algorithm.is_strict() && random.one_in(3);
            let lease = leases.then(|| (2 + random.below(50), 1 + window / 10));
            // A descriptor in quota mode without a limit changes nothing, but the counter is not alone.
            let call = |name: &str, quotas| {
                let mut call = Call::new(&RequestSummary { quotas, ..RequestSummary::default() });
                call.push(format!("{name}:{seed}").into_bytes(), &check, false);
                lease.iter().for_each(|&(hits, micros)| call.lease(hits, micros));
                call
            };
            let alone = asked.invoke(&call("alone", 0), now, now);
            let among_others = asked.invoke(&call("among others", 1), now, now);
            assert_eq!(alone, among_others, "seed {seed} at {now}, {lease:?} of {check:?}");
            let batch = ["batch", "once more"].map(|name| call(name, 0));
            let replies = asked.invoke_each(&batch.each_ref().map(|call| (call, now)), now);
            for reply in replies {
                let redis::Value::BulkString(reply) = reply else { panic!("{reply:?}") };
                assert_eq!(
                    numbers(&reply).as_ref(),
                    Some(&alone),
                    "seed {seed} at {now}, {lease:?} of {check:?}"
                );
            }
        }
    }
}

/// Leases that are asked for together equal those that are asked for one by one, and the counters are the same
/// afterwards, whichever way they were asked before.
#[test]
fn leases_that_are_asked_for_together_are_the_same() {
    use tidegate_redis::script::{Call, RequestSummary};
    let server = Server::start(&[]);
    let mut asked = Asked::new(vec![server.connect()]);
    let mut together = 0;
    for seed in 0..1_000 {
        let mut random = Random(seed);
        let limits: Vec<_> =
            (0..2 + random.below(4)).map(|_| limit(&mut random, Algorithm::SlidingWindow)).collect();
        let window = limits[0].1;
        let mut now = begin(&mut random, window);
        for _ in 0..1 + random.below(12) {
            now = next_time(&mut random, now, window);
            let among_others = RequestSummary { quotas: 1, ..RequestSummary::default() };
            let (counter, way) =
                (random.below(limits.len() as u64), random.pick(&[RequestSummary::default(), among_others]));
            let taken = check(
                limits[counter as usize].0,
                key(counter),
                Hits::Take(next_hits(&mut random, &limits[counter as usize].0)),
            );
            let takes = [("one", way), ("other", among_others)].map(|(name, whole)| {
                let mut call = Call::new(&whole);
                call.push(format!("{name}:{seed}:{counter}").into_bytes(), &taken, false);
                call
            });
            let replies = takes.map(|call| asked.invoke(&call, now, now));
            assert_eq!(replies[0], replies[1], "seed {seed} at {now}: {taken:?}");
            now = next_time(&mut random, now, window);
            let leases: Vec<_> =
                limits.iter().map(|(_, window)| (2 + random.below(50), 1 + window / 10)).collect();
            let [renewals, decisions] =
                [("one", RequestSummary::default()), ("other", among_others)].map(|(name, whole)| {
                    let mut call = Call::new(&whole);
                    for (counter, ((limit, _), &(hits, micros))) in limits.iter().zip(&leases).enumerate() {
                        call.push(
                            format!("{name}:{seed}:{counter}").into_bytes(),
                            &check(*limit, key(counter as u64), Hits::Take(0)),
                            false,
                        );
                        call.lease(hits, micros);
                    }
                    call
                });
            together += u64::from(renewals.only_renews());
            assert!(!decisions.only_renews());
            let replies = [renewals, decisions].map(|call| asked.invoke(&call, now, now));
            assert_eq!(replies[0], replies[1], "seed {seed} at {now}: {leases:?} of {limits:?}");
            for counter in 0..limits.len() {
                let lives = ["one", "other"].map(|name| -> i64 {
                    let key = format!("{name}:{seed}:{counter}");
                    redis::cmd("PEXPIRETIME").arg(key).query(asked.connection()).expect("an answer")
                });
                assert_eq!(lives[0], lives[1], "seed {seed} at {now}: counter {counter} of {limits:?}");
            }
        }
    }
    assert!(together > 1_000, "{together}");
}

/// One of several leases fails: it is none, and the others are taken once.
#[test]
fn leases_that_are_asked_for_together_fail_each_for_itself() {
    use tidegate_redis::script::{Answered, Call, RequestSummary};
    let server = Server::start(&[]);
    let mut asked = Asked::new(vec![server.connect()]);
    redis::cmd("RPUSH").arg("list").arg("x").exec(asked.connection()).unwrap();
    let limit = Limit::new(Algorithm::SlidingWindow, 1_000, 60 * 1_000_000_000);
    let question = check(limit, key(1), Hits::Take(0));
    let mut call = Call::new(&RequestSummary::default());
    for name in ["one", "list", "other"] {
        call.push(name.into(), &question, false);
        call.lease(50, 100_000);
    }
    assert!(call.only_renews());
    let reply = asked.invoke(&call, TODAY, TODAY);
    let answered = Answered::read(&reply, [&question; 3]).expect("a reply to these");
    assert_eq!(answered.leases.iter().map(|lease| lease.hits).collect::<Vec<_>>(), [50, 0, 50]);
    let mut left = |name: &str| {
        let mut call = Call::new(&RequestSummary::default());
        call.push(name.into(), &question, false);
        let reply = asked.invoke(&call, TODAY, TODAY);
        Answered::read(&reply, [&question]).expect("a reply to it").counters[0].verdict.remaining
    };
    assert_eq!([left("one"), left("other")], [950, 950]);
}

/// In one command, a call that fails and a call that comes too late leave the others alone.
#[test]
fn calls_in_one_command_fail_each_for_itself() {
    fail_each_for_itself(&Server::start(&[]));
    fail_each_for_itself(&Server::valkey());
}

fn fail_each_for_itself(server: &Server) {
    use redis::Value;
    use tidegate_redis::script::{Call, RequestSummary, numbers};
    let mut asked = Asked::new(vec![server.connect()]);
    redis::cmd("SET").arg("text").arg("x").exec(asked.connection()).unwrap();
    let limit = Limit::new(Algorithm::SlidingLog, 3, 60 * 1_000_000_000);
    let call = |name: &str| {
        let mut call = Call::new(&RequestSummary::default());
        call.push(name.as_bytes().to_vec(), &check(limit, key(1), Hits::Take(1)), false);
        call
    };
    let [text, log, unasked] = ["text", "log", "unasked"].map(call);
    let calls = [(&log, u64::MAX), (&text, u64::MAX), (&unasked, TODAY - 1), (&log, u64::MAX)];
    let replies = asked.invoke_each(&calls, TODAY);
    let left = |reply: &Value| match reply {
        Value::BulkString(reply) => numbers(reply).unwrap().get(3).copied(),
        _ => None,
    };
    assert_eq!([left(&replies[0]), left(&replies[3])], [Some(2), Some(1)]);
    assert!(matches!(&replies[1], Value::ServerError(error) if error.code() == "WRONGTYPE"), "{replies:?}");
    assert!(matches!(&replies[2], Value::BulkString(late) if late.len() == 8), "only the time");
    let exists: bool = redis::cmd("EXISTS").arg("unasked").query(asked.connection()).unwrap();
    assert!(!exists, "too late");
}
