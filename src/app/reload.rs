//! From files to rules in force: once at start, and whenever the files change.
//!
//! A set is taken whole or not at all. A bad one leaves the rules in force as they are; each of its problems is logged
//! once, and it is counted.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::oneshot;

use crate::app::AppError;
use crate::clock::{Clock, monotonic};
use crate::engine::key::KeySecret;
use crate::engine::rules::{self, LoadOptions, Loaded};
use crate::engine::time::SECOND_NANOS;
use crate::health::Health;
use crate::logging::REPORT;
use crate::metrics::Metrics;
use crate::service::Service;
use crate::settings::Settings;
use crate::source::file::{Contents, FileSource, Layout, SourceError, Watch};

/// Where rules are read when nothing says where.
const FALLBACK_PATH: &str = "config";
/// The places of `envoyproxy/ratelimit`.
const RUNTIME_ROOT: &str = "/srv/runtime_data/current";
const RUNTIME_APPDIRECTORY: &str = "config";

/// Puts contents of files in force.
pub(super) struct Reloader {
    source: FileSource,
    options: LoadOptions,
    service: Arc<Service>,
    metrics: Arc<Metrics>,
    clock: Clock,
    /// Told whether there is a domain, if that matters.
    health: Option<Arc<Health>>,
}

/// Why a process is unhealthy that has to have rules.
const NO_DOMAIN: &str = "no domain is loaded";

/// A running watch. Waiting for its end tells that it died.
pub(super) struct Watching {
    _watch: Watch,
    ended: oneshot::Receiver<()>,
}

impl Reloader {
    /// A reloader of the rules that `settings` name.
    pub(super) fn new(
        settings: &Settings,
        secret: KeySecret,
        service: Arc<Service>,
        metrics: Arc<Metrics>,
        clock: Clock,
    ) -> Self {
        let options = load_options(settings, secret);
        let source = FileSource::new(rules_layout(settings), options.max_file_bytes);
        Self { source, options, service, metrics, clock, health: None }
    }

    /// From now on, the process is unhealthy while no domain is loaded.
    pub(super) fn turning(self, health: Arc<Health>) -> Self {
        health.refuse(NO_DOMAIN);
        Self { health: Some(health), ..self }
    }

    /// The first load, and what was read. Fails on missing or bad rules, unless `forced`.
    pub(super) fn start(&self, forced: bool) -> Result<Result<Contents, SourceError>, AppError> {
        let read = self.source.read();
        match read.as_ref().map(|contents| self.take(contents)) {
            Ok(Err(problems)) if !forced => return Err(AppError::Rules(problems)),
            Ok(_) => {}
            Err(_) if !forced => return Err(AppError::Source(read.expect_err("it was not read"))),
            Err(error) => self.unreadable(error),
        }
        Ok(read)
    }

    /// Watches the files and takes every change of them, on a thread of its own. `known` was taken, or told, already.
    pub(super) fn watch(self, known: Result<&Contents, &SourceError>) -> io::Result<Watching> {
        let (alive, ended) = oneshot::channel();
        let began = monotonic();
        let source = self.source.clone();
        let deliver = move |read: Result<Contents, SourceError>| {
            // Whoever drops this closure, by ending or by a panic, drops what says that it is alive.
            let _alive = &alive;
            match read {
                Ok(contents) => drop(self.take(&contents)),
                Err(error) => self.unreadable(&error),
            }
        };
        let watch = source.watch(Some(known), move || monotonic().duration_since(began), deliver)?;
        Ok(Watching { _watch: watch, ended })
    }

    /// Puts these contents in force, or tells what is wrong with them. The number of problems, if there are any.
    fn take(&self, contents: &Contents) -> Result<(), usize> {
        let loaded = rules::load(&contents.files, &self.options);
        let refused_for_skipped = if self.options.strict { &*contents.warnings } else { &[] };
        match loaded {
            Ok(loaded) if refused_for_skipped.is_empty() => {
                let skipped = contents.warnings.iter().map(String::as_str);
                self.install(loaded, skipped, contents.files.len());
                Ok(())
            }
            loaded => {
                let problems = loaded.err().unwrap_or_default();
                let told = problems.iter().map(ToString::to_string);
                Err(self.refuse(told.chain(refused_for_skipped.iter().cloned())))
            }
        }
    }

    fn install<'a>(&self, loaded: Loaded, skipped: impl Iterator<Item = &'a str>, files: usize) {
        let Loaded { rules, warnings } = loaded;
        let warnings: Vec<_> =
            warnings.iter().map(ToString::to_string).chain(skipped.map(str::to_owned)).collect();
        for warning in &warnings {
            tracing::warn!(target: REPORT, "{warning}");
        }
        let (limits, domains) = (rules.rules().len(), rules.domains().count());
        self.service.install(rules);
        match &self.health {
            Some(health) if domains == 0 => health.refuse(NO_DOMAIN),
            Some(health) => health.withdraw(NO_DOMAIN),
            None => {}
        }
        self.metrics.config_loaded(limits, warnings.len(), self.clock.now().as_nanos() / SECOND_NANOS);
        tracing::info!(
            "rules: {} in {} from {} in force",
            counted(limits, "limit"),
            counted(domains, "domain"),
            counted(files, "file")
        );
    }

    /// Tells and counts a bad set; the rules in force stay.
    fn refuse(&self, problems: impl Iterator<Item = String>) -> usize {
        let told = problems.inspect(|problem| tracing::error!(target: REPORT, "{problem}")).count();
        self.metrics.config_failed();
        let in_force = self.service.with_rules(|rules| rules.is_some());
        let instead = if in_force { "the rules in force stay" } else { "no rules are in force" };
        tracing::error!("rules: refused for {}; {instead}", counted(told, "problem"));
        told
    }

    fn unreadable(&self, error: &SourceError) {
        self.metrics.config_failed();
        tracing::error!("rules: cannot be read, those in force stay: {error}");
    }
}

impl Watching {
    /// Waits for the watch to die: it does not end by itself.
    pub(super) async fn died(&mut self) {
        let _ = (&mut self.ended).await;
    }
}

/// `1 limit`, `2 limits`.
fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// How rules are loaded.
pub fn load_options(settings: &Settings, secret: KeySecret) -> LoadOptions {
    LoadOptions {
        default_algorithm: settings.default_algorithm,
        merge_domains: settings.merge_domain_config,
        strict: settings.strict_rules,
        max_file_bytes: usize::try_from(settings.max_rules_file_bytes.0).unwrap_or(usize::MAX),
        secret,
    }
}

/// Where rules lie: CONFIG_PATH; else the tree of RUNTIME_*, if one of them is set or its usual place is there; else
/// `./config`.
pub fn rules_layout(settings: &Settings) -> Layout {
    if let Some(path) = settings.config_path.as_ref().filter(|path| !path.is_empty()) {
        return Layout::Path(PathBuf::from(path));
    }
    let part = |setting: &Option<String>, default: &str| {
        PathBuf::from(setting.clone().unwrap_or_else(|| default.to_owned()))
    };
    let root = part(&settings.runtime_root, RUNTIME_ROOT);
    let app_directory = part(&settings.runtime_appdirectory, RUNTIME_APPDIRECTORY);
    let told = [&settings.runtime_root, &settings.runtime_subdirectory, &settings.runtime_appdirectory];
    if told.iter().all(|setting| setting.is_none()) && !root.join(&app_directory).exists() {
        return Layout::Path(Path::new(FALLBACK_PATH).to_owned());
    }
    Layout::Runtime {
        root,
        subdirectory: part(&settings.runtime_subdirectory, ""),
        app_directory,
        ignore_dot_files: settings.runtime_ignoredotfiles,
        watch_root: settings.runtime_watch_root,
    }
}
