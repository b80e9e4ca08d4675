//! The gRPC port, called by tonic's client, and by bare HTTP/2 where a client library would not send such a request.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use super::{Server, TIMEOUT};
use crate::front::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use crate::front::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
    Entry, RateLimitOverride,
};
use crate::front::proto::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use crate::front::proto::envoy::service::ratelimit::v3::rate_limit_response::{
    Code as AnsweredCode, DescriptorStatus, RateLimit,
};
use crate::front::proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use crate::front::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};

pub(super) async fn channel(address: SocketAddr) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address");
    endpoint.timeout(TIMEOUT).connect().await.expect("it listens")
}

fn user(name: &str) -> RateLimitDescriptor {
    let entry = Entry { key: "user".to_owned(), value: name.to_owned() };
    RateLimitDescriptor { entries: vec![entry], ..RateLimitDescriptor::default() }
}

fn request(domain: &str, descriptors: Vec<RateLimitDescriptor>) -> RateLimitRequest {
    RateLimitRequest { domain: domain.to_owned(), descriptors, hits_addend: 0 }
}

async fn ask(address: SocketAddr, request: RateLimitRequest) -> Result<RateLimitResponse, Status> {
    let mut client = RateLimitServiceClient::new(channel(address).await);
    client.should_rate_limit(request).await.map(tonic::Response::into_inner)
}

#[tokio::test]
async fn ten_pass_and_the_eleventh_does_not() {
    let server = Server::start().await;
    let mut client = RateLimitServiceClient::new(channel(server.grpc).await);
    for left in (0..10).rev() {
        let answer = client.should_rate_limit(request("shop", vec![user("alice")])).await.expect("an answer");
        let answer = answer.into_inner();
        assert_eq!(answer.overall_code(), AnsweredCode::Ok);
        assert_eq!(answer.statuses[0].limit_remaining, left);
    }
    let answer =
        ask(server.grpc, request("shop", vec![user("bob"), user("alice")])).await.expect("an answer");
    assert_eq!(answer.overall_code(), AnsweredCode::OverLimit);
    assert_eq!(
        answer.statuses.iter().map(|status| status.code()).collect::<Vec<_>>(),
        [AnsweredCode::Ok, AnsweredCode::OverLimit]
    );
}

fn plan(name: &str) -> RateLimitDescriptor {
    let entry = Entry { key: "plan".to_owned(), value: name.to_owned() };
    RateLimitDescriptor { entries: vec![entry], ..RateLimitDescriptor::default() }
}

#[tokio::test]
async fn every_kind_of_limit_is_answered_as_the_rules_have_it() {
    let server = Server::start().await;
    let descriptors = vec![plan("free"), plan("gold"), plan("unheard of")];
    let answer = ask(server.grpc, request("shop", descriptors)).await.expect("an answer");
    let bare = DescriptorStatus { code: AnsweredCode::Ok.into(), ..DescriptorStatus::default() };
    let [free, gold, unknown] = &answer.statuses[..] else { panic!("{answer:?}") };
    let limit = RateLimit {
        name: "free_plan".to_owned(),
        requests_per_unit: 3,
        unit: Unit::Minute.into(),
        unit_multiplier: Some(5),
    };
    assert_eq!((free.current_limit.as_ref(), free.limit_remaining), (Some(&limit), 2));
    let reset = free.duration_until_reset.expect("a time");
    assert!((300..=306).contains(&reset.seconds) && reset.nanos == 0, "{reset:?}");
    assert_eq!(gold, &DescriptorStatus { limit_remaining: u32::MAX, ..bare.clone() });
    assert_eq!(unknown, &bare);
}

#[tokio::test]
async fn refusals_come_in_the_order_of_the_table() {
    let with_rules = Server::start().await;
    let without = Server::without_rules().await;
    let bad = RateLimitDescriptor { limit: Some(RateLimitOverride::default()), ..user("alice") };
    let many = vec![bad.clone(); 65];
    for (address, request, code, message) in [
        (without.grpc, request("", vec![]), Code::InvalidArgument, "rate limit domain must not be empty"),
        (
            without.grpc,
            request("shop", vec![]),
            Code::InvalidArgument,
            "rate limit descriptor list must not be empty",
        ),
        (
            without.grpc,
            request("shop", many.clone()),
            Code::Unavailable,
            "no rate limit configuration loaded",
        ),
        (
            without.grpc,
            request("shop", vec![user("alice")]),
            Code::Unavailable,
            "no rate limit configuration loaded",
        ),
        (
            with_rules.grpc,
            request("shop", many),
            Code::InvalidArgument,
            "65 descriptors are too many (at most 64)",
        ),
        (
            with_rules.grpc,
            request("shop", vec![user("alice"), bad]),
            Code::InvalidArgument,
            "descriptor 1: limit: unit 0 is none of 1 to 7",
        ),
    ] {
        let status = ask(address, request).await.expect_err(message);
        assert_eq!((status.code(), status.message()), (code, message));
    }
    let answer = ask(with_rules.grpc, request("shop", vec![user("alice")])).await.expect("an answer");
    assert_eq!(answer.statuses[0].limit_remaining, 9, "a refused request is not counted");
}

#[tokio::test]
async fn a_request_that_is_too_large_is_refused_whatever_else_is_wrong() {
    let server = Server::without_rules().await;
    let status = ask(server.grpc, request("", vec![user(&"x".repeat(65_536))])).await.expect_err("too large");
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert_eq!(status.message(), "request is larger than 65536 bytes");
    let status = ask(server.grpc, request("", vec![user(&"x".repeat(65_000))])).await.expect_err("no domain");
    assert_eq!(status.code(), Code::InvalidArgument);
}

/// Sends `body` as HTTP/2 would, and returns HTTP status and `grpc-status`, wherever that stands.
async fn send(server: &Server, content_type: &str, body: &'static [u8]) -> (u16, Option<String>) {
    let stream = TcpStream::connect(server.grpc).await.expect("it listens");
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .expect("HTTP/2");
    tokio::spawn(connection);
    let request = http::Request::post(format!(
        "http://{}/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
        server.grpc
    ))
    .header("content-type", content_type)
    .body(Full::new(Bytes::from_static(body)))
    .expect("a request");
    let response = sender.send_request(request).await.expect("an answer");
    let (head, body) = response.into_parts();
    let trailers = body.collect().await.expect("all of it").trailers().cloned().unwrap_or_default();
    let status = head.headers.get("grpc-status").or(trailers.get("grpc-status")).cloned();
    (head.status.as_u16(), status.map(|status| status.to_str().expect("a number").to_owned()))
}

#[tokio::test]
async fn what_is_not_a_call_is_refused_as_that() {
    let server = Server::start().await;
    let grpc = |code: &str| (200, Some(code.to_owned()));
    // "\x0a\x04shop" + one descriptor that is empty.
    assert_eq!(send(&server, "application/grpc", b"\0\0\0\0\x08\x0a\x04shop\x12\0").await, grpc("0"));
    assert_eq!(send(&server, "application/grpc+proto", b"\0\0\0\0\x08\x0a\x04shop\x12\0").await, grpc("0"));
    assert_eq!(send(&server, "application/json", b"{}").await, (415, None));
    assert_eq!(send(&server, "application/grpc-web", b"\0\0\0\0\0").await, (415, None));
    assert_eq!(send(&server, "application/grpc", b"\x01\0\0\0\0").await, grpc("12"));
    assert_eq!(send(&server, "application/grpc", b"").await, grpc("3"));
    assert_eq!(send(&server, "application/grpc", b"\0\0\0\0\x09short").await, grpc("3"));
    assert_eq!(send(&server, "application/grpc", b"\0\xff\xff\xff\xff").await, grpc("8"));
    assert_eq!(send(&server, "application/grpc", b"\0\0\0\0\x02\x0a\xff").await, grpc("3"));
    assert_eq!(send(&server, "application/grpc", b"\0\0\0\0\x03\x0a\x01\xff").await, grpc("3"));
}

#[tokio::test]
async fn an_unknown_method_is_unimplemented() {
    let server = Server::start().await;
    let mut grpc = tonic::client::Grpc::new(channel(server.grpc).await);
    grpc.ready().await.expect("connected");
    let codec = tonic_prost::ProstCodec::<RateLimitRequest, RateLimitResponse>::default();
    let path = http::uri::PathAndQuery::from_static("/envoy.service.ratelimit.v3.RateLimitService/Nothing");
    let answer = grpc.unary(tonic::Request::new(RateLimitRequest::default()), path, codec).await;
    assert_eq!(answer.expect_err("there is none").code(), Code::Unimplemented);
}

fn named(service: &str) -> HealthCheckRequest {
    HealthCheckRequest { service: service.to_owned() }
}

#[tokio::test]
async fn health_is_the_same_under_both_names_and_under_no_other() {
    let server = Server::start().await;
    let mut client = HealthClient::new(channel(server.grpc).await);
    for name in ["", "ratelimit"] {
        let answer = client.check(named(name)).await.expect("an answer").into_inner();
        assert_eq!(answer.status(), ServingStatus::Serving);
    }
    server.health.refuse("no domain is loaded");
    for name in ["", "ratelimit"] {
        let answer = client.check(named(name)).await.expect("an answer").into_inner();
        assert_eq!(answer.status(), ServingStatus::NotServing);
    }
    let unknown = client.check(named("envoy")).await.expect_err("unknown");
    assert_eq!(unknown.code(), Code::NotFound);
    assert_eq!(client.watch(named("envoy")).await.expect_err("unknown").code(), Code::NotFound);
}

#[tokio::test]
async fn a_watch_is_sent_changes_and_ended_by_draining() {
    let server = Server::start().await;
    let mut client = HealthClient::new(channel(server.grpc).await);
    let mut watch = client.watch(named("ratelimit")).await.expect("a stream").into_inner();
    let mut next = async || {
        let message = tokio::time::timeout(TIMEOUT, watch.message()).await.expect("in time");
        message.expect("no error").map(|message| message.status())
    };
    assert_eq!(next().await, Some(ServingStatus::Serving));
    server.health.refuse("one reason");
    assert_eq!(next().await, Some(ServingStatus::NotServing));
    server.health.refuse("another reason");
    server.health.withdraw("one reason");
    tokio::time::sleep(Duration::from_millis(20)).await;
    server.health.withdraw("another reason");
    assert_eq!(next().await, Some(ServingStatus::Serving));
    server.health.drain();
    assert_eq!(next().await, Some(ServingStatus::NotServing));
    assert_eq!(next().await, None);
}
