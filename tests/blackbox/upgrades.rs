//! An upgrade: what an older program left in files and in Redis holds in this one. `tests/data/older` was written by the program
//! of 09f620d.

use std::fs;

use serde_json::{Value, json};

use crate::admin::{TOKEN, call};
use crate::harness::eventually_true;
use crate::harness::grpc::{OK, question};
use crate::harness::redis::Redis;
use crate::harness::tidegate::{Setup, Tidegate};

const RULES: &str = "
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: day, requests_per_unit: 3}}
  - {key: tenant, limits_from: store, rate_limit: {unit: day, requests_per_unit: 3}}
";
/// How many of six requests pass.
const EXCEPTIONS: [(&str, &str, usize); 5] = [
    ("user", "mallory", 0),
    ("user", "root", 6),
    ("user", "bob", 1),
    ("user", "carol", 3),
    ("user", "ann", 3),
];
const RECORDS: [(&str, &str, usize); 4] =
    [("tenant", "acme", 5), ("tenant", "big", 6), ("tenant", "none", 0), ("tenant", "other", 3)];

const OLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/older");

/// A node that has a copy of the file of exceptions.
fn setup() -> Setup {
    let setup = Setup::new().rules("shop.yaml", RULES).env("ADMIN_TOKEN", TOKEN);
    let exceptions = setup.outside().join("exceptions");
    fs::copy(format!("{OLDER}/exceptions"), &exceptions).expect("it can be copied");
    setup.env("EXCEPTIONS_FILE", &exceptions.display().to_string())
}

fn assert_passes(limiter: &Tidegate, expected: &[(&str, &str, usize)]) {
    let client = limiter.client();
    for &(key, value, passes) in expected {
        let passed = (0..6).filter(|_| client.ask(question("shop", &[&[(key, value)]])).overall_code == OK);
        assert_eq!(passed.count(), passes, "{key}={value}");
    }
}

fn assert_is_reset(limiter: &Tidegate, id: &str) {
    let answer = call(limiter, "GET", "/admin/resets", &Value::Null);
    let reset: Value = serde_json::from_str(&answer.body).expect("one line of JSON");
    let entries = json!([{"key": "user", "value": "reset"}]);
    assert_eq!((&reset["entries"], &reset["id"]), (&entries, &json!(id)));
}

#[test]
fn files_of_an_older_program_are_read() {
    let setup = setup();
    let folder = setup.outside().join("state");
    fs::create_dir(&folder).expect("it can be made");
    for name in ["checkpoint", "counters", "resets"] {
        fs::copy(format!("{OLDER}/state/{name}"), folder.join(name)).expect("it can be copied");
    }
    let records = setup.outside().join("limits").display().to_string();
    let limiter = setup.env("STATE_DIR", &folder.display().to_string()).env("LIMITS_DIR", &records).start();
    // How many of the five still count depends on the day: their windows are a year.
    assert_eq!(limiter.lines_with(" counters, written "), 1);
    assert_is_reset(&limiter, "18ebcc71821c0380");
    assert_passes(&limiter, &EXCEPTIONS);
}

#[test]
fn what_an_older_program_left_in_redis_is_read_and_its_file_of_exceptions_reaches_all_nodes() {
    let redis = Redis::start(&[]);
    for line in fs::read_to_string(format!("{OLDER}/redis.jsonl")).expect("it can be read").lines() {
        let words: Vec<String> = serde_json::from_str(line).expect("the words of a command");
        redis.ask::<redis::Value>(&words.iter().map(String::as_str).collect::<Vec<_>>());
    }
    let of_redis = |setup: Setup| setup.env("REDIS_URL", &redis.url()).env("LIMITS_URL", &redis.url());
    let upgraded = of_redis(setup()).start();
    assert_is_reset(&upgraded, "18ebcc72ac215cd0");
    assert_passes(&upgraded, &RECORDS);
    assert_passes(&upgraded, &EXCEPTIONS);
    let other = Setup::new().rules("shop.yaml", RULES).env("ADMIN_TOKEN", TOKEN);
    let other = of_redis(other).start();
    eventually_true("the exceptions at another node", || other.metric("tidegate_exceptions") == 3.0);
    assert_passes(&other, &EXCEPTIONS[..2]);
}
