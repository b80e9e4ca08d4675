//! The cost of a decision: ratios to `governor` and to a bare hash map behind a mutex, in one run.
//!
//! A decision is everything from the string key of one counter to the verdict, hashing included; the time is given.
//! governor has the same string as its key, hashes it with ahash, and is given the time too.
//!
//! `cargo bench --bench decision` takes about a minute; `-- --full` measures sizes, growth and expiry at 10,000,000
//! keys, and 100,000,000 weighted counters (4.4 GB); `-- hot_key` and the like run one part alone.

#![allow(clippy::disallowed_methods, reason = "a benchmark reads real clocks")]

use std::collections::HashMap;
use std::hint::black_box;
use std::num::NonZeroU32;
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::Instant;

use governor::clock::FakeRelativeClock;
use governor::middleware::NoOpMiddleware;
use governor::nanos::Nanos;
use governor::state::keyed::DashMapStateStore;
use governor::{Quota, RateLimiter};
use mimalloc::MiMalloc;
use tidegate_engine::decision::conclude;
use tidegate_engine::key::{KeySecret, KeySeed};
use tidegate_engine::limit::{Algorithm, Limit, Slot};
use tidegate_engine::memory::{MemoryOptions, MemoryStore};
use tidegate_engine::plan::{Check, Hits, Modes, Origin};
use tidegate_engine::request::Request;
use tidegate_engine::rules::Unit;
use tidegate_engine::rules::{LoadOptions, RuleSet, SourceFile, load};
use tidegate_engine::time::{SECOND_NANOS, Timestamp};
use tidegate_engine::unit::Window;

#[path = "decision/budgets.rs"]
mod budgets;
#[path = "decision/kinds.rs"]
mod kinds;
#[path = "decision/tails.rs"]
mod tails;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

const START: Timestamp = Timestamp::from_secs(1_790_000_000);
const KEYS: usize = 1_000_000;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    if let [flag, contender] = &*arguments
        && flag == "--contender"
    {
        return many_keys_of(contender);
    }
    // As in the program.
    rustix::thread::disable_transparent_huge_pages(true)
        .expect("a kernel that has huge pages lets one do without");
    if let [flag, row, keys] = &*arguments
        && flag == "--size"
    {
        let number = |text: &str| text.parse().expect("a number, by this program itself");
        return size_of_counters(number(row), number(keys));
    }
    let full = arguments.iter().any(|argument| argument == "--full");
    let keys = |few: usize| if full { 10_000_000 } else { few };
    let wanted = |name: &str| {
        let mut names = arguments.iter().filter(|argument| !argument.starts_with("--")).peekable();
        names.peek().is_none() || names.any(|wanted| wanted == name)
    };
    let parts: [(&str, &dyn Fn()); 11] = [
        ("hot_key", &hot_key),
        ("many_keys", &many_keys),
        ("whole_request", &whole_request),
        ("kinds", &kinds::kinds),
        ("budgets", &budgets::budgets),
        ("long_log", &tails::long_log),
        ("two_threads", &two_threads),
        ("sizes", &|| sizes(keys(1_000_000))),
        ("hundred_million", &|| {
            if full {
                hundred_million()
            }
        }),
        ("growth", &|| tails::growth(keys(1_000_000))),
        ("expiry", &|| tails::expiry(keys(1_000_000))),
    ];
    parts.iter().filter(|(name, _)| wanted(name)).for_each(|(_, part)| part());
}

/// Tidegate with one limit. A clone shares the counters.
#[derive(Clone)]
struct Ours {
    store: Arc<MemoryStore>,
    seed: KeySeed,
    /// The check, without the key.
    check: Check<'static>,
}

impl Ours {
    fn new(algorithm: Algorithm, max_bytes: u64) -> Self {
        let seed = KeySecret::new([5; 16]).seed([b"bench".as_slice()]);
        let check = Check::new(
            Origin::Override { window: Window::of(Unit::Minute) },
            Limit::new(algorithm, 10_000_000, 60 * SECOND_NANOS),
            seed.key([]),
            Hits::Take(1),
        );
        let store = Arc::new(MemoryStore::new(MemoryOptions::new(max_bytes)));
        Self { store, seed, check }
    }

    fn decide(&mut self, key: &str, now: Timestamp) -> bool {
        self.check.key = self.seed.key([key]);
        !self.store.decide(&self.check, now).over
    }
}

type Governor = RateLimiter<
    String,
    DashMapStateStore<String, ahash::RandomState>,
    FakeRelativeClock,
    NoOpMiddleware<Nanos>,
>;

fn governor() -> Governor {
    let quota = Quota::per_second(NonZeroU32::new(1_000_000_000).expect("not zero"));
    RateLimiter::new(
        quota,
        DashMapStateStore::with_hasher(ahash::RandomState::new()),
        FakeRelativeClock::default(),
    )
}

const GOVERNOR: &str = "governor, ahash";
const BARE: &str = "hash map behind a mutex, ahash";
/// Does nothing: measures the loop itself.
const NOTHING: &str = "(of which the benchmark)";

/// The simplest limiter: a count for each key.
type Bare = Mutex<HashMap<String, u64, ahash::RandomState>>;

fn bare(map: &Bare, key: &String) -> bool {
    let mut map = map.lock().expect("no panic");
    match map.get_mut(key) {
        Some(count) => *count += 1,
        None => drop(map.insert(key.clone(), 1)),
    }
    true
}

/// Processor time of this thread per call, in nanoseconds: the median of many short rounds, so that other work on the
/// machine spoils few of them.
fn nanos(calls: usize, mut call: impl FnMut(usize)) -> f64 {
    const ROUNDS: usize = 200;
    let round = calls / ROUNDS;
    let mut rounds: Vec<f64> = (0..ROUNDS)
        .map(|number| {
            let start = processor_nanos();
            (number * round..(number + 1) * round).for_each(&mut call);
            (processor_nanos() - start) / round as f64
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    rounds[ROUNDS / 2]
}

/// Prints the time of the second of two, compared with the first. They are measured in turn, several times, and each counts
/// with its shortest time: so other work on the machine spoils no ratio. `time` gets which of them to measure, and the turn.
fn print_pair(names: [&str; 2], most: f64, mut time: impl FnMut(usize, usize) -> f64) {
    let mut times = [f64::MAX; 2];
    for turn in 0..5 {
        for (which, shortest) in times.iter_mut().enumerate() {
            *shortest = shortest.min(time(which, turn));
        }
    }
    let ([first, second], [base, time]) = (names, times);
    println!("{first:<46}{base:>9.1} ns");
    println!("{second:<46}{time:>9.1} ns{:>9.2} × (promised: {most} at most)", time / base);
}

/// Processor time of this thread, which excludes other work on the machine.
fn processor_nanos() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

fn row(name: &str, nanos: f64, governor: f64) {
    println!("{name:<46}{nanos:>9.1} ns{:>9.2} × governor", nanos / governor);
}

fn user(number: usize) -> String {
    format!("user-{number:08}")
}

fn hot_key() {
    println!("\none hot key");
    let (key, calls) = (user(1), 300_000);
    let governor = governor();
    let theirs = nanos(calls, |_| _ = black_box(governor.check_key(black_box(&key))));
    row(GOVERNOR, theirs, theirs);
    let map = Bare::default();
    row(BARE, nanos(calls, |_| _ = black_box(bare(&map, black_box(&key)))), theirs);
    for algorithm in Algorithm::OF_HITS {
        let name = algorithm.name();
        let (mut ours, mut now) = (Ours::new(algorithm, 1 << 30), START);
        let decide = |_: usize| {
            now = now.plus(100_000);
            black_box(ours.decide(black_box(&key), now));
        };
        row(name, nanos(if algorithm == Algorithm::SlidingLog { 50_000 } else { calls }, decide), theirs);
    }
    row("concurrency, a slot taken and released", nanos(calls, slot_of_twenty()), theirs);
    let seed = KeySecret::new([5; 16]).seed([b"bench".as_slice()]);
    row("(of which the key)", nanos(calls, |_| _ = black_box(seed.key([black_box(key.as_str())]))), theirs);
}

/// A call that takes the last of twenty slots, and ends.
fn slot_of_twenty() -> impl FnMut(usize) {
    let mut ours = Ours::new(Algorithm::SlidingLog, 1 << 30);
    let limit = Limit::concurrency(20, 3_600 * SECOND_NANOS);
    let mut ask = move |id, hits| {
        ours.check.limit = limit.for_slot(Slot::of(id, id));
        ours.check.hits = hits;
        ours.decide(black_box(&user(1)), START)
    };
    (1..20).for_each(|id| assert!(ask(id << 59, Hits::Take(1))));
    move |call| {
        let id = (call as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        assert!(ask(id, Hits::Take(1)));
        ask(id, Hits::GiveBack(0));
    }
}

/// Runs each contender in a process of its own, so that none inherits another's heap. Takes the best of three runs, in
/// turn, so that other work on the machine spoils none.
fn many_keys() {
    println!("\n{KEYS} keys at random");
    let measured = |name: &str| -> f64 {
        let program = std::env::current_exe().expect("this program has a path");
        let output = std::process::Command::new(program).args(["--contender", name]).output();
        let output = output.expect("this program starts");
        String::from_utf8_lossy(&output.stdout).trim().parse().expect("a contender prints its figure")
    };
    let names: Vec<&str> =
        [GOVERNOR, BARE, NOTHING].into_iter().chain(Algorithm::OF_HITS.map(Algorithm::name)).collect();
    let rounds: Vec<Vec<f64>> = (0..3).map(|_| names.iter().map(|name| measured(name)).collect()).collect();
    let best = |index: usize| rounds.iter().map(|round| round[index]).fold(f64::MAX, f64::min);
    names.iter().enumerate().for_each(|(index, name)| row(name, best(index), best(0)));
}

/// Prints the time of one contender for a decision among many keys.
fn many_keys_of(name: &str) {
    // Not in the order of insertion: in that order a peer would find its keys side by side in memory.
    let mut random = Random(7);
    let (first, again) = (random.order(KEYS), random.order(KEYS));
    let mut key = Text::new();
    let mut measure = |decide: &mut dyn FnMut(&String) -> bool| {
        first.iter().for_each(|&number| _ = decide(key.of(number)));
        nanos(KEYS, |call| _ = black_box(decide(key.of(again[call]))))
    };
    let figure = if let Some(algorithm) = Algorithm::OF_HITS.into_iter().find(|other| other.name() == name) {
        let mut ours = Ours::new(algorithm, 1 << 30);
        measure(&mut |key| ours.decide(key, START))
    } else if name == BARE {
        let map = Bare::default();
        measure(&mut |key| bare(&map, key))
    } else if name == NOTHING {
        measure(&mut |key| black_box(key).is_empty())
    } else {
        let governor = governor();
        measure(&mut |key| governor.check_key(key).is_ok())
    };
    println!("{figure}");
}

/// A user's name, always written to the same place, so that no contender waits for memory to read the key.
struct Text {
    text: String,
    digits: String,
}

impl Text {
    fn new() -> Self {
        Self { text: String::new(), digits: (0..10_000).map(|number| format!("{number:04}")).collect() }
    }

    /// The same name as [`user`] gives.
    fn of(&mut self, number: u32) -> &String {
        let digits = |number: u32| &self.digits[number as usize * 4..][..4];
        self.text.clear();
        self.text.push_str("user-");
        self.text.push_str(digits(number / 10_000));
        self.text.push_str(digits(number % 10_000));
        &self.text
    }
}

/// A request with two descriptors among a thousand rules, from its parts to the answer; and the time of each step.
fn whole_request() {
    println!("\na request of two descriptors: match, plan, apply, conclude");
    let rules = shop_rules();
    let store = MemoryStore::new(MemoryOptions::new(1 << 30));
    let request = || {
        let path = black_box([("route", "route-700"), ("method", "GET")]);
        Request::new(black_box("shop"), 1).descriptor(&black_box([("user", "alice")])).descriptor(&path)
    };
    let (asked, modes) = (request(), Modes::default());
    let plan = rules.plan(&asked, modes);
    let verdicts = store.apply(&plan, START);
    let calls = 200_000;
    let steps = [
        (
            "all of it",
            nanos(calls, |call| {
                let request = request();
                let plan = rules.plan(&request, modes);
                black_box(conclude(&plan, &store.apply(&plan, START.plus(call as u64 * 1_000))));
            }),
        ),
        ("(the request)", nanos(calls, |_| _ = black_box(request()))),
        ("(match and plan)", nanos(calls, |_| _ = black_box(rules.plan(black_box(&asked), modes)))),
        ("(apply)", nanos(calls, |_| _ = black_box(store.apply(black_box(&plan), START.plus(SECOND_NANOS))))),
        ("(conclude)", nanos(calls, |_| _ = black_box(conclude(black_box(&plan), black_box(&verdicts))))),
    ];
    steps.iter().for_each(|(name, nanos)| println!("{name:<46}{nanos:>9.1} ns"));
}

/// One limit per user, and one per method of a thousand routes.
fn shop_rules() -> RuleSet {
    let limit = "rate_limit: {unit: minute, requests_per_unit: 1000000000}";
    let mut text = format!("domain: shop\ndescriptors:\n  - {{key: user, {limit}}}\n");
    for route in 0..1_000 {
        let methods = format!("descriptors: [{{key: method, {limit}}}]");
        text.push_str(&format!("  - {{key: route, value: route-{route}, {methods}}}\n"));
    }
    rules_of(text)
}

fn rules_of(text: String) -> RuleSet {
    let file = SourceFile { name: "rules.yaml".into(), bytes: text.into_bytes(), presumed: false };
    let options = LoadOptions::new(KeySecret::new([7; 16])).strict(true);
    load(&[file], &options).expect("good rules").rules
}

fn two_threads() {
    println!("\ntwo threads, against one");
    let run = |threads: usize, same: bool| {
        let (ours, barrier) = (Ours::new(Algorithm::SlidingWindow, 1 << 30), Barrier::new(threads));
        let calls = 2_000_000;
        let worker = &|number: usize| {
            let keys: Vec<String> =
                (0..64).map(|key| user(if same { 1 } else { number * 1_000 + key })).collect();
            let mut ours = ours.clone();
            barrier.wait();
            let start = Instant::now();
            for call in 0..calls {
                black_box(ours.decide(&keys[call % 64], START.plus(call as u64 * 1_000)));
            }
            start.elapsed()
        };
        let slowest = thread::scope(|scope| {
            let workers: Vec<_> = (0..threads).map(|number| scope.spawn(move || worker(number))).collect();
            workers.into_iter().map(|worker| worker.join().expect("no panic")).max()
        });
        (threads * calls) as f64 / slowest.expect("a thread ran").as_secs_f64() / 1e6
    };
    for (name, same) in [("different keys", false), ("the same key", true)] {
        let ratio = |_| (run(1, same), run(2, same));
        let mut rounds: Vec<(f64, f64)> = (0..3).map(ratio).collect();
        rounds.sort_by(|a, b| (a.1 / a.0).total_cmp(&(b.1 / b.0)));
        let (one, two) = rounds[1];
        println!("{name:<46}{one:>9.1} M/s → {two:.1} M/s = {:.2} ×", two / one);
    }
}

/// Runs each in a process of its own, so that none reuses memory of another.
fn sizes(keys: usize) {
    println!("\nbytes a counter at {keys} keys: what the store says, what is resident");
    let program = std::env::current_exe().expect("this program has a path");
    for row in 0..SIZES.len() {
        let arguments = ["--size".to_owned(), row.to_string(), keys.to_string()];
        // The allocator returns memory that growing tables freed to the system at once, not later.
        let mut child = std::process::Command::new(&program);
        let status = child.args(arguments).env("MIMALLOC_PURGE_DELAY", "0").status();
        assert!(status.expect("this program starts").success(), "the store's figure must be true");
    }
}

/// Counters with this many hits, each hit in a bucket of its own.
const SIZES: [(&str, Algorithm, u64); 8] = [
    ("sliding_log, one hit", Algorithm::SlidingLog, 1),
    ("sliding_log, ten hits", Algorithm::SlidingLog, 10),
    ("sliding_window, one bucket", Algorithm::SlidingWindow, 1),
    ("sliding_window, ten buckets", Algorithm::SlidingWindow, 10),
    ("sliding_window_weighted", Algorithm::SlidingWindowWeighted, 1),
    ("fixed_window", Algorithm::FixedWindow, 1),
    ("token_bucket", Algorithm::TokenBucket, 1),
    ("leaky_bucket", Algorithm::LeakyBucket, 1),
];

fn size_of_counters(row: usize, keys: usize) {
    let (name, algorithm, hits) = SIZES[row];
    let before = resident_bytes();
    let mut ours = Ours::new(algorithm, (2 * keys as u64 * 64).max(1 << 30));
    for hit in 0..hits {
        (0..keys).for_each(|key| _ = ours.decide(&user(key), START.plus(hit * SECOND_NANOS)));
    }
    assert_eq!(ours.store.counters(), keys as u64);
    let [says, resident] =
        [ours.store.bytes(), resident_bytes() - before].map(|bytes| bytes as f64 / keys as f64);
    println!("{name:<46}{says:>9.1} B{resident:>9.1} B  = {:.2} ×", resident / says);
    assert!((resident - says).abs() <= says * 0.1);
}

fn hundred_million() {
    let mut ours = Ours::new(Algorithm::SlidingWindowWeighted, 4_800_000_000);
    let before = resident_bytes();
    (0..100_000_000).for_each(|key| _ = ours.decide(&user(key), START));
    assert_eq!(ours.store.counters(), 100_000_000);
    let gigabytes = |bytes: u64| bytes as f64 / 1e9;
    let resident = gigabytes(resident_bytes() - before);
    println!(
        "100,000,000 weighted counters: {:.2} GB, resident {resident:.2} GB",
        gigabytes(ours.store.bytes())
    );
}

/// Resident bytes of this process; 0 where the system does not show them.
fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
    pages.unwrap_or(0) * 4096
}

/// SplitMix64.
struct Random(u64);

impl Random {
    /// The numbers below `count`, shuffled.
    fn order(&mut self, count: usize) -> Vec<u32> {
        let mut order: Vec<u32> = (0..count as u32).collect();
        (1..count).rev().for_each(|last| order.swap(last, self.below(last as u64 + 1) as usize));
        order
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % bound
    }
}
