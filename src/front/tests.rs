//! The fronts as their clients see them: real sockets on loopback, real workers.

mod connections;
mod grpc;
mod http;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::front::connections::{DrainSwitch, Fronts, Port, Workers, serve_pages};
use crate::front::grpc::GrpcFront;
use crate::front::http::{AdminFront, HttpFront, MetricsFront};
use crate::front::{Bounds, Seam};
use crate::health::Health;
use crate::metrics::{Metrics, MetricsOptions};
use crate::service::Service;

/// Much longer than anything takes that works.
const PATIENCE: Duration = Duration::from_secs(20);

/// A whole limiter but for the settings. Users of the domain `shop` may do 10 an hour.
struct Server {
    grpc: SocketAddr,
    http: SocketAddr,
    admin: SocketAddr,
    metrics_page: SocketAddr,
    health: Arc<Health>,
    workers: Arc<Workers>,
    /// Closes the listeners when it is dropped.
    tasks: JoinSet<()>,
    pages: DrainSwitch,
}

fn metrics() -> Arc<Metrics> {
    Arc::new(Metrics::new(&MetricsOptions { near_limit_ratio: 0.8, max_series: 100, stripes: 2 }))
}

impl Server {
    async fn start() -> Self {
        Self::with_service(Service::stand_in(Some(10))).await
    }

    async fn without_rules() -> Self {
        Self::with_service(Service::stand_in(None)).await
    }

    async fn with_service(service: Service) -> Self {
        let (service, metrics) = (Arc::new(service), metrics());
        let seam = Arc::new(Seam::new(Arc::clone(&service), Arc::clone(&metrics), Bounds::default()));
        let health = Arc::new(Health::starting());
        health.serve();
        let fronts = Fronts {
            grpc: GrpcFront::new(Arc::clone(&seam), Arc::clone(&health)),
            http: HttpFront::new(seam, Arc::clone(&health)),
        };
        let workers = Arc::new(Workers::start(2, 100, &fronts).expect("threads"));
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
        let front = AdminFront::new(service, Arc::clone(&metrics), Some("let me in".into()));
        tasks.spawn(serve_pages(listener, front, 4, pages.drain()));
        let (listener, metrics_page) = bind().await;
        tasks.spawn(serve_pages(listener, MetricsFront::new("/prometheus", metrics), 4, pages.drain()));
        Self { grpc, http, admin, metrics_page, health, workers, tasks, pages }
    }
}

async fn bind() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let address = listener.local_addr().expect("it is bound");
    (listener, address)
}
