//! The meaning of a header block: of a request, or of its trailers. Fields in, in their order; a [`RequestHead`] out.

use std::time::Duration;

use super::field::{Meaning, Method, Route};

const METHOD: u8 = 1;
const SCHEME: u8 = 2;
const PATH: u8 = 4;
const AUTHORITY: u8 = 8;
/// A field that is no pseudo-header. No pseudo-header may follow it.
const REGULAR: u8 = 16;
const LENGTH: u8 = 32;

/// The meaning of a header block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestHead {
    seen: u8,
    malformed: bool,
    length: u64,
    pub method: Method,
    pub route: Route,
    /// Whether the content type is gRPC.
    pub is_grpc: bool,
    /// How long the caller waits.
    pub timeout: Option<Duration>,
    /// Bytes of all fields, each with the size of its entry (RFC 7541, 4.1).
    pub size: usize,
}

impl RequestHead {
    #[inline]
    pub(super) fn take(&mut self, meaning: &Meaning, size: usize) {
        self.size += size;
        match *meaning {
            Meaning::Method(method) => {
                self.method = method;
                return self.pseudo(METHOD);
            }
            Meaning::Path(route) => {
                self.route = route;
                return self.pseudo(PATH);
            }
            Meaning::Scheme => return self.pseudo(SCHEME),
            Meaning::Authority => return self.pseudo(AUTHORITY),
            Meaning::Nothing | Meaning::Kept(_) => {}
            Meaning::Malformed => self.malformed = true,
            Meaning::ContentType(is_grpc) => self.is_grpc = is_grpc,
            Meaning::Timeout(timeout) => self.timeout = timeout,
            Meaning::ContentLength(length) => {
                self.malformed |= self.seen & LENGTH != 0 && self.length != length;
                self.seen |= LENGTH;
                self.length = length;
            }
        }
        self.seen |= REGULAR;
    }

    /// Each pseudo-header may occur once, and only before all other fields.
    #[inline]
    fn pseudo(&mut self, bit: u8) {
        self.malformed |= self.seen & (bit | REGULAR) != 0;
        self.seen |= bit;
    }

    /// Whether it is a well-formed request (RFC 9113, 8.3.1). CONNECT, which has no path, is not served.
    pub fn is_request(&self) -> bool {
        !self.malformed && self.seen & (METHOD | SCHEME | PATH) == METHOD | SCHEME | PATH
    }

    /// Whether it is well-formed as the trailers of a request.
    pub fn is_trailers(&self) -> bool {
        !self.malformed && self.seen & (METHOD | SCHEME | PATH | AUTHORITY) == 0
    }

    /// The announced length of the body.
    pub fn content_length(&self) -> Option<u64> {
        (self.seen & LENGTH != 0).then_some(self.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(meanings: &[Meaning]) -> RequestHead {
        let mut head = RequestHead::default();
        meanings.iter().for_each(|meaning| head.take(meaning, 40));
        head
    }

    const POST: Meaning = Meaning::Method(Method::Post);
    const PATH_: Meaning = Meaning::Path(Route::Known(0));

    #[test]
    fn a_request_has_each_pseudo_header_once_and_first() {
        let good = [POST, Meaning::Scheme, PATH_, Meaning::Authority, Meaning::ContentLength(5)];
        assert!(head(&good).is_request());
        assert_eq!((head(&good).content_length(), head(&good).size), (Some(5), 200));
        assert!(head(&good[..3]).is_request(), "an authority is not needed");
        for missing in 0..3 {
            let mut bad = good.to_vec();
            bad.remove(missing);
            assert!(!head(&bad).is_request(), "{missing}");
        }
        assert!(!head(&[POST, POST, Meaning::Scheme, PATH_]).is_request());
        assert!(!head(&[POST, Meaning::Scheme, Meaning::Nothing, PATH_]).is_request());
        assert!(!head(&[POST, Meaning::Scheme, PATH_, Meaning::Malformed]).is_request());
        let twice = |other| {
            head(&[POST, Meaning::Scheme, PATH_, Meaning::ContentLength(5), Meaning::ContentLength(other)])
        };
        assert!(twice(5).is_request() && !twice(6).is_request());
    }

    #[test]
    fn trailers_have_no_pseudo_headers() {
        assert!(head(&[]).is_trailers() && head(&[Meaning::Nothing]).is_trailers());
        assert!(!head(&[Meaning::Malformed]).is_trailers());
        for pseudo in [POST, Meaning::Scheme, PATH_, Meaning::Authority] {
            assert!(!head(&[pseudo]).is_trailers());
        }
    }
}
