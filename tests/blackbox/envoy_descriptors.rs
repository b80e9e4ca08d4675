//! `tidegate ask --envoy` compared with a real Envoy: random routes and actions, random requests, the same descriptors.
//!
//! Each Envoy has all routes of its seed. A server of the test's own takes what they ask.

mod dump;
pub mod random;

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::mpsc::{Receiver, channel};

use serde_json::Value;
use tempfile::TempDir;

pub use self::random::Random;
use self::random::{LATE, Request, request, virtual_hosts};
use crate::check_descriptors::{envoy_of, take};
use crate::harness::envoy::binary;
use crate::harness::grpc::{Descriptor, LimitOverride, RateLimitRequest};
use crate::harness::http::{self, Client};
use crate::harness::process::Process;
use crate::harness::tidegate::{self, Setup};
use crate::harness::{eventually_true, free_port};

/// The configurations are always the same; other seeds make others.
const SEEDS: [u64; 2] = [19, 20];
const REQUESTS: u64 = 80;

/// A descriptor: its entries, the limit that it brings (requests and unit), its hits.
type AsAsked = (Vec<(String, String)>, Option<(u32, &'static str)>, Option<u64>);

/// The domain and the descriptors of a request. `None`: nothing is asked.
type Question = Option<(String, Vec<AsAsked>)>;

/// What Envoy asks about a request before it answers it.
fn of_envoy(port: u16, request: &Request, taken: &Receiver<RateLimitRequest>) -> Question {
    let mut client = Client::at([127, 0, 0, request.from].into(), port);
    let answer = client.send(request.method, &request.path, &request.headers, "").expect("Envoy answers");
    assert!([200, 404].contains(&answer.status), "{request:?}: {answer:?}");
    // Some is asked when a request has ended, at any time.
    let is_late = |asked: &RateLimitRequest| {
        let mut entries = asked.descriptors.iter().flat_map(|descriptor| &descriptor.entries);
        entries.any(|entry| entry.value == LATE)
    };
    let asked = taken.try_iter().find(|asked| !is_late(asked))?;
    Some((asked.domain, asked.descriptors.iter().map(as_asked).collect()))
}

fn as_asked(descriptor: &Descriptor) -> AsAsked {
    let entries = descriptor.entries.iter().map(|entry| (entry.key.clone(), entry.value.clone()));
    let limit = descriptor.limit.as_ref().map(|&LimitOverride { requests_per_unit, unit }| {
        assert_eq!(unit, 3, "the only unit here");
        (requests_per_unit, "hour")
    });
    (entries.collect(), limit, descriptor.hits_addend)
}

/// The command about a request of a client.
fn ask(file: &Path, request: &Request) -> Command {
    let mut command = Command::new(tidegate::binary());
    command.args(["ask", "--listener", "edge", "--envoy"]).arg(file);
    command.args(["--request", &format!("{} {}", request.method, request.path)]);
    command.args(["--from", &format!("127.0.0.{}", request.from)]);
    for (name, value) in &request.headers {
        command.args(["--header", &format!("{name}: {value}")]);
    }
    command
}

/// What the command says that Envoy asks, and all that it says.
fn of_command(file: &Path, request: &Request, more: &[&str]) -> (Question, Value) {
    let output =
        ask(file, request).args(more).args(["--describe", "--format", "json"]).output().expect("it runs");
    assert!(output.status.success(), "{request:?}: {}", text(&output));
    let shown: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let call = shown["calls"].as_array().expect("a list").first();
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let as_asked = |it: &Value| {
        let entries = it["entries"].as_array().expect("a list").iter();
        let entries = entries.map(|entry| (text(&entry["key"]), text(&entry["value"]))).collect();
        let requests = it["limit"]["requests_per_unit"].as_u64();
        let limit = requests.map(|requests| {
            assert_eq!(it["limit"]["unit"], "hour", "the only unit here");
            (u32::try_from(requests).expect("a small number"), "hour")
        });
        (entries, limit, it["hits"].as_u64())
    };
    let question = call.map(|call| {
        let descriptors = call["descriptors"].as_array().expect("a list");
        (text(&call["domain"]), descriptors.iter().map(as_asked).collect())
    });
    (question, shown)
}

fn text(output: &Output) -> String {
    [&output.stdout[..], &output.stderr].map(String::from_utf8_lossy).concat()
}

/// A bootstrap with random routes, in a folder of its own.
fn bootstrap(random: &mut Random, port: u16, limiter: u16) -> (TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let file = folder.path().join("envoy.yaml");
    fs::write(&file, envoy_of(port, limiter, "", &virtual_hosts(random))).expect("the folder is ours");
    (folder, file)
}

#[test]
fn the_descriptors_of_a_real_envoy_are_those_that_the_command_tells() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("a thread can be had");
    for seed in SEEDS {
        let listener =
            runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).expect("a port is free");
        let (port, limiter) = (free_port(), listener.local_addr().expect("it is bound").port());
        let (sender, taken) = channel();
        runtime.spawn(take(listener, sender));
        let mut random = Random(seed);
        let (_folder, file) = bootstrap(&mut random, port, limiter);
        let mut command = Command::new(binary());
        command.arg("-c").arg(&file);
        command.args(["--concurrency", "1", "--disable-hot-restart", "--log-level", "error"]);
        let mut envoy = Process::spawn(&mut command);
        eventually_true("Envoy to listen", || {
            assert!(envoy.ended().is_none(), "Envoy ended:\n{}", envoy.output().join("\n"));
            http::connect(port).is_ok()
        });
        compare(&mut random, port, &file, &taken);
    }
}

fn compare(random: &mut Random, port: u16, file: &Path, taken: &Receiver<RateLimitRequest>) {
    let (mut asked, mut entries) = (0, 0);
    for _ in 0..REQUESTS {
        let request = request(random);
        let (sent, (command, shown)) = (of_envoy(port, &request, taken), of_command(file, &request, &[]));
        let route = shown["route"].as_str().expect("a text");
        assert_eq!(
            command,
            sent,
            "the command is left, Envoy is right: {request:?}\n{shown}\n{}",
            lines(file, route)
        );
        asked += u64::from(sent.is_some());
        entries += sent.map_or(0, |(_, descriptors)| descriptors.iter().map(|it| it.0.len()).sum());
    }
    assert!(asked > REQUESTS / 8 && entries > asked as usize, "{asked} requests with {entries} entries");
}

/// The virtual host and the route of this name, as the file has them.
fn lines(file: &Path, route: &str) -> String {
    let text = fs::read_to_string(file).expect("the file is there");
    let (host, route) = route.split_once(", route ").unwrap_or((route, "?"));
    let of_host = text.split("- name: ").find(|part| part.starts_with(&format!("{host}\n"))).unwrap_or(&text);
    let is_kept = |line: &&str| !line.contains("- {name: ") || line.contains(&format!("{{name: {route},"));
    of_host.lines().filter(is_kept).collect::<Vec<_>>().join("\n")
}

/// Rules answer what Envoy would ask; when that cannot be known, the exit code is 2.
#[test]
fn a_client_s_request_is_explained_by_the_rules_that_envoy_asks_about() {
    let limiter = Setup::new()
        .rules(
            "edge.yaml",
            "domain: edge\ndescriptors: [{key: path, rate_limit: {unit: hour, requests_per_unit: 5}}]\n",
        )
        .start();
    let folder = tempfile::tempdir().expect("a folder can be made");
    let file = folder.path().join("envoy.yaml");
    let host = |action: &str| {
        format!(
            "            - {{name: all, domains: ['*'], routes: [{{match: {{prefix: /}}, route: {{cluster: application, \
             rate_limits: [{{actions: [{action}]}}]}}}}]}}"
        )
    };
    let request = Request { method: "GET", path: "/cart".to_owned(), from: 2, headers: Vec::new() };
    let run = |action: &str| {
        fs::write(&file, envoy_of(1, 2, "", &host(action))).expect("the folder is ours");
        let mut command = ask(&file, &request);
        let output = command.env("DEBUG_PORT", limiter.ports().debug.to_string()).output().expect("it runs");
        (output.status.code(), text(&output))
    };
    let (code, output) = run("{request_headers: {header_name: ':path', descriptor_key: path}}");
    assert_eq!(code, Some(0), "{output}");
    for expected in ["listener    edge", "descriptor  path=/cart", "edge.yaml:2", "5 per hour"] {
        assert!(output.contains(expected), "{expected}: {output}");
    }
    let (code, output) = run("{dynamic_metadata: {descriptor_key: k, metadata_key: {key: a}}}");
    assert_eq!(code, Some(2), "{output}");
    assert!(output.contains("envoy.yaml:") && output.contains("dynamic_metadata"), "{output}");
}
