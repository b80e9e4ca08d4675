//! Metrics as a Prometheus server meets them.

use std::collections::HashSet;

use crate::harness::grpc::question;
use crate::harness::http;
use crate::harness::tidegate::Setup;

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    detailed_metric: true
    rate_limit: {unit: day, requests_per_unit: 4}
";

/// The names of the series of a page, without their values.
fn series(page: &str) -> HashSet<String> {
    let samples = page.lines().filter(|line| !line.starts_with('#'));
    samples.filter_map(|line| line.rsplit_once(' ')).map(|(series, _)| series.to_owned()).collect()
}

#[test]
fn the_same_page_is_on_the_metrics_port_and_on_the_debug_port() {
    let limiter = Setup::new().rules("shop.yaml", RULES).env("PROMETHEUS_PATH", "/scrape").start();
    limiter.client().ask(question("shop", &[&[("user", "alice")]]));
    let page = http::Client::new(limiter.ports().metrics).get("/scrape");
    assert_eq!(page.status, 200);
    assert!(page.header("content-type").is_some_and(|kind| kind.starts_with("text/plain")), "{page:?}");
    let debug = http::Client::new(limiter.ports().debug).get("/metrics");
    assert_eq!(series(&page.body), series(&debug.body));
    for name in [
        "ratelimit_service_config_load_success 1",
        "tidegate_rules 1",
        "ratelimit_service_rate_limit_total_hits{domain=\"shop\",key1=\"user_alice\"} 1",
        "# TYPE ratelimit_service_response_time_seconds histogram",
        "process_resident_memory_bytes ",
        "tidegate_build_info{",
        "tidegate_counters 1",
    ] {
        assert!(page.body.contains(name), "no {name} in:\n{}", page.body);
    }
}

#[test]
fn a_denied_hit_moves_the_counters_that_dashboards_know() {
    let limiter = Setup::new().rules("shop.yaml", RULES).start();
    let client = limiter.client();
    for _ in 0..6 {
        client.ask(question("shop", &[&[("user", "alice")]]));
    }
    let scrape = limiter.scrape();
    let stat = |name: &str| {
        let labels = [("domain", "shop"), ("key1", "user_alice")];
        scrape.sum(&format!("ratelimit_service_rate_limit_{name}"), &labels)
    };
    // 4 a day: near is floor(4 × 0.8) = 3.
    assert_eq!(
        (stat("total_hits"), stat("within_limit"), stat("over_limit"), stat("near_limit")),
        (6.0, 4.0, 2.0, 1.0)
    );
}

#[test]
fn names_that_come_from_requests_are_bounded() {
    let limiter = Setup::new().rules("shop.yaml", RULES).env("MAX_METRIC_SERIES", "20").start();
    let client = limiter.client();
    for value in 0..500 {
        client.ask(question("shop", &[&[("user", &format!("u{value}"))]]));
        client.ask(question(&format!("nowhere{value}"), &[&[("user", "alice")]]));
    }
    let page = http::Client::new(limiter.ports().metrics).get("/metrics").body;
    let named = |text: &str| page.lines().filter(|line| line.contains(text)).count();
    assert!(named("key1=\"user_u") <= 20 * 7, "{}", named("key1=\"user_u"));
    assert!(named("rate_limit_domain_not_found{") <= 101, "{}", named("rate_limit_domain_not_found{"));
    // Nothing is lost: what has no series of its own is in the rolled-up one.
    assert_eq!(limiter.scrape().sum("ratelimit_service_rate_limit_total_hits", &[("domain", "shop")]), 500.0);
    assert_eq!(limiter.metric("ratelimit_service_rate_limit_domain_not_found"), 500.0);
}

/// So many tenants of a plan, each with a rule.
fn tenants(count: usize, more: &str) -> String {
    let mut text = "domain: shop\ndescriptors:\n  - key: plan\n    rate_limit: {unit: day, requests_per_unit: 9}\n    descriptors:\n".to_owned();
    for tenant in 0..count {
        text += &format!(
            "      - {{key: tenant, value: t{tenant}, {more}rate_limit: {{unit: day, requests_per_unit: 9}}}}\n"
        );
    }
    text
}

#[test]
fn a_hundred_thousand_tenants_make_no_large_page_and_no_hit_is_missing() {
    const TENANTS: usize = 100_000;
    for (setting, more, series) in [("1000", "", 1000), ("100000", "metrics: aggregate, ", 1)] {
        let setup =
            Setup::new().rules("shop.yaml", &tenants(TENANTS, more)).env("MAX_METRIC_SERIES", setting);
        let limiter = setup.start();
        let client = limiter.client();
        let names: Vec<String> = (0..TENANTS).map(|tenant| format!("t{tenant}")).collect();
        for names in names.chunks(64) {
            let descriptors: Vec<_> =
                names.iter().map(|name| [("plan", "free"), ("tenant", name.as_str())]).collect();
            let descriptors: Vec<&[(&str, &str)]> = descriptors.iter().map(|entries| &entries[..]).collect();
            client.ask(question("shop", &descriptors));
        }
        let page = http::Client::new(limiter.ports().metrics).get("/metrics").body;
        assert!(page.len() < 1 << 20, "{} bytes", page.len());
        let total = "ratelimit_service_rate_limit_total_hits";
        assert_eq!(page.lines().filter(|line| line.starts_with(&format!("{total}{{"))).count(), series);
        let scrape = limiter.scrape();
        assert_eq!(scrape.sum(total, &[]), TENANTS as f64);
        let above = TENANTS - (series - 1);
        let other = format!("{total}{{domain=\"shop\",key1=\"plan\"}} {above}\n");
        assert!(page.contains(&other), "no {other}");
        let warned = limiter.lines_with("99001 rules count in the series of a node above");
        assert_eq!(warned, usize::from(series > 1), "{:#?}", limiter.output());
    }
}
