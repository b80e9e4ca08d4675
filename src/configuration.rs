//! What the process runs as: settings, resolved once into the options of each part of the program.
//!
//! In: [`Settings`]. Out: a [`Configuration`], or every [`Problem`] at once, those of the settings among them. Where a
//! part of the program has options of its own ([`LoadOptions`](tidegate_engine::rules::LoadOptions), [`CheckOptions`],
//! …), the configuration holds these, and `app` only hands them on. Values that nobody set are found here: threads,
//! memory, the place of the rules. Past this module nothing reads settings; `app` and `cli` name them in errors.
//!
//! Not here: the contents of files that settings name, such as certificates. Reading them is part of the start.
//!
//! - `in_force`: every setting with its value, to be shown
//! - `listeners`: sockets, and the files of their TLS
//! - `limits`: limits for single keys, and where they are kept
//! - `rules`: where rules come from, and how they are loaded
//! - `state`: counters that survive restarts
//! - `redis`: the shared store
//! - `metrics`: the metrics port and StatsD; `mogrifiers`: rules that rewrite names for it
//! - `tracing`: where spans go
//! - `events`: which events are emitted, and where they go
//! - `inside`: the settings of a limiter inside another process
//! - `machine`: the memory that the machine gives the process

mod events;
mod in_force;
mod inside;
mod limits;
mod listeners;
mod machine;
mod metrics;
mod mogrifiers;
mod redis;
mod rules;
mod state;
mod tracing;

pub use self::events::{Events, WebhookSettings};
pub use self::in_force::{InForce, in_force};
pub use self::inside::{InsideOptions, is_secret};
pub use self::limits::{Limits, Lookup};
pub use self::listeners::{Endpoint, Listeners, TlsFile, TlsFiles};
pub use self::metrics::Metrics;
pub use self::redis::{Redis, Server};
pub use self::rules::{RuleFiles, Rules, no_rules};
pub use self::state::StateOptions;
pub use self::tracing::Tracing;
pub use crate::settings::value::{GrpcFront, HostPort};

use std::num::NonZero;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use crate::front::connections::WorkerOptions;
use crate::front::http::CheckOptions;
use crate::front::{AnswerOptions, ClientOptions, LimitHeaders, MaxAge};
use crate::logging::LogLevel;
use crate::settings::value::{Backend, FilePath};
use crate::settings::{Problem, Settings, Texts};
use tidegate_engine::memory::MemoryOptions;
use tidegate_engine::plan::Modes;
use tidegate_operate::gate::{AdminToken, Hosts};
use tidegate_serve::refusal::Bounds;

/// What the process runs as.
#[derive(Clone)]
pub struct Configuration {
    pub workers: WorkerOptions,
    pub listeners: Listeners,
    /// What speaks HTTP/2 on the gRPC port.
    pub grpc_front: GrpcFront,
    /// The greatest age of gRPC connections.
    pub grpc_max_age: MaxAge,
    /// Calls of `/check`.
    pub check: CheckOptions,
    /// What operators may change while the process runs.
    pub admin: Admin,
    /// Limits for single keys.
    pub limits: Limits,
    pub rules: Rules,
    /// Modes that apply to every request.
    pub modes: Modes,
    /// Waits of denied requests are lengthened at random by up to this share.
    pub retry_jitter: f64,
    /// Bounds of one request.
    pub bounds: Bounds,
    /// What answers have in addition to codes and limits.
    pub answer_options: AnswerOptions,
    /// Counters in memory.
    pub memory: MemoryOptions,
    /// Whether these survive restarts.
    pub state: StateOptions,
    /// The shared store, if there is one.
    pub redis: Option<Redis>,
    /// Metrics, and where they are sent.
    pub metrics: Metrics,
    /// Spans, if calls are traced.
    pub tracing: Option<Tracing>,
    /// Events, if there are outlets.
    pub events: Option<Events>,
    pub logging: Logging,
    /// Whether names of keys, which hold values of requests, are kept and shown.
    pub keep_keys: bool,
    /// The settings that differ from their defaults, to be shown.
    pub changed: Vec<InForce>,
    /// Valid but probably unintended; logged at startup.
    pub warnings: Vec<Problem>,
}

/// What operators may change while the process runs.
#[derive(Clone)]
pub struct Admin {
    /// The token that allows changes of state on the debug port from anywhere.
    pub token: Option<AdminToken>,
    /// The file that holds the token, unless there is one in the settings.
    pub token_file: Option<PathBuf>,
    /// Certificates of clients that carry one of these names may do the same.
    pub certificate_names: Vec<String>,
    /// Names by which browsers may open the pages of the debug and metrics ports.
    pub page_hosts: Vec<String>,
    /// The file that keeps exceptions.
    pub exceptions_file: Option<PathBuf>,
    /// A file of exceptions that another program writes, in place of that one.
    pub exceptions_followed: Option<PathBuf>,
    /// The file that changes are audited in.
    pub audit_log: Option<PathBuf>,
}

#[derive(Clone)]
pub struct Logging {
    /// How much is logged.
    pub level: LogLevel,
    /// Whether a line is a JSON object.
    pub json: bool,
    /// Whether lines of decisions hold the values of requests.
    pub values: bool,
}

/// PEM files for TLS to another server.
#[derive(Clone)]
pub struct ClientTlsFiles {
    /// The authorities that may sign the server's certificate.
    pub roots: Option<PathBuf>,
    /// Our own certificate and its chain.
    pub chain: Option<PathBuf>,
    pub key: Option<PathBuf>,
}

impl Configuration {
    /// Reads every setting and resolves them.
    /// Fails with all bad settings at once.
    pub fn read(texts: Texts<'_>) -> Result<Self, Vec<Problem>> {
        let (_, configuration) = read(texts)?;
        Ok(Self { changed: in_force::changed(texts), ..configuration })
    }

    /// The names by which browsers may open the pages of the debug port.
    pub fn debug_hosts(&self) -> Hosts {
        Hosts::new(&self.listeners.debug.host, &self.admin.page_hosts)
    }

    /// The same for the metrics port.
    pub fn metrics_hosts(&self) -> Hosts {
        let host = self.listeners.metrics.as_ref().map_or("", |address| &address.host);
        Hosts::new(host, &self.admin.page_hosts)
    }

    /// Where counters are, according to BACKEND_TYPE.
    pub fn backend(&self) -> &'static str {
        if self.redis.is_some() { "redis" } else { "memory" }
    }
}

/// The value that the program finds out for a setting that is not set, as it would be written. `None` if other
/// settings are bad.
pub fn detected(texts: Texts<'_>, name: &str) -> Option<String> {
    let (settings, configuration) = read(texts).ok()?;
    Some(match name {
        "BACKEND_TYPE" => configuration.backend().to_owned(),
        "WORKER_THREADS" => configuration.workers.count.to_string(),
        "MAX_COUNTER_BYTES" => configuration.memory.max_bytes.to_string(),
        "USE_PROMETHEUS" => (!settings.disable_stats).to_string(),
        "USE_STATSD" => metrics::plain_is_on(&settings).to_string(),
        "STATSD_HOST" => metrics::HOST.to_owned(),
        "STATSD_PORT" => metrics::PORT.to_string(),
        "STATSD_PROTOCOL" => "tcp".to_owned(),
        _ => configuration.rules.files.place(name)?.display().to_string(),
    })
}

fn read(texts: Texts<'_>) -> Result<(Settings, Configuration), Vec<Problem>> {
    let mut problems = Vec::new();
    let resolved = Settings::read(texts, &mut problems).and_then(|settings| {
        let configuration = resolve(&settings, texts, &mut problems)?;
        Some((settings, configuration))
    });
    resolved.filter(|_| problems.is_empty()).ok_or(problems)
}

/// A new setting gets its line here, or in the part that it belongs to. `None` if one is bad: then a problem is added.
fn resolve(settings: &Settings, texts: Texts<'_>, problems: &mut Vec<Problem>) -> Option<Configuration> {
    let mogrifiers = mogrifiers::read(&settings.use_dog_statsd_mogrifiers.0, texts.variable, problems);
    let cores = || thread::available_parallelism().map_or(1, NonZero::get);
    let workers = settings.worker_threads.map_or_else(cores, |count| count.0);
    let counter_bytes = settings.max_counter_bytes.map_or_else(|| machine::memory_bytes() / 2, |size| size.0);
    let redis = match settings.backend_type {
        Some(Backend::Redis) => Some(redis::resolve(settings, workers, counter_bytes, problems)?),
        Some(Backend::Memory) | None => None,
    };
    Some(Configuration {
        workers: WorkerOptions { count: workers, spin_time: settings.spin_time.0 },
        listeners: listeners::resolve(settings),
        grpc_front: settings.grpc_front,
        grpc_max_age: MaxAge {
            age: unless_0(settings.grpc_max_connection_age),
            grace: unless_0(settings.grpc_max_connection_age_grace),
        },
        check: CheckOptions {
            proxy: settings.check_proxy,
            deny_status: settings.check_deny_status.0,
            trusted_hops: settings.xff_num_trusted_hops.0,
        },
        admin: admin(settings),
        limits: limits::resolve(settings, workers, problems),
        rules: rules::resolve(settings),
        modes: Modes {
            shadow: settings.shadow_mode,
            quota: settings.quota_mode,
            stop_increment_when_over: settings.stop_cache_key_increment_when_overlimit,
        },
        retry_jitter: settings.retry_after_jitter.0,
        bounds: Bounds {
            descriptors_max: settings.max_descriptors.0,
            entries_max: settings.max_entries.0,
            request_bytes_max: settings.max_request_bytes.0,
        },
        answer_options: answer_options(settings),
        memory: MemoryOptions::new(counter_bytes).full(settings.store_full_mode),
        state: state::resolve(settings, problems),
        redis,
        metrics: metrics::resolve(settings, workers, mogrifiers),
        tracing: settings.tracing_enabled.then(|| tracing::resolve(settings)),
        events: events::resolve(settings, problems),
        logging: Logging {
            level: settings.log_level,
            json: settings.log_format.eq_ignore_ascii_case("json"),
            values: settings.log_values,
        },
        keep_keys: settings.keep_keys,
        changed: Vec::new(),
        warnings: settings.warnings.clone(),
    })
}

impl Admin {
    /// Whether a token or its file is set.
    pub fn has_token(&self) -> bool {
        self.token.is_some() || self.token_file.is_some()
    }
}

fn admin(settings: &Settings) -> Admin {
    let path = |path: &Option<FilePath>| path.as_ref().map(|path| path.0.clone());
    Admin {
        token: settings.admin_token.clone(),
        token_file: path(&settings.admin_token_file),
        certificate_names: settings.admin_tls_san.as_ref().map(|names| names.0.clone()).unwrap_or_default(),
        page_hosts: settings.page_hosts.as_ref().map(|names| names.0.clone()).unwrap_or_default(),
        exceptions_file: path(&settings.exceptions_file),
        exceptions_followed: None,
        audit_log: path(&settings.audit_log),
    }
}

fn answer_options(settings: &Settings) -> AnswerOptions {
    let names = LimitHeaders {
        limit: settings.limit_limit_header.0.clone(),
        remaining: settings.limit_remaining_header.0.clone(),
        reset: settings.limit_reset_header.0.clone(),
    };
    AnswerOptions {
        headers: settings.limit_response_headers_enabled.then_some(names),
        client: ClientOptions {
            format: settings.limit_response_headers_format,
            partition_key: settings.limit_response_headers_partition_key,
            shadow: settings.shadow_mode,
        },
        dynamic_metadata: settings.response_dynamic_metadata,
    }
}

/// A time, or `None` for 0, which means never.
fn unless_0(time: Duration) -> Option<Duration> {
    (!time.is_zero()).then_some(time)
}

/// A text, or `None` for a setting that is set to an empty text.
fn unless_empty(text: &Option<impl AsRef<str>>) -> Option<&str> {
    text.as_ref().map(AsRef::as_ref).filter(|text| !text.is_empty())
}

/// The configuration of an environment, for tests.
#[cfg(test)]
fn configured(variables: &[(&str, &str)]) -> Result<Configuration, Vec<Problem>> {
    let variable = crate::settings::fixture::variables(variables);
    Configuration::read(Texts { flag: &|_| None, variable: &variable })
}
