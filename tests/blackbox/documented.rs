//! What the documentation of `envoyproxy/ratelimit` shows by examples: nested descriptors, the most specific value,
//! depth, unlimited rules, shadow mode, `replaces`, detailed metrics, wildcards. One file each in
//! `tests/data/documented/`, in our own words, answered as that documentation says.

use crate::harness::grpc::{Client, OK, OVER_LIMIT, RateLimit, RateLimitResponse, question};
use crate::harness::tidegate::{Setup, Tidegate};

const SECOND: i32 = 1;
const MINUTE: i32 = 2;
const HOUR: i32 = 3;

type Entries<'a> = &'a [(&'a str, &'a str)];

/// All examples at once: a domain each.
fn documented() -> Tidegate {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/documented");
    // Warnings too would refuse them.
    Setup::new().env("CONFIG_PATH", folder).env("STRICT_RULES", "true").start()
}

fn ask(client: &Client, domain: &str, descriptors: &[Entries<'_>]) -> RateLimitResponse {
    client.ask(question(domain, descriptors))
}

/// What so many equal requests get.
fn codes<const N: usize>(client: &Client, domain: &str, descriptors: &[Entries<'_>]) -> [i32; N] {
    [(); N].map(|()| ask(client, domain, descriptors).overall_code)
}

/// The limit that one descriptor meets: how many, and in which unit.
fn limit(client: &Client, domain: &str, entries: Entries<'_>) -> Option<(u32, i32)> {
    let status = ask(client, domain, &[entries]).statuses.remove(0);
    status.current_limit.map(|RateLimit { requests_per_unit, unit, .. }| (requests_per_unit, unit))
}

#[test]
fn a_value_of_its_own_has_a_limit_of_its_own() {
    let limiter = documented();
    let client = limiter.client();
    let of_table = |name| limit(&client, "warehouse", &[("table", name)]);
    assert_eq!(of_table("orders"), Some((400, SECOND)));
    assert_eq!(of_table("archive"), Some((50, SECOND)));
    assert_eq!(of_table("sketches"), None);
    assert_eq!(limit(&client, "nowhere", &[("table", "orders")]), None);
}

#[test]
fn every_descriptor_of_a_request_has_to_pass() {
    let limiter = documented();
    let client = limiter.client();
    let (ann, bob): (Entries<'_>, Entries<'_>) = (&[("recipient", "ann")], &[("recipient", "bob")]);
    let newsletter: Entries<'_> = &[("kind", "newsletter"), ("recipient", "ann")];
    assert_eq!(codes(&client, "letters", &[newsletter, ann]), [OK, OK, OVER_LIMIT]);
    let statuses = ask(&client, "letters", &[newsletter, ann]).statuses;
    assert_eq!([statuses[0].code, statuses[1].code], [OVER_LIMIT, OK], "by the newsletters alone");
    // Nothing was charged for those that were denied: one letter is left.
    assert_eq!(codes(&client, "letters", &[ann]), [OK, OVER_LIMIT]);
    assert_eq!(codes(&client, "letters", &[bob]), [OK; 3], "each recipient counts apart");
}

#[test]
fn the_most_specific_value_wins() {
    let limiter = documented();
    let client = limiter.client();
    assert_eq!(limit(&client, "edge", &[("remote_address", "198.51.100.8")]), Some((10, HOUR)));
    assert_eq!(codes(&client, "edge", &[&[("remote_address", "198.51.100.7")]]), [OVER_LIMIT]);
}

#[test]
fn a_limit_is_met_at_its_own_depth() {
    let limiter = documented();
    let client = limiter.client();
    assert_eq!(limit(&client, "regions", &[("region", "eu")]), Some((300, MINUTE)));
    assert_eq!(limit(&client, "regions", &[("region", "eu"), ("zone", "a")]), None);
    assert_eq!(limit(&client, "regions", &[("region", "us"), ("zone", "a")]), Some((200, MINUTE)));
    assert_eq!(limit(&client, "regions", &[("region", "us")]), None);
}

#[test]
fn an_unlimited_rule_leaves_the_most_there_can_be() {
    let limiter = documented();
    let client = limiter.client();
    let status = ask(&client, "partners", &[&[("gold", "x")]]).statuses.remove(0);
    assert_eq!((status.code, status.limit_remaining, status.current_limit), (OK, u32::MAX, None));
    assert_eq!(limit(&client, "partners", &[("silver", "x")]), Some((100, MINUTE)));
}

#[test]
fn a_rule_in_shadow_mode_counts_and_denies_nothing() {
    let limiter = documented();
    let client = limiter.client();
    let user = |name| [("service", "login"), ("user", name)];
    assert_eq!(codes(&client, "accounts", &[&user("robot")]), [OK; 3]);
    assert_eq!(codes(&client, "accounts", &[&user("guest")]), [OK, OK, OVER_LIMIT]);
    let shown = |name: &str, user| {
        let name = format!("ratelimit_service_rate_limit_{name}");
        limiter.scrape().sum(&name, &[("domain", "accounts"), ("key1", "service"), ("key2", user)])
    };
    assert_eq!((shown("over_limit", "user_robot"), shown("shadow_mode", "user_robot")), (2.0, 2.0));
    assert_eq!((shown("over_limit", "user_guest"), shown("shadow_mode", "user_guest")), (1.0, 0.0));
}

#[test]
fn a_limit_that_is_replaced_is_not_counted() {
    let limiter = documented();
    let client = limiter.client();
    let reading: Entries<'_> = &[("action", "read"), ("user", "carol")];
    let export: Entries<'_> = &[("path", "/export"), ("user", "carol")];
    assert_eq!(codes(&client, "reports", &[reading, export]), [OK, OK, OK, OK, OVER_LIMIT]);
    assert_eq!(codes(&client, "reports", &[reading]), [OK, OK, OVER_LIMIT], "untouched until now");
}

#[test]
fn a_detailed_metric_names_the_value_that_was_seen() {
    let limiter = documented();
    let client = limiter.client();
    for tenant in ["one", "two", "acme"] {
        ask(&client, "tenants", &[&[("tenant", tenant)]]);
    }
    let hits = |key1| {
        let labels = [("domain", "tenants"), ("key1", key1)];
        limiter.scrape().sum("ratelimit_service_rate_limit_total_hits", &labels)
    };
    assert_eq!(["tenant_one", "tenant_two", "tenant_acme", "tenant"].map(hits), [1.0, 1.0, 1.0, 0.0]);
}

#[test]
fn values_that_match_a_wildcard_count_apart() {
    let limiter = documented();
    let client = limiter.client();
    for path in ["/api/a", "/api/b"] {
        assert_eq!(codes(&client, "paths", &[&[("path", path)]]), [OK, OVER_LIMIT], "{path}");
    }
    assert_eq!(limit(&client, "paths", &[("path", "/other")]), None);
}
