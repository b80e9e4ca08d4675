//! Rules from a control plane: one that is good, bad, flapping, silent, restarting, and one that asks who we are.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::control_plane::ControlPlane;
use crate::harness::grpc::{OK, OVER_LIMIT, ask_only, question};
use crate::harness::process::Process;
use crate::harness::tidegate::{Setup, Tidegate};
use crate::harness::{eventually_true, free_port, http};

const USER: &[(&str, &str)] = &[("user", "alice")];

/// A limit of so many requests a day for each user.
fn config(name: &str, domain: &str, requests: u32) -> Value {
    json!({"name": name, "domain": domain,
           "descriptors": [{"key": "user", "rate_limit": {"unit": "DAY", "requests_per_unit": requests}}]})
}

/// A limiter that follows this port, and asks again after a moment.
fn follower(port: u16) -> Setup {
    Setup::new()
        .env("CONFIG_TYPE", "GRPC_XDS_SOTW")
        .env("CONFIG_GRPC_XDS_SERVER_URL", &format!("127.0.0.1:{port}"))
        .env("CONFIG_GRPC_XDS_NODE_ID", "tests")
        .env("CONFIG_GRPC_XDS_NODE_METADATA", "zone=a=b,skipped")
        .env("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "x-tenant:blue")
        .env("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "50ms")
        .env("XDS_CLIENT_BACKOFF_MAX_INTERVAL", "100ms")
}

/// A limiter with its first rules, version 1, and the control plane that it has them from.
fn following(first: &Value) -> (ControlPlane, Tidegate) {
    let mut plane = ControlPlane::start();
    let setup = follower(plane.port);
    let process = setup.spawn();
    plane.event(0, "stream");
    plane.send("1", "n1", first);
    let limiter = Tidegate::of(process, setup);
    plane.event(1, "request");
    (plane, limiter)
}

fn version(request: &Value) -> &str {
    request.get("versionInfo").and_then(Value::as_str).unwrap_or_default()
}

fn nonce(request: &Value) -> &str {
    request.get("responseNonce").and_then(Value::as_str).unwrap_or_default()
}

/// What a NACK says.
fn refusal(request: &Value) -> &str {
    request.pointer("/errorDetail/message").and_then(Value::as_str).unwrap_or_default()
}

fn ready(process: &Process, port: u16) -> Option<String> {
    let answer = http::get(port, "/readyz").ok()?;
    assert!(process.output().iter().all(|line| !line.contains("panicked")), "{:?}", process.output());
    Some(format!("{} {}", answer.status, answer.body.trim()))
}

#[test]
fn the_first_state_of_the_world_makes_it_ready_and_is_acknowledged() {
    let mut plane = ControlPlane::start();
    let setup = follower(plane.port);
    let process = setup.spawn();

    let subscription = plane.event(0, "request");
    assert_eq!(subscription.pointer("/node/id"), Some(&json!("tests")));
    assert_eq!(subscription.pointer("/node/metadata"), Some(&json!({"zone": "a=b"})));
    let type_url = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";
    assert_eq!(subscription.get("typeUrl"), Some(&json!(type_url)));
    assert_eq!((version(&subscription), nonce(&subscription)), ("", ""));
    assert_eq!(subscription.get("resourceNames"), None);
    assert_eq!(plane.event(0, "headers").get("x-tenant"), Some(&json!("blue")));

    eventually_true("the port of probes", || {
        ready(&process, setup.ports.http).is_some_and(|shown| shown.starts_with("500 "))
    });
    let json = r#"{"domain":"shop","descriptors":[{"entries":[{"key":"user","value":"alice"}]}]}"#;
    let answer = http::Client::new(setup.ports.http).send("POST", "/json", &[], json).expect("an answer");
    assert_eq!(answer.status, 500, "{answer:?}");
    assert!(answer.body.contains("no rate limit configuration loaded"), "{answer:?}");

    plane.send("1", "n1", &json!([config("gateway/shop", "shop", 2), config("gateway/api", "api", 1)]));
    let limiter = Tidegate::of(process, setup);
    let ack = plane.event(1, "request");
    assert_eq!((version(&ack), nonce(&ack), refusal(&ack)), ("1", "n1", ""));
    assert_eq!(ack.pointer("/node/id"), Some(&json!("tests")), "who asks stands in every request");
    let client = limiter.client();
    let codes = [(); 3].map(|()| client.ask(question("shop", &[USER])).overall_code);
    assert_eq!(codes, [OK, OK, OVER_LIMIT]);
    assert_eq!(client.ask(ask_only("api", &[USER])).statuses[0].limit_remaining, 1);
}

#[test]
fn every_field_of_a_resource_means_what_it_means_in_a_file() {
    let first = json!([{"name": "all", "domain": "shop", "descriptors": [
        {"key": "user", "value": "vip*", "rate_limit": {"unlimited": true}},
        {"key": "user", "descriptors": [
            {"key": "path", "value": "/\"quoted\"\\\n", "shadow_mode": true,
             "rate_limit": {"unit": "WEEK", "requests_per_unit": 1, "name": "paths", "replaces": [{"name": "all"}]}},
        ]},
        {"key": "all", "rate_limit": {"unit": "DAY", "requests_per_unit": 5, "name": "all"}},
    ]}]);
    let (_plane, limiter) = following(&first);
    let client = limiter.client();
    let vip = client.ask(question("shop", &[&[("user", "vip-1")]]));
    assert_eq!((vip.statuses[0].limit_remaining, &vip.statuses[0].current_limit), (u32::MAX, &None));
    let path: &[_] = &[("user", "bob"), ("path", "/\"quoted\"\\\n")];
    let week = 7;
    for (ask, remaining) in [(1, 0), (2, 0)] {
        let answer = client.ask(question("shop", &[path, &[("all", "")]]));
        assert_eq!(answer.overall_code, OK, "shadow mode, ask {ask}");
        let limit = answer.statuses[0].current_limit.as_ref().expect("a limit");
        assert_eq!((limit.unit, limit.requests_per_unit, limit.name.as_str()), (week, 1, "paths"));
        assert_eq!(answer.statuses[0].limit_remaining, remaining);
        assert_eq!(answer.statuses[1].current_limit, None, "replaced");
    }
}

#[test]
fn a_bad_state_is_refused_with_every_problem_and_the_last_good_one_stays() {
    let (mut plane, limiter) = following(&json!([config("gateway", "shop", 2)]));
    let bad = json!([
        {"name": "bad", "domain": "", "descriptors": [
            {"key": "", "rate_limit": {"unit": "DAY", "requests_per_unit": 1}},
            {"key": "a", "descriptors": [{"key": "b", "rate_limit": {"requests_per_unit": 1}}]},
        ]},
        config("one", "shop", 1),
        config("two", "shop", 1),
    ]);
    plane.send("2", "n2", &bad);
    let nack = plane.event(2, "request");
    assert_eq!((version(&nack), nonce(&nack)), ("1", "n2"), "{nack}");
    let refusal = refusal(&nack);
    for problem in [
        "bad: `domain` is missing or empty",
        "bad: descriptors[0]: `key` is missing or empty",
        "bad: descriptors[1].descriptors[0]: no window",
        "two: ",
    ] {
        assert!(refusal.contains(problem), "{problem}\n{refusal}");
    }
    assert_eq!(limiter.client().ask(ask_only("shop", &[USER])).statuses[0].limit_remaining, 2);
    eventually_true("the failure to be counted", || {
        limiter.metric("ratelimit_service_config_load_error") == 1.0
    });

    plane.send("3", "n3", &json!([config("gateway", "shop", 9)]));
    let ack = plane.event(3, "request");
    assert_eq!((version(&ack), nonce(&ack), self::refusal(&ack)), ("3", "n3", ""));
    assert_eq!(limiter.client().ask(ask_only("shop", &[USER])).statuses[0].limit_remaining, 9);
}

#[test]
fn a_flapping_control_plane_is_answered_one_by_one_and_the_last_state_counts() {
    let (mut plane, limiter) = following(&json!([config("gateway", "shop", 100)]));
    for step in 2..=40_u32 {
        let state = if step % 3 == 0 { json!([{"name": "bad"}]) } else { json!([config("g", "shop", step)]) };
        plane.send(&step.to_string(), &format!("n{step}"), &state);
    }
    for step in 2..=40_u32 {
        let request = plane.event(step as usize, "request");
        let in_force = if step % 3 == 0 { step - 1 } else { step };
        assert_eq!((version(&request), nonce(&request)), (&*in_force.to_string(), &*format!("n{step}")));
    }
    assert_eq!(limiter.client().ask(ask_only("shop", &[USER])).statuses[0].limit_remaining, 40);
    plane.send("41", "n41", &json!([]));
    plane.event(41, "request");
    let empty = limiter.client().ask(question("shop", &[USER]));
    assert_eq!(
        (empty.overall_code, &empty.statuses[0].current_limit),
        (OK, &None),
        "no resources: no domains"
    );
}

#[test]
fn a_restarted_control_plane_is_asked_for_all_of_its_state() {
    let (mut plane, limiter) = following(&json!([config("gateway", "shop", 2)]));
    plane.end_stream();
    plane.event(1, "stream");
    let resumed = plane.event(2, "request");
    // It may have counted from 1 again: it would not send another state with the version in force.
    assert_eq!((version(&resumed), nonce(&resumed)), ("", ""));

    let port = plane.port;
    drop(plane);
    assert_eq!(limiter.client().ask(ask_only("shop", &[USER])).statuses[0].limit_remaining, 2);
    let mut plane = ControlPlane::on(port, &[]);
    assert_eq!(version(&plane.event(0, "request")), "");
    assert_eq!(limiter.client().ask(ask_only("shop", &[USER])).statuses[0].limit_remaining, 2);
    plane.send("1", "n1", &json!([config("gateway", "shop", 8)]));
    assert_eq!(version(&plane.event(1, "request")), "1");
    assert_eq!(limiter.client().ask(ask_only("shop", &[USER])).statuses[0].limit_remaining, 8);
}

#[test]
fn a_silent_or_absent_control_plane_keeps_nobody_from_ending_it() {
    let plane = ControlPlane::start();
    for port in [plane.port, free_port()] {
        let setup = follower(port);
        let mut process = setup.spawn();
        eventually_true("the port of probes", || ready(&process, setup.ports.http).is_some());
        process.signal(Signal::TERM);
        assert_eq!(process.exit_code(), 0);
    }
    plane.event(0, "stream");
    let forced = follower(plane.port).env("FORCE_START_WITHOUT_INITIAL_CONFIG", "true").start();
    let refused = forced.client().call(question("shop", &[USER])).expect_err("no rules");
    assert_eq!(refused.code(), tonic::Code::Unavailable);
}

/// The pauses that a limiter has logged, in milliseconds.
fn pauses(process: &Process) -> Vec<f64> {
    let pause = |line: &String| {
        let pause = line.split_once("next attempt in ")?.1.split_once(')')?.0;
        let millis = pause.strip_suffix("ms").map(|millis| millis.parse());
        let seconds = || pause.strip_suffix('s').map(|secs| secs.parse().map(|secs: f64| secs * 1_000.0));
        Some(millis.or_else(seconds)?.expect("a number"))
    };
    process.output().iter().filter_map(pause).collect()
}

#[test]
fn pauses_before_a_lost_stream_is_opened_again_grow_by_the_factor_and_are_drawn_with_jitter() {
    let pauses = |jitter: &str| {
        let mut plane = ControlPlane::start();
        let setup = follower(plane.port)
            .env("XDS_CLIENT_BACKOFF_RANDOM_FACTOR", "1.5")
            .env("XDS_CLIENT_BACKOFF_JITTER", jitter);
        let process = setup.spawn();
        for stream in 0..5 {
            plane.event(stream, "stream");
            plane.end_stream();
            eventually_true("the loss", || pauses(&process).len() > stream);
        }
        pauses(&process)
    };
    assert_eq!(pauses("false"), [50.0, 75.0, 100.0, 100.0, 100.0]);
    let drawn = pauses("true");
    assert!(drawn.iter().all(|pause| (50.0..=100.0).contains(pause)), "{drawn:?}");
    assert!(drawn[3] != drawn[4] && drawn[3] != 100.0, "{drawn:?}");
}

/// With the default settings: a lost stream waits 10 s, a control plane that was never there does not.
#[test]
fn a_control_plane_that_starts_later_is_tried_again_after_a_second() {
    let port = free_port();
    let setup = Setup::new()
        .env("CONFIG_TYPE", "GRPC_XDS_SOTW")
        .env("CONFIG_GRPC_XDS_SERVER_URL", &format!("127.0.0.1:{port}"));
    let process = setup.spawn();
    eventually_true("the second attempt", || pauses(&process).len() >= 2);
    let tried = pauses(&process);
    assert_eq!(tried[0], 1_000.0);
    assert!((1_000.0..=1_600.0).contains(&tried[1]), "{tried:?}");
    let mut plane = ControlPlane::on(port, &[]);
    plane.event(0, "stream");
    plane.send("1", "n1", &json!([config("gateway", "shop", 2)]));
    let limiter = Tidegate::of(process, setup);
    assert_eq!(limiter.client().ask(ask_only("shop", &[USER])).statuses[0].limit_remaining, 2);
}

#[test]
fn a_login_in_the_address_of_a_control_plane_is_not_logged() {
    let mut plane = ControlPlane::start();
    let address = format!("u:hunter2@127.0.0.1:{}", plane.port);
    let setup = follower(plane.port).env("CONFIG_GRPC_XDS_SERVER_URL", &address);
    let process = setup.spawn();
    let place = format!("…@127.0.0.1:{}", plane.port);
    plane.event(0, "stream");
    plane.send("1", "n1", &json!([config("gateway", "shop", 2)]));
    eventually_true("the stream", || process.lines_with(&format!("rules: following {place}")) > 0);
    drop(plane);
    eventually_true("its end", || process.lines_with(&format!("rules: no stream from {place}")) > 0);
    assert_eq!(process.lines_with("hunter2"), 0, "{:#?}", process.output());
}

#[test]
fn a_warning_of_a_control_planes_rules_is_logged_once() {
    let warned = |requests: u32| {
        json!([{"name": "gateway", "domain": "shop", "descriptors": [
            {"key": "user", "rate_limit": {"unit": "DAY", "requests_per_unit": requests}},
            {"key": "a*", "rate_limit": {"unit": "DAY", "requests_per_unit": 1}},
        ]}])
    };
    let (mut plane, limiter) = following(&warned(1));
    for version in 2..=3_u32 {
        plane.send(&version.to_string(), &format!("n{version}"), &warned(version));
        plane.event(version as usize, "request");
    }
    assert_eq!(limiter.client().ask(ask_only("shop", &[USER])).statuses[0].limit_remaining, 3);
    assert_eq!(limiter.lines_with("in the key `a*` is an ordinary character"), 1, "{:?}", limiter.output());
}

/// The server of most control planes answers a refusal with the same state at once, for ever.
#[test]
fn go_control_plane_is_refused_a_few_times_a_second_and_its_correction_is_taken() {
    let port = free_port();
    let mut plane = Process::spawn_with_input(Command::new("plane").arg(port.to_string()));
    eventually_true("the control plane", || plane.lines_with("listening") == 1);
    let setup = follower(port);
    let process = setup.spawn();
    plane.input("1 2");
    let limiter = Tidegate::of(process, setup);
    plane.input("2 none");
    let began = Instant::now();
    // Held back for 0, 100, 200, 400 and 800 ms, and from then on no shorter. Without pauses there are thousands of them after
    // 1.5 s.
    let refused = || plane.lines_with("refused");
    eventually_true("five refusals", || refused() >= 5);
    let (refusals, seconds) = (refused(), began.elapsed().as_secs() as usize);
    assert!(refusals <= 5 + 2 * seconds, "{refusals} refusals in {seconds} s");
    assert_eq!(limiter.lines_with("descriptors[0]: no window"), 1, "logged once");
    eventually_true("all of them to be counted", || {
        limiter.metric("ratelimit_service_config_load_error") >= 5.0
    });
    plane.input("3 9");
    eventually_true("the correction", || {
        limiter.client().ask(ask_only("shop", &[USER])).statuses[0].limit_remaining == 9
    });
}

#[test]
fn a_message_may_be_as_large_as_was_set() {
    let mut plane = ControlPlane::start();
    let setup = follower(plane.port).env("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "1000");
    let process = setup.spawn();
    plane.event(0, "stream");
    plane.send("1", "n1", &json!([config("g", "shop", 2)]));
    let limiter = Tidegate::of(process, setup);
    plane.event(1, "request");
    plane.send("2", "n2", &json!([config(&"g".repeat(1_000), "shop", 3)]));
    eventually_true("it to be too large", || limiter.lines_with("no stream from") == 1);
    plane.event(2, "request");
    assert_eq!(limiter.client().ask(ask_only("shop", &[USER])).statuses[0].limit_remaining, 2);
}

/// Files of an authority, of a server's certificate for this name, and of a client's.
struct Certificates(tempfile::TempDir);

impl Certificates {
    fn new(server_name: &str) -> Self {
        let files = Self(tempfile::tempdir().expect("a folder can be made"));
        let mut params = CertificateParams::new([]).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // Whoever is called as its issuer is taken for self-signed.
        params.distinguished_name.push(DnType::CommonName, "authority");
        let key = KeyPair::generate().expect("a key");
        let authority = CertifiedIssuer::self_signed(params, key).expect("a certificate");
        fs::write(files.path("ca.pem"), authority.pem()).expect("the folder is ours");
        for (name, subject) in [("server", server_name), ("client", "limiter.test")] {
            let key = KeyPair::generate().expect("a key");
            let params = CertificateParams::new([subject.to_owned()]).expect("a name");
            let certificate = params.signed_by(&key, &authority).expect("a certificate");
            fs::write(files.path(&format!("{name}.pem")), certificate.pem()).expect("the folder is ours");
            fs::write(files.path(&format!("{name}.key")), key.serialize_pem()).expect("the folder is ours");
        }
        files
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// A control plane that shows the server's certificate and wants one of ours.
    fn plane(&self) -> ControlPlane {
        let files = ["server.pem", "server.key", "ca.pem"].map(|name| self.path(name));
        ControlPlane::on(free_port(), &files.each_ref().map(Path::new))
    }

    fn follower(&self, port: u16) -> Setup {
        follower(port)
            .env("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true")
            .env("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", &self.text("ca.pem"))
            .env("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", &self.text("client.pem"))
            .env("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", &self.text("client.key"))
    }
}

#[test]
fn a_control_plane_is_verified_by_name_and_sees_who_we_are() {
    let files = Certificates::new("plane.test");
    let mut plane = files.plane();
    let setup = files.follower(plane.port).env("CONFIG_GRPC_XDS_SERVER_TLS_SAN", "plane.test");
    let process = setup.spawn();
    plane.event(0, "stream");
    plane.send("1", "n1", &json!([config("gateway", "shop", 2)]));
    let limiter = Tidegate::of(process, setup);
    assert_eq!(limiter.client().ask(ask_only("shop", &[USER])).statuses[0].limit_remaining, 2);

    let wrong = files.follower(plane.port).env("CONFIG_GRPC_XDS_SERVER_TLS_SAN", "other.test").spawn();
    eventually_true("the wrong name to be logged", || wrong.lines_with("rules: no stream from") >= 2);
    assert_eq!(plane.events("stream").len(), 1, "{:?}", wrong.output());
}

#[test]
fn the_systems_authorities_are_those_that_the_environment_names() {
    let files = Certificates::new("plane.test");
    fs::create_dir(files.path("system")).expect("the folder is ours");
    // In such a folder files are called by a hash.
    fs::copy(files.path("ca.pem"), files.path("system/01234567.0")).expect("the folder is ours");
    for (name, path) in [("SSL_CERT_FILE", "ca.pem"), ("SSL_CERT_DIR", "system")] {
        let mut plane = files.plane();
        let system = files.follower(plane.port).env("CONFIG_GRPC_XDS_SERVER_TLS_SAN", "plane.test");
        let setup = system.env("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "").env(name, &files.text(path));
        let process = setup.spawn();
        plane.event(0, "stream");
        plane.send("1", "n1", &json!([config("gateway", "shop", 2)]));
        let limiter = Tidegate::of(process, setup);
        assert_eq!(limiter.client().ask(ask_only("shop", &[USER])).statuses[0].limit_remaining, 2);
    }
}

/// As in an image that has nothing but the binary.
#[test]
fn an_authority_in_a_file_is_enough_where_the_system_has_none() {
    let files = Certificates::new("plane.test");
    let empty = tempfile::tempdir().expect("a folder can be made");
    let mut plane = files.plane();
    let setup = files
        .follower(plane.port)
        .env("CONFIG_GRPC_XDS_SERVER_TLS_SAN", "plane.test")
        .env("SSL_CERT_DIR", &empty.path().display().to_string());
    let process = setup.spawn();
    plane.event(0, "stream");
    plane.send("1", "n1", &json!([config("gateway", "shop", 2)]));
    let limiter = Tidegate::of(process, setup);
    assert_eq!(limiter.client().ask(ask_only("shop", &[USER])).statuses[0].limit_remaining, 2);
}
