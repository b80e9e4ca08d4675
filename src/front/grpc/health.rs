//! `grpc.health.v1` over the shared [`Health`]: the names `""` and `ratelimit` report the same status, any other is
//! NOT_FOUND. When the process drains, a watch gets NOT_SERVING and ends, so that it does not hold the process.

use std::sync::Arc;

use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::{Health as GrpcHealth, HealthServer};
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use crate::clock;
use tidegate_serve::health::{Health, Status};
use tidegate_serve::metrics::{GrpcMethod, Metrics};

use super::QUESTION_BYTES_MAX;

/// The service, as tonic routes it.
pub(super) fn service(health: Arc<Health>, metrics: Arc<Metrics>) -> HealthServer<HealthService> {
    HealthServer::new(HealthService { health, metrics }).max_decoding_message_size(QUESTION_BYTES_MAX)
}

pub(super) struct HealthService {
    health: Arc<Health>,
    metrics: Arc<Metrics>,
}

#[tonic::async_trait]
impl GrpcHealth for HealthService {
    type WatchStream = ReceiverStream<Result<HealthCheckResponse, tonic::Status>>;

    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, tonic::Status> {
        let began = clock::monotonic();
        let checked = check_name(request.get_ref()).map(|()| Response::new(report(&self.health.status())));
        self.metrics.grpc_calls(GrpcMethod::Check, clock::nanos_since(began), 1);
        checked
    }

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, tonic::Status> {
        check_name(request.get_ref())?;
        let (reports, stream) = mpsc::channel(1);
        tokio::spawn(follow(self.health.watch(), reports));
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}

/// Reports the status now and every change, until the process drains or the client goes away.
async fn follow(
    mut watcher: watch::Receiver<Status>,
    reports: mpsc::Sender<Result<HealthCheckResponse, tonic::Status>>,
) {
    let mut reported = None;
    loop {
        let status = watcher.borrow_and_update().clone();
        let now = report(&status);
        if reported != Some(now) && reports.send(Ok(now)).await.is_err() {
            return;
        }
        reported = Some(now);
        if status == Status::Draining {
            return;
        }
        tokio::select! {
            changed = watcher.changed() => if changed.is_err() { return },
            () = reports.closed() => return,
        }
    }
}

fn check_name(request: &HealthCheckRequest) -> Result<(), tonic::Status> {
    if is_known(&request.service) { Ok(()) } else { Err(tonic::Status::not_found(UNKNOWN)) }
}

/// The error for any other name.
pub(in crate::front) const UNKNOWN: &str = "service unknown; there are \"\" and \"ratelimit\"";

/// Whether this service has a health status.
pub(in crate::front) fn is_known(service: &str) -> bool {
    matches!(service, "" | "ratelimit")
}

/// The protocol's form of a status.
pub(in crate::front) fn report(status: &Status) -> HealthCheckResponse {
    let status = match status {
        Status::Serving => ServingStatus::Serving,
        Status::NotServing(_) | Status::Draining => ServingStatus::NotServing,
    };
    HealthCheckResponse { status: status.into() }
}
