//! The connection to the collector: OTLP over gRPC or HTTP, plain or TLS.
//!
//! The thread that empties the queue of spans belongs to no runtime, but the network clients need one. So an export
//! runs on the runtime that tracing was started in, and the thread waits until it ends.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use opentelemetry_http::hyper::HyperClient;
use opentelemetry_otlp::{
    Compression, ExporterBuildError, WithExportConfig, WithHttpConfig, WithTonicConfig,
};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::trace::{SpanData, SpanExporter};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use tokio::runtime::Handle;
use tonic::metadata::MetadataMap;
use tonic::transport::{Certificate, ClientTlsConfig, Identity};

use super::SpanStats;
use crate::url::Url;

/// The collector that gets the spans.
#[derive(Clone)]
pub struct Collector {
    pub protocol: Protocol,
    /// The URL; for HTTP with its path.
    pub endpoint: Url,
    /// Headers of every export.
    pub headers: Vec<(String, String)>,
    /// How long an export may take.
    pub timeout: Duration,
    pub gzip: bool,
    /// The trusted roots, in PEM; `None`: those of the system.
    pub roots: Option<Vec<u8>>,
    /// Our own certificate and its key, in PEM.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
}

/// A transport of OTLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Protocol {
    Grpc,
    Http,
}

/// Why a collector cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// Its address is invalid.
    #[error("{0}")]
    Address(String),
    /// A certificate or key is invalid.
    #[error("certificates: {0}")]
    Certificate(String),
}

/// An exporter to `collector`, on the runtime that this is called in.
pub(super) fn exporter(collector: &Collector, stats: Arc<SpanStats>) -> Result<OnRuntime, ExportError> {
    let exporter = match collector.protocol {
        Protocol::Grpc => grpc(collector),
        Protocol::Http => http(collector),
    };
    Ok(OnRuntime { runtime: Handle::current(), exporter: Arc::new(exporter?), stats })
}

fn grpc(collector: &Collector) -> Result<opentelemetry_otlp::SpanExporter, ExportError> {
    let headers = collector.headers.iter().filter_map(|(name, value)| {
        Some((name.parse::<http::HeaderName>().ok()?, value.parse::<http::HeaderValue>().ok()?))
    });
    let mut builder = opentelemetry_otlp::SpanExporter::builder()
        .with_tonic()
        .with_endpoint(&collector.endpoint.0)
        .with_timeout(collector.timeout)
        .with_metadata(MetadataMap::from_headers(headers.collect()));
    if collector.is_tls() {
        let mut tls = ClientTlsConfig::new();
        tls = match &collector.roots {
            Some(roots) => tls.ca_certificate(Certificate::from_pem(roots)),
            None => tls.with_native_roots(),
        };
        if let Some((certificate, key)) = &collector.identity {
            tls = tls.identity(Identity::from_pem(certificate, key));
        }
        builder = builder.with_tls_config(tls);
    }
    if collector.gzip {
        builder = builder.with_compression(Compression::Gzip);
    }
    builder.build().map_err(|error| collector.bad_address(&error))
}

fn http(collector: &Collector) -> Result<opentelemetry_otlp::SpanExporter, ExportError> {
    let connector = hyper_rustls::HttpsConnectorBuilder::new()
        .with_tls_config(collector.tls()?)
        .https_or_http()
        .enable_http1()
        .build();
    let headers: HashMap<_, _> = collector.headers.iter().cloned().collect();
    let mut builder = opentelemetry_otlp::SpanExporter::builder()
        .with_http()
        .with_http_client(HyperClient::new(connector, collector.timeout, None))
        .with_endpoint(&collector.endpoint.0)
        .with_timeout(collector.timeout)
        .with_headers(headers);
    if collector.gzip {
        builder = builder.with_compression(Compression::Gzip);
    }
    builder.build().map_err(|error| collector.bad_address(&error))
}

impl Collector {
    /// Errors quote the address, with the login that it may contain.
    fn bad_address(&self, error: &ExporterBuildError) -> ExportError {
        let Url(endpoint) = &self.endpoint;
        let place = format!("{}", self.endpoint);
        ExportError::Address(error.to_string().replace(endpoint, &place))
    }

    fn is_tls(&self) -> bool {
        self.endpoint.0.get(..6).is_some_and(|scheme| scheme.eq_ignore_ascii_case("https:"))
    }

    fn tls(&self) -> Result<ClientConfig, ExportError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(bad_certificate)?
            .with_root_certificates(self.roots()?);
        let Some((certificate, key)) = &self.identity else { return Ok(config.with_no_client_auth()) };
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(certificate).collect();
        let key = PrivateKeyDer::from_pem_slice(key).map_err(bad_certificate)?;
        config.with_client_auth_cert(chain.map_err(bad_certificate)?, key).map_err(bad_certificate)
    }

    fn roots(&self) -> Result<RootCertStore, ExportError> {
        let mut roots = RootCertStore::empty();
        match &self.roots {
            _ if !self.is_tls() => {}
            Some(pem) => {
                for certificate in CertificateDer::pem_slice_iter(pem) {
                    roots.add(certificate.map_err(bad_certificate)?).map_err(bad_certificate)?;
                }
            }
            None => drop(roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs)),
        }
        Ok(roots)
    }
}

fn bad_certificate(error: impl std::fmt::Display) -> ExportError {
    ExportError::Certificate(error.to_string())
}

/// An exporter that works on a runtime.
#[derive(Debug)]
pub(super) struct OnRuntime {
    runtime: Handle,
    exporter: Arc<opentelemetry_otlp::SpanExporter>,
    stats: Arc<SpanStats>,
}

impl SpanExporter for OnRuntime {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let (exporter, spans) = (Arc::clone(&self.exporter), batch.len());
        self.stats.left(spans);
        let exported = self.runtime.spawn(async move { exporter.export(batch).await }).await;
        let result = exported.map_err(|ended| OTelSdkError::InternalFailure(ended.to_string())).flatten();
        self.stats.ended(spans, &result);
        result.inspect_err(|error| tracing::warn!("tracing: spans were not taken: {error}"))
    }

    fn set_resource(&mut self, resource: &Resource) {
        if let Some(exporter) = Arc::get_mut(&mut self.exporter) {
            exporter.set_resource(resource);
        }
    }
}
