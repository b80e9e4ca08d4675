//! Connections: who gets them, how many there may be, how they end.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

use super::{RULES, Server, TIMEOUT, bind, fronts, metrics, service};
use crate::clock;
use crate::front::connections::{GrpcServer, Listener, serve_grpc, serve_http, serve_pages};
use crate::front::{DrainSwitch, Handler, Life};
use crate::logging;
use tidegate_grpc::frames::{self, flag};
use tidegate_operate::debug::AdminFront;
use tidegate_operate::gate::{Gate, Hosts};
use tidegate_serve::health::Health;
use tidegate_serve::refusal::Bounds;

/// What serves a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Lane,
    Tonic,
    Http,
}

/// How a client of HTTP/2 begins: the preface, and empty SETTINGS.
const GREETING: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// Waits until `holds`. Threads have no clock that a test could advance.
async fn eventually(what: &str, holds: impl Fn() -> bool) {
    let waiting = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, waiting).await.expect(what);
}

#[tokio::test]
async fn draining_finishes_what_was_begun_and_closes_the_rest() {
    let mut server = Server::start().await;
    let mut idle = TcpStream::connect(server.http).await.expect("it listens");
    let mut busy = TcpStream::connect(server.http).await.expect("it listens");
    busy.write_all(b"POST /json HTTP/1.1\r\nhost: t\r\ncontent-length: 2\r\n\r\n{").await.expect("it reads");
    eventually("both connections are there", || server.workers.connections() == 2).await;
    // The server waits for the body once it has read the head. Nothing shows that but the answer to come.
    tokio::time::sleep(Duration::from_millis(100)).await;

    server.tasks.shutdown().await;
    assert!(TcpStream::connect(server.http).await.is_err(), "the listener is closed");
    let drained = tokio::spawn(async move { server.workers.drain(TIMEOUT).await });
    let mut rest = Vec::new();
    idle.read_to_end(&mut rest).await.expect("closed in order");
    assert!(rest.is_empty());
    busy.write_all(b"}").await.expect("it still reads");
    let mut answer = String::new();
    busy.read_to_string(&mut answer).await.expect("closed in order");
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    assert!(drained.await.expect("no panic"), "all connections ended");
}

#[tokio::test]
async fn draining_does_not_wait_longer_than_its_timeout() {
    let server = Server::start().await;
    let mut stuck = TcpStream::connect(server.http).await.expect("it listens");
    stuck.write_all(b"POST /json HTTP/1.1\r\nhost: t\r\ncontent-length: 2\r\n\r\n{").await.expect("it reads");
    eventually("the connection is there", || server.workers.connections() == 1).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!server.workers.drain(Duration::from_millis(50)).await);
}

#[tokio::test]
async fn connections_are_bounded_and_given_back() {
    let server = Server::start().await;
    let mut open = Vec::new();
    for _ in 0..100 {
        open.push(TcpStream::connect(server.http).await.expect("it listens"));
    }
    eventually("a hundred connections", || server.workers.connections() == 100).await;
    let mut refused = TcpStream::connect(server.http).await.expect("the system accepts it");
    let mut rest = Vec::new();
    let read = tokio::time::timeout(TIMEOUT, refused.read_to_end(&mut rest)).await.expect("in time");
    assert!(read.is_err() || rest.is_empty());
    drop(open);
    eventually("all given back", || server.workers.connections() == 0).await;
    let mut stream = TcpStream::connect(server.http).await.expect("it listens");
    stream.write_all(b"GET /livez HTTP/1.0\r\n\r\n").await.expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("an answer");
    assert!(answer.starts_with("HTTP/1.0 200"), "{answer}");
}

/// Serves one connection to its end, on this task's own clock, which jumps ahead when nothing else happens.
async fn serve(listener: &Listener, by: By) {
    let arrival = listener.accept().await;
    let (metrics, switch) = (metrics(), DrainSwitch::new());
    let life = Life::until(switch.drain());
    let service = Arc::new(service(None, &metrics));
    if by == By::Lane {
        let handler = Handler::new(service, metrics, Bounds::default());
        return serve_grpc(arrival, GrpcServer::lane(handler.into(), Health::starting().into()), life).await;
    }
    let (fronts, _) = fronts(service, metrics);
    match by {
        By::Http => serve_http(arrival, fronts.http, life).await,
        _ => serve_grpc(arrival, fronts.grpc, life).await,
    }
}

/// Serves a connection on which a client sent only this, to its end. Returns what the client was answered.
async fn stalled(by: By, sent: &[u8]) -> String {
    let (listener, address) = bind().await;
    let mut client = TcpStream::connect(address).await.expect("it listens");
    client.write_all(sent).await.expect("buffered");
    serve(&listener, by).await;
    let mut answer = Vec::new();
    // An end, or a reset if the server left something unread. It only matters that it came.
    let _ = client.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test(start_paused = true)]
async fn a_client_that_says_nothing_is_not_kept() {
    for sent in [&b""[..], b"P", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r"] {
        for by in [By::Lane, By::Tonic, By::Http] {
            assert_eq!(stalled(by, sent).await, "", "{by:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_stops_in_the_middle_is_not_kept() {
    assert_eq!(stalled(By::Http, b"GET /livez HTTP/1.1\r\nhost:").await, "");
    let answer = stalled(By::Http, b"POST /json HTTP/1.1\r\nhost: t\r\ncontent-length: 9\r\n\r\n{").await;
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    assert!(answer.ends_with("the body did not arrive in time\n"), "{answer}");
    // HTTP/2, but nothing after the preface: not even an answer to a ping.
    for by in [By::Lane, By::Tonic] {
        let settings_ping_goaway = stalled(by, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
        assert!(!settings_ping_goaway.is_empty(), "{by:?}");
    }
}

/// Serves a connection whose client sends without an end and reads nothing, to its end. Returns how long that took. A
/// unix socket holds little.
async fn unread(by: By, greeting: &[u8], mut question: impl FnMut(&mut Vec<u8>)) -> Duration {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("socket");
    let listener = Listener::unix(&path).await.expect("a socket");
    let mut client = UnixStream::connect(&path).await.expect("it listens");
    client.write_all(greeting).await.expect("buffered");
    let asking = async {
        let mut questions = Vec::new();
        while client.write_all(&questions).await.is_ok() {
            questions.clear();
            (0..100).for_each(|_| question(&mut questions));
        }
        std::future::pending::<Infallible>().await
    };
    let (began, bound) = (clock::timer(), Duration::from_secs(120));
    tokio::select! {
        served = tokio::time::timeout(bound, serve(&listener, by)) => served.expect("it is given up"),
        never = asking => match never {},
    }
    clock::timer() - began
}

#[tokio::test(start_paused = true)]
async fn a_client_that_reads_nothing_is_not_kept() {
    let get = |out: &mut Vec<u8>| out.extend_from_slice(b"GET /livez HTTP/1.1\r\nhost: t\r\n\r\n");
    unread(By::Http, b"", get).await;
    // Each of them has to be answered.
    let ping = |out: &mut Vec<u8>| frames::ping(out, 0, b"tidegate");
    unread(By::Tonic, GREETING, ping).await;
    unread(By::Http, GREETING, ping).await;
}

/// The bound that `docs/lane.md` names. Calls, because a flood of anything else is ended for what it is.
#[tokio::test(start_paused = true)]
async fn a_client_that_reads_nothing_is_not_kept_by_the_lane() {
    let mut streams = (1..).step_by(2);
    let call = |out: &mut Vec<u8>| {
        let stream = streams.next().expect("there are enough");
        frames::headers(out, stream, flag::END_STREAM, |out| {
            out.extend_from_slice(b"\x83\x86\x84\x0f\x10\x10application/grpc");
        });
    };
    let lived = unread(By::Lane, GREETING, call).await;
    assert!((60..=61).contains(&lived.as_secs()), "{lived:?}");
}

/// How many streams at a time a port allows in its SETTINGS.
async fn streams_max(address: SocketAddr) -> u32 {
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    stream.write_all(GREETING).await.expect("it reads");
    let mut head = [0; 9];
    stream.read_exact(&mut head).await.expect("a frame");
    assert_eq!(head[3], 4, "SETTINGS come first");
    let mut settings = vec![0; usize::from(head[2])];
    stream.read_exact(&mut settings).await.expect("its payload");
    let setting = settings.chunks_exact(6).find(|setting| setting[..2] == [0, 3]).expect("a bound");
    u32::from_be_bytes(setting[2..].try_into().expect("four bytes"))
}

#[tokio::test]
async fn streams_of_a_connection_are_bounded_as_the_port_needs() {
    let server = Server::start().await;
    assert_eq!(streams_max(server.grpc).await, 256);
    assert_eq!(streams_max(server.http).await, 100);
}

#[tokio::test]
async fn connections_that_are_left_open_do_not_keep_a_scrape_out() {
    let server = Server::start().await;
    // As many as there may be. Each client sends too little to be answered, and stays.
    let mut left = Vec::new();
    for _ in 0..4 {
        let mut stream = TcpStream::connect(server.metrics_page).await.expect("it listens");
        stream.write_all(b"GET /prometheus HTTP/1.1\r\n").await.expect("buffered");
        left.push(stream);
    }
    let scrape = async {
        let mut stream = TcpStream::connect(server.metrics_page).await.expect("it listens");
        stream.write_all(b"GET /prometheus HTTP/1.0\r\n\r\n").await.expect("buffered");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("an answer");
        answer
    };
    // The head of a request may take longer than this, so no client has been dropped by then.
    let answer = tokio::time::timeout(TIMEOUT, scrape).await.expect("the oldest makes room");
    assert!(answer.starts_with("HTTP/1.0 200"), "{answer}");
    // The newest of them is still there.
    let mut newest = left.pop().expect("four");
    newest.write_all(b"host: t\r\nconnection: close\r\n\r\n").await.expect("it is open");
    let mut answer = String::new();
    newest.read_to_string(&mut answer).await.expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[tokio::test(start_paused = true)]
async fn a_page_that_nobody_takes_is_not_kept() {
    let (listener, address) = bind().await;
    let (metrics, switch) = (metrics(), DrainSwitch::new());
    let service = Arc::new(service(Some(RULES), &metrics));
    let handler = Arc::new(Handler::new(Arc::clone(&service), Arc::clone(&metrics), Bounds::default()));
    let status = tidegate_operate::status::fixture::status(&metrics);
    let front =
        AdminFront::new(service, handler, logging::SWITCH, status, Gate::new(Hosts::new("::", &[]), None));
    let serving = tokio::spawn(serve_pages(listener, front, 4, switch.drain()));
    // The window lets nothing of the answer be sent, or only its beginning.
    for window in [0, 100] {
        let stream = TcpStream::connect(address).await.expect("it listens");
        let mut client = http2::Builder::new(TokioExecutor::new());
        let handshake = client.initial_stream_window_size(window).handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = handshake.expect("HTTP/2");
        tokio::spawn(connection);
        let ask = |path: &str| {
            let request = ::http::Request::get(format!("http://{address}{path}"));
            request.body(Empty::<Bytes>::new()).expect("a request")
        };
        let page = sender.send_request(ask("/rlconfig?format=json")).await.expect("an answer").into_body();
        tokio::time::sleep(Duration::from_secs(61)).await;
        let taken = tokio::time::timeout(Duration::from_secs(1), page.collect()).await;
        taken.expect("ended").expect_err("not all of it");
        // The connection goes on.
        let page = sender.send_request(ask("/nothing")).await.expect("an answer");
        assert_eq!(page.status(), 404);
    }
    serving.abort();
}
