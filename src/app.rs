//! The composition root: settings become sockets, threads and tasks; the first task that fails stops all; a signal
//! drains.
//!
//! Workers (one a core) serve the gRPC and the HTTP port and decide. The calling thread, at a lower priority, is the
//! control thread: it does everything else.

mod control;
mod listen;
mod mapping;
mod reload;
mod shared;
mod spans;
mod statsd;
mod tls;

pub use self::reload::{load_options, no_rules, rules_layout, rules_setting};

use std::convert::Infallible;
use std::io;
use std::num::NonZero;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use http::StatusCode;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinSet;

use crate::app::listen::{NoSocket, Ports, listen};
use crate::app::reload::{Following, Installer, Starting, counted};
use crate::app::statsd::Sending;
use crate::app::tls::PortsTls;
use crate::clock::{Clock, monotonic};
use crate::decisions::DecisionLog;
use crate::front::connections::{
    ConnectionBounds, DrainSwitch, Fronts, GrpcServer, Listener, MaxAge, Port, Workers, serve_pages,
};
use crate::front::http::{AdminFront, CheckOptions, Gate, HttpFront, MetricsFront, Proxy};
use crate::front::{Bounds, LimitHeaders, Seam, Telling};
use crate::health::Health;
use crate::logging::{self, REPORT};
use crate::metrics::{Metrics, MetricsOptions};
use crate::service::{Counters, Service};
use crate::settings::value::{Backend, CheckProxy, FullMode, GrpcFrontKind, StoreFailureMode};
use crate::settings::{Settings, machine};
use crate::source::file::{Reread, SourceError};
use crate::spans::{ExportError, Tracer};
use crate::statsd::{Address, Dialect};
use tidegate_engine::key::KeySecret;
use tidegate_engine::memory::{MemoryOptions, MemoryStore, StoreFull};
use tidegate_engine::plan::Modes;
use tidegate_engine::rules::{Diagnostic, Example, Ink};

/// How long running calls may take after the listeners have closed.
const DRAIN_PATIENCE: Duration = Duration::from_secs(10);
/// Connections of decisions, in all. Each costs some 10 KiB; proxies open a few a core.
const CONNECTIONS_MAX: usize = 10_000;
/// Connections of scrapers and of people, at a time, on each of two ports.
const PAGE_CONNECTIONS_MAX: usize = 64;
/// Open files that connections of decisions leave to everything else: scrapes, rules that are read, sockets, queues.
const OTHER_FILES: usize = 2 * PAGE_CONNECTIONS_MAX + 64;
/// How much nicer than the workers the control thread is, and whatever loads rules: on one core decisions go first.
const CONTROL_NICENESS: i32 = 10;

/// Why the program ends with a failure.
#[derive(Debug, thiserror::Error)]
pub enum AppError {
    /// Every socket that cannot be had, a line each.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Listen(Vec<NoSocket>),
    /// A file of TLS that is no good.
    #[error("{setting}: {problem}")]
    Tls {
        /// The setting that names it.
        setting: &'static str,
        /// The file, and what is wrong with it.
        problem: String,
    },
    /// A Redis that is described badly.
    #[error("redis: {problem}")]
    Redis {
        /// What is wrong.
        problem: String,
    },
    /// Rules that cannot be read.
    #[error("cannot read the rules: {error} ({remedy})")]
    Source {
        /// Why.
        error: SourceError,
        /// The setting that says where rules lie.
        remedy: &'static str,
    },
    /// Rules that were refused, for this many problems, each of which was told.
    #[error("the rules were refused for {}", counted(*.0, "problem"))]
    Rules(usize),
    /// A file that a setting names and that cannot be read.
    #[error("cannot read {path}: {source}")]
    File {
        /// Which one.
        path: String,
        /// What the system says.
        source: io::Error,
    },
    /// A mapping of metrics that was refused, with every problem.
    #[error("the mapping of metrics was refused:{}", .0.iter().map(|problem| format!("\n{problem}")).collect::<String>())]
    Mapping(Vec<Diagnostic>),
    /// Spans could never be sent.
    #[error("tracing: {0}")]
    Tracing(#[from] ExportError),
    /// Something that the system refused.
    #[error("cannot start: {0}")]
    System(#[from] io::Error),
    /// A task that must not end ended.
    #[error("{task} ended: {reason}")]
    Task {
        /// Which one.
        task: &'static str,
        /// Why.
        reason: String,
    },
}

/// Runs until a signal or a failure. `lines`: what shows the lines of rules that are bad, beneath what is logged of
/// them; for a terminal, where people read.
///
/// # Errors
/// When the program could not start, or ended other than by a signal.
pub fn run(settings: Settings, lines: Option<Ink>) -> Result<(), AppError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // First of all: a signal works at every moment.
    let signals = {
        let _entered = runtime.enter();
        Signals::register()?
    };
    logging::start(settings.log_level, &settings.log_format);
    settings.warnings.iter().for_each(|warning| tracing::warn!(target: REPORT, "{warning}"));
    let ended = runtime.block_on(serve(settings, signals, lines));
    // A blocking read of rules must not hold up the end.
    runtime.shutdown_background();
    ended
}

/// Everything that is shared between the tasks.
struct App {
    settings: Settings,
    clock: Clock,
    store: Arc<MemoryStore>,
    metrics: Arc<Metrics>,
    service: Arc<Service>,
    health: Arc<Health>,
    tracer: Option<Tracer>,
    receivers: Vec<(Address, Dialect)>,
}

async fn serve(settings: Settings, mut signals: Signals, lines: Option<Ink>) -> Result<(), AppError> {
    let tls = PortsTls::load(&settings)?;
    let ports = listen(&settings, &tls).await?;
    let app = App::new(settings)?;
    let starting = app.rules(lines)?;
    let rules = tokio::select! {
        loaded = starting.load() => loaded?,
        () = signals.end.received() => return Ok(()),
    };
    app.await_shared_store();
    let seam = app.seam();
    let workers = app.start_workers(&seam)?;
    app.announce(&ports);
    if rules.is_ready() {
        app.health.serve();
    }
    control::lower_priority(CONTROL_NICENESS);
    tls.register(&app.metrics);
    app.until_the_end(ports, (workers, seam), rules, tls, signals).await
}

impl App {
    fn new(settings: Settings) -> Result<Self, AppError> {
        let clock = Clock::start();
        let store = Arc::new(MemoryStore::new(MemoryOptions {
            max_bytes: counter_bytes(&settings),
            full: match settings.store_full_mode {
                FullMode::Deny => StoreFull::Deny,
                FullMode::Allow => StoreFull::Allow,
            },
        }));
        let receivers = statsd::receivers(&settings);
        let metrics = Arc::new(Metrics::new(&MetricsOptions {
            near_limit_ratio: settings.near_limit_ratio,
            max_series: settings.max_metric_series.0,
            stripes: worker_threads(&settings) + 1,
            timer_readers: receivers.len(),
            constant_labels: settings.extra_tags.0.clone(),
            names: mapping::names(&settings)?,
        }));
        control::register_store(&metrics, &store);
        let modes = Modes {
            shadow: settings.shadow_mode,
            quota: settings.quota_mode,
            stop_increment_when_over: settings.stop_cache_key_increment_when_overlimit,
        };
        let log = DecisionLog::new(monotonic()).showing_values(settings.log_values);
        let counters = match shared::store(&settings, &store, clock)? {
            Some(shared) => {
                shared::register(&metrics, &shared);
                Counters::Shared(shared)
            }
            None => Counters::Memory(Arc::clone(&store)),
        };
        let service = Service::new(counters, Arc::clone(&metrics), clock, modes).logging(log);
        let service = Arc::new(service);
        let tracer = spans::start(&settings)?;
        Ok(Self {
            settings,
            clock,
            store,
            metrics,
            service,
            health: Arc::new(Health::starting()),
            tracer,
            receivers,
        })
    }

    fn rules(&self, lines: Option<Ink>) -> io::Result<Starting> {
        let mut secret = [0; 16];
        getrandom::fill(&mut secret).map_err(io::Error::from)?;
        let (service, metrics) = (Arc::clone(&self.service), Arc::clone(&self.metrics));
        let installer = Installer::new(&self.settings, KeySecret::new(secret), service, metrics, self.clock);
        let installer = match self.settings.healthy_with_at_least_one_config_loaded {
            true => installer.turning(Arc::clone(&self.health)),
            false => installer,
        };
        Ok(Starting::new(&self.settings, installer, lines, Arc::clone(&self.health)))
    }

    /// Not ready before a store that is needed was reached once.
    fn await_shared_store(&self) {
        let error = self.settings.redis_failure_mode == StoreFailureMode::Error;
        if self.service.counters().shared().is_some() && error {
            self.health.refuse(shared::NOT_REACHED);
        }
    }

    fn seam(&self) -> Arc<Seam> {
        let bounds = Bounds {
            descriptors_max: self.settings.max_descriptors.0,
            entries_max: self.settings.max_entries.0,
            request_bytes_max: self.settings.max_request_bytes.0,
        };
        let seam = Seam::new(Arc::clone(&self.service), Arc::clone(&self.metrics), bounds);
        Arc::new(seam.telling(telling(&self.settings)).traced(self.tracer.clone()))
    }

    fn start_workers(&self, seam: &Arc<Seam>) -> io::Result<Arc<Workers>> {
        let fronts = Fronts {
            grpc: self.grpc_server(Arc::clone(seam)),
            http: HttpFront::new(Arc::clone(seam), Arc::clone(&self.health), check_options(&self.settings)),
            service: Arc::clone(&self.service),
        };
        let bounds = ConnectionBounds {
            connections_max: connections_max(control::open_files_max()),
            grpc_max_age: MaxAge {
                age: unless_0(self.settings.grpc_max_connection_age),
                grace: unless_0(self.settings.grpc_max_connection_age_grace),
            },
        };
        Workers::start(worker_threads(&self.settings), bounds, &fronts).map(Arc::new)
    }

    fn grpc_server(&self, seam: Arc<Seam>) -> GrpcServer {
        let health = Arc::clone(&self.health);
        match self.settings.grpc_front {
            // Spans need the text of headers, which the lane does not keep.
            GrpcFrontKind::Lane if self.tracer.is_some() => {
                tracing::info!("tracing is on: tonic serves the gRPC port (the lane does not trace)");
                GrpcServer::tonic(seam, health)
            }
            GrpcFrontKind::Lane => GrpcServer::lane(seam, health),
            GrpcFrontKind::Tonic => GrpcServer::tonic(seam, health),
        }
    }

    /// One line each: what an operator wants to know of a process that has just started.
    fn announce(&self, ports: &Ports) {
        let settings = &self.settings;
        tracing::info!("store: {} (BACKEND_TYPE)", settings.backend_type.unwrap_or(Backend::Memory).name());
        if settings.backend_type == Some(Backend::Redis) {
            tracing::info!("redis: {} (REDIS_FAILURE_MODE)", settings.redis_failure_mode.name());
        }
        tracing::info!("default algorithm: {} (DEFAULT_ALGORITHM)", settings.default_algorithm.name());
        tracing::info!(
            "bounds: MAX_COUNTER_BYTES={} STORE_FULL_MODE={} MAX_DESCRIPTORS={} MAX_ENTRIES={} MAX_REQUEST_BYTES={} \
             MAX_RULES_FILE_BYTES={} MAX_METRIC_SERIES={}",
            counter_bytes(settings),
            settings.store_full_mode.name(),
            settings.max_descriptors.0,
            settings.max_entries.0,
            settings.max_request_bytes.0,
            settings.max_rules_file_bytes.0,
            settings.max_metric_series.0,
        );
        tracing::info!("workers: {} (WORKER_THREADS)", worker_threads(settings));
        for line in ports.lines() {
            tracing::info!("{line}");
        }
        if let Some(question) = self.service.with_rules(|rules| rules?.example().map(question)) {
            // A quote would end the shell's.
            let question = question.to_string().replace('\'', "\\u0027");
            tracing::info!("try: curl -s {}/json -d '{question}'", ports.http_address());
        }
    }

    /// Serves until a signal, then drains; or until the first task ends that must not.
    async fn until_the_end(
        self,
        ports: Ports,
        (workers, seam): (Arc<Workers>, Arc<Seam>),
        rules: Following,
        tls: PortsTls,
        signals: Signals,
    ) -> Result<(), AppError> {
        let mut accepting = accept(&workers, ports.decisions);
        let switch = DrainSwitch::new();
        let mut control = self.serve_pages((ports.metrics, ports.debug), seam, &switch);
        let flush = self.settings.stats_flush_interval.0;
        let mut sending = Sending::start(self.receivers.clone(), &self.metrics, flush);
        let sweeping = control::sweep(Arc::clone(&self.store), Arc::clone(&self.service), self.clock);
        control.spawn(async move { match sweeping.await {} });
        let mut files: Vec<_> = rules.reread().into_iter().collect();
        control.spawn(rules.until_it_dies());
        if let Some(shared) = self.service.counters().shared() {
            let (shared, health) = (Arc::clone(shared), Arc::clone(&self.health));
            control.spawn(shared::watch(shared, health, self.settings.clone()));
        }
        files.extend(tls.watch(&mut control)?);
        let Signals { mut end, hangup } = signals;
        control.spawn(async move { match take_again(files, hangup).await {} });
        tokio::select! {
            dead = first_dead(&mut accepting) => return Err(dead),
            dead = first_dead(&mut control) => return Err(dead),
            dead = sending.died() => return Err(dead),
            () = end.received() => {}
        }
        tracing::info!("draining; a second signal ends at once");
        self.health.drain();
        tokio::select! {
            () = self.drain(&workers, accepting) => {}
            () = end.received() => tracing::warn!("ended by a second signal"),
        }
        sending.finish().await;
        if let Some(tracer) = self.tracer {
            // It waits for the collector, which this thread talks to.
            let _ = tokio::task::spawn_blocking(move || tracer.finish()).await;
        }
        Ok(())
    }

    /// Serves scrapers and people on the control thread.
    fn serve_pages(
        &self,
        (metrics, debug): (Option<Listener>, Option<Listener>),
        seam: Arc<Seam>,
        switch: &DrainSwitch,
    ) -> Essential {
        let mut tasks = Essential::new();
        if let Some(listener) = metrics {
            let front =
                MetricsFront::new(self.settings.prometheus_path.0.as_str(), Arc::clone(&self.metrics));
            let serving = serve_pages(listener, front, PAGE_CONNECTIONS_MAX, switch.drain());
            tasks.spawn(async move { match serving.await {} });
        }
        if let Some(listener) = debug {
            let gate = Gate::new(
                &self.settings.debug_host,
                self.settings.admin_token.as_ref().map(|token| &*token.0),
            );
            let (service, metrics) = (Arc::clone(&self.service), Arc::clone(&self.metrics));
            let front = AdminFront::new(service, seam, metrics, gate);
            let serving = serve_pages(listener, front, PAGE_CONNECTIONS_MAX, switch.drain());
            tasks.spawn(async move { match serving.await {} });
        }
        tasks
    }

    async fn drain(&self, workers: &Workers, mut accepting: Essential) {
        tokio::time::sleep(self.settings.drain_grace).await;
        accepting.shutdown().await;
        match workers.drain(DRAIN_PATIENCE).await {
            true => tracing::info!("drained"),
            false => tracing::warn!("ended with connections that were still open after {DRAIN_PATIENCE:?}"),
        }
    }
}

/// Tasks that must not end. One that does says why.
type Essential = JoinSet<AppError>;

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

/// Waits for a task to end that must not: with an error, or by a panic.
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

/// What answers tell beside codes and limits.
fn telling(settings: &Settings) -> Telling {
    let names = LimitHeaders {
        limit: settings.limit_limit_header.0.clone(),
        remaining: settings.limit_remaining_header.0.clone(),
        reset: settings.limit_reset_header.0.clone(),
    };
    Telling {
        headers: settings.limit_response_headers_enabled.then_some(names),
        dynamic_metadata: settings.response_dynamic_metadata,
    }
}

fn check_options(settings: &Settings) -> CheckOptions {
    let deny_status = StatusCode::from_u16(settings.check_deny_status.0);
    CheckOptions {
        proxy: match settings.check_proxy {
            CheckProxy::Nginx => Proxy::Nginx,
            CheckProxy::Forwarded => Proxy::Forwarded,
        },
        deny_status: deny_status.expect("the setting is from 400 to 599"),
        trusted_hops: settings.xff_num_trusted_hops.0,
    }
}

/// What the program finds out where nobody sets it: the value of this setting, as it would be written.
pub fn found_out(settings: &Settings, name: &str) -> Option<String> {
    Some(match name {
        "BACKEND_TYPE" => settings.backend_type?.name().to_owned(),
        "WORKER_THREADS" => worker_threads(settings).to_string(),
        "MAX_COUNTER_BYTES" => counter_bytes(settings).to_string(),
        "USE_PROMETHEUS" => (!settings.disable_stats).to_string(),
        "USE_STATSD" => statsd::plain_is_on(settings).to_string(),
        "STATSD_HOST" => statsd::HOST.to_owned(),
        "STATSD_PORT" => statsd::PORT.to_string(),
        "STATSD_PROTOCOL" => "tcp".to_owned(),
        "CONFIG_PATH" | "RUNTIME_ROOT" | "RUNTIME_SUBDIRECTORY" | "RUNTIME_APPDIRECTORY" => {
            reload::place(&rules_layout(settings), name)?.display().to_string()
        }
        _ => return None,
    })
}

/// One a core that the process may use, unless told.
fn worker_threads(settings: &Settings) -> usize {
    let cores = || thread::available_parallelism().map_or(1, NonZero::get);
    settings.worker_threads.map_or_else(cores, |count| count.0)
}

/// Connections of decisions, where the process may hold this many files open: were all of them taken, nobody could
/// scrape, and no change of the rules be read.
fn connections_max(open_files: usize) -> usize {
    open_files.saturating_sub(OTHER_FILES).max(open_files / 2).min(CONNECTIONS_MAX)
}

/// A time of 0 means never.
fn unless_0(time: Duration) -> Option<Duration> {
    (!time.is_zero()).then_some(time)
}

/// Half of the memory that there is, unless told.
fn counter_bytes(settings: &Settings) -> u64 {
    settings.max_counter_bytes.map_or_else(|| machine::memory_bytes() / 2, |size| size.0)
}

/// Takes files of rules and of TLS again whenever somebody hangs up (SIGHUP).
async fn take_again(files: Vec<Reread>, mut hangup: Signal) -> Infallible {
    while hangup.recv().await.is_some() {
        tracing::info!("SIGHUP: rules and certificates in files are read again");
        files.iter().for_each(Reread::now);
    }
    // No more signals can come: the runtime is going down.
    std::future::pending().await
}

/// The signals that are heeded. Registered first, so that they work at every moment. One that came while nobody waited
/// for it is received later.
struct Signals {
    end: EndSignals,
    /// Once registered it never ends the process, waited for or not.
    hangup: Signal,
}

/// The signals that end the process.
struct EndSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn register() -> io::Result<Self> {
        let hangup = signal(SignalKind::hangup())?;
        let terminate = signal(SignalKind::terminate())?;
        let interrupt = signal(SignalKind::interrupt())?;
        Ok(Self { end: EndSignals { terminate, interrupt }, hangup })
    }
}

impl EndSignals {
    async fn received(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_files_for_everything_else() {
        assert_eq!(connections_max(1_024), 1_024 - OTHER_FILES);
        assert_eq!(connections_max(256), 128, "a half at least, or nobody could ask");
        assert_eq!(connections_max(usize::MAX), CONNECTIONS_MAX);
    }
}
