//! Addresses that count by prefix: between two nodes and a real Redis, in `tidegate check` and in `tidegate ask`.

use super::commands::{folder, tidegate};
use crate::harness::grpc::{Client, OK, question};
use crate::harness::redis::Redis;
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
    let (_bad, bad) = folder(&[("site.yaml", &RULES.replace("v4: 24", "v4: 42"))]);
    let (code, report, complaints) = tidegate(&["check", &bad], &[]);
    let all = report + &complaints;
    assert!(
        code == 1 && all.contains("site.yaml:5:18: `v4` is `42` (expected a whole number from 1 to 32)"),
        "{all}"
    );
}
