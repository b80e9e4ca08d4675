//! Asks the debug port of a running limiter, for commands. In: a request, and where it goes. Out: status and body,
//! bounded in bytes and time.

mod trust;

use std::io;
use std::time::Duration;

use bytes::Bytes;
use clap::ArgMatches;
use http::header::{AUTHORIZATION, HOST};
use http::{HeaderValue, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use self::trust::Trust;
pub(super) use self::trust::arguments;
use crate::configuration::{HostPort, Listeners};
use crate::settings::Problem;
use crate::settings::value::Value as _;

/// How long a limiter may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest answer that is read, in bytes.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// Where a limiter's debug port is.
pub(super) struct Limiter {
    at: HostPort,
    /// `None`: no TLS.
    trust: Option<Trust>,
}

/// A request to a debug port.
pub(super) struct Call<'a> {
    pub(super) method: Method,
    pub(super) path: String,
    /// JSON.
    pub(super) body: String,
    /// The token, as its header has it.
    pub(super) token: Option<&'a HeaderValue>,
}

impl Limiter {
    /// The limiters that `--to` names, with the TLS of the other options; without `--to`, the one of the settings,
    /// with TLS if they say so.
    pub(super) fn named(matches: &ArgMatches, default: &Listeners) -> Result<Vec<Self>, Vec<Problem>> {
        let problem = |what| vec![Problem { name: "--to".to_owned(), what }];
        let trust = Trust::read(matches)
            .map_err(|error| vec![Problem { name: error.option().to_owned(), what: error.to_string() }])?;
        let Some(words) = matches.get_many::<String>("to") else {
            let trust = default.debug_tls.is_some().then_some(trust);
            return Ok(vec![Self { at: default.debug.clone(), trust }]);
        };
        let read = |word: &String| {
            let (scheme, rest) = word.split_once("://").unwrap_or(("http", word));
            let at = HostPort::parse(rest.strip_suffix('/').unwrap_or(rest));
            match (scheme, at) {
                ("http", Some(at)) => Ok(Self { at, trust: None }),
                ("https", Some(at)) => Ok(Self { at, trust: Some(trust.clone()) }),
                _ => Err(problem(format!("{word:?} is not {} or https://host:port", HostPort::EXPECTED))),
            }
        };
        words.map(read).collect()
    }

    /// Like [`named`](Self::named), for a command that asks one limiter.
    pub(super) fn one(matches: &ArgMatches, default: &Listeners) -> Result<Self, Vec<Problem>> {
        let mut named = Self::named(matches, default)?;
        let problem = "names several limiters (expected one)".to_owned();
        named
            .pop()
            .filter(|_| named.is_empty())
            .ok_or_else(|| vec![Problem { name: "--to".to_owned(), what: problem }])
    }

    /// Its name for people.
    pub(super) fn name(&self) -> String {
        format!("{}:{}", self.host(), self.at.port)
    }

    /// The host to connect to.
    fn host(&self) -> &str {
        match self.at.host.as_str() {
            "" | "0.0.0.0" | "::" => "localhost",
            host => host,
        }
    }
}

/// Sends a request, and waits for the complete answer.
pub(super) fn send(to: &Limiter, call: &Call<'_>) -> io::Result<(StatusCode, String)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async { tokio::time::timeout(ANSWER_TIMEOUT, connected(to, call)).await? })
}

async fn connected(to: &Limiter, call: &Call<'_>) -> io::Result<(StatusCode, String)> {
    let stream = TcpStream::connect((to.host(), to.at.port)).await?;
    match &to.trust {
        None => exchange(stream, to, call).await,
        Some(trust) => exchange(trust.handshake(to.host(), stream).await?, to, call).await,
    }
}

async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    to: &Limiter,
    call: &Call<'_>,
) -> io::Result<(StatusCode, String)> {
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    let driver = tokio::spawn(connection);
    let bare = to.host();
    let host = if bare.contains(':') { format!("[{bare}]:{}", to.at.port) } else { to.name() };
    let mut request = Request::builder().method(call.method.clone()).uri(&call.path).header(HOST, host);
    if let Some(token) = call.token {
        request = request.header(AUTHORIZATION, token);
    }
    let request = request.body(Full::new(Bytes::from(call.body.clone()))).map_err(io::Error::other)?;
    let unanswered = |error: hyper::Error| match to.trust {
        // The response of a port with TLS to plain text.
        None if error.is_incomplete_message() || error.is_parse() => {
            io::Error::other(format!("{error} (expected https://{} if the port speaks TLS)", to.name()))
        }
        _ => io::Error::other(error),
    };
    let answer = sender.send_request(request).await.map_err(unanswered)?;
    let status = answer.status();
    let body =
        Limited::new(answer.into_body(), ANSWER_BYTES_MAX).collect().await.map_err(io::Error::other)?;
    driver.abort();
    Ok((status, String::from_utf8_lossy(&body.to_bytes()).into_owned()))
}
