//! Large work and small calls at the same time: while the work goes on, every call for a decision is answered. How much
//! longer that takes is measured by `cargo bench --bench front -- --starvation`.

use std::io::Write;

use crate::harness::h2::{Attacker, call, streams};
use crate::harness::siege::{CALLS_A_CONNECTION, MIB, ONE_CONNECTION, Siege, work_beside};
use crate::harness::tidegate::Setup;
use crate::harness::{eventually_true, grpc, http};

const MANY: usize = 100_000;
/// Calls at a time: fewer bytes than a connection may carry at its beginning.
const UNDER_WAY: u64 = 30;
/// Descriptors of one call.
const DESCRIPTORS: usize = 50;

/// A domain whose every value has a path in metrics.
const WIDE: &str = "
domain: wide
descriptors:
  - key: id
    detailed_metric: true
    rate_limit: {unit: day, requests_per_unit: 10}
";

/// Makes the limiter know as many paths as it may.
fn fill_metrics(siege: &Siege) {
    let mut asking = Attacker::greeted(siege.grpc_port());
    for (stream, first) in streams().zip((0..MANY).step_by(DESCRIPTORS)) {
        let values: Vec<String> = (first..first + DESCRIPTORS).map(|id| format!("{id:06}")).collect();
        let entries: Vec<_> = values.iter().map(|value| [("id", value.as_str())]).collect();
        let descriptors: Vec<&[(&str, &str)]> = entries.iter().map(|entry| &entry[..]).collect();
        let asked = stream.div_ceil(2);
        assert!(asking.send(&call(stream, &grpc::question("wide", &descriptors))));
        asking.hears("room for a call", |heard| heard.ended + UNDER_WAY > u64::from(asked));
    }
    asking.hears("all answers", |heard| heard.ended == (MANY / DESCRIPTORS) as u64);
}

#[test]
fn a_scrape_of_a_hundred_thousand_series() {
    let setup = || Setup::new().rules("wide.yaml", WIDE);
    work_beside(setup, ONE_CONNECTION, 192 * MIB, |siege| {
        fill_metrics(siege);
        let metrics = siege.limiter.ports().metrics;
        let mut slow = http::connect(metrics).expect("it listens");
        slow.write_all(b"GET /metrics HTTP/1.1\r\nhost: t\r\n\r\n").expect("it is open");
        for _ in 0..2 {
            let page = http::get(metrics, "/metrics").expect("it is scraped").body;
            let family = "ratelimit_service_rate_limit_total_hits{domain=\"wide\"";
            assert!(page.matches(family).count() > MANY * 9 / 10, "{} series", page.matches(family).count());
        }
    });
}

#[test]
fn a_reload_of_a_hundred_thousand_rules() {
    work_beside(Setup::new, CALLS_A_CONNECTION, 384 * MIB, |siege| {
        let mut rules = "domain: many\ndescriptors:\n".to_owned();
        for at in 0..MANY {
            rules +=
                &format!("  - {{key: id, value: v{at}, rate_limit: {{unit: day, requests_per_unit: 9}}}}\n");
        }
        siege.limiter.setup.write("many.yaml", &rules);
        eventually_true("the rules", || siege.limiter.metric("tidegate_rules") > MANY as f64);
        siege.limiter.setup.write("many.yaml", "domain: many\n");
        eventually_true("no rules", || siege.limiter.metric("tidegate_rules") < MANY as f64);
    });
}
