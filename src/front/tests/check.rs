//! `/check` over bare sockets, as proxies call it: the meaning of each form, and every hostile value, one by one.

use std::net::SocketAddr;

use ::http::{HeaderValue, StatusCode};
use bytes::Bytes;
use http_body_util::Empty;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;

use super::http::{send, status_and_body};
use super::{CHECK, CheckOptions, Proxy, Server};

const RULES: &str = "
domain: shop
rate_limits:
  - actions:
      - remote_address: {}
  - actions:
      - request_headers: {header_name: x-api-key, descriptor_key: api_key}
      - generic_key: {descriptor_key: tier, descriptor_value: free}
  - actions:
      - request_headers: {header_name: ':path', descriptor_key: path}
      - request_headers: {header_name: ':method', descriptor_key: method}
      - request_headers: {header_name: ':authority', descriptor_key: host}
      - query_parameters: {query_parameter_name: q, descriptor_key: q}
descriptors:
  - {key: user, rate_limit: {unit: hour, requests_per_unit: 3}}
  - {key: remote_address, rate_limit: {unit: hour, requests_per_unit: 1000}}
  - {key: path, rate_limit: {unit: hour, requests_per_unit: 50}}
  - key: api_key
    descriptors: [{key: tier, rate_limit: {unit: hour, requests_per_unit: 100}}]
  - key: path
    value: /p*
    descriptors:
      - key: method
        descriptors: [{key: host, descriptors: [{key: q, rate_limit: {unit: hour, requests_per_unit: 20}}]}]
";

/// How many hits `url` has left. Charges nothing.
async fn left(server: &Server, url: &str) -> u32 {
    let separator = if url.contains('?') { '&' } else { '?' };
    number(&send(server.http, &format!("GET {url}{separator}~hits=0"), "", "").await.1, "ratelimit-remaining")
}

fn header<'h>(head: &'h str, name: &str) -> Option<&'h str> {
    head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

fn number(head: &str, name: &str) -> u32 {
    header(head, name).and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {name}: {head}"))
}

/// Sends a call in the second form, with these headers. It has to pass. Returns what is left of its tightest limit.
async fn described(server: &Server, headers: &str) -> u32 {
    let (status, head, body) = send(server.http, "GET /check/shop", headers, "").await;
    assert_eq!((status, &*body), (200, ""), "{headers:?}: {head}");
    number(&head, "ratelimit-remaining")
}

/// The message of a call that is refused with 400.
async fn refused(address: SocketAddr, line: &str, headers: &str) -> String {
    let (status, head, body) = send(address, line, headers, "").await;
    assert_eq!(status, 400, "{line} {headers:?}: {head}");
    assert_eq!(header(&head, "ratelimit-limit"), None);
    body
}

const CLIENT: &str = "x-original-uri: /p?q=1\r\nx-original-method: GET\r\n";

async fn start() -> Server {
    Server::with_rules(Some(RULES)).await
}

#[tokio::test]
async fn n_pass_and_the_next_gets_the_time_to_wait() {
    let server = start().await;
    for (method, remaining) in [("GET", 2), ("HEAD", 1), ("POST", 0)] {
        let (status, head, body) =
            send(server.http, &format!("{method} /check/shop?user=alice"), "", "a body").await;
        assert_eq!((status, &*body), (200, ""), "{head}");
        assert_eq!(number(&head, "ratelimit-limit"), 3);
        assert_eq!(number(&head, "ratelimit-remaining"), remaining);
        assert!((1..=3_660).contains(&number(&head, "ratelimit-reset")), "{head}");
        assert_eq!(header(&head, "retry-after"), None);
    }
    let (status, head, body) = send(server.http, "GET /check/shop?user=alice", "", "").await;
    assert_eq!((status, &*body), (429, "rate limited"));
    assert_eq!((number(&head, "ratelimit-limit"), number(&head, "ratelimit-remaining")), (3, 0));
    assert_eq!(header(&head, "retry-after"), header(&head, "ratelimit-reset"));
    assert_eq!(send(server.http, "GET /check/shop?user=bob", "", "").await.0, 200, "another counter");
}

#[tokio::test]
async fn an_empty_parameter_begins_another_descriptor() {
    let server = start().await;
    assert_eq!(send(server.http, "GET /check/shop?user=alice&&path=/x", "", "").await.0, 200);
    assert_eq!(left(&server, "/check/shop?user=alice").await, 2);
    assert_eq!(left(&server, "/check/shop?path=/x").await, 49);
    let (_, head, _) =
        send(server.http, "GET /check/shop?path=/x&&user=alice&&user=bob&~hits=0", "", "").await;
    assert_eq!(number(&head, "ratelimit-remaining"), 2, "the tightest is shown");
}

#[tokio::test]
async fn what_has_no_limit_passes_and_an_unknown_domain_is_counted() {
    let server = start().await;
    for url in ["/check/shop?other=x", "/check/nowhere?user=alice", "/check/nowhere"] {
        let (status, head, body) = send(server.http, &format!("GET {url}"), "", "").await;
        assert_eq!((status, &*body, header(&head, "ratelimit-limit")), (200, "", None), "{url}");
    }
    let metrics = status_and_body(server.admin, "GET /metrics", "").await.1;
    assert!(metrics.contains(r#"tidegate_requests_total{front="check",code="OK"} 3"#), "{metrics}");
    let unknown = metrics.lines().find(|line| line.contains("domain_not_found") && line.contains("nowhere"));
    assert!(unknown.is_some_and(|line| line.ends_with(" 2")), "{unknown:?}");
}

#[tokio::test]
async fn the_url_says_hits_and_the_status_of_a_denial() {
    let server = start().await;
    let status = async |url: &str| send(server.http, &format!("GET {url}"), "", "").await.0;
    assert_eq!(status("/check/shop?~hits=2&user=alice").await, 200);
    assert_eq!(left(&server, "/check/shop?user=alice").await, 1);
    assert_eq!(status("/check/shop?user=alice&~hits=2").await, 429);
    assert_eq!(status("/check/shop?user=alice&~hits=2&~deny=403").await, 403);
    assert_eq!(status("/check/shop?user=alice&%7Edeny=503&%7Ehits=2").await, 503);
    assert_eq!(left(&server, "/check/shop?user=alice").await, 1);
}

#[tokio::test]
async fn a_setting_says_the_status_of_a_denial_too() {
    let check = CheckOptions { deny_status: StatusCode::FORBIDDEN, ..CHECK };
    let server = Server::with(Some(RULES), check).await;
    assert_eq!(send(server.http, "GET /check/shop?user=alice&~hits=4", "", "").await.0, 403);
    assert_eq!(send(server.http, "GET /check/shop?user=alice&~hits=4&~deny=429", "", "").await.0, 429);
}

#[tokio::test]
async fn every_url_that_is_not_one_question_is_refused() {
    let server = start().await;
    let many = |count| (0..count).map(|index| format!("k{index}=v")).collect::<Vec<_>>().join("&");
    for (url, named) in [
        ("/check/", "domain must not be empty".to_owned()),
        ("/check/?user=alice", "domain must not be empty".to_owned()),
        ("/check/shop/?user=alice", "%2F".to_owned()),
        ("/check/%FF?user=alice", "`%FF` is not UTF-8".to_owned()),
        ("/check/shop?=alice", "`=alice` has an empty key".to_owned()),
        ("/check/shop?&user=alice", "a descriptor is empty".to_owned()),
        ("/check/shop?user=alice&", "a descriptor is empty".to_owned()),
        ("/check/shop?user=alice&&&path=/", "a descriptor is empty".to_owned()),
        ("/check/shop?&", "a descriptor is empty".to_owned()),
        ("/check/shop?~hits=1&&user=alice", "a descriptor is empty".to_owned()),
        ("/check/shop?user=%zz", "`%zz`: a % is not followed by two hexadecimal digits".to_owned()),
        ("/check/shop?user=alice%4", "two hexadecimal digits".to_owned()),
        ("/check/shop?user=%+1", "two hexadecimal digits".to_owned()),
        ("/check/shop?user=%C3", "`%C3` is not UTF-8".to_owned()),
        ("/check/shop?%C0%80=alice", "is not UTF-8".to_owned()),
        ("/check/shop?user=%ED%A0%80", "is not UTF-8".to_owned()),
        ("/check/shop?~hits=-1&user=alice", "~hits is not a number".to_owned()),
        ("/check/shop?~hits=&user=alice", "~hits is not a number".to_owned()),
        ("/check/shop?~hits=4294967296&user=alice", "~hits is not a number".to_owned()),
        ("/check/shop?~hits=1&~hits=1&user=alice", "~hits twice".to_owned()),
        ("/check/shop?~deny=200&user=alice", "~deny is not a status".to_owned()),
        ("/check/shop?~deny=600&user=alice", "~deny is not a status".to_owned()),
        ("/check/shop?~Hits=1&user=alice", "`~Hits` is unknown".to_owned()),
        ("/check/shop?%7Eother=1&user=alice", "`~other` is unknown".to_owned()),
        (
            &format!("/check/shop?{}", many(1_000)),
            "descriptor 0: 1000 entries are too many (at most 32)".to_owned(),
        ),
        (
            &format!("/check/shop?{}", many(65).replace('&', "&&")),
            "65 descriptors are too many (at most 64)".to_owned(),
        ),
    ] {
        let refusal = refused(server.http, &format!("GET {url}"), "").await;
        assert!(refusal.contains(&named), "{url}: {refusal}");
    }
    let passes = format!("GET /check/shop?{}&&{}", many(32), many(31));
    assert_eq!(send(server.http, &passes, "", "").await.0, 200, "as many as there may be");
    assert_eq!(left(&server, "/check/shop?user=alice").await, 3, "nothing was counted");
}

#[tokio::test]
async fn hostile_values_have_counters_of_their_own() {
    let server = start().await;
    let long = "x".repeat(8_192);
    let values = [
        "%00",
        "%00%00",
        "a%00",
        "%2F",
        "%252F",
        "%26%26",
        "%26",
        "a%26path=x",
        "+",
        "++",
        "%2B",
        "%20%20x",
        "%25",
        "=",
        "%3F",
        "%23",
        "..%2F",
        "//",
        "%C3%A9",
        "e%CC%81",
        "%F0%9F%92%A9",
        "%E2%80%AE",
        "",
        "~hits",
        "alice",
        "Alice",
        "alice+",
        "*",
        "%0D%0AX-Evil:1",
        &long,
    ];
    for value in values {
        let (status, head, _) =
            send(server.http, &format!("GET /check/shop?user={value}&~hits=2"), "", "").await;
        assert_eq!((status, number(&head, "ratelimit-remaining")), (200, 1), "{value}");
    }
    for value in values {
        assert_eq!(left(&server, &format!("/check/shop?user={value}")).await, 1, "{value}");
    }
    for (one, same) in
        [("+", "%20"), ("%2f", "%2F"), ("%61lice", "alice"), ("é", "%C3%A9"), ("/", "%2F"), ("=", "%3D")]
    {
        let (one, same) = (format!("/check/shop?user={one}"), format!("/check/shop?user={same}"));
        assert_eq!(left(&server, &one).await, left(&server, &same).await);
        assert_eq!(left(&server, &one).await, 1, "{one} is {same}");
    }
    assert_eq!(left(&server, "/check/%73hop?user=alice").await, 1, "the domain is decoded too");
}

#[tokio::test]
async fn other_methods_are_none() {
    let server = start().await;
    for method in ["PUT", "DELETE", "OPTIONS", "PATCH"] {
        let (status, head, _) = send(server.http, &format!("{method} /check/shop?user=alice"), "", "").await;
        assert_eq!((status, header(&head, "allow")), (405, Some("get, head, post")), "{method}");
    }
    assert_eq!(left(&server, "/check/shop?user=alice").await, 3);
}

#[tokio::test]
async fn without_rules_there_is_no_decision() {
    let server = Server::without_rules().await;
    for url in ["/check/shop?user=alice", "/check/shop"] {
        let answer = status_and_body(server.http, &format!("GET {url}"), "").await;
        assert_eq!(answer, (503, "no rate limit configuration loaded\n".to_owned()));
    }
}

#[tokio::test]
async fn a_domain_without_rate_limits_cannot_describe() {
    let server = Server::start().await;
    let refusal = refused(server.http, "GET /check/shop?~hits=1", CLIENT).await;
    assert!(refusal.contains("no `rate_limits`"), "{refusal}");
}

#[tokio::test]
async fn headers_describe_the_client_and_each_fact_counts_apart() {
    let server = start().await;
    let alice = format!("{CLIENT}x-forwarded-for: 10.0.0.1\r\nx-api-key: a\r\n");
    // Three descriptors; that of path, method, host and q is the tightest.
    assert_eq!(described(&server, &alice).await, 19);
    assert_eq!(described(&server, &alice).await, 18);
    for other in [
        "x-original-uri: /p?q=2\r\nx-original-method: GET\r\n",
        "x-original-uri: /p?q=1\r\nx-original-method: PUT\r\n",
    ] {
        assert_eq!(described(&server, &format!("{other}x-forwarded-for: 10.0.0.1\r\n")).await, 19, "{other}");
    }
    // Without q that descriptor is dropped, without a key the second one.
    let plain = "x-original-uri: /p\r\nx-original-method: GET\r\nx-forwarded-for: 10.0.0.1\r\n";
    assert_eq!(described(&server, plain).await, 995);
    assert_eq!(described(&server, &format!("{plain}x-api-key: a\r\n")).await, 97);
    assert_eq!(described(&server, &plain.replace("10.0.0.1", "10.0.0.2")).await, 999);
    assert_eq!(left(&server, "/check/shop?remote_address=10.0.0.1").await, 994);
    assert_eq!(left(&server, "/check/shop?api_key=a&tier=free").await, 97);
    assert_eq!(
        left(&server, "/check/shop?path=/p%3Fq=1&method=GET&host=t&q=1").await,
        18,
        ":path has its query"
    );
}

#[tokio::test]
async fn a_question_of_zero_hits_only_asks_also_where_rules_say_what_a_request_costs() {
    let server = Server::with_rules(Some(
        "domain: shop\nrate_limits: [{actions: [{remote_address: {}}], hits_addend: {number: 5}}]\n\
         descriptors: [{key: remote_address, rate_limit: {unit: hour, requests_per_unit: 20}}]",
    ))
    .await;
    let url = "/check/shop";
    assert_eq!([left(&server, url).await, left(&server, url).await], [20; 2]);
    assert_eq!(described(&server, "").await, 15);
    assert_eq!(left(&server, url).await, 15);
}

#[tokio::test]
async fn a_description_that_is_not_exactly_one_is_refused() {
    let server = start().await;
    for (headers, named) in [
        ("x-original-method: GET\r\n", "x-original-uri is missing"),
        ("x-original-uri: /p?q=1\r\n", "x-original-method is missing"),
        (
            "x-original-uri: /a\r\nx-original-uri: /b\r\nx-original-method: GET\r\n",
            "x-original-uri came twice",
        ),
        (&format!("{CLIENT}host: other\r\n"), "host came twice"),
        (
            &format!("{CLIENT}x-forwarded-for: unknown\r\n"),
            "x-forwarded-for: the client's entry is no address",
        ),
        (&format!("{CLIENT}x-forwarded-for: 10.0.0.1,\r\n"), "is no address"),
        (&format!("{CLIENT}x-forwarded-for: 10.0.0.1, ,\r\n"), "is no address"),
        ("x-original-uri: /p?q=%FF\r\nx-original-method: GET\r\n", "q is not UTF-8"),
        (
            "x-forwarded-uri: /p\r\nx-forwarded-method: GET\r\nx-forwarded-host: t\r\n",
            "x-original-uri is missing",
        ),
    ] {
        let refusal = refused(server.http, "GET /check/shop", headers).await;
        assert!(refusal.contains(named), "{headers:?}: {refusal}");
    }
    assert_eq!(left(&server, "/check/shop?remote_address=127.0.0.1").await, 1_000, "nothing was counted");
}

#[tokio::test]
async fn a_header_that_is_not_utf8_is_refused_and_one_of_8_kib_is_a_value() {
    let server = start().await;
    let (status, body) = super::http::send_bytes(
        server.http,
        &[
            b"GET /check/shop HTTP/1.1\r\nhost: t\r\nconnection: close\r\nx-api-key: \xff\r\n",
            CLIENT.as_bytes(),
            b"\r\n",
        ]
        .concat(),
    )
    .await;
    assert_eq!((status, &*body), (400, "x-api-key is not UTF-8\n"));
    let long = "k".repeat(8_192);
    let left_of_long = async || {
        let plain = "x-original-uri: /x\r\nx-original-method: GET\r\n";
        described(&server, &format!("{plain}x-api-key: {long}\r\n")).await
    };
    assert_eq!((left_of_long().await, left_of_long().await), (99, 98));
    let endless = format!("{CLIENT}x-api-key: {}\r\n", "k".repeat(40_000));
    assert_eq!(send(server.http, "GET /check/shop", &endless, "").await.0, 431);
}

#[tokio::test]
async fn of_a_repeated_header_the_first_value_counts() {
    let server = start().await;
    let plain = "x-original-uri: /x\r\nx-original-method: GET\r\n";
    assert_eq!(described(&server, &format!("{plain}x-api-key: a\r\nx-api-key: b\r\n")).await, 99);
    assert_eq!(left(&server, "/check/shop?api_key=a&tier=free").await, 99);
    assert_eq!(left(&server, "/check/shop?api_key=b&tier=free").await, 100);
}

/// The address that a call with these lines is counted under.
async fn counted_under(hops: usize, lines: &str, candidates: &[&'static str]) -> Option<&'static str> {
    let server = Server::with(Some(RULES), CheckOptions { trusted_hops: hops, ..CHECK }).await;
    let headers = format!("x-original-uri: /x\r\nx-original-method: GET\r\n{lines}");
    described(&server, &headers).await;
    for candidate in candidates {
        if left(&server, &format!("/check/shop?remote_address={candidate}")).await == 999 {
            return Some(candidate);
        }
    }
    None
}

#[tokio::test]
async fn the_clients_address_is_the_entry_before_the_trusted_ones() {
    let candidates = ["1.1.1.1", "2.2.2.2", "3.3.3.3", "127.0.0.1", "2001:db8::1"];
    for (hops, lines, expected) in [
        (0, "", "127.0.0.1"),
        (0, "x-forwarded-for:\r\n", "127.0.0.1"),
        (0, "x-forwarded-for: 1.1.1.1\r\n", "1.1.1.1"),
        (0, "x-forwarded-for: 1.1.1.1, 2.2.2.2\r\n", "2.2.2.2"),
        (0, "x-forwarded-for: garbage, 2.2.2.2:99\r\n", "2.2.2.2"),
        (0, "x-forwarded-for: 1.1.1.1\r\nx-forwarded-for: 2.2.2.2,3.3.3.3\r\n", "3.3.3.3"),
        (0, "X-Forwarded-For: [2001:DB8:0::1]:8\r\n", "2001:db8::1"),
        (0, "x-forwarded-for: ::ffff:1.1.1.1\r\n", "1.1.1.1"),
        (1, "x-forwarded-for: 1.1.1.1,2.2.2.2\r\n", "1.1.1.1"),
        (1, "x-forwarded-for: 1.1.1.1\r\nx-forwarded-for: 2.2.2.2\r\n", "1.1.1.1"),
        (1, "x-forwarded-for: 3.3.3.3, 1.1.1.1, 2.2.2.2\r\n", "1.1.1.1"),
        (1, "x-forwarded-for: 1.1.1.1\r\n", "127.0.0.1"),
        (2, "x-forwarded-for: 3.3.3.3\r\nx-forwarded-for: 1.1.1.1, 2.2.2.2\r\n", "3.3.3.3"),
    ] {
        assert_eq!(counted_under(hops, lines, &candidates).await, Some(expected), "{hops} {lines:?}");
    }
}

#[tokio::test]
async fn the_other_family_of_headers_is_read_when_it_is_set() {
    let server = Server::with(Some(RULES), CheckOptions { proxy: Proxy::Forwarded, ..CHECK }).await;
    let headers = "x-forwarded-uri: /p?q=1\r\nx-forwarded-method: PUT\r\nx-forwarded-host: h\r\n";
    let forged = "x-original-uri: /\r\nx-original-uri: /\r\nx-original-method: GET\r\n";
    assert_eq!(described(&server, &format!("{headers}{forged}")).await, 19);
    assert_eq!(left(&server, "/check/shop?path=/p%3Fq=1&method=PUT&host=h&q=1").await, 19);
    let refusal = refused(server.http, "GET /check/shop", CLIENT).await;
    assert!(refusal.contains("x-forwarded-uri is missing"), "{refusal}");
}

#[tokio::test]
async fn over_http2_the_authority_is_the_host() {
    let server = start().await;
    let stream = TcpStream::connect(server.http).await.expect("it listens");
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .expect("HTTP/2");
    tokio::spawn(connection);
    let request = ::http::Request::get("http://h2.example/check/shop")
        .header("x-original-uri", "/p?q=1")
        .header("x-original-method", "GET")
        .body(Empty::<Bytes>::new())
        .expect("a request");
    let answer = sender.send_request(request).await.expect("an answer");
    assert_eq!(
        (answer.status(), &answer.headers()["ratelimit-limit"]),
        (StatusCode::OK, &HeaderValue::from(20))
    );
    assert_eq!(left(&server, "/check/shop?path=/p%3Fq=1&method=GET&host=h2.example&q=1").await, 19);
}
