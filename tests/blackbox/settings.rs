//! Settings of bounds and of where rules lie; and what is said of settings that are wrong.

use std::fs;

use crate::harness::grpc::{Client, OK, OVER_LIMIT, ask_only, question};
use crate::harness::http;
use crate::harness::tidegate::Setup;

/// A limit of N for the key `user` of this domain.
fn rules(domain: &str, requests: u32) -> String {
    format!(
        "domain: {domain}\ndescriptors:\n  - key: user\n    rate_limit: {{unit: day, requests_per_unit: {requests}}}\n"
    )
}

const USER: &[(&str, &str)] = &[("user", "alice")];

fn limit(client: &Client, domain: &str) -> Option<u32> {
    let status = client.ask(ask_only(domain, &[USER])).statuses.remove(0);
    status.current_limit.map(|limit| limit.requests_per_unit)
}

#[test]
fn bounds_of_a_request_are_those_that_were_set() {
    let limiter = Setup::new()
        .rules("shop.yaml", &rules("shop", 5))
        .env("MAX_DESCRIPTORS", "1")
        .env("MAX_ENTRIES", "1")
        .env("MAX_REQUEST_BYTES", "60")
        .env("WORKER_THREADS", "1")
        .start();
    let client = limiter.client();
    assert_eq!(limit(&client, "shop"), Some(5));
    let refused = |descriptors: &[&[(&str, &str)]]| {
        client.call(question("shop", descriptors)).expect_err("over a bound").message().to_owned()
    };
    assert!(refused(&[USER, USER]).contains("at most 1"));
    assert!(refused(&[&[("a", "b"), ("c", "d")]]).contains("at most 1"));
    assert!(refused(&[&[("user", &"x".repeat(60))]]).contains("60 bytes"));
    assert_eq!(limiter.lines_with("workers: 1 "), 1);
}

#[test]
fn a_file_of_rules_may_be_as_long_as_was_set() {
    let text = rules("shop", 5);
    let setup =
        |bytes: usize| Setup::new().rules("shop.yaml", &text).env("MAX_RULES_FILE_BYTES", &bytes.to_string());
    setup(text.len()).start();
    let too_long = setup(text.len() - 1);
    let mut refused = too_long.spawn();
    assert_eq!(refused.exit_code(), 1);
    assert_eq!(refused.lines_with("MAX_RULES_FILE_BYTES sets the bound"), 1);
}

#[test]
fn rules_lie_where_the_runtime_settings_say() {
    let start = |settings: &[(&str, &str)]| {
        let setup = Setup::new().env("CONFIG_PATH", "");
        let root = setup.outside().join("root");
        let folder = root.join("sub/rules/deep");
        fs::create_dir_all(&folder).expect("the folder is ours");
        fs::write(folder.join("a.yaml"), rules("a", 1)).expect("the folder is ours");
        fs::write(folder.join("any.thing"), rules("b", 2)).expect("the folder is ours");
        fs::write(folder.join(".hidden"), rules("c", 3)).expect("the folder is ours");
        fs::write(folder.join("..never"), rules("d", 4)).expect("the folder is ours");
        fs::write(root.join("sub/config.yaml"), rules("e", 5)).expect("the folder is ours");
        let settings = [
            &[("RUNTIME_SUBDIRECTORY", "sub"), ("RUNTIME_APPDIRECTORY", "rules")][..],
            &[("RUNTIME_ROOT", root.to_str().expect("UTF-8"))],
            settings,
        ];
        settings.concat().iter().fold(setup, |setup, (name, value)| setup.env(name, value)).start()
    };
    let domains = |settings: &[(&str, &str)]| {
        let limiter = start(settings);
        let client = limiter.client();
        ["a", "b", "c", "d", "e"].map(|domain| limit(&client, domain))
    };
    assert_eq!(domains(&[]), [Some(1), Some(2), Some(3), None, Some(5)]);
    assert_eq!(domains(&[("RUNTIME_IGNOREDOTFILES", "true")]), [Some(1), Some(2), None, None, Some(5)]);
    assert_eq!(domains(&[("RUNTIME_WATCH_ROOT", "false")]), [Some(1), Some(2), Some(3), None, None]);
}

#[test]
fn the_default_algorithm_is_for_rules_that_name_none_only() {
    let named = "  - key: path\n    rate_limit: {unit: day, requests_per_unit: 1, algorithm: token_bucket}\n";
    let limiter = Setup::new()
        .rules("shop.yaml", &(rules("shop", 5) + named))
        .env("DEFAULT_ALGORITHM", "fixed_window")
        .start();
    let page = http::get(limiter.ports().debug, "/rlconfig").expect("a page").body;
    let algorithm = |path: &str| {
        let line = page.lines().find(|line| line.starts_with(path)).unwrap_or_else(|| panic!("{page}"));
        line.rsplit_once("algorithm: ").expect("the last field").1.to_owned()
    };
    assert_eq!(algorithm("shop.user: "), "fixed_window");
    assert_eq!(algorithm("shop.path: "), "token_bucket");
}

#[test]
fn what_a_descriptors_own_cost_means_is_said_by_its_rule_or_by_the_default() {
    let rule =
        |key, cost| format!("  - {{key: {key}, rate_limit: {{unit: day, requests_per_unit: 3{cost}}}}}\n");
    let said = rule("asked", ", cost: asked") + &rule("reported", ", cost: reported");
    for (default_cost, left_of_unsaid) in [("auto", 0), ("reported", 0), ("asked", 2)] {
        let limiter = Setup::new()
            .rules("shop.yaml", &(rules("shop", 3) + &said))
            .env("DEFAULT_COST", default_cost)
            .start();
        let client = limiter.client();
        let shown = ["user", "asked", "reported"].map(|key| {
            let entries: &[(&str, &str)] = &[(key, "x")];
            let mut cost = question("shop", &[entries]);
            cost.descriptors[0].hits_addend = Some(5);
            assert_eq!(client.ask(cost).overall_code, OVER_LIMIT, "{key}");
            client.ask(question("shop", &[entries])).statuses[0].limit_remaining
        });
        assert_eq!(shown, [left_of_unsaid, 2, 0], "DEFAULT_COST={default_cost}");
        let beyond = if default_cost == "asked" { 2.0 } else { 4.0 };
        let scrape = limiter.scrape();
        assert_eq!(scrape.sum("tidegate_reported_beyond_limit_hits_total", &[]), beyond);
        assert_eq!(scrape.sum("tidegate_reported_dropped_hits_total", &[]), 0.0);
    }
}

#[test]
fn check_denies_with_the_status_and_skips_the_proxies_that_were_set() {
    let address = "  - key: remote_address\n    rate_limit: {unit: day, requests_per_unit: 1}\n";
    let described = "rate_limits:\n  - actions: [{remote_address: {}}]\n";
    let limiter = Setup::new()
        .rules("shop.yaml", &(rules("shop", 5) + address + described))
        .env("CHECK_DENY_STATUS", "403")
        .env("XFF_NUM_TRUSTED_HOPS", "1")
        .start();
    let client = [
        ("x-original-uri", "/"),
        ("x-original-method", "GET"),
        ("x-forwarded-for", "3.3.3.3, 1.1.1.1, 2.2.2.2"),
    ];
    let mut asking = http::Client::new(limiter.ports().http);
    assert_eq!(asking.send("GET", "/check/shop", &client, "").expect("an answer").status, 200);
    let status = |asking: &mut http::Client, address| {
        asking.get(&format!("/check/shop?remote_address={address}")).status
    };
    assert_eq!(status(&mut asking, "1.1.1.1"), 403, "the one that was counted");
    assert_eq!(status(&mut asking, "2.2.2.2"), 200);
}

#[test]
fn what_go_programs_and_old_deployments_set_is_taken() {
    let harmless = [
        ("GOMAXPROCS", "2"),
        ("GRPC_SERVER_TLS_CA_CERT", "/certs/ca.crt"),
        ("EXPIRATION_JITTER_MAX_SECONDS", "300"),
        ("BACKEND_TYPE", "memory"),
        ("REDIS_PORT", "tcp://10.0.0.1:6379"),
        ("REDIS_POOL_ON_EMPTY_WAIT_DURATION", "5s"),
        ("MEMCACHE_HOST_PORT", "memcached:11211"),
        ("HTTPS_PROXY", "http://proxy:3128"),
        ("NOBODY_READS_THIS", "x"),
    ];
    harmless.iter().fold(Setup::new(), |setup, (name, value)| setup.env(name, value)).start();
}

#[test]
fn a_misspelt_variable_is_logged_once_at_the_start_and_its_value_is_not() {
    let services = [("REDIS_PORT", "tcp://10.0.0.1:6379"), ("LIMIT_SERVICE_HOST", "10.0.0.1")];
    let mistakes = [("REDIS_HOST", "hunter2"), ("MAX_DESCRIPTOR", "hunter2"), ("GPRC_PORT", "hunter2")];
    let setup =
        services.iter().chain(&mistakes).fold(Setup::new(), |setup, (name, value)| setup.env(name, value));
    let limiter = setup.start();
    for (name, _) in mistakes {
        assert_eq!(limiter.lines_with(&format!("WARN {name}: has no effect")), 1, "{:#?}", limiter.output());
    }
    assert_eq!(
        limiter.lines_with(
            "MAX_DESCRIPTOR: has no effect: no setting has this name (closest is MAX_DESCRIPTORS)"
        ),
        1
    );
    assert_eq!(limiter.lines_with("WARN "), mistakes.len(), "{:#?}", limiter.output());
    assert_eq!(limiter.lines_with("hunter2"), 0);
}

#[test]
fn a_proxy_that_is_not_heeded_is_logged_and_its_password_is_not() {
    let proxied = |setup: Setup| setup.env("HTTPS_PROXY", "http://user:hunter2@proxy:3128");
    let shown = |setup: Setup| {
        let limiter = proxied(setup).start();
        assert_eq!(limiter.lines_with("hunter2"), 0);
        limiter.lines_with("WARN HTTPS_PROXY: has no effect")
    };
    assert_eq!(shown(Setup::new()), 0);
    let endpoint = "http://user:hunter2@127.0.0.1:9";
    let tracing = Setup::new().env("TRACING_ENABLED", "true").env("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint);
    assert_eq!(shown(tracing), 1);
}

/// Envoy Gateway's `cost.request` puts the cost on the question. As a report, each denied one would be charged in full.
#[test]
fn costs_that_always_come_with_the_question_are_learnt_to_be_asked() {
    let limiter = Setup::new().rules("shop.yaml", &rules("shop", 1_000)).start();
    let client = limiter.client();
    let ask = |hits: Option<u64>| {
        let mut request = question("shop", &[&[("user", "alice")]]);
        request.descriptors[0].hits_addend = hits;
        let answer = client.ask(request);
        (answer.overall_code, answer.statuses[0].limit_remaining)
    };
    let learnt = |cost: &str| limiter.scrape().sum("tidegate_rule_costs", &[("cost", cost)]);
    for asked in 1..=100 {
        assert_eq!(ask(Some(7)), (OK, 1_000 - 7 * asked), "a report");
    }
    assert_eq!(learnt("auto_asked"), 1.0);
    for asked in 101..=142 {
        assert_eq!(ask(Some(7)), (OK, 1_000 - 7 * asked));
    }
    for _ in 0..3 {
        assert_eq!(ask(Some(7)), (OVER_LIMIT, 6), "a question that is denied is not charged");
    }
    let page = http::get(limiter.ports().debug, "/rlconfig").expect("a page").body;
    assert!(page.contains("algorithm: sliding_window, cost: asked\n"), "{page}");

    assert_eq!(ask(Some(0)), (OK, 6), "whoever reports asks without a cost");
    assert_eq!(learnt("auto_reported"), 1.0);
    assert_eq!(ask(Some(7)), (OVER_LIMIT, 0), "charged in full, for good");
}
