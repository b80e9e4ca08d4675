//! The descriptors that Envoy would make of a request, from its configuration alone.
//!
//! In: the text of a bootstrap or of a `/config_dump`, and a request. Out: the calls of each rate limit filter.
//! Nothing is guessed: whatever needs more than the file and the request (metadata that filters set, weighted
//! clusters, routes that the file lacks) is an error that names it.

mod actions;
mod call;
mod matchers;
mod route;
mod seen;
mod tree;
mod config;

#[cfg(test)]
mod tests;

use std::net::{IpAddr, Ipv4Addr};

use tidegate_engine::request::DescriptorOptions;
use tidegate_yaml::{Budget, Document, Place};

use self::actions::Facts;
use self::call::Filter;
use self::config::EnvoyConfig;
use self::seen::Seen;
use self::tree::Node;

/// The type of the filter for HTTP connections, after the last dot.
const MANAGER: &str = "HttpConnectionManager";
/// The type of the rate limit filter.
const RATE_LIMIT: &str = ".http.ratelimit.v3.RateLimit";

/// Filters that do not change anything descriptors are made of. Others are listed, because they might.
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
pub struct EnvoyRequest {
    /// The method.
    pub method: String,
    /// The path with its query.
    pub path: String,
    /// The host, with its port if the client sent one.
    pub host: String,
    /// Names in lower case; a name may occur several times.
    pub headers: Vec<(String, String)>,
    /// The address that Envoy uses as the client's.
    pub address: IpAddr,
    /// Whether Envoy treats it as a request from outside; `None`: not given. `request_type` of a filter needs it.
    pub is_external: Option<bool>,
}

/// What is known of an Envoy in addition to its configuration.
#[derive(Clone, Debug, Default)]
pub struct Instance {
    /// The listener that the request comes to, or `LISTENER/CHAIN`; `None`: the only one with a rate limit filter.
    pub listener: Option<String>,
    /// Its argument `--service-cluster`, which overrides `node.cluster`.
    pub service_cluster: Option<String>,
}

impl Default for EnvoyRequest {
    /// `GET /` from this machine to itself.
    fn default() -> Self {
        Self {
            method: "GET".to_owned(),
            path: "/".to_owned(),
            host: "localhost".to_owned(),
            headers: Vec::new(),
            address: Ipv4Addr::LOCALHOST.into(),
            is_external: None,
        }
    }
}

/// The calls that Envoy would make for a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Described {
    /// The listener, if it has a name.
    pub listener: String,
    /// The virtual host and, if it has a name, the route. Empty: no route matches.
    pub route: String,
    /// One for each rate limit filter that would send descriptors.
    pub calls: Vec<Call>,
    /// Filters before these that may change the request.
    pub filters_before: Vec<String>,
    /// Remarks about what is not shown.
    pub notes: Vec<String>,
}

/// The request of one rate limit filter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Call {
    /// The domain.
    pub domain: String,
    /// The descriptors, in order.
    pub descriptors: Vec<DescriptorBuf>,
}

/// A descriptor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DescriptorBuf {
    /// Its entries, in order.
    pub entries: Vec<(String, String)>,
    /// The limit and the hits in the configuration.
    pub options: DescriptorOptions,
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
    /// It needs something that is neither in the file nor in the request.
    #[error("{}:{}: {what}: this needs more than the file and the request", at.line, at.column)]
    Needs {
        /// Where.
        at: Place,
        /// What needs it.
        what: String,
    },
}

/// The descriptors that the configuration in `text` makes of a request to this Envoy.
/// Fails when the text is not a configuration of Envoy, or the descriptors need more than it contains.
pub fn describe(text: &str, asked: &EnvoyRequest, instance: &Instance) -> Result<Described, EnvoyError> {
    let mut budget = Budget::of_set(text.len());
    let document = Document::parse(text, &mut budget).map_err(|(at, what)| EnvoyError::Bad { at, what })?;
    let config = EnvoyConfig::of(Node::root(&document)?)?;
    untouched_by_runtime(config.bootstrap)?;
    let configured = config.bootstrap.get("node").and_then(|node| node.text("cluster"));
    let node_cluster = instance.service_cluster.clone().or(configured).filter(|name| !name.is_empty());
    let (listener, manager) = manager(&config, instance.listener.as_deref())?;
    let seen = Seen::of(manager, asked)?;
    let (filters, filters_before) = filters(manager);
    let mut described = Described { listener, filters_before, ..Described::default() };
    let Some(found) = route::find(&config, manager, &seen)? else {
        described.notes.push("no route matches, so nothing is asked".to_owned());
        return Ok(described);
    };
    described.route = found.name();
    let Some(action) = found.action else {
        described.notes.push("the route answers by itself, so nothing is asked".to_owned());
        return Ok(described);
    };
    if let Some(header) = action.get("cluster_header") {
        return Err(header.needs("a header names the cluster, and without a cluster nothing is asked"));
    }
    for filter in &filters {
        let facts = Facts { seen: &seen, node_cluster: node_cluster.as_deref(), found: &found, action };
        let call = filter.call(facts, &mut described.notes)?;
        described.calls.extend(call.filter(|call| !call.descriptors.is_empty()));
    }
    Ok(described)
}

/// Refuses a runtime with keys about rate limits: it may switch them off, also for a part of the requests.
fn untouched_by_runtime(root: Node<'_, '_>) -> Result<(), EnvoyError> {
    let layers = root.get("layered_runtime").map(|it| it.items("layers")).unwrap_or_default();
    let mut said = layers.iter().filter_map(|layer| layer.get("static_layer")).flat_map(Node::fields);
    match said.find(|(name, _)| name.starts_with("ratelimit")) {
        Some((name, at)) => Err(at.needs(format!("the runtime says `{name}`"))),
        None => Ok(()),
    }
}

/// The listener and its HTTP connection manager.
fn manager<'n, 't>(
    config: &EnvoyConfig<'n, 't>,
    wanted: Option<&str>,
) -> Result<(String, Node<'n, 't>), EnvoyError> {
    let mut found = Vec::new();
    for listener in &config.listeners {
        let name = listener.text("name").unwrap_or_default();
        let chains = listener.items("filter_chains").into_iter().chain(listener.get("default_filter_chain"));
        for (chain, filter) in
            chains.flat_map(|chain| chain.items("filters").into_iter().map(move |it| (chain, it)))
        {
            let Some(config) = filter.get("typed_config") else { continue };
            if config.is_of_type(MANAGER) && config.items("http_filters").iter().any(is_rate_limit) {
                let chain = chain.text("name").map(|chain| format!("{name}/{chain}"));
                found.push((name.clone(), chain.unwrap_or_else(|| name.clone()), config));
            }
        }
    }
    found.retain(|(name, chain, _)| wanted.is_none_or(|wanted| wanted == name || wanted == chain));
    let bad = |what: String| Err(config.bootstrap.bad(what));
    let remote = config.bootstrap.get("dynamic_resources").and_then(|it| it.get("lds_config"));
    match (&found[..], remote) {
        ([(name, _, only)], _) => Ok((name.clone(), *only)),
        ([], Some(remote)) if config.routes.is_none() => {
            Err(remote.needs("listeners come from a control plane (expected a /config_dump)"))
        }
        ([], _) => {
            let named = wanted.map(|name| format!(" {name:?}")).unwrap_or_default();
            bad(format!("no listener{named} with the filter envoy.filters.http.ratelimit (expected one)"))
        }
        (several, _) => {
            let names: Vec<_> = several.iter().map(|(_, chain, _)| chain.as_str()).collect();
            bad(format!(
                "several connection managers have the filter: {} (expected one, or --listener NAME)",
                names.join(", ")
            ))
        }
    }
}

fn is_rate_limit(filter: &Node<'_, '_>) -> bool {
    filter.get("typed_config").is_some_and(|config| config.is_of_type(RATE_LIMIT))
}

/// The rate limit filters, and the names of filters before the last of them that may change a request.
fn filters<'n, 't>(manager: Node<'n, 't>) -> (Vec<Filter<'n, 't>>, Vec<String>) {
    let early = "early_header_mutation_extensions";
    let mut since: Vec<_> = manager.switched_on(early).map(|_| early.to_owned()).into_iter().collect();
    let (mut filters, mut before) = (Vec::new(), Vec::new());
    for filter in manager.items("http_filters") {
        let (name, is_disabled) = (filter.text("name").unwrap_or_default(), filter.flag("disabled"));
        match filter.get("typed_config") {
            Some(config) if config.is_of_type(RATE_LIMIT) => {
                filters.push(Filter { name, config, is_disabled });
                before.append(&mut since);
            }
            Some(config) if HARMLESS.iter().any(|harmless| config.is_of_type(harmless)) => {}
            _ => since.push(name),
        }
    }
    (filters, before)
}
