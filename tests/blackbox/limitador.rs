//! In the place of Limitador: its name, the command line and the file that its operator writes, its probe, and what Kuadrant's
//! filter sends. Only addresses are other ones, and paths lie in a folder of the test.

use std::os::unix::fs::symlink;

use rustix::process::Signal;
use serde_json::{Map, Value, json};

use crate::commands::{folder, tidegate};
use crate::envoy_descriptors::Random;
use crate::harness::eventually_true;
use crate::harness::grpc::{self, OK, OVER_LIMIT, RateLimitRequest};
use crate::harness::http;
use crate::harness::mount::Mount;
use crate::harness::process::Process;
use crate::harness::programs::{installed, succeed};
use crate::harness::redis::Redis;
use crate::harness::tidegate::{Ports, Setup, Tidegate, binary};

/// What the operator writes for a policy with two rates, counted by user, and for one of tokens.
fn limits(most: u32) -> String {
    format!(
        r#"- conditions:
  - descriptors[0]["limit.all__1a2b3c4d"] == "1"
  max_value: {most}
  name: all
  namespace: shop/route
  seconds: 3600
  variables:
  - descriptors[0]["auth.identity.userid"]
- conditions:
  - descriptors[0]["limit.all__1a2b3c4d"] == "1"
  max_value: 5
  name: all
  namespace: shop/route
  seconds: 86400
  variables: []
- conditions:
  - descriptors[0]["tokenlimit.free__5e6f7a8b"] == "1"
  max_value: 10
  name: free
  namespace: shop/route
  seconds: 86400
  variables:
  - descriptors[0]["auth.identity.userid"]
"#
    )
}

const FILE: &str = "limitador-config.yaml";

/// What the operator runs: the container, with its volume.
struct Container {
    setup: Setup,
    mount: Mount,
}

impl Container {
    /// With these flags, a file of no limits, and this storage.
    fn new(flags: &[&str], storage: &[&str]) -> Self {
        let setup = Setup::new()
            .default_of("CONFIG_PATH")
            .default_of("RULES_MAY_BE_EMPTY")
            .env("REDIS_TIMEOUT", "10s");
        let (root, program) = (setup.outside().to_owned(), setup.outside().join("limitador-server"));
        symlink(binary(), &program).expect("the folder is ours");
        let mount = Mount::new(&root.join("etc"), &[(FILE, "[]\n".to_owned())]);
        let Ports { grpc, http, .. } = setup.ports;
        let file = root.join("etc").join(FILE).display().to_string();
        let (http, grpc) = (http.to_string(), grpc.to_string());
        let addresses = ["--http-ip", "127.0.0.1", "--rls-ip", "127.0.0.1"];
        let ports =
            ["--http-port", &http, "--rls-port", &grpc, "--metric-labels-default", "descriptors[1]", &file];
        let words = addresses.iter().chain(flags).chain(&ports).chain(storage);
        let setup = words.fold(setup.program(&program), |setup, word| setup.arg(word));
        Self { setup, mount }
    }

    fn start(self) -> Running {
        let process = self.setup.spawn();
        let port = self.setup.ports.http;
        eventually_true("the operator's probe", || {
            http::get(port, "/status").is_ok_and(|answer| answer.status == 200)
        });
        Running { limiter: Tidegate::of(process, self.setup), mount: self.mount }
    }
}

struct Running {
    limiter: Tidegate,
    mount: Mount,
}

impl Running {
    /// The operator changes its ConfigMap.
    fn change(&mut self, text: String) {
        let loads = |limiter: &Tidegate| {
            ["success", "error"]
                .map(|end| limiter.metric(&format!("ratelimit_service_config_load_{end}")))
                .iter()
                .sum::<f64>()
        };
        let before = loads(&self.limiter);
        self.mount.swap(&[(FILE, text)]);
        eventually_true("the new file to be read", || loads(&self.limiter) > before);
    }

    /// How often of so many times a user passes a RateLimitPolicy.
    fn passes(&self, user: &str, times: usize) -> usize {
        let client = self.limiter.client();
        let code = |_: &usize| client.ask(request("limit.all__1a2b3c4d", user)).overall_code;
        let codes: Vec<_> = (0..times).map(|at| code(&at)).collect();
        assert!(codes.iter().all(|code| [OK, OVER_LIMIT].contains(code)));
        codes.iter().filter(|code| **code == OK).count()
    }

    /// A call of Kuadrant's service.
    fn call(&self, method: &str, more: &Value) -> Value {
        self.call_of("kuadrant.service.ratelimit.v1.RateLimitService", method, more)
    }

    /// A call for tokens of alice.
    fn call_of(&self, service: &str, method: &str, more: &Value) -> Value {
        let grpc::RateLimitRequest { domain, descriptors, .. } =
            request("tokenlimit.free__5e6f7a8b", "alice");
        let entries = |descriptor: &grpc::Descriptor| -> Value {
            descriptor.entries.iter().map(|entry| json!({"key": entry.key, "value": entry.value})).collect()
        };
        let descriptors: Value = descriptors.iter().map(|it| json!({"entries": entries(it)})).collect();
        let mut message = json!({"domain": domain, "descriptors": descriptors});
        message.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        let address = format!("127.0.0.1:{}", self.limiter.ports().grpc);
        let words = ["-plaintext", "-d", &message.to_string(), &address, &format!("{service}/{method}")];
        serde_json::from_str(&succeed(installed("grpcurl").args(words))).expect("JSON")
    }

    /// The code of a question or a report, and whether the reservation was made.
    fn code(&self, method: &str, hits: u32) -> String {
        self.call(method, &json!({"hits_addend": hits}))["overallCode"].as_str().expect("a code").to_owned()
    }

    /// The id of a reservation, if it was made.
    fn reserve(&self, amount: u32) -> Option<String> {
        let answer = self.call("Reserve", &json!({"amount": amount.to_string(), "ttl": "30s"}));
        let id = answer["reservationId"].as_str().filter(|id| !id.is_empty()).map(str::to_owned);
        assert_eq!(answer["code"], if id.is_some() { "OK" } else { "OVER_LIMIT" }, "{answer}");
        id
    }

    fn commit(&self, id: &str, amount: u32) -> bool {
        let answer = self.call("Commit", &json!({"reservation_id": id, "actual_amount": amount.to_string()}));
        answer["reservationReleased"] == true
    }
}

/// What the filter sends: the entries of a policy among others, and labels for metrics.
fn request(limit: &str, user: &str) -> RateLimitRequest {
    let entries: &[(&str, &str)] = &[("auth.identity.userid", user), ("other", "x"), (limit, "1")];
    let mut request = grpc::question("shop/route", &[entries, &[("group", "gold"), (limit, "1")]]);
    request.hits_addend = 1;
    request
}

/// Limits that are met together are charged together, or not at all.
fn exactly_so_many_pass(running: &mut Running) {
    assert_eq!(running.passes("alice", 4), 4, "nothing is limited by []");
    running.change(limits(3));
    assert_eq!(running.passes("alice", 5), 3, "by user");
    assert_eq!(running.passes("bob", 5), 2, "5 in all: alice's denials were not charged");
    running.change(limits(4).replace("max_value: 5", "max_value: 6"));
    assert_eq!(running.passes("alice", 3), 1, "one more of both");
    running.change(limits(9).replace("seconds: 86400", "days: 1"));
    assert!(running.limiter.lines_with("unknown key `days` in a limit") > 0);
    assert_eq!(running.passes("alice", 3), 0, "the limits in force stay");
    running.change("[]\n".to_owned());
    assert_eq!(running.passes("alice", 3), 3, "the last limit is gone");
    running.change(limits(4));
}

/// Limitador's own test of reservations, around ours.
fn tokens_are_asked_reported_reserved_and_committed(running: &Running) {
    let first = running.reserve(6).expect("6 of 10 are held");
    assert_eq!(running.reserve(6), None);
    assert!(running.commit(&first, 2), "2 of 10 are spent");
    let second = running.reserve(6).expect("8 are held or spent");
    assert_eq!([running.code("CheckRateLimit", 2), running.code("CheckRateLimit", 3)], ["OK", "OVER_LIMIT"]);
    assert!(running.commit(&second, 1));
    assert!(!running.commit("unknown", 3), "it is charged");
    assert_eq!(running.reserve(5), None, "6 of 10 are spent");
    assert_eq!(running.code("Report", 3), "OK");
    assert_eq!(running.code("CheckRateLimit", 0), "OK", "1 of 10 is left");
    assert_eq!(running.code("Report", 500), "OK");
    assert_eq!(running.code("CheckRateLimit", 0), "OVER_LIMIT");
}

#[test]
fn the_operators_container_runs_with_counters_in_memory() {
    let flags = ["--rate-limit-headers", "DRAFT_VERSION_03", "--limit-name-in-labels", "-vvv"];
    let mut running = Container::new(&flags, &["memory"]).start();
    assert!(running.limiter.lines_with("--metric-labels-default: no effect here") > 0);
    exactly_so_many_pass(&mut running);
    tokens_are_asked_reported_reserved_and_committed(&running);
    let scraped = http::get(running.limiter.ports().http, "/metrics").expect("an answer");
    assert!(scraped.body.contains("tidegate_requests_total{front=\"kuadrant\""), "{}", scraped.body);
    let answer =
        running.call_of("envoy.service.ratelimit.v3.RateLimitService", "ShouldRateLimit", &json!({}));
    let headers = answer["responseHeadersToAdd"].to_string();
    assert!(headers.contains("X-RateLimit-Limit") && headers.contains("X-RateLimit-Reset"), "{headers}");
}

#[test]
fn replicas_that_share_redis_count_together() {
    for storage in ["redis", "redis_cached"] {
        let redis = Redis::start(&[]);
        let url = format!("redis://{}", redis.url());
        let mut one = Container::new(&[], &[storage, &url]).start();
        let mut other = Container::new(&[], &[storage, &url]).start();
        for running in [&mut one, &mut other] {
            running.change(limits(3));
        }
        let passed = [one.passes("alice", 2), other.passes("alice", 2), one.passes("alice", 1)];
        assert_eq!(passed.iter().sum::<usize>(), 3, "{storage} {passed:?}");
        tokens_are_asked_reported_reserved_and_committed(&one);
        assert_eq!(other.reserve(1), None);
    }
}

#[test]
fn counters_on_a_disk_outlive_the_process() {
    let disk = tempfile::tempdir().expect("a folder can be made");
    let path = disk.path().join("data").display().to_string();
    let mut running = Container::new(&[], &["disk", "--optimize", "throughput", &path]).start();
    running.change(limits(3));
    assert_eq!(running.passes("alice", 2), 2);
    running.limiter.signal(Signal::TERM);
    assert_eq!(running.limiter.exit_code(), 0);
    let Running { limiter, mount } = running;
    let running = Container { setup: limiter.into_setup(), mount }.start();
    assert_eq!(running.passes("alice", 2), 1);
}

#[test]
fn a_bad_command_line_or_file_ends_the_start() {
    let exit = |setup: &Setup| {
        let mut process: Process = setup.spawn();
        (process.exit_code(), process.output().join("\n"))
    };
    let (code, said) = exit(&Container::new(&["--validate"], &["memory"]).setup);
    assert!(code == 64 && said.contains("--validate"), "{code} {said}");
    let mut bad = Container::new(&[], &["memory"]);
    bad.mount.swap(&[(FILE, "- 5\n".to_owned())]);
    let (code, said) = exit(&bad.setup);
    assert!(code == 1 && said.contains("1:3: `5` stands here"), "{code} {said}");
}

/// The same by settings alone, over HTTP, and what people see of it.
#[test]
fn the_format_is_a_setting() {
    let setup = Setup::new()
        .rules("limits.yaml", &limits(1))
        .env("RULES_FORMAT", "limitador")
        .env("HTTP_METRICS", "true");
    let limiter = setup.start();
    let mut client = http::Client::new(limiter.ports().http);
    let asked = "/check/shop%2Froute?limit.all__1a2b3c4d=1&auth.identity.userid=alice";
    assert_eq!([client.get(asked).status, client.get(asked).status], [200, 429]);
    assert_eq!(
        client.get("/check/shop%2Froute?limit.all__1a2b3c4d=2&auth.identity.userid=alice").status,
        200
    );
    assert_eq!(client.get("/metrics").status, 200);
    let (code, said, _) =
        tidegate(&["check", "--rules-format=limitador", &limiter.setup.folder().display().to_string()], &[]);
    assert!(code == 0 && said.contains("limits 3"), "{code} {said}");
    let (_folder, path) = folder(&[("limits.yaml", "[]")]);
    assert_eq!(tidegate(&["check", &path], &[]).0, 1, "rules are no list");
    let other = Setup::new().rules("limits.yaml", "domain: d\ndescriptors: []\n").start();
    assert_eq!(http::get(other.ports().http, "/metrics").expect("an answer").status, 404);
    assert_eq!(http::get(other.ports().http, "/status").expect("an answer").status, 200);
}

/// What commands say without a limiter: the same as the limiter answers.
#[test]
fn commands_read_the_file_and_answer_as_the_limiter_does() {
    let limiter = Setup::new().rules("limits.yaml", &limits(3)).env("RULES_FORMAT", "limitador").start();
    let rules = limiter.setup.folder().display().to_string();
    let mut random = Random(7);
    let keys = ["limit.all__1a2b3c4d", "tokenlimit.free__5e6f7a8b", "auth.identity.userid"];
    let mut entries = || {
        let values = [["0", "1"][random.below(2) as usize], ["0", "1"][random.below(2) as usize]];
        [(keys[0], values[0]), (keys[1], values[1]), (keys[2], ["alice", "bob"][random.below(2) as usize])]
    };
    let requests: Vec<_> = (0..60).map(|_| entries()).collect();
    let words = requests[0].map(|(key, value)| format!("{key}={value}"));
    let asked: Vec<_> =
        ["ask", "--format=json", "shop/route"].into_iter().chain(words.iter().map(String::as_str)).collect();
    let port = format!("--to=127.0.0.1:{}", limiter.ports().debug);
    let [offline, online] = [&["--rules-format=limitador", "--rules", &rules][..], &[&port]]
        .map(|more| tidegate(&[&asked, more].concat(), &[]));
    assert_eq!(offline, online);
    assert!(offline.1.contains("3600s if"), "{offline:?}");
    let (mut steps, mut log, mut denied) = (String::new(), String::new(), 0);
    let client = limiter.client();
    for entries in &requests {
        let code = client.ask(grpc::question("shop/route", &[entries])).overall_code;
        denied += u64::from(code == OVER_LIMIT);
        let expected = if code == OK { "OK" } else { "OVER_LIMIT" };
        let [all, free, user] = entries.map(|(_, value)| value);
        let shown = json!({"time": "2026-01-01T00:00:00Z", "all": all, "free": free, "user": user});
        log += &format!("{shown}\n");
        let request: Map<_, _> = entries.iter().map(|(key, value)| (key.to_string(), json!(value))).collect();
        steps += &format!("      - {}\n", json!({"request": request, "expect": expected}));
    }
    assert!((10..50).contains(&denied), "{denied}");
    let cases = format!("rules: {rules}\ncases:\n  - name: all\n    steps:\n{steps}");
    let (_folder, path) = folder(&[("cases.yaml", &cases), ("access.log", &log)]);
    let variable = [("RULES_FORMAT", "limitador")];
    let (code, said, _) = tidegate(&["test", &format!("{path}/cases.yaml")], &variable);
    assert_eq!((code, said.as_str()), (0, "good: files 1, cases 1, requests 60, failed 0\n"));
    let log = format!("{path}/access.log");
    let map = keys.iter().zip(["all", "free", "user"]).map(|(key, name)| format!("{key}=${name}"));
    let map = map.collect::<Vec<_>>().join(",");
    let words = ["--format=json", "--time=time", "--map", &map, &log];
    let (code, said, complaint) =
        tidegate(&[&["replay", "--report=json", "--rules", &rules], &words[..]].concat(), &variable);
    let report: Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(
        (code, &report["requests"], &report["denied"]),
        (0, &60.into(), &denied.into()),
        "{complaint}"
    );
    let (code, _, complaint) = tidegate(&[&["suggest"], &words[..]].concat(), &variable);
    assert!(code == 64 && complaint.contains("RULES_FORMAT: suggest writes rules"), "{complaint}");
}
