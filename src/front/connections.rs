//! From a listener to a front: which front serves a connection, on which thread, within which bounds.
//!
//! Decisions run on [`Workers`]: one thread per core, each with a runtime of its own, so that a call is read, decided
//! and answered on one thread. A connection belongs to one worker, the one that had the fewest when it came. Pages,
//! which decide nothing, are served by [`serve_pages`] on the runtime that calls it.
//!
//! A connection comes in at a [`Listener`] (TCP or unix socket, plain or TLS) as an [`Arrival`]. It becomes a
//! [`Session`] once its first bytes have shown the protocol, and then belongs to a driver, which [`serve_grpc`] or
//! [`serve_http`] chooses. A driver gets the stream (`AsyncRead + AsyncWrite`), the front that answers, and the
//! [`Life`] of the connection, which says when to end gracefully and when at once.
//!
//! A connection ends when its peer ends it, when it breaks, when its peer reads nothing for long, or gracefully
//! (GOAWAY, `connection: close`) once it is old or draining has begun. A stream of HTTP/2 also ends when its peer takes
//! nothing of it for long.

mod calm;
mod listener;
mod socket;
mod spin;
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

use self::calm::Calm;
pub use self::listener::{Arrival, Listener, Session};
pub use self::stream::Protocol;
use self::stream_tasks::StreamTasks;
pub use self::tls::{Identity, Tls, TlsError};
pub use self::workers::{ConnectionBounds, Fronts, WorkerOptions, Workers};

use crate::front::grpc::GrpcFront;
use crate::front::lane::{self, LaneFront};
use crate::front::{Drain, Handler, Life};
use tidegate_operate::page::Respond;
use tidegate_serve::health::Health;

/// Calls at a time on one connection. Envoy opens another connection when it needs more. When a connection ends, all
/// its calls are woken at once and delay everybody else on the thread.
const GRPC_STREAMS_MAX: u32 = 256;
/// Calls at a time on the HTTP port, where HTTP/2 is the exception and each call may hold a whole body.
const HTTP_STREAMS_MAX: u32 = 100;
/// Calls at a time for pages. Pages are long, so few are read at a time.
const PAGE_STREAMS_MAX: u32 = 8;
/// Headers of one request, decoded. Envoy's own are a few hundred bytes.
const HEADER_BYTES_MAX: u32 = 16 * 1_024;
/// Bytes of requests that a connection, and each of its streams, may keep here before they are read.
const CONNECTION_WINDOW_BYTES: u32 = 1_024 * 1_024;
const STREAM_WINDOW_BYTES: u32 = 64 * 1_024;
/// Unsent bytes of answers that one stream may keep here while its peer does not read.
const SEND_BUFFER_BYTES: usize = 64 * 1_024;
/// Finds peers that went away silently.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(60);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(20);
/// How long HTTP/1 may take from the last answer to the end of the next header. Proxies keep an idle connection for
/// less (NGINX: 60 s), so it is they who close it.
const HEADER_READ_TIMEOUT: Duration = Duration::from_secs(75);
/// The buffer of one HTTP/1 connection.
const HTTP1_BUFFER_BYTES: usize = 32 * 1_024;

/// Which port a connection came in on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    /// gRPC over HTTP/2.
    Grpc,
    /// HTTP/1.1 and HTTP/2.
    Http,
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
    /// hyper and tonic: `handler` answers calls, `health` answers health checks.
    #[must_use]
    pub fn tonic(handler: Arc<Handler>, health: Arc<Health>) -> Self {
        Self::Tonic(GrpcFront::new(handler, health))
    }

    /// Our own HTTP/2, with the same parameters.
    #[must_use]
    pub fn lane(handler: Arc<Handler>, health: Arc<Health>) -> Self {
        Self::Lane(LaneFront::new(handler, health))
    }

    /// Serves one connection to its end, once its protocol is known.
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

pub async fn serve_grpc(arrival: Arrival, server: GrpcServer, mut life: Life) {
    let Some(session) = arrival.greeted(&mut life).await else { return };
    server.serve(session.stream, life).await;
}

/// Serves one gRPC connection by hyper and tonic.
async fn serve_tonic(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    front: GrpcFront,
    life: Life,
) {
    // This connection has its own reference count: the shared ones inside would bounce between cores with every call.
    let front = Arc::new(front.for_connection());
    let service = service_fn(move |request: Request<Incoming>| {
        let front = Arc::clone(&front);
        async move { Ok::<_, Infallible>(front.respond(request).await) }
    });
    // Also serves clients that do not speak HTTP/2, to answer them with an error. Streams may be idle for long: a
    // Watch of health sends nothing for days.
    let mut http2 = http2(TokioExecutor::new(), GRPC_STREAMS_MAX);
    let connection = http2.auto_date_header(false).serve_connection(TokioIo::new(Calm::new(stream)), service);
    run_to_end(connection, life).await;
}

/// Serves one connection of HTTP/1.1 or HTTP/2, depending on its first bytes.
pub async fn serve_http(arrival: Arrival, front: impl Respond, life: Life) {
    serve_streams(arrival, front, HTTP_STREAMS_MAX, life).await;
}

/// Serves one connection with at most so many calls at a time.
async fn serve_streams(arrival: Arrival, front: impl Respond, streams_max: u32, mut life: Life) {
    let Some(Session { stream, protocol, peer }) = arrival.greeted(&mut life).await else { return };
    // This connection has its own reference count: the shared ones inside would bounce between cores with every call.
    let shared = Arc::new((front, peer));
    let service = service_fn(move |request: Request<Incoming>| {
        let shared = Arc::clone(&shared);
        async move {
            let (front, peer) = &*shared;
            Ok::<_, Infallible>(front.respond(request, peer).await)
        }
    });
    match protocol {
        Protocol::Http1 => {
            run_to_end(http1().serve_connection(TokioIo::new(stream), service), life).await;
        }
        Protocol::Http2 => {
            let stream = TokioIo::new(Calm::new(stream));
            run_to_end(http2(StreamTasks, streams_max).serve_connection(stream, service), life).await;
        }
    }
}

/// HTTP/2 with our bounds, and at most so many calls at a time.
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

/// HTTP/1 with our bounds.
fn http1() -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_READ_TIMEOUT)
        .max_buf_size(HTTP1_BUFFER_BYTES);
    builder
}

/// Serves pages (metrics, debugging) on the runtime that calls it, at most `connections_max` connections at a time. A
/// further one replaces the oldest, so that clients who leave connections open, or never finish reading, cannot block
/// a scrape. Dropping this future closes the listener and every connection.
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
