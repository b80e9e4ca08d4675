//! Finds the route of a request: the virtual host by the host, then the first route that matches.
//!
//! In: a connection manager with its routes, and a request. Out: the virtual host and the route.

use super::matchers::{headers_hold, parameters_hold, whole};
use super::tree::Node;
use super::{Asked, EnvoyError};

/// The route of a request.
#[derive(Clone, Copy)]
pub(super) struct Found<'n, 't> {
    pub(super) virtual_host: Node<'n, 't>,
    pub(super) route: Node<'n, 't>,
    /// Where it leads: `route`. `None`: it redirects, or answers directly.
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
    manager: Node<'n, 't>,
    asked: &Asked,
) -> Result<Option<Found<'n, 't>>, EnvoyError> {
    for name in ["rds", "scoped_routes"] {
        if let Some(remote) = manager.get(name) {
            return Err(remote.needs("routes come from a control plane"));
        }
    }
    let config =
        manager.get("route_config").ok_or_else(|| manager.bad("no `route_config` (expected one)"))?;
    for (owner, name) in
        [(config, "vhds"), (manager, "strip_matching_host_port"), (manager, "strip_any_host_port")]
    {
        if let Some(field) = owner.get(name).filter(|it| it.own_text().is_none_or(|text| text != "false")) {
            return Err(field.needs(format!("`{name}` changes which virtual host is chosen")));
        }
    }
    let Some(virtual_host) = virtual_host(config, asked) else { return Ok(None) };
    if let Some(matcher) = virtual_host.get("matcher") {
        return Err(matcher.needs("a virtual host chooses its route by a matcher"));
    }
    if let Some(tls) =
        virtual_host.get("require_tls").filter(|tls| tls.own_text().is_none_or(|text| text != "NONE"))
    {
        return Err(tls.needs("`require_tls` depends on the connection"));
    }
    for route in virtual_host.items("routes") {
        if matches(route, asked)? {
            return Ok(Some(Found { virtual_host, route, action: route.get("route") }));
        }
    }
    Ok(None)
}

/// The virtual host with the most exact domain: the whole name, then the longest `*.name`, the longest `name.*`, and `*`.
fn virtual_host<'n, 't>(config: Node<'n, 't>, asked: &Asked) -> Option<Node<'n, 't>> {
    let host = asked.host.to_ascii_lowercase();
    let host = match config.flag("ignore_port_in_host_matching") {
        true => host.rsplit_once(':').map_or(host.as_str(), |(name, _)| name),
        false => &host,
    };
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

fn matches(route: Node<'_, '_>, asked: &Asked) -> Result<bool, EnvoyError> {
    let Some(condition) = route.get("match") else { return Ok(false) };
    let raw = |name: &str| raw_parameter(&asked.path, name);
    if !path_matches(condition, asked)?
        || !headers_hold(&condition.items("headers"), asked)?
        || !parameters_hold(&condition.items("query_parameters"), raw)?
    {
        return Ok(false);
    }
    if condition.get("grpc").is_some() && !is_grpc(asked) {
        return Ok(false);
    }
    for name in ["runtime_fraction", "tls_context", "dynamic_metadata", "filter_state", "cookies"] {
        if let Some(field) = condition.get(name) {
            return Err(field.needs(format!("a route is chosen by `{name}`")));
        }
    }
    Ok(true)
}

/// A parameter of the query as it is written: routes do not decode it.
fn raw_parameter(path: &str, name: &str) -> Option<String> {
    let (_, query) = path.split_once('?')?;
    let mut parameters = query.split('&').map(|it| it.split_once('=').unwrap_or((it, "")));
    parameters.find(|(key, _)| *key == name).map(|(_, value)| value.to_owned())
}

fn is_grpc(asked: &Asked) -> bool {
    let types = asked.values("content-type").unwrap_or_default();
    types.iter().any(|it| *it == "application/grpc" || it.starts_with("application/grpc+"))
}

fn path_matches(condition: Node<'_, '_>, asked: &Asked) -> Result<bool, EnvoyError> {
    let fold = |text: &str| match condition.flag_or("case_sensitive", true) {
        true => text.to_owned(),
        false => text.to_ascii_lowercase(),
    };
    let path = fold(asked.path_alone());
    if let Some(prefix) = condition.text("prefix") {
        return Ok(path.starts_with(&fold(&prefix)));
    }
    if let Some(whole) = condition.text("path") {
        return Ok(path == fold(&whole));
    }
    if let Some(prefix) = condition.text("path_separated_prefix") {
        let rest = path.strip_prefix(&fold(&prefix)).map(str::to_owned);
        return Ok(rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/')));
    }
    if let Some(pattern) = condition.get("safe_regex") {
        return Ok(whole(pattern)?.is_match(asked.path_alone()));
    }
    if condition.get("connect_matcher").is_some() {
        return Ok(asked.method == "CONNECT");
    }
    Err(condition.needs("a route is chosen by an extension"))
}
