//! What every recipe of `examples/` has to do, with a real NGINX, Caddy and HAProxy: the same tests for each.

use std::collections::HashSet;
use std::io::{BufReader, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::harness::http::{self, Answer};
use crate::harness::proxy::{EXAMPLE_RULES, Kind, Proxy};
use crate::harness::tidegate::{Setup, Tidegate};
use crate::harness::{StopOnDrop, eventually_true, whole_machine};

/// Makes a module of tests for each proxy.
macro_rules! for_every_proxy {
    ($($test:ident),+ $(,)?) => {
        for_every_proxy!(@ nginx Nginx, $($test),+);
        for_every_proxy!(@ caddy Caddy, $($test),+);
        for_every_proxy!(@ haproxy Haproxy, $($test),+);
    };
    (@ $module:ident $kind:ident, $($test:ident),+) => {
        mod $module {
            $( #[test] fn $test() { super::$test(super::Kind::$kind); } )+
        }
    };
}

for_every_proxy!(
    n_pass_and_the_next_gets_429_with_its_headers,
    the_applications_own_403_is_the_clients,
    what_a_client_forges_changes_nothing,
    what_cannot_be_asked_is_the_clients_fault_and_never_passes,
    without_a_limiter_traffic_flows_but_guarded_routes_stay_shut,
    connections_to_the_limiter_are_kept,
    rules_that_change_under_load_fail_no_request,
    over_a_unix_socket_the_same_limits_hold,
);

fn start_with(kind: Kind, rules: &str) -> (Tidegate, Proxy) {
    let limiter = Setup::new().rules("edge.yaml", rules).env("CHECK_PROXY", kind.check_proxy()).start();
    let proxy = Proxy::start(kind, &format!("127.0.0.1:{}", limiter.ports().http));
    (limiter, proxy)
}

fn start(kind: Kind) -> (Tidegate, Proxy) {
    start_with(kind, EXAMPLE_RULES)
}

fn send(client: &mut http::Client, method: &str, path: &str, headers: &[(&str, &str)]) -> Answer {
    client.send(method, path, headers, "").unwrap_or_else(|error| panic!("{method} {path}: {error}"))
}

/// How many hits the counter of these entries has left, asked of the limiter itself.
fn left(limiter: &Tidegate, entries: &str) -> u64 {
    http::Client::new(limiter.ports().http)
        .get(&format!("/check/edge?{entries}&~hits=0"))
        .number("ratelimit-remaining")
}

fn n_pass_and_the_next_gets_429_with_its_headers(kind: Kind) {
    let (_limiter, proxy) = start(kind);
    let mut alice = proxy.client(2);
    for remaining in [2, 1, 0] {
        let answer = send(&mut alice, "POST", "/login", &[]);
        assert_eq!((answer.status, &*answer.body), (200, "The application says hello.\n"));
        assert_eq!(answer.number("ratelimit-limit"), 3);
        assert_eq!(answer.number("ratelimit-remaining"), remaining);
        assert!((1..=915).contains(&answer.number("ratelimit-reset")), "{answer:?}");
        assert_eq!(answer.header("retry-after"), None);
    }
    let denied = send(&mut alice, "POST", "/login", &[]);
    assert_eq!(denied.status, 429, "{denied:?}");
    assert_eq!((denied.number("ratelimit-limit"), denied.number("ratelimit-remaining")), (3, 0));
    assert!((1..=915).contains(&denied.number("retry-after")), "{denied:?}");
    assert_eq!(denied.header("retry-after"), denied.header("ratelimit-reset"));
    assert!(!denied.body.contains("hello"), "it must not reach the application");

    assert_eq!(send(&mut proxy.client(3), "POST", "/login", &[]).status, 200, "another client");
    let other = send(&mut alice, "GET", "/things?a=1", &[]);
    assert_eq!((other.status, other.number("ratelimit-limit")), (200, 20), "another limit");
    let statuses: Vec<u16> = (0..17).map(|_| send(&mut alice, "GET", "/things", &[]).status).collect();
    assert_eq!(statuses, [[200; 16].as_slice(), &[429]].concat(), "3 + 1 + 16 of 20");
    let keyed = send(&mut proxy.client(4), "GET", "/", &[("x-api-key", "k1")]);
    assert_eq!((keyed.status, keyed.number("ratelimit-limit")), (200, 10), "by a header");
}

fn the_applications_own_403_is_the_clients(kind: Kind) {
    let (_limiter, proxy) = start(kind);
    let answer = send(&mut proxy.client(2), "GET", "/forbidden", &[]);
    assert_eq!((answer.status, &*answer.body), (403, "The application says no.\n"), "{answer:?}");
    assert_eq!(answer.header("retry-after"), None);
    assert_eq!(answer.number("ratelimit-remaining"), 19, "it was asked and may pass");
}

fn what_a_client_forges_changes_nothing(kind: Kind) {
    let forged: [&[(&str, &str)]; 18] = [
        &[("x-forwarded-for", "10.9.9.9")],
        &[("x-forwarded-for", "10.9.9.9"), ("X-Forwarded-For", "10.9.9.8, 10.9.9.7")],
        &[("x-forwarded-for", "garbage")],
        &[("x-real-ip", "10.9.9.9")],
        &[("forwarded", "for=10.9.9.9;host=h;proto=https")],
        &[("x-original-uri", "/elsewhere")],
        &[("x-original-uri", "/elsewhere"), ("X-Original-URI", "/again")],
        &[("x-original-method", "GET")],
        &[("x-forwarded-uri", "/elsewhere")],
        &[("x-forwarded-uri", "/elsewhere"), ("X-Forwarded-Uri", "/again")],
        &[("x-forwarded-method", "GET")],
        &[("x-forwarded-host", "elsewhere")],
        &[("x-forwarded-host", "elsewhere"), ("X-Forwarded-Host", "again")],
        &[("x-forwarded-proto", "https")],
        &[("x-http-method-override", "GET")],
        &[("ratelimit-limit", "1")],
        &[("retry-after", "1")],
        &[("x-original_uri", "/elsewhere"), ("x_original_uri", "/elsewhere")],
    ];
    // The limit of the example, raised, so that every forgery can be seen.
    let rules = EXAMPLE_RULES.replace("requests_per_unit: 3}", "requests_per_unit: 1000}");
    let rules = rules.replace("requests_per_unit: 20}", "requests_per_unit: 1000}");
    assert_eq!(rules.matches("1000").count(), 2);
    let (limiter, proxy) = start_with(kind, &rules);
    for (sent, headers) in (1..).zip(forged) {
        let answer = send(&mut proxy.client(2), "POST", "/login?~hits=0&~deny=200&x=", headers);
        assert_eq!(answer.status, 200, "{headers:?}: {answer:?}");
        assert_eq!(left(&limiter, "route=login&remote_address=127.0.0.2"), 1000 - sent, "{headers:?}");
        assert_eq!(left(&limiter, "remote_address=127.0.0.2"), 1000 - sent, "{headers:?}");
    }
    assert_eq!(left(&limiter, "remote_address=10.9.9.9"), 1000);
}

fn what_cannot_be_asked_is_the_clients_fault_and_never_passes(kind: Kind) {
    let (limiter, proxy) = start(kind);
    for path in ["/things", "/login"] {
        let mut stream = http::connect(proxy.port).expect("it listens");
        let head = format!("GET {path} HTTP/1.1\r\nhost: tests\r\nx-api-key: ");
        stream.write_all(&[head.as_bytes(), b"\xff\xfe\r\n\r\n"].concat()).expect("it reads");
        let answer = http::read_answer(&mut BufReader::new(stream), false).expect("an answer");
        assert_eq!(answer.status, 400, "{path}: {answer:?}");
        assert!(!answer.body.contains("hello"), "{answer:?}");
    }
    assert_eq!(left(&limiter, "remote_address=127.0.0.1"), 20, "nothing was counted");
    let refused = [("front", "check"), ("code", "INVALID_ARGUMENT")];
    assert_eq!(limiter.scrape().sum("tidegate_requests_total", &refused), 2.0);
}

fn without_a_limiter_traffic_flows_but_guarded_routes_stay_shut(kind: Kind) {
    let (mut limiter, proxy) = start(kind);
    let mut client = proxy.client(2);
    assert_eq!(send(&mut client, "POST", "/login", &[]).status, 200);

    limiter.kill();
    for _ in 0..25 {
        let answer = send(&mut client, "GET", "/things", &[]);
        assert_eq!((answer.status, &*answer.body), (200, "The application says hello.\n"), "{answer:?}");
        assert_eq!(answer.header("ratelimit-limit"), None, "nobody said so: {answer:?}");
    }
    for _ in 0..3 {
        let answer = send(&mut client, "POST", "/login", &[]);
        assert!((500..=504).contains(&answer.status), "{answer:?}");
    }

    let _limiter = limiter.restart();
    eventually_true("the limiter to be asked again", || {
        send(&mut client, "POST", "/login", &[]).status == 200
    });
    eventually_true("limits to hold again", || send(&mut client, "GET", "/things", &[]).status == 429);
}

fn over_a_unix_socket_the_same_limits_hold(kind: Kind) {
    let setup = Setup::new().rules("edge.yaml", EXAMPLE_RULES).env("CHECK_PROXY", kind.check_proxy());
    let socket = setup.outside().join("http.sock").display().to_string();
    let mut limiter = setup.env("HTTP_UDS", &socket).start();
    let proxy = Proxy::start(kind, &kind.unix(&socket));
    let login = |host| send(&mut proxy.client(host), "POST", "/login", &[]).status;
    assert_eq!([login(2), login(2), login(2), login(2), login(3)], [200, 200, 200, 429, 200]);

    limiter.kill();
    assert_eq!(send(&mut proxy.client(3), "GET", "/things", &[]).status, 200);
    let guarded = login(3);
    assert!((500..=504).contains(&guarded), "{guarded}");
}

/// The connections to this port of loopback, by the port of the client. Closed ones that the system still remembers are
/// included.
fn connections_to(port: u16) -> HashSet<String> {
    let table = std::fs::read_to_string("/proc/net/tcp").expect("Linux has it");
    let peer = format!("0100007F:{port:04X}");
    let rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    rows.filter(|row| row.get(2) == Some(&&*peer)).map(|row| row[1].to_owned()).collect()
}

fn connections_to_the_limiter_are_kept(kind: Kind) {
    let (limiter, proxy) = start(kind);
    let before = connections_to(limiter.ports().http);
    let mut clients: Vec<_> = (2..5).map(|host| proxy.client(host)).collect();
    for _ in 0..20 {
        clients.iter_mut().for_each(|client| drop(send(client, "GET", "/things", &[])));
    }
    let after = connections_to(limiter.ports().http);
    let opened = after.difference(&before).count();
    assert!((1..=6).contains(&opened), "60 questions took {opened} connections");
}

fn rules_that_change_under_load_fail_no_request(kind: Kind) {
    const MANY: u64 = 1_000_000;
    const ROUNDS: u64 = 12;
    let rules = |generation: u64| {
        let requests = MANY + generation;
        format!(
            "domain: edge\nrate_limits: [{{actions: [{{remote_address: {{}}}}]}}]\ndescriptors:\n  - {{key: remote_address, \
             rate_limit: {{unit: day, requests_per_unit: {requests}}}}}\n"
        )
    };
    let _machine = whole_machine();
    let (limiter, proxy) = start_with(kind, &rules(0));
    let stop = AtomicBool::new(false);
    let load = |host: u8| -> u64 {
        let (mut client, mut sent) = (proxy.client(host), 0);
        while !stop.load(Ordering::Relaxed) {
            let answer = send(&mut client, "GET", "/things", &[]);
            assert_eq!(answer.status, 200, "{answer:?}");
            let limit = answer.number("ratelimit-limit");
            sent += 1;
            assert!((MANY..=MANY + ROUNDS).contains(&limit), "{limit}");
            assert_eq!(limit - answer.number("ratelimit-remaining"), sent, "counted once, exactly");
        }
        sent
    };
    let total: u64 = std::thread::scope(|scope| {
        let loads: Vec<_> = (2..4).map(|host| scope.spawn(move || load(host))).collect();
        let stop = StopOnDrop(&stop);
        for generation in 1..=ROUNDS {
            limiter.setup.write("edge.yaml", &rules(generation));
            let url = "/check/edge?remote_address=none&~hits=0";
            let limit = || http::Client::new(limiter.ports().http).get(url).number("ratelimit-limit");
            eventually_true("a reload", || limit() == MANY + generation);
        }
        drop(stop);
        loads.into_iter().map(|load| load.join().expect("every request passes")).sum()
    });
    assert!(total > ROUNDS, "a load: {total}");
}

/// Exactly what Traefik's ForwardAuth sends for this client request, headers in the order of Go's writer, as it is in
/// `pkg/middlewares/auth/forward.go`: those of the client but the hop-by-hop ones, and what it sets itself.
fn traefik(limiter: &Tidegate, method: &str, uri: &str, address: &str, client: &str) -> Answer {
    let port = limiter.ports().http;
    let question = format!(
        "GET /check/edge HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUser-Agent: curl/8.5.0\r\nAccept: */*\r\n{client}\
         X-Forwarded-For: {address}\r\nX-Forwarded-Host: shop.example\r\nX-Forwarded-Method: {method}\r\n\
         X-Forwarded-Port: 80\r\nX-Forwarded-Proto: http\r\nX-Forwarded-Server: edge-1\r\nX-Forwarded-Uri: {uri}\r\n\
         X-Real-Ip: {address}\r\nAccept-Encoding: gzip\r\n\r\n"
    );
    let mut stream = http::connect(port).expect("it listens");
    stream.write_all(question.as_bytes()).expect("it reads");
    http::read_answer(&mut BufReader::new(stream), false).expect("an answer")
}

#[test]
fn what_traefik_sends_is_counted_as_traefik_says() {
    let limiter = Setup::new().rules("edge.yaml", EXAMPLE_RULES).env("CHECK_PROXY", "forwarded").start();
    // What a client of nginx's family would say of itself is passed on, and not believed.
    let forged = "X-Original-Method: GET\r\nX-Original-Uri: /elsewhere\r\n";
    let login = |address| traefik(&limiter, "POST", "/login?next=%2F", address, forged);
    let statuses = [(); 4].map(|()| login("203.0.113.1").status);
    assert_eq!(statuses, [200, 200, 200, 429]);
    let denied = login("203.0.113.1");
    assert_eq!((denied.number("ratelimit-remaining"), &*denied.body), (0, "rate limited"));
    assert!((1..=915).contains(&denied.number("retry-after")), "{denied:?}");
    assert_eq!(login("203.0.113.2").status, 200, "another client");
    let keyed = traefik(&limiter, "GET", "/", "203.0.113.3", "X-Api-Key: k1\r\n");
    assert_eq!((keyed.status, keyed.number("ratelimit-limit")), (200, 10));
    assert_eq!(left(&limiter, "remote_address=203.0.113.1"), 17);
}
