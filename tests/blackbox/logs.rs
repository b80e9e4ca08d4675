//! Logs: a bounded number of lines of requests, no flood, no forged lines, JSON on demand.

use std::io::Write;
use std::time::Instant;

use crate::harness::redis::Redis;
use crate::harness::tidegate::{Setup, Tidegate};
use crate::harness::{eventually_true, grpc, http};

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 3}
";

/// Lines that were written while this ran. What is counted comes before the answer of the last request.
fn lines_during(limiter: &Tidegate, run: impl FnOnce()) -> Vec<String> {
    eventually_true("the last line of its start", || limiter.lines_with("try: curl") == 1);
    let before = limiter.output().len();
    run();
    http::get(limiter.ports().http, "/livez").expect("it still runs");
    limiter.output().split_off(before)
}

#[test]
fn below_level_info_requests_leave_no_lines() {
    let limiter = Setup::new().rules("shop.yaml", RULES).start();
    let mut debug = http::Client::new(limiter.ports().debug);
    let set = debug.send("POST", "/logging?level=warn", &[("host", "localhost")], "").expect("an answer");
    assert_eq!(set.status, 200, "{set:?}");
    let client = limiter.client();
    let lines = lines_during(&limiter, || {
        for _ in 0..200 {
            client.ask(grpc::question("shop", &[&[("user", "alice")]]));
            client.ask(grpc::question("nowhere", &[&[("user", "alice")]]));
        }
    });
    assert!(lines.is_empty(), "{lines:#?}");
}

#[test]
fn what_goes_wrong_a_thousand_times_does_not_flood() {
    let limiter = Setup::new().rules("shop.yaml", RULES).start();
    let ports = limiter.ports();
    let client = limiter.client();
    let lines = lines_during(&limiter, || {
        for _ in 0..1000 {
            client.call(grpc::question("", &[&[("user", "alice")]])).expect_err("no domain");
        }
        let mut json = http::Client::new(ports.http);
        for _ in 0..1000 {
            let answer = json.send("POST", "/json", &[], "{\"domain\": 1\n ERROR forged").expect("an answer");
            assert_eq!(answer.status, 400, "{answer:?}");
        }
        for port in [ports.grpc, ports.http, ports.debug, ports.metrics] {
            for _ in 0..300 {
                let mut stream = http::connect(port).expect("it listens");
                stream.write_all(b"\x16\x03\x01 this is no protocol of ours\r\n\r\n").expect("connected");
            }
        }
    });
    assert!(lines.len() <= 50, "{} lines: {:#?}", lines.len(), &lines[..50]);
    assert!(!lines.iter().any(|line| line.trim_start().starts_with("ERROR forged")), "{lines:#?}");
}

#[test]
fn json_logs_are_an_object_a_line_with_three_keys() {
    let limiter = Setup::new().rules("shop.yaml", RULES).env("LOG_FORMAT", "json").start();
    limiter.setup.write("shop.yaml", "domain: \"\"\n");
    crate::harness::eventually_true("the bad set to be logged", || limiter.lines_with("shop.yaml:1:9") == 1);
    let logged: Vec<_> = limiter.output().into_iter().filter(|line| line.starts_with('{')).collect();
    assert!(!logged.is_empty(), "{:#?}", limiter.output());
    for line in logged {
        let object: serde_json::Value = serde_json::from_str(&line).expect("one JSON object a line");
        for key in ["@timestamp", "@message", "level"] {
            assert!(object[key].is_string(), "no {key} in {line}");
        }
    }
}

#[test]
fn at_log_level_error_a_healthy_start_logs_nothing_above_it() {
    let limiter = Setup::new().rules("shop.yaml", RULES).env("LOG_LEVEL", "error").start();
    limiter.client().ask(grpc::question("shop", &[&[("user", "alice")]]));
    assert_eq!(limiter.lines_with(" INFO "), 0, "{:#?}", limiter.output());
}

/// A rule for each of these keys, of one hit.
fn one_hit_each(keys: impl Iterator<Item = String>) -> String {
    let rule = |key| format!("  - {{key: {key}, rate_limit: {{unit: day, requests_per_unit: 1}}}}\n");
    format!("domain: shop\ndescriptors:\n{}", keys.map(rule).collect::<String>())
}

/// The sum of what lines say was left out before them.
fn left_out(lines: &[String]) -> u64 {
    let number = |line: &String| {
        let (before, _) = line.split_once(" more denials were left out")?;
        before.rsplit('(').next()?.parse::<u64>().ok()
    };
    lines.iter().filter_map(number).sum()
}

/// Asks over every front, alone and many at a time, until all rules have denied; returns how many denials that were.
fn deny_everywhere(limiter: &Tidegate, rules: usize) -> u64 {
    let client = limiter.client();
    let mut web = http::Client::new(limiter.ports().http);
    let mut denials = 0;
    for _ in 0..6 {
        let keys: Vec<String> = (0..rules).map(|rule| format!("k{rule}")).collect();
        let asked = |key: &str| grpc::question("shop", &[&[(key, "secret-value")]]);
        let calls: Vec<_> = keys.iter().map(|key| client.begin(tokio_stream::once(asked(key)))).collect();
        for call in calls {
            denials += u64::from(client.finish(call).expect("an answer").overall_code == grpc::OVER_LIMIT);
        }
        for key in &keys {
            let body = format!(
                r#"{{"domain":"shop","descriptors":[{{"entries":[{{"key":"{key}","value":"secret-value"}}]}}]}}"#
            );
            let statuses = [
                web.send("POST", "/json", &[], &body).expect("an answer").status,
                web.send("GET", &format!("/check/shop?{key}=secret-value"), &[], "")
                    .expect("an answer")
                    .status,
            ];
            denials += statuses.iter().filter(|status| **status == 429).count() as u64;
        }
    }
    denials
}

#[test]
fn denials_are_logged_a_few_a_second_and_the_others_are_counted() {
    let redis = Redis::start(&[]);
    for shared in [false, true] {
        let setup = Setup::new().rules("shop.yaml", &one_hit_each((0..20).map(|rule| format!("k{rule}"))));
        let setup =
            if shared { setup.env("REDIS_URL", &redis.url()).env("REDIS_TIMEOUT", "10s") } else { setup };
        let limiter = setup.env("LOG_VALUES", if shared { "false" } else { "true" }).start();
        let began = Instant::now();
        let denials = deny_everywhere(&limiter, 20);
        assert_eq!(denials, 20 * (6 * 3 - 1), "one of each rule passes");
        let not_logged = limiter.metric("tidegate_denials_not_logged_total");
        // A line comes after its denial was answered.
        let lines = || -> Vec<_> {
            limiter.output().into_iter().filter(|line| line.contains(" INFO denied: domain shop: ")).collect()
        };
        eventually_true("all lines", || lines().len() as f64 + not_logged >= denials as f64);
        let lines = lines();
        assert_eq!(lines.len() as f64 + not_logged, denials as f64, "{lines:#?}");
        assert!(left_out(&lines) as f64 <= not_logged);
        let seconds = began.elapsed().as_secs() as usize + 1;
        assert!((10..=10 * (seconds + 1)).contains(&lines.len()), "{} in {seconds} s", lines.len());
        let of_rule = |rule: usize| {
            lines.iter().filter(|line| line.contains(&format!(" by shop.k{rule} (1 per day)"))).count()
        };
        assert_eq!((0..20).map(of_rule).sum::<usize>(), lines.len(), "{lines:#?}");
        assert!((0..20).all(|rule| of_rule(rule) <= seconds + 1));
        assert_eq!(
            lines.iter().filter(|line| line.contains("=secret-value: OVER_LIMIT by ")).count(),
            if shared { 0 } else { lines.len() }
        );
        assert_eq!(limiter.lines_with("secret-value") > 0, !shared, "LOG_VALUES=false hides values");
    }
}

#[test]
fn at_level_debug_a_decision_is_a_line_on_every_front_in_both_formats() {
    let rules = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: hour, unit_multiplier: 2, requests_per_unit: 1}
  - key: plan
    value: free*
    descriptors: [{key: path, rate_limit: {unlimited: true}}]
";
    for format in ["text", "json"] {
        let setup = Setup::new().rules("shop.yaml", rules).env("LOG_LEVEL", "debug");
        let limiter = setup.env("LOG_FORMAT", format).start();
        let long = "x".repeat(100);
        let forged = "a\n2026 ERROR forged\u{1b}[2J\u{202e}\u{2028}";
        let asked: [&[(&str, &str)]; 5] = [
            &[("user", forged)],
            &[("plan", "free-1"), ("path", "/")],
            &[("plan", "free-1"), ("nobody", &long)],
            &[("plan", "free-1")],
            &[("nobody", "x")],
        ];
        for _ in 0..3 {
            limiter.client().ask(grpc::question("shop", &asked));
        }
        limiter.client().ask(grpc::question("nowhere", &[&[("user", "alice")]]));
        let mut web = http::Client::new(limiter.ports().http);
        (0..40).for_each(|_| drop(web.send("GET", "/check/shop?user=bob", &[], "").expect("an answer")));
        eventually_true("a line each", || limiter.lines_with("decided: ") == 3 + 1 + 40);
        let lines: Vec<String> = match format {
            "json" => {
                let objects = limiter.output().into_iter().filter(|line| line.starts_with('{'));
                let message = |line: String| {
                    serde_json::from_str::<serde_json::Value>(&line).expect("JSON")["@message"].clone()
                };
                objects.map(|line| message(line).as_str().expect("a text").to_owned()).collect()
            }
            _ => limiter.output(),
        };
        let end = |line: &&String| line.contains("decided: ");
        let decided: Vec<_> = lines
            .iter()
            .filter(end)
            .map(|line| &line[line.find("decided: ").expect("it is there")..])
            .collect();
        let user = r#""a\n2026 ERROR forged\u{1b}[2J\u{202e}\u{2028}""#;
        let rest = format!(
            "plan=free-1, path=/: OK, shop.plan_free*.path is unlimited; plan=free-1, nobody={}…: OK, no rule below plan_free*; \
             plan=free-1: OK, no limit at plan_free*; nobody=x: OK, no rule below the domain",
            "x".repeat(64)
        );
        let expected = |code: &str| {
            format!("decided: {code}, domain shop; user={user}: {code} by shop.user (1 per 2 hours); {rest}")
        };
        assert_eq!(decided[0], expected("OK"));
        assert_eq!(decided[1..3], [expected("OVER_LIMIT"), expected("OVER_LIMIT")]);
        assert_eq!(decided[3], "decided: OK, domain nowhere; user=alice: OK, the domain has no rules");
        assert_eq!(decided[4], "decided: OK, domain shop; user=bob: OK by shop.user (1 per 2 hours)");
        assert_eq!(limiter.metric("tidegate_unmatched_total"), 9.0);
        assert!(
            limiter
                .output()
                .iter()
                .all(|line| !line.chars().any(|char| char.is_control() || "\u{202e}\u{2028}".contains(char)))
        );
    }
}

#[test]
fn the_first_of_each_kind_that_meets_no_rule_is_logged_without_values() {
    let limiter = Setup::new().rules("shop.yaml", RULES).start();
    let client = limiter.client();
    for _ in 0..2 {
        for kind in 0..150 {
            let key = format!("key{kind}");
            client.ask(grpc::question(
                "shop",
                &[&[("user", "hidden"), (&key, "hidden")], &[("user", "alice")]],
            ));
            client.ask(grpc::question(&format!("nowhere{kind}"), &[&[("user", "hidden")]]));
        }
    }
    eventually_true("a hundred lines", || limiter.lines_with("no rule: ") == 100);
    assert_eq!(limiter.lines_with("no rule: domain shop: user, key7, the first of its kind"), 1);
    assert_eq!(limiter.lines_with("hidden"), 0);
    assert_eq!(limiter.scrape().sum("tidegate_unmatched_total", &[("domain", "shop")]), 300.0);
    assert_eq!(
        limiter.metric("tidegate_unmatched_total"),
        300.0,
        "unknown domains have a metric of their own"
    );
}
