//! The debug port, as an operator uses it.

use crate::harness::http::{Client, get};
use crate::harness::tidegate::Setup;
use crate::harness::{eventually_true, grpc};

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 3}
";

#[test]
fn the_log_level_changes_while_it_runs() {
    let limiter = Setup::new().rules("shop.yaml", RULES).env("LOG_LEVEL", "error").start();
    let port = limiter.ports().debug;
    let taken = |name: &str, times: f64| {
        limiter.setup.write(name, &RULES.replace("shop", name));
        eventually_true("the change to be taken", || {
            limiter.metric("ratelimit_service_config_load_success") == times
        });
    };
    assert_eq!(get(port, "/logging").expect("a page").body, "error\n");
    taken("a.yaml", 2.0);
    assert_eq!(limiter.lines_with("in force"), 0, "{:#?}", limiter.output());

    let mut client = Client::new(port);
    let mut post = |path| client.send("POST", path, &[("host", "localhost")], "").expect("an answer");
    let answer = post("/logging?level=INFO");
    assert_eq!((answer.status, answer.body.as_str()), (200, "info\n"));
    taken("b.yaml", 3.0);
    eventually_true("the change to be told", || limiter.lines_with("in force") == 1);
    for wrong in ["/logging", "/logging?level=loud"] {
        let answer = post(wrong);
        assert!(answer.status == 400 && answer.body.contains("debug"), "{answer:?}");
    }
    assert_eq!(get(port, "/logging").expect("a page").body, "info\n");
    assert_eq!(limiter.lines_with("log level: info"), 1);
}

/// What a browser sends on behalf of a page that somebody on this machine looks at.
#[test]
fn a_web_page_cannot_change_the_log_level() {
    let limiter = Setup::new().rules("shop.yaml", RULES).env("LOG_LEVEL", "error").start();
    let port = limiter.ports().debug;
    let mut client = Client::new(port);
    let mut post = |headers: &[(&str, &str)]| {
        client.send("POST", "/logging?level=info", headers, "").expect("an answer").status
    };
    let own = format!("127.0.0.1:{port}");
    assert_eq!(post(&[("host", &own), ("origin", "http://evil.example")]), 403);
    assert_eq!(post(&[("host", &own), ("origin", "null")]), 403);
    // A name that was made to lead here.
    let evil = format!("evil.example:{port}");
    assert_eq!(post(&[("host", &evil), ("origin", &format!("http://{evil}"))]), 403);
    assert_eq!(post(&[("host", &evil)]), 403);
    assert_eq!(get(port, "/logging").expect("a page").body, "error\n");
    assert_eq!(post(&[("host", &own), ("origin", &format!("http://{own}"))]), 200);
    assert_eq!(get(port, "/logging").expect("a page").body, "info\n");
}

#[test]
fn the_limits_in_force_are_told_after_a_reload() {
    let limiter = Setup::new().rules("shop.yaml", RULES).start();
    let port = limiter.ports().debug;
    let limits = || -> serde_json::Value {
        serde_json::from_str(&get(port, "/rlconfig?format=json").expect("a page").body).expect("JSON")
    };
    assert_eq!(limits()["limits"][0]["requests_per_unit"], 3);
    limiter.setup.write("shop.yaml", &RULES.replace("requests_per_unit: 3", "requests_per_unit: 4"));
    eventually_true("the change to be taken", || limits()["limits"][0]["requests_per_unit"] == 4);
    let file = limits()["limits"][0]["file"].as_str().map(str::to_owned);
    assert!(file.is_some_and(|file| file.ends_with("/shop.yaml")));
    limiter.client().ask(grpc::question("shop", &[&[("user", "alice")]]));
    let metrics = get(port, "/metrics").expect("a page").body;
    assert!(metrics.contains("ratelimit_service_rate_limit_total_hits{domain=\"shop\",key1=\"user\"} 1\n"));
    let stats = get(port, "/stats").expect("a page").body;
    for line in [
        "ratelimit.service.rate_limit.shop.user.total_hits: 1",
        "ratelimit.service.rate_limit.shop.user.within_limit: 1",
        "ratelimit.service.config_load_success: 2",
        "ratelimit_server.ShouldRateLimit.total_requests: 1",
    ] {
        assert!(stats.lines().any(|told| told == line), "no {line:?} in {stats}");
    }
    assert!(!stats.contains("user.over_limit: "), "what a limit never counted is left out: {stats}");
}
