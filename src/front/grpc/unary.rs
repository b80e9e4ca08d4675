//! One unary call of gRPC over HTTP/2: a length-prefixed message in, the seam, a length-prefixed message and trailers
//! out. Nothing but what `ShouldRateLimit` needs: no compression, no metadata, no streams.
//!
//! Holds at most one message of [`Bounds::request_bytes_max`](crate::front::Bounds) bytes a call, and refuses a larger
//! one as soon as its prefix is there.

use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use http::header::{ALLOW, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::{Frame, Incoming};

use crate::front::{Bounds, Refusal, RefusalCode, Seam};
use crate::metrics::Front;

/// How long a client may take to send one request. Whoever needs longer for a few hundred bytes is stuck or hostile.
const READ_TIMEOUT: Duration = Duration::from_secs(10);

/// Compressed flag and length, before every message.
const PREFIX_BYTES: usize = 5;

const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");

/// Why a call ends without an answer, in the terms of gRPC.
#[derive(Debug, PartialEq, Eq)]
struct Status {
    code: Code,
    message: String,
}

/// The codes of gRPC that occur here, with their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Code {
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    ResourceExhausted = 8,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
}

/// Answers one call of `ShouldRateLimit`.
pub(super) async fn respond(seam: &Seam, request: Request<Incoming>) -> Response<UnaryBody> {
    if let Some(response) = not_grpc(&request) {
        return response;
    }
    match answer(seam, request.into_body()).await {
        Ok(message) => answered(&message),
        Err(status) => refused(&status),
    }
}

async fn answer(seam: &Seam, body: Incoming) -> Result<Bytes, Status> {
    let message = tokio::time::timeout(READ_TIMEOUT, read(seam, body))
        .await
        .unwrap_or_else(|_| Err(Status::new(Code::DeadlineExceeded, "the request did not arrive in time")))?;
    Ok(seam.answer(Front::Grpc, &message)?.message)
}

/// Reads the one message of the call, to the end of the stream.
async fn read(seam: &Seam, mut body: Incoming) -> Result<Bytes, Status> {
    let mut partial = Partial::default();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Status::new(Code::Internal, error.to_string()))?;
        let Ok(data) = frame.into_data() else { break };
        partial.push(data, seam.bounds()).map_err(|problem| problem.into_status(seam))?;
    }
    partial.finish().map_err(|problem| problem.into_status(seam))
}

/// What has arrived of a message, its prefix included.
#[derive(Default)]
struct Partial {
    /// The first piece, which is nearly always all of it.
    first: Bytes,
    /// Everything, as soon as there is a second piece.
    all: BytesMut,
}

/// What can be wrong with the framing of a message.
#[derive(Debug, PartialEq, Eq)]
enum Problem {
    TooLarge(Refusal),
    Compressed,
    Missing,
    Incomplete,
    More,
}

impl Partial {
    fn push(&mut self, data: Bytes, bounds: &Bounds) -> Result<(), Problem> {
        if self.bytes().is_empty() {
            self.first = data;
        } else {
            if self.all.is_empty() {
                self.all.extend_from_slice(&self.first);
            }
            self.all.extend_from_slice(&data);
        }
        match self.message_bytes()? {
            Some(length) if length > bounds.request_bytes_max => {
                Err(Problem::TooLarge(Refusal::too_large(bounds)))
            }
            Some(length) if self.bytes().len() > PREFIX_BYTES + length => Err(Problem::More),
            _ => Ok(()),
        }
    }

    fn finish(mut self) -> Result<Bytes, Problem> {
        match self.message_bytes()? {
            None if self.bytes().is_empty() => Err(Problem::Missing),
            Some(length) if self.bytes().len() == PREFIX_BYTES + length => {
                let whole = if self.all.is_empty() { &mut self.first } else { &mut self.all.freeze() };
                Ok(whole.split_off(PREFIX_BYTES))
            }
            _ => Err(Problem::Incomplete),
        }
    }

    /// The length that the prefix announces, if all of the prefix is there.
    fn message_bytes(&self) -> Result<Option<usize>, Problem> {
        match *self.bytes() {
            [0, a, b, c, d, ..] => Ok(usize::try_from(u32::from_be_bytes([a, b, c, d])).ok()),
            [flag, ..] if flag != 0 => Err(Problem::Compressed),
            _ => Ok(None),
        }
    }

    fn bytes(&self) -> &[u8] {
        if self.all.is_empty() { &self.first } else { &self.all }
    }
}

impl Problem {
    fn into_status(self, seam: &Seam) -> Status {
        match self {
            Self::TooLarge(refusal) => seam.refuse(Front::Grpc, refusal).into(),
            Self::Compressed => Status::new(Code::Unimplemented, "compressed requests are not supported"),
            Self::Missing => Status::new(Code::Internal, "the call brought no message"),
            Self::Incomplete => Status::new(Code::Internal, "the call's message is not complete"),
            Self::More => Status::new(Code::Internal, "the call brought more than one message"),
        }
    }
}

/// What to say to a request that is not a gRPC call at all.
fn not_grpc(request: &Request<Incoming>) -> Option<Response<UnaryBody>> {
    let mut response = Response::new(UnaryBody::default());
    if request.method() != Method::POST {
        *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("POST"));
        return Some(response);
    }
    let content_type = request.headers().get(CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    match content_type.strip_prefix(GRPC.as_bytes()) {
        Some([] | [b'+' | b';', ..]) => None,
        _ => {
            *response.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
            Some(response)
        }
    }
}

fn answered(message: &Bytes) -> Response<UnaryBody> {
    let mut framed = BytesMut::with_capacity(PREFIX_BYTES + message.len());
    framed.put_u8(0);
    framed.put_u32(u32::try_from(message.len()).expect("an answer has a few bytes a descriptor"));
    framed.put_slice(message);
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert(GRPC_STATUS, HeaderValue::from_static("0"));
    let mut response = Response::new(UnaryBody { message: Some(framed.freeze()), trailers: Some(trailers) });
    response.headers_mut().insert(CONTENT_TYPE, GRPC);
    response
}

/// An answer of trailers only, which HTTP/2 sends as headers.
fn refused(status: &Status) -> Response<UnaryBody> {
    let mut response = Response::new(UnaryBody::default());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, GRPC);
    headers.insert(GRPC_STATUS, HeaderValue::from(status.code as u16));
    headers.insert(GRPC_MESSAGE, percent_encoded(&status.message));
    response
}

/// Printable ASCII as it is, everything else as `%XX`: the form that gRPC gives to messages.
fn percent_encoded(message: &str) -> HeaderValue {
    let mut encoded = String::with_capacity(message.len());
    for byte in message.bytes() {
        match byte {
            b' '..=b'~' if byte != b'%' => encoded.push(char::from(byte)),
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    HeaderValue::from_str(&encoded).expect("printable ASCII is a header value")
}

impl Status {
    fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        let code = match refusal.code {
            RefusalCode::InvalidArgument => Code::InvalidArgument,
            RefusalCode::ResourceExhausted => Code::ResourceExhausted,
            RefusalCode::Unavailable => Code::Unavailable,
        };
        Self { code, message: refusal.message }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds { descriptors_max: 1, entries_max: 1, request_bytes_max: 4 };

    fn read(pieces: &[&'static [u8]]) -> Result<Bytes, Problem> {
        let mut partial = Partial::default();
        for piece in pieces {
            partial.push(Bytes::from_static(piece), &BOUNDS)?;
        }
        partial.finish()
    }

    #[test]
    fn a_message_may_come_in_any_pieces() {
        let whole: &[u8] = b"\0\0\0\0\x04wave";
        assert_eq!(read(&[whole]).as_deref(), Ok(&b"wave"[..]));
        for cut in 0..=whole.len() {
            assert_eq!(read(&[&whole[..cut], b"", &whole[cut..]]).as_deref(), Ok(&b"wave"[..]), "{cut}");
        }
        let bytes: Vec<&[u8]> = whole.chunks(1).collect();
        assert_eq!(read(&bytes).as_deref(), Ok(&b"wave"[..]));
        assert_eq!(read(&[b"\0\0\0\0\0"]).as_deref(), Ok(&b""[..]));
    }

    #[test]
    fn framing_that_is_wrong_is_refused() {
        assert_eq!(read(&[]), Err(Problem::Missing));
        assert_eq!(read(&[b"\0\0"]), Err(Problem::Incomplete));
        assert_eq!(read(&[b"\0\0\0\0\x04wav"]), Err(Problem::Incomplete));
        assert_eq!(read(&[b"\0\0\0\0\x04wave", b"\0"]), Err(Problem::More));
        assert_eq!(read(&[b"\x01"]), Err(Problem::Compressed));
    }

    #[test]
    fn a_message_that_is_too_large_is_refused_by_its_prefix() {
        let too_large = Err(Problem::TooLarge(Refusal::too_large(&BOUNDS)));
        assert_eq!(read(&[b"\0\0\0\0", b"\x05"]), too_large);
        assert_eq!(read(&[b"\0\xff\xff\xff\xff"]), too_large);
    }

    #[test]
    fn messages_are_percent_encoded() {
        assert_eq!(percent_encoded("100% \u{e9}\n ok"), "100%25 %C3%A9%0A ok");
    }
}
