//! The gRPC port: `envoy.service.ratelimit.v3`, `kuadrant.service.ratelimit.v1`, `grpc.health.v1` and server reflection.
//!
//! `unary` answers the hot call, `ShouldRateLimit`, directly on hyper, because a generic gRPC server costs more than
//! the decision, and so are the calls of Kuadrant. tonic serves everything else.

pub(in crate::front) mod framing;
pub(in crate::front) mod health;
mod unary;
pub(in crate::front) mod unfinished;

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use hyper::body::{Body, Frame, Incoming};
use tonic::codegen::Service as _;
use tonic::service::Routes;

use self::unfinished::Unfinished;
use crate::front::kuadrant::Method;
use crate::front::{Handler, proto};
use tidegate_serve::health::Health;

/// Bytes of a request for health or reflection, which contains names. (tonic's own bound is 4 MiB, and a connection
/// may have a thousand such calls in flight.)
pub(in crate::front) const QUESTION_BYTES_MAX: usize = 4 * 1_024;

pub(in crate::front) const SHOULD_RATE_LIMIT: &str =
    "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// Answers on the gRPC port. Clones share everything.
#[derive(Clone)]
pub struct GrpcFront {
    handler: Arc<Handler>,
    others: Routes,
}

impl GrpcFront {
    /// `handler` answers calls, and `health` answers health checks.
    #[must_use]
    pub fn new(handler: Arc<Handler>, health: Arc<Health>) -> Self {
        let reflection = || {
            tonic_reflection::server::Builder::configure()
                .register_encoded_file_descriptor_set(proto::DESCRIPTORS)
                .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        };
        let v1 = reflection().build_v1().expect("our own descriptors decode");
        let v1alpha = reflection().build_v1alpha().expect("our own descriptors decode");
        let others = Routes::new(health::service(health, Arc::clone(&handler.metrics)))
            .add_service(v1.max_decoding_message_size(QUESTION_BYTES_MAX))
            .add_service(v1alpha.max_decoding_message_size(QUESTION_BYTES_MAX))
            .prepare();
        Self { handler, others }
    }

    /// The front of one connection.
    #[must_use]
    pub fn for_connection(self) -> GrpcConnection {
        GrpcConnection { front: self, unfinished: Unfinished::default() }
    }
}

/// The front of one connection. Its calls share a bound on the bytes that they keep.
pub struct GrpcConnection {
    front: GrpcFront,
    unfinished: Unfinished,
}

impl GrpcConnection {
    pub async fn respond(&self, request: Request<Incoming>) -> Response<GrpcBody> {
        let GrpcFront { handler, others } = &self.front;
        if request.uri().path() == SHOULD_RATE_LIMIT {
            return unary::respond(handler, &self.unfinished, request).await.map(GrpcBody::Unary);
        }
        if let Some(method) = Method::of_path(request.uri().path()) {
            let response = unary::respond_kuadrant(handler, &self.unfinished, method, request).await;
            return response.map(GrpcBody::Unary);
        }
        match others.clone().call(request).await {
            Ok(response) => response.map(GrpcBody::Other),
            Err(error) => never(error),
        }
    }
}

fn never<T>(error: Infallible) -> T {
    match error {}
}

/// The body of an answer.
pub enum GrpcBody {
    /// The answer to the hot call.
    Unary(unary::UnaryBody),
    /// The answer to any other call.
    Other(tonic::body::Body),
}

impl Body for GrpcBody {
    type Data = Bytes;
    type Error = tonic::Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, tonic::Status>>> {
        match self.get_mut() {
            Self::Unary(body) => Poll::Ready(body.next().map(Ok)),
            Self::Other(body) => Pin::new(body).poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Unary(body) => body.is_over(),
            Self::Other(body) => body.is_end_stream(),
        }
    }
}
