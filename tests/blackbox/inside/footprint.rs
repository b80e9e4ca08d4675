//! What the module adds to the memory of an Envoy.

use std::fmt::Write as _;

use crate::harness::envoy::Envoy;
use crate::harness::inside::Inside;
use crate::harness::redis::Redis;

/// What docs/inside.md says.
const ADDED_BYTES_MAX: u64 = 10 << 20;

const USERS: usize = 2_000;
const PLANS: usize = 100;

/// A limit for each user, and one for each of some plans.
fn rules() -> String {
    let mut rules = String::from(
        "domain: edge
rate_limits:
  - actions: [{request_headers: {header_name: x-user, descriptor_key: user}}]
  - actions: [{request_headers: {header_name: x-plan, descriptor_key: plan}}]
descriptors:
  - {key: user, rate_limit: {unit: minute, requests_per_unit: 100}}
",
    );
    for plan in 0..PLANS {
        writeln!(
            rules,
            "  - {{key: plan, value: p{plan}, rate_limit: {{unit: day, requests_per_unit: 1000000}}}}"
        )
        .expect("a String takes all");
    }
    rules
}

/// The same configuration without the filter, and without the routes that have a configuration of theirs.
fn without_module(config: &str) -> String {
    let cuts = [
        ("- name: tidegate", "- name: envoy.filters.http.router"),
        ("- match: { prefix: /login }", "- match: { prefix: / }"),
    ];
    cuts.iter().fold(config.to_owned(), |config, (from, to)| {
        let (before, rest) = config.split_once(from).expect("the example has it");
        let (_, after) = rest.split_once(to).expect("the example has it");
        format!("{before}{to}{after}")
    })
}

/// Memory of the process's own after some thousand requests. Mapped code is not: tests load a build that is not
/// optimised, whose code is many times as large as that of the library that is shipped.
fn bytes_after_requests(envoy: &Envoy) -> u64 {
    let mut client = envoy.client();
    for user in 0..USERS {
        let (plan, user) = (format!("p{}", user % PLANS), format!("user-{user}"));
        for _ in 0..2 {
            let answer = client.send("GET", "/", &[("x-user", &user), ("x-plan", &plan)], "");
            assert_eq!(answer.expect("Envoy answers").status, 200);
        }
    }
    envoy.anonymous_bytes()
}

#[test]
fn the_module_takes_little_memory() {
    let redis = Redis::start(&[]);
    let rules = rules();
    let in_memory = Inside::new(&rules);
    let alone = bytes_after_requests(&Envoy::start_config(&without_module(&in_memory.config())));
    let leased = Inside::new(&rules).setting("REDIS_URL", &redis.url()).setting("REDIS_TIMEOUT", "10s");
    for (name, inside) in [("memory", in_memory), ("leased", leased)] {
        let envoy = inside.start();
        let added = bytes_after_requests(&envoy).saturating_sub(alone);
        assert_eq!(envoy.stat("dynamicmodulescustom.tidegate_ok"), 2 * USERS as u64);
        println!("{name}: {} KiB more than {} KiB", added / 1024, alone / 1024);
        // Its own objects take at least this: nothing was measured otherwise.
        assert!(added > 100 << 10, "{name}: {added} bytes");
        assert!(added <= ADDED_BYTES_MAX, "{name}: {added} bytes");
    }
}
