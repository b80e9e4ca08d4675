//! A gRPC client of `envoy.service.ratelimit.v3`, its messages written from Envoy's own descriptors and not from the
//! program's `.proto` files: what these say on the wire is what Envoy says.

use std::time::Duration;

use prost::Message;
use tokio::runtime::Runtime;
use tokio_stream::Stream;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use tonic::{Request, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_prost::ProstCodec;

use super::pki::Authority;

#[derive(Clone, PartialEq, Message)]
pub struct RateLimitRequest {
    #[prost(string, tag = "1")]
    pub domain: String,
    #[prost(message, repeated, tag = "2")]
    pub descriptors: Vec<Descriptor>,
    #[prost(uint32, tag = "3")]
    pub hits_addend: u32,
}

#[derive(Clone, PartialEq, Message)]
pub struct Descriptor {
    #[prost(message, repeated, tag = "1")]
    pub entries: Vec<Entry>,
    #[prost(message, optional, tag = "2")]
    pub limit: Option<LimitOverride>,
    #[prost(message, optional, tag = "3")]
    pub hits_addend: Option<u64>,
    #[prost(bool, tag = "4")]
    pub is_negative_hits: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct LimitOverride {
    #[prost(uint32, tag = "1")]
    pub requests_per_unit: u32,
    #[prost(int32, tag = "2")]
    pub unit: i32,
}

#[derive(Clone, PartialEq, Message)]
pub struct Entry {
    #[prost(string, tag = "1")]
    pub key: String,
    #[prost(string, tag = "2")]
    pub value: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct RateLimitResponse {
    #[prost(int32, tag = "1")]
    pub overall_code: i32,
    #[prost(message, repeated, tag = "2")]
    pub statuses: Vec<DescriptorStatus>,
}

#[derive(Clone, PartialEq, Message)]
pub struct DescriptorStatus {
    #[prost(int32, tag = "1")]
    pub code: i32,
    #[prost(message, optional, tag = "2")]
    pub current_limit: Option<RateLimit>,
    #[prost(uint32, tag = "3")]
    pub limit_remaining: u32,
    #[prost(message, optional, tag = "4")]
    pub duration_until_reset: Option<Seconds>,
}

/// A `Duration` of whole seconds.
#[derive(Clone, PartialEq, Message)]
pub struct Seconds {
    #[prost(int64, tag = "1")]
    pub seconds: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct RateLimit {
    #[prost(uint32, tag = "1")]
    pub requests_per_unit: u32,
    #[prost(int32, tag = "2")]
    pub unit: i32,
    #[prost(string, tag = "3")]
    pub name: String,
}

pub const OK: i32 = 1;
pub const OVER_LIMIT: i32 = 2;

/// A question with one descriptor a slice of entries.
pub fn question(domain: &str, descriptors: &[&[(&str, &str)]]) -> RateLimitRequest {
    let entry = |(key, value): &(&str, &str)| Entry { key: (*key).to_owned(), value: (*value).to_owned() };
    let descriptor = |entries: &&[(&str, &str)]| Descriptor {
        entries: entries.iter().map(entry).collect(),
        ..Descriptor::default()
    };
    RateLimitRequest {
        domain: domain.to_owned(),
        descriptors: descriptors.iter().map(descriptor).collect(),
        hits_addend: 0,
    }
}

/// The same, of 0 hits: asks without counting.
pub fn ask_only(domain: &str, descriptors: &[&[(&str, &str)]]) -> RateLimitRequest {
    let mut request = question(domain, descriptors);
    for descriptor in &mut request.descriptors {
        descriptor.hits_addend = Some(0);
    }
    request
}

/// A client with one connection, for tests that are not async.
pub struct Client {
    runtime: Runtime,
    channel: Channel,
}

impl Client {
    /// Connects with the first call.
    pub fn new(port: u16) -> Self {
        Self::of(Endpoint::from_shared(format!("http://127.0.0.1:{port}")).expect("a valid address"))
    }

    /// The same over TLS, with no certificate of its own: the server's is issued by this authority for 127.0.0.1.
    pub fn with_tls(port: u16, authority: &Authority) -> Self {
        let endpoint = Endpoint::from_shared(format!("https://127.0.0.1:{port}")).expect("a valid address");
        let trusted = Certificate::from_pem(authority.pem());
        let tls = ClientTlsConfig::new().ca_certificate(trusted);
        Self::of(endpoint.tls_config(tls).expect("a sound configuration"))
    }

    fn of(endpoint: Endpoint) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a thread can be had");
        let _entered = runtime.enter();
        let channel = endpoint.connect_lazy();
        Self { runtime, channel }
    }

    /// One call of ShouldRateLimit.
    pub fn call(&self, request: RateLimitRequest) -> Result<RateLimitResponse, Status> {
        let channel = self.channel.clone();
        self.runtime.block_on(should_rate_limit(channel, Request::new(tokio_stream::once(request))))
    }

    /// The same by a caller that waits no longer than this, and says so.
    pub fn call_within(
        &self,
        wait: Duration,
        request: RateLimitRequest,
    ) -> Result<RateLimitResponse, Status> {
        let mut request = Request::new(tokio_stream::once(request));
        request.set_timeout(wait);
        self.runtime.block_on(should_rate_limit(self.channel.clone(), request))
    }

    /// One call that has to be answered.
    pub fn ask(&self, request: RateLimitRequest) -> RateLimitResponse {
        self.call(request.clone()).unwrap_or_else(|status| panic!("{request:?} is refused: {status}"))
    }

    /// Begins a call whose message comes later; the handle yields the answer.
    pub fn begin(
        &self,
        message: impl Stream<Item = RateLimitRequest> + Send + 'static,
    ) -> tokio::task::JoinHandle<Result<RateLimitResponse, Status>> {
        self.runtime.spawn(should_rate_limit(self.channel.clone(), Request::new(message)))
    }

    /// The answer of a call that was begun.
    pub fn finish(
        &self,
        call: tokio::task::JoinHandle<Result<RateLimitResponse, Status>>,
    ) -> Result<RateLimitResponse, Status> {
        self.runtime.block_on(call).expect("the call does not panic")
    }

    /// The serving status of a service, as `grpc.health.v1` numbers them (1 SERVING, 2 NOT_SERVING).
    pub fn health(&self, service: &str) -> Result<i32, Status> {
        let request = HealthCheckRequest { service: service.to_owned() };
        let mut client = HealthClient::new(self.channel.clone());
        self.runtime.block_on(client.check(request)).map(|answer| answer.into_inner().status)
    }

    /// What a Watch stream of this service says until it ends.
    pub fn watch(&self, service: &str) -> std::sync::mpsc::Receiver<i32> {
        let (shown, receiver) = std::sync::mpsc::channel();
        let mut client = HealthClient::new(self.channel.clone());
        let request = HealthCheckRequest { service: service.to_owned() };
        self.runtime.spawn(async move {
            let mut stream = client.watch(request).await.expect("Watch is served").into_inner();
            while let Ok(Some(answer)) = stream.message().await {
                if shown.send(answer.status).is_err() {
                    return;
                }
            }
        });
        receiver
    }
}

/// The call on the wire is unary. As a stream of one message, the message may come after the call has begun.
async fn should_rate_limit(
    channel: Channel,
    request: Request<impl Stream<Item = RateLimitRequest> + Send + 'static>,
) -> Result<RateLimitResponse, Status> {
    let path = PathAndQuery::from_static("/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit");
    let mut grpc = Grpc::new(channel);
    grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
    let codec: ProstCodec<RateLimitRequest, RateLimitResponse> = ProstCodec::default();
    grpc.client_streaming(request, path, codec).await.map(tonic::Response::into_inner)
}
