//! The recipes in docs/proxies.md that count failed logins alone, through a real Envoy and a real NGINX: the fifth failure
//! begins a ban, and nothing else counts.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use crate::harness::application;
use crate::harness::envoy::{Envoy, Upstream};
use crate::harness::eventually_true;
use crate::harness::http::{self, Client};
use crate::harness::proxy::Proxy;
use crate::harness::redis::Redis;
use crate::harness::tidegate::{Setup, Tidegate};

const RIGHT: &str = "right";
/// What the rule on the page lets pass.
const FAILURES: u64 = 4;

/// The blocks of this language in a section of docs/proxies.md.
pub fn blocks(title: &str, language: &str) -> Vec<String> {
    let page = include_str!("../../docs/proxies.md");
    let section = page.split(&format!("# {title}\n")).nth(1).expect("the section is there");
    let section =
        section.split("\n## ").next().expect("it has a text").split("\n### ").next().expect("it has a text");
    let fence = format!("```{language}\n");
    section
        .split(&fence)
        .skip(1)
        .map(|block| block.split("```").next().expect("it ends").to_owned())
        .collect()
}

pub fn indented(text: &str, spaces: usize) -> String {
    text.lines().map(|line| format!("{}{line}\n", " ".repeat(spaces))).collect()
}

fn limiter(redis: Option<&Redis>) -> Tidegate {
    let setup = Setup::new().rules("logins.yaml", &blocks("Failed logins alone", "yaml")[0]);
    match redis {
        Some(redis) => setup.env("REDIS_URL", &redis.url()).start(),
        None => setup.start(),
    }
}

/// Starts an application that answers 200 to the right password, and 401 to others. Returns its port.
fn application() -> u16 {
    application::serving(serve)
}

fn serve(mut stream: &TcpStream) -> io::Result<()> {
    let mut reader = BufReader::new(stream);
    loop {
        let (mut line, mut length) = (String::new(), 0);
        while line != "\r\n" {
            line.clear();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            let header = line.to_ascii_lowercase();
            if let Some(text) = header.strip_prefix("content-length:") {
                length = text.trim().parse().expect("a length");
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        let is_right = String::from_utf8_lossy(&body).contains(&format!("\"password\": \"{RIGHT}\""));
        let status = if is_right { "200 OK" } else { "401 Unauthorized" };
        write!(stream, "HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n")?;
    }
}

/// The status of a login.
fn log_in(client: &mut Client, user: &str, password: &str) -> u16 {
    let body = format!(r#"{{"user": "{user}", "password": "{password}"}}"#);
    let headers = [("content-type", "application/json")];
    client.send("POST", "/session", &headers, &body).expect("an answer").status
}

/// `attempt` is a login of `mallory`, and `other` one of somebody else.
fn failures_alone_count(
    limiter: &Tidegate,
    mallory: &str,
    mut attempt: impl FnMut(&str) -> u16,
    mut other: impl FnMut() -> u16,
) {
    let question = || {
        let path = format!("/check/logins?answer=401&who={mallory}&~hits=0");
        http::get(limiter.ports().http, &path).expect("an answer")
    };
    for _ in 0..3 {
        assert_eq!(attempt(RIGHT), 200);
    }
    for failed in 1..=FAILURES {
        assert_eq!(attempt("wrong"), 401);
        eventually_true("the failure to count", || {
            question().number("ratelimit-remaining") == FAILURES - failed
        });
        assert_eq!(attempt(RIGHT), 200, "{failed} failures ban nobody");
    }
    assert_eq!(question().status, 200);
    assert_eq!(attempt("wrong"), 401, "the fifth");
    // With Redis, the denial that is a strike comes before the ban: it is reported a moment later.
    eventually_true("a ban of an hour", || {
        let answer = question();
        answer.status == 429 && (3_500..=3_600).contains(&answer.number("retry-after"))
    });
    assert_eq!([attempt(RIGHT), attempt("wrong")], [429; 2], "while the ban lasts");
    assert_eq!(other(), 200);
    assert_eq!(limiter.metric("tidegate_bans_seen_total"), 1.0);
}

/// The example with the lines of the page.
fn envoy_bans(limiter: &Tidegate) {
    let [filters, route] = &blocks("Failed logins in Envoy", "yaml")[..] else { panic!("two blocks") };
    let ratelimit = "                  # Stage 0: what most routes use.";
    let guarded = "                        # Guarded: without Tidegate, no login.";
    let route = format!(
        "                        - match: {{ prefix: /session }}\n                          route: {{ cluster: \
         application }}\n{}{guarded}",
        indented(route, 26)
    );
    let changes = [
        (ratelimit, &*format!("{}{ratelimit}", indented(filters, 18))),
        (guarded, &*route),
        ("domain: edge", "domain: logins"),
    ];
    let envoy = Envoy::start_before_changed(&Upstream::at(limiter), application(), &changes);
    let (mut one, mut another) = (envoy.client(), envoy.client());
    failures_alone_count(
        limiter,
        "mallory",
        |password| log_in(&mut one, "mallory", password),
        || log_in(&mut another, "alice", RIGHT),
    );
}

#[test]
fn through_envoy_failed_logins_alone_count_and_the_fifth_bans() {
    envoy_bans(&limiter(None));
}

#[test]
fn through_envoy_and_redis_failed_logins_alone_count_and_the_fifth_bans() {
    let redis = Redis::start(&[]);
    envoy_bans(&limiter(Some(&redis)));
}

#[test]
fn through_nginx_failed_logins_alone_count_and_the_fifth_bans() {
    let limiter = limiter(None);
    let [server, tidegate] = &blocks("Failed logins in NGINX", "nginx")[..] else { panic!("two blocks") };
    let (site, unanswered) = ("# Most of the site.", "# Without an answer of Tidegate the request passes.");
    let changes = [(site, format!("{server}{site}")), (unanswered, format!("{tidegate}{unanswered}"))];
    let address = format!("127.0.0.1:{}", limiter.ports().http);
    let proxy = Proxy::start_nginx_changed(&address, application(), &changes);
    let (mut one, mut another) = (proxy.client(2), proxy.client(3));
    failures_alone_count(
        &limiter,
        "127.0.0.2",
        |password| log_in(&mut one, "mallory", password),
        || log_in(&mut another, "mallory", RIGHT),
    );
}
