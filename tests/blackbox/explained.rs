//! What an explanation says of a request is what the server then decides: random rules and requests, counters in memory
//! and in Redis. And what an explanation draws is the same in both.
//!
//! Each set of rules is a domain of one server. Windows are years, so nothing leaves one meanwhile.

use std::fmt::Write as _;
use std::time::Instant;

use serde_json::{Value, json};

use crate::envoy_descriptors::Random;
use crate::harness::grpc::{Client, DescriptorStatus, OVER_LIMIT, RateLimitRequest, question};
use crate::harness::http::Client as Http;
use crate::harness::redis::Redis;
use crate::harness::tidegate::{Setup, Tidegate};

const ALGORITHMS: [&str; 6] = [
    "sliding_log",
    "sliding_window",
    "sliding_window_weighted",
    "fixed_window",
    "token_bucket",
    "leaky_bucket",
];
const REQUESTS: u64 = 8;

/// Nodes at one level: every key with some of its values.
fn nodes(random: &mut Random, depth: usize, text: &mut String) {
    let pad = "  ".repeat(depth);
    for key in ["a", "b", "c"] {
        for value in ["", "v", "w", "v*", "*w"] {
            if random.one_in(3) {
                continue;
            }
            let _ = writeln!(text, "{pad}- key: {key}");
            if !value.is_empty() {
                let _ = writeln!(text, "{pad}  value: '{value}'");
            }
            if !random.one_in(6) {
                let _ = writeln!(text, "{pad}  rate_limit: {{{}}}", limit(random));
            }
            for mode in ["shadow_mode", "quota_mode"].into_iter().filter(|_| random.one_in(6)) {
                let _ = writeln!(text, "{pad}  {mode}: true");
            }
            if depth < 2 && random.one_in(4) {
                let _ = writeln!(text, "{pad}  descriptors:");
                nodes(random, depth + 1, text);
            }
        }
    }
}

fn limit(random: &mut Random) -> String {
    let mut says = match random.one_in(12) {
        true => "unlimited: true".to_owned(),
        false => {
            let algorithm = ALGORITHMS[random.below(6) as usize];
            format!("unit: year, requests_per_unit: {}, algorithm: {algorithm}", random.below(6))
        }
    };
    let name = random.below(6);
    if random.one_in(2) {
        let _ = write!(says, ", name: n{name}");
    }
    if random.one_in(5) {
        let _ = write!(says, ", replaces: [{{name: n{}}}]", (name + 1 + random.below(5)) % 6);
    }
    says
}

/// A request with descriptors of which no two are the same, so no two have one counter.
fn request(random: &mut Random, domain: &str) -> RateLimitRequest {
    let mut descriptors: Vec<Vec<(&str, &str)>> = Vec::new();
    for _ in 0..1 + random.below(3) {
        let mut entry =
            || (["a", "b", "c"][random.below(3) as usize], ["v", "w", "vw", "x"][random.below(4) as usize]);
        let mut descriptor = vec![entry()];
        if entry().0 == "a" {
            descriptor.push(entry());
        }
        if !descriptors.contains(&descriptor) {
            descriptors.push(descriptor);
        }
    }
    let slices: Vec<_> = descriptors.iter().map(Vec::as_slice).collect();
    let mut request = question(domain, &slices);
    request.hits_addend = random.below(4) as u32;
    for descriptor in &mut request.descriptors {
        descriptor.hits_addend = random.one_in(4).then(|| random.below(5));
    }
    request
}

/// The explanation of a request, by the page `/ask`.
fn explained(limiter: &Tidegate, request: &RateLimitRequest) -> Value {
    let descriptor = |it: &crate::harness::grpc::Descriptor| {
        let entries = it.entries.iter().map(|entry| json!({"key": entry.key, "value": entry.value}));
        let mut shown = json!({"entries": entries.collect::<Vec<_>>()});
        it.hits_addend.into_iter().for_each(|hits| shown["hitsAddend"] = hits.into());
        shown
    };
    let descriptors: Vec<_> = request.descriptors.iter().map(descriptor).collect();
    let body =
        json!({"domain": request.domain, "hitsAddend": request.hits_addend, "descriptors": descriptors});
    let mut client = Http::new(limiter.ports().debug);
    let headers = [("host", "limiter")];
    let answer = client.send("POST", "/ask?format=json", &headers, &body.to_string()).expect("an answer");
    assert_eq!(answer.status, 200, "{answer:?}");
    serde_json::from_str(&answer.body).expect("JSON")
}

/// Asks for an explanation and then for a decision, and compares them. How many descriptors had a counter.
fn agrees(limiter: &Tidegate, client: &Client, request: &RateLimitRequest) -> usize {
    let began = Instant::now();
    let shown = explained(limiter, request);
    let answer = client.ask(request.clone());
    let seconds = began.elapsed().as_secs() + 1;
    let what = format!("{request:?}\n{shown:#}\n{answer:?}");
    let code = |code: i32| if code == OVER_LIMIT { "OVER_LIMIT" } else { "OK" };
    assert_eq!(shown["code"], code(answer.overall_code), "{what}");
    assert_eq!(answer.statuses.len(), request.descriptors.len(), "{what}");
    let mut counters = 0;
    for (shown, status) in shown["descriptors"].as_array().expect("a list").iter().zip(&answer.statuses) {
        assert_eq!(shown["code"], code(status.code), "{what}");
        if !shown["counter"].is_null() {
            one_agrees(shown, status, seconds, &what);
            counters += 1;
        }
    }
    let denied_by: Vec<_> =
        shown["denied_by"].as_array().expect("a list").iter().filter_map(Value::as_u64).collect();
    assert_eq!(denied_by, denying(&shown, &answer.statuses, answer.overall_code), "{what}");
    counters
}

/// The limit, what remains, and the wait of one descriptor.
fn one_agrees(shown: &Value, status: &DescriptorStatus, seconds: u64, what: &str) {
    let limit = status.current_limit.as_ref().expect("a counter has a limit");
    assert_eq!(shown["limit"]["requests_per_unit"], limit.requests_per_unit, "{what}");
    assert_eq!(shown["rule"]["name"], limit.name.as_str(), "{what}");
    let number = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("{value} is no number: {what}"));
    let charged = number(&shown["settled"]["charged"]);
    let left = number(&shown["counter"]["remaining"]).saturating_sub(charged);
    assert_eq!(u64::from(status.limit_remaining), left, "{what}");
    // Hits that are charged although they do not fit (reported costs) prolong the wait.
    if status.code == OVER_LIMIT && charged == 0 {
        let shown = number(&shown["counter"]["capacity_in_seconds"]).max(1);
        let wait = status.duration_until_reset.as_ref().map_or(0, |wait| wait.seconds.unsigned_abs());
        assert!(wait <= shown && shown - wait <= seconds, "{wait} s: {what}");
    }
}

/// The descriptors that deny a request, as its answer shows them: those that are over and in no quota mode, or if there
/// are none, those in quota mode.
fn denying(shown: &Value, statuses: &[DescriptorStatus], overall: i32) -> Vec<u64> {
    if overall != OVER_LIMIT {
        return Vec::new();
    }
    let over = |quota: bool| {
        let is_one = move |&at: &usize| {
            statuses[at].code == OVER_LIMIT && shown["descriptors"][at]["limit"]["quota_mode"] == quota
        };
        (0..statuses.len()).filter(is_one).map(|at| at as u64).collect::<Vec<_>>()
    };
    let alone = over(false);
    if alone.is_empty() { over(true) } else { alone }
}

fn all_agree(setup: Setup, sets: u64) {
    let mut random = Random(sets);
    let mut setup = setup;
    for set in 0..sets {
        let mut text = format!("domain: d{set}\ndescriptors:\n- {{key: z}}\n");
        nodes(&mut random, 0, &mut text);
        setup = setup.rules(&format!("d{set}.yaml"), &text);
    }
    let limiter = setup.start();
    let client = limiter.client();
    let mut counters = 0;
    for set in 0..sets {
        for _ in 0..REQUESTS {
            counters += agrees(&limiter, &client, &request(&mut random, &format!("d{set}")));
        }
    }
    assert!(counters as u64 > sets * REQUESTS / 2, "{counters} counters");
}

#[test]
fn what_is_explained_is_then_decided() {
    all_agree(Setup::new(), 100);
}

#[test]
fn what_is_explained_of_counters_in_redis_is_then_decided() {
    let redis = Redis::start(&[]);
    all_agree(Setup::new().env("REDIS_URL", &redis.url()).env("REDIS_TIMEOUT", "10s"), 10);
}

/// Small limits are drawn from as many questions as they have hits; large ones from fewer.
#[test]
fn a_counter_in_redis_is_drawn_as_one_in_memory() {
    let mut rules = "domain: d\ndescriptors:\n".to_owned();
    for algorithm in ALGORITHMS {
        for requests in [10, 5_000] {
            let limit = format!("unit: year, requests_per_unit: {requests}, algorithm: {algorithm}");
            let _ = writeln!(rules, "- {{key: {algorithm}{requests}, rate_limit: {{{limit}}}}}");
        }
    }
    let redis = Redis::start(&[]);
    let shared =
        Setup::new().rules("d.yaml", &rules).env("REDIS_URL", &redis.url()).env("REDIS_TIMEOUT", "10s");
    let limiters = [Setup::new().rules("d.yaml", &rules).start(), shared.start()];
    for algorithm in ALGORITHMS {
        for (requests, hits) in [(10, 1), (10, 7), (10, 10), (5_000, 1), (5_000, 3_000)] {
            let key = format!("{algorithm}{requests}");
            let mut request = question("d", &[&[(&key, &format!("{hits}"))]]);
            request.hits_addend = hits;
            let [memory, redis] = limiters.each_ref().map(|limiter| {
                limiter.client().ask(request.clone());
                explained(limiter, &request)["descriptors"][0]["counter"].clone()
            });
            let drawn = |counter: &Value| -> Vec<u64> {
                let slices = counter["leaving"]["hits"].as_array().cloned().unwrap_or_default();
                slices.iter().filter_map(Value::as_u64).collect()
            };
            let (memory, redis, what) =
                (drawn(&memory), drawn(&redis), format!("{key}\n{memory:#}\n{redis:#}"));
            let is_drawn = ["sliding_log", "sliding_window"].contains(&algorithm);
            assert_eq!(!memory.is_empty(), is_drawn, "{what}");
            let all = if is_drawn { u64::from(hits) } else { 0 };
            assert_eq!((memory.iter().sum::<u64>(), redis.iter().sum::<u64>()), (all, all), "{what}");
            if requests == 10 {
                assert_eq!(redis, memory, "{what}");
            }
        }
    }
}
