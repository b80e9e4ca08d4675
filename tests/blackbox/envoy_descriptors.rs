//! `tidegate ask --envoy` beside a real Envoy: random routes and actions, random requests, the same descriptors.
//!
//! One Envoy has all routes. A server of the test's own takes what it asks.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};

use crate::check_descriptors::{envoy_of, take};
use crate::harness::envoy::binary;
use crate::harness::grpc::RateLimitRequest;
use crate::harness::http::{self, Client};
use crate::harness::process::Process;
use crate::harness::{eventually_true, free_port};

/// The configurations are always the same; another seed makes others.
const SEED: u64 = 19;
const ROUTES: u64 = 40;
const REQUESTS: u64 = 400;

const TEXTS: [&str; 8] = ["Gold", "gold", "old", "7", "12", "a b", "silver,Gold", "x"];
const HOSTS: [&str; 5] = ["shop.example", "www.shop.example", "api.shop.example", "api.test", "else"];

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % bound
    }

    fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    fn pick<'t>(&mut self, from: &[&'t str]) -> &'t str {
        from[self.below(from.len() as u64) as usize]
    }
}

/// A `StringMatcher`.
fn text_test(random: &mut Random) -> String {
    let text = random.pick(&TEXTS);
    let ignores = if random.one_in(3) { ", ignore_case: true" } else { "" };
    match random.below(5) {
        0 => format!("{{exact: '{text}'{ignores}}}"),
        1 => format!("{{prefix: '{}'{ignores}}}", &text[..1]),
        2 => format!("{{suffix: '{}'{ignores}}}", &text[text.len() - 1..]),
        3 => format!("{{contains: '{text}'{ignores}}}"),
        _ => format!(
            "{{safe_regex: {{regex: '{}'}}}}",
            random.pick(&["G.*", "[a-z]+", "old|x", "\\d{1,2}", ".*"])
        ),
    }
}

fn header_matcher(random: &mut Random) -> String {
    let name = random.pick(&["x-a", "x-b", "X-A", ":method", ":path"]);
    let inverted = if random.one_in(4) { ", invert_match: true" } else { "" };
    let empty = if random.one_in(5) { ", treat_missing_header_as_empty: true" } else { "" };
    let test = match random.below(5) {
        0 => String::new(),
        1 => format!(", present_match: {}", random.one_in(2)),
        2 => format!(", range_match: {{start: {}, end: {}}}", random.below(8), 8 + random.below(8)),
        _ => format!(", string_match: {}", text_test(random)),
    };
    format!("{{name: '{name}'{test}{inverted}{empty}}}")
}

fn parameter_matcher(random: &mut Random) -> String {
    let test = match random.below(3) {
        0 => format!("present_match: {}", random.one_in(2)),
        _ => format!("string_match: {}", text_test(random)),
    };
    format!("{{name: {}, {test}}}", random.pick(&["q", "p"]))
}

fn list(random: &mut Random, most: u64, item: impl Fn(&mut Random) -> String) -> String {
    let count = 1 + random.below(most);
    format!("[{}]", (0..count).map(|_| item(random)).collect::<Vec<_>>().join(", "))
}

fn action(random: &mut Random) -> String {
    let skips = if random.one_in(2) { ", skip_if_absent: true" } else { "" };
    let expects = if random.one_in(3) { ", expect_match: false" } else { "" };
    let key = if random.one_in(2) { ", descriptor_key: k" } else { "" };
    match random.below(11) {
        0 => "{source_cluster: {}}".to_owned(),
        1 => "{destination_cluster: {}}".to_owned(),
        2 => "{remote_address: {}}".to_owned(),
        3 => format!("{{masked_remote_address: {{v4_prefix_mask_len: {}}}}}", random.below(33)),
        4 => format!("{{generic_key: {{descriptor_value: v{}{key}}}}}", random.below(9)),
        5 => {
            let name = random.pick(&["x-a", "X-B", ":path", ":method", ":authority"]);
            format!("{{request_headers: {{header_name: '{name}', descriptor_key: h{skips}}}}}")
        }
        6 => format!("{{query_parameters: {{query_parameter_name: q, descriptor_key: q{skips}}}}}"),
        7 => format!(
            "{{header_value_match: {{descriptor_value: hm{key}{expects}, headers: {}}}}}",
            list(random, 2, header_matcher)
        ),
        8 => format!(
            "{{query_parameter_value_match: {{descriptor_value: qm{key}{expects}, query_parameters: {}}}}}",
            list(random, 2, parameter_matcher)
        ),
        9 => {
            let ranges = format!(
                "[{{address_prefix: 127.0.0.{}, prefix_len: {}}}]",
                random.below(8),
                24 + random.below(9)
            );
            let inverted = if random.one_in(3) { ", invert_match: true" } else { "" };
            format!(
                "{{remote_address_match: {{descriptor_value: am{key}, address_matcher: {{ranges: {ranges}{inverted}}}}}}}"
            )
        }
        _ => {
            let default = if random.one_in(3) { ", default_value: none" } else { "" };
            let path = random.pick(&[
                "[{key: plan}]",
                "[{key: deep}, {key: er}]",
                "[{key: absent}]",
                "[{key: number}]",
            ]);
            format!(
                "{{metadata: {{descriptor_key: m, source: ROUTE_ENTRY, metadata_key: {{key: shop, path: {path}}}{default}{skips}}}}}"
            )
        }
    }
}

fn rate_limits(random: &mut Random) -> String {
    list(random, 4, |random| {
        let stage = if random.one_in(6) { "stage: 1, " } else { "" };
        let hits = if random.one_in(6) { "hits_addend: {number: 3}, " } else { "" };
        format!("{{{stage}{hits}actions: {}}}", list(random, 3, action))
    })
}

fn route(random: &mut Random, number: u64) -> String {
    let path = match random.below(4) {
        0 => format!("prefix: /r{number}"),
        1 => format!("path: /r{number}/x"),
        2 => format!("path_separated_prefix: /r{number}"),
        _ => format!("safe_regex: {{regex: '/r{number}(/.*)?'}}"),
    };
    let mut condition = path;
    if random.one_in(4) {
        let _ = write!(condition, ", headers: {}", list(random, 1, header_matcher));
    }
    if random.one_in(5) {
        let _ = write!(condition, ", query_parameters: {}", list(random, 1, parameter_matcher));
    }
    let limits =
        if random.one_in(4) { String::new() } else { format!(", rate_limits: {}", rate_limits(random)) };
    let include = if random.one_in(3) { ", include_vh_rate_limits: true" } else { "" };
    let per_route = match random.below(4) {
        0 => per_route(random.pick(&["OVERRIDE", "INCLUDE", "IGNORE"]), random.one_in(3)),
        _ => String::new(),
    };
    let metadata = "metadata: {filter_metadata: {shop: {plan: gold, deep: {er: down}, number: 7}}}";
    format!(
        "{{name: r{number}, match: {{{condition}}}, {metadata}{per_route}, route: {{cluster: application{limits}{include}}}}}"
    )
}

fn per_route(option: &str, renames: bool) -> String {
    let kind = "type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute";
    let domain = if renames { ", domain: other" } else { "" };
    format!(
        ", typed_per_filter_config: {{envoy.filters.http.ratelimit: {{'@type': {kind}, vh_rate_limits: {option}{domain}}}}}"
    )
}

/// Virtual hosts with routes of all kinds.
fn virtual_hosts(random: &mut Random) -> String {
    let domains = ["shop.example", "'*.shop.example'", "'api.*'", "'*'"];
    let each = ROUTES / domains.len() as u64;
    let mut text = String::new();
    for (host, domain) in domains.into_iter().enumerate() {
        let routes: Vec<_> = (0..each).map(|number| route(random, number)).collect();
        let limits =
            if random.one_in(4) { String::new() } else { format!(", rate_limits: {}", rate_limits(random)) };
        let _ = writeln!(
            text,
            "            - {{name: host{host}, domains: [{domain}]{limits}, routes: [{}]}}",
            routes.join(",\n                ")
        );
    }
    text
}

/// A request, as a client sends it.
#[derive(Debug)]
struct Request {
    method: &'static str,
    path: String,
    from: u8,
    headers: Vec<(&'static str, &'static str)>,
}

fn request(random: &mut Random) -> Request {
    let rest =
        random.pick(&["", "/x", "/x?q=Gold", "/x?q=7&p=old", "?q=%47old&q=2", "y", "?p", "/x?q=a%20b"]);
    let mut headers = vec![("host", random.pick(&HOSTS))];
    for name in ["x-a", "x-b", "x-a"] {
        if random.one_in(2) {
            headers.push((name, random.pick(&TEXTS)));
        }
    }
    Request {
        method: random.pick(&["GET", "POST"]),
        path: format!("/r{}{rest}", random.below(ROUTES / 4 + 1)),
        from: 2 + random.below(9) as u8,
        headers,
    }
}

/// A domain with descriptors: their entries and their hits.
type Told = Option<(String, Vec<(Vec<(String, String)>, Option<u64>)>)>;

/// What Envoy asks about a request. `None`: nothing.
fn of_envoy(port: u16, request: &Request, taken: &Receiver<RateLimitRequest>) -> Told {
    let mut client = Client::at([127, 0, 0, request.from].into(), port);
    let answer = client.send(request.method, &request.path, &request.headers, "").expect("Envoy answers");
    assert!([200, 404].contains(&answer.status), "{request:?}: {answer:?}");
    // It asks before it answers.
    let asked = taken.try_recv().ok()?;
    let descriptors = asked.descriptors.into_iter().map(|descriptor| {
        let entries = descriptor.entries.into_iter().map(|entry| (entry.key, entry.value));
        (entries.collect(), descriptor.hits_addend)
    });
    Some((asked.domain, descriptors.collect()))
}

/// What the command says of it.
fn of_command(file: &Path, request: &Request) -> Told {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(["ask", "--describe", "--format", "json", "--listener", "edge", "--envoy"]).arg(file);
    command.args(["--request", &format!("{} {}", request.method, request.path)]);
    command.args(["--from", &format!("127.0.0.{}", request.from)]);
    for (name, value) in &request.headers {
        command.args(["--header", &format!("{name}: {value}")]);
    }
    let output = command.output().expect("the program runs");
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{request:?}: {complaints}");
    let shown: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let calls = shown["calls"].as_array().expect("a list");
    let call = calls.first()?;
    let text = |value: &serde_json::Value| value.as_str().expect("a text").to_owned();
    let descriptor = |it: &serde_json::Value| {
        let entries = it["entries"].as_array().expect("a list").iter();
        let entries = entries.map(|entry| (text(&entry["key"]), text(&entry["value"]))).collect();
        (entries, it["hits"].as_u64())
    };
    let descriptors = call["descriptors"].as_array().expect("a list").iter().map(descriptor).collect();
    Some((text(&call["domain"]), descriptors))
}

#[test]
fn the_descriptors_of_a_real_envoy_are_those_that_the_command_tells() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("a thread can be had");
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).expect("a port is free");
    let (port, questions) = (free_port(), listener.local_addr().expect("it is bound").port());
    let (sender, taken) = channel();
    runtime.spawn(take(listener, sender));

    let mut random = Random(SEED);
    let folder = tempfile::tempdir().expect("a folder can be made");
    let file = folder.path().join("envoy.yaml");
    fs::write(&file, envoy_of(port, questions, "", &virtual_hosts(&mut random))).expect("the folder is ours");
    let mut command = Command::new(binary());
    command.arg("-c").arg(&file);
    command.args(["--concurrency", "1", "--disable-hot-restart", "--log-level", "warning"]);
    let mut process = Process::spawn(&mut command);
    eventually_true("Envoy to listen", || {
        assert!(process.ended().is_none(), "Envoy ended:\n{}", process.output().join("\n"));
        http::connect(port).is_ok()
    });

    let (mut asked, mut entries) = (0, 0);
    for _ in 0..REQUESTS {
        let request = request(&mut random);
        let (told, command) = (of_envoy(port, &request, &taken), of_command(&file, &request));
        assert_eq!(
            command,
            told,
            "the command is left, Envoy is right: {request:?}\n{}",
            fs::read_to_string(&file).unwrap_or_default()
        );
        asked += u64::from(told.is_some());
        entries += told.map_or(0, |(_, descriptors)| descriptors.iter().map(|it| it.0.len()).sum());
    }
    assert!(asked > REQUESTS / 4 && entries > 2 * asked as usize, "{asked} requests with {entries} entries");
}
