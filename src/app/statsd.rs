//! Sends metrics to receivers of StatsD.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::app::{AppError, dead};
use crate::configuration;
use crate::statsd::Sender;
use tidegate_serve::metrics::Metrics;

/// How long sending the last metrics may take.
const LAST_METRICS_TIMEOUT: Duration = Duration::from_secs(2);

/// The running senders: a task per receiver, on the thread that started them.
pub(super) struct Sending {
    tasks: JoinSet<()>,
    end: watch::Sender<()>,
}

impl Sending {
    pub(super) fn start(configuration: &configuration::Metrics, metrics: &Arc<Metrics>) -> Self {
        let (end, ended) = watch::channel(());
        let mut tasks = JoinSet::new();
        for (reader, (address, dialect)) in configuration.receivers.iter().cloned().enumerate() {
            tracing::info!("metrics: sent to {address}");
            let sender = Sender::new(address, dialect, Arc::clone(metrics), reader);
            tasks.spawn(sender.run(configuration.flush, ended.clone()));
        }
        Self { tasks, end }
    }

    /// Waits until a task has died. None ends by itself.
    pub(super) async fn died(&mut self) -> AppError {
        match self.tasks.join_next().await {
            Some(Err(panic)) => dead("sending metrics", panic),
            Some(Ok(())) => dead("sending metrics", "it must not end"),
            None => std::future::pending().await,
        }
    }

    /// Sends the last metrics, for at most [`LAST_METRICS_TIMEOUT`].
    pub(super) async fn finish(mut self) {
        self.end.send_replace(());
        let all = async { while self.tasks.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(LAST_METRICS_TIMEOUT, all).await;
    }
}
