//! Envoys with the limiter inside and servers, all on one Redis: N together.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;

use crate::harness::admissions::Admissions;
use crate::harness::envoy::{Envoy, Launch};
use crate::harness::grpc::{OK, question};
use crate::harness::http::Client;
use crate::harness::inside::{Inside, rules};
use crate::harness::programs::succeed;
use crate::harness::redis::Redis;
use crate::harness::tidegate::Setup;
use crate::harness::users::{User, ask_while};
use crate::harness::{eventually_true, whole_machine};

use super::soak;

#[test]
fn envoys_and_a_server_share_n() {
    const N: usize = 200;
    for sync in ["strict", "leased"] {
        let redis = Redis::start(&[]);
        let rules = rules(&format!("{{unit: day, requests_per_unit: {N}}}"));
        let inside = Inside::new(&rules).setting("REDIS_URL", &redis.url()).setting("REDIS_SYNC", sync);
        let envoys = [inside.start(), inside.start()];
        let server = Setup::new().rules("edge.yaml", &rules);
        let server = server.env("REDIS_URL", &redis.url()).env("REDIS_SYNC", sync).start();
        let mut clients = envoys.each_ref().map(|envoy| Client::new(envoy.port));
        let asked = server.client();
        let mut admitted = 0;
        let mut ask_all = || {
            let before = admitted;
            for client in &mut clients {
                let answer = client.send("GET", "/", &[("x-user", "ann")], "").expect("Envoy answers");
                admitted += usize::from(answer.status == 200);
            }
            let answer = asked.ask(question("edge", &[&[("user", "ann")]]));
            admitted += usize::from(answer.overall_code == OK);
            assert!(admitted <= N, "{sync}: {admitted} admitted");
            (admitted, admitted - before)
        };
        // What one of them holds and does not spend comes back when its lease ends.
        eventually_true("all of them to be admitted", || ask_all().0 == N);
        assert_eq!(ask_all(), (N, 0), "{sync}");
    }
}

/// However the workers share the connections, and wherever the counters are.
#[test]
fn four_workers_admit_exactly_n_of_8000() {
    let _machine = whole_machine();
    let redis = Redis::start(&[]);
    let rules = rules("{unit: day, requests_per_unit: 3000}");
    for sync in [None, Some("leased"), Some("strict")] {
        let mut inside = Inside::new(&rules);
        if let Some(sync) = sync {
            let settings = [("REDIS_URL", &*redis.url()), ("REDIS_SYNC", sync), ("REDIS_TIMEOUT", "10s")];
            inside = settings.into_iter().fold(inside, |inside, (name, value)| inside.setting(name, value));
        }
        let envoy = Envoy::launch(Launch { workers: 4, ..Launch::default() }, &inside.config());
        let mut h2load = Command::new("h2load");
        h2load.args(["--h1", "-n", "8000", "-c", "32", "-H"]);
        let user = format!("x-user: {}", sync.unwrap_or("memory"));
        let said = succeed(h2load.arg(user).arg(format!("http://127.0.0.1:{}/", envoy.port)));
        assert!(said.contains("status codes: 3000 2xx, 0 3xx, 5000 4xx, 0 5xx"), "{sync:?}: {said}");
    }
}

/// Of what three Envoys are asked, one gets 90 %, one 9 % and one 1 %: the limit is used, and never exceeded.
#[test]
fn envoys_that_are_asked_unequally_use_all_of_the_limit() {
    const N: usize = 1_000;
    const WINDOW: Duration = Duration::from_secs(4);
    let _machine = whole_machine();
    let redis = Redis::start(&[]);
    let inside = Inside::new(&rules(&format!("{{window: 4s, requests_per_unit: {N}}}")))
        .setting("REDIS_URL", &redis.url())
        .setting("REDIS_TIMEOUT", "10s");
    let folder = tempfile::tempdir().expect("a folder can be made");
    let upstreams = ["0", "1", "2"].map(|name| folder.path().join(name));
    let envoys =
        upstreams.each_ref().map(|upstream| Envoy::start_config(&logging(&inside.config(), upstream)));
    let user = |envoy: usize, per_second| User {
        port: envoys[envoy].port,
        name: "ann",
        every: Duration::from_secs(1) / per_second,
    };
    let users = [vec![user(0, 90); 6], vec![user(1, 54)], vec![user(2, 6)]].concat();
    let windows = if soak() { 10 } else { 1 };
    let log = ask_while(&users, |_| std::thread::sleep(WINDOW * (windows + 1)));
    let most = log.admitted.most_in_a_window(WINDOW.as_micros() as u64);
    assert!(most <= N, "{most} in a window, of {}", log.admitted.len());
    let used = log.admitted.since(WINDOW.as_micros() as u64) as f64 / (N as f64 * f64::from(windows));
    println!("used {used:.3} of the limit, {most} in the fullest window");
    // A busy machine does not send as much.
    assert!(used >= if soak() { 0.97 } else { 0.8 }, "used {used:.3}");
    assert_eq!((log.failed, log.lost), (0, 0));
    for mut envoy in envoys {
        // Then its log is written.
        envoy.signal(Signal::TERM);
        assert_eq!(envoy.exit_code(), 0);
    }
    let (mut decided, mut arrived, mut delay) = (Admissions::default(), Admissions::default(), 0);
    for (came, reached) in upstreams.iter().flat_map(|upstream| requests(upstream)) {
        decided.push(came, reached);
        arrived.push(reached, reached);
        delay = delay.max(reached - came);
    }
    assert_eq!(decided.len(), log.admitted.len(), "what was admitted reaches the upstream, and nothing else");
    let arrived = arrived.most_in_a_window(WINDOW.as_micros() as u64);
    println!("{arrived} reached the upstream in the fullest window, at most {delay} µs after they came");
    let most = decided.most_in_a_window(WINDOW.as_micros() as u64);
    assert!(most <= N, "{most} in a window, which no delay explains");
}

/// The configuration, with a log of the upstream: whose each request is, and when it came to Envoy and to the upstream.
fn logging(config: &str, log: &Path) -> String {
    let edge = "route_config:
                  request_headers_to_add: [{ header: { key: x-came, value: \"%START_TIME(%s%6f)%\" } }]";
    let upstream = format!(
        "stat_prefix: application
                access_log:
                  - name: envoy.access_loggers.file
                    typed_config:
                      \"@type\": type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog
                      path: {}
                      log_format:
                        text_format_source:
                          inline_string: \"%REQ(x-user)% %REQ(x-came)% %START_TIME(%s%6f)%\\n\"",
        log.display()
    );
    config.replacen("route_config:", edge, 1).replacen("stat_prefix: application", &upstream, 1)
}

/// When each request of ann came to Envoy, and when to the upstream, in microseconds.
fn requests(log: &Path) -> Vec<(u64, u64)> {
    let text = fs::read_to_string(log).expect("Envoy has written it");
    let times = text.lines().filter_map(|line| line.strip_prefix("ann ")?.split_once(' '));
    times.map(|(came, reached)| (came.parse().expect("a time"), reached.parse().expect("a time"))).collect()
}
