//! The call of one rate limit filter for a request: which `rate_limits` apply, and their descriptors.
//!
//! In: the filter, the route of the request, and the request. Out: a call. `rate_limits` that are configured for the
//! filter replace those of routes; those of the route's own configuration for it replace the filter's.

use super::actions::Facts;
use super::tree::Node;
use super::{Call, DescriptorBuf, EnvoyError};

/// The fields of a filter that do not change its calls, and those that are understood.
const FIELDS: [&str; 19] = [
    "@type",
    "domain",
    "stage",
    "request_type",
    "rate_limits",
    "timeout",
    "failure_mode_deny",
    "failure_mode_deny_percent",
    "rate_limited_as_resource_exhausted",
    "rate_limit_service",
    "enable_x_ratelimit_headers",
    "disable_x_envoy_ratelimited_header",
    "enable_retry_after_header",
    "rate_limited_status",
    "response_headers_to_add",
    "status_on_error",
    "stat_prefix",
    "filter_enforced",
    "metadata_namespace",
];
/// The fields of a route's configuration for a filter.
const FIELDS_OF_ROUTE: [&str; 5] = ["@type", "domain", "rate_limits", "vh_rate_limits", "override_option"];

/// The type by which a route switches a filter on or off.
const SWITCH: &str = "route.v3.FilterConfig";

pub(super) struct Filter<'n, 't> {
    /// Its name in the list of filters, by which routes configure it.
    pub(super) name: String,
    pub(super) config: Node<'n, 't>,
    /// It is off unless a route switches it on.
    pub(super) is_disabled: bool,
}

impl<'n, 't> Filter<'n, 't> {
    /// The call before a request passes, if the filter makes one for this route. It may have no descriptors.
    pub(super) fn call(
        &self,
        facts: Facts<'_, 'n, 't>,
        notes: &mut Vec<String>,
    ) -> Result<Option<Call>, EnvoyError> {
        let per_route = self.per_route(facts)?;
        if per_route.first().map_or(self.is_disabled, |it| it.flag("disabled")) {
            return Ok(None);
        }
        let per_route = per_route.into_iter().find_map(unwrapped);
        self.config.knows(&FIELDS, "what the filter asks depends on")?;
        if let Some(it) = per_route {
            it.knows(&FIELDS_OF_ROUTE, "what the filter asks depends on")?;
        }
        if let Some(kind) = self.config.text("request_type").filter(|it| !matches!(&**it, "" | "both")) {
            let what = format!("{} asks only about {kind} requests", self.name);
            let is_external = facts.seen.is_external();
            let is_external = is_external
                .ok_or_else(|| self.config.needs(format!("{what} (expected --external or --internal)")))?;
            if is_external != (kind == "external") {
                notes.push(what);
                return Ok(None);
            }
        }
        let domain = per_route.and_then(|it| it.text("domain")).filter(|domain| !domain.is_empty());
        let domain = domain.or_else(|| self.config.text("domain")).unwrap_or_default();
        let own = [per_route, Some(self.config)].into_iter().flatten();
        let own = own.map(|it| it.items("rate_limits")).find(|items| !items.is_empty());
        let (items, is_own) = match own {
            Some(items) => (items, true),
            None => (self.items_of_route(facts, per_route)?, false),
        };
        let mut descriptors = Vec::new();
        for item in items {
            if item.flag("apply_on_stream_done") {
                let line = item.at().line;
                notes.push(format!("line {line}: asked when the request has ended, so not shown"));
                continue;
            }
            let Some(mut descriptor) = facts.descriptor(item)? else { continue };
            match item.get("hits_addend") {
                Some(hits) if is_own => with_hits(&mut descriptor, hits)?,
                Some(hits) => notes.push(format!(
                    "line {}: Envoy heeds `hits_addend` only in `rate_limits` of the filter itself",
                    hits.at().line
                )),
                None => {}
            }
            descriptors.push(descriptor);
        }
        Ok(Some(Call { domain, descriptors }))
    }

    /// The configurations of the route, its virtual host and all routes for this filter, the most specific first.
    fn per_route(&self, facts: Facts<'_, 'n, 't>) -> Result<Vec<Node<'n, 't>>, EnvoyError> {
        let said_by = |owner: Node<'n, 't>| owner.get("typed_per_filter_config")?.named(&self.name);
        let clusters = facts.action.get("weighted_clusters").map(|it| it.items("clusters"));
        if let Some(said) = clusters.into_iter().flatten().find_map(said_by) {
            return Err(said.needs("a weighted cluster configures the filter"));
        }
        let found = facts.found;
        Ok([found.route, found.virtual_host, found.config].into_iter().filter_map(said_by).collect())
    }

    /// The items of the route and its virtual host that apply, in order.
    fn items_of_route(
        &self,
        facts: Facts<'_, 'n, 't>,
        per_route: Option<Node<'n, 't>>,
    ) -> Result<Vec<Node<'n, 't>>, EnvoyError> {
        let mut items = facts.action.items("rate_limits");
        let option = per_route.and_then(|it| it.text("vh_rate_limits")).unwrap_or_default();
        let with_host = match option.as_str() {
            _ if facts.action.flag("include_vh_rate_limits") => true,
            "INCLUDE" | "1" => true,
            "IGNORE" | "2" => false,
            _ => items.is_empty(),
        };
        if with_host {
            items.extend(facts.found.virtual_host.items("rate_limits"));
        }
        let stage = self.config.number::<u32>("stage")?.unwrap_or(0);
        let mut of_stage = Vec::new();
        for item in items {
            if item.number::<u32>("stage")?.unwrap_or(0) == stage {
                of_stage.push(item);
            }
        }
        Ok(of_stage)
    }
}

/// The configuration itself, without a wrapper that switches it on or off.
fn unwrapped<'n, 't>(said: Node<'n, 't>) -> Option<Node<'n, 't>> {
    let config = if said.is_of_type(SWITCH) { said.get("config")? } else { said };
    config.get("@type").map(|_| config)
}

/// Gives a descriptor the hits of its item.
fn with_hits(descriptor: &mut DescriptorBuf, hits: Node<'_, '_>) -> Result<(), EnvoyError> {
    if let Some(format) = hits.get("format") {
        return Err(format.needs("the hits are computed while the request is under way"));
    }
    descriptor.options.hits_addend = hits.number("number")?;
    descriptor.options.is_negative_hits = hits.flag("is_negative_hits");
    Ok(())
}
