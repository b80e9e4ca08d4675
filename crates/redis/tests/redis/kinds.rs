//! Rules of each kind about who asks, by random requests: the counters that they plan are the same in Redis as in memory.

use tidegate_engine::key::KeySecret;
use tidegate_engine::memory::MemoryStore;
use tidegate_engine::plan::{Modes, Step};
use tidegate_engine::request::Request;
use tidegate_engine::rules::{LoadOptions, RuleSet, SourceFile, load};
use tidegate_engine::time::Timestamp;

use crate::asking::store;
use crate::random::Random;
use crate::script::Asked;
use crate::server::Server;

const SECOND: u64 = 1_000_000;
const BEGIN: u64 = 1_790_000_000 * SECOND;

/// The limits of `who` have each algorithm in turn. Not those of classes: `fixed_window` has none.
const RULES: &str = "
domain: edge
descriptors:
  - {key: who, value: {in: [first, 192.0.2.1]}, rate_limit: {LIMIT}}
  - {key: who, value: {cidr: 192.0.2.0/24}, share_threshold: true, rate_limit: {LIMIT}}
  - {key: who, value: {cidr_file: scanners.txt}, prefix: {v4: 32, v6: 56}, rate_limit: {LIMIT}}
  - {key: who, value: {regex: '^/api/v[0-9]+/'}, rate_limit: {LIMIT}}
  - {key: who, prefix: {v4: {32: 1, 24: 2}, v6: {64: 1, 56: 2, 48: 3}, not_an_address: deny}, rate_limit: {LIMIT}}
  - key: team
    rate_limit: {unit: minute, requests_per_unit: 5, algorithm: token_bucket}
    classes: {key: class, shares: {high: 1.0, middle: 0.7, low: 0.4}}
";

const VALUES: [&str; 16] = [
    "first",
    "192.0.2.1",
    "192.0.2.2",
    "[::ffff:192.0.2.3]:443",
    "2001:db8:bad::1",
    "2001:DB8:bad:00ff::1",
    "/api/v1/a",
    "/api/v22/b",
    "2001:db8::1",
    "2001:db8::2%eth0",
    "2001:db8:0:1::1",
    "2001:db8:0:101::1",
    "203.0.113.1",
    "64:ff9b::203.0.113.1",
    "203.0.113.2",
    "no address",
];

/// The rules, which live as long as the tests.
fn rules(limit: &str) -> &'static RuleSet {
    let file =
        |name: &str, text: &str| SourceFile { name: name.to_owned(), bytes: text.into(), presumed: false };
    let files = [
        file("edge.yaml", &RULES.replace("LIMIT", limit)),
        file("scanners.txt", "198.51.100.0/24\n2001:db8:bad::/48\n"),
    ];
    Box::leak(Box::new(load(&files, &LoadOptions::new(KeySecret::new([9; 16]))).expect("good rules").rules))
}

fn request(random: &mut Random) -> Request<'static> {
    let mut request = Request::new("edge", random.below(3) as u32);
    for _ in 0..1 + random.below(3) {
        request = match random.pick(&["", "", "high", "middle", "low", "other"]) {
            "" => request.descriptor(&[("who", random.pick(&VALUES))]),
            class => request.descriptor(&[("team", "a"), ("class", class)]),
        };
    }
    request
}

fn run(memory: &MemoryStore, asked: &mut Asked, limit: &str) -> (usize, usize) {
    let rules = rules(limit);
    let (mut random, mut now) = (Random(7), BEGIN);
    let (mut several, mut denied) = (0, 0);
    for _ in 0..600 {
        now += random.below(4 * SECOND);
        let plan = rules.plan(&request(&mut random), Modes::default());
        assert!(
            plan.steps.iter().all(|step| matches!(step, Step::Check(_))),
            "each is of some kind: {plan:?}"
        );
        let keys: Vec<_> = plan.checks().map(|(_, check)| check.key).collect();
        let redis = asked.apply(&plan, |place| format!("{:x}", keys[place].0), now);
        assert_eq!(
            redis,
            memory.apply(&plan, Timestamp::from_nanos(now * 1_000)),
            "{limit} at {now}: {plan:?}"
        );
        several += usize::from(!plan.further.is_empty());
        denied += usize::from(redis.iter().flatten().any(|verdict| verdict.over));
    }
    (several, denied)
}

#[test]
fn each_kind_is_the_same_in_redis() {
    let server = Server::start(&[]);
    let (memory, mut asked) = (store(), Asked::new(vec![server.connect()]));
    for algorithm in [
        "sliding_log",
        "sliding_window",
        "sliding_window_weighted",
        "fixed_window",
        "token_bucket",
        "leaky_bucket",
    ] {
        let limit = format!("unit: minute, requests_per_unit: 3, algorithm: {algorithm}");
        let (several, denied) = run(&memory, &mut asked, &limit);
        assert!(
            several > 100 && (100..550).contains(&denied),
            "{algorithm}: {several} several, {denied} denied"
        );
    }
}
