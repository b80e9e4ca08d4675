//! The `rate_limits` of a route: which descriptors they make of a request.
//!
//! In: a rate limit filter, the route of the request, and the request. Out: a call. An action without a value drops its
//! whole descriptor; with `skip_if_absent` only its own entry.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::matchers::{headers_hold, parameters_hold};
use super::route::Found;
use super::tree::Node;
use super::{Asked, Call, Descriptor, EnvoyError};

/// All that descriptors are made of.
#[derive(Clone, Copy)]
pub(super) struct Facts<'f, 'n, 't> {
    pub(super) asked: &'f Asked,
    /// `node.cluster` of the bootstrap.
    pub(super) node_cluster: &'f str,
    pub(super) found: &'f Found<'n, 't>,
    /// Where the route leads.
    pub(super) action: Node<'n, 't>,
}

/// What an action adds to its descriptor.
enum Added {
    Entry(String, String),
    /// Nothing, and the descriptor goes on.
    Nothing,
    /// The descriptor is dropped.
    Drop,
}

impl<'n, 't> Facts<'_, 'n, 't> {
    /// The call of the filter of this name and configuration.
    pub(super) fn call(
        self,
        name: &str,
        filter: Node<'n, 't>,
        notes: &mut Vec<String>,
    ) -> Result<Call, EnvoyError> {
        if let Some(request_type) = filter.text("request_type").filter(|it| !matches!(&**it, "" | "both")) {
            return Err(filter.needs(format!("the filter asks only about {request_type} requests")));
        }
        if let Some(own) = filter.get("rate_limits") {
            return Err(own.needs("the filter has `rate_limits` of its own"));
        }
        let stage = filter.number::<u32>("stage")?.unwrap_or(0);
        let mut call = Call { domain: filter.text("domain").unwrap_or_default(), ..Call::default() };
        let per_route = [self.found.route, self.found.virtual_host]
            .into_iter()
            .find_map(|owner| named(owner.get("typed_per_filter_config")?, name));
        if per_route.is_some_and(|it| it.flag("disabled")) {
            return Ok(call);
        }
        let per_route = per_route.map(|it| it.get("config").unwrap_or(it));
        if let Some(own) = per_route.and_then(|it| it.get("rate_limits")) {
            return Err(own.needs("the route configures the filter's `rate_limits`"));
        }
        if let Some(domain) = per_route.and_then(|it| it.text("domain")).filter(|domain| !domain.is_empty()) {
            call.domain = domain;
        }
        let own = self.action.items("rate_limits");
        let option = per_route.and_then(|it| it.text("vh_rate_limits"));
        let with_host = match option.as_deref() {
            _ if self.action.flag("include_vh_rate_limits") => true,
            Some("INCLUDE") => true,
            Some("IGNORE") => false,
            _ => own.is_empty(),
        };
        let of_host = self.found.virtual_host.items("rate_limits");
        let all = own.iter().chain(of_host.iter().filter(|_| with_host));
        for &limit in all {
            if limit.number::<u32>("stage")?.unwrap_or(0) == stage {
                call.descriptors.extend(self.descriptor(limit, notes)?);
            }
        }
        Ok(call)
    }

    /// The descriptor that an item of `rate_limits` makes, if it makes one.
    fn descriptor(
        self,
        limit: Node<'n, 't>,
        notes: &mut Vec<String>,
    ) -> Result<Option<Descriptor>, EnvoyError> {
        if limit.flag("apply_on_stream_done") {
            notes.push(format!("line {}: asked when the request has ended, not before", limit.at().line));
            return Ok(None);
        }
        for (name, what) in [
            ("disable_key", "the runtime may switch it off"),
            ("limit", "its limit comes from metadata that filters set"),
        ] {
            if let Some(field) = limit.get(name) {
                return Err(field.needs(format!("`{name}`: {what}")));
            }
        }
        let mut descriptor = Descriptor { entries: Vec::new(), hits: self.hits(limit)? };
        for action in limit.items("actions") {
            match self.added(action)? {
                Added::Entry(key, value) => descriptor.entries.push((key, value)),
                Added::Nothing => {}
                Added::Drop => return Ok(None),
            }
        }
        Ok(Some(descriptor))
    }

    fn hits(self, limit: Node<'n, 't>) -> Result<Option<u64>, EnvoyError> {
        let Some(hits) = limit.get("hits_addend") else { return Ok(None) };
        if let Some(field) = hits.get("format").or_else(|| hits.get("is_negative_hits")) {
            return Err(field.needs("the hits depend on the request under way"));
        }
        hits.number("number")
    }

    fn added(self, action: Node<'n, 't>) -> Result<Added, EnvoyError> {
        let Some((kind, of)) = action.fields().next() else {
            return Err(action.bad("an action without a kind"));
        };
        let kind: String = snake(kind);
        let key = |default: &str| {
            of.text("descriptor_key").filter(|key| !key.is_empty()).unwrap_or_else(|| default.to_owned())
        };
        Ok(match kind.as_str() {
            "source_cluster" => Added::Entry(kind.clone(), self.node_cluster.to_owned()),
            "destination_cluster" => Added::Entry(kind.clone(), self.cluster(action)?),
            "remote_address" => Added::Entry(kind.clone(), self.asked.address.to_string()),
            "masked_remote_address" => Added::Entry(kind.clone(), self.network(of)?),
            "generic_key" => Added::Entry(key("generic_key"), constant(of)?),
            "request_headers" => {
                let name = of.text("header_name").unwrap_or_default().to_ascii_lowercase();
                let values = self.asked.values(&name);
                let values =
                    values.ok_or_else(|| of.needs(format!("Envoy sets the header {name} itself")))?;
                optional(of, key(""), values.first().map(|value| (*value).to_owned()))
            }
            "query_parameters" => {
                let name = of.text("query_parameter_name").unwrap_or_default();
                optional(of, key(""), self.asked.parameter(&name))
            }
            "header_value_match" => {
                let holds = headers_hold(&of.items("headers"), self.asked)?;
                when(holds == of.flag_or("expect_match", true), key("header_match"), of)?
            }
            "query_parameter_value_match" => {
                let holds =
                    parameters_hold(&of.items("query_parameters"), |name| self.asked.parameter(name))?;
                when(holds == of.flag_or("expect_match", true), key("query_match"), of)?
            }
            "remote_address_match" => {
                let matcher = of.get("address_matcher").unwrap_or(of);
                when(self.address_matches(matcher)?, key("remote_address_match"), of)?
            }
            "metadata" => self.metadata(of, key(""))?,
            _ => return Err(action.needs(format!("the action `{kind}`"))),
        })
    }

    /// The only cluster of the route.
    fn cluster(self, action: Node<'n, 't>) -> Result<String, EnvoyError> {
        let what = "`destination_cluster` of a route that does not lead to one cluster by name";
        self.action.text("cluster").ok_or_else(|| action.needs(what))
    }

    /// The network of the client's address.
    fn network(self, of: Node<'n, 't>) -> Result<String, EnvoyError> {
        let bits = |name, most: u8| Ok(of.number::<u8>(name)?.unwrap_or(most).min(most));
        let (v4, v6) = (bits("v4_prefix_mask_len", 32)?, bits("v6_prefix_mask_len", 128)?);
        let bits = if self.asked.address.is_ipv4() { v4 } else { v6 };
        Ok(format!("{}/{bits}", masked(self.asked.address, bits)))
    }

    fn address_matches(self, matcher: Node<'n, 't>) -> Result<bool, EnvoyError> {
        let mut is_in = false;
        for range in matcher.items("ranges") {
            let prefix = range.text("address_prefix").and_then(|it| it.parse::<IpAddr>().ok());
            let prefix = prefix.ok_or_else(|| range.bad("`address_prefix` is no address (expected one)"))?;
            let bits = range.number::<u8>("prefix_len")?.unwrap_or(0);
            let same_kind = prefix.is_ipv4() == self.asked.address.is_ipv4();
            is_in |= same_kind && masked(prefix, bits) == masked(self.asked.address, bits);
        }
        Ok(is_in != matcher.flag("invert_match"))
    }

    /// A text in the metadata of the route.
    fn metadata(self, of: Node<'n, 't>, key: String) -> Result<Added, EnvoyError> {
        if of.text("source").is_none_or(|source| source != "ROUTE_ENTRY" && source != "1") {
            return Err(of.needs("metadata that filters set"));
        }
        let path = of.get("metadata_key");
        let name = path.and_then(|path| path.text("key")).unwrap_or_default();
        let all = self.found.route.get("metadata").and_then(|it| it.get("filter_metadata"));
        let mut value = all.and_then(|all| named(all, &name));
        for segment in path.map(|path| path.items("path")).unwrap_or_default() {
            let key = segment.text("key").unwrap_or_default();
            value = value.and_then(|value| named(value, &key));
        }
        let text = value.and_then(Node::own_text).filter(|text| !text.is_empty());
        Ok(optional(of, key, text.or_else(|| of.text("default_value").filter(|text| !text.is_empty()))))
    }
}

/// The field of exactly this name: one that users chose.
fn named<'n, 't>(of: Node<'n, 't>, name: &str) -> Option<Node<'n, 't>> {
    of.fields().find(|(known, _)| *known == name).map(|(_, value)| value)
}

/// An entry if there is a value.
fn optional(of: Node<'_, '_>, key: String, value: Option<String>) -> Added {
    match value {
        Some(value) => Added::Entry(key, value),
        None if of.flag("skip_if_absent") => Added::Nothing,
        None => Added::Drop,
    }
}

/// An entry of a constant if a condition holds.
fn when(holds: bool, key: String, of: Node<'_, '_>) -> Result<Added, EnvoyError> {
    if holds { Ok(Added::Entry(key, constant(of)?)) } else { Ok(Added::Drop) }
}

/// `descriptor_value`, which may be a text with commands of Envoy's access logs.
fn constant(of: Node<'_, '_>) -> Result<String, EnvoyError> {
    let value = of.text("descriptor_value").unwrap_or_default();
    if value.contains('%') {
        return Err(of.needs(format!("the value {value:?} is computed by Envoy")));
    }
    Ok(value)
}

/// The address with all but its first bits cleared.
fn masked(address: IpAddr, bits: u8) -> IpAddr {
    let bits = u32::from(bits);
    match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32_u32.saturating_sub(bits)).unwrap_or(0);
            Ipv4Addr::from_bits(address.to_bits() & mask).into()
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128_u32.saturating_sub(bits)).unwrap_or(0);
            Ipv6Addr::from_bits(address.to_bits() & mask).into()
        }
    }
}

/// A field's name in `snake_case`.
fn snake(name: &str) -> String {
    let mut snake = String::new();
    for char in name.chars() {
        if char.is_ascii_uppercase() {
            snake.push('_');
        }
        snake.push(char.to_ascii_lowercase());
    }
    snake
}
