//! The debug port, as an operator uses it.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use crate::harness::h2::{
    Attacker, END_HEADERS, END_STREAM, INITIAL_WINDOW_SIZE, PREFACE, field, frame, kind, settings, streams,
};
use crate::harness::http::{Client, get};
use crate::harness::siege::MIB;
use crate::harness::tidegate::{Setup, Tidegate};
use crate::harness::{eventually_true, grpc};
use crate::status_page;

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
    eventually_true("the change to be logged", || limiter.lines_with("in force") == 1);
    for wrong in ["/logging", "/logging?level=loud"] {
        let answer = post(wrong);
        assert!(answer.status == 400 && answer.body.contains("debug"), "{answer:?}");
    }
    assert_eq!(get(port, "/logging").expect("a page").body, "info\n");
    assert_eq!(limiter.lines_with("log level is now info"), 1);
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
fn the_limits_in_force_are_shown_after_a_reload() {
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
        assert!(stats.lines().any(|shown| shown == line), "no {line:?} in {stats}");
    }
    assert!(!stats.contains("user.over_limit: "), "what a limit never counted is left out: {stats}");
}

#[test]
fn nodes_have_one_hash_of_their_rules_until_one_gets_others() {
    let (one, other) =
        (Setup::new().rules("shop.yaml", RULES).start(), Setup::new().rules("a.yaml", RULES).start());
    let hash = |limiter: &Tidegate| {
        let (debug, scrape) = (limiter.ports().debug, limiter.scrape());
        let shown = get(debug, "/rlconfig").expect("a page").header("x-tidegate-rules").map(str::to_owned);
        let hash = shown.expect("a hash");
        assert_eq!(scrape.sum("tidegate_rules_info", &[("hash", &hash)]), 1.0);
        assert_eq!(scrape.sum("tidegate_rules_info", &[]), 1.0, "no hash of rules before");
        assert_eq!(status_page::state(limiter)["rules"]["hash"], *hash);
        hash
    };
    let before = hash(&one);
    assert_eq!(hash(&other), before);
    other.setup.write("a.yaml", &RULES.replace("requests_per_unit: 3", "requests_per_unit: 4"));
    eventually_true("the change to be taken", || {
        other.metric("ratelimit_service_config_load_success") == 2.0
    });
    assert_ne!(hash(&other), before);
    assert_eq!(hash(&one), before);
    other.setup.write("a.yaml", &(RULES.to_owned() + "# As before.\n"));
    eventually_true("the change to be taken", || {
        other.metric("ratelimit_service_config_load_success") == 3.0
    });
    assert_eq!(hash(&other), before);
}

/// A page is rendered as it is taken. One that nobody takes costs little, and nobody else waits for it.
#[test]
fn pages_that_nobody_takes_cost_little_memory_and_hold_nobody_up() {
    const LIMITS: usize = 20_000;
    let mut rules = RULES.to_owned();
    for limit in 1..LIMITS {
        let _ =
            writeln!(rules, "  - {{key: k{limit}, rate_limit: {{unit: day, requests_per_unit: {limit}}}}}");
    }
    let limiter = Setup::new().rules("shop.yaml", &rules).start();
    let port = limiter.ports().debug;
    let page = get(port, "/rlconfig?format=json").expect("a page").body;
    let limits: serde_json::Value = serde_json::from_str(&page).expect("JSON");
    assert_eq!(limits["limits"].as_array().map(Vec::len), Some(LIMITS));
    limiter.forget_memory_peak();
    let before = limiter.memory_peak_bytes();

    let (get_over_http, end) = ([0x82, 0x86], END_HEADERS | END_STREAM);
    let head = [&get_over_http[..], &field(0, ":path", "/rlconfig?format=json")].concat();
    let mut deaf = Attacker::connect(port);
    let asked = streams().take(100).flat_map(|stream| frame(kind::HEADERS, end, stream, &head));
    let asked: Vec<u8> = asked.collect();
    assert!(deaf.send(&[PREFACE, &settings(&[(INITIAL_WINDOW_SIZE, 0)]), &asked].concat()));
    let began = Instant::now();
    assert_eq!(get(port, "/metrics").expect("a page").status, 200);
    let waited = began.elapsed();
    // All hundred pages in full would take minutes, on a busy machine more.
    assert!(waited < Duration::from_secs(20), "a scrape took {waited:?}");
    let heard = deaf.hears("each to be answered or refused", |heard| {
        heard.frames(kind::HEADERS) + heard.frames(kind::RST_STREAM) == 100
    });
    assert_eq!((heard.frames(kind::HEADERS), heard.frames(kind::DATA)), (8, 0), "{heard:?}");
    let taken = limiter.memory_peak_bytes().saturating_sub(before);
    assert!(taken < 8 * MIB, "{taken} bytes");
}

/// What would end a line, move a cursor or turn the direction of writing.
const UNSAFE: &str = "x\r\nratelimit.forged 1\u{1b}[2J\u{85}\u{2028}\u{2029}\u{202e}\u{2066}\u{7f}y";

/// Characters of a page that are no part of a line of text.
fn unsafe_in(page: &str) -> Vec<char> {
    let is_unsafe = |char: &char| {
        *char != '\n' && (char.is_control() || UNSAFE.chars().any(|one| one == *char && !one.is_ascii()))
    };
    page.chars().filter(is_unsafe).collect()
}

#[test]
fn no_text_of_a_request_or_a_rule_forges_a_line_of_a_page() {
    let rules = format!(
        "domain: shop\ndescriptors:\n  - key: user\n    detailed_metric: true\n    \
         rate_limit: {{unit: day, requests_per_unit: 3, name: {name}}}\n  - key: {name}\n    \
         rate_limit: {{unit: day, requests_per_unit: 3}}\n",
        name = serde_json::to_string(UNSAFE).expect("a text").replace('\u{7f}', "\\u007f"),
    );
    let limiter = Setup::new().rules("shop.yaml", &rules).env("LOG_LEVEL", "debug").start();
    let ports = limiter.ports();
    let client = limiter.client();
    client.ask(grpc::question("shop", &[&[("user", UNSAFE)]]));
    client.ask(grpc::question(UNSAFE, &[&[("user", UNSAFE)]]));
    let body = serde_json::json!({"domain": "shop", "descriptors": [
        {"entries": [{"key": "user", "value": UNSAFE}]}, {"entries": [{"key": UNSAFE, "value": UNSAFE}]},
        {"entries": [{"key": "nobody", "value": UNSAFE}]},
    ]})
    .to_string();
    let mut debug = Client::new(ports.debug);
    let mut http = Client::new(ports.http);
    let mut ask = |path| debug.send("POST", path, &[], &body).expect("an answer").body;
    let pages = [ask("/ask"), ask("/ask?format=json")];
    let known: serde_json::Value = serde_json::from_str(&pages[1]).expect("JSON");
    assert_eq!(known["descriptors"][0]["entries"][0]["value"], UNSAFE, "JSON means what it meant");
    let get = |path| get(ports.debug, path).expect("a page").body;
    let pages = pages
        .into_iter()
        .chain(["/stats", "/rlconfig", "/rlconfig?format=yaml", "/rlconfig?format=json"].map(get));
    // An unknown key comes back in the message.
    let wrong = serde_json::json!({"domain": "shop", UNSAFE: 1}).to_string();
    let refused = http.send("POST", "/json", &[], &wrong).expect("an answer").body;
    let escaped = "/check/shop?~a%0Aforged%1B%5B2J%C2%85%E2%80%A8%E2%80%AE=1";
    let unknown = http.send("GET", escaped, &[], "").expect("an answer").body;
    for page in pages.chain([refused, unknown]) {
        assert!(page.contains("forged"), "{page:?}");
        assert!(unsafe_in(&page).is_empty(), "{page:?}");
        assert!(
            !page.lines().any(|line| line.starts_with("ratelimit.forged") || line.starts_with("forged")),
            "{page}"
        );
    }
}
