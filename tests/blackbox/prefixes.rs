//! Addresses that count by prefix: between two nodes and a real Redis, in `tidegate check` and in `tidegate ask`.

use super::commands::{folder, tidegate};
use crate::harness::eventually_true;
use crate::harness::grpc::{Client, OK, question};
use crate::harness::redis::{Redis, cluster};
use crate::harness::tidegate::Setup;

const RULES: &str = "
domain: site
descriptors:
  - key: ip
    prefix: {v4: 24, v6: 64, not_an_address: deny}
    rate_limit: {unit: day, requests_per_unit: 10}
";

fn passes(client: &Client, address: &str) -> bool {
    client.ask(question("site", &[&[("ip", address)]])).overall_code == OK
}

#[test]
fn two_nodes_count_the_addresses_of_a_prefix_together() {
    for (sync, hashed) in [("strict", "false"), ("strict", "true"), ("leased", "false")] {
        let redis = Redis::start(&[]);
        let setup = || {
            let setup = Setup::new().rules("site.yaml", RULES).env("REDIS_URL", &redis.url());
            setup.env("REDIS_TIMEOUT", "10s").env("REDIS_SYNC", sync).env("REDIS_KEY_HASH", hashed)
        };
        let nodes = [setup().start(), setup().start()];
        let clients = nodes.each_ref().map(|node| node.client());
        let addresses = |number: usize| match number % 4 {
            0 => format!("2001:db8::{number:x}"),
            1 => format!("[2001:DB8:0:0:{number:x}::1]:443"),
            2 => format!("2001:db8::ffff:{number:x}%eth0"),
            _ => format!("2001:0db8:0000:0000:0000:0000:{number:04x}:0001"),
        };
        let admitted =
            (0..200).filter(|&number| passes(&clients[number / 4 % 2], &addresses(number))).count();
        if sync == "strict" {
            assert_eq!(admitted, 10, "{hashed}");
            assert_eq!(
                redis.ask::<Vec<String>>(&["KEYS", "*|2001:db8::/64"]).len(),
                usize::from(hashed == "false")
            );
        } else {
            // What one node has leased, the other one does not have.
            assert!((1..=10).contains(&admitted), "{admitted}");
        }
        assert!(passes(&clients[0], "2001:db8:0:1::1") && passes(&clients[1], "::ffff:10.0.0.1"));
        assert!(!passes(&clients[0], "unknown"));
    }
}

/// Each counter has its own hash slot in a Cluster: what one denies goes back to the others.
#[test]
fn several_lengths_are_charged_together_on_all_nodes() {
    let rules = RULES.replace("v6: 64", "v6: {64: 1, 48: 3}");
    let (redis, masters) = (Redis::start(&[]), cluster());
    for (url, kind) in [(redis.url(), "SINGLE"), (masters[0].url(), "CLUSTER")] {
        let setup = || {
            let setup =
                Setup::new().rules("site.yaml", &rules).env("REDIS_URL", &url).env("REDIS_TYPE", kind);
            setup.env("REDIS_TIMEOUT", "10s")
        };
        let nodes = [setup().start(), setup().start()];
        let clients = nodes.each_ref().map(|node| node.client());
        let admitted = |network: usize| {
            let address = |number: usize| format!("2001:db8:0:{network:x}::{number:x}");
            (0..20).filter(|&number| passes(&clients[number % 2], &address(number))).count()
        };
        assert_eq!(admitted(1), 10, "{kind}");
        // What the /64 denied is given back to the /48 in the background.
        let mut others = 0;
        eventually_true("the /48 to be full", || {
            others += (2..60).map(admitted).sum::<usize>();
            others == 20
        });
        assert_eq!((60..70).map(admitted).sum::<usize>(), 0, "{kind}");
        let denied = clients[0].ask(question("site", &[&[("ip", "2001:db8:0:1::1")]]));
        assert_eq!(denied.statuses.len(), 1, "one descriptor");
        assert!(passes(&clients[0], "2001:db8:1::1") && passes(&clients[1], "10.0.0.1"), "{kind}");
    }
}

#[test]
fn ask_shows_the_prefix_and_check_refuses_a_bad_one() {
    let (_folder, path) = folder(&[("site.yaml", RULES)]);
    for (value, expected) in [
        ("ip=2001:db8::1", "  counts as ip=2001:db8::/64\n"),
        ("ip=64:ff9b::10.0.0.1", "  counts as ip=10.0.0.0/24\n"),
        ("ip=unknown", "  counts as ip=unknown, no address: denied\n"),
    ] {
        let (code, text, _) = tidegate(&["ask", "site", value, "--rules", &path], &[]);
        assert!(code == 0 && text.contains(expected), "{text}");
    }
    assert_eq!(tidegate(&["check", &path], &[]).0, 0);
    let translated = RULES.replace("v6: 64", "v6: 64, nat64: [2001:db8:64::/96]");
    let (_translated, path) = folder(&[("site.yaml", &translated)]);
    let (code, text, _) = tidegate(&["ask", "site", "ip=2001:db8:64::10.0.0.1", "--rules", &path], &[]);
    assert!(code == 0 && text.contains("  counts as ip=10.0.0.0/24\n"), "{text}");
    let (_bad, bad) = folder(&[("site.yaml", &RULES.replace("v4: 24", "v4: 42"))]);
    let (code, report, complaints) = tidegate(&["check", &bad], &[]);
    let all = report + &complaints;
    assert!(
        code == 1 && all.contains("site.yaml:5:18: `v4` is `42` (expected a whole number from 1 to 32)"),
        "{all}"
    );
}
