//! The connection to a webhook: HTTP/1.1, directly or through a proxy, with TLS by rustls.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::legacy::{self, Client as Hyper};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::{self, PemObject};
use rustls::{ClientConfig, RootCertStore};

use super::Refusal;

/// Bytes of an answer that are read, so that its connection can be used again.
const ANSWER_BYTES_MAX: usize = 64 << 10;
/// How long a connection waits for the next request.
const IDLE: Duration = Duration::from_secs(30);

/// Where a webhook is, and how it is reached.
#[derive(Clone)]
pub struct Endpoint {
    /// http or https.
    pub url: Uri,
    /// A proxy that makes the connection (CONNECT), by http.
    pub proxy: Option<Uri>,
    /// PEM certificates that are trusted in addition to the system's.
    pub roots: Option<Vec<u8>>,
    /// How long an attempt may take.
    pub timeout: Duration,
}

/// Why an endpoint cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum WebhookError {
    /// Its certificates are not PEM.
    #[error("holds no certificates in PEM: {0}")]
    Pem(pem::Error),
    /// One of them is not a certificate.
    #[error(transparent)]
    Certificate(#[from] rustls::Error),
}

/// A client of one webhook.
pub(super) struct Client {
    sender: Sender,
    endpoint: Endpoint,
}

enum Sender {
    Direct(Hyper<HttpsConnector<HttpConnector>, Full<Bytes>>),
    Proxied(Hyper<HttpsConnector<Tunnel<HttpConnector>>, Full<Bytes>>),
}

impl Client {
    /// A client of this endpoint. Connections are made when they are needed.
    pub(super) fn new(endpoint: Endpoint) -> Result<Self, WebhookError> {
        let tls = tls(&endpoint)?;
        let mut connector = HttpConnector::new();
        connector.enforce_http(false);
        let https = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1();
        let hyper = || {
            let mut hyper = Hyper::builder(TokioExecutor::new());
            hyper.pool_timer(TokioTimer::new()).pool_idle_timeout(IDLE).pool_max_idle_per_host(1);
            hyper
        };
        let sender = match &endpoint.proxy {
            None => Sender::Direct(hyper().build(https.wrap_connector(connector))),
            Some(proxy) => {
                let tunnel = Tunnel::new(proxy.clone(), connector);
                Sender::Proxied(hyper().build(https.wrap_connector(tunnel)))
            }
        };
        Ok(Self { sender, endpoint })
    }

    /// Where it is, without the parts that may be a secret.
    pub(super) fn place(&self) -> String {
        self.endpoint.place()
    }

    /// Sends a body. Returns the status of the answer.
    pub(super) async fn post(
        &self,
        delivery: &str,
        signature: Option<&str>,
        body: Bytes,
    ) -> Result<StatusCode, Refusal> {
        let mut request = Request::post(&self.endpoint.url)
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::USER_AGENT, concat!("tidegate/", env!("CARGO_PKG_VERSION")))
            .header("tidegate-delivery", delivery);
        if let Some(signature) = signature {
            request = request.header("tidegate-signature", signature);
        }
        let request =
            request.body(Full::new(body)).map_err(|error| Refusal::Unreachable(error.to_string()))?;
        let timeout = self.endpoint.timeout;
        let exchange = async {
            let answer = self.send(request).await.map_err(|error| Refusal::Unreachable(causes(&error)))?;
            let status = answer.status();
            // Its content does not matter; a long answer only costs the connection.
            let _ = Limited::new(answer.into_body(), ANSWER_BYTES_MAX).collect().await;
            Ok(status)
        };
        tokio::time::timeout(timeout, exchange).await.unwrap_or(Err(Refusal::Timeout(timeout)))
    }

    async fn send(&self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, legacy::Error> {
        match &self.sender {
            Sender::Direct(hyper) => hyper.request(request).await,
            Sender::Proxied(hyper) => hyper.request(request).await,
        }
    }
}

impl Endpoint {
    /// Scheme, host and port. The rest of a URL may be a secret.
    pub fn place(&self) -> String {
        let part = |uri: &Uri| {
            format!(
                "{}://{}",
                uri.scheme_str().unwrap_or("http"),
                uri.authority().map_or("", |it| it.as_str())
            )
        };
        match &self.proxy {
            None => part(&self.url),
            Some(proxy) => format!("{} (by the proxy {})", part(&self.url), part(proxy)),
        }
    }
}

/// TLS that trusts the system's authorities and those of the endpoint.
fn tls(endpoint: &Endpoint) -> Result<ClientConfig, WebhookError> {
    let mut roots = RootCertStore::empty();
    if let Some(pem) = &endpoint.roots {
        for certificate in CertificateDer::pem_slice_iter(pem) {
            roots.add(certificate.map_err(WebhookError::Pem)?)?;
        }
        if roots.is_empty() {
            return Err(WebhookError::Pem(pem::Error::NoItemsFound));
        }
    }
    if endpoint.url.scheme_str() == Some("https") {
        let _ = roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    Ok(ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth())
}

/// An error with its causes: the first says only that connecting failed.
fn causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
