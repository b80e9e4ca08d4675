//! The names by which a browser may open the pages of a port. In: a request. Out: whether it may be answered.
//!
//! A web page whose own name resolves to us (DNS rebinding) has the same origin as our pages, and could read all of
//! them. It cannot choose the Host, which is that name. So browsers are answered only if the Host is a name that
//! nobody else can make resolve to us. Programs, which run no foreign scripts, may use any name.

use std::net::IpAddr;
use std::sync::Arc;

use http::header::{HOST, ORIGIN, USER_AGENT};
use http::uri::Authority;
use http::{HeaderMap, Uri};

pub(super) const OTHER_HOST: &str = "the Host is neither an address, localhost, the host that this port listens on, nor in PAGE_HOSTS \
     (expected one of these from a browser)\n";

/// The headers in which browsers describe a request begin with this; pages cannot set them.
const SEC_FETCH: &str = "sec-fetch-";
/// What the user agent of every browser begins with.
const MOZILLA: &[u8] = b"Mozilla/";

/// Names of a port that nobody else controls. Clones share them.
#[derive(Clone, Debug)]
pub struct Hosts(Arc<[String]>);

impl Hosts {
    /// The names of a port that listens on `host`, and these names.
    #[must_use]
    pub fn new(host: &str, names: &[String]) -> Self {
        Self([host.to_owned()].into_iter().chain(names.iter().cloned()).collect())
    }

    /// Whether a request uses such a name.
    /// Fails with a line of text that says what was expected.
    pub fn admit(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), &'static str> {
        if hosts(uri, headers).all(|host| self.is_own(host)) { Ok(()) } else { Err(OTHER_HOST) }
    }

    /// Whether a request uses such a name, or is not from a browser.
    /// Fails with a line of text that says what was expected.
    pub fn admit_browser(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), &'static str> {
        if is_of_browser(headers) { self.admit(uri, headers) } else { Ok(()) }
    }

    /// Whether nobody else's name server can make this name resolve to us.
    fn is_own(&self, host: &[u8]) -> bool {
        let Ok(authority) = Authority::try_from(host) else { return false };
        let name = authority.host();
        let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
        address.parse::<IpAddr>().is_ok()
            || name.eq_ignore_ascii_case("localhost")
            || self.0.iter().any(|own| name.eq_ignore_ascii_case(own))
    }
}

/// The hosts that a request names. HTTP/2 has the host in the URI.
pub(super) fn hosts<'r>(uri: &'r Uri, headers: &'r HeaderMap) -> impl Iterator<Item = &'r [u8]> {
    let host = uri.authority().map(|authority| authority.as_str().as_bytes());
    host.into_iter().chain(headers.get_all(HOST).iter().map(|host| host.as_bytes()))
}

/// Whether a request looks like a browser's.
fn is_of_browser(headers: &HeaderMap) -> bool {
    headers.contains_key(ORIGIN)
        || headers.keys().any(|name| name.as_str().starts_with(SEC_FETCH))
        || headers.get_all(USER_AGENT).iter().any(|agent| agent.as_bytes().starts_with(MOZILLA))
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::*;

    const CHROMIUM: (HeaderName, &str) = (USER_AGENT, "Mozilla/5.0 (X11; Linux x86_64) Chrome/130.0");
    const FETCHED: (HeaderName, &str) = (HeaderName::from_static("sec-fetch-mode"), "cors");

    fn admitted(host: &'static str, more: &[(HeaderName, &'static str)]) -> bool {
        let headers = [(HOST, host)].into_iter().chain(more.iter().cloned());
        let headers = headers.map(|(name, value)| (name, HeaderValue::from_static(value))).collect();
        let hosts = Hosts::new("0.0.0.0", &["limiter.example".to_owned()]);
        hosts.admit_browser(&Uri::from_static("/stats"), &headers).is_ok()
    }

    #[test]
    fn a_browser_may_come_by_names_that_are_ours() {
        for sign in [CHROMIUM, FETCHED, (ORIGIN, "null")] {
            for own in ["127.0.0.1:6070", "[::1]", "localhost:6070", "LIMITER.example:1", "10.0.0.1"] {
                assert!(admitted(own, std::slice::from_ref(&sign)), "{own} {sign:?}");
            }
            for other in ["evil.example:6070", "x.localhost", "limiter.example.evil", "", "a b"] {
                assert!(!admitted(other, std::slice::from_ref(&sign)), "{other} {sign:?}");
            }
        }
    }

    #[test]
    fn a_program_may_come_by_any_name() {
        for agent in ["Prometheus/3.5.0", "curl/8.14.1", "kube-probe/1.33"] {
            assert!(admitted("tidegate.monitoring.svc:9090", &[(USER_AGENT, agent)]), "{agent}");
        }
        assert!(admitted("tidegate:6070", &[]));
    }
}
