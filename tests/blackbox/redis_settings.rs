//! Settings of Redis, one by one: what each does to a real server, sentinel, socket and certificate.

use std::fs;
use std::net::TcpListener;
use std::process::Command;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tonic::Code;

use crate::harness::grpc::{Client, OK, OVER_LIMIT, question};
use crate::harness::memory_folder::memory_folder;
use crate::harness::pki::{self, Authority};
use crate::harness::process::Process;
use crate::harness::redis::Redis;
use crate::harness::tidegate::{Setup, Tidegate};
use crate::harness::{eventually, eventually_true, free_port, http};

/// Windows far longer than a test, but for the one of a second.
const RULES: &str = "
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: day, requests_per_unit: 4}}
  - {key: burst, rate_limit: {unit: second, unit_multiplier: 3600, requests_per_unit: 2}}
";

const USER: &[(&str, &str)] = &[("user", "alice")];
const BURST: &[(&str, &str)] = &[("burst", "alice")];

fn setup(redis: &Redis) -> Setup {
    setup_at(&redis.url())
}

fn setup_at(url: &str) -> Setup {
    // A busy machine is not what is tested.
    Setup::new().rules("shop.yaml", RULES).env("REDIS_URL", url).env("REDIS_TIMEOUT", "10s")
}

fn with(setup: Setup, settings: &[(&str, &str)]) -> Setup {
    settings.iter().fold(setup, |setup, (name, value)| setup.env(name, value))
}

fn ask(client: &Client, entries: &[(&str, &str)]) -> Result<i32, Code> {
    let answer = client.call(question("shop", &[entries]));
    answer.map(|answer| answer.overall_code).map_err(|status| status.code())
}

/// The counters that a server holds.
fn counters(redis: &Redis) -> Vec<String> {
    redis.ask(&["KEYS", "*shop*"])
}

fn ready(limiter: &Tidegate) -> bool {
    http::get(limiter.ports().http, "/readyz").is_ok_and(|answer| answer.status == 200)
}

#[test]
fn keys_have_the_prefix_and_are_hashed_when_set_so() {
    let redis = Redis::start(&[]);
    for (hashed, names) in [("false", 1), ("true", 0)] {
        let limiter = setup(&redis).env("CACHE_KEY_PREFIX", "edge:").env("REDIS_KEY_HASH", hashed).start();
        assert_eq!(ask(&limiter.client(), USER), Ok(OK));
        let mut keys: Vec<String> = redis.ask(&["KEYS", "*"]);
        assert!(keys.iter().all(|key| key.starts_with("edge:")), "{keys:?}");
        keys.retain(|key| !key.ends_with(":generation") && !key.ends_with(":epochs"));
        assert_eq!(keys.len(), 1, "{keys:?}");
        assert_eq!(keys.iter().filter(|key| key.contains("alice")).count(), names, "{keys:?}");
        redis.ask::<()>(&["FLUSHALL"]);
    }
}

#[test]
fn health_follows_the_connection_when_set_so() {
    for (follows, stays_ready) in [("true", false), ("false", true)] {
        let mut redis = Redis::start(&[]);
        let limiter = setup(&redis).env("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", follows).start();
        redis.kill();
        eventually_true("the loss to be logged", || {
            let shown = http::get(limiter.ports().http, "/readyz").expect("an answer");
            shown.body.contains("redis") && (shown.status == 200) == stays_ready
        });
        redis.restart();
        eventually_true("it to be ready again", || ready(&limiter));
    }
}

#[test]
fn a_start_gives_up_when_set_so() {
    let url = format!("127.0.0.1:{}", free_port());
    let setup = setup_at(&url).env("REDIS_STARTUP_MAX_ELAPSED_TIME", "300ms");
    let mut process = setup.spawn();
    assert_eq!(process.exit_code(), 1);
    assert_eq!(process.lines_with("ERROR redis ended: "), 1, "{:?}", process.output());
}

#[test]
fn attempts_at_the_start_come_as_often_as_was_set() {
    // By default the sixth attempt comes after 15 s at least; from 20 ms on, the fifteenth after minutes.
    let first = ("REDIS_STARTUP_INITIAL_INTERVAL", "20ms");
    for (settings, attempts) in [(&[first][..], 6), (&[first, ("REDIS_STARTUP_MAX_INTERVAL", "40ms")], 15)] {
        let closing = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = closing.local_addr().expect("bound").to_string();
        let (shown, closed) = mpsc::channel();
        std::thread::spawn(move || while closing.accept().is_ok_and(|_| shown.send(()).is_ok()) {});
        let setup = with(setup_at(&url), settings).env("WORKER_THREADS", "1");
        let _limiter = setup.spawn();
        let began = Instant::now();
        for attempt in 0..attempts {
            let left = Duration::from_secs(10).saturating_sub(began.elapsed());
            assert!(closed.recv_timeout(left).is_ok(), "attempt {attempt} with {settings:?}");
        }
    }
}

#[test]
fn a_node_alone_has_its_share_of_every_limit() {
    let mut redis = Redis::start(&[]);
    let settings = [("REDIS_FAILURE_MODE", "local"), ("REDIS_LOCAL_SHARE", "0.5")];
    let limiter = with(setup(&redis), &settings).start();
    redis.kill();
    let client = limiter.client();
    assert_eq!([(); 3].map(|()| ask(&client, USER)), [Ok(OK), Ok(OK), Ok(OVER_LIMIT)]);
}

#[test]
fn no_more_calls_wait_than_may() {
    let redis = Redis::start(&[]);
    let limiter = setup(&redis).env("REDIS_MAX_IN_FLIGHT", "1").start();
    let (first, second) = (limiter.client(), limiter.client());
    assert_eq!(ask(&first, USER), Ok(OK));
    redis.stop();
    let waiting = first.begin(tokio_stream::once(question("shop", &[USER])));
    eventually_true("it to wait", || limiter.metric("tidegate_redis_in_flight") == 1.0);
    let began = Instant::now();
    assert_eq!(ask(&second, USER), Err(Code::Unavailable));
    assert!(began.elapsed() < Duration::from_secs(5), "answered at once: {:?}", began.elapsed());
    redis.wake();
    assert_eq!(first.finish(waiting).expect("there was time").overall_code, OK);
}

/// Connections that a limiter with so many workers has to its Redis after calls on all of them.
fn connections(redis: &Redis, settings: &[(&str, &str)]) -> f64 {
    let limiter = with(setup(redis), settings).env("WORKER_THREADS", "4").start();
    for _ in 0..8 {
        ask(&limiter.client(), USER).expect("an answer");
    }
    limiter.metric("tidegate_redis_connections")
}

#[test]
fn there_are_no_more_connections_than_the_pool_may_have() {
    let redis = Redis::start(&[]);
    assert_eq!(connections(&redis, &[("REDIS_POOL_SIZE", "1")]), 1.0);
    let many = connections(&redis, &[("REDIS_POOL_SIZE", "8")]);
    assert!((2.0..=8.0).contains(&many), "{many}");
}

#[test]
fn limits_of_a_second_live_in_a_redis_of_their_own() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let socket = folder.path().join("redis.sock").display().to_string();
    let first = Redis::start(&[]);
    let second = Redis::start(&["--unixsocket", &socket]);
    second.ask::<()>(&["CONFIG", "SET", "requirepass", "hunter2"]);
    let settings = [
        ("REDIS_PERSECOND", "true"),
        ("REDIS_PERSECOND_TYPE", "SINGLE"),
        ("REDIS_PERSECOND_SOCKET_TYPE", "unix"),
        ("REDIS_PERSECOND_URL", socket.as_str()),
        ("REDIS_PERSECOND_AUTH", "hunter2"),
        ("REDIS_PERSECOND_POOL_SIZE", "1"),
        ("REDIS_PERSECOND_TIMEOUT", "1s"),
    ];
    let limiter = with(setup(&first), &settings).env("WORKER_THREADS", "4").start();
    let client = limiter.client();
    assert_eq!([(); 3].map(|()| ask(&client, BURST)), [Ok(OK), Ok(OK), Ok(OVER_LIMIT)]);
    assert!(counters(&first).is_empty());
    for _ in 0..4 {
        assert_eq!(ask(&limiter.client(), BURST), Ok(OVER_LIMIT));
    }
    assert_eq!(limiter.metric("ratelimit_redis_per_second_pool_cx_active"), 1.0);
    assert_eq!(ask(&client, USER), Ok(OK));
    assert_eq!(counters(&first).len(), 1);

    second.stop();
    let began = Instant::now();
    assert_eq!(ask(&client, BURST), Err(Code::Unavailable));
    assert!(began.elapsed() < Duration::from_secs(8), "its own budget: {:?}", began.elapsed());
    assert_eq!(ask(&client, USER), Ok(OK));
    second.wake();
}

/// A Redis that speaks TLS on a port of its own to those whose certificate this authority issued.
struct TlsRedis {
    _redis: Redis,
    folder: TempDir,
    port: u16,
}

impl TlsRedis {
    /// Its own certificate is for this name.
    fn start(name: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let authority = Authority::new("redis");
        pki::write(folder.path(), "ca.crt", &authority.pem());
        authority.issue(name).write(&folder.path().join("server"));
        authority.issue("limiter.test").write(&folder.path().join("client"));
        let port = free_port();
        let path = |name: &str| folder.path().join(name).display().to_string();
        let more = [
            ["--tls-port", &port.to_string()],
            ["--tls-cert-file", &path("server/tls.crt")],
            ["--tls-key-file", &path("server/tls.key")],
            ["--tls-ca-cert-file", &path("ca.crt")],
        ];
        Self { _redis: Redis::start(more.as_flattened()), folder, port }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// A limiter with what it needs to be let in.
    fn known(&self) -> Setup {
        setup_at(&format!("127.0.0.1:{}", self.port))
            .env("REDIS_TLS", "true")
            .env("REDIS_TLS_CACERT", &self.path("ca.crt"))
            .env("REDIS_TLS_CLIENT_CERT", &self.path("client/tls.crt"))
            .env("REDIS_TLS_CLIENT_KEY", &self.path("client/tls.key"))
    }
}

/// It never comes to terms with its Redis, and reports this.
fn refused(setup: &Setup, why: &str) {
    let process = setup.spawn();
    eventually_true(why, || process.lines_with(why) > 0);
    // Its port may be open a moment later.
    let answer = eventually("the port of probes", || http::get(setup.ports.http, "/readyz").ok());
    assert_eq!(answer.status, 500, "{:?}", process.output());
}

#[test]
fn tls_verifies_the_chain_and_the_name_and_shows_who_we_are() {
    let redis = TlsRedis::start("127.0.0.1");
    let limiter = redis.known().start();
    assert_eq!(ask(&limiter.client(), USER), Ok(OK));
    refused(&redis.known().env("REDIS_TLS", "false"), " does not answer: ");
    let nobody = redis.known().env("REDIS_TLS_CLIENT_CERT", "").env("REDIS_TLS_CLIENT_KEY", "");
    refused(&nobody, " does not answer: ");
    refused(&redis.known().env("REDIS_TLS_CACERT", ""), "UnknownIssuer");

    let other = TlsRedis::start("other.test");
    refused(&other.known(), "certificate not valid for name");
    let limiter = other.known().env("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", "true").start();
    assert_eq!(ask(&limiter.client(), USER), Ok(OK));
}

#[test]
fn the_second_redis_may_speak_tls_too() {
    let (first, second) = (Redis::start(&[]), TlsRedis::start("127.0.0.1"));
    let url = format!("127.0.0.1:{}", second.port);
    let settings = [("REDIS_PERSECOND", "true"), ("REDIS_PERSECOND_URL", &url), ("REDIS_TLS", "false")];
    let setup = with(second.known(), &settings).env("REDIS_URL", &first.url());
    let limiter = setup.env("REDIS_PERSECOND_TLS", "true").env("REDIS_PERSECOND_TIMEOUT", "10s").start();
    assert_eq!(ask(&limiter.client(), BURST), Ok(OK));
    assert!(counters(&first).is_empty());
}

/// A sentinel with a password that watches this server as `limits`; where it is.
fn sentinel(redis: &Redis, folder: &TempDir) -> (Process, String) {
    let (port, file) = (free_port(), folder.path().join("sentinel.conf"));
    let text = format!(
        "port {port}\nbind 127.0.0.1\nrequirepass watcher\nsentinel monitor limits 127.0.0.1 {} 1\n",
        redis.port
    );
    fs::write(&file, text).expect("the folder is ours");
    let process = Process::spawn(Command::new("redis-sentinel").arg(&file).current_dir(folder.path()));
    (process, format!("limits,127.0.0.1:{port}"))
}

#[test]
fn sentinels_have_a_password_of_their_own() {
    let redis = Redis::start(&[]);
    let folder = memory_folder();
    let (_sentinel, url) = sentinel(&redis, &folder);
    for [kind, place, auth] in [
        ["REDIS_TYPE", "REDIS_URL", "REDIS_SENTINEL_AUTH"],
        ["REDIS_PERSECOND_TYPE", "REDIS_PERSECOND_URL", "REDIS_PERSECOND_SENTINEL_AUTH"],
    ] {
        let watched = || {
            let both = setup(&redis).env("REDIS_PERSECOND", "true").env("REDIS_PERSECOND_URL", &redis.url());
            let both =
                both.env("REDIS_PERSECOND_TIMEOUT", "10s").env("REDIS_STARTUP_INITIAL_INTERVAL", "50ms");
            both.env(kind, "sentinel").env(place, &url)
        };
        let limiter = watched().env(auth, "watcher").start();
        assert_eq!([USER, BURST].map(|entries| ask(&limiter.client(), entries)), [Ok(OK); 2]);
        redis.ask::<()>(&["FLUSHALL"]);
        refused(&watched().env(auth, "stranger"), &format!("({auth})"));
    }
}
