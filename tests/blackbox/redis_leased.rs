//! Leases between real nodes and a real Redis: limits stay strict, most decisions need no round trip, and what is not
//! spent goes back.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::harness::admissions::Admissions;
use crate::harness::grpc::{Client, OK, ask_only, question};
use crate::harness::redis::{Redis, cluster};
use crate::harness::tidegate::{Setup, Tidegate};
use crate::harness::{StopOnDrop, eventually_true, whole_machine};

const RULES: &str = "
domain: shop
descriptors:
  - {key: second, rate_limit: {unit: second, requests_per_unit: 400}}
  - {key: log, rate_limit: {unit: second, requests_per_unit: 400, algorithm: sliding_log}}
  - {key: day, rate_limit: {unit: day, requests_per_unit: 10000}}
  - {key: asked, rate_limit: {unit: day, requests_per_unit: 10000, sync: strict}}
  - {key: all, rate_limit: {unit: day, requests_per_unit: 300}}
  - {key: one, rate_limit: {unit: day, requests_per_unit: 1}}
";
const WINDOW_MICROS: u64 = 1_000_000;
const N: usize = 400;
/// Hits of a hot counter: few enough to stay within its limit, and far more than are asked before leases have grown.
const HOT: u32 = 3_000;

fn setup(url: &str) -> Setup {
    // A busy machine is not what is tested.
    Setup::new()
        .rules("shop.yaml", RULES)
        .env("REDIS_URL", url)
        .env("REDIS_TIMEOUT", "10s")
        .env("REDIS_SYNC", "leased")
}

fn remaining(client: &Client, key: &str) -> u32 {
    client.ask(ask_only("shop", &[&[(key, "x")]])).statuses[0].limit_remaining
}

/// Asks in bursts until it has to stop.
fn ask_on(client: &Client, key: &str, stop: &AtomicBool, began: Instant) -> Admissions {
    let (mut admitted, micros) = (Admissions::default(), || began.elapsed().as_micros() as u64);
    for call in 0_u32.. {
        if stop.load(Relaxed) {
            break;
        }
        let asked = micros();
        // The node may just have been killed.
        if client.call(question("shop", &[&[(key, "x")]])).is_ok_and(|answer| answer.overall_code == OK) {
            admitted.push(asked, micros());
        }
        if call % 150 == 149 {
            std::thread::sleep(Duration::from_millis(120));
        }
    }
    admitted
}

fn certainly_strict(key: &str) {
    let _machine = whole_machine();
    let redis = Redis::start(&[]);
    let nodes = [setup(&redis.url()).start(), setup(&redis.url()).start()];
    let (dying, stop, began) = (setup(&redis.url()).start(), AtomicBool::new(false), Instant::now());
    let all = std::thread::scope(|scope| {
        let _stop = StopOnDrop(&stop);
        let ask = |node: &Tidegate| {
            let client = node.client();
            let stop = &stop;
            scope.spawn(move || ask_on(&client, key, stop, began))
        };
        let asking: Vec<_> = nodes.iter().chain([&dying]).flat_map(|node| [ask(node), ask(node)]).collect();
        std::thread::sleep(Duration::from_millis(1_500));
        // Its leases are never given back: that costs capacity for a while, and admits nothing more.
        let mut dying = dying;
        dying.kill();
        std::thread::sleep(Duration::from_millis(1_500));
        stop.store(true, Relaxed);
        let mut all = Admissions::default();
        asking.into_iter().for_each(|thread| all.append(thread.join().expect("no panic")));
        all
    });
    let most = all.most_in_a_window(WINDOW_MICROS);
    assert!(most <= N, "{most} of {key} in a window, of {} in all", all.len());
    assert!(most > N / 2 && all.len() > N, "the limit must be reached: {most} of {}", all.len());
    let spent: f64 = nodes.iter().map(|node| node.metric("tidegate_redis_lease_hits_spent_total")).sum();
    assert!(spent > 0.0, "something must be leased");
}

#[test]
fn no_window_holds_more_than_the_limit_of_buckets() {
    certainly_strict("second");
}

#[test]
fn no_window_holds_more_than_the_limit_of_a_log() {
    certainly_strict("log");
}

#[test]
fn a_hot_counter_needs_few_round_trips_and_gives_back_what_it_does_not_spend() {
    let redis = Redis::start(&[]);
    let node = setup(&redis.url()).env("REDIS_LEASE_TIME", "2s").start();
    let another = setup(&redis.url()).start();
    let (client, other) = (node.client(), another.client());
    // Leases grow with the rate that a node has seen, so the first hits need round trips, how many is up to the machine. Of
    // many hits they are few.
    assert!((0..HOT).all(|_| client.ask(question("shop", &[&[("day", "x")]])).overall_code == OK));
    let scrape = node.scrape();
    let value = |name: &str| scrape.sum(name, &[]);
    let round_trips = value("tidegate_redis_round_trips_total");
    assert!(round_trips < f64::from(HOT) / 6.0, "{round_trips} round trips for {HOT} hits");
    assert!(value("tidegate_redis_lease_hits_spent_total") > f64::from(HOT) * 5.0 / 6.0);
    // The last lease may just be spent: then the next hit takes another one.
    let mut left = 10_000 - HOT;
    eventually_true("leases to count from when they are taken", || {
        let is_leased = remaining(&other, "day") < left;
        if !is_leased {
            assert_eq!(client.ask(question("shop", &[&[("day", "x")]])).overall_code, OK);
            left -= 1;
        }
        is_leased
    });
    eventually_true("what was not spent to be given back", || remaining(&other, "day") == left);
    let scrape = node.scrape();
    let value = |name: &str| scrape.sum(name, &[]);
    assert_eq!(
        value("tidegate_redis_lease_hits_taken_total"),
        value("tidegate_redis_lease_hits_spent_total") + value("tidegate_redis_lease_hits_given_back_total")
    );
    for key in redis.ask::<Vec<String>>(&["KEYS", "*"]) {
        assert!(redis.ask::<i64>(&["PTTL", &key]) > 0, "{key} lives for ever");
    }
}

#[test]
fn leases_that_come_due_together_are_asked_for_together() {
    let redis = Redis::start(&[]);
    // As long as many rounds through all values take on a busy machine: a value that is asked less often than a lease ends
    // needs a round trip of its own.
    let node = setup(&redis.url()).env("REDIS_LEASE_TIME", "2s").start();
    let client = node.client();
    let values: Vec<String> = (0..40).map(|value| format!("value-{value}")).collect();
    let so_far = || {
        let scrape = node.scrape();
        ["tidegate_redis_leases_total", "tidegate_redis_round_trips_total"].map(|name| scrape.sum(name, &[]))
    };
    // Once the node knows how often they are asked, and nothing keeps it from asking in time.
    eventually_true("leases to need fewer round trips than there are", || {
        let (before, began) = (so_far(), Instant::now());
        while began.elapsed() < Duration::from_millis(2500) {
            let all = values
                .iter()
                .all(|value| client.ask(question("shop", &[&[("day", value)]])).overall_code == OK);
            assert!(all);
        }
        let after = so_far();
        let [leases, round_trips] = [0, 1].map(|at| after[at] - before[at]);
        leases >= 40.0 && round_trips * 2.0 < leases
    });
}

#[test]
fn what_one_node_does_not_spend_another_one_may() {
    let redis = Redis::start(&[]);
    let [idle, busy] = [(); 2].map(|()| setup(&redis.url()).env("REDIS_LEASE_TIME", "200ms").start());
    let (idle, busy) = (idle.client(), busy.client());
    let passed = |client: &Client, calls: usize| {
        (0..calls).filter(|_| client.ask(question("shop", &[&[("all", "x")]])).overall_code == OK).count()
    };
    let mut all = passed(&idle, 20) + passed(&busy, 280);
    eventually_true("every hit to be admitted", || {
        all += passed(&busy, 1);
        all == 300
    });
    assert_eq!(passed(&idle, 20) + passed(&busy, 20), 0);
    assert_eq!(remaining(&idle, "all"), 0);
}

#[test]
fn a_rule_that_wants_every_decision_asked_is_not_leased() {
    let redis = Redis::start(&[]);
    let node = setup(&redis.url()).start();
    let client = node.client();
    assert!((0..50).all(|_| client.ask(question("shop", &[&[("asked", "x")]])).overall_code == OK));
    assert_eq!(node.metric("tidegate_redis_leases_total"), 0.0);
    assert_eq!(remaining(&client, "asked"), 9_950);
}

#[test]
fn a_request_that_another_slot_denies_spends_nothing_of_a_lease() {
    let servers = cluster();
    let node = setup(&servers[0].url()).env("REDIS_TYPE", "cluster").env("REDIS_LEASE_TIME", "2s").start();
    let client = node.client();
    assert!((0..100).all(|_| client.ask(question("shop", &[&[("day", "x")]])).overall_code == OK));
    let both = question("shop", &[&[("day", "x")], &[("one", "x")]]);
    let passed = (0..100).filter(|_| client.ask(both.clone()).overall_code == OK).count();
    assert_eq!(passed, 1);
    let other = setup(&servers[0].url()).env("REDIS_TYPE", "cluster").start();
    let other = other.client();
    eventually_true("all that was not spent to be given back", || remaining(&other, "day") == 9_899);
    assert_eq!(remaining(&client, "one"), 0);
}

#[test]
fn a_reload_that_lowers_a_limit_ends_its_leases() {
    let redis = Redis::start(&[]);
    let node = setup(&redis.url()).env("REDIS_LEASE_TIME", "10s").start();
    let client = node.client();
    assert!((0..100).all(|_| client.ask(question("shop", &[&[("day", "x")]])).overall_code == OK));
    assert!(node.metric("tidegate_redis_lease_hits_spent_total") > 0.0);
    node.setup.write("shop.yaml", &RULES.replace("10000", "50"));
    eventually_true("the new limit to hold", || {
        client.ask(question("shop", &[&[("day", "x")]])).overall_code != OK
    });
    assert_eq!(remaining(&client, "day"), 0);
}
