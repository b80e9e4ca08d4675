//! Who may change state through the debug port: bearers of the admin token, and clients on this machine that are no web
//! page. And whose pages may show the state. In: the peer and its request. Out: whether it may, and if not, why.
//!
//! A page in a browser on this machine comes from loopback as well. The browser gives it away: the request names the
//! page's origin, and a page that got here by a name of its own (DNS rebinding) has that name as the host. The token
//! needs no such check, because no page has it.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use http::header::{AUTHORIZATION, HOST, ORIGIN};
use http::uri::Authority;
use http::{HeaderMap, HeaderName, Uri};

const STRANGER: &str = "only from loopback, or with the admin token\n";
const OTHER_HOST: &str = "the Host is neither an address, localhost, nor DEBUG_HOST\n";
const OTHER_ORIGIN: &str = "the Origin is another than this host\n";

/// The header in which browsers tell where a request comes from.
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Why a request may not use the admin API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoBearer {
    /// There is no token that anybody could bear.
    #[error("the admin API needs ADMIN_TOKEN, which is not set")]
    NoToken,
    /// It bears no token, or another one.
    #[error("only with the admin token (expected `Authorization: Bearer` and ADMIN_TOKEN)")]
    Stranger,
    /// It comes from a page of another origin.
    #[error("the Origin is another than this host")]
    OtherOrigin,
}

/// Admits requests that may change state. Clones share everything.
#[derive(Clone)]
pub struct Gate {
    /// The host that the port listens on, which may be a name.
    host: Arc<str>,
    token: Option<Arc<str>>,
}

impl Gate {
    /// A gate for a port that listens on `host`. Bearers of `token` may pass from anywhere.
    #[must_use]
    pub fn new(host: &str, token: Option<&str>) -> Self {
        Self { host: host.into(), token: token.map(Arc::from) }
    }

    /// Whether a request may change state.
    ///
    /// # Errors
    /// Why it may not, as a line of text.
    pub fn admit(
        &self,
        peer: Option<SocketAddr>,
        uri: &Uri,
        headers: &HeaderMap,
    ) -> Result<(), &'static str> {
        if self.token.as_deref().is_some_and(|token| bears(headers, token)) {
            return Ok(());
        }
        if !peer.is_some_and(|peer| peer.ip().to_canonical().is_loopback()) {
            return Err(STRANGER);
        }
        self.admit_page(uri, headers)
    }

    /// Whether a request may read the state: it comes from no browser, or from a page of this port. A page of another
    /// origin never sees the answer anyway, unless it got here by a name of its own.
    ///
    /// # Errors
    /// Why it may not, as a line of text.
    pub fn admit_reader(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), &'static str> {
        if self.token.as_deref().is_some_and(|token| bears(headers, token)) {
            return Ok(());
        }
        self.admit_page(uri, headers)?;
        let is_own = |site: &[u8]| matches!(site, b"same-origin" | b"none");
        match headers.get_all(SEC_FETCH_SITE).iter().all(|site| is_own(site.as_bytes())) {
            true => Ok(()),
            false => Err(OTHER_ORIGIN),
        }
    }

    /// Whether a request calls this port by a name that cannot be somebody else's.
    ///
    /// # Errors
    /// A line of text, if not.
    pub fn admit_host(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), &'static str> {
        if hosts(uri, headers).all(|host| self.is_own(host)) { Ok(()) } else { Err(OTHER_HOST) }
    }

    /// Whether the page that makes a request, if one does, is of this port.
    fn admit_page(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), &'static str> {
        self.admit_host(uri, headers)?;
        if is_same_origin(uri, headers) { Ok(()) } else { Err(OTHER_ORIGIN) }
    }

    /// Whether a request may use the admin API: a bearer of the token, and no page of another origin.
    ///
    /// # Errors
    /// Why it may not.
    pub fn admit_bearer(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), NoBearer> {
        let token = self.token.as_deref().filter(|token| !token.is_empty()).ok_or(NoBearer::NoToken)?;
        if !bears(headers, token) {
            return Err(NoBearer::Stranger);
        }
        if is_same_origin(uri, headers) { Ok(()) } else { Err(NoBearer::OtherOrigin) }
    }

    /// Whether nobody else's name server can make this name point here.
    fn is_own(&self, host: &[u8]) -> bool {
        let Ok(authority) = Authority::try_from(host) else { return false };
        let name = authority.host();
        let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
        address.parse::<IpAddr>().is_ok()
            || name.eq_ignore_ascii_case("localhost")
            || name.eq_ignore_ascii_case(&self.host)
    }
}

/// The hosts that a request names. HTTP/2 has the host in the URI.
fn hosts<'r>(uri: &'r Uri, headers: &'r HeaderMap) -> impl Iterator<Item = &'r [u8]> {
    let host = uri.authority().map(|authority| authority.as_str().as_bytes());
    host.into_iter().chain(headers.get_all(HOST).iter().map(|host| host.as_bytes()))
}

/// Whether a request comes from no page of another origin.
fn is_same_origin(uri: &Uri, headers: &HeaderMap) -> bool {
    let is_same = |origin: &[u8]| {
        let origin = origin.strip_prefix(b"http://").or_else(|| origin.strip_prefix(b"https://"));
        let host = hosts(uri, headers).next();
        origin.is_some_and(|origin| host.is_some_and(|host| host.eq_ignore_ascii_case(origin)))
    };
    headers.get_all(ORIGIN).iter().all(|origin| is_same(origin.as_bytes()))
}

/// Compares all bytes, whatever they are, so that the time it takes reveals nothing of the token.
fn bears(headers: &HeaderMap, token: &str) -> bool {
    let borne = headers.get(AUTHORIZATION).and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
    borne.is_some_and(|borne| {
        let differing = borne.iter().zip(token.as_bytes()).fold(0, |all, (a, b)| all | (a ^ b));
        !token.is_empty() && borne.len() == token.len() && differing == 0
    })
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    const LOOPBACK: &str = "127.0.0.1:1";

    fn admit(gate: &Gate, peer: &str, headers: &[(HeaderName, &'static str)]) -> Result<(), &'static str> {
        let headers = headers.iter().cloned().map(|(name, value)| (name, HeaderValue::from_static(value)));
        gate.admit(Some(peer.parse().expect("an address")), &Uri::from_static("/logging"), &headers.collect())
    }

    fn may(peer: &str, authorization: Option<&'static str>, token: Option<&str>) -> bool {
        let headers: Vec<_> = authorization.map(|value| (AUTHORIZATION, value)).into_iter().collect();
        admit(&Gate::new("0.0.0.0", token), peer, &headers).is_ok()
    }

    #[test]
    fn loopback_may_change_state() {
        for peer in [LOOPBACK, "127.9.9.9:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
            assert!(may(peer, None, None), "{peer}");
        }
    }

    #[test]
    fn others_need_the_token_and_there_may_be_none() {
        for peer in ["10.0.0.1:1", "[2001:db8::1]:1", "[::ffff:10.0.0.1]:1"] {
            assert!(may(peer, Some("Bearer open"), Some("open")), "{peer}");
            for wrong in [None, Some("open"), Some("Bearer ope"), Some("Bearer opened"), Some("Bearer Open")]
            {
                assert!(!may(peer, wrong, Some("open")), "{peer} {wrong:?}");
            }
            assert!(!may(peer, Some("Bearer "), Some("")), "{peer}");
            assert!(!may(peer, Some("Bearer open"), None), "{peer}");
        }
    }

    #[test]
    fn a_web_page_may_not_change_state() {
        let gate = Gate::new("limiter.internal", Some("open"));
        let page = |host, origin| admit(&gate, LOOPBACK, &[(HOST, host), (ORIGIN, origin)]);
        for host in ["127.0.0.1:6070", "[::1]:6070", "localhost:6070", "LocalHost", "limiter.internal:6070"] {
            assert_eq!(admit(&gate, LOOPBACK, &[(HOST, host)]), Ok(()), "{host}");
            for origin in ["http://evil.example", "null", "", "http://localhost:1", "http://127.0.0.1:8080"] {
                assert_eq!(page(host, origin), Err(OTHER_ORIGIN), "{host} {origin}");
            }
        }
        assert_eq!(page("127.0.0.1:6070", "http://127.0.0.1:6070"), Ok(()));
        assert_eq!(page("localhost:6070", "http://LOCALHOST:6070"), Ok(()));
        assert_eq!(admit(&gate, LOOPBACK, &[(ORIGIN, "http://evil.example")]), Err(OTHER_ORIGIN));
        // A foreign name that points here: page and port then have one origin.
        for host in ["evil.example:6070", "localhost.evil.example", "127.0.0.1.evil.example", "a b", ""] {
            assert_eq!(admit(&gate, LOOPBACK, &[(HOST, host)]), Err(OTHER_HOST), "{host}");
        }
        assert_eq!(page("evil.example:6070", "http://evil.example:6070"), Err(OTHER_HOST));
        assert_eq!(admit(&gate, LOOPBACK, &[(HOST, "localhost"), (HOST, "evil.example")]), Err(OTHER_HOST));
        // No page has the token.
        let borne = (AUTHORIZATION, "Bearer open");
        assert_eq!(admit(&gate, "10.0.0.1:1", &[borne, (HOST, "any.name")]), Ok(()));
    }

    #[test]
    fn http_2_has_its_host_in_the_uri() {
        let (gate, peer) = (Gate::new("0.0.0.0", None), LOOPBACK.parse().ok());
        let admit = |uri| gate.admit(peer, &Uri::from_static(uri), &HeaderMap::new());
        assert_eq!(admit("http://localhost:6070/logging"), Ok(()));
        assert_eq!(admit("http://evil.example:6070/logging"), Err(OTHER_HOST));
    }

    #[test]
    fn only_a_page_of_this_port_may_show_the_state() {
        let gate = Gate::new("limiter.internal", Some("open"));
        let read = |headers: &[(HeaderName, &'static str)]| {
            let headers = headers.iter().cloned();
            let headers = headers.map(|(name, value)| (name, HeaderValue::from_static(value))).collect();
            gate.admit_reader(&Uri::from_static("/status"), &headers)
        };
        let own = (HOST, "10.0.0.1:6070");
        for site in ["same-origin", "none"] {
            assert_eq!(read(&[own.clone(), (SEC_FETCH_SITE, site)]), Ok(()), "{site}");
        }
        for site in ["cross-site", "same-site", ""] {
            assert_eq!(read(&[own.clone(), (SEC_FETCH_SITE, site)]), Err(OTHER_ORIGIN), "{site}");
        }
        assert_eq!(read(&[own.clone(), (ORIGIN, "http://10.0.0.1:6070")]), Ok(()));
        assert_eq!(read(&[own, (ORIGIN, "http://evil.example")]), Err(OTHER_ORIGIN));
        assert_eq!(read(&[(HOST, "evil.example:6070")]), Err(OTHER_HOST));
        assert_eq!(read(&[(HOST, "evil.example:6070"), (AUTHORIZATION, "Bearer open")]), Ok(()));
        assert_eq!(read(&[]), Ok(()), "no browser sends that");
    }
}
