//! The fronts as their clients see them: real sockets on loopback, real workers.

mod check;
mod connections;
mod grpc;
mod http;
mod kuadrant;
mod lane;
mod reflection;
mod reserve;
mod handler;
mod answer_options;
mod tls;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ::http::StatusCode;
use tokio::task::JoinSet;

use crate::front::connections::{
    ConnectionBounds, Fronts, GrpcServer, Listener, Port, WorkerOptions, Workers, serve_pages,
};
use crate::front::http::{CheckOptions, HttpFront, Proxy};
use crate::front::{DrainSwitch, Handler, MaxAge};
use crate::logging;
use tidegate_operate::debug::{AdminFront, MetricsFront};
use tidegate_operate::gate::{AdminToken, Gate, Hosts};
use tidegate_serve::health::Health;
use tidegate_serve::metrics::Metrics;
use tidegate_serve::refusal::Bounds;
use tidegate_serve::service::Service;
pub(in crate::front) use tidegate_serve::service::fixture::{metrics, service, service_at};

/// Much longer than anything takes that works.
const TIMEOUT: Duration = Duration::from_secs(20);

const RULES: &str = "
domain: shop
descriptors:
  - { key: user, rate_limit: { unit: hour, requests_per_unit: 10 } }
  - key: plan
    value: free
    rate_limit: { name: free_plan, unit: minute, unit_multiplier: 5, requests_per_unit: 3 }
  - { key: plan, value: gold, rate_limit: { unlimited: true } }
";

impl Handler {
    pub fn service(&self) -> &Arc<Service> {
        &self.service
    }
}

/// A limiter with everything but settings. Users of the domain `shop` may do 10 an hour.
struct Server {
    grpc: SocketAddr,
    http: SocketAddr,
    admin: SocketAddr,
    metrics_page: SocketAddr,
    health: Arc<Health>,
    workers: Arc<Workers>,
    /// Closes the listeners when it is dropped.
    tasks: JoinSet<()>,
    _pages: DrainSwitch,
}

/// The defaults of the program.
pub(super) const CHECK: CheckOptions =
    CheckOptions { proxy: Proxy::Nginx, deny_status: StatusCode::TOO_MANY_REQUESTS, trusted_hops: 0 };

/// Both fronts of this service, and their health, which is good.
pub(super) fn fronts(service: Arc<Service>, metrics: Arc<Metrics>) -> (Fronts, Arc<Health>) {
    fronts_with(service, metrics, CHECK)
}

fn fronts_with(service: Arc<Service>, metrics: Arc<Metrics>, check: CheckOptions) -> (Fronts, Arc<Health>) {
    let handler = Arc::new(Handler::new(Arc::clone(&service), metrics, Bounds::default()));
    let health = Arc::new(Health::starting());
    health.serve();
    let fronts = Fronts {
        grpc: GrpcServer::tonic(Arc::clone(&handler), Arc::clone(&health)),
        http: HttpFront::new(handler, Arc::clone(&health), check),
        service,
    };
    (fronts, health)
}

impl Server {
    async fn start() -> Self {
        Self::with_rules(Some(RULES)).await
    }

    async fn without_rules() -> Self {
        Self::with_rules(None).await
    }

    async fn with_rules(rules: Option<&str>) -> Self {
        Self::with(rules, CHECK).await
    }

    async fn with(rules: Option<&str>, check: CheckOptions) -> Self {
        let metrics = metrics();
        let service = Arc::new(service(rules, &metrics));
        let (fronts, health) = fronts_with(Arc::clone(&service), Arc::clone(&metrics), check);
        let options = WorkerOptions { count: 2, spin_time: Duration::from_micros(50) };
        let bounds = ConnectionBounds { connections_max: 100, grpc_max_age: MaxAge::default() };
        let workers = Arc::new(Workers::start(options, bounds, &fronts).expect("threads"));
        let (mut tasks, pages) = (JoinSet::new(), DrainSwitch::new());
        let mut listen = async |port| {
            let (listener, address) = bind().await;
            let workers = Arc::clone(&workers);
            tasks.spawn(
                async move { workers.accept(listener, port).await.map_or((), |never| match never {}) },
            );
            address
        };
        let (grpc, http) = (listen(Port::Grpc).await, listen(Port::Http).await);
        let (listener, admin) = bind().await;
        let handler = Arc::new(Handler::new(Arc::clone(&service), Arc::clone(&metrics), Bounds::default()));
        let front = AdminFront::new(
            service,
            handler,
            logging::SWITCH,
            tidegate_operate::status::fixture::status(&metrics),
            Gate::new(Hosts::new("0.0.0.0", &[]), AdminToken::parse("let me in").ok()),
        );
        let serving = serve_pages(listener, front, 4, pages.drain());
        tasks.spawn(async move { match serving.await {} });
        let (listener, metrics_page) = bind().await;
        let front = MetricsFront::new("/prometheus", Hosts::new("", &[]), metrics);
        let serving = serve_pages(listener, front, 4, pages.drain());
        tasks.spawn(async move { match serving.await {} });
        Self { grpc, http, admin, metrics_page, health, workers, tasks, _pages: pages }
    }
}

pub(super) async fn bind() -> (Listener, SocketAddr) {
    let listener = Listener::tcp("127.0.0.1", 0).await.expect("a port is free");
    let address = listener.address().expect("it is bound");
    (listener, address)
}
