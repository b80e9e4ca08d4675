//! One item of `rate_limits`: the descriptor that its actions make of a request.
//!
//! In: the item, the route of the request, and the request. Out: a descriptor, or none. An action without a value drops
//! its whole descriptor; with `skip_if_absent` only its own entry.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use tidegate_engine::request::{DescriptorOptions, Override};
use tidegate_engine::rules::Unit;
use tidegate_engine::unit::Window;

use super::matchers::{headers_hold, parameters_hold};
use super::route::Found;
use super::seen::Seen;
use super::tree::{Node, snake};
use super::{DescriptorBuf, EnvoyError};

/// The fields of an item that are understood.
const FIELDS: [&str; 6] =
    ["stage", "actions", "limit", "hits_addend", "apply_on_stream_done", "x_ratelimit_option"];

/// What descriptors are made of.
#[derive(Clone, Copy)]
pub(super) struct Facts<'f, 'n, 't> {
    pub(super) seen: &'f Seen<'f>,
    /// The name of the cluster that this Envoy belongs to, if that is known.
    pub(super) node_cluster: Option<&'f str>,
    pub(super) found: &'f Found<'n, 't>,
    /// The cluster of the route.
    pub(super) action: Node<'n, 't>,
}

/// What an action adds to its descriptor.
enum Added {
    Entry(String, String),
    /// Nothing; the other actions continue.
    Nothing,
    /// The descriptor is dropped.
    Drop,
}

impl<'n, 't> Facts<'_, 'n, 't> {
    /// The descriptor that an item of `rate_limits` makes, if it makes one. It has no hits of its own yet.
    pub(super) fn descriptor(self, item: Node<'n, 't>) -> Result<Option<DescriptorBuf>, EnvoyError> {
        item.knows(&FIELDS, "a descriptor depends on")?;
        let options = DescriptorOptions { limit: limit(item)?, ..DescriptorOptions::default() };
        let mut descriptor = DescriptorBuf { entries: Vec::new(), options };
        for action in item.items("actions") {
            match self.added(action)? {
                Added::Entry(key, value) => descriptor.entries.push((key, value)),
                Added::Nothing => {}
                Added::Drop => return Ok(None),
            }
        }
        Ok(Some(descriptor))
    }

    fn added(self, action: Node<'n, 't>) -> Result<Added, EnvoyError> {
        let Some((kind, of)) = action.fields().next() else {
            return Err(action.bad("an action without a kind"));
        };
        let kind = snake(kind);
        let key = |default: &str| {
            of.text("descriptor_key").filter(|key| !key.is_empty()).unwrap_or_else(|| default.to_owned())
        };
        Ok(match kind.as_str() {
            "source_cluster" => {
                let what = "`source_cluster` without `node.cluster` (expected it, or --service-cluster)";
                let name = self.node_cluster.ok_or_else(|| action.needs(what))?;
                Added::Entry(kind.clone(), name.to_owned())
            }
            "destination_cluster" => Added::Entry(kind.clone(), self.cluster(action)?),
            "remote_address" => Added::Entry(kind.clone(), self.seen.address().to_string()),
            "masked_remote_address" => Added::Entry(kind.clone(), self.network(of)?),
            "generic_key" => Added::Entry(key("generic_key"), constant(of)?),
            "request_headers" => {
                let name = of.text("header_name").unwrap_or_default();
                optional(of, key(""), self.seen.first(&name, of)?)
            }
            "query_parameters" => {
                let name = of.text("query_parameter_name").unwrap_or_default();
                optional(of, key(""), self.seen.parameter(&name))
            }
            "header_value_match" => {
                let holds = headers_hold(&of.items("headers"), self.seen)?;
                when(holds == of.flag_or("expect_match", true), key("header_match"), of)?
            }
            "query_parameter_value_match" => {
                let holds = parameters_hold(&of.items("query_parameters"), |name| self.seen.parameter(name))?;
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
        let bits = if self.seen.address().is_ipv4() { v4 } else { v6 };
        Ok(format!("{}/{bits}", masked(self.seen.address(), bits)))
    }

    fn address_matches(self, matcher: Node<'n, 't>) -> Result<bool, EnvoyError> {
        let mut is_in = false;
        for range in matcher.items("ranges") {
            let prefix = range.text("address_prefix").and_then(|it| it.parse::<IpAddr>().ok());
            let prefix = prefix.ok_or_else(|| range.bad("`address_prefix` is no address (expected one)"))?;
            let bits = range.number::<u8>("prefix_len")?.unwrap_or(0);
            let same_kind = prefix.is_ipv4() == self.seen.address().is_ipv4();
            is_in |= same_kind && masked(prefix, bits) == masked(self.seen.address(), bits);
        }
        Ok(is_in != matcher.flag("invert_match"))
    }

    /// A text in the metadata of the route.
    fn metadata(self, of: Node<'n, 't>, key: String) -> Result<Added, EnvoyError> {
        let source = of.text("source").unwrap_or_else(|| "DYNAMIC".to_owned());
        if !matches!(&*source, "ROUTE_ENTRY" | "1") {
            return Err(of.needs(format!("metadata of the source {source}, not of the route")));
        }
        let path = of.get("metadata_key");
        let name = path.and_then(|path| path.text("key")).unwrap_or_default();
        let all = self.found.route.get("metadata").and_then(|it| it.get("filter_metadata"));
        let mut value = all.and_then(|all| all.named(&name));
        for segment in path.map(|path| path.items("path")).unwrap_or_default() {
            let key = segment.text("key").unwrap_or_default();
            value = value.and_then(|value| value.named(&key));
        }
        let text = value.and_then(Node::typed_text).filter(|text| !text.is_empty());
        Ok(optional(of, key, text.or_else(|| of.text("default_value").filter(|text| !text.is_empty()))))
    }
}

/// The limit that an item brings instead of the rules'.
fn limit(item: Node<'_, '_>) -> Result<Option<Override>, EnvoyError> {
    let Some(limit) = item.get("limit") else { return Ok(None) };
    limit.knows(&["rate_limit"], "a limit comes from")?;
    let Some(limit) = limit.get("rate_limit") else { return Ok(None) };
    let unit = limit.text("unit").and_then(|name| Unit::from_name(&name));
    let unit = unit.ok_or_else(|| limit.bad("a limit without a unit (expected one such as MINUTE)"))?;
    let requests_per_unit = limit.number("requests_per_unit")?.unwrap_or(0);
    Ok(Some(Override { requests_per_unit, window: Window::of(unit) }))
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

/// `descriptor_value`. With `%` in it, Envoy's version and runtime decide whether it is computed.
fn constant(of: Node<'_, '_>) -> Result<String, EnvoyError> {
    let value = of.text("descriptor_value").unwrap_or_default();
    if value.contains('%') {
        return Err(of.needs(format!("the value {value:?}, which Envoy may compute")));
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
