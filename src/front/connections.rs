//! From a listener to a front: who serves a connection, on which thread, within which bounds.
//!
//! Decisions run on [`Workers`]: one thread a core, each with a runtime of its own, so that a call is read, decided and
//! answered without a hop. A connection belongs to one worker, the one that had the fewest when it came. Everything
//! that is not a decision is served by [`serve_pages`] on whatever runtime calls it.
//!
//! A connection comes in at a [`Listener`] (TCP or unix socket, plain or TLS) as an [`Arrival`], becomes a [`Session`]
//! once its client has said which protocol it speaks, and then belongs to a driver, which is chosen in [`serve_grpc`]
//! and [`serve_http`]. A driver gets the session's stream (`AsyncRead + AsyncWrite`, whatever carries it), the front
//! that answers, and the [`Life`] of the connection, which says when to end gracefully and when at once.
//!
//! A connection ends when its peer ends it, when it breaks, when its peer reads nothing for long, or gracefully
//! (GOAWAY, `connection: close`) once it is old or draining has begun. A stream of HTTP/2 ends too when its peer takes
//! nothing of it for long.

mod drain;
mod life;
mod listener;
mod socket;
mod stream;
mod stream_tasks;
mod tls;
mod workers;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulConnection;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::{AbortHandle, JoinSet};

pub use self::drain::{Drain, DrainSwitch};
pub use self::life::{Life, MaxAge};
pub use self::listener::{Arrival, Listener, Session};
pub use self::stream::Protocol;
use self::stream_tasks::StreamTasks;
pub use self::tls::{Identity, Tls, TlsError};
pub use self::workers::{ConnectionBounds, Fronts, Port, Workers};

use crate::front::Handler;
use crate::front::grpc::GrpcFront;
use crate::front::http::Respond;
use crate::front::lane::{self, LaneFront};
use crate::health::Health;

/// Calls at a time on one connection. Envoy opens another connection when it needs more. All of them are woken at once
/// when their connection ends, and hold up everybody else on its thread.
const GRPC_STREAMS_MAX: u32 = 256;
/// The same where HTTP/2 is the exception, and each may hold a whole body.
const HTTP_STREAMS_MAX: u32 = 100;
/// The same of pages, which are long: few of them are looked at at a time.
const PAGE_STREAMS_MAX: u32 = 8;
/// Headers of one request, decoded. Envoy's own are a few hundred bytes.
const HEADER_BYTES_MAX: u32 = 16 * 1_024;
/// Unread bytes of requests that a connection may hold here, and each of its streams.
const CONNECTION_WINDOW_BYTES: u32 = 1_024 * 1_024;
const STREAM_WINDOW_BYTES: u32 = 64 * 1_024;
/// Unsent bytes of answers that one stream may hold here, should its peer not read.
const SEND_BUFFER_BYTES: usize = 64 * 1_024;
/// Finds peers that are gone without a word.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(60);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(20);
/// How long HTTP/1 may take from the last answer to the end of the next header: longer than proxies keep an idle
/// connection (NGINX: 60 s), so that they are the ones that close it.
const HEADER_READ_TIMEOUT: Duration = Duration::from_secs(75);
/// What one connection of HTTP/1 buffers.
const HTTP1_BUFFER_BYTES: usize = 32 * 1_024;

/// What speaks HTTP/2 on the gRPC port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum GrpcFrontKind {
    Lane,
    Tonic,
}

/// What serves the gRPC port.
#[derive(Clone)]
pub enum GrpcServer {
    /// hyper and tonic.
    Tonic(GrpcFront),
    /// Our own HTTP/2.
    Lane(LaneFront),
}

impl GrpcServer {
    /// hyper and tonic: calls are answered by `handler`, and questions about health by `health`.
    #[must_use]
    pub fn tonic(handler: Arc<Handler>, health: Arc<Health>) -> Self {
        Self::Tonic(GrpcFront::new(handler, health))
    }

    /// The same on our own HTTP/2.
    #[must_use]
    pub fn lane(handler: Arc<Handler>, health: Arc<Health>) -> Self {
        Self::Lane(LaneFront::new(handler, health))
    }

    /// Serves one connection to its end, once its client has said what it speaks.
    pub(in crate::front) async fn serve(
        self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        life: Life,
    ) {
        match self {
            Self::Tonic(front) => serve_tonic(stream, front, life).await,
            Self::Lane(front) => lane::serve(stream, front, life).await,
        }
    }
}

/// Serves one connection of gRPC.
pub async fn serve_grpc(arrival: Arrival, server: GrpcServer, mut life: Life) {
    let Some(session) = arrival.greeted(&mut life).await else { return };
    server.serve(session.stream, life).await;
}

/// The same on hyper and tonic.
async fn serve_tonic(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    front: GrpcFront,
    life: Life,
) {
    // A count of this connection's own: those inside are shared, and would bounce between the cores with every call.
    let front = Arc::new(front.for_connection());
    let service = service_fn(move |request: Request<Incoming>| {
        let front = Arc::clone(&front);
        async move { Ok::<_, Infallible>(front.respond(request).await) }
    });
    // Whatever it speaks: what is not HTTP/2 is told so.
    // Its streams may stand still: a Watch of health has no news for days.
    let mut http2 = http2(TokioExecutor::new(), GRPC_STREAMS_MAX);
    let connection = http2.auto_date_header(false).serve_connection(TokioIo::new(stream), service);
    run_to_end(connection, life).await;
}

/// Serves one connection of HTTP/1.1 or HTTP/2, whichever it begins with.
pub async fn serve_http(arrival: Arrival, front: impl Respond, life: Life) {
    serve_streams(arrival, front, HTTP_STREAMS_MAX, life).await;
}

/// The same, with so many calls at a time.
async fn serve_streams(arrival: Arrival, front: impl Respond, streams_max: u32, mut life: Life) {
    let Some(Session { stream, protocol, peer }) = arrival.greeted(&mut life).await else { return };
    // A count of this connection's own: those inside are shared, and would bounce between the cores with every call.
    let front = Arc::new(front);
    let service = service_fn(move |request: Request<Incoming>| {
        let front = Arc::clone(&front);
        async move { Ok::<_, Infallible>(front.respond(request, peer).await) }
    });
    let stream = TokioIo::new(stream);
    match protocol {
        Protocol::Http1 => run_to_end(http1().serve_connection(stream, service), life).await,
        Protocol::Http2 => {
            run_to_end(http2(StreamTasks, streams_max).serve_connection(stream, service), life).await;
        }
    }
}

/// HTTP/2 within our bounds, with so many calls at a time.
fn http2<E: Clone>(executor: E, streams_max: u32) -> http2::Builder<E> {
    let mut builder = http2::Builder::new(executor);
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(streams_max)
        .max_header_list_size(HEADER_BYTES_MAX)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .max_send_buf_size(SEND_BUFFER_BYTES)
        .keep_alive_interval(KEEP_ALIVE_INTERVAL)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT);
    builder
}

/// HTTP/1 within our bounds.
fn http1() -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_READ_TIMEOUT)
        .max_buf_size(HTTP1_BUFFER_BYTES);
    builder
}

/// Serves pages (metrics, debugging) on the runtime that calls it, at most `connections_max` connections at a time: one
/// more takes the place of the oldest, so that clients who open connections and leave them, or who read an answer
/// without an end, never keep a scrape out. Whoever drops this future closes the listener and every connection.
pub async fn serve_pages(
    listener: Listener,
    front: impl Respond,
    connections_max: usize,
    drain: Drain,
) -> Infallible {
    let mut serving = JoinSet::new();
    let mut oldest_first: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        tokio::select! {
            arrival = listener.accept() => {
                oldest_first.retain(|connection| !connection.is_finished());
                if oldest_first.len() >= connections_max && let Some(oldest) = oldest_first.pop_front() {
                    oldest.abort();
                }
                let life = Life::until(drain.clone());
                let connection = serve_streams(arrival, front.clone(), PAGE_STREAMS_MAX, life);
                oldest_first.push_back(serving.spawn(connection));
            }
            Some(_) = serving.join_next() => {}
        }
    }
}

/// Runs a connection until it ends; asks it to end once its life is over, and drops it when that takes too long.
async fn run_to_end<C: GracefulConnection>(connection: C, mut life: Life) {
    let mut connection = pin!(connection);
    let ended = tokio::select! {
        biased;
        ended = connection.as_mut() => ended,
        () = life.over() => {
            connection.as_mut().graceful_shutdown();
            tokio::select! {
                ended = connection => ended,
                () = life.grace_over() => return tracing::debug!("connection closed: its grace is over"),
            }
        }
    };
    if ended.is_err() {
        tracing::debug!("connection broke");
    }
}
