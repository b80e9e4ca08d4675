//! Builds the program from a configuration: sockets, threads and tasks. The first task that fails stops all; a signal
//! drains.
//!
//! Workers (one per core) serve the gRPC and HTTP ports and decide. The calling thread is the control thread: at a
//! lower priority, it does everything else.

mod bans;
mod holds;
mod control;
mod error;
mod events;
mod exceptions;
pub mod inside;
mod listen;
mod lookup;
mod memory;
mod metrics;
mod no_socket;
mod pages;
mod records;
mod reload;
mod resets;
mod shared;
mod signals;
mod spans;
mod state;
mod statsd;
mod status;
mod tls;
mod token;

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

pub use crate::app::error::AppError;
use crate::app::events::EventTasks;
use crate::app::listen::{Ports, listen};
use crate::app::reload::{Following, Starting};
pub use crate::app::shared::declare_complete;
use crate::app::signals::{EndSignals, Signals, reread_on_hangup};
use crate::app::state::State;
use crate::app::statsd::Sending;
use crate::app::tls::PortsTls;
use crate::app::token::GuardedAdmin;
pub use crate::app::token::token_header;
use crate::clock::{Clock, monotonic};
use crate::configuration::{Admin, Configuration, GrpcFront};
use crate::front::connections::{ConnectionBounds, Fronts, GrpcServer, Listener, Port, Workers};
use crate::front::http::HttpFront;
use crate::front::{DrainSwitch, Handler};
use crate::logging;
use crate::spans::Tracer;
use tidegate_engine::memory::MemoryStore;
use tidegate_engine::rules::{Example, Ink, StoreFailure};
use tidegate_operate::exceptions::Book;
use tidegate_operate::records::{Follower, RecordStore};
use tidegate_operate::resets::Resets;
use tidegate_serve::bans::Bans;
use tidegate_serve::decisions::DecisionLog;
use tidegate_serve::denied::DeniedKeys;
use tidegate_serve::health::Health;
use tidegate_serve::metrics::Metrics;
use tidegate_serve::reload::{Installer, ReloadLog};
use tidegate_serve::report::REPORT;
use tidegate_serve::service::Service;
use tidegate_state::{Author, Checkpoints};

/// How long running calls may take after the listeners have closed.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);
/// How long workers may then take to end the rest.
const CUT_TIMEOUT: Duration = Duration::from_secs(2);
/// Connections to the decision ports, in all. Each costs some 10 KiB; proxies open a few per core.
const CONNECTIONS_MAX: usize = 10_000;
/// Open files that remain for everything else: scrapes, reading rules, sockets, queues.
const OTHER_FILES: usize = 2 * pages::CONNECTIONS_MAX + 64;
/// The same for a folder of records.
const FOLDER_FILES: usize = tidegate_records::FILES_MAX + 32;
/// Niceness of the control thread, and of threads that load rules. On one core, workers go first.
const CONTROL_NICENESS: i32 = 10;

/// Runs until a signal or a failure. `lines` shows the lines of bad rules beneath the log messages about them, for
/// people at a terminal.
/// Fails when the program could not start, or ended other than by a signal.
pub fn run(configuration: Configuration, lines: Option<Ink>) -> Result<(), AppError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // First of all, so that a signal works at every moment.
    let signals = {
        let _entered = runtime.enter();
        Signals::register()?
    };
    logging::start(configuration.logging.level, configuration.logging.json);
    configuration.warnings.iter().for_each(|warning| tracing::warn!(target: REPORT, "{warning}"));
    let ended = runtime.block_on(serve(configuration, signals, lines));
    // A blocking read of rules must not delay the end.
    runtime.shutdown_background();
    ended
}

/// What the tasks share.
struct App {
    configuration: Configuration,
    clock: Clock,
    store: Arc<MemoryStore>,
    /// The author of the counters' keys.
    author: Author,
    state: Option<State>,
    metrics: Arc<Metrics>,
    service: Arc<Service>,
    exceptions: Arc<Book>,
    resets: Arc<Resets>,
    records: Option<Arc<RecordStore>>,
    /// Follows changes of records that other nodes make.
    follower: Option<Follower>,
    health: Arc<Health>,
    /// The last changes of rules, certificates and the mapping of metrics.
    reloads: Arc<ReloadLog>,
    denied: Option<Arc<DeniedKeys>>,
    tracer: Option<Tracer>,
    event_tasks: EventTasks,
}

async fn serve(
    configuration: Configuration,
    mut signals: Signals,
    lines: Option<Ink>,
) -> Result<(), AppError> {
    let tls = PortsTls::load(&configuration.listeners)?;
    let ports = listen(&configuration.listeners, &tls).await?;
    let Some(started) = signals.end.unless_received(App::start(configuration, lines)).await else {
        return Ok(());
    };
    let (app, rules) = started?;
    app.await_shared_store();
    let handler = app.handler();
    let workers = app.start_workers(&handler)?;
    // No request was served yet, and everything that can fail has succeeded: from here on the counters of the start
    // are used.
    if let Some(state) = &app.state
        && !state.mark(app.configuration.state.interval, &mut signals.end).await?
    {
        return Ok(());
    }
    if signals.end.unless_received(app.read_first()).await.is_none() {
        return Ok(());
    }
    app.announce(&ports);
    if rules.is_ready() {
        app.health.serve();
    }
    control::lower_priority(CONTROL_NICENESS);
    app.until_the_end(ports, workers, handler, rules, tls, signals).await
}

impl App {
    /// Restores the counters of the previous process, and opens the rest.
    async fn start(configuration: Configuration, lines: Option<Ink>) -> Result<(Self, Following), AppError> {
        let begun = state::begin(&configuration).await?;
        Self::open(configuration, begun, lines).await
    }

    /// Opens everything that a limiter needs, and loads its rules.
    async fn open(
        configuration: Configuration,
        begun: state::Begun,
        lines: Option<Ink>,
    ) -> Result<(Self, Following), AppError> {
        let app = Self::new(configuration, begun)?;
        records::open(app.records.as_ref()).await;
        let rules = app.rules(lines).load().await?;
        Ok((app, rules))
    }

    /// Makes every part. Each shows itself in metrics.
    fn new(configuration: Configuration, begun: state::Begun) -> Result<Self, AppError> {
        let state::Begun { folder, store, clock, author, outcome } = begun;
        let reloads = Arc::<ReloadLog>::default();
        let metrics = metrics::start(&configuration.metrics, &reloads, clock.now())?;
        memory::register(&metrics, &store, configuration.memory.max_bytes, configuration.redis.is_some());
        let checkpoints =
            folder.map(|folder| Checkpoints::new(folder, author.clone(), Arc::clone(&store), clock));
        let grace = configuration.state.grace;
        let state = checkpoints.map(|checkpoints| State::new(checkpoints, outcome, grace, &metrics));
        let counters = shared::counters(configuration.redis.clone(), &store, clock, &metrics)?;
        let log = DecisionLog::new(monotonic()).showing_values(configuration.logging.values);
        let event_tasks =
            EventTasks::start(configuration.events.as_ref(), &author.secret.secret(), &metrics)?;
        let Admin { certificate_names, .. } = &configuration.admin;
        let has_bearers = configuration.admin.has_token() || !certificate_names.is_empty();
        // If nobody may see names of keys, none are kept.
        let denied = (configuration.keep_keys || has_bearers).then(Arc::<DeniedKeys>::default);
        let records = records::store(&configuration.limits, &metrics)?;
        let (looked_up, follower) =
            lookup::records(records.as_ref(), &configuration.limits.lookup, &author, &metrics);
        let service = Service::new(counters, Arc::clone(&metrics), clock, configuration.modes)
            .recorded(looked_up)
            .spreading_retries(configuration.retry_jitter)
            .logging(log)
            .emitting(event_tasks.events.clone())
            .counting_denied_keys(denied.clone())
            .listing_bans(Bans::new(denied.is_some()));
        let service = Arc::new(service);
        state::register_cold(&metrics, &service, clock);
        reload::register(&metrics, &service);
        bans::register(&metrics, &service);
        holds::register(&metrics, &service);
        let exceptions = Arc::new(exceptions::open(&configuration.admin, configuration.redis.as_ref())?);
        exceptions.install(&service);
        exceptions::register(&metrics, &exceptions, &service);
        let resets = resets::open(&service, configuration.state.folder.as_deref())?;
        let tracer = spans::start(configuration.tracing.clone(), &metrics)?;
        Ok(Self {
            configuration,
            clock,
            store,
            author,
            state,
            metrics,
            service,
            exceptions,
            resets,
            records,
            follower,
            health: Arc::new(Health::starting()),
            reloads,
            denied,
            tracer,
            event_tasks,
        })
    }

    fn rules(&self, lines: Option<Ink>) -> Starting {
        let mut rules = self.configuration.rules.clone();
        rules.load.secret = self.author.secret.secret();
        rules.load.no_records = self.records.is_none().then_some("LIMITS_DIR or LIMITS_URL");
        let (service, metrics) = (Arc::clone(&self.service), Arc::clone(&self.metrics));
        let installer = Installer::new(rules.load.clone(), service, metrics, self.clock)
            .with_cold_windows(self.configuration.state.deny_cold)
            .with_reloads(Arc::clone(&self.reloads))
            .emitting(self.event_tasks.events.clone());
        let installer = match rules.health_needs_domain {
            true => installer.with_health(Arc::clone(&self.health)),
            false => installer,
        };
        // JSON logs are read by programs, which do not need these lines.
        let lines = lines.filter(|_| !self.configuration.logging.json);
        Starting::new(rules, installer, lines, Arc::clone(&self.health))
    }

    /// Keeps the process not ready until the shared store was reached once, if requests fail without it.
    fn await_shared_store(&self) {
        let redis = self.configuration.redis.as_ref();
        if redis.is_some_and(|redis| redis.failover.mode == StoreFailure::Error) {
            self.health.refuse(shared::NOT_REACHED);
        }
    }

    fn handler(&self) -> Arc<Handler> {
        let Configuration { bounds, answer_options, .. } = &self.configuration;
        let handler = Handler::new(Arc::clone(&self.service), Arc::clone(&self.metrics), *bounds);
        Arc::new(handler.with_answer_options(answer_options.clone()).traced(self.tracer.clone()))
    }

    fn start_workers(&self, handler: &Arc<Handler>) -> io::Result<Arc<Workers>> {
        let metrics = self.configuration.metrics.on_http.then(|| pages::metrics(self));
        let http = HttpFront::new(Arc::clone(handler), Arc::clone(&self.health), self.configuration.check);
        let fronts = Fronts {
            grpc: self.grpc_server(Arc::clone(handler)),
            http: http.with_metrics(metrics),
            service: Arc::clone(&self.service),
        };
        let bounds = ConnectionBounds {
            connections_max: connections_max(
                control::open_files_max(),
                self.configuration.limits.folder.is_some(),
            ),
            grpc_max_age: self.configuration.grpc_max_age,
        };
        Workers::start(self.configuration.workers, bounds, &fronts).map(Arc::new)
    }

    fn grpc_server(&self, handler: Arc<Handler>) -> GrpcServer {
        let health = Arc::clone(&self.health);
        match self.configuration.grpc_front {
            GrpcFront::Lane => GrpcServer::lane(handler, health),
            GrpcFront::Tonic => GrpcServer::tonic(handler, health),
        }
    }

    /// Logs what an operator wants to know of a process that has just started.
    fn announce(&self, ports: &Ports) {
        let Configuration { rules, bounds, memory, metrics, redis, workers, .. } = &self.configuration;
        tracing::info!("store: {} (BACKEND_TYPE)", self.configuration.backend());
        if let Some(redis) = redis {
            tracing::info!("redis: {} (REDIS_FAILURE_MODE)", redis.failover.mode.name());
        }
        tracing::info!("default algorithm: {} (DEFAULT_ALGORITHM)", rules.load.default_algorithm.name());
        tracing::info!(
            "bounds: MAX_COUNTER_BYTES={} STORE_FULL_MODE={} MAX_DESCRIPTORS={} MAX_ENTRIES={} MAX_REQUEST_BYTES={} \
             MAX_RULES_FILE_BYTES={} MAX_METRIC_SERIES={}",
            memory.max_bytes,
            memory.full.name(),
            bounds.descriptors_max,
            bounds.entries_max,
            bounds.request_bytes_max,
            rules.load.max_file_bytes,
            metrics.options.max_series,
        );
        tracing::info!("workers: {} (WORKER_THREADS)", workers.count);
        if !workers.spin_time.is_zero() {
            tracing::info!("workers spin for up to {:?} between calls (SPIN_TIME)", workers.spin_time);
        }
        for line in ports.lines() {
            tracing::info!("{line}");
        }
        if let Some(question) = self.service.with_rules(|rules| rules?.example().map(question)) {
            // A quote in it would end the quoted argument in the shell.
            let question = question.to_string().replace('\'', "\\u0027");
            tracing::info!("try: curl -s {}/json -d '{question}'", ports.http_address());
        }
    }

    /// Reads what other nodes know, before any request is served.
    async fn read_first(&self) {
        tokio::join!(self.resets.read_first(), exceptions::read_first(&self.exceptions, &self.service));
    }

    /// Starts the tasks of a limiter that make no decisions, with sockets or without.
    fn keep(&mut self, tasks: &mut Essential) {
        memory::keep(tasks, &self.store, &self.service, self.clock);
        exceptions::keep(tasks, &self.exceptions, &self.service);
        resets::keep(tasks, &self.resets, &self.service);
        records::keep(tasks, self.records.clone(), self.follower.take());
        shared::keep(tasks, self);
    }

    /// Serves until a signal, then drains. Fails when a task ends that must not end.
    async fn until_the_end(
        mut self,
        ports: Ports,
        workers: Arc<Workers>,
        handler: Arc<Handler>,
        rules: Following,
        tls: PortsTls,
        Signals { mut end, hangup }: Signals,
    ) -> Result<(), AppError> {
        let mut accepting = accept(&workers, ports.decisions);
        let (switch, mut control) = (DrainSwitch::new(), Essential::new());
        let admin = GuardedAdmin::open(&self.configuration)?;
        if let Some(listener) = ports.metrics {
            pages::keep_metrics(&mut control, &self, listener, switch.drain());
        }
        if let Some(listener) = ports.debug {
            let (gate, drain) = (admin.gate(), switch.drain());
            pages::keep_debug(&mut control, &self, listener, gate, &workers, handler, drain);
        }
        let mut sending = Sending::start(&self.configuration.metrics, &self.metrics);
        self.keep(&mut control);
        let mut files: Vec<_> = rules.keep(&mut control).into_iter().collect();
        files.extend(tls.keep(&mut control, &self.metrics, &self.reloads, self.clock)?);
        files.extend(admin.keep(&mut control, &self.reloads, self.clock)?);
        spawn_forever(&mut control, reread_on_hangup(files, hangup));
        tokio::select! {
            dead = first_dead(&mut accepting) => return Err(dead),
            dead = first_dead(&mut control) => return Err(dead),
            dead = sending.died() => return Err(dead),
            dead = self.event_tasks.died() => return Err(dead),
            () = end.received() => {}
        }
        tracing::info!("draining; a second signal ends at once");
        self.health.drain();
        let is_stopped = tokio::select! {
            is_stopped = self.drain(&workers, accepting) => is_stopped,
            () = end.received() => {
                tracing::warn!("ended by a second signal");
                false
            }
        };
        if let Some(state) = &self.state {
            state.save(is_stopped, &mut end).await;
        }
        exceptions::copy_at_the_end(&self.exceptions).await;
        tokio::join!(sending.finish(), self.event_tasks.finish());
        spans::finish(self.tracer).await;
        Ok(())
    }

    /// Lets running calls finish. Returns whether all workers have ended: then no further decision is made.
    async fn drain(&self, workers: &Workers, mut accepting: Essential) -> bool {
        tokio::time::sleep(self.configuration.listeners.drain_grace).await;
        accepting.shutdown().await;
        if workers.drain(DRAIN_TIMEOUT).await {
            tracing::info!("drained");
            return true;
        }
        tracing::warn!("ended with connections still open after {DRAIN_TIMEOUT:?}");
        workers.cut(CUT_TIMEOUT).await
    }
}

/// Tasks that must not end. One that ends returns why.
type Essential = JoinSet<AppError>;

/// Runs a loop that has no end.
fn spawn_forever(tasks: &mut Essential, running: impl Future<Output = Infallible> + Send + 'static) {
    tasks.spawn(async move { match running.await {} });
}

/// Accepts connections on every port, for the workers.
fn accept(workers: &Arc<Workers>, listeners: Vec<(Listener, Port)>) -> Essential {
    let mut tasks = Essential::new();
    for (listener, port) in listeners {
        let workers = Arc::clone(workers);
        tasks.spawn(async move {
            match workers.accept(listener, port).await {
                Err(error) => dead("accepting connections", error),
                Ok(never) => match never {},
            }
        });
    }
    tasks
}

/// Waits until one of these tasks ends, by an error or a panic.
async fn first_dead(tasks: &mut Essential) -> AppError {
    match tasks.join_next().await {
        Some(Ok(error)) => error,
        Some(Err(panic)) => dead("a task", panic),
        None => std::future::pending().await,
    }
}

fn dead(task: &'static str, reason: impl std::fmt::Display) -> AppError {
    AppError::Task { task, reason: reason.to_string() }
}

/// A request of one descriptor, as `/json` takes it.
fn question(example: &Example) -> serde_json::Value {
    let entry = |(key, value): &(String, String)| serde_json::json!({"key": key, "value": value});
    let entries: Vec<_> = example.entries.iter().map(entry).collect();
    serde_json::json!({"domain": &*example.domain, "descriptors": [{"entries": entries}]})
}

/// The number of decision connections for a process that may have this many files open. If they used all files,
/// nobody could scrape and no change of the rules could be read.
fn connections_max(open_files: usize, has_folder: bool) -> usize {
    let others = OTHER_FILES + if has_folder { FOLDER_FILES } else { 0 };
    open_files.saturating_sub(others).max(open_files / 2).min(CONNECTIONS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_files_for_everything_else() {
        assert_eq!(connections_max(1_024, false), 1_024 - OTHER_FILES);
        assert_eq!(connections_max(4_096, true), 4_096 - OTHER_FILES - FOLDER_FILES);
        assert_eq!(connections_max(256, true), 128, "a half at least, or nobody could ask");
        assert_eq!(connections_max(usize::MAX, true), CONNECTIONS_MAX);
    }
}
