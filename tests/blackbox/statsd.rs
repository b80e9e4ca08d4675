//! StatsD as a receiver meets it: a real `statsd_exporter`, and receivers that stall, die and come back.

use std::io::{BufRead, BufReader};
use std::net::{TcpListener, UdpSocket};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::harness::grpc::question;
use crate::harness::lateness::Lateness;
use crate::harness::statsd_exporter::StatsdExporter;
use crate::harness::tidegate::{Setup, Tidegate};
use crate::harness::{eventually, eventually_true, free_port, http};

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    detailed_metric: true
    rate_limit: {unit: day, requests_per_unit: 4}
";

/// How a plain name looks in an exporter without a mapping.
const HITS: &str = "ratelimit_service_rate_limit_shop_user_alice_total_hits";

fn sends_to(port: u16) -> Setup {
    let setup = Setup::new().rules("shop.yaml", RULES);
    setup
        .env("STATSD_PORT", &port.to_string())
        .env("STATSD_HOST", "127.0.0.1")
        .env("STATS_FLUSH_INTERVAL", "100ms")
}

fn ask_alice(limiter: &Tidegate, times: usize) {
    let client = limiter.client();
    (0..times).for_each(|_| drop(client.ask(question("shop", &[&[("user", "alice")]]))));
}

/// What an exporter has to show after 6 hits of 4 a day.
fn assert_six_hits(exporter: &StatsdExporter, labels: &[(&str, &str)]) {
    eventually_true("all hits to arrive", || exporter.scrape().sum(HITS, labels) == 6.0);
    eventually_true("all durations to arrive", || {
        let count = exporter.scrape().sum("ratelimit_server_ShouldRateLimit_response_time_count", labels);
        count == 6.0
    });
    let stat = |name: &str| exporter.scrape().sum(&HITS.replace("total_hits", name), labels);
    assert_eq!((stat("within_limit"), stat("over_limit"), stat("near_limit")), (4.0, 2.0, 1.0));
    let calls = exporter.scrape().sum("ratelimit_server_ShouldRateLimit_total_requests", labels);
    assert_eq!(calls, 6.0);
    assert_eq!(exporter.scrape().sum("ratelimit_service_config_load_success", labels), 1.0);
    let seconds = exporter.scrape().sum("ratelimit_server_ShouldRateLimit_response_time_sum", labels);
    assert!(seconds > 0.0 && seconds < 60.0, "{seconds}");
    let page = exporter.page();
    assert!(!page.contains("shadow_mode"), "what never grew is never sent:\n{page}");
}

#[test]
fn an_exporter_receives_everything_over_tcp_and_udp() {
    for protocol in ["tcp", "udp"] {
        let exporter = StatsdExporter::start(None);
        let limiter = sends_to(exporter.port).env("STATSD_PROTOCOL", protocol).start();
        ask_alice(&limiter, 6);
        assert_six_hits(&exporter, &[]);
    }
}

#[test]
fn an_exporter_receives_dog_statsd_with_its_tags_beside_statsd_and_prometheus() {
    let exporter = StatsdExporter::start(None);
    let limiter = sends_to(exporter.port)
        .env("USE_DOG_STATSD", "true")
        .env("EXTRA_TAGS", "cluster:one")
        .env("DD_SERVICE", "limiter")
        .env("DD_ENV", "test")
        .env("DD_VERSION", "7")
        .env("DD_ENTITY_ID", "pod-1")
        .env("USE_DOG_STATSD_MOGRIFIERS", "HITS")
        .env(
            "DOG_STATSD_MOGRIFIER_HITS_PATTERN",
            r"^ratelimit\.service\.rate_limit\.(.+)\.(.+)\.(near_limit)$",
        )
        .env("DOG_STATSD_MOGRIFIER_HITS_NAME", "limits.$3")
        .env("DOG_STATSD_MOGRIFIER_HITS_TAGS", "domain:$1,path:$2")
        .env("USE_STATSD", "true")
        .env("USE_PROMETHEUS", "true")
        .start();
    ask_alice(&limiter, 6);
    let tags = [
        ("cluster", "one"),
        ("service", "limiter"),
        ("env", "test"),
        ("version", "7"),
        ("dd_internal_entity_id", "pod-1"),
    ];
    let hits = |name: &str, tags: &[(&str, &str)]| exporter.scrape().sum(name, tags);
    eventually_true("all hits to arrive", || hits(HITS, &tags) == 6.0);
    let mogrified = [&tags[..], &[("domain", "shop"), ("path", "user_alice")]].concat();
    eventually_true("the rewritten name", || hits("limits_near_limit", &mogrified) == 1.0);
    assert_eq!(hits(&HITS.replace("total_hits", "near_limit"), &tags), 0.0);
    eventually_true("plain StatsD, its tags in the name", || {
        hits(&format!("{HITS}___cluster_one"), &[]) == 6.0
    });
    assert_eq!(limiter.scrape().sum("ratelimit_service_rate_limit_total_hits", &[]), 6.0);
}

/// Lines that come over the next connection.
fn lines_of(listener: TcpListener) -> mpsc::Receiver<String> {
    let (shown, lines) = mpsc::channel();
    std::thread::spawn(move || {
        let (stream, _) = listener.accept().expect("the limiter connects");
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            if shown.send(line).is_err() {
                return;
            }
        }
    });
    lines
}

/// Waits for the next line that begins so.
fn next_line(lines: &mpsc::Receiver<String>, start: &str) -> String {
    let what = format!("a line {start}");
    eventually(&what, || {
        lines.recv_timeout(Duration::from_secs(10)).ok().filter(|line| line.starts_with(start))
    })
}

#[test]
fn counters_are_sent_as_what_they_have_grown_by() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let lines = lines_of(listener);
    let limiter = sends_to(port).env("EXTRA_TAGS", "az:b.c,k:v").start();
    let name = "ratelimit.service.rate_limit.shop.user_alice.total_hits.__az=b_c.__k=v";
    for grown in 1..4 {
        let client = limiter.client();
        let alice: &[(&str, &str)] = &[("user", "alice")];
        client.ask(question("shop", &vec![alice; grown]));
        assert_eq!(next_line(&lines, name), format!("{name}:{grown}|c"));
    }
    let quiet = Instant::now();
    let client = limiter.client();
    client.ask(question("shop", &[&[("user", "bob")]]));
    // Many flushes later what did not grow was not sent again.
    while quiet.elapsed() < Duration::from_millis(500) {
        let line = lines.recv_timeout(Duration::from_millis(100)).unwrap_or_default();
        assert!(!line.starts_with(name), "{line}");
        assert!(!line.contains(":0|c"), "{line}");
    }
}

#[test]
fn a_datagram_is_no_larger_than_a_packet() {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
    socket.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
    let port = socket.local_addr().expect("bound").port();
    let limiter = sends_to(port).env("STATSD_PROTOCOL", "udp").start();
    ask_many(&limiter, 300);
    let mut seen = 0;
    let mut datagram = [0; 65_536];
    while seen < 300 {
        let length = socket.recv(&mut datagram).expect("datagrams come");
        assert!(length <= 1_432, "{length}");
        let text = std::str::from_utf8(&datagram[..length]).expect("text");
        assert!(text.ends_with('\n'), "whole lines: {text}");
        seen += text.lines().filter(|line| line.ends_with(".total_hits:1|c")).count();
    }
}

/// One hit for each of so many users.
fn ask_many(limiter: &Tidegate, users: usize) {
    let names: Vec<_> = (0..users).map(|user| format!("user-with-a-rather-long-name-{user:06}")).collect();
    let client = limiter.client();
    for chunk in names.chunks(60) {
        let descriptors: Vec<_> = chunk.iter().map(|name| [("user", name.as_str())]).collect();
        let descriptors: Vec<&[(&str, &str)]> = descriptors.iter().map(<[_; 1]>::as_slice).collect();
        client.ask(question("shop", &descriptors));
    }
}

#[test]
fn a_receiver_that_never_reads_slows_no_decision_and_takes_no_memory() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let limiter = sends_to(listener.local_addr().expect("bound").port()).start();
    let _deaf = listener.accept().expect("the limiter connects");
    // Every flush has some 5 MB to send, far more than sockets hold.
    ask_many(&limiter, 20_000);
    let memory = limiter.memory_peak_bytes();
    let (mut slowest, watched) = (Duration::ZERO, Lateness::watch());
    eventually_true("the limiter to notice", || {
        let began = Instant::now();
        ask_many(&limiter, 2_000);
        slowest = slowest.max(began.elapsed());
        limiter.lines_with("does not accept metrics") > 0
    });
    // 34 calls; a single write that waited for the receiver would take seconds.
    let late = watched.allowance();
    assert!(slowest < Duration::from_secs(4) + late, "{slowest:?}, the machine is {late:?} late");
    let grown = limiter.memory_peak_bytes().saturating_sub(memory);
    assert!(grown < 8 << 20, "{grown} bytes");
}

#[test]
fn counts_wait_for_a_receiver_that_is_away() {
    let port = free_port();
    let limiter = sends_to(port).start();
    ask_alice(&limiter, 3);
    eventually_true("the limiter to notice", || limiter.lines_with("does not accept metrics") == 1);
    let first = StatsdExporter::start_at(port, None);
    eventually_true("what came before", || first.scrape().sum(HITS, &[]) == 3.0);
    drop(first);
    eventually_true("the limiter to notice", || {
        ask_alice(&limiter, 1);
        limiter.lines_with("does not accept metrics") == 2
    });
    let shown = limiter.scrape().sum("ratelimit_service_rate_limit_total_hits", &[]);
    let second = StatsdExporter::start_at(port, None);
    eventually_true("what came meanwhile", || second.scrape().sum(HITS, &[]) == shown - 3.0);
    assert_eq!(limiter.lines_with("accepts metrics again"), 2);
}

#[test]
fn the_last_counts_are_sent_at_the_end() {
    let exporter = StatsdExporter::start(None);
    let mut limiter = sends_to(exporter.port).env("STATS_FLUSH_INTERVAL", "1h").start();
    // The flush at the start is over.
    eventually_true("the first flush", || {
        exporter.scrape().sum("ratelimit_service_config_load_success", &[]) == 1.0
    });
    ask_alice(&limiter, 3);
    limiter.signal(Signal::TERM);
    assert_eq!(limiter.exit_code(), 0);
    eventually_true("the last counts", || exporter.scrape().sum(HITS, &[]) == 3.0);
}

#[test]
fn with_disable_stats_nothing_is_sent_whatever_else_is_set() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.set_nonblocking(true).expect("a socket");
    let port = listener.local_addr().expect("bound").port();
    let setup = sends_to(port).env("DISABLE_STATS", "true").env("USE_STATSD", "true");
    let limiter = setup.env("USE_PROMETHEUS", "true").start();
    ask_alice(&limiter, 3);
    assert!(http::get(limiter.ports().metrics, "/metrics").is_err());
    assert!(listener.accept().is_err());
    assert_eq!(limiter.lines_with("metrics: "), 0);
}
