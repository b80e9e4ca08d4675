//! Kuadrant's calls on both fronts, by the client that is generated from the .proto.

use std::net::SocketAddr;

use tonic::transport::Channel;

use super::Server;
use super::grpc::channel;
use super::http::status_and_body;
use super::reflection::lane_with;
use crate::front::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use crate::front::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use crate::front::proto::envoy::service::ratelimit::v3::RateLimitRequest;
use crate::front::proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use crate::front::proto::kuadrant::service::ratelimit::v1::rate_limit_service_client::RateLimitServiceClient;
use crate::front::proto::kuadrant::service::ratelimit::v1::{CommitRequest, ReserveRequest};

/// One limit of Kuadrant for each user, by the default algorithm, and one with a fixed window.
const RULES: &str = "
domain: ns/route
descriptors:
  - key: limit.tokens__1
    value: '1'
    descriptors:
      - { key: auth.identity.userid, rate_limit: { unit: minute, requests_per_unit: 10 } }
  - key: limit.fixed__1
    value: '1'
    descriptors:
      - key: auth.identity.userid
        rate_limit: { unit: year, requests_per_unit: 10, algorithm: fixed_window }
  - key: limit.reserved__1
    value: '1'
    descriptors:
      - key: auth.identity.userid
        rate_limit: { unit: minute, requests_per_unit: 10 }
        reserve: { ttl: 60s }
  - key: user
    rate_limit: { unit: year, requests_per_unit: 5 }
    concurrency: { slots: 2, ttl: 60s, id: call }
  - key: calls
    concurrency: { slots: 2, ttl: 60s, id: call }
  - key: tokens
    rate_limit: { unit: year, requests_per_unit: 9000000000, algorithm: fixed_window }
  - { key: quota_a, quota_mode: true, rate_limit: { unit: year, requests_per_unit: 5 } }
  - { key: quota_b, quota_mode: true, rate_limit: { unit: year, requests_per_unit: 8 } }
";

struct Client(RateLimitServiceClient<Channel>);

impl Client {
    async fn of(address: SocketAddr) -> Self {
        Self(RateLimitServiceClient::new(channel(address).await))
    }

    async fn check(&mut self, request: RateLimitRequest) -> Code {
        self.0.check_rate_limit(request).await.expect("an answer").into_inner().overall_code()
    }

    /// The code, and the id.
    async fn reserve(&mut self, amount: u64) -> (Code, String) {
        let RateLimitRequest { domain, descriptors, .. } = request("limit.reserved__1", 0);
        let ttl = Some(prost_types::Duration { seconds: 30, nanos: 0 });
        let asked = ReserveRequest { domain, descriptors, amount, ttl };
        let answer = self.0.reserve(asked).await.expect("an answer").into_inner();
        (answer.code(), answer.reservation_id)
    }

    /// Whether an open reservation was ended.
    async fn commit(&mut self, id: &str, actual_amount: u64) -> bool {
        let RateLimitRequest { domain, descriptors, .. } = request("limit.reserved__1", 0);
        let asked = CommitRequest { domain, descriptors, reservation_id: id.to_owned(), actual_amount };
        self.0.commit(asked).await.expect("an answer").into_inner().reservation_released
    }

    async fn report(&mut self, request: RateLimitRequest) -> Code {
        self.0.report(request).await.expect("an answer").into_inner().overall_code()
    }
}

/// What Kuadrant's filter sends.
fn request(limit: &str, hits_addend: u32) -> RateLimitRequest {
    let entry = |key: &str, value: &str| Entry { key: key.to_owned(), value: value.to_owned() };
    let descriptor =
        |entries| RateLimitDescriptor { entries, hits_addend: None, limit: None, is_negative_hits: false };
    RateLimitRequest {
        domain: "ns/route".to_owned(),
        descriptors: vec![
            descriptor(vec![entry(limit, "1"), entry("auth.identity.userid", "alice")]),
            descriptor(vec![entry("model", "large")]),
        ],
        hits_addend,
    }
}

async fn asks_and_reports(address: SocketAddr) {
    let mut client = Client::of(address).await;
    for limit in ["limit.tokens__1", "limit.fixed__1"] {
        for _ in 0..20 {
            assert_eq!(
                client.check(request(limit, 0)).await,
                Code::Ok,
                "{limit}: a question charges nothing"
            );
        }
        assert_eq!(client.check(request(limit, 10)).await, Code::Ok, "{limit}");
        assert_eq!(client.check(request(limit, 11)).await, Code::OverLimit, "{limit}");
        assert_eq!(client.report(request(limit, 0)).await, Code::Ok, "{limit}: 0 counts as 1");
        assert_eq!(client.check(request(limit, 9)).await, Code::Ok, "{limit}");
        assert_eq!(client.check(request(limit, 10)).await, Code::OverLimit, "{limit}");
        assert_eq!(client.report(request(limit, 9)).await, Code::Ok, "{limit}");
        assert_eq!(client.check(request(limit, 0)).await, Code::OverLimit, "{limit}: 0 remain");
        assert_eq!(client.report(request(limit, 500)).await, Code::Ok, "{limit}: beyond the limit");
        assert_eq!(client.check(request(limit, 0)).await, Code::OverLimit, "{limit}");
    }
    let mut long = request("limit.tokens__1", 1);
    long.descriptors[1].entries[0].value = "x".repeat(5_000);
    assert_eq!(client.report(long).await, Code::Ok, "as long as a call of Envoy may be");
    let mut refund = request("limit.tokens__1", 1);
    refund.descriptors[0].is_negative_hits = true;
    let refused = client.0.report(refund).await.expect_err("nothing is given back");
    assert_eq!(refused.message(), "descriptor 0: is_negative_hits is only for ShouldRateLimit");
    let refused = client.0.check_rate_limit(RateLimitRequest::default()).await.expect_err("no domain");
    assert_eq!(refused.code(), tonic::Code::InvalidArgument);
}

/// A question about these keys, each with its own hits.
fn question(descriptors: &[(&str, u64)]) -> RateLimitRequest {
    let descriptor = |&(key, hits): &(&str, u64)| RateLimitDescriptor {
        entries: vec![Entry { key: key.to_owned(), value: "alice".to_owned() }],
        hits_addend: Some(hits),
        limit: None,
        is_negative_hits: false,
    };
    RateLimitRequest {
        domain: "ns/route".to_owned(),
        descriptors: descriptors.iter().map(descriptor).collect(),
        hits_addend: 0,
    }
}

#[tokio::test]
async fn a_question_asks_each_limit_for_the_hits_of_its_own_descriptor() {
    let server = Server::with_rules(Some(RULES)).await;
    let mut client = Client::of(server.grpc).await;
    for (descriptors, code) in [
        (&[("user", 5), ("tokens", 2_000)][..], Code::Ok),
        (&[("user", 6), ("tokens", 1)], Code::OverLimit),
        (&[("tokens", 9_000_000_000)], Code::Ok),
        (&[("tokens", 9_000_000_001)], Code::OverLimit),
        // One slot, whatever the call costs.
        (&[("calls", 1_000)], Code::Ok),
        // In quota mode one that has room is enough.
        (&[("quota_a", 6), ("quota_b", 6)], Code::Ok),
        (&[("quota_a", 6), ("quota_b", 9)], Code::OverLimit),
    ] {
        assert_eq!(client.check(question(descriptors)).await, code, "{descriptors:?}");
    }
}

#[tokio::test]
async fn kuadrant_asks_and_reports_on_tonic() {
    asks_and_reports(Server::with_rules(Some(RULES)).await.grpc).await;
}

#[tokio::test]
async fn kuadrant_asks_and_reports_on_the_lane() {
    asks_and_reports(lane_with(RULES).await).await;
}

#[tokio::test]
async fn what_is_refused_of_kuadrant_counts_as_its_own() {
    let server = Server::with_rules(Some(RULES)).await;
    let mut client = Client::of(server.grpc).await;
    let mut huge = request("limit.tokens__1", 1);
    huge.descriptors[1].entries[0].value = "x".repeat(1 << 20);
    client.0.report(huge).await.expect_err("it is too large");
    let (_, page) = status_and_body(server.metrics_page, "GET /prometheus", "").await;
    let counted: Vec<_> = page.lines().filter(|line| line.starts_with("tidegate_requests_total{")).collect();
    let of_kuadrant = |line: &&&str| line.contains(r#"front="kuadrant""#) && !line.ends_with(" 0");
    assert_eq!(counted.iter().filter(of_kuadrant).count(), 1, "{counted:?}");
}

/// The sequence of Limitador's own test, and what it says of bad calls.
async fn reserves_and_commits(address: SocketAddr) {
    let mut client = Client::of(address).await;
    let (code, first) = client.reserve(6).await;
    assert_eq!((code, first.len()), (Code::Ok, 36));
    assert_eq!(client.reserve(6).await, (Code::OverLimit, String::new()));
    assert!(client.commit(&first, 2).await);
    let (code, second) = client.reserve(6).await;
    assert_eq!(code, Code::Ok);
    assert_ne!(first, second);
    assert!(!client.commit(&first, 9).await, "a second commit charges nothing");
    assert!(client.commit(&second, 0).await);
    assert!(!client.commit("unknown", 3).await, "it is charged");
    assert_eq!(client.reserve(8).await.0, Code::OverLimit);
    assert!(!client.commit("", 5).await, "it is charged too");
    assert_eq!(client.reserve(1).await.0, Code::OverLimit);

    // A limit without `reserve` is asked, and gets the cost as a report.
    let RateLimitRequest { domain, descriptors, .. } = request("limit.tokens__1", 0);
    let commit = |actual_amount| {
        let (domain, descriptors) = (domain.clone(), descriptors.clone());
        CommitRequest { domain, descriptors, reservation_id: String::new(), actual_amount }
    };
    client.0.commit(commit(4)).await.expect("an answer");
    assert_eq!(client.check(request("limit.tokens__1", 6)).await, Code::Ok);
    assert_eq!(client.check(request("limit.tokens__1", 7)).await, Code::OverLimit);
    let reserve = |amount| {
        let (domain, descriptors) = (domain.clone(), descriptors.clone());
        ReserveRequest { domain, descriptors, amount, ttl: None }
    };
    let asked = client.0.reserve(reserve(9)).await.expect("an answer").into_inner();
    assert_eq!(asked.code(), Code::Ok, "it is asked whether anything is left");
    client.0.commit(commit(6)).await.expect("an answer");
    let asked = client.0.reserve(reserve(1)).await.expect("an answer").into_inner();
    assert_eq!(asked.code(), Code::OverLimit);

    let nowhere = client.0.reserve(ReserveRequest::default()).await.expect("an answer").into_inner();
    assert_eq!((nowhere.code(), &*nowhere.reservation_id), (Code::Unknown, ""));
    let nowhere = client.0.commit(CommitRequest::default()).await.expect("an answer").into_inner();
    assert!(!nowhere.reservation_released);
    let ttl = Some(prost_types::Duration { seconds: -1, nanos: 0 });
    let refused = client.0.reserve(ReserveRequest { domain: "d".to_owned(), ttl, ..Default::default() });
    let refused = refused.await.expect_err("no time");
    assert_eq!(
        (refused.code(), refused.message()),
        (tonic::Code::InvalidArgument, "ttl is not a time above 0")
    );
}

#[tokio::test]
async fn kuadrant_reserves_and_commits_on_tonic() {
    reserves_and_commits(Server::with_rules(Some(RULES)).await.grpc).await;
}

#[tokio::test]
async fn kuadrant_reserves_and_commits_on_the_lane() {
    reserves_and_commits(lane_with(RULES).await).await;
}
