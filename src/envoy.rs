//! The descriptors that Envoy would make of a request, from its static configuration alone.
//!
//! In: the text of a bootstrap, and a request. Out: what each rate limit filter would ask. Nothing is guessed: what needs
//! more than the file and the request (metadata that filters set, weighted clusters, routes from a control plane) is an
//! error that names it.

mod actions;
mod matchers;
mod route;
mod tree;

#[cfg(test)]
mod tests;

use std::net::{IpAddr, Ipv4Addr};

use tidegate_yaml::{Budget, Document, Place};

use self::tree::Node;

/// The type of the filter for HTTP connections, behind the last dot.
const MANAGER: &str = "HttpConnectionManager";
/// The type of the rate limit filter.
const RATE_LIMIT: &str = ".http.ratelimit.v3.RateLimit";

/// Filters that change nothing that descriptors are made of. Others are listed, because they might.
const HARMLESS: [&str; 9] = [
    "router.v3.Router",
    "ratelimit.v3.RateLimit",
    "local_ratelimit.v3.LocalRateLimit",
    "rbac.v3.RBAC",
    "cors.v3.Cors",
    "csrf.v3.CsrfPolicy",
    "fault.v3.HTTPFault",
    "health_check.v3.HealthCheck",
    "grpc_stats.v3.FilterConfig",
];

/// A request of a client, as Envoy sees it.
#[derive(Clone, Debug)]
pub struct Asked {
    /// The method.
    pub method: String,
    /// The path with its query.
    pub path: String,
    /// The host, with its port if the client said one.
    pub host: String,
    /// Names in small letters; a name may be there several times.
    pub headers: Vec<(String, String)>,
    /// The address that Envoy takes for the client's.
    pub address: IpAddr,
}

impl Default for Asked {
    /// `GET /` from this machine to itself.
    fn default() -> Self {
        Self {
            method: "GET".to_owned(),
            path: "/".to_owned(),
            host: "localhost".to_owned(),
            headers: Vec::new(),
            address: Ipv4Addr::LOCALHOST.into(),
        }
    }
}

/// What Envoy would ask about a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Described {
    /// The listener, if it has a name.
    pub listener: String,
    /// The virtual host and, if it has a name, the route. Empty: no route matches.
    pub route: String,
    /// One for each rate limit filter that has descriptors to ask about.
    pub calls: Vec<Call>,
    /// Filters before these that may change the request.
    pub filters_before: Vec<String>,
    /// What has to be known beside.
    pub notes: Vec<String>,
}

/// The request of one rate limit filter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Call {
    /// The domain.
    pub domain: String,
    /// The descriptors, in order.
    pub descriptors: Vec<Descriptor>,
}

/// A descriptor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Descriptor {
    /// Its entries, in order.
    pub entries: Vec<(String, String)>,
    /// Its own hits, if the configuration says a number.
    pub hits: Option<u64>,
}

/// Why there are no descriptors.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnvoyError {
    /// The file is no configuration.
    #[error("{}:{}: {what}", at.line, at.column)]
    Bad {
        /// Where.
        at: Place,
        /// What is wrong.
        what: String,
    },
    /// It needs what neither the file nor the request holds.
    #[error("{}:{}: {what}: this needs more than the file and the request", at.line, at.column)]
    Needs {
        /// Where.
        at: Place,
        /// What needs it.
        what: String,
    },
}

/// What a rate limit filter says of itself.
struct Filter<'n, 't> {
    /// Its name in the list of filters, by which routes configure it.
    name: String,
    config: Node<'n, 't>,
}

/// The descriptors that the configuration in `text` makes of a request that comes to `listener` (`None`: the only one
/// with a rate limit filter).
///
/// # Errors
/// When the text is no configuration of Envoy, or the descriptors need more than it holds.
pub fn describe(text: &str, asked: &Asked, listener: Option<&str>) -> Result<Described, EnvoyError> {
    let mut budget = Budget::of_set(text.len());
    let document = Document::parse(text, &mut budget).map_err(|(at, what)| EnvoyError::Bad { at, what })?;
    let root = Node::root(&document)?;
    let cluster = root.get("node").and_then(|node| node.text("cluster")).unwrap_or_default();
    let (listener, manager) = manager(root, listener)?;
    untouched_path(manager, asked)?;
    let (filters, filters_before) = filters(manager)?;
    let mut described = Described { listener, filters_before, ..Described::default() };
    let Some(found) = route::find(manager, asked)? else {
        described.notes.push("no route matches, so nothing is asked".to_owned());
        return Ok(described);
    };
    described.route = found.name();
    let Some(action) = found.action else {
        described.notes.push("the route answers by itself, so nothing is asked".to_owned());
        return Ok(described);
    };
    for filter in &filters {
        let facts = actions::Facts { asked, node_cluster: &cluster, found: &found, action };
        let call = facts.call(&filter.name, filter.config, &mut described.notes)?;
        described.calls.extend(Some(call).filter(|call| !call.descriptors.is_empty()));
    }
    Ok(described)
}

/// The listener and its HTTP connection manager.
fn manager<'n, 't>(root: Node<'n, 't>, wanted: Option<&str>) -> Result<(String, Node<'n, 't>), EnvoyError> {
    let listeners = root.get("static_resources").map(|it| it.items("listeners")).unwrap_or_default();
    let mut found = Vec::new();
    for listener in listeners {
        let name = listener.text("name").unwrap_or_default();
        let chains = listener.items("filter_chains").into_iter().chain(listener.get("default_filter_chain"));
        for filter in chains.flat_map(|chain| chain.items("filters")) {
            let Some(config) = filter.get("typed_config") else { continue };
            if config.is_of_type(MANAGER) && config.items("http_filters").iter().any(is_rate_limit) {
                found.push((name.clone(), config));
            }
        }
    }
    found.retain(|(name, _)| wanted.is_none_or(|wanted| wanted == name));
    match &found[..] {
        [only] => Ok(only.clone()),
        [] => Err(root.bad("no listener with the filter envoy.filters.http.ratelimit (expected one)")),
        several => {
            let names: Vec<_> = several.iter().map(|(name, _)| name.as_str()).collect();
            Err(root.bad(format!(
                "several connection managers have the filter: {} (expected one, or --listener NAME)",
                names.join(", ")
            )))
        }
    }
}

fn is_rate_limit(filter: &Node<'_, '_>) -> bool {
    filter.get("typed_config").is_some_and(|config| config.is_of_type(RATE_LIMIT))
}

/// The rate limit filters, and the names of filters before the last of them that may change a request.
fn filters<'n, 't>(manager: Node<'n, 't>) -> Result<(Vec<Filter<'n, 't>>, Vec<String>), EnvoyError> {
    let (mut filters, mut before, mut since) = (Vec::new(), Vec::new(), Vec::new());
    for filter in manager.items("http_filters") {
        if filter.flag("disabled") {
            continue;
        }
        let name = filter.text("name").unwrap_or_default();
        let config = filter.get("typed_config");
        match config {
            Some(config) if config.is_of_type(RATE_LIMIT) => {
                filters.push(Filter { name, config });
                before.append(&mut since);
            }
            Some(config) if HARMLESS.iter().any(|harmless| config.is_of_type(harmless)) => {}
            _ => since.push(name),
        }
    }
    Ok((filters, before))
}

/// Refuses paths that the connection manager would rewrite before it looks for a route.
fn untouched_path(manager: Node<'_, '_>, asked: &Asked) -> Result<(), EnvoyError> {
    let path = asked.path.split('?').next().unwrap_or_default();
    let is_plain = !path.contains(['%', '\\']) && !path.contains("//") && !path.contains("/.");
    for name in ["normalize_path", "merge_slashes", "path_with_escaped_slashes_action"] {
        let is_on = manager.text(name).is_some_and(|value| !matches!(&*value, "false" | "KEEP_UNCHANGED"));
        if let Some(option) = manager.get(name).filter(|_| is_on && !is_plain) {
            return Err(option.needs(format!("`{name}` may rewrite the path {path}")));
        }
    }
    Ok(())
}
