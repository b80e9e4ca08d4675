//! Classes of importance between real nodes and a real Redis, by leases, without, and while Redis is away: no class takes
//! the sum beyond its share, and answers name the full limit.

use std::time::Duration;

use crate::harness::eventually_true;
use crate::harness::grpc::{Client, OK, OVER_LIMIT, ask_only, question};
use crate::harness::redis::Redis;
use crate::harness::tidegate::{Setup, Tidegate};

const CLASSES: &str = "{key: priority, shares: {critical: 1.0, standard: 0.85, batch: 0.6}}";
const N: usize = 1_000;

fn setup() -> Setup {
    let rules = format!(
        "
domain: shop
descriptors:
  - {{key: user, rate_limit: {{unit: day, requests_per_unit: {N}}}, classes: {CLASSES}}}
"
    );
    Setup::new().rules("shop.yaml", &rules)
}

fn passes(client: &Client, class: &str) -> bool {
    client.ask(question("shop", &[&[("user", "alice"), ("priority", class)]])).overall_code == OK
}

/// Clients at all nodes ask for all classes at once, each until it is denied so often. Returns what each class took.
fn ask_all(nodes: &[Tidegate]) -> [usize; 3] {
    let classes = ["batch", "standard", "critical"];
    let took = |node: &Tidegate, class: &'static str| {
        let client = node.client();
        let (mut admitted, mut denied) = (0, 0);
        while denied < 20 {
            if passes(&client, class) {
                admitted += 1;
            } else {
                denied += 1;
                // Leases of other nodes end, and what they did not spend comes back.
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        admitted
    };
    std::thread::scope(|scope| {
        let asking = classes.map(|class| {
            let of_class = nodes.iter().map(|node| scope.spawn(move || took(node, class)));
            of_class.collect::<Vec<_>>()
        });
        asking.map(|of_class| of_class.into_iter().map(|thread| thread.join().expect("no panic")).sum())
    })
}

fn shares_hold(redis: &Redis, sync: &str) -> Vec<Tidegate> {
    let setup = || {
        let setup = setup().env("REDIS_URL", &redis.url()).env("REDIS_TIMEOUT", "10s");
        setup.env("REDIS_SYNC", sync).env("LOCAL_CACHE_SIZE_IN_BYTES", "1000000")
    };
    let nodes = [setup().start(), setup().start(), setup().start()];
    let [batch, standard, critical] = ask_all(&nodes);
    let all = format!("{batch} batch, {standard} standard, {critical} critical");
    assert!(
        batch <= N * 6 / 10 && batch + standard <= N * 85 / 100 && batch + standard + critical <= N,
        "{all}"
    );
    assert!(batch > 0 && standard > 0 && critical > N / 10, "every class has a part: {all}");
    // What is left belongs to the highest class alone.
    let client = nodes[0].client();
    assert!(!passes(&client, "batch") && !passes(&client, "standard"), "{all}");
    let mut used = batch + standard + critical;
    eventually_true("all of the limit to be used", || {
        used += usize::from(passes(&client, "critical"));
        used == N
    });
    assert!((0..50).all(|_| !passes(&client, "critical")), "{all}");
    nodes.into()
}

#[test]
fn no_class_takes_the_sum_beyond_its_share_over_three_nodes() {
    shares_hold(&Redis::start(&[]), "strict");
}

#[test]
fn no_class_takes_the_sum_beyond_its_share_by_leases_of_three_nodes() {
    let nodes = shares_hold(&Redis::start(&[]), "leased");
    let spent: f64 = nodes.iter().map(|node| node.metric("tidegate_redis_lease_hits_spent_total")).sum();
    assert!(spent > 0.0, "something must be leased");
}

/// A denial that a node keeps is one of a class.
#[test]
fn a_kept_denial_of_a_class_denies_no_other() {
    let redis = Redis::start(&[]);
    let node = setup().env("REDIS_URL", &redis.url()).env("LOCAL_CACHE_SIZE_IN_BYTES", "1000000").start();
    let client = node.client();
    let status = |class: Option<&str>, hits: u32| {
        let mut entries = vec![("user", "alice")];
        entries.extend(class.map(|class| ("priority", class)));
        let mut asked = question("shop", &[&entries]);
        asked.hits_addend = hits;
        let status = client.ask(asked).statuses.remove(0);
        let limit = status.current_limit.expect("a limit");
        (status.code, limit.requests_per_unit, status.limit_remaining)
    };
    let n = N as u32;
    assert_eq!(status(Some("batch"), n * 6 / 10), (OK, n, 0));
    let denied = |class| status(class, 1) == (OVER_LIMIT, n, 0);
    assert!(denied(Some("batch")) && denied(None) && denied(Some("no class of this limit")));
    let kept = || node.scrape().sum("ratelimit_service_rate_limit_over_limit_with_local_cache", &[]);
    let before = kept();
    assert!(denied(Some("batch")) && kept() > before, "the node keeps it");
    assert_eq!(status(Some("standard"), n / 4), (OK, n, 0));
    assert!(denied(Some("standard")) && denied(Some("standard")) && denied(Some("batch")));
    assert_eq!(status(Some("critical"), 1), (OK, n, n * 15 / 100 - 1));
    let looked = client.ask(ask_only("shop", &[&[("user", "alice")]])).statuses.remove(0);
    assert_eq!((looked.code, looked.limit_remaining), (OVER_LIMIT, 0));
}

/// The classes of a node that decides alone share its part of the limit. When Redis is back, what they took counts for all.
#[test]
fn shares_hold_while_redis_is_away_and_after_it() {
    let redis = Redis::start(&[]);
    let setup = || {
        let setup = setup().env("REDIS_URL", &redis.url()).env("REDIS_TIMEOUT", "1s");
        setup.env("REDIS_FAILURE_MODE", "local").env("REDIS_LOCAL_SHARE", "0.5")
    };
    let (node, other) = (setup().start(), setup().start());
    let (client, another) = (node.client(), other.client());
    let took = |client: &Client, class| (0..N).filter(|_| passes(client, class)).count();
    redis.stop();
    // What is asked before that may be charged twice: nobody knows whether Redis has counted it.
    let look = ask_only("shop", &[&[("user", "alice")]]);
    eventually_true("the breaker to open", || {
        client.call(look.clone()).is_ok() && node.metric("tidegate_redis_breaker_open") == 1.0
    });
    let alone = ["batch", "standard", "critical"].map(|class| took(&client, class));
    assert_eq!(alone, [N / 2 * 6 / 10, N / 2 * 25 / 100, N / 2 * 15 / 100]);
    redis.wake();
    // As long as the other node decides alone, 300 are left there.
    let left = || another.ask(ask_only("shop", &[&[("user", "alice"), ("priority", "batch")]])).statuses;
    eventually_true("all of it to be charged", || left()[0].limit_remaining as usize == N * 6 / 10 - N / 2);
    let together = ["batch", "standard", "critical"].map(|class| took(&another, class));
    assert_eq!(together, [N * 6 / 10 - N / 2, N * 25 / 100, N * 15 / 100]);
}
