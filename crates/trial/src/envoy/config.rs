//! The contents of a configuration in either form: a bootstrap, or the output of `/config_dump` of Envoy's admin
//! port.
//!
//! In: the outermost value. Out: the bootstrap, the listeners, and the routes that have names. A dump contains those
//! of control planes too; a bootstrap only names them.

use super::EnvoyError;
use super::tree::Node;

/// The parts of a dump, after the last dot of their types.
const BOOTSTRAP: &str = ".BootstrapConfigDump";
const LISTENERS: &str = ".ListenersConfigDump";
const ROUTES: &str = ".RoutesConfigDump";

/// A configuration.
pub(super) struct EnvoyConfig<'n, 't> {
    pub(super) bootstrap: Node<'n, 't>,
    pub(super) listeners: Vec<Node<'n, 't>>,
    /// Routes that connection managers get from elsewhere (`rds`). `None`: the file does not have them.
    pub(super) routes: Option<Vec<Node<'n, 't>>>,
}

impl<'n, 't> EnvoyConfig<'n, 't> {
    pub(super) fn of(root: Node<'n, 't>) -> Result<Self, EnvoyError> {
        let parts = root.items("configs");
        let part = |kind: &str| parts.iter().find(|part| part.is_of_type(kind)).copied();
        if parts.is_empty() {
            let listeners = root.get("static_resources").map(|it| it.items("listeners")).unwrap_or_default();
            return Ok(Self { bootstrap: root, listeners, routes: None });
        }
        let (Some(bootstrap), Some(listeners)) =
            (part(BOOTSTRAP).and_then(|part| part.get("bootstrap")), part(LISTENERS))
        else {
            return Err(root.bad("a dump without bootstrap or listeners (expected all of /config_dump)"));
        };
        // A listener that is being replaced is in another state, together with its successor.
        let dynamic = listeners.items("dynamic_listeners").into_iter();
        let dynamic = dynamic.filter_map(|listener| listener.get("active_state"));
        let listeners = listeners.items("static_listeners").into_iter().chain(dynamic);
        let routes = part(ROUTES).map(|part| {
            let named = part.items("dynamic_route_configs").into_iter();
            named.filter_map(|routes| routes.get("route_config")).collect()
        });
        Ok(Self {
            bootstrap,
            listeners: listeners.filter_map(|listener| listener.get("listener")).collect(),
            routes: Some(routes.unwrap_or_default()),
        })
    }

    /// The routes of a connection manager that gets them from elsewhere, by `rds`.
    pub(super) fn routes_of(&self, rds: Node<'n, 't>) -> Result<Node<'n, 't>, EnvoyError> {
        let name = rds.text("route_config_name").unwrap_or_default();
        let Some(routes) = &self.routes else {
            return Err(rds.needs("`rds`: routes come from a control plane (expected a /config_dump)"));
        };
        let found = routes.iter().find(|routes| routes.text("name").is_some_and(|known| known == name));
        found.copied().ok_or_else(|| rds.needs(format!("`rds`: the dump has no routes of the name {name:?}")))
    }
}
