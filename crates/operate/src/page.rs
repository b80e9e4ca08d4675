//! Requests and responses of an HTTP port: bodies within bounds, and pages, rendered at once or while they are sent.

use std::convert::Infallible;
use std::error::Error;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE};
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::{Body, Frame, Incoming, SizeHint};

use crate::peer::Peer;
use tidegate_serve::refusal::{Bounds, Refusal, RefusalCode};

/// How long a client may take to send one body.
const BODY_READ_TIMEOUT: Duration = Duration::from_secs(10);

/// A response over HTTP.
pub type Page = Response<PageBody>;

/// The body of a [`Page`].
pub struct PageBody(Content);

enum Content {
    Whole(Bytes),
    Pieces {
        pieces: Box<dyn Iterator<Item = String> + Send>,
        rested: bool,
        /// The last byte of the piece before. It is sent separately: hyper drops a chunk once its first byte may be
        /// sent, and then nobody knows whether the client takes the rest.
        last: Bytes,
    },
}

/// The content type of a text.
pub const TEXT: &str = "text/plain; charset=utf-8";
/// The content type of JSON.
pub const JSON: &str = "application/json";

/// A page without a body.
pub fn empty(status: StatusCode) -> Page {
    let mut page = Response::new(PageBody(Content::Whole(Bytes::new())));
    *page.status_mut() = status;
    page
}

/// A page of text.
pub fn text(status: StatusCode, body: impl Into<Bytes>) -> Page {
    page(status, TEXT, body)
}

/// A page.
pub fn page(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Page {
    respond(status, content_type, Content::Whole(body.into()))
}

/// A page that is never in memory completely: a piece is rendered when the previous one is being sent.
pub fn pieces(content_type: &'static str, pieces: impl Iterator<Item = String> + Send + 'static) -> Page {
    let content = Content::Pieces { pieces: Box::new(pieces), rested: true, last: Bytes::new() };
    respond(StatusCode::OK, content_type, content)
}

/// The response to a method that a path does not have.
pub fn not_allowed(methods: &str) -> Page {
    let mut page = text(StatusCode::METHOD_NOT_ALLOWED, format!("only {methods}\n"));
    let methods = HeaderValue::from_str(methods).expect("names of methods are good headers");
    page.headers_mut().insert(ALLOW, methods);
    page
}

fn respond(status: StatusCode, content_type: &'static str, content: Content) -> Page {
    let mut page = Response::new(PageBody(content));
    *page.status_mut() = status;
    page.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    page
}

impl Body for PageBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let next = match &mut self.0 {
            Content::Whole(bytes) => Some(std::mem::take(bytes)).filter(|bytes| !bytes.is_empty()),
            Content::Pieces { last, .. } if !last.is_empty() => Some(std::mem::take(last)),
            Content::Pieces { pieces, rested, last } => {
                *rested = !*rested;
                if *rested {
                    // Between two pieces this thread runs its other tasks. So do workers on the same core: without
                    // the yield, the kernel would let them wait for its next tick.
                    std::thread::yield_now();
                    context.waker().wake_by_ref();
                    return Poll::Pending;
                }
                pieces.next().map(|piece| {
                    let mut piece = Bytes::from(piece);
                    *last = piece.split_off(piece.len().saturating_sub(1));
                    piece
                })
            }
        };
        Poll::Ready(next.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(&self.0, Content::Whole(bytes) if bytes.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Content::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Content::Pieces { .. } => SizeHint::default(),
        }
    }
}

/// A parameter of a query, not decoded: no value here needs encoding.
pub fn parameter<'q>(query: &'q str, name: &str) -> Option<&'q str> {
    query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
}

/// Answers requests on an HTTP port.
pub trait Respond: Clone + Send + Sync + 'static {
    /// Answers one request of this client.
    fn respond(&self, request: Request<Incoming>, peer: &Peer) -> impl Future<Output = Page> + Send;
}

/// Reads a body that is within `bounds`, for at most ten seconds.
/// Fails when it is too large, comes too late, or breaks off.
pub async fn read_body<B>(body: B, bounds: &Bounds) -> Result<Bytes, Refusal>
where
    B: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>>,
{
    let read = Limited::new(body, bounds.request_bytes_max).collect();
    match tokio::time::timeout(BODY_READ_TIMEOUT, read).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(Refusal::too_large(bounds)),
        Ok(Err(error)) => Err(Refusal::invalid(error.to_string())),
        Err(_) => Err(Refusal::late("the body did not arrive in time")),
    }
}

/// The form of a refusal over HTTP.
pub fn refused(refusal: &Refusal) -> Page {
    text(status_of(refusal), format!("{refusal}\n"))
}

/// The status of a refusal.
pub fn status_of(refusal: &Refusal) -> StatusCode {
    match refusal.code {
        RefusalCode::InvalidArgument | RefusalCode::Unimplemented => StatusCode::BAD_REQUEST,
        RefusalCode::DeadlineExceeded => StatusCode::REQUEST_TIMEOUT,
        RefusalCode::ResourceExhausted => StatusCode::PAYLOAD_TOO_LARGE,
        RefusalCode::Unavailable | RefusalCode::StoreFailure => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

#[cfg(test)]
mod tests {
    use futures_util::stream;
    use http_body_util::{Empty, Full, StreamBody};

    use super::*;

    /// The bytes of each frame.
    async fn frames(mut body: PageBody) -> Vec<String> {
        let mut frames = Vec::new();
        while let Some(frame) = body.frame().await {
            let data = frame.expect("infallible").into_data().expect("there are no trailers");
            frames.push(String::from_utf8(data.to_vec()).expect("text"));
            assert!(frames.len() < 10, "it ends");
        }
        frames
    }

    #[tokio::test]
    async fn a_page_says_how_long_it_is_and_one_in_pieces_does_not() {
        let whole = text(StatusCode::OK, "abc").into_body();
        assert_eq!((whole.size_hint().exact(), whole.is_end_stream()), (Some(3), false));
        assert_eq!(frames(whole).await, ["abc"]);
        let none = empty(StatusCode::OK).into_body();
        assert_eq!((none.size_hint().exact(), none.is_end_stream()), (Some(0), true));
        assert_eq!(frames(none).await, [""; 0]);
        let parts = pieces(TEXT, ["abc\n", "d\n"].map(str::to_owned).into_iter()).into_body();
        assert_eq!((parts.size_hint().exact(), parts.is_end_stream()), (None, false));
        assert_eq!(frames(parts).await, ["abc", "\n", "d", "\n"]);
    }

    /// The clock of the runtime is paused: pauses pass at once.
    #[tokio::test(start_paused = true)]
    async fn a_body_that_is_too_large_or_late_or_breaks_off_is_refused() {
        let bounds = Bounds { request_bytes_max: 3, ..Bounds::default() };
        let read = |text: &'static str| read_body(Full::new(Bytes::from(text)), &bounds);
        assert_eq!(read("abc").await.ok().as_deref(), Some(&b"abc"[..]));
        assert_eq!(
            read("abcd").await.err().map(|refusal| refusal.code),
            Some(RefusalCode::ResourceExhausted)
        );
        let broken = stream::iter([Err::<Frame<Bytes>, _>(std::io::Error::other("broke off"))]);
        let refusal = read_body(StreamBody::new(broken), &bounds).await.expect_err("broken");
        assert_eq!((refusal.code, &*refusal.message), (RefusalCode::InvalidArgument, "broke off"));
        let silent = StreamBody::new(stream::pending::<Result<Frame<Bytes>, Infallible>>());
        let refusal = read_body(silent, &bounds).await.expect_err("silent");
        assert_eq!(refusal.code, RefusalCode::DeadlineExceeded);
        assert_eq!(read_body(Empty::<Bytes>::new(), &bounds).await.ok(), Some(Bytes::new()));
    }

    #[test]
    fn a_parameter_is_found_by_its_complete_name() {
        let found = |name| parameter("a=1&ab=2&c&d=", name);
        assert_eq!([found("a"), found("ab"), found("d")], [Some("1"), Some("2"), Some("")]);
        assert_eq!([found("b"), found("c"), found("")], [None; 3]);
    }

    #[test]
    fn each_refusal_has_its_status() {
        for (code, status) in [
            (RefusalCode::InvalidArgument, 400),
            (RefusalCode::Unimplemented, 400),
            (RefusalCode::DeadlineExceeded, 408),
            (RefusalCode::ResourceExhausted, 413),
            (RefusalCode::Unavailable, 500),
            (RefusalCode::StoreFailure, 500),
        ] {
            let refusal = Refusal { code, message: String::new() };
            assert_eq!(refused(&refusal).status().as_u16(), status, "{refusal:?}");
        }
    }
}
