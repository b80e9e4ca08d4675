//! The echoes: servers that answer ShouldRateLimit with a constant OK, on the same libraries as Tidegate or on fewer.
//!
//! Each runs in a process of its own: the benchmark starts itself again with `--echo`. Their figures are what the
//! network, the kernel and the libraries cost without a decision.

use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use bytes::Bytes;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tonic::{Request, Response, Status};

use super::frame::{self, flag, kind};
use super::hpack::{put_integer, put_string};
use super::proto::envoy::service::ratelimit::v3;
use super::request::framed;

/// The libraries of an echo.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Echo {
    /// tonic, on tokio's usual multi-thread runtime
    TonicMulti,
    /// tonic, on a current-thread runtime
    TonicCurrent,
    /// hyper, on a current-thread runtime
    Hyper,
    /// no HTTP/2 library: canned frames; it shows how much the generator can do
    Canned,
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Serves on `port` of loopback until the process is ended.
pub(crate) fn serve(echo: Echo, port: u16) -> Result<(), Failure> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    match echo {
        Echo::TonicMulti => Runtime::new()?.block_on(tonic(address)),
        Echo::TonicCurrent => current_thread()?.block_on(tonic(address)),
        Echo::Hyper => current_thread()?.block_on(each_connection(address, hyper)),
        Echo::Canned => current_thread()?.block_on(each_connection(address, canned)),
    }
}

fn current_thread() -> io::Result<Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

/// The answer of a limiter, so that an echo writes as many bytes.
fn ok() -> v3::RateLimitResponse {
    let code = v3::rate_limit_response::Code::Ok.into();
    let unit = v3::rate_limit_response::rate_limit::Unit::Hour.into();
    let limit =
        v3::rate_limit_response::RateLimit { requests_per_unit: 1_000_000, unit, ..Default::default() };
    let status = v3::rate_limit_response::DescriptorStatus {
        code,
        current_limit: Some(limit),
        limit_remaining: 999_999,
        duration_until_reset: Some(prost_types::Duration { seconds: 3600, nanos: 0 }),
    };
    v3::RateLimitResponse { overall_code: code, statuses: vec![status], ..Default::default() }
}

struct Constant;

#[tonic::async_trait]
impl v3::rate_limit_service_server::RateLimitService for Constant {
    async fn should_rate_limit(
        &self,
        _: Request<v3::RateLimitRequest>,
    ) -> Result<Response<v3::RateLimitResponse>, Status> {
        Ok(Response::new(ok()))
    }
}

async fn tonic(address: SocketAddr) -> Result<(), Failure> {
    let service = v3::rate_limit_service_server::RateLimitServiceServer::new(Constant);
    Ok(tonic::transport::Server::builder().add_service(service).serve(address).await?)
}

async fn each_connection<F>(address: SocketAddr, serve: fn(TcpStream) -> F) -> Result<(), Failure>
where
    F: Future<Output = Result<(), Failure>> + Send + 'static,
{
    let listener = TcpListener::bind(address).await?;
    loop {
        let (socket, _) = listener.accept().await?;
        socket.set_nodelay(true)?;
        // the load generator counts connections that break
        tokio::spawn(serve(socket));
    }
}

async fn hyper(socket: TcpStream) -> Result<(), Failure> {
    let service = hyper::service::service_fn(hyper_answer);
    let mut builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    builder.timer(TokioTimer::new());
    Ok(builder.serve_connection(TokioIo::new(socket), service).await?)
}

type Frames = tokio_stream::Iter<std::array::IntoIter<Result<Frame<Bytes>, Infallible>, 2>>;

async fn hyper_answer(
    request: http::Request<Incoming>,
) -> Result<http::Response<StreamBody<Frames>>, Failure> {
    let message = request.into_body().collect().await?.to_bytes();
    <v3::RateLimitRequest as prost::Message>::decode(message.slice(5..))?;
    let mut trailers = http::HeaderMap::new();
    trailers.insert("grpc-status", http::HeaderValue::from_static("0"));
    let frames = [Frame::data(framed(&ok()).into()), Frame::trailers(trailers)].map(Ok);
    let body = StreamBody::new(tokio_stream::iter(frames));
    Ok(http::Response::builder().header("content-type", "application/grpc").body(body)?)
}

/// Reads no header block and keeps no state: every DATA frame that ends a stream gets the same bytes.
async fn canned(mut socket: TcpStream) -> Result<(), Failure> {
    let message = framed(&ok());
    let mut grpc_status = Vec::new();
    put_integer(&mut grpc_status, 0, 4, 0);
    put_string(&mut grpc_status, b"grpc-status");
    put_string(&mut grpc_status, b"0");
    let (mut input, mut output) = (Vec::with_capacity(1 << 18), Vec::new());
    frame::put(&mut output, kind::SETTINGS, 0, 0, &[]);
    socket.read_exact(&mut [0; frame::PREFACE.len()]).await?;
    while socket.read_buf(&mut input).await? > 0 {
        let mut rest = &*input;
        let mut window = 0;
        while let Some(received) = frame::take(&mut rest) {
            if received.kind == kind::DATA && received.has(flag::END_STREAM) {
                window += received.payload.len() as u32;
                frame::put(&mut output, kind::HEADERS, flag::END_HEADERS, received.stream, &[0x88]);
                frame::put(&mut output, kind::DATA, 0, received.stream, &message);
                let ends = flag::END_HEADERS | flag::END_STREAM;
                frame::put(&mut output, kind::HEADERS, ends, received.stream, &grpc_status);
            }
        }
        if window > 0 {
            frame::put(&mut output, kind::WINDOW_UPDATE, 0, 0, &window.to_be_bytes());
        }
        let taken = input.len() - rest.len();
        input.drain(..taken);
        socket.write_all(&output).await?;
        output.clear();
    }
    Ok(())
}
