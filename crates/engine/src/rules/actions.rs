//! A domain's `rate_limits`: which descriptors a client's request gets, by the actions of Envoy's routes.
//!
//! In: a request as a proxy described it ([`ClientRequest`]; the front parses what the proxy sent). Out: descriptors.
//! `:path` is taken in its normal form (`path`), unless the rules want the client's spelling. As in Envoy, an action
//! without a value drops its whole descriptor, or with `skip_if_absent` only itself. An empty descriptor matches no
//! rule.

// From `core`, which has addresses and no sockets.
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::borrow::Cow;
use std::cell::OnceCell;
use std::fmt::Write as _;

use crate::cost::Cost;
use crate::request::{DescriptorOptions, RequestBuf};
use crate::rules::url_path::normalized;

/// The most hits of a descriptor, as in Envoy.
pub(super) const HITS_MAX: u32 = 1_000_000_000;

/// The `rate_limits` of one domain: each makes one descriptor of a request, or none.
#[derive(Clone, Debug, Default)]
pub struct Actions(pub(super) Vec<Item>);

/// The costs of a request that are charged when its stream has ended.
#[derive(Clone, Debug)]
pub struct Costs {
    descriptors: RequestBuf,
    /// The hits of each descriptor.
    hits: Vec<HitsAddend>,
}

/// The client's request, as a proxy describes it. An error means that a fact is unknown; then nothing must be
/// decided.
pub trait ClientRequest {
    /// Why a fact cannot be known.
    type Error;

    /// The value of the field; `None`: the client did not send it. The first one of a header that is repeated.
    fn first(&self, field: &Field) -> Result<Option<&str>, Self::Error>;

    /// Whether `test` holds for the value, or for one of the values of a header that is repeated; `None`: the client
    /// did not send it.
    fn any(&self, field: &Field, test: impl Fn(&str) -> bool) -> Result<Option<bool>, Self::Error>;

    /// Appends the decoded value of the query's first parameter of this name to `text`. Returns whether there is one.
    fn query_parameter(&self, name: &str, text: &mut String) -> Result<bool, Self::Error>;

    /// The address of the client.
    fn address(&self) -> Result<IpAddr, Self::Error>;

    /// The number that a field holds, if it holds one.
    fn number(&self, field: &Field) -> Result<Option<f64>, Self::Error> {
        Ok(self.first(field)?.and_then(|text| text.parse().ok()))
    }
}

/// The field of a fact: what a header's name means, or what only a proxy knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Field {
    /// `:path`, with its query. Rules match its normal form; the client may have written another one.
    Path,
    /// `:path` as the client wrote it.
    RawPath,
    /// `:method`.
    Method,
    /// `:authority`.
    Authority,
    /// A header, its name in lower case.
    Header(Box<str>),
    /// A value that a proxy keeps for the request.
    Metadata(Metadata),
    /// A header of the answer, its name in lower case. Known at the end of the stream.
    ResponseHeader(Box<str>),
    /// A trailer of the answer, likewise.
    ResponseTrailer(Box<str>),
}

/// A value in Envoy's metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metadata {
    /// Whose metadata.
    pub source: MetadataSource,
    /// The namespace: a filter's name.
    pub namespace: Box<str>,
    /// The key in it.
    pub key: Box<str>,
}

/// Whose metadata.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MetadataSource {
    /// The stream's, which filters set.
    #[default]
    Dynamic,
    /// The route's.
    Route,
}

/// A fact of a request that actions ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need<'a> {
    /// The address of the client.
    Address,
    /// This field; for a parameter of the query, [`Field::RawPath`].
    Field(&'a Field),
}

/// Makes one descriptor.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) actions: Vec<Action>,
    /// The hits of the descriptor, if the action sets them.
    pub(super) hits: Option<HitsAddend>,
    /// Charged when the stream has ended, whatever the answer. Otherwise checked before the request passes.
    pub(super) on_stream_done: bool,
}

/// The hits of a descriptor.
#[derive(Clone, Debug)]
pub(super) enum HitsAddend {
    Number(u64),
    /// The number in this field. Without one there is no descriptor.
    Of(Field),
}

/// Makes one entry of a descriptor.
#[derive(Clone, Debug)]
pub(super) struct Action {
    pub(super) key: Box<str>,
    /// Without a value only this entry is left out.
    pub(super) skip_if_absent: bool,
    pub(super) value: Value,
}

/// Where an entry's value comes from.
#[derive(Clone, Debug)]
pub(super) enum Value {
    RemoteAddress,
    /// The network of that address, of this many bits.
    MaskedRemoteAddress {
        v4_bits: u8,
        v6_bits: u8,
    },
    RequestHeader(Field),
    Metadata {
        field: Field,
        /// The value if there is none. Empty: there is no default.
        default: Box<str>,
    },
    QueryParameter(Box<str>),
    Constant(Box<str>),
    /// A constant, when all matchers match (or not all, if that is expected).
    HeaderValueMatch {
        value: Box<str>,
        expected: bool,
        matchers: Vec<HeaderMatcher>,
    },
}

/// A condition on one header.
#[derive(Clone, Debug)]
pub(super) struct HeaderMatcher {
    pub(super) field: Field,
    pub(super) test: Test,
    pub(super) inverted: bool,
}

#[derive(Clone, Debug)]
pub(super) enum Test {
    /// Whether it has to be there.
    Present(bool),
    Text(TextTest),
}

/// A condition on a text.
#[derive(Clone, Debug)]
pub(super) struct TextTest {
    pub(super) kind: TextTestKind,
    pub(super) text: Box<str>,
    pub(super) ignore_case: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TextTestKind {
    Exact,
    Prefix,
    Suffix,
    Contains,
}

impl Field {
    /// The field that this name of a header means; `None` when it is not a header's name.
    pub(super) fn from_name(name: &str) -> Option<Self> {
        let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        match name.to_ascii_lowercase() {
            name if name == ":path" => Some(Self::Path),
            name if name == ":method" => Some(Self::Method),
            name if name == ":authority" || name == "host" => Some(Self::Authority),
            name => (!name.is_empty() && name.bytes().all(is_token)).then(|| Self::Header(name.into())),
        }
    }
}

impl Actions {
    /// The domain has none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The facts that the actions need, each once.
    pub fn needs(&self) -> Vec<Need<'_>> {
        let mut needs = Vec::new();
        for need in self.checked().flat_map(Item::needs) {
            if !needs.contains(&need) {
                needs.push(need);
            }
        }
        needs
    }

    /// Whether anything is charged when a stream has ended.
    pub fn has_costs(&self) -> bool {
        self.reported().next().is_some()
    }

    /// Adds the descriptors that are checked before `request` passes to `buf`, until its text has more than
    /// `bytes_max` bytes.
    ///
    /// # Errors
    /// When a fact that is needed cannot be known.
    pub fn describe<R: ClientRequest>(
        &self,
        request: &R,
        buf: &mut RequestBuf,
        bytes_max: usize,
    ) -> Result<(), R::Error> {
        let request = &WithNormalPath { request, path: OnceCell::new() };
        for item in self.checked() {
            let hits_addend = match (item.add_entries(request, buf, bytes_max)?, &item.hits) {
                (false, _) => None,
                (true, None) => Some(None),
                (true, Some(hits)) => hits.read(request)?.map(Some),
            };
            match hits_addend {
                Some(hits_addend) => buf.close_with(options(Cost::Asked, hits_addend)),
                None => buf.reopen(),
            }
        }
        Ok(())
    }

    /// The descriptors that are charged when the stream of `request` has ended, until their text has more than
    /// `bytes_max` bytes. They are made when the request comes, because a proxy may change its headers later.
    ///
    /// # Errors
    /// When a fact that is needed cannot be known.
    pub fn costs<R: ClientRequest>(
        &self,
        domain: &str,
        request: &R,
        bytes_max: usize,
    ) -> Result<Costs, R::Error> {
        let request = &WithNormalPath { request, path: OnceCell::new() };
        let mut costs = Costs { descriptors: RequestBuf::new(domain), hits: Vec::new() };
        for item in self.reported() {
            if item.add_entries(request, &mut costs.descriptors, bytes_max)? {
                costs.descriptors.close();
                costs.hits.push(item.hits.clone().unwrap_or(HitsAddend::Number(1)));
            } else {
                costs.descriptors.reopen();
            }
        }
        Ok(costs)
    }

    /// Those whose descriptors are checked before the request passes.
    fn checked(&self) -> impl Iterator<Item = &Item> {
        self.0.iter().filter(|item| !item.on_stream_done)
    }

    /// Those whose hits are reported when the stream has ended.
    fn reported(&self) -> impl Iterator<Item = &Item> {
        self.0.iter().filter(|item| item.on_stream_done)
    }
}

/// A request with `:path` in the normal form, which is computed once and only if an action needs it.
struct WithNormalPath<'r, R> {
    request: &'r R,
    path: OnceCell<Cow<'r, str>>,
}

impl<R: ClientRequest> ClientRequest for WithNormalPath<'_, R> {
    type Error = R::Error;

    fn first(&self, field: &Field) -> Result<Option<&str>, R::Error> {
        if *field != Field::Path {
            return self.request.first(field);
        }
        if let Some(path) = self.path.get() {
            return Ok(Some(path));
        }
        let spelt = self.request.first(field)?;
        Ok(spelt.map(|spelt| &**self.path.get_or_init(|| normalized(spelt))))
    }

    fn any(&self, field: &Field, test: impl Fn(&str) -> bool) -> Result<Option<bool>, R::Error> {
        match field {
            Field::Path => Ok(self.first(field)?.map(test)),
            _ => self.request.any(field, test),
        }
    }

    fn query_parameter(&self, name: &str, text: &mut String) -> Result<bool, R::Error> {
        self.request.query_parameter(name, text)
    }

    fn address(&self) -> Result<IpAddr, R::Error> {
        self.request.address()
    }

    fn number(&self, field: &Field) -> Result<Option<f64>, R::Error> {
        self.request.number(field)
    }
}

impl Item {
    /// The facts that it needs.
    fn needs(&self) -> Vec<Need<'_>> {
        let of_hits = match &self.hits {
            Some(HitsAddend::Of(field)) => Some(Need::Field(field)),
            _ => None,
        };
        self.actions.iter().flat_map(|action| action.value.needs()).chain(of_hits).collect()
    }

    /// Adds the entries of the descriptor. Returns whether each action has a value that needs one.
    fn add_entries<R: ClientRequest>(
        &self,
        request: &R,
        buf: &mut RequestBuf,
        bytes_max: usize,
    ) -> Result<bool, R::Error> {
        for action in &self.actions {
            let added = buf.entry(&action.key, |text| action.value.write(request, text))?;
            if !added && !action.skip_if_absent {
                return Ok(false);
            }
            if buf.text_bytes() > bytes_max {
                break;
            }
        }
        Ok(true)
    }
}

impl HitsAddend {
    /// The hits. `None`: they cannot be known.
    fn read<R: ClientRequest>(&self, request: &R) -> Result<Option<u64>, R::Error> {
        Ok(match self {
            Self::Number(hits) => Some(*hits),
            Self::Of(field) => {
                let hits = request.number(field)?.filter(|hits| (0.0..=f64::from(HITS_MAX)).contains(hits));
                // As Envoy does, which drops fractions.
                hits.map(|hits| hits as u64)
            }
        })
    }
}

fn options(cost: Cost, hits_addend: Option<u64>) -> DescriptorOptions {
    DescriptorOptions { hits_addend, cost, ..DescriptorOptions::default() }
}

impl Costs {
    /// The descriptors, each of one hit.
    pub fn descriptors(&self) -> &RequestBuf {
        &self.descriptors
    }

    /// Nothing is charged.
    pub fn is_empty(&self) -> bool {
        self.hits.is_empty()
    }

    /// What is charged, now that the stream of `request` has ended, and the number of descriptors that are not
    /// charged because their hits cannot be known.
    pub fn known<R: ClientRequest>(&self, request: &R) -> (RequestBuf, usize) {
        let mut known = RequestBuf::new(self.descriptors.domain());
        let mut unknown = 0;
        for (descriptor, hits) in self.descriptors.as_request().descriptors().zip(&self.hits) {
            let Ok(Some(hits)) = hits.read(request) else {
                unknown += 1;
                continue;
            };
            descriptor.entries.iter().for_each(|entry| known.push(entry.key, entry.value));
            known.close_with(options(Cost::Reported, Some(hits)));
        }
        (known, unknown)
    }
}

impl Value {
    /// The facts that it needs.
    fn needs(&self) -> Vec<Need<'_>> {
        match self {
            Self::RemoteAddress | Self::MaskedRemoteAddress { .. } => vec![Need::Address],
            Self::RequestHeader(field) | Self::Metadata { field, .. } => vec![Need::Field(field)],
            Self::QueryParameter(_) => vec![Need::Field(&Field::RawPath)],
            Self::Constant(_) => Vec::new(),
            Self::HeaderValueMatch { matchers, .. } => {
                matchers.iter().map(|matcher| Need::Field(&matcher.field)).collect()
            }
        }
    }

    /// Appends the value of this request, if it has one.
    fn write<R: ClientRequest>(&self, request: &R, text: &mut String) -> Result<bool, R::Error> {
        let constant = match self {
            Self::RemoteAddress => return Ok(show(text, request.address()?)),
            Self::MaskedRemoteAddress { v4_bits, v6_bits } => {
                let (network, bits) = network(request.address()?, *v4_bits, *v6_bits);
                return Ok(show(text, format_args!("{network}/{bits}")));
            }
            Self::QueryParameter(name) => return request.query_parameter(name, text),
            Self::RequestHeader(field) => request.first(field)?,
            Self::Metadata { field, default } => {
                let value = request.first(field)?.filter(|value| !value.is_empty());
                value.or(Some(&**default).filter(|default| !default.is_empty()))
            }
            Self::Constant(value) => Some(&**value),
            Self::HeaderValueMatch { value, expected, matchers } => {
                let holds = holds(matchers, request)?;
                Some(&**value).filter(|_| holds == *expected)
            }
        };
        text.push_str(constant.unwrap_or_default());
        Ok(constant.is_some())
    }
}

fn show(text: &mut String, value: impl std::fmt::Display) -> bool {
    write!(text, "{value}").is_ok()
}

/// The network of an address, and how many bits it has.
fn network(address: IpAddr, v4_bits: u8, v6_bits: u8) -> (IpAddr, u8) {
    match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(v4_bits)).unwrap_or(0);
            (Ipv4Addr::from_bits(address.to_bits() & mask).into(), v4_bits)
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(v6_bits)).unwrap_or(0);
            (Ipv6Addr::from_bits(address.to_bits() & mask).into(), v6_bits)
        }
    }
}

fn holds<R: ClientRequest>(matchers: &[HeaderMatcher], request: &R) -> Result<bool, R::Error> {
    for matcher in matchers {
        if !matcher.holds(request)? {
            return Ok(false);
        }
    }
    Ok(true)
}

impl HeaderMatcher {
    /// A condition on the text of an absent header is false, inverted or not.
    fn holds<R: ClientRequest>(&self, request: &R) -> Result<bool, R::Error> {
        Ok(match &self.test {
            Test::Present(expected) => {
                (request.any(&self.field, |_| true)?.is_some() == *expected) != self.inverted
            }
            Test::Text(test) => {
                let any = request.any(&self.field, |value| test.holds(value))?;
                any.is_some_and(|any| any != self.inverted)
            }
        })
    }
}

impl TextTest {
    /// Whether the test holds for some path in the normal form. Paths made of its own text, without and with a query,
    /// are enough to find out. A text that begins with a slash is not meant for a query.
    pub(super) fn can_match_a_normal_path(&self) -> bool {
        let within = if self.text.starts_with('/') { &["/x"][..] } else { &["/x", "/x?"][..] };
        let (before, after) = match self.kind {
            TextTestKind::Exact => (&[""][..], ""),
            TextTestKind::Prefix => (&[""][..], "x"),
            TextTestKind::Suffix => (within, ""),
            TextTestKind::Contains => (within, "x"),
        };
        before.iter().any(|before| self.holds(&normalized(&format!("{before}{}{after}", self.text))))
    }

    fn holds(&self, value: &str) -> bool {
        let (value, text) = (value.as_bytes(), self.text.as_bytes());
        let same =
            |part: &[u8]| if self.ignore_case { part.eq_ignore_ascii_case(text) } else { part == text };
        match self.kind {
            TextTestKind::Exact => same(value),
            TextTestKind::Prefix => value.get(..text.len()).is_some_and(same),
            TextTestKind::Suffix => {
                value.len().checked_sub(text.len()).is_some_and(|start| same(&value[start..]))
            }
            TextTestKind::Contains => value.windows(text.len().max(1)).any(same),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_cut_at_their_bits() {
        let network = |address: &str, v4_bits, v6_bits| {
            let (network, bits) = network(address.parse().expect("an address"), v4_bits, v6_bits);
            format!("{network}/{bits}")
        };
        for (v4_bits, expected) in
            [(16, "10.1.0.0/16"), (32, "10.1.130.5/32"), (17, "10.1.128.0/17"), (0, "0.0.0.0/0")]
        {
            assert_eq!(network("10.1.130.5", v4_bits, 64), expected);
        }
        for (v6_bits, expected) in [(48, "2001:db8:1::/48"), (128, "2001:db8:1:2::3/128"), (0, "::/0")] {
            assert_eq!(network("2001:db8:1:2::3", 16, v6_bits), expected);
        }
    }

    #[test]
    fn texts_are_tested_byte_by_byte() {
        let holds = |kind, text: &str, ignore_case, value: &str| {
            TextTest { kind, text: text.into(), ignore_case }.holds(value)
        };
        use TextTestKind::{Contains, Exact, Prefix, Suffix};
        for (kind, yes, no) in [
            (Exact, "abc", "abcd"),
            (Prefix, "abcd", "xabc"),
            (Suffix, "xabc", "abcx"),
            (Contains, "xabcx", "ab"),
        ] {
            assert!(holds(kind, "abc", false, yes), "{kind:?}");
            assert!(!holds(kind, "abc", false, &yes.to_uppercase()), "{kind:?}");
            assert!(holds(kind, "aBc", true, &yes.to_uppercase()), "{kind:?}");
            assert!(!holds(kind, "abc", true, no), "{kind:?}");
            assert!(!holds(kind, "abc", true, ""), "{kind:?}");
            assert!(!holds(kind, "é", false, "\u{e8}"), "{kind:?}: half a character is the same");
        }
    }

    #[test]
    fn a_name_of_a_header_is_one() {
        assert_eq!(Field::from_name("X-Api-Key"), Some(Field::Header("x-api-key".into())));
        assert_eq!(Field::from_name("Host"), Some(Field::Authority));
        for bad in ["", ":scheme", "x api", "x:y", "é"] {
            assert_eq!(Field::from_name(bad), None, "{bad}");
        }
    }
}
