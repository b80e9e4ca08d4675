//! Texts: free ones, secrets, addresses, paths and names.

use std::fmt;
use std::path::PathBuf;

use crate::settings::value::numbers::decimal;
use crate::settings::value::{Secrecy, Value};
use crate::url::Url;
use tidegate_operate::gate::AdminToken;

impl Value for String {
    const NAME: &'static str = "TEXT";
    const EXPECTED: &'static str = "a text";
    const EMPTY_IS_UNSET: bool = false;

    fn parse(text: &str) -> Option<Self> {
        Some(text.to_owned())
    }
}

/// A value that nobody may read in a log, an error or a panic. It has no `Display`, and its `Debug` shows nothing.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret<T = String>(pub T);

impl<T> fmt::Debug for Secret<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Secret(…)")
    }
}

impl AsRef<str> for Secret {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl<T: Value> Value for Secret<T> {
    const NAME: &'static str = T::NAME;
    const EXPECTED: &'static str = T::EXPECTED;
    const EMPTY_IS_UNSET: bool = T::EMPTY_IS_UNSET;
    const SECRECY: Secrecy = Secrecy::Whole;

    fn parse(text: &str) -> Option<Self> {
        T::parse(text).map(Self)
    }
}

impl Value for Url {
    const NAME: &'static str = String::NAME;
    const EXPECTED: &'static str = String::EXPECTED;
    const EMPTY_IS_UNSET: bool = String::EMPTY_IS_UNSET;
    const SECRECY: Secrecy = Secrecy::Login;

    fn parse(text: &str) -> Option<Self> {
        Some(Self(text.to_owned()))
    }
}

impl Value for AdminToken {
    const NAME: &'static str = "TEXT";
    const EXPECTED: &'static str =
        "a token (expected one line without control characters, and without white space at its ends)";
    const SECRECY: Secrecy = Secrecy::Whole;

    fn parse(text: &str) -> Option<Self> {
        Self::parse(text).ok()
    }
}

/// Where to listen, in Go's form: `host:port`, `[::1]:port`, or `:port` for all addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPort {
    /// Without brackets; empty for all addresses.
    pub host: String,
    pub port: u16,
}

impl Value for HostPort {
    const NAME: &'static str = "ADDRESS";
    const EXPECTED: &'static str = "an address (expected host:port or :port)";
    const EMPTY_IS_UNSET: bool = false;

    fn parse(text: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        // An IPv6 address without brackets would lose its last group to the port.
        let host = bare.or_else(|| Some(host).filter(|host| !host.contains([':', '['])))?;
        Some(Self { host: host.to_owned(), port: decimal(port)?.parse().ok()? })
    }
}

/// The path of a URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UrlPath(pub String);

impl Value for UrlPath {
    const NAME: &'static str = "PATH";
    const EXPECTED: &'static str = "a path of a URL (expected for example /metrics)";
    const EMPTY_IS_UNSET: bool = false;

    fn parse(text: &str) -> Option<Self> {
        let path = text.starts_with('/') && !text.contains(['?', '#']) && !text.contains(char::is_whitespace);
        path.then(|| Self(text.to_owned()))
    }
}

/// The name of an HTTP header, as it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderName(pub String);

impl Value for HeaderName {
    const NAME: &'static str = "HEADER";
    const EXPECTED: &'static str = "the name of a header (expected for example RateLimit-Limit)";

    fn parse(text: &str) -> Option<Self> {
        http::HeaderName::from_bytes(text.as_bytes()).is_ok().then(|| Self(text.to_owned()))
    }
}

/// A file in the file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilePath(pub PathBuf);

impl Value for FilePath {
    const NAME: &'static str = "FILE";
    const EXPECTED: &'static str = "a path of a file";

    fn parse(text: &str) -> Option<Self> {
        Some(Self(text.into()))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsName(pub String);

impl Value for DnsName {
    const NAME: &'static str = "NAME";
    const EXPECTED: &'static str = "a DNS name (expected for example envoy.example.com)";

    fn parse(text: &str) -> Option<Self> {
        rustls::pki_types::DnsName::try_from(text).ok().map(|name| Self(name.as_ref().to_owned()))
    }
}

/// Names in DNS, in lower case or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsNames(pub Vec<String>);

impl Value for DnsNames {
    const NAME: &'static str = "NAMES";
    const EXPECTED: &'static str =
        "DNS names without a port (expected for example limiter.example.com,limiter)";

    fn parse(text: &str) -> Option<Self> {
        let name = |name: &str| DnsName::parse(name.trim()).map(|DnsName(name)| name);
        text.split(',').map(name).collect::<Option<_>>().map(Self)
    }
}

/// Names that certificates carry: names in DNS, and URIs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sans(pub Vec<String>);

impl Value for Sans {
    const NAME: &'static str = "NAMES";
    const EXPECTED: &'static str =
        "names of certificates (expected for example ops.example.com,spiffe://example.com/ops)";

    fn parse(text: &str) -> Option<Self> {
        let is_uri = |name: &str| name.contains("://") && name.parse::<http::Uri>().is_ok();
        let name = |name: &str| {
            let name = name.trim();
            (is_uri(name) || DnsName::parse(name).is_some()).then(|| name.to_owned())
        };
        text.split(',').map(name).collect::<Option<_>>().map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_gos() {
        let parsed = |text| HostPort::parse(text).map(|HostPort { host, port }| (host, port));
        assert_eq!(parsed(":9090"), Some((String::new(), 9090)));
        assert_eq!(parsed("127.0.0.1:1"), Some(("127.0.0.1".to_owned(), 1)));
        assert_eq!(parsed("[::1]:1"), Some(("::1".to_owned(), 1)));
        for bad in ["", "9090", "host:", "host:port", "host:65536", "::1", "fe80::1:9090", "[::1:9090"] {
            assert_eq!(parsed(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_path_that_no_request_can_have_is_refused() {
        assert_eq!(UrlPath::parse("/a/b"), Some(UrlPath("/a/b".to_owned())));
        for bad in ["", "metrics", "/a?b", "/a#b", "/a b"] {
            assert_eq!(UrlPath::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_name_that_no_header_can_have_is_refused() {
        assert_eq!(HeaderName::parse("X-Limit"), Some(HeaderName("X-Limit".to_owned())));
        for bad in ["", "a b", "a:b", "a\r\nb", "é"] {
            assert_eq!(HeaderName::parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn a_name_that_no_certificate_can_carry_is_refused() {
        assert_eq!(DnsName::parse("a.example"), Some(DnsName("a.example".to_owned())));
        for bad in ["spiffe://a/b", "a b", "*.example", "10.0.0.1", "a..b"] {
            assert_eq!(DnsName::parse(bad), None, "{bad}");
        }
        let names = ["ops.example", "spiffe://example/ops"].map(str::to_owned).to_vec();
        assert_eq!(Sans::parse("ops.example, spiffe://example/ops"), Some(Sans(names)));
        assert_eq!(
            DnsNames::parse("a.example, b"),
            Some(DnsNames(["a.example", "b"].map(str::to_owned).to_vec()))
        );
        for bad in ["", ",", "a,", "a b", "*.example", "http://a", "a:6070"] {
            assert_eq!(DnsNames::parse(bad), None, "{bad}");
        }
        for bad in ["", ",", "a,", "a b", "*.example", "spiffe://a b", "10.0.0.1"] {
            assert_eq!(Sans::parse(bad), None, "{bad}");
        }
    }
}
