//! The pages, on the control thread: metrics, and the debug port with the admin API.

use std::sync::Arc;

use super::{App, Essential, exceptions, spawn_forever, status};
use crate::front::connections::{Listener, Workers, serve_pages};
use crate::front::{Drain, Handler};
use crate::logging;
use tidegate_operate::api::AdminApi;
use tidegate_operate::debug::{AdminFront, MetricsFront};
use tidegate_operate::gate::Gate;

/// Connections at a time on each of the two ports.
pub(super) const CONNECTIONS_MAX: usize = 64;

/// The page of metrics.
pub(super) fn metrics(app: &App) -> MetricsFront {
    let (hosts, path) = (app.configuration.metrics_hosts(), app.configuration.metrics.path.as_str());
    MetricsFront::new(path, hosts, Arc::clone(&app.metrics))
}

pub(super) fn keep_metrics(tasks: &mut Essential, app: &App, listener: Listener, drain: Drain) {
    spawn_forever(tasks, serve_pages(listener, metrics(app), CONNECTIONS_MAX, drain));
}

/// Serves the debug port. `gate` decides who may change something there.
pub(super) fn keep_debug(
    tasks: &mut Essential,
    app: &App,
    listener: Listener,
    gate: Gate,
    workers: &Arc<Workers>,
    handler: Arc<Handler>,
    drain: Drain,
) {
    let service = Arc::clone(&app.service);
    let changed = (Arc::clone(&app.exceptions), Arc::clone(&app.resets));
    let api = AdminApi::new(changed, Arc::clone(&service), *handler.bounds(), gate.clone())
        .with_records(app.records.clone());
    exceptions::register_refused(&app.metrics, &api.refused());
    let status = Arc::new(status::of(app, workers, api.refused()));
    spawn_forever(tasks, status::sample(Arc::clone(&status)));
    let front = AdminFront::new(service, handler, logging::SWITCH, status, gate).with_api(api);
    spawn_forever(tasks, serve_pages(listener, front, CONNECTIONS_MAX, drain));
}
