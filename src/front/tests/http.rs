//! The HTTP ports, called over bare sockets as curl would, and over HTTP/2.

use std::net::SocketAddr;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{Server, TIMEOUT};

const ALICE: &str = r#"{"domain":"shop","descriptors":[{"entries":[{"key":"user","value":"alice"}]}]}"#;

/// Sends one request over HTTP/1.1; returns the status, the head in lower case, and the body.
pub(super) async fn send(
    address: SocketAddr,
    line: &str,
    headers: &str,
    body: &str,
) -> (u16, String, String) {
    let length = body.len();
    let request = format!(
        "{line} HTTP/1.1\r\nhost: t\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n{body}"
    );
    exchange(address, request.as_bytes()).await
}

/// Sends a complete request. Returns the status and the body.
pub(super) async fn send_bytes(address: SocketAddr, request: &[u8]) -> (u16, String) {
    let (status, _, body) = exchange(address, request).await;
    (status, body)
}

async fn exchange(address: SocketAddr, request: &[u8]) -> (u16, String, String) {
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    stream.write_all(request).await.expect("it reads");
    let mut answer = String::new();
    let read = tokio::time::timeout(TIMEOUT, stream.read_to_string(&mut answer)).await.expect("in time");
    read.expect("text");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    let head = head.to_lowercase();
    let body = if head.contains("transfer-encoding: chunked") { unchunked(body) } else { body.to_owned() };
    (status, head, body)
}

/// The contents of a chunked body, up to the last, empty chunk.
fn unchunked(mut chunks: &str) -> String {
    let mut body = String::new();
    loop {
        let (length, rest) = chunks.split_once("\r\n").expect("a length");
        let (chunk, rest) = rest.split_at(usize::from_str_radix(length, 16).expect("a number"));
        if chunk.is_empty() {
            return body;
        }
        body += chunk;
        chunks = rest.strip_prefix("\r\n").expect("the end of a chunk");
    }
}

pub(super) async fn status_and_body(address: SocketAddr, line: &str, body: &str) -> (u16, String) {
    let (status, _, body) = send(address, line, "", body).await;
    (status, body)
}

#[tokio::test]
async fn json_answers_are_those_of_the_go_service() {
    let server = Server::start().await;
    let (status, head, body) = send(server.http, "POST /json", "", ALICE).await;
    assert_eq!(status, 200);
    assert!(head.contains("content-type: application/json"), "{head}");
    let first = r#"{"overallCode":"OK","statuses":[{"code":"OK","currentLimit":{"requestsPerUnit":10,"unit":"HOUR"},"limitRemaining":9,"durationUntilReset":"#;
    assert!(body.starts_with(first), "{body}");
    assert!(body.ends_with("s\"}]}"), "{body}");
    for _ in 0..9 {
        assert_eq!(status_and_body(server.http, "GET /json", ALICE).await.0, 200);
    }
    let (status, body) = status_and_body(server.http, "POST /json", ALICE).await;
    assert_eq!(status, 429);
    let over = r#"{"overallCode":"OVER_LIMIT","statuses":[{"code":"OVER_LIMIT","currentLimit":{"requestsPerUnit":10,"unit":"HOUR"},"durationUntilReset":"#;
    assert!(body.starts_with(over), "{body}");
}

#[tokio::test]
async fn a_bad_body_is_refused_with_what_is_wrong() {
    let server = Server::start().await;
    for (body, status, named) in [
        (r#"{"domian":"shop"}"#.to_owned(), 400, "'domian'"),
        ("{".to_owned(), 400, "EOF"),
        ("{}".to_owned(), 400, "rate limit domain must not be empty"),
        (r#"{"domain":"shop"}"#.to_owned(), 400, "rate limit descriptor list must not be empty"),
        (" ".repeat(65_537), 413, "65536 bytes"),
    ] {
        let (answered, text) = status_and_body(server.http, "POST /json", &body).await;
        assert_eq!(answered, status, "{text}");
        assert!(text.contains(named), "{text}");
    }
    let (status, head, _) = send(server.http, "DELETE /json", "", "").await;
    assert_eq!(status, 405);
    assert!(head.contains("allow: get, post"), "{head}");
}

#[tokio::test]
async fn a_decision_that_cannot_be_made_is_a_500() {
    let server = Server::without_rules().await;
    let answer = status_and_body(server.http, "POST /json", ALICE).await;
    assert_eq!(answer, (500, "no rate limit configuration loaded\n".to_owned()));
}

#[tokio::test]
async fn probes_answer_what_health_says() {
    let server = Server::start().await;
    for path in ["/healthcheck", "/readyz", "/livez"] {
        assert_eq!(status_and_body(server.http, &format!("GET {path}"), "").await, (200, "OK".to_owned()));
        assert_eq!(status_and_body(server.http, &format!("HEAD {path}"), "").await, (200, String::new()));
        assert_eq!(status_and_body(server.http, &format!("POST {path}"), "").await.0, 405);
    }
    server.health.refuse("no domain is loaded");
    let unhealthy = (500, "no domain is loaded".to_owned());
    assert_eq!(status_and_body(server.http, "GET /healthcheck", "").await, unhealthy);
    assert_eq!(status_and_body(server.http, "GET /readyz", "").await, unhealthy);
    assert_eq!(status_and_body(server.http, "GET /livez", "").await.0, 200);
    server.health.drain();
    assert_eq!(status_and_body(server.http, "GET /readyz", "").await, (500, "draining".to_owned()));
    assert_eq!(status_and_body(server.http, "GET /nothing", "").await.0, 404);
}

#[tokio::test]
async fn the_http_port_speaks_http2_without_tls() {
    let server = Server::start().await;
    let stream = TcpStream::connect(server.http).await.expect("it listens");
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .expect("HTTP/2");
    tokio::spawn(connection);
    let request = http::Request::post(format!("http://{}/json", server.http))
        .body(Full::new(Bytes::from_static(ALICE.as_bytes())))
        .expect("a request");
    let response = sender.send_request(request).await.expect("an answer");
    assert_eq!(response.status(), 200);
    let body = response.into_body().collect().await.expect("all of it").to_bytes();
    assert!(body.starts_with(br#"{"overallCode":"OK""#), "{body:?}");
}

#[tokio::test]
async fn metrics_are_where_the_setting_says_and_on_the_debug_port() {
    let server = Server::start().await;
    assert_eq!(status_and_body(server.http, "POST /json", ALICE).await.0, 200);
    assert_eq!(status_and_body(server.http, "POST /json", "{").await.0, 400);
    for (address, path) in [(server.metrics_page, "/prometheus"), (server.admin, "/metrics")] {
        let (status, head, body) = send(address, &format!("GET {path}"), "", "").await;
        assert_eq!(status, 200);
        assert!(head.contains("content-type: text/plain; version=0.0.4"), "{head}");
        assert!(body.contains(r#"tidegate_requests_total{front="json",code="OK"} 1"#), "{body}");
        assert!(
            body.contains(r#"tidegate_requests_total{front="json",code="INVALID_ARGUMENT"} 1"#),
            "{body}"
        );
    }
    let elsewhere = status_and_body(server.metrics_page, "GET /metrics", "").await;
    assert_eq!(elsewhere, (404, "metrics are at /prometheus\n".to_owned()));
}

#[tokio::test]
async fn the_debug_port_lists_what_there_is() {
    let server = Server::start().await;
    let (status, index) = status_and_body(server.admin, "GET /", "").await;
    assert_eq!(status, 200);
    for path in index.lines().map(|line| line.split(' ').next().expect("a path")) {
        let expected = match path {
            "/ask" => 405,
            // The host of these requests is a name that anybody's page could have.
            "/status" => 403,
            _ => 200,
        };
        assert_eq!(status_and_body(server.admin, &format!("GET {path}"), "").await.0, expected, "{path}");
    }
    let (_, limits) = status_and_body(server.admin, "GET /rlconfig", "").await;
    assert!(
        limits
            .contains("\nshop.user: unit=HOUR requests_per_unit=10, shadow_mode: false, quota_mode: false, "),
        "{limits}"
    );
    assert_eq!(status_and_body(server.admin, "GET /nothing", "").await.0, 404);
    assert_eq!(status_and_body(server.admin, "POST /", "").await.0, 405);
}

#[tokio::test]
async fn a_question_of_the_debug_port_is_explained_and_changes_nothing() {
    let server = Server::start().await;
    let spend = ALICE.replace(r#""domain""#, r#""hitsAddend":7,"domain""#);
    assert_eq!(status_and_body(server.http, "POST /json", &spend).await.0, 200);
    let before = status_and_body(server.admin, "GET /metrics", "").await.1;
    let hits = |hits| ALICE.replace(r#""domain""#, &format!(r#""hitsAddend":{hits},"domain""#));
    for _ in 0..9 {
        let (status, shown) = status_and_body(server.admin, "POST /ask", &hits(3)).await;
        assert_eq!(status, 200, "{shown}");
        assert!(
            shown.starts_with("shop: 3 hits would get OK; nothing was counted\n\nuser=alice\n"),
            "{shown}"
        );
        assert!(shown.contains("rule      shop.user at rules.yaml:4:"), "{shown}");
        assert!(shown.contains("counter   7 counted, 3 left\n"), "{shown}");
    }
    let (_, text) = status_and_body(server.admin, "POST /ask?format=json", &hits(4)).await;
    let shown: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((&shown["code"], &shown["hits"]), (&"OVER_LIMIT".into(), &4.into()));
    assert_eq!(shown["descriptors"][0]["counter"]["remaining"], 3);
    assert_eq!(shown["descriptors"][0]["path"][0]["met"], "any");
    let counted = |page: &str| {
        let ours = |line: &&str| line.starts_with("ratelimit_") || line.starts_with("tidegate_requests");
        page.lines().filter(ours).map(str::to_owned).collect::<Vec<_>>()
    };
    let after = status_and_body(server.admin, "GET /metrics", "").await.1;
    assert_eq!(counted(&after), counted(&before));
    assert!(!counted(&after).is_empty());
}

#[tokio::test]
async fn a_question_of_the_debug_port_is_refused_as_any_other() {
    let server = Server::start().await;
    for (body, status, named) in [
        ("{", 400, "EOF"),
        (r#"{"domian":"shop"}"#, 400, "domian"),
        (r#"{"domain":"shop"}"#, 400, "descriptor list"),
    ] {
        let (answered, text) = status_and_body(server.admin, "POST /ask", body).await;
        assert!(answered == status && text.contains(named), "{body}: {answered} {text}");
    }
    let (status, text) = status_and_body(Server::without_rules().await.admin, "POST /ask", ALICE).await;
    assert_eq!((status, text.as_str()), (500, "no rate limit configuration loaded\n"));
}

#[tokio::test]
async fn the_limits_in_force_come_in_three_forms() {
    let server = Server::start().await;
    for (query, content_type, begins) in [
        ("", "text/plain", "shop."),
        ("?format=yaml", "text/plain", "- "),
        ("?format=json", "application/json", "{"),
    ] {
        let (status, head, body) = send(server.admin, &format!("GET /rlconfig{query}"), "", "").await;
        assert!(
            status == 200 && head.contains(content_type) && body.starts_with(begins),
            "{query}: {head} {body}"
        );
    }
    assert_eq!(status_and_body(server.admin, "GET /rlconfig?format=xml", "").await.0, 400);
}
