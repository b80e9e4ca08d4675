//! The sockets, and the files of their TLS.

use std::path::PathBuf;
use std::time::Duration;

use crate::settings::Settings;
use crate::settings::value::{FilePath, HostPort};

#[derive(Clone)]
pub struct Listeners {
    /// Where gRPC calls come in.
    pub grpc: Endpoint,
    /// The files of its TLS, if it speaks TLS.
    pub grpc_tls: Option<TlsFiles>,
    /// Where HTTP calls come in.
    pub http: Endpoint,
    /// The files of its TLS, if it speaks TLS.
    pub http_tls: Option<TlsFiles>,
    /// The metrics port, if there is one.
    pub metrics: Option<HostPort>,
    /// Whether somebody asked for the metrics port. Then the start fails if it cannot be bound.
    pub metrics_required: bool,
    pub debug: HostPort,
    /// The files of its TLS, if it speaks TLS.
    pub debug_tls: Option<TlsFiles>,
    /// How long the listeners stay open after the process was asked to end.
    pub drain_grace: Duration,
}

/// Where to listen.
#[derive(Clone)]
pub enum Endpoint {
    Unix(PathBuf),
    Tcp(HostPort),
}

/// The files of one port's identity.
#[derive(Clone)]
pub struct TlsFiles {
    /// The certificate and its chain.
    pub chain: TlsFile,
    pub key: TlsFile,
    /// The authority that has to sign clients' certificates, if clients need one.
    pub client_ca: Option<TlsFile>,
    /// The name that clients' certificates have to carry, if any.
    pub client_name: Option<String>,
}

/// A file, and the setting that names it.
#[derive(Clone)]
pub struct TlsFile {
    pub setting: &'static str,
    pub path: PathBuf,
}

pub(super) fn resolve(settings: &Settings) -> Listeners {
    let metrics = settings.use_prometheus != Some(false) && !settings.disable_stats;
    Listeners {
        grpc: endpoint(&settings.grpc_uds, &settings.grpc_host, settings.grpc_port),
        grpc_tls: settings.grpc_server_use_tls.then(|| grpc_tls(settings)).flatten(),
        http: endpoint(&settings.http_uds, &settings.host, settings.port),
        http_tls: http_tls(settings),
        metrics: metrics.then(|| settings.prometheus_addr.clone()),
        metrics_required: settings.use_prometheus.is_some(),
        debug: HostPort { host: settings.debug_host.clone(), port: settings.debug_port },
        debug_tls: debug_tls(settings),
        drain_grace: settings.drain_grace,
    }
}

fn endpoint(path: &Option<FilePath>, host: &str, port: u16) -> Endpoint {
    match path {
        Some(FilePath(path)) => Endpoint::Unix(path.clone()),
        None => Endpoint::Tcp(HostPort { host: host.to_owned(), port }),
    }
}

fn grpc_tls(settings: &Settings) -> Option<TlsFiles> {
    Some(TlsFiles {
        chain: file("GRPC_SERVER_TLS_CERT", &settings.grpc_server_tls_cert)?,
        key: file("GRPC_SERVER_TLS_KEY", &settings.grpc_server_tls_key)?,
        client_ca: file("GRPC_CLIENT_TLS_CACERT", &settings.grpc_client_tls_cacert),
        client_name: settings.grpc_client_tls_san.as_ref().map(|name| name.0.clone()),
    })
}

fn http_tls(settings: &Settings) -> Option<TlsFiles> {
    Some(TlsFiles {
        chain: file("HTTP_SERVER_TLS_CERT", &settings.http_server_tls_cert)?,
        key: file("HTTP_SERVER_TLS_KEY", &settings.http_server_tls_key)?,
        client_ca: None,
        client_name: None,
    })
}

fn debug_tls(settings: &Settings) -> Option<TlsFiles> {
    Some(TlsFiles {
        chain: file("DEBUG_SERVER_TLS_CERT", &settings.debug_server_tls_cert)?,
        key: file("DEBUG_SERVER_TLS_KEY", &settings.debug_server_tls_key)?,
        client_ca: file("DEBUG_SERVER_TLS_CLIENT_CACERT", &settings.debug_server_tls_client_cacert),
        client_name: None,
    })
}

fn file(setting: &'static str, path: &Option<FilePath>) -> Option<TlsFile> {
    path.as_ref().map(|path| TlsFile { setting, path: path.0.clone() })
}
