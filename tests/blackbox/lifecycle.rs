//! The process: how it starts, what it says, how it refuses to start, how it ends.

use std::io::{BufReader, Write};
use std::net::TcpListener;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tonic::Code;

use crate::harness::process::Process;
use crate::harness::tidegate::{Setup, Tidegate};
use crate::harness::{eventually, eventually_true, grpc, http};

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 3}
";

const USER: &[(&str, &str)] = &[("user", "alice")];

fn question() -> grpc::RateLimitRequest {
    grpc::question("shop", &[USER])
}

/// Fails to start with this exit code. Returns what it said, which has to be short: no backtrace, no noise.
fn refusal(setup: &Setup, code: i32) -> String {
    let mut process = setup.spawn();
    let observed = process.exit_code();
    let output = process.output();
    assert_eq!(observed, code, "{}", output.join("\n"));
    assert!(!output.iter().any(|line| line.contains("panicked")), "{output:?}");
    output.join("\n")
}

/// The lines of a refusal that are about this, of which there has to be exactly one.
fn only_line<'a>(output: &'a str, about: &str) -> &'a str {
    let lines: Vec<_> = output.lines().filter(|line| line.contains(about)).collect();
    assert_eq!(lines.len(), 1, "one line about {about:?} in:\n{output}");
    lines[0]
}

#[test]
fn it_says_where_it_listens_what_it_loaded_and_how_to_try_it() {
    let limiter = Setup::new().rules("shop.yaml", RULES).start();
    let ports = limiter.ports();
    // It was written before the limiter was ready, and may be read after.
    eventually_true("the last of what it says", || limiter.lines_with("try: ") == 1);
    for port in [ports.grpc, ports.http, ports.debug, ports.metrics] {
        let address = format!("127.0.0.1:{port}");
        assert!(limiter.lines_with(&address) >= 1, "no {address} in {:#?}", limiter.output());
    }
    for word in
        ["rules: 1 limit", "store: memory", "sliding_window", "MAX_COUNTER_BYTES=", "MAX_DESCRIPTORS=64"]
    {
        assert!(limiter.lines_with(word) >= 1, "no {word} in {:#?}", limiter.output());
    }
    // The curl line works as it stands.
    let output = limiter.output();
    let curl = output.iter().find(|line| line.contains("curl ")).expect("a line to try");
    let body = curl.split('\'').find(|part| part.starts_with('{')).expect("a body in quotes");
    assert!(curl.contains(&format!("127.0.0.1:{}/json", ports.http)), "{curl}");
    let answer = http::Client::new(ports.http).send("POST", "/json", &[], body).expect("an answer");
    assert_eq!(answer.status, 200, "{answer:?}");
    assert!(answer.body.contains("\"overallCode\":\"OK\""), "{answer:?}");
}

#[test]
fn in_the_repository_it_serves_config() {
    let limiter = Setup::new().directory(env!("CARGO_MANIFEST_DIR")).env("CONFIG_PATH", "").start();
    let client = limiter.client();
    let remaining = |entries| client.ask(grpc::question("shop", &[entries])).statuses[0].limit_remaining;
    assert_eq!(remaining(&[("user", "alice")]), 99);
    assert_eq!(remaining(&[("user", "bob")]), 999);
    assert_eq!(remaining(&[("user", "robot-1")]), 599);
    assert_eq!(remaining(&[("user", "robot-2")]), 598, "robots share a counter");
    assert_eq!(remaining(&[("route", "login"), ("remote_address", "203.0.113.1")]), 4);
    assert_eq!(remaining(&[("route", "search")]), 49);
    assert_eq!(remaining(&[("route", "assets")]), 9999);
    assert_eq!(limiter.metric("tidegate_rules_warnings"), 0.0);
}

#[test]
fn an_empty_folder_serves_where_it_may_and_everything_passes() {
    for (may_be_empty, forced) in [("true", "false"), ("false", "true")] {
        let limiter = Setup::new()
            .env("RULES_MAY_BE_EMPTY", may_be_empty)
            .env("FORCE_START_WITHOUT_INITIAL_CONFIG", forced)
            .start();
        let answer = limiter.client().ask(question());
        assert_eq!(answer.overall_code, grpc::OK);
        assert_eq!(answer.statuses[0].current_limit, None);
        assert_eq!(
            limiter.scrape().sum("ratelimit_service_rate_limit_domain_not_found", &[("domain", "shop")]),
            1.0
        );
    }
}

#[test]
fn a_folder_without_rules_ends_the_start_and_what_mends_it_is_named() {
    let setup = Setup::new().env("RULES_MAY_BE_EMPTY", "false");
    for skipped in [None, Some("README.md"), Some("shop.yaml.disabled"), Some(".shop.yaml")] {
        let _ = skipped.map(|name| setup.write(name, RULES));
        let output = refusal(&setup, 1);
        let line = only_line(&output, "CONFIG_PATH");
        assert!(line.contains("/rules: no rules are here (expected "), "{line}");
        assert!(line.contains("RULES_MAY_BE_EMPTY=true") && line.contains(".yaml or .yml"), "{line}");
        assert!(skipped.is_none_or(|name| output.contains(name)), "what was skipped is logged: {output}");
    }
}

/// Any file of such a tree is rules, but one that is not called YAML only if it says so.
#[test]
fn a_runtime_tree_without_rules_ends_the_start_too() {
    let setup = Setup::new().env("RULES_MAY_BE_EMPTY", "false");
    std::fs::create_dir(setup.folder().join("config")).expect("the folder is ours");
    let root = setup.folder().display().to_string();
    let setup = setup.env("CONFIG_PATH", "").env("RUNTIME_ROOT", &root);
    for file in [None, Some(("config/README", "Ask the platform team.\n")), Some(("config/shop", ""))] {
        let _ = file.map(|(name, text)| setup.write(name, text));
        let output = refusal(&setup, 1);
        let line = only_line(&output, "no rules are here");
        assert!(line.contains("/rules/config: ") && line.contains("RUNTIME_ROOT"), "{line}");
    }
}

#[test]
fn a_port_that_is_taken_ends_the_start() {
    let setup = Setup::new().rules("shop.yaml", RULES).env("USE_PROMETHEUS", "true");
    for port in [setup.ports.grpc, setup.ports.http, setup.ports.metrics] {
        let _taken = TcpListener::bind(("127.0.0.1", port)).expect("the port is free");
        let output = refusal(&setup, 1);
        let line = only_line(&output, "in use");
        assert!(line.contains(&format!("127.0.0.1:{port}")), "{line}");
    }
}

#[test]
fn all_ports_that_cannot_be_had_are_reported_at_once_each_with_its_setting_and_a_remedy() {
    let setup = Setup::new().rules("shop.yaml", RULES).env("USE_PROMETHEUS", "true");
    let ports = [setup.ports.grpc, setup.ports.http, setup.ports.metrics];
    let _taken = ports.map(|port| TcpListener::bind(("127.0.0.1", port)).expect("the port is free"));
    let output = refusal(&setup, 1);
    for (port, setting) in ports.into_iter().zip(["GRPC_PORT", "PORT", "PROMETHEUS_ADDR"]) {
        let line = only_line(&output, &format!("cannot listen on 127.0.0.1:{port}: "));
        assert!(line.contains("in use"), "{line}");
        assert!(line.ends_with(&format!("end that, or set {setting} to another port")), "{line}");
    }
    let nowhere =
        Setup::new().rules("shop.yaml", RULES).env("HOST", "192.0.2.1").env("GRPC_UDS", "/no/where");
    let output = refusal(&nowhere, 1);
    assert!(only_line(&output, "192.0.2.1").ends_with("set HOST to an address of this machine"), "{output}");
    assert!(only_line(&output, "/no/where").contains("set GRPC_UDS to a path in a folder"), "{output}");
}

#[test]
fn a_debug_or_defaulted_metrics_port_that_is_taken_is_a_warning() {
    let setup = Setup::new().rules("shop.yaml", RULES);
    let taken = [setup.ports.debug, setup.ports.metrics];
    let _taken = taken.map(|port| TcpListener::bind(("127.0.0.1", port)).expect("the port is free"));
    let limiter = setup.start();
    assert_eq!(limiter.client().ask(question()).overall_code, grpc::OK);
    for port in taken {
        let shown =
            limiter.output().iter().any(|line| line.contains("WARN") && line.contains(&port.to_string()));
        assert!(shown, "no warning of {port} in {:#?}", limiter.output());
    }
}

#[test]
fn a_missing_folder_ends_the_start() {
    let setup = Setup::new().env("CONFIG_PATH", "/nonexistent/rules");
    let output = refusal(&setup, 1);
    let line = only_line(&output, "/nonexistent/rules");
    assert!(line.contains("No such file") && line.contains("CONFIG_PATH names the file or folder"), "{line}");
    let nothing_set = Setup::new().env("CONFIG_PATH", "");
    let output = refusal(&nothing_set, 1);
    only_line(
        &output,
        "cannot read the rules: config: No such file or directory (os error 2) (set CONFIG_PATH to ",
    );
    let root = nothing_set.env("RUNTIME_ROOT", "/nonexistent");
    only_line(
        &refusal(&root, 1),
        "/nonexistent/config: No such file or directory (os error 2) (RUNTIME_ROOT, ",
    );
}

#[test]
fn a_bad_set_ends_the_start_with_every_problem_at_its_place() {
    let setup = Setup::new()
        .rules(
            "a.yaml",
            "domain: a\ndescriptors:\n  - key: k\n    rate_limit: {unit: fortnight, requests_per_unit: -1}\n",
        )
        .rules("b.yaml", "domain: b\ndescriptor: []\n")
        .rules("c.yaml", "domain: a\n");
    let output = refusal(&setup, 1);
    for place in ["a.yaml:4:24: ", "a.yaml:4:54: ", "b.yaml:2:1: ", "c.yaml:1:9: "] {
        let line = only_line(&output, place);
        assert!(line.contains('(') && line.contains(')'), "says what was expected: {line}");
    }
}

#[test]
fn a_warning_is_logged_at_its_place_and_refuses_only_when_rules_are_strict() {
    let setup = Setup::new().rules("shop.yaml", &format!("{RULES}    unit: day\n"));
    let shown = |output: &str| only_line(output, "shop.yaml:6:5: ").contains("unit");
    assert!(shown(&refusal(&setup.env("STRICT_RULES", "true"), 1)));
    let limiter = Setup::new().rules("shop.yaml", &format!("{RULES}    unit: day\n")).start();
    assert!(shown(&limiter.output().join("\n")));
    assert_eq!(limiter.metric("tidegate_rules_warnings"), 1.0);
    assert_eq!(limiter.client().ask(question()).statuses[0].limit_remaining, 2);
}

#[test]
fn forced_to_start_with_a_bad_set_it_has_no_answer_until_a_good_one_comes() {
    let setup =
        Setup::new().env("FORCE_START_WITHOUT_INITIAL_CONFIG", "true").rules("shop.yaml", "domain: ''\n");
    let process = setup.spawn();
    let client = grpc::Client::new(setup.ports.grpc);
    let refused = |message: &str| client.call(question()).is_err_and(|status| status.message() == message);
    eventually_true("the port to open", || refused("no rate limit configuration loaded"));
    let status = client.call(question()).expect_err("nothing is loaded");
    assert_eq!(status.code(), Code::Unavailable);
    setup.write("shop.yaml", RULES);
    eventually_true("the good set", || client.call(question()).is_ok());
    assert_eq!(client.ask(grpc::ask_only("shop", &[USER])).statuses[0].limit_remaining, 2);
    drop(process);
}

#[test]
fn bad_settings_are_all_reported_at_once() {
    let setup =
        Setup::new().env("GRPC_PORT", "many").env("DRAIN_GRACE", "soon").env("DEFAULT_ALGORITHM", "guess");
    let output = refusal(&setup, 64);
    for name in ["GRPC_PORT", "DRAIN_GRACE", "DEFAULT_ALGORITHM"] {
        let line = only_line(&output, name);
        assert!(line.contains("expected"), "{line}");
    }
    let setup = Setup::new().env("BACKEND_TYPE", "memcache");
    only_line(&refusal(&setup, 64), "BACKEND_TYPE");
}

#[test]
fn a_bad_command_line_is_refused() {
    let output = refusal(&Setup::new().arg("--no-such-flag"), 64);
    assert!(output.contains("--no-such-flag"), "{output}");
    let output = refusal(&Setup::new().arg("--grpc-port").arg("many"), 64);
    assert!(output.contains("many"), "{output}");
}

#[test]
fn a_flag_wins_over_the_variable() {
    let setup = Setup::new().rules("shop.yaml", RULES);
    let port = setup.ports.http;
    let limiter = setup.env("PORT", "1").arg("--port").arg(&port.to_string()).start();
    assert_eq!(http::Client::new(limiter.ports().http).get("/livez").status, 200);
}

#[test]
fn sigterm_turns_health_waits_the_grace_and_ends_with_0() {
    let mut limiter = Setup::new().rules("shop.yaml", RULES).env("DRAIN_GRACE", "5s").start();
    let ports = limiter.ports();
    let client = limiter.client();
    assert_eq!(client.health("").expect("served"), 1);
    assert_eq!(client.health("ratelimit").expect("served"), 1);
    assert_eq!(client.health("else").expect_err("unknown").code(), Code::NotFound);
    let watch = client.watch("ratelimit");
    assert_eq!(watch.recv(), Ok(1));

    limiter.signal(Signal::TERM);
    eventually_true("health to turn", || client.health("ratelimit").is_ok_and(|status| status == 2));
    assert_eq!(client.health("").expect("still served"), 2);
    assert_eq!(http::get(ports.http, "/readyz").expect("still served").status, 500);
    assert_eq!(http::get(ports.http, "/healthcheck").expect("still served").status, 500);
    assert_eq!(http::get(ports.http, "/livez").expect("still served").status, 200);
    assert_eq!(watch.recv(), Ok(2), "watchers hear of it");
    // In the grace new connections are served: balancers have not all seen the health yet.
    assert_eq!(limiter.client().ask(question()).overall_code, grpc::OK);

    eventually_true("the gRPC port to close", || http::connect(ports.grpc).is_err());
    assert!(watch.recv().is_err(), "Watch streams end");
    assert_eq!(limiter.exit_code(), 0, "{:#?}", limiter.output());
}

#[test]
fn running_requests_finish_while_new_connections_are_refused() {
    let mut limiter = Setup::new().rules("shop.yaml", RULES).start();
    let ports = limiter.ports();
    // Two requests have begun: one of each front has its head sent, and not yet its body.
    let client = limiter.client();
    let (message, messages) = tokio::sync::mpsc::channel(1);
    client.ask(question());
    let call = client.begin(tokio_stream::wrappers::ReceiverStream::new(messages));
    let body = r#"{"domain":"shop","descriptors":[{"entries":[{"key":"user","value":"alice"}]}]}"#;
    let mut stream = http::connect(ports.http).expect("it listens");
    write!(stream, "POST /json HTTP/1.1\r\nhost: t\r\ncontent-length: {}\r\n\r\n{{", body.len())
        .expect("connected");
    // Both have arrived when a request that began later is answered.
    client.ask(question());
    http::get(ports.http, "/livez").expect("it listens");

    limiter.signal(Signal::TERM);
    eventually_true("the gRPC port to close", || http::connect(ports.grpc).is_err());
    eventually_true("the HTTP port to close", || http::connect(ports.http).is_err());
    assert!(limiter.ended().is_none(), "two requests are running: {:#?}", limiter.output());

    message.try_send(question()).expect("the call waits for it");
    drop(message);
    let answer = client.finish(call).expect("a running call finishes");
    assert_eq!((answer.overall_code, answer.statuses[0].limit_remaining), (grpc::OK, 0));
    stream.write_all(&body.as_bytes()[1..]).expect("connected");
    let answer = http::read_answer(&mut BufReader::new(stream), false).expect("a running request finishes");
    assert_eq!(answer.status, 429, "{answer:?}");
    assert_eq!(limiter.exit_code(), 0, "{:#?}", limiter.output());
}

#[test]
fn a_request_that_never_ends_does_not_hold_the_end_beyond_its_bound() {
    let mut limiter = Setup::new().rules("shop.yaml", RULES).start();
    let mut stream = http::connect(limiter.ports().http).expect("it listens");
    write!(stream, "POST /json HTTP/1.1\r\nhost: t\r\ncontent-length: 9\r\n\r\n{{").expect("connected");
    http::get(limiter.ports().http, "/livez").expect("it listens");
    let asked = Instant::now();
    limiter.signal(Signal::TERM);
    assert_eq!(limiter.exit_code(), 0, "{:#?}", limiter.output());
    assert!(asked.elapsed() < Duration::from_secs(20), "the bound is 10 s: {:?}", asked.elapsed());
}

#[test]
fn a_second_signal_ends_at_once() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut limiter = Setup::new().rules("shop.yaml", RULES).env("DRAIN_GRACE", "600s").start();
        limiter.signal(signal);
        turned(&limiter);
        limiter.signal(signal);
        eventually("the end", || limiter.ended());
    }
}

fn turned(limiter: &Tidegate) {
    let port = limiter.ports().http;
    eventually_true("health to turn", || http::get(port, "/readyz").is_ok_and(|answer| answer.status == 500));
}

/// Rules that take a moment to load.
fn many_rules() -> String {
    let mut rules = "domain: shop\ndescriptors:\n".to_owned();
    for user in 0..50_000 {
        rules +=
            &format!("  - {{key: user, value: u{user}, rate_limit: {{unit: day, requests_per_unit: 3}}}}\n");
    }
    rules
}

#[test]
fn a_hangup_takes_the_rules_again_whether_they_changed_or_not() {
    let mut limiter = Setup::new().rules("shop.yaml", RULES).start();
    let loaded = |limiter: &Tidegate| limiter.lines_with("rules: 1 limit in 1 domain from 1 file in force");
    limiter.client().ask(question());
    limiter.signal(Signal::HUP);
    eventually_true("the rules to be taken again", || loaded(&limiter) == 2);
    assert_eq!(limiter.client().ask(question()).statuses[0].limit_remaining, 1, "counts stay");
    limiter.setup.write("shop.yaml", "domain: ''\n");
    eventually_true("the bad set", || limiter.lines_with("rules: refused for 1 problem") == 1);
    limiter.signal(Signal::HUP);
    eventually_true("the bad set again", || limiter.lines_with("rules: refused for 1 problem") == 2);
    assert_eq!(limiter.client().ask(question()).statuses[0].limit_remaining, 0, "the good set stays");
    // Nor does one end it that is about to end by itself.
    limiter.signal(Signal::TERM);
    limiter.signal(Signal::HUP);
    assert_eq!(limiter.exit_code(), 0, "{:#?}", limiter.output());
}

#[test]
fn a_hangup_while_starting_ends_nothing_and_is_not_forgotten() {
    // On a busy machine it may have loaded all before anybody looks.
    assert!((0..10).any(|_| is_hung_up_while_loading()), "it still loads");
}

/// Sends a hangup as soon as it is heeded, of which a limiter has to take its rules again. Whether it still loaded them.
fn is_hung_up_while_loading() -> bool {
    let setup = Setup::new().rules("shop.yaml", &many_rules());
    let process = setup.spawn();
    eventually_true("it to heed a hangup", || process.catches(Signal::HUP));
    let still_loads = process.lines_with("in force") == 0;
    process.signal(Signal::HUP);
    let limiter = Tidegate::of(process, setup);
    eventually_true("the rules to be taken again", || {
        limiter.lines_with("1 domain from 1 file in force") == 2
    });
    still_loads
}

#[test]
fn a_signal_works_while_starting() {
    let setup = Setup::new().rules("shop.yaml", &many_rules());
    for wait in [0, 20, 100] {
        let mut process: Process = setup.spawn();
        std::thread::sleep(Duration::from_millis(wait)); // Moments to hit, not something to wait for.
        process.signal(Signal::TERM);
        eventually("the end", || process.ended());
    }
}
