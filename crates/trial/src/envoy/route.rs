//! Finds the route of a request: the virtual host by the host, then the first route that matches.
//!
//! In: a connection manager with its routes, and a request. Out: the virtual host and the route.

use super::EnvoyError;
use super::config::EnvoyConfig;
use super::matchers::{full_match, headers_hold, parameters_hold};
use super::seen::{Seen, split_port};
use super::tree::Node;

/// The conditions of a route that are understood.
const CONDITIONS: [&str; 9] = [
    "prefix",
    "path",
    "path_separated_prefix",
    "safe_regex",
    "connect_matcher",
    "case_sensitive",
    "headers",
    "query_parameters",
    "grpc",
];

/// The route of a request.
#[derive(Clone, Copy)]
pub(super) struct Found<'n, 't> {
    /// The `route_config` that it is in.
    pub(super) config: Node<'n, 't>,
    pub(super) virtual_host: Node<'n, 't>,
    pub(super) route: Node<'n, 't>,
    /// Its target: `route`. `None`: it redirects, or answers directly.
    pub(super) action: Option<Node<'n, 't>>,
}

impl Found<'_, '_> {
    /// Its name for people.
    pub(super) fn name(&self) -> String {
        let host = self.virtual_host.text("name").unwrap_or_default();
        match self.route.text("name") {
            Some(route) => format!("{host}, route {route}"),
            None => format!("{host}, the route at line {}", self.route.at().line),
        }
    }
}

/// The route of a request, if there is one.
pub(super) fn find<'n, 't>(
    config: &EnvoyConfig<'n, 't>,
    manager: Node<'n, 't>,
    seen: &Seen<'_>,
) -> Result<Option<Found<'n, 't>>, EnvoyError> {
    if let Some(scoped) = manager.get("scoped_routes") {
        return Err(scoped.needs("`scoped_routes` decide which routes apply"));
    }
    let config = match manager.get("rds") {
        Some(rds) => config.routes_of(rds)?,
        None => manager.get("route_config").ok_or_else(|| manager.bad("no `route_config` (expected one)"))?,
    };
    without(config, &["vhds", "vhost_header", "route_specifiers"])?;
    if seen.path().contains(';') {
        without(config, &["ignore_path_parameters_in_path_matching"])?;
    }
    let Some(virtual_host) = virtual_host(config, seen) else { return Ok(None) };
    without(virtual_host, &["matcher", "require_tls", "route_specifiers"])?;
    for route in virtual_host.items("routes") {
        if matches(route, seen)? {
            without(route, &["route_specifiers"])?;
            return Ok(Some(Found { config, virtual_host, route, action: route.get("route") }));
        }
    }
    Ok(None)
}

/// Refuses options that choose another route, or may.
fn without(owner: Node<'_, '_>, options: &[&str]) -> Result<(), EnvoyError> {
    for name in options {
        if let Some(option) = owner.switched_on(name) {
            return Err(option.needs(format!("`{name}` decides which route is chosen")));
        }
    }
    Ok(())
}

/// The virtual host with the most exact domain: the whole name, then the longest `*.name`, the longest `name.*`, and `*`.
fn virtual_host<'n, 't>(config: Node<'n, 't>, seen: &Seen<'_>) -> Option<Node<'n, 't>> {
    let host = seen.host();
    let host = if config.flag("ignore_port_in_host_matching") { split_port(&host).0 } else { &host };
    let rank = |domain: &str| -> Option<(u8, usize)> {
        let domain = domain.to_ascii_lowercase();
        let longer = |rest: &str| host.len() > rest.len();
        match (domain.strip_prefix('*'), domain.strip_suffix('*')) {
            (Some(""), _) => Some((0, 0)),
            (Some(end), _) => (host.ends_with(end) && longer(end)).then_some((2, end.len())),
            (None, Some(start)) => (host.starts_with(start) && longer(start)).then_some((1, start.len())),
            (None, None) => (host == domain).then_some((3, 0)),
        }
    };
    let hosts = config.items("virtual_hosts").into_iter();
    let ranked = hosts.filter_map(|virtual_host| {
        let domains = virtual_host.items("domains").into_iter().filter_map(Node::own_text);
        domains.filter_map(|domain| rank(&domain)).max().map(|best| (best, virtual_host))
    });
    ranked.max_by_key(|(best, _)| *best).map(|(_, virtual_host)| virtual_host)
}

/// Whether a route is that of the request. A condition that is not understood is refused only if all others are true.
fn matches(route: Node<'_, '_>, seen: &Seen<'_>) -> Result<bool, EnvoyError> {
    let Some(condition) = route.get("match") else { return Ok(false) };
    let holds = path_matches(condition, seen)?
        && headers_hold(&condition.items("headers"), seen)?
        && parameters_hold(&condition.items("query_parameters"), |name| seen.raw_parameter(name))?
        && (condition.get("grpc").is_none() || is_grpc(condition, seen)?);
    if holds {
        condition.knows(&CONDITIONS, "a route is chosen by")?;
    }
    Ok(holds)
}

fn is_grpc(condition: Node<'_, '_>, seen: &Seen<'_>) -> Result<bool, EnvoyError> {
    let kind = seen.first("content-type", condition)?.unwrap_or_default();
    Ok(kind == "application/grpc" || kind.starts_with("application/grpc+"))
}

fn path_matches(condition: Node<'_, '_>, seen: &Seen<'_>) -> Result<bool, EnvoyError> {
    let fold = |text: &str| match condition.flag_or("case_sensitive", true) {
        true => text.to_owned(),
        false => text.to_ascii_lowercase(),
    };
    let path = fold(seen.path());
    if let Some(prefix) = condition.text("prefix") {
        return Ok(path.starts_with(&fold(&prefix)));
    }
    if let Some(full) = condition.text("path") {
        return Ok(path == fold(&full));
    }
    if let Some(prefix) = condition.text("path_separated_prefix") {
        let rest = path.strip_prefix(&fold(&prefix)).map(str::to_owned);
        return Ok(rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/')));
    }
    if let Some(pattern) = condition.get("safe_regex") {
        return Ok(full_match(pattern)?.is_match(seen.path().as_bytes()));
    }
    if condition.get("connect_matcher").is_some() {
        return Ok(seen.method() == "CONNECT");
    }
    Err(condition.needs("a route is chosen by a kind of path that is not known here"))
}
