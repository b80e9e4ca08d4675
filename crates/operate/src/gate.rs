//! Who may change state through the debug port: bearers of the admin token, clients whose certificate has the right
//! name, and clients on this machine that are not a web page. Also which web pages may show the state. In: the peer
//! and its request. Out: whether it may, and if not, why.
//!
//! A page in a browser on this machine connects from loopback as well. But the request of a browser names the page's
//! origin, and a page whose own name was made to resolve to us (DNS rebinding) has that name as the host. The token
//! needs no such check, because no page has it. A browser presents its certificate for requests of any page, so the
//! origin has to be ours; the browser has compared the name of the host with our own certificate.

mod guesses;
mod hosts;
mod token;

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use http::header::{AUTHORIZATION, ORIGIN};
use http::{HeaderMap, HeaderName, Uri};

use self::guesses::Guesses;
pub use self::hosts::Hosts;
use self::hosts::hosts;
pub use self::token::{AdminToken, TokenError};
use crate::peer::Peer;
use tidegate_serve::clock::monotonic;

const STRANGER: &str = "only from loopback, or with the admin token\n";
const OTHER_ORIGIN: &str = "the Origin header names another host\n";

/// The scheme of the token, which precedes it.
const BEARER: &[u8] = b"Bearer ";

/// The header in which browsers say where a request comes from.
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Why a request may not use the admin API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoBearer {
    /// There is no token, and no name for certificates.
    #[error(
        "the admin API needs a token (ADMIN_TOKEN, ADMIN_TOKEN_FILE) or a name in ADMIN_TLS_SAN; neither is set"
    )]
    NoToken,
    /// It has no token, and no certificate with the right name.
    #[error(
        "only with the admin token, and none came (expected `Authorization: Bearer` and ADMIN_TOKEN, or what is in \
         ADMIN_TOKEN_FILE), or with a certificate of ADMIN_TLS_SAN"
    )]
    Stranger,
    /// It has another token.
    #[error(
        "this is not the admin token (expected the one in ADMIN_TOKEN or ADMIN_TOKEN_FILE of this limiter)"
    )]
    WrongToken,
    /// Its address has sent too many wrong tokens.
    #[error("too many wrong tokens came from this address (expected a few seconds without one)")]
    Guesses,
    /// It comes from a page of another origin.
    #[error("the Origin header names another host")]
    OtherOrigin,
}

/// Admits requests that may change state. Clones share everything.
#[derive(Clone)]
pub struct Gate {
    hosts: Hosts,
    token: Arc<ArcSwapOption<AdminToken>>,
    /// Names in client certificates that are as good as the token.
    names: Arc<[String]>,
    guesses: Arc<Guesses>,
}

/// Who reads the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// Anybody who reaches the port.
    Anybody,
    /// A bearer of the admin token or of a certificate, who may see values of requests.
    Bearer,
}

/// The token of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Borne {
    /// Nothing.
    Nothing,
    Right,
    Wrong,
    /// Not checked, because there were too many wrong ones.
    Unseen,
}

impl Gate {
    /// A gate for a port with these names. Bearers of `token` may pass from anywhere.
    #[must_use]
    pub fn new(hosts: Hosts, token: Option<AdminToken>) -> Self {
        let token = Arc::new(ArcSwapOption::from_pointee(token));
        Self { hosts, token, names: Arc::default(), guesses: Arc::default() }
    }

    /// From now on, bearers of this token may pass, and those of the previous one may not. Holds for all clones.
    pub fn replace_token(&self, token: AdminToken) {
        self.token.store(Some(Arc::new(token)));
    }

    /// Clients whose certificate has one of these names may do the same as bearers of the token.
    #[must_use]
    pub fn with_names(self, names: &[String]) -> Self {
        Self { names: names.into(), ..self }
    }

    /// Whether a request may change state.
    /// Fails with the reason, a line of text.
    pub fn admit(&self, peer: &Peer, uri: &Uri, headers: &HeaderMap) -> Result<(), &'static str> {
        if self.borne(peer, headers) == Borne::Right {
            return Ok(());
        }
        if self.name_of(peer).is_some() {
            return if is_own_page(uri, headers) { Ok(()) } else { Err(OTHER_ORIGIN) };
        }
        if !peer.address.is_some_and(|address| address.ip().to_canonical().is_loopback()) {
            return Err(STRANGER);
        }
        self.admit_page(uri, headers)
    }

    /// Whether a request may read the state: it comes from no browser, or from a page of this port. A page of another
    /// origin never sees the answer anyway, unless its own name resolves to us.
    /// Fails with the reason, a line of text.
    pub fn admit_reader(&self, peer: &Peer, uri: &Uri, headers: &HeaderMap) -> Result<Reader, &'static str> {
        let (borne, name) = (self.borne(peer, headers), self.name_of(peer));
        if borne == Borne::Right {
            return Ok(Reader::Bearer);
        }
        if name.is_none() {
            self.admit_page(uri, headers)?;
        }
        match (is_own_page(uri, headers), borne, name) {
            (false, ..) => Err(OTHER_ORIGIN),
            (true, Borne::Nothing, Some(_)) => Ok(Reader::Bearer),
            (true, ..) => Ok(Reader::Anybody),
        }
    }

    /// The names by which browsers may open the pages.
    pub fn hosts(&self) -> &Hosts {
        &self.hosts
    }

    /// If a page makes the request: whether it is a page of this port.
    fn admit_page(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), &'static str> {
        self.hosts.admit(uri, headers)?;
        if is_same_origin(uri, headers) { Ok(()) } else { Err(OTHER_ORIGIN) }
    }

    /// Whether a request may use the admin API: it has the token or a certificate, and comes from no page of another
    /// origin. Returns the name in the certificate, if the certificate is what admits it.
    /// Fails with the reason.
    pub fn admit_bearer(
        &self,
        peer: &Peer,
        uri: &Uri,
        headers: &HeaderMap,
    ) -> Result<Option<&str>, NoBearer> {
        if self.token.load().is_none() && self.names.is_empty() {
            return Err(NoBearer::NoToken);
        }
        let name = match (self.borne(peer, headers), self.name_of(peer)) {
            (Borne::Right, _) => None,
            // A wrong token is refused even with a good certificate: its sender is mistaken about something.
            (Borne::Nothing, Some(name)) => Some(name),
            (Borne::Unseen, _) => return Err(NoBearer::Guesses),
            (Borne::Wrong, _) => return Err(NoBearer::WrongToken),
            (Borne::Nothing, None) => return Err(NoBearer::Stranger),
        };
        let is_own = if name.is_some() { is_own_page(uri, headers) } else { is_same_origin(uri, headers) };
        if is_own { Ok(name) } else { Err(NoBearer::OtherOrigin) }
    }

    /// The token of a request. A wrong one is remembered, so call this once for each request.
    fn borne(&self, peer: &Peer, headers: &HeaderMap) -> Borne {
        // Credentials of another scheme are meant for a proxy, and are no guess.
        let (Some(token), Some(_)) = (&*self.token.load(), borne_by(headers)) else {
            return Borne::Nothing;
        };
        let (from, now) = (peer.address.map(|address| address.ip()), monotonic());
        match self.guesses.may(from, now).then(|| bears(headers, token.as_str())) {
            Some(true) => Borne::Right,
            Some(false) => {
                self.guesses.note(from, now);
                Borne::Wrong
            }
            None => Borne::Unseen,
        }
    }

    /// The name that makes a client's certificate as good as the token.
    fn name_of(&self, peer: &Peer) -> Option<&str> {
        let certificate = peer.certificate.as_ref()?;
        self.names.iter().map(String::as_str).find(|name| certificate.carries(name))
    }
}

/// Whether a request does not come from a page of another origin.
fn is_same_origin(uri: &Uri, headers: &HeaderMap) -> bool {
    let is_same = |origin: &[u8]| {
        let origin = origin.strip_prefix(b"http://").or_else(|| origin.strip_prefix(b"https://"));
        let host = hosts(uri, headers).next();
        origin.is_some_and(|origin| host.is_some_and(|host| host.eq_ignore_ascii_case(origin)))
    };
    headers.get_all(ORIGIN).iter().all(|origin| is_same(origin.as_bytes()))
}

/// Whether a request comes from no page, or from one of this port: some requests of pages name no origin, but the
/// site.
fn is_own_page(uri: &Uri, headers: &HeaderMap) -> bool {
    let is_own = |site: &[u8]| matches!(site, b"same-origin" | b"none");
    is_same_origin(uri, headers) && headers.get_all(SEC_FETCH_SITE).iter().all(|site| is_own(site.as_bytes()))
}

/// The token of a request, right or wrong. The name of the scheme may be in lower case.
fn borne_by(headers: &HeaderMap) -> Option<&[u8]> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.as_bytes().split_at_checked(BEARER.len())?;
    scheme.eq_ignore_ascii_case(BEARER).then_some(token)
}

/// Compares all bytes, whatever they are, so that the time it takes reveals nothing of the token.
fn bears(headers: &HeaderMap, token: &str) -> bool {
    borne_by(headers).is_some_and(|borne| {
        let differing = borne.iter().zip(token.as_bytes()).fold(0, |all, (a, b)| all | (a ^ b));
        borne.len() == token.len() && differing == 0
    })
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use http::header::HOST;

    use super::hosts::OTHER_HOST;
    use super::*;

    const LOOPBACK: &str = "127.0.0.1:1";

    fn gate(host: &str, token: Option<&str>) -> Gate {
        let token = token.map(|token| AdminToken::parse(token).expect("a token"));
        Gate::new(Hosts::new(host, &[]), token)
    }

    fn peer(address: &str) -> Peer {
        Peer::at(address.parse().expect("an address"))
    }

    fn admit(gate: &Gate, peer: &str, headers: &[(HeaderName, &'static str)]) -> Result<(), &'static str> {
        let headers = headers.iter().cloned().map(|(name, value)| (name, HeaderValue::from_static(value)));
        gate.admit(&self::peer(peer), &Uri::from_static("/logging"), &headers.collect())
    }

    fn may(peer: &str, authorization: Option<&'static str>, token: Option<&str>) -> bool {
        let headers: Vec<_> = authorization.map(|value| (AUTHORIZATION, value)).into_iter().collect();
        admit(&gate("0.0.0.0", token), peer, &headers).is_ok()
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
            assert!(!may(peer, Some("Bearer "), Some("open")), "{peer}");
            for scheme in ["bearer open", "BEARER open"] {
                assert!(may(peer, Some(scheme), Some("open")), "{peer} {scheme}");
            }
            assert!(!may(peer, Some("Bearer open"), None), "{peer}");
        }
    }

    #[test]
    fn a_new_token_is_in_force_for_all_clones() {
        let gate = gate("0.0.0.0", None);
        let clone = gate.clone();
        let may = |token| admit(&clone, "10.0.0.1:1", &[(AUTHORIZATION, token)]).is_ok();
        for (new, other) in [("Bearer one", "Bearer two"), ("Bearer two", "Bearer one")] {
            gate.replace_token(AdminToken::parse(&new[7..]).expect("a token"));
            assert!(may(new) && !may(other), "{new}");
        }
    }

    #[test]
    fn a_web_page_may_not_change_state() {
        let gate = gate("limiter.internal", Some("open"));
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
        let (gate, peer) = (gate("0.0.0.0", None), peer(LOOPBACK));
        let admit = |uri| gate.admit(&peer, &Uri::from_static(uri), &HeaderMap::new());
        assert_eq!(admit("http://localhost:6070/logging"), Ok(()));
        assert_eq!(admit("http://evil.example:6070/logging"), Err(OTHER_HOST));
    }

    #[test]
    fn only_a_page_of_this_port_may_show_the_state() {
        let gate = gate("limiter.internal", Some("open"));
        let read = |headers: &[(HeaderName, &'static str)]| {
            let headers = headers.iter().cloned();
            let headers = headers.map(|(name, value)| (name, HeaderValue::from_static(value))).collect();
            gate.admit_reader(&peer("10.0.0.1:1"), &Uri::from_static("/status"), &headers)
        };
        let own = (HOST, "10.0.0.1:6070");
        for site in ["same-origin", "none"] {
            assert_eq!(read(&[own.clone(), (SEC_FETCH_SITE, site)]), Ok(Reader::Anybody), "{site}");
        }
        for site in ["cross-site", "same-site", ""] {
            assert_eq!(read(&[own.clone(), (SEC_FETCH_SITE, site)]), Err(OTHER_ORIGIN), "{site}");
        }
        assert_eq!(read(&[own.clone(), (ORIGIN, "http://10.0.0.1:6070")]), Ok(Reader::Anybody));
        assert_eq!(read(&[own.clone(), (ORIGIN, "http://evil.example")]), Err(OTHER_ORIGIN));
        assert_eq!(read(&[(HOST, "evil.example:6070")]), Err(OTHER_HOST));
        assert_eq!(read(&[(HOST, "evil.example:6070"), (AUTHORIZATION, "Bearer open")]), Ok(Reader::Bearer));
        assert_eq!(read(&[own, (AUTHORIZATION, "Bearer shut")]), Ok(Reader::Anybody));
        assert_eq!(read(&[]), Ok(Reader::Anybody), "no browser sends that");
    }

    #[test]
    fn after_many_wrong_tokens_not_even_the_right_one_is_looked_at() {
        let gate = gate("0.0.0.0", Some("open"));
        let from = |address: &str, token| admit(&gate, address, &[(AUTHORIZATION, token)]);
        for _ in 0..20 {
            assert_eq!(from("10.0.0.1:1", "Bearer shut"), Err(STRANGER));
        }
        assert_eq!(from("10.0.0.1:2", "Bearer open"), Err(STRANGER), "whatever its port");
        assert_eq!(from("10.0.0.2:1", "Bearer open"), Ok(()), "others are not held up");
        for _ in 0..20 {
            assert_eq!(from("10.0.0.3:1", "Basic b3Blbg=="), Err(STRANGER));
        }
        assert_eq!(from("10.0.0.3:1", "Bearer open"), Ok(()), "the other scheme is no guess");
        let headers = HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_static("Bearer open"))]);
        let uri = Uri::from_static("/admin/audit");
        assert_eq!(gate.admit_bearer(&peer("10.0.0.1:1"), &uri, &headers), Err(NoBearer::Guesses));
    }
}
