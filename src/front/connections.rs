//! From a listener to a front: who serves a connection, on which thread, within which bounds.
//!
//! Decisions run on [`Workers`]: one thread a core, each with a runtime of its own, so that a call is read, decided and
//! answered without a hop. A connection belongs to one worker, the one that had the fewest when it came. Everything
//! that is not a decision is served by [`serve_pages`] on whatever runtime calls it.
//!
//! A connection ends when its peer ends it, when it breaks, or gracefully (GOAWAY, `connection: close`) once draining
//! has begun.

mod drain;
mod workers;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulConnection;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};

pub use self::drain::{Drain, DrainSwitch};
pub use self::workers::{Fronts, Port, Workers};

use crate::front::grpc::GrpcFront;
use crate::front::http::Respond;

/// Calls at a time on one connection. Envoy opens another connection when it needs more.
const STREAMS_MAX: u32 = 1_024;
/// The same where HTTP/2 is the exception, and each may hold a whole body.
const HTTP_STREAMS_MAX: u32 = 100;
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
/// How long a client may take to say which protocol it speaks.
const GREETING_TIMEOUT: Duration = Duration::from_secs(10);
/// A pause before looking again at a greeting that came in part.
const GREETING_PAUSE: Duration = Duration::from_millis(20);
/// How a connection of HTTP/2 begins.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// How long HTTP/1 may take from the last answer to the end of the next header: longer than proxies keep an idle
/// connection (NGINX: 60 s), so that they are the ones that close it.
const HEADER_READ_TIMEOUT: Duration = Duration::from_secs(75);
/// What one connection of HTTP/1 buffers.
const HTTP1_BUFFER_BYTES: usize = 32 * 1_024;
/// A pause after an error of `accept`, which is mostly that file descriptors ran out: they still are a moment later.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves one connection of gRPC.
pub async fn serve_grpc(stream: TcpStream, front: GrpcFront, mut drain: Drain) {
    if !greets(&stream, &mut drain).await {
        return;
    }
    // A count of this connection's own: those inside are shared, and would bounce between the cores with every call.
    let front = Arc::new(front.for_connection());
    let service = service_fn(move |request: Request<Incoming>| {
        let front = Arc::clone(&front);
        async move { Ok::<_, Infallible>(front.respond(request).await) }
    });
    let connection = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .auto_date_header(false)
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(HEADER_BYTES_MAX)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .max_send_buf_size(SEND_BUFFER_BYTES)
        .keep_alive_interval(KEEP_ALIVE_INTERVAL)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service);
    to_its_end(connection, drain).await;
}

/// Serves one connection of HTTP/1.1 or HTTP/2, whichever it begins with.
pub async fn serve_http(stream: TcpStream, peer: SocketAddr, front: impl Respond, mut drain: Drain) {
    if !greets(&stream, &mut drain).await {
        return;
    }
    // A count of this connection's own: those inside are shared, and would bounce between the cores with every call.
    let front = Arc::new(front);
    let service = service_fn(move |request: Request<Incoming>| {
        let front = Arc::clone(&front);
        async move { Ok::<_, Infallible>(front.respond(request, peer).await) }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_READ_TIMEOUT)
        .max_buf_size(HTTP1_BUFFER_BYTES);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(HTTP_STREAMS_MAX)
        .max_header_list_size(HEADER_BYTES_MAX)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .max_send_buf_size(SEND_BUFFER_BYTES)
        .keep_alive_interval(KEEP_ALIVE_INTERVAL)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT);
    let connection = builder.serve_connection(TokioIo::new(stream), service).into_owned();
    to_its_end(connection, drain).await;
}

/// Serves pages (metrics, debugging) on the runtime that calls it, at most `connections_max` connections at a time: one
/// more takes the place of the oldest, so that clients who open connections and leave them, or who read an answer
/// without an end, never keep a scrape out. Whoever drops this future closes the listener and every connection.
pub async fn serve_pages(
    listener: TcpListener,
    front: impl Respond,
    connections_max: usize,
    drain: Drain,
) -> Infallible {
    let mut serving = JoinSet::new();
    let mut oldest_first: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        tokio::select! {
            (stream, peer) = accept_one(&listener) => {
                oldest_first.retain(|connection| !connection.is_finished());
                if oldest_first.len() >= connections_max && let Some(oldest) = oldest_first.pop_front() {
                    oldest.abort();
                }
                oldest_first.push_back(serving.spawn(serve_http(stream, peer, front.clone(), drain.clone())));
            }
            Some(_) = serving.join_next() => {}
        }
    }
}

async fn accept_one(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                // Answers are small and each is awaited: never hold one back to gather more.
                let _ = stream.set_nodelay(true);
                return (stream, peer);
            }
            Err(error) => {
                tracing::debug!(%error, "accept failed");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Whether the client says in time, and before draining begins, which protocol it speaks. What serves connections
/// waits for that without an end, and only then begins to look for clients that are gone.
async fn greets(stream: &TcpStream, drain: &mut Drain) -> bool {
    tokio::select! {
        greeting = tokio::time::timeout(GREETING_TIMEOUT, greeting(stream)) => matches!(greeting, Ok(Ok(()))),
        () = drain.begun() => false,
    }
}

/// Waits for the preface of HTTP/2, or for anything that is not its beginning. Takes nothing from the stream.
async fn greeting(stream: &TcpStream) -> io::Result<()> {
    let mut seen = [0; PREFACE.len()];
    loop {
        match stream.peek(&mut seen).await? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            length if length == PREFACE.len() || seen[..length] != PREFACE[..length] => return Ok(()),
            _ => tokio::time::sleep(GREETING_PAUSE).await,
        }
    }
}

/// Runs a connection until it ends; asks it to end once draining begins.
async fn to_its_end<C: GracefulConnection>(connection: C, mut drain: Drain) {
    tokio::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = drain.begun() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if ended.is_err() {
        tracing::debug!("connection broke");
    }
}
