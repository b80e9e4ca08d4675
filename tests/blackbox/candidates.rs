//! A limit on trial: it is counted and reported, and no answer depends on it; in memory, in Redis and in a Cluster.

use crate::harness::grpc::{OK, OVER_LIMIT, ask_only, question};
use crate::harness::redis::{Redis, cluster};
use crate::harness::tidegate::{Setup, Tidegate};

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 10, sync: leased, candidate: {requests_per_unit: 4}}
  - key: path
    rate_limit: {unit: day, requests_per_unit: 8, candidate: {requests_per_unit: 20}}
";

fn setup() -> Setup {
    Setup::new().rules("shop.yaml", RULES)
}

/// Asks twelve times about a user and a path. The path's limit of 8 is the tightest.
fn ask(node: &Tidegate) {
    let client = node.client();
    let both: &[&[(&str, &str)]] = &[&[("user", "alice")], &[("path", "/cart")]];
    for asked in 0..12 {
        let expected = if asked < 8 { OK } else { OVER_LIMIT };
        assert_eq!(client.ask(question("shop", both)).overall_code, expected, "request {asked}");
    }
    let left = client.ask(ask_only("shop", both)).statuses;
    assert_eq!(left.iter().map(|status| status.limit_remaining).collect::<Vec<_>>(), [2, 0]);
}

/// What the scrape says of a rule: hits by (limit, candidate).
fn counted(node: &Tidegate, key: &str) -> Vec<(&'static str, &'static str, f64)> {
    let scrape = node.scrape();
    let words = ["within", "over"];
    let pairs = words.iter().flat_map(|limit| words.iter().map(move |candidate| (*limit, *candidate)));
    let count = |(limit, candidate)| {
        let labels = [("key1", key), ("limit", limit), ("candidate", candidate)];
        (limit, candidate, scrape.sum("tidegate_candidate_hits_total", &labels))
    };
    pairs.map(count).filter(|(.., hits)| *hits > 0.0).collect()
}

fn says_what_it_would_have_done(node: &Tidegate) {
    ask(node);
    // With the user's candidate, four requests would have passed: the others are over, and so not charged.
    assert_eq!(counted(node, "user"), [("within", "within", 4.0), ("within", "over", 8.0)]);
    // With the path's candidate all would have passed. The user's limit has room: it was not charged for what was denied.
    assert_eq!(counted(node, "path"), [("within", "within", 8.0), ("over", "within", 4.0)]);
}

#[test]
fn a_candidate_in_memory_is_counted_and_denies_nothing() {
    says_what_it_would_have_done(&setup().start());
}

#[test]
fn a_candidate_in_redis_has_a_key_beside_that_of_its_limit() {
    let redis = Redis::start(&[]);
    let node = setup().env("REDIS_URL", &redis.url()).env("REDIS_TIMEOUT", "10s").start();
    says_what_it_would_have_done(&node);
    let mut keys = redis.ask::<Vec<String>>(&["KEYS", "shop|*"]);
    keys.sort();
    assert_eq!(keys.len(), 2, "{keys:?}");
    for key in keys {
        let candidate = format!("{{{key}}}");
        assert!(redis.ask::<i64>(&["PTTL", &candidate]) > 0, "{candidate} is not there, or lives for ever");
    }
}

/// Counters in different slots, each with its candidate in the same slot.
#[test]
fn a_candidate_in_a_cluster_is_asked_with_its_limit() {
    let servers = cluster();
    let setup = setup().env("REDIS_URL", &servers[0].url()).env("REDIS_TYPE", "cluster");
    let node = setup.env("REDIS_TIMEOUT", "10s").start();
    let client = node.client();
    for value in ["a", "b", "c", "d", "e", "f"] {
        let passed = |key| {
            let asked = || client.ask(question("shop", &[&[(key, value)]])).overall_code;
            (0..12).filter(|_| asked() == OK).count()
        };
        assert_eq!((passed("user"), passed("path")), (10, 8), "{value}");
    }
    assert_eq!(
        counted(&node, "user"),
        [("within", "within", 24.0), ("within", "over", 36.0), ("over", "over", 12.0)]
    );
    assert_eq!(counted(&node, "path"), [("within", "within", 48.0), ("over", "within", 24.0)]);
}
