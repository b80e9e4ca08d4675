//! Asks the debug port of a running limiter, for commands. In: a request. Out: status and body, bounded in bytes and
//! time.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, HOST};
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::configuration::HostPort;

/// How long a limiter may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest answer that is read, in bytes.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// A request to a debug port.
pub(super) struct Call<'a> {
    pub(super) method: Method,
    pub(super) path: String,
    /// JSON.
    pub(super) body: String,
    pub(super) token: Option<&'a str>,
}

/// Sends a request, and waits for all of the answer.
pub(super) fn send(to: &HostPort, call: &Call<'_>) -> io::Result<(StatusCode, String)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async { tokio::time::timeout(ANSWER_TIMEOUT, exchange(to, call)).await? })
}

async fn exchange(to: &HostPort, call: &Call<'_>) -> io::Result<(StatusCode, String)> {
    let host = match to.host.as_str() {
        "" | "0.0.0.0" | "::" => "localhost",
        host => host,
    };
    let stream = TcpStream::connect((host, to.port)).await?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    let driver = tokio::spawn(connection);
    let mut request = Request::builder().method(call.method.clone()).uri(&call.path).header(HOST, "tidegate");
    if let Some(token) = call.token {
        request = request.header(AUTHORIZATION, format!("Bearer {token}"));
    }
    let request = request.body(Full::new(Bytes::from(call.body.clone()))).map_err(io::Error::other)?;
    let answer = sender.send_request(request).await.map_err(io::Error::other)?;
    let status = answer.status();
    let body =
        Limited::new(answer.into_body(), ANSWER_BYTES_MAX).collect().await.map_err(io::Error::other)?;
    driver.abort();
    Ok((status, String::from_utf8_lossy(&body.to_bytes()).into_owned()))
}
