//! Counters that survive restarts: the outcome of the start is logged and shown in metrics, and the counters are
//! written at the end.

use std::sync::Arc;
use std::time::Duration;

use crate::app::{AppError, CONTROL_NICENESS, EndSignals, control};
use crate::clock::{Clock, wall};
use crate::configuration::Configuration;
use tidegate_engine::memory::MemoryStore;
use tidegate_engine::time::ceil_secs;
use tidegate_serve::metrics::{MetricType, Metrics};
use tidegate_serve::reload::counted;
use tidegate_serve::service::Service;
use tidegate_state::{
    Author, CheckpointTotals, Checkpoints, Folder, KeySource, Outcome, ShardName, StartOptions, ThisMachine,
    begin as begin_with,
};

/// What the process started with, and what it writes.
pub(super) struct State {
    checkpoints: Arc<Checkpoints>,
    outcome: Outcome,
    /// How long writing may take at the end. A disk that hangs must not keep the process.
    grace: Duration,
}

/// What the parts of the program start with.
pub(super) struct Begun {
    pub(super) folder: Option<Folder>,
    pub(super) store: Arc<MemoryStore>,
    pub(super) clock: Clock,
    pub(super) author: Author,
    pub(super) outcome: Outcome,
}

/// Takes the folder, and from it the counters of the previous process.
pub(super) async fn begin(configuration: &Configuration) -> Result<Begun, AppError> {
    let (state, memory) = (configuration.state.clone(), configuration.memory);
    // With Redis, the counters in memory are those of the fallback, and start at zero with each outage.
    let counts_in_redis = configuration.redis.is_some();
    let begin = move || -> Result<_, AppError> {
        let lock = |path| Folder::lock(path)?.counted_in(state.sequence_file.as_deref());
        let folder = state.folder.as_deref().map(lock).transpose()?;
        let options = StartOptions {
            own_secret: state.secret_file.as_deref().map(KeySource::of_file).transpose()?,
            skew: state.skew,
            members: state.members,
            grew_from: state.grew_from,
            name: ShardName::of(state.name.as_deref()),
            memory,
            deny_cold: state.deny_cold.filter(|_| !counts_in_redis),
            machine: Arc::new(ThisMachine),
        };
        let begun = begin_with(folder.as_ref(), &options)?;
        if let Some(folder) = &folder {
            report(&begun, folder);
        }
        if let Some(window_max) = options.deny_cold {
            report_cold(window_max, &begun);
        }
        let tidegate_state::Begun { store, clock, author, outcome, .. } = begun;
        Ok(Begun { folder, store: Arc::new(store), clock, author, outcome })
    };
    // Many counters take a while, and a signal must work at every moment.
    tokio::task::spawn_blocking(begin).await.map_err(std::io::Error::other)?
}

/// Logs for how long lost counters count as full.
fn report_cold(window_max: Duration, begun: &tidegate_state::Begun) {
    let left = ceil_secs(begun.store.coldness().until().nanos_since(begun.clock.now()));
    if left > 0 {
        let longer = match (begun.outcome, &begun.taken) {
            (Outcome::Unclean, Some(_)) => "go on from the checkpoint",
            (Outcome::Clean, _) => "go on",
            _ => "begin at 0",
        };
        tracing::warn!(
            "cold: counters were lost, so each counts as full for one window of its limit, {left} s at most; \
             windows longer than {window_max:?} {longer} (COLD_START=deny, COLD_START_MAX_WINDOW)"
        );
    }
}

/// Logs the outcome of the start.
fn report(begun: &tidegate_state::Begun, folder: &Folder) {
    let path = folder.path().display();
    let taken = begun.taken.as_ref().map(|(totals, written)| {
        let age = Duration::from_nanos(wall().nanos_since(written.wall)).as_secs();
        format!(
            "{}, written {age} s ago",
            counted(usize::try_from(totals.all()).unwrap_or(usize::MAX), "counter")
        )
    });
    match (begun.outcome, &taken) {
        (Outcome::Clean, Some(taken)) => tracing::info!("state: {taken}, from {path} (STATE_DIR)"),
        (Outcome::Unclean, Some(taken)) => {
            tracing::warn!(
                "state: the previous process was killed or could not write its counters; its last checkpoint counts: \
                 {taken}, from {path}"
            );
        }
        (Outcome::Unclean, None) => {
            tracing::warn!(
                "state: the previous process was killed or could not write its counters: they are lost ({path})"
            );
        }
        (Outcome::None, _) => tracing::info!(
            "state: {path} holds no counters (STATE_DIR; `tidegate state init` declares that there is no history)"
        ),
        _ => {}
    }
    if let Some((distrust, aside)) = &begun.refused {
        tracing::error!(
            "state: counters are not restored: {distrust}; the file is kept as {}",
            aside.display()
        );
    }
    if begun.taken.is_some() {
        report_clock(&begun.clock);
    }
}

/// Logs a clock of decisions that is far from the wall clock.
fn report_clock(clock: &Clock) {
    let (clock, wall) = (clock.now(), wall());
    let off = Duration::from_nanos(wall.nanos_since(clock).max(clock.nanos_since(wall)));
    if off >= Duration::from_secs(1) {
        tracing::info!(
            "state: restored counters use a clock that is {} s {} the wall clock",
            off.as_secs(),
            if clock < wall { "behind" } else { "ahead of" }
        );
    }
}

impl State {
    /// The state of a process that started with this, shown in metrics.
    pub(super) fn new(
        checkpoints: Checkpoints,
        outcome: Outcome,
        grace: Duration,
        metrics: &Metrics,
    ) -> Self {
        let state = Self { checkpoints: Arc::new(checkpoints), outcome, grace };
        state.register(metrics);
        state
    }

    /// Marks the counters as used, before the first answer, and begins to write checkpoints. Returns whether the
    /// process goes on: a signal may come meanwhile, and then the counters are written again.
    pub(super) async fn mark(
        &self,
        interval: Option<Duration>,
        end: &mut EndSignals,
    ) -> Result<bool, AppError> {
        let (checkpoints, outcome) = (Arc::clone(&self.checkpoints), self.outcome);
        let mut marking = tokio::task::spawn_blocking(move || checkpoints.mark(outcome));
        tokio::select! {
            marked = &mut marking => marked.map_err(std::io::Error::other)??,
            () = end.received() => {
                let is_marked = tokio::time::timeout(self.grace, marking).await.is_ok();
                self.save(is_marked, end).await;
                return Ok(false);
            }
        }
        if let Some(interval) = interval {
            self.checkpoints.start(interval, || control::lower_priority(CONTROL_NICENESS))?;
        }
        Ok(true)
    }

    fn register(&self, metrics: &Metrics) {
        let outcome = self.outcome;
        metrics
            .of(&self.checkpoints)
            .samples(
                MetricType::Counter,
                "tidegate_state_start_total",
                "Starts of this process with STATE_DIR, by what they found there.",
                move |_, samples| {
                    for known in Outcome::ALL {
                        samples.push(&[("outcome", known.name())], u64::from(known == outcome));
                    }
                },
            )
            .samples(
                MetricType::Counter,
                "tidegate_state_checkpoints_total",
                "Checkpoints of all counters, by whether they were written.",
                |checkpoints, samples| {
                    let CheckpointTotals { written, failed } = checkpoints.totals();
                    samples.push(&[("outcome", "written")], written);
                    samples.push(&[("outcome", "failed")], failed);
                },
            );
    }

    /// Writes all counters, if no further decision is made. A second signal ends that too.
    pub(super) async fn save(&self, is_stopped: bool, end: &mut EndSignals) {
        let folder = self.checkpoints.folder().path().display();
        let lost = "the counters of this process are lost";
        if !is_stopped {
            return tracing::error!("state: {lost}: decisions were still being made at the end ({folder})");
        }
        let checkpoints = Arc::clone(&self.checkpoints);
        let writing = tokio::task::spawn_blocking(move || checkpoints.finish());
        tokio::select! {
            written = tokio::time::timeout(self.grace, writing) => match written {
                Ok(Ok(Ok(count))) => {
                    let count = usize::try_from(count).unwrap_or(usize::MAX);
                    tracing::info!("state: {} written to {folder}", counted(count, "counter"));
                }
                Ok(Ok(Err(error))) => tracing::error!("state: {lost}: {error}"),
                Ok(Err(panic)) => tracing::error!("state: {lost}: {panic}"),
                Err(_) => {
                    let grace = self.grace;
                    tracing::error!("state: {lost}: writing to {folder} took longer than {grace:?} (STATE_GRACE)");
                }
            },
            () = end.received() => tracing::error!("state: {lost}: ended by a second signal ({folder})"),
        }
    }
}

/// Shows in metrics for how long lost counters count as full.
pub(super) fn register_cold(metrics: &Metrics, service: &Arc<Service>, clock: Clock) {
    metrics.of(service).value(
        MetricType::Gauge,
        "tidegate_cold_seconds",
        "Seconds until no counter counts as full any more because it was lost (COLD_START=deny).",
        move |service| ceil_secs(service.counters().coldness().until().nanos_since(clock.now())),
    );
}
