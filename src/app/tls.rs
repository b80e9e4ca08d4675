//! TLS on the ports: reads its files at start and again whenever they change.
//!
//! A bad new file is logged with the setting that names it, and the identity in force stays. Open connections are not
//! affected.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::app::reload::Watching;
use crate::app::{AppError, Essential, dead};
use crate::clock::Clock;
use crate::configuration::{Listeners, TlsFile, TlsFiles};
use crate::front::connections::{Identity, Port, Tls, TlsError};
use crate::source::file::{Contents, FileSource, Layout, Reread, SourceError};
use tidegate_engine::time::SECOND_NANOS;
use tidegate_serve::metrics::{MetricType, Metrics};
use tidegate_serve::reload::{Reload, ReloadLog, Subject};

/// The largest file that is read. A bundle of every public authority has a quarter of this.
const FILE_BYTES_MAX: usize = 1 << 20;

/// TLS on the ports that may have it.
pub(super) struct PortsTls {
    /// On the gRPC port, if settings ask for it.
    pub(super) grpc: Option<PortTls>,
    pub(super) http: Option<PortTls>,
    pub(super) debug: Option<PortTls>,
}

/// TLS on one port, with the files that it comes from.
pub(super) struct PortTls {
    tls: Arc<Tls>,
    files: TlsFiles,
    known: Contents,
    reloads_failed: Arc<AtomicU64>,
}

impl PortsTls {
    /// Reads the files of all.
    pub(super) fn load(listeners: &Listeners) -> Result<Self, AppError> {
        let load = |port, files: &Option<TlsFiles>| {
            files.clone().map(|files| PortTls::load(port, files)).transpose()
        };
        Ok(Self {
            grpc: load(Port::Grpc, &listeners.grpc_tls)?,
            http: load(Port::Http, &listeners.http_tls)?,
            // It offers the same protocols.
            debug: load(Port::Http, &listeners.debug_tls)?,
        })
    }

    /// Shows the ports with TLS in metrics, as long as what this returns is kept.
    fn register(&self, metrics: &Metrics) -> Arc<impl Send + Sync + use<>> {
        let ports = [("grpc", &self.grpc), ("http", &self.http), ("debug", &self.debug)];
        let ports = ports.into_iter().filter_map(|(name, port)| Some((name, port.as_ref()?)));
        let ports = ports.map(|(name, port)| (name, Arc::clone(&port.tls), Arc::clone(&port.reloads_failed)));
        let ports: Arc<Vec<_>> = Arc::new(ports.collect());
        if ports.is_empty() {
            return ports;
        }
        metrics
            .of(&ports)
            .samples(
                MetricType::Gauge,
                "tidegate_tls_certificate_not_after_timestamp_seconds",
                "Unix time at which the first certificate of the chain that is served ends, by port.",
                |ports, samples| {
                    for (name, tls, _) in ports {
                        let Some(ends) = tls.not_after_unix_secs() else { continue };
                        samples.push(&[("port", name)], ends);
                    }
                },
            )
            .samples(
                MetricType::Counter,
                "tidegate_tls_handshakes_failed_total",
                "TLS handshakes that clients did not finish, by port.",
                |ports, samples| {
                    ports
                        .iter()
                        .for_each(|(name, tls, _)| samples.push(&[("port", name)], tls.handshakes_failed()));
                },
            )
            .samples(
                MetricType::Counter,
                "tidegate_tls_reloads_failed_total",
                "Changes of a TLS file that were refused, by port.",
                |ports, samples| {
                    for (name, _, failed) in ports {
                        samples.push(&[("port", name)], failed.load(Ordering::Relaxed));
                    }
                },
            );
        ports
    }

    /// Uses every change of the files from now on, and remembers it. The returned handles make it read the files
    /// again even if they did not change.
    pub(super) fn keep(
        self,
        tasks: &mut Essential,
        metrics: &Metrics,
        reloads: &Arc<ReloadLog>,
        clock: Clock,
    ) -> io::Result<Vec<Reread>> {
        let shown = self.register(metrics);
        let mut rereads = Vec::new();
        let ports =
            [(Subject::GrpcTls, self.grpc), (Subject::HttpTls, self.http), (Subject::DebugTls, self.debug)];
        for (subject, port) in ports.into_iter().filter_map(|(subject, port)| Some((subject, port?))) {
            let reloads = Arc::clone(reloads);
            let remember =
                move |in_force, what| reloads.add(Reload::new(subject, clock.now(), in_force, what));
            let mut watching = port.watch(clock, remember)?;
            rereads.push(watching.reread());
            let shown = Arc::clone(&shown);
            tasks.spawn(async move {
                watching.died().await;
                drop(shown);
                dead("watching TLS certificates", "its thread has died")
            });
        }
        Ok(rereads)
    }
}

impl PortTls {
    fn load(port: Port, files: TlsFiles) -> Result<Self, AppError> {
        let known = files.source().read().map_err(|error| files.unreadable(&error))?;
        let tls = files
            .identity(&known)
            .and_then(|identity| Tls::new(port, &identity).map_err(|error| files.refused(&error)))?;
        Ok(Self { tls: Arc::new(tls), files, known, reloads_failed: Arc::default() })
    }

    /// What a listener needs for handshakes.
    pub(super) fn handshakes(&self) -> Arc<Tls> {
        Arc::clone(&self.tls)
    }

    /// Calls `remember` with the outcome of each change, and whether it is in force.
    fn watch(self, clock: Clock, remember: impl Fn(bool, String) + Send + 'static) -> io::Result<Watching> {
        let Self { tls, files, known, reloads_failed } = self;
        let source = files.source();
        Watching::start(source, Ok(&known), move |read| {
            let taken = match &read {
                Ok(contents) => files.identity(contents).and_then(|identity| {
                    let now = clock.now().as_nanos() / SECOND_NANOS;
                    tls.replace(&identity, now).map_err(|error| files.refused(&error))
                }),
                Err(error) => Err(files.unreadable(error)),
            };
            match taken {
                Ok(()) => {
                    let what = format!("{}: the new TLS files are in force", files.chain.setting);
                    remember(true, what.clone());
                    tracing::info!("{what}");
                }
                Err(error) => {
                    reloads_failed.fetch_add(1, Ordering::Relaxed);
                    let what = format!("{error}; the TLS files in force stay");
                    remember(false, what.clone());
                    tracing::error!("{what}");
                }
            }
        })
    }
}

impl TlsFiles {
    fn all(&self) -> impl Iterator<Item = &TlsFile> {
        [&self.chain, &self.key].into_iter().chain(&self.client_ca)
    }

    fn source(&self) -> FileSource {
        let paths = self.all().map(|file| file.path.clone()).collect();
        FileSource::new(Layout::Files(paths), FILE_BYTES_MAX)
    }

    /// The identity in these contents of the files.
    fn identity<'a>(&'a self, contents: &'a Contents) -> Result<Identity<'a>, AppError> {
        let bytes = |file: &TlsFile| {
            let name = file.path.display().to_string();
            let read = contents.files.iter().find(|read| read.name == name);
            read.map(|read| read.bytes.as_slice()).ok_or_else(|| file.bad("was not read"))
        };
        Ok(Identity {
            chain: bytes(&self.chain)?,
            key: bytes(&self.key)?,
            client_ca: self.client_ca.as_ref().map(bytes).transpose()?,
            client_name: self.client_name.as_deref(),
        })
    }

    fn unreadable(&self, error: &SourceError) -> AppError {
        let file = self.all().find(|file| file.path == error.path()).unwrap_or(&self.chain);
        AppError::BadFile { setting: file.setting, problem: error.to_string() }
    }

    fn refused(&self, error: &TlsError) -> AppError {
        let file = match error {
            TlsError::Chain(_) => &self.chain,
            TlsError::Key(_) => &self.key,
            TlsError::ClientCa(_) | TlsError::ClientName(_) => self.client_ca.as_ref().unwrap_or(&self.chain),
        };
        file.bad(error)
    }
}

impl TlsFile {
    fn bad(&self, why: impl std::fmt::Display) -> AppError {
        AppError::BadFile { setting: self.setting, problem: format!("{}: {why}", self.path.display()) }
    }
}
