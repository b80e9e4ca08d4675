//! The request as Envoy's filters see it: what the client sent, and the known changes that Envoy makes.
//!
//! In: a connection manager, and a request. Out: values of headers and of the query. A value that Envoy sets or may
//! change is an error that names it.

use std::net::IpAddr;

use tidegate_engine::text::query_parameter;

use super::tree::Node;
use super::{EnvoyError, EnvoyRequest};

/// Headers that Envoy sets, rewrites or removes in a usual configuration.
const OF_ENVOY: [&str; 13] = [
    ":scheme",
    "connection",
    "content-length",
    "keep-alive",
    "proxy-connection",
    "te",
    "transfer-encoding",
    "upgrade",
    "x-forwarded-client-cert",
    "x-forwarded-for",
    "x-forwarded-port",
    "x-forwarded-proto",
    "x-request-id",
];

/// Headers of which Envoy keeps one line, with all values joined by commas. Of others it keeps each line.
const ONE_LINE: [&str; 21] = [
    "accept",
    "accept-encoding",
    "access-control-request-headers",
    "access-control-request-method",
    "authorization",
    "cache-control",
    "content-type",
    "expect",
    "grpc-accept-encoding",
    "grpc-timeout",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-range",
    "origin",
    "pragma",
    "referer",
    "user-agent",
    "via",
    "x-client-trace-id",
    "x-forwarded-host",
];

/// A request, as one connection manager sees it.
pub(super) struct Seen<'a> {
    asked: &'a EnvoyRequest,
    /// Headers that this manager changes, in addition to [`OF_ENVOY`].
    changed: Vec<String>,
    /// Headers with `_` in their names are dropped or refused.
    refuses_underscores: bool,
}

impl<'a> Seen<'a> {
    /// The request, if the manager leaves its path, host and address as they are.
    pub(super) fn of(manager: Node<'_, '_>, asked: &'a EnvoyRequest) -> Result<Self, EnvoyError> {
        untouched_path(manager, asked)?;
        untouched_host(manager, asked)?;
        let mapped = "represent_ipv4_remote_address_as_ipv4_mapped_ipv6";
        if let Some(field) = manager.switched_on(mapped) {
            return Err(field.needs(format!("`{mapped}` changes the client's address")));
        }
        let internal = manager.get("route_config").map(|config| config.items("internal_only_headers"));
        let mut changed: Vec<_> = internal.into_iter().flatten().filter_map(Node::own_text).collect();
        changed.iter_mut().for_each(|name| name.make_ascii_lowercase());
        for (field, name) in [("via", "via"), ("add_user_agent", "user-agent")] {
            changed.extend(manager.switched_on(field).map(|_| name.to_owned()));
        }
        let options = manager.get("common_http_protocol_options");
        let underscores = options.and_then(|it| it.text("headers_with_underscores_action"));
        let refuses_underscores = underscores.is_some_and(|it| !matches!(&*it, "ALLOW" | "0"));
        Ok(Self { asked, changed, refuses_underscores })
    }

    pub(super) fn method(&self) -> &str {
        &self.asked.method
    }

    /// The address that Envoy uses as the client's.
    pub(super) fn address(&self) -> IpAddr {
        self.asked.address
    }

    /// Whether Envoy treats it as a request from outside, if that is known.
    pub(super) fn is_external(&self) -> Option<bool> {
        self.asked.is_external
    }

    /// The host in lower case, with its port if the client sent one.
    pub(super) fn host(&self) -> String {
        self.asked.host.to_ascii_lowercase()
    }

    /// The path without its query.
    pub(super) fn path(&self) -> &str {
        self.asked.path.split('?').next().unwrap_or_default()
    }

    /// The first value of a header. `at` is the place that needs it.
    pub(super) fn first(&self, name: &str, at: Node<'_, '_>) -> Result<Option<String>, EnvoyError> {
        Ok(self.all(name, at)?.into_iter().next())
    }

    /// The values of a header, as Envoy has them. `at` is the place that needs them.
    pub(super) fn all(&self, name: &str, at: Node<'_, '_>) -> Result<Vec<String>, EnvoyError> {
        let values = self.values(name, at)?;
        Ok(match ONE_LINE.contains(&&*name.to_ascii_lowercase()) && !values.is_empty() {
            true => vec![values.join(",")],
            false => values.into_iter().map(str::to_owned).collect(),
        })
    }

    fn values(&self, name: &str, at: Node<'_, '_>) -> Result<Vec<&str>, EnvoyError> {
        let name = name.to_ascii_lowercase();
        let name = match name.as_str() {
            ":path" => return Ok(vec![&self.asked.path]),
            ":method" => return Ok(vec![&self.asked.method]),
            ":authority" | "host" => return Ok(vec![&self.asked.host]),
            name => name,
        };
        let is_of_envoy = OF_ENVOY.contains(&name) || name.starts_with("x-envoy-");
        if is_of_envoy || self.changed.iter().any(|changed| changed == name) {
            return Err(at.needs(format!("Envoy sets or changes the header {name}")));
        }
        let values = self.asked.headers.iter().filter(|(known, _)| known == name);
        let values: Vec<_> = values.map(|(_, value)| value.as_str()).collect();
        if self.refuses_underscores && name.contains('_') && !values.is_empty() {
            return Err(at.needs(format!("`headers_with_underscores_action` refuses the header {name}")));
        }
        Ok(values)
    }

    /// The decoded value of a parameter of the query.
    pub(super) fn parameter(&self, name: &str) -> Option<String> {
        query_parameter(&self.asked.path, name).map(|value| String::from_utf8_lossy(&value).into_owned())
    }

    /// A parameter of the query as it is written: routes do not decode it.
    pub(super) fn raw_parameter(&self, name: &str) -> Option<String> {
        let (_, query) = self.asked.path.split_once('?')?;
        let mut parameters = query.split('&').map(|it| it.split_once('=').unwrap_or((it, "")));
        parameters.find(|(key, _)| *key == name).map(|(_, value)| value.to_owned())
    }
}

/// Refuses paths that the connection manager would rewrite before it looks for a route.
fn untouched_path(manager: Node<'_, '_>, asked: &EnvoyRequest) -> Result<(), EnvoyError> {
    let path = asked.path.split('?').next().unwrap_or_default();
    if path.is_ascii() && !path.contains(['%', '\\']) && !path.contains("//") && !path.contains("/.") {
        return Ok(());
    }
    for name in [
        "normalize_path",
        "merge_slashes",
        "path_with_escaped_slashes_action",
        "path_normalization_options",
        "typed_header_validation_config",
    ] {
        let keeps = ["IMPLEMENTATION_SPECIFIC_DEFAULT", "KEEP_UNCHANGED", "0", "1"];
        let does = |it: &Node<'_, '_>| it.own_text().is_none_or(|text| !keeps.contains(&&*text));
        if let Some(option) = manager.switched_on(name).filter(does) {
            return Err(option.needs(format!("`{name}` may rewrite the path {path}")));
        }
    }
    Ok(())
}

/// Refuses hosts from which the connection manager would remove something.
fn untouched_host(manager: Node<'_, '_>, asked: &EnvoyRequest) -> Result<(), EnvoyError> {
    let (name, port) = split_port(&asked.host);
    for (option, cuts) in [
        ("strip_matching_host_port", port.is_some()),
        ("strip_any_host_port", port.is_some()),
        ("strip_trailing_host_dot", name.ends_with('.')),
    ] {
        if let Some(option_at) = manager.switched_on(option).filter(|_| cuts) {
            return Err(option_at.needs(format!("`{option}` may rewrite the host {}", asked.host)));
        }
    }
    Ok(())
}

/// A host, and the part that Envoy uses as its port: everything after the last colon, unless that is within brackets.
pub(super) fn split_port(host: &str) -> (&str, Option<&str>) {
    match host.rsplit_once(':') {
        Some((name, port)) if !port.contains(']') => (name, Some(port)),
        _ => (host, None),
    }
}
