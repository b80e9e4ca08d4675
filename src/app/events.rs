//! Starts to emit events: opens the outlets, and shows them in metrics.

use std::fmt::Display;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::app::{AppError, dead};
use crate::clock::{Clock, monotonic};
use crate::configuration::{self, WebhookSettings};
use crate::webhook::{Endpoint, Webhook};
use tidegate_engine::key::KeySecret;
use tidegate_serve::events::{Events, KeyNames, Lines, Outlet};
use tidegate_serve::metrics::{
    MetricType::{Counter, Gauge},
    Metrics, Samples,
};

/// How long sending the last events may take.
const LAST_EVENTS_TIMEOUT: Duration = Duration::from_secs(2);
/// The purpose for which the secret of hashes is derived, so that it has nothing in common with the keys of counters.
const PURPOSE: &[u8] = b"tidegate: hashes of keys in events";

/// Events, and the tasks that send them. Without outlets there are neither.
pub(super) struct EventTasks {
    pub(super) events: Option<Arc<Events>>,
    tasks: JoinSet<()>,
    end: watch::Sender<()>,
}

impl EventTasks {
    /// Opens the outlets and begins to send. Keys are hashed under a secret that is derived from this one.
    pub(super) fn start(
        configuration: Option<&configuration::Events>,
        secret: &KeySecret,
        metrics: &Metrics,
    ) -> Result<Self, AppError> {
        let (end, ending) = watch::channel(());
        let mut sending = Self { events: None, tasks: JoinSet::new(), end };
        let Some(configuration) = configuration else { return Ok(sending) };
        let secret = secret.seed([PURPOSE]).key([]).0.to_le_bytes();
        let names = KeyNames::new(&secret, configuration.shows_entries);
        let (mut outlets, wall) = (Vec::new(), Clock::start());
        let open = |name| Outlet::new(name, configuration.options.queue_max, names.clone(), ending.clone());
        if let Some(to) = &configuration.lines {
            let lines =
                Lines::new(to.clone()).map_err(|source| AppError::EventsLog { path: to.name(), source })?;
            tracing::info!("events: written to {} (EVENTS_LOG)", to.name());
            let (outlet, queue) = open("log");
            outlets.push(outlet);
            sending.tasks.spawn(lines.run(queue));
        }
        if let Some(settings) = &configuration.webhook {
            let webhook = webhook(settings, wall)?;
            let (outlet, queue) = open("webhook");
            outlets.push(outlet);
            sending.tasks.spawn(webhook.run(queue));
        }
        let events = Events::new(configuration.options.clone(), &names, (monotonic(), wall), outlets);
        let events = Arc::new(events);
        register(metrics, &events);
        sending.events = Some(events);
        Ok(sending)
    }

    /// Waits until a task has died. None ends by itself.
    pub(super) async fn died(&mut self) -> AppError {
        match self.tasks.join_next().await {
            Some(Err(panic)) => dead("sending events", panic),
            Some(Ok(())) => dead("sending events", "it must not end"),
            None => std::future::pending().await,
        }
    }

    /// Sends the last events, for at most [`LAST_EVENTS_TIMEOUT`].
    pub(super) async fn finish(mut self) {
        self.end.send_replace(());
        let all = async { while self.tasks.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(LAST_EVENTS_TIMEOUT, all).await;
    }
}

fn webhook(settings: &WebhookSettings, wall: Clock) -> Result<Webhook, AppError> {
    let file = |path: PathBuf| {
        tidegate_disk::read(&path)
            .map_err(|source| AppError::File { path: path.display().to_string(), source })
    };
    let endpoint = Endpoint {
        url: settings.url.clone(),
        proxy: settings.proxy.clone(),
        roots: settings.roots.clone().map(file).transpose()?,
        timeout: settings.timeout,
    };
    let unsigned =
        if settings.secret.is_some() { "" } else { "; nothing signs them (EVENTS_WEBHOOK_SECRET)" };
    tracing::info!("events: sent to {} (EVENTS_WEBHOOK_URL){unsigned}", endpoint.place());
    let secret = settings.secret.as_ref().map(|secret| secret.0.as_bytes());
    Webhook::new(endpoint, secret, wall, settings.retry_time)
        .map_err(|error| AppError::BadFile { setting: "EVENTS_WEBHOOK_CACERT", problem: error.to_string() })
}

#[rustfmt::skip]
fn register(metrics: &Metrics, events: &Arc<Events>) {
    metrics
        .of(events)
        .samples(Counter, "tidegate_events_total", "Events that were emitted, by kind.",
            |events, samples| events.emitted().for_each(|(kind, count)| samples.push(&[("event", kind.name())], count)))
        .value(Counter, "tidegate_events_left_out_total", "Events that were left out because their rule had emitted enough in that second.", |events| events.left_out())
        .samples(Counter, "tidegate_events_dropped_total", "Events that an outlet dropped: its queue was full, or its receiver failed.", |events, samples| {
            for outlet in events.outlets() {
                for (reason, count) in outlet.totals().dropped() {
                    samples.push(&[("to", outlet.name), ("reason", reason)], count);
                }
            }
        })
        .samples(Gauge, "tidegate_events_waiting", "Events that wait for an outlet.", by_outlet(Outlet::waiting))
        .samples(Counter, "tidegate_events_sent_total", "Events that an outlet has sent.", by_outlet(|outlet| outlet.totals().sent()))
        .samples(Counter, "tidegate_events_failures_total", "Attempts of an outlet that failed.", by_outlet(|outlet| outlet.totals().failures()));
}

/// Writes a value of each outlet.
fn by_outlet<Value: Display>(read: impl Fn(&Outlet) -> Value) -> impl Fn(&Events, &mut Samples<'_>) {
    move |events, samples| {
        events.outlets().iter().for_each(|outlet| samples.push(&[("to", outlet.name)], read(outlet)));
    }
}
