//! One unary gRPC call over HTTP/2: a framed message in, the handler, a framed message and trailers out. Does only what
//! `ShouldRateLimit` needs: no compression, no metadata, no streams.

use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use http::header::{ALLOW, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming};

use super::framing::{PREFIX_BYTES, Partial, UNCOMPRESSED};
use super::unfinished::Unfinished;
use crate::front::kuadrant::Method as KuadrantMethod;
use crate::front::trace::headers_in;
use crate::front::{Handler, grpc_status};
use crate::spans::CallSpan;
use tidegate_grpc::message::{ONLY_GRPC, ONLY_POST, is_content_type, percent_encoded};
use tidegate_grpc::timeout;
use tidegate_serve::metrics::Front;
use tidegate_serve::refusal::{Bounds, Refusal};

/// How long a client may take to send one request. One that needs longer for a few hundred bytes is stuck or hostile.
const READ_TIMEOUT: Duration = Duration::from_secs(10);

const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");

/// Answers one call of `ShouldRateLimit`.
pub(super) async fn respond(
    handler: &Handler,
    unfinished: &Unfinished,
    request: Request<Incoming>,
) -> Response<UnaryBody> {
    if let Some(response) = not_grpc(&request) {
        return response;
    }
    let timeout = timeout_of(request.headers());
    let span = handler.begin_span(Front::Grpc, headers_in(request.headers()));
    match answer(handler, unfinished, request.into_body(), timeout, span).await {
        Ok(message) => answered(&message),
        Err(refusal) => refused(&refusal),
    }
}

/// Answers one call of Kuadrant.
pub(super) async fn respond_kuadrant(
    handler: &Handler,
    unfinished: &Unfinished,
    method: KuadrantMethod,
    request: Request<Incoming>,
) -> Response<UnaryBody> {
    if let Some(response) = not_grpc(&request) {
        return response;
    }
    let answer = match read_in_time(request.into_body(), unfinished, handler.bounds()).await {
        Ok(message) => handler.kuadrant(method, &message).ready().await,
        Err(refusal) => Err(handler.refuse(Front::Kuadrant, refusal)),
    };
    answer.map_or_else(|refusal| refused(&refusal), |message| answered(&message))
}

/// How long the caller waits. `None` without a timeout, or if it is malformed.
fn timeout_of(headers: &HeaderMap) -> Option<Duration> {
    timeout::parse(headers.get(GRPC_TIMEOUT)?.as_bytes())
}

async fn answer(
    handler: &Handler,
    unfinished: &Unfinished,
    body: Incoming,
    timeout: Option<Duration>,
    span: Option<CallSpan>,
) -> Result<Bytes, Refusal> {
    let answer = match read_in_time(body, unfinished, handler.bounds()).await {
        Ok(message) => handler.answer(Front::Grpc, &message, timeout, span).ready().await,
        Err(refusal) => Err(handler.refuse_call(Front::Grpc, refusal, span)),
    };
    answer.map(|answer| answer.message)
}

async fn read_in_time(body: Incoming, unfinished: &Unfinished, bounds: &Bounds) -> Result<Bytes, Refusal> {
    let reading = tokio::time::timeout(READ_TIMEOUT, read(body, unfinished, bounds));
    reading.await.unwrap_or_else(|_| Err(Refusal::late("the request did not arrive in time")))
}

/// Reads the one message of the call, to the end of the stream.
async fn read(mut body: Incoming, unfinished: &Unfinished, bounds: &Bounds) -> Result<Bytes, Refusal> {
    let (mut partial, mut held) = (Partial::default(), unfinished.hold());
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Refusal::invalid(error.to_string()))?;
        let Ok(data) = frame.into_data() else { break };
        let is_last = body.is_end_stream();
        if !is_last {
            held.more(data.len())?;
        }
        partial.push(data, is_last, bounds)?;
        if is_last {
            break;
        }
    }
    partial.finish()
}

/// The response to a request that is not a gRPC call.
fn not_grpc(request: &Request<Incoming>) -> Option<Response<UnaryBody>> {
    if request.method() != Method::POST {
        let mut response = text(StatusCode::METHOD_NOT_ALLOWED, request, ONLY_POST);
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("POST"));
        return Some(response);
    }
    let content_type = request.headers().get(CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    if is_content_type(content_type) {
        return None;
    }
    Some(text(StatusCode::UNSUPPORTED_MEDIA_TYPE, request, ONLY_GRPC))
}

/// A response for people. To a HEAD it has no body.
fn text(status: StatusCode, request: &Request<Incoming>, body: &'static str) -> Response<UnaryBody> {
    let message = (request.method() != Method::HEAD).then_some(Bytes::from_static(body.as_bytes()));
    let mut response = Response::new(UnaryBody { message, trailers: None });
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

fn answered(message: &Bytes) -> Response<UnaryBody> {
    let mut framed = BytesMut::with_capacity(PREFIX_BYTES + message.len());
    framed.put_u8(UNCOMPRESSED);
    framed.put_u32(u32::try_from(message.len()).expect("an answer has a few bytes a descriptor"));
    framed.put_slice(message);
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert(GRPC_STATUS, HeaderValue::from_static("0"));
    let mut response = Response::new(UnaryBody { message: Some(framed.freeze()), trailers: Some(trailers) });
    response.headers_mut().insert(CONTENT_TYPE, GRPC);
    response
}

/// A response of trailers only, which HTTP/2 sends as headers.
fn refused(refusal: &Refusal) -> Response<UnaryBody> {
    let mut response = Response::new(UnaryBody::default());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, GRPC);
    headers.insert(GRPC_STATUS, HeaderValue::from(u16::from(grpc_status(refusal.code))));
    let message = HeaderValue::try_from(percent_encoded(&refusal.message));
    headers.insert(GRPC_MESSAGE, message.expect("printable ASCII is a header value"));
    response
}

/// One message and the trailers, or nothing.
#[derive(Default)]
pub struct UnaryBody {
    message: Option<Bytes>,
    trailers: Option<HeaderMap>,
}

impl UnaryBody {
    pub(super) fn next(&mut self) -> Option<Frame<Bytes>> {
        self.message.take().map(Frame::data).or_else(|| self.trailers.take().map(Frame::trailers))
    }

    pub(super) fn is_over(&self) -> bool {
        self.message.is_none() && self.trailers.is_none()
    }
}
