//! The client's request, as the headers of the proxy describe it.
//!
//! Only the proxy's family of headers is read: headers of the other family may come from the client. A required
//! header that is missing, or present twice, is refused, so that nothing is decided about a request without a
//! description.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use http::header::{HOST, HeaderName, HeaderValue};
use http::request::Parts;

use super::{CheckOptions, Proxy};
use tidegate_engine::rules::{ClientRequest, Field};
use tidegate_engine::text::query_parameter;
use tidegate_serve::refusal::Refusal;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_METHOD: HeaderName = HeaderName::from_static("x-forwarded-method");
const X_FORWARDED_URI: HeaderName = HeaderName::from_static("x-forwarded-uri");
const X_ORIGINAL_METHOD: HeaderName = HeaderName::from_static("x-original-method");
const X_ORIGINAL_URI: HeaderName = HeaderName::from_static("x-original-uri");

/// A call, and what is needed to read the description in it.
pub(super) struct Described<'r> {
    pub(super) head: &'r Parts,
    /// Who sent the call. `None` on a unix socket.
    pub(super) peer: Option<IpAddr>,
    pub(super) options: CheckOptions,
}

impl ClientRequest for Described<'_> {
    type Error = Refusal;

    fn first(&self, field: &Field) -> Result<Option<&str>, Refusal> {
        match (field, self.options.proxy) {
            (Field::Path | Field::RawPath, _) => self.path().map(Some),
            (Field::Method, Proxy::Nginx) => self.only(&X_ORIGINAL_METHOD).map(Some),
            (Field::Method, Proxy::Forwarded) => self.only(&X_FORWARDED_METHOD).map(Some),
            (Field::Authority, Proxy::Nginx) => match self.head.uri.authority() {
                Some(authority) if !self.head.headers.contains_key(HOST) => Ok(Some(authority.as_str())),
                _ => self.only(&HOST).map(Some),
            },
            (Field::Authority, Proxy::Forwarded) => self.only(&X_FORWARDED_HOST).map(Some),
            (Field::Header(name), _) => {
                let value = self.head.headers.get(&**name);
                value.map(|value| utf8(name, value)).transpose()
            }
            (Field::Metadata(_) | Field::ResponseHeader(_) | Field::ResponseTrailer(_), _) => {
                Err(Refusal::unimplemented("the domain's `rate_limits` ask for what only Envoy knows"))
            }
        }
    }

    fn any(&self, field: &Field, test: impl Fn(&str) -> bool) -> Result<Option<bool>, Refusal> {
        let Field::Header(name) = field else { return Ok(self.first(field)?.map(test)) };
        let mut any = None;
        for value in self.head.headers.get_all(&**name) {
            any = Some(any.unwrap_or(false) | test(utf8(name, value)?));
        }
        Ok(any)
    }

    fn query_parameter(&self, name: &str, text: &mut String) -> Result<bool, Refusal> {
        let Some(value) = query_parameter(self.path()?, name) else { return Ok(false) };
        text.push_str(str::from_utf8(&value).map_err(|_| Refusal::not_utf8(name))?);
        Ok(true)
    }

    /// The entry of `x-forwarded-for` that the last trusted proxy added, else the peer.
    fn address(&self) -> Result<IpAddr, Refusal> {
        let lines = self.head.headers.get_all(X_FORWARDED_FOR).iter().map(HeaderValue::as_bytes);
        let lines = lines.filter(|line| !line.trim_ascii().is_empty()).rev();
        let mut entries = lines.flat_map(|line| line.rsplit(|&byte| byte == b','));
        match entries.nth(self.options.trusted_hops) {
            Some(entry) => parse_address(entry.trim_ascii())
                .ok_or_else(|| Refusal::invalid("x-forwarded-for: the client's entry is no address")),
            None => self
                .peer
                .map(|peer| peer.to_canonical())
                .ok_or_else(|| Refusal::invalid("x-forwarded-for is missing (a unix socket has no address)")),
        }
    }
}

impl Described<'_> {
    /// The path and query of the client's request, without a fragment: with a fragment a client could choose its own
    /// counter.
    fn path(&self) -> Result<&str, Refusal> {
        let uri = match self.options.proxy {
            Proxy::Nginx => self.only(&X_ORIGINAL_URI),
            Proxy::Forwarded => self.only(&X_FORWARDED_URI),
        }?;
        Ok(without_fragment(uri))
    }

    /// A header that the proxy sets exactly once.
    fn only(&self, name: &HeaderName) -> Result<&str, Refusal> {
        let mut values = self.head.headers.get_all(name).iter();
        match (values.next(), values.next()) {
            (Some(value), None) => utf8(name.as_str(), value),
            (None, _) => Err(Refusal::invalid(format!(
                "{name} is missing (CHECK_PROXY says that it describes the request)"
            ))),
            (Some(_), Some(_)) => {
                Err(Refusal::invalid(format!("{name} came twice (expected from the proxy only)")))
            }
        }
    }
}

fn without_fragment(uri: &str) -> &str {
    uri.split_once('#').map_or(uri, |(uri, _)| uri)
}

fn utf8<'v>(name: &str, value: &'v HeaderValue) -> Result<&'v str, Refusal> {
    str::from_utf8(value.as_bytes()).map_err(|_| Refusal::not_utf8(name))
}

/// Parses an address with or without a port. IPv4 that is written as IPv6 becomes IPv4.
fn parse_address(text: &[u8]) -> Option<IpAddr> {
    let text = str::from_utf8(text).ok()?;
    let with_port = || text.parse::<SocketAddr>().ok().map(|address| address.ip());
    let in_brackets = || {
        let address = text.strip_prefix('[')?.strip_suffix(']')?;
        address.parse::<Ipv6Addr>().ok().map(IpAddr::V6)
    };
    let address = text.parse().ok().or_else(with_port).or_else(in_brackets)?;
    Some(address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fragment_is_no_part_of_what_was_asked_for() {
        for (uri, expected) in [
            ("/login", "/login"),
            ("/login#1", "/login"),
            ("/login?user=alice#?user=bob", "/login?user=alice"),
            ("/login#a#b", "/login"),
            ("#", ""),
            ("/a%23b", "/a%23b"),
        ] {
            assert_eq!(without_fragment(uri), expected, "{uri}");
        }
    }

    #[test]
    fn addresses_are_canonical_and_nothing_else_is_one() {
        for (text, expected) in [
            ("10.1.2.3", Some("10.1.2.3")),
            ("10.1.2.3:8080", Some("10.1.2.3")),
            ("::ffff:10.1.2.3", Some("10.1.2.3")),
            ("[::ffff:10.1.2.3]:1", Some("10.1.2.3")),
            ("2001:DB8:0:0::1", Some("2001:db8::1")),
            ("[2001:db8::1]", Some("2001:db8::1")),
            ("[2001:db8::1]:443", Some("2001:db8::1")),
            ("", None),
            ("unknown", None),
            ("_hidden", None),
            ("10.1.2", None),
            ("10.1.2.3.4", None),
            ("010.1.2.3", None),
            ("10.1.2.3:", None),
            ("10.1.2.3:99999", None),
            ("10.1.2.3/8", None),
            ("[10.1.2.3]", None),
            ("[::1", None),
            ("[::1]x", None),
            ("[::1]:", None),
            ("fe80::1%eth0", None),
            ("localhost", None),
        ] {
            let parsed = parse_address(text.as_bytes()).map(|address| address.to_string());
            assert_eq!(parsed.as_deref(), expected, "{text}");
        }
    }
}
