//! Rules from a control plane: the aggregated discovery service (ADS), state of the world.
//!
//! In: the control plane's address, and a function that receives its resources. Each response is a complete state of
//! the world: all resources become files ([`Resources`]), and the function either puts them in force (ACK) or returns
//! all their problems (NACK). A lost stream is opened again after a pause, and the rules in force stay meanwhile. A new
//! stream does not name the version in force: a control plane that has started again may count its versions from 1,
//! and would not send another state with the same number. Some control planes send a refused state again at once, so
//! the next NACK is delayed for a moment.
//!
//! Deliberately not here: incremental updates, other types of resources, the meaning of rules.

mod backoff;
mod proto;
mod refusal;
mod resource;

use std::convert::Infallible;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use prost_types::{Struct, Value, value::Kind};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::{MetadataKey, MetadataValue};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Request, Status};

pub use self::backoff::Backoff;
pub use self::resource::{ResourceError, Resources};

use self::proto::envoy::config::core::v3::Node;
use self::proto::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use self::proto::envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse};
use self::proto::google::rpc;
use self::refusal::Refusals;
use self::resource::TYPE_URL;
use crate::url::Url;

/// How long one attempt to connect may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Detects a control plane that vanished without closing the connection.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// The most bytes of problems in a NACK. It is one message, and receivers accept 4 MiB by default.
const NACK_BYTES_MAX: usize = 64 * 1_024;

/// The address of a control plane, and how we identify ourselves to it.
#[derive(Clone)]
pub struct XdsOptions {
    /// `host:port`.
    pub server: Url,
    pub node_id: String,
    /// Further metadata of the node, all of it text.
    pub node_metadata: Vec<(String, String)>,
    /// Headers of the stream.
    pub headers: Vec<(String, String)>,
    /// TLS; `None`: plain.
    pub tls: Option<XdsTls>,
    /// Pauses before a lost stream is opened again. Those before a control plane that could not be reached is tried
    /// again are [`Backoff::of_connections`].
    pub backoff: Backoff,
    /// The most bytes of a message; gRPC's own default is 4 MiB.
    pub message_bytes_max: Option<usize>,
}

/// How we verify a control plane, and our own certificate. Files are read at every attempt, so certificates can be
/// replaced.
#[derive(Clone, Debug, Default)]
pub struct XdsTls {
    /// Trusted in addition to the system's roots.
    pub ca: Option<PathBuf>,
    /// Our certificate and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The name to send and to verify, instead of the host's.
    pub server_name: Option<String>,
}

/// A subscription to a control plane.
pub struct XdsSource {
    options: XdsOptions,
    /// The version in force; empty before the first.
    version: String,
    /// Streams in a row that brought nothing.
    lost_streams: u32,
    /// Attempts in a row that did not reach the control plane.
    failed_connects: u32,
    refusals: Refusals,
}

/// Why a stream could not be opened, or ended.
#[derive(Debug, thiserror::Error)]
enum StreamError {
    #[error("{0}: {1}")]
    File(String, io::Error),
    #[error("{}", with_causes(.0))]
    Transport(#[from] tonic::transport::Error),
    #[error("{}: {}", .0.code(), .0.message())]
    Status(#[from] Status),
    #[error("the control plane ended the stream")]
    Ended,
}

/// Sends the requests of one stream.
struct Requests {
    node: Node,
    requests: mpsc::Sender<DiscoveryRequest>,
}

impl XdsSource {
    /// A subscription that has not started yet.
    pub fn new(options: XdsOptions) -> Self {
        Self {
            options,
            version: String::new(),
            lost_streams: 0,
            failed_connects: 0,
            refusals: Refusals::default(),
        }
    }

    /// Follows the control plane and never ends. `take` puts a state of the world in force, or refuses it with all
    /// its problems. `take` also gets the errors of a state that cannot be decoded. For a state with the same content
    /// as the last refused one, `refuse_again` is called instead.
    pub async fn follow<F: Future<Output = Result<(), Vec<String>>>>(
        mut self,
        mut take: impl FnMut(Result<Resources, Vec<ResourceError>>) -> F,
        refuse_again: impl Fn(),
    ) -> Infallible {
        loop {
            let Err(error) = self.stream(&mut take, &refuse_again).await;
            let pause = self.pause_after(&error);
            tracing::warn!(
                "rules: no stream from {} (next attempt in {pause:?}): {error}",
                self.options.server
            );
            tokio::time::sleep(pause).await;
        }
    }

    fn pause_after(&mut self, error: &StreamError) -> Duration {
        let (backoff, attempts) = match error {
            StreamError::File(..) | StreamError::Transport(_) => {
                (self.options.backoff.of_connections(), &mut self.failed_connects)
            }
            StreamError::Status(_) | StreamError::Ended => (self.options.backoff, &mut self.lost_streams),
        };
        let pause = backoff.pause(*attempts, random());
        *attempts = attempts.saturating_add(1);
        pause
    }

    /// Follows one stream until it is lost.
    async fn stream<F: Future<Output = Result<(), Vec<String>>>>(
        &mut self,
        take: &mut impl FnMut(Result<Resources, Vec<ResourceError>>) -> F,
        refuse_again: &impl Fn(),
    ) -> Result<Infallible, StreamError> {
        let mut client = AggregatedDiscoveryServiceClient::new(self.connect().await?);
        self.failed_connects = 0;
        if let Some(bytes_max) = self.options.message_bytes_max {
            client = client.max_decoding_message_size(bytes_max);
        }
        // Each response gets one request, and the next response is read only after that request is sent.
        let (requests, outgoing) = mpsc::channel(1);
        let requests = Requests { node: self.node(), requests };
        requests.send(requests.request()).await?;
        let request = self.with_headers(Request::new(ReceiverStream::new(outgoing)));
        let mut responses = client.stream_aggregated_resources(request).await?.into_inner();
        tracing::info!("rules: following {}", self.options.server);
        loop {
            let response = responses.message().await?.ok_or(StreamError::Ended)?;
            self.lost_streams = 0;
            let problems = match self.refusals.of(&response.resources) {
                Some(problems) => {
                    refuse_again();
                    problems
                }
                None => take(Resources::decode(&response.resources)).await.err().unwrap_or_default(),
            };
            if problems.is_empty() {
                self.version.clone_from(&response.version_info);
                self.refusals = Refusals::default();
            } else {
                let pause = self.refusals.add(&response.resources, &problems);
                tokio::time::sleep(pause).await;
            }
            requests.acknowledge(&self.version, &response, &problems).await?;
        }
    }

    async fn connect(&self) -> Result<Channel, StreamError> {
        let scheme = if self.options.tls.is_some() { "https" } else { "http" };
        let mut endpoint = Endpoint::from_shared(format!("{scheme}://{}", self.options.server.0))?
            .connect_timeout(CONNECT_TIMEOUT)
            .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
            .keep_alive_timeout(KEEP_ALIVE_TIMEOUT);
        if let Some(tls) = &self.options.tls {
            endpoint = endpoint.tls_config(tls.config()?)?;
        }
        Ok(endpoint.connect().await?)
    }

    fn node(&self) -> Node {
        let text = |value: &String| Value { kind: Some(Kind::StringValue(value.clone())) };
        let fields = self.options.node_metadata.iter().map(|(name, value)| (name.clone(), text(value)));
        let metadata = Struct { fields: fields.collect() };
        Node { id: self.options.node_id.clone(), cluster: String::new(), metadata: Some(metadata) }
    }

    fn with_headers<T>(&self, mut request: Request<T>) -> Request<T> {
        for (name, value) in &self.options.headers {
            match (MetadataKey::from_bytes(name.as_bytes()), MetadataValue::try_from(value)) {
                (Ok(name), Ok(value)) => drop(request.metadata_mut().insert(name, value)),
                // A value may be a secret.
                _ => tracing::warn!(
                    "rules: {name:?} is not a valid header, or its value is not valid; ignored"
                ),
            }
        }
        request
    }
}

impl Requests {
    /// Sends the ACK or NACK of a response, with the version in force now.
    async fn acknowledge(
        &self,
        version: &str,
        response: &DiscoveryResponse,
        problems: &[String],
    ) -> Result<(), StreamError> {
        let error_detail = (!problems.is_empty())
            .then(|| rpc::Status { code: Code::InvalidArgument.into(), message: one_per_line(problems) });
        let request = DiscoveryRequest {
            version_info: version.to_owned(),
            response_nonce: response.nonce.clone(),
            error_detail,
            ..self.request()
        };
        self.send(request).await
    }

    fn request(&self) -> DiscoveryRequest {
        let node = Some(self.node.clone());
        DiscoveryRequest { node, type_url: TYPE_URL.to_owned(), ..DiscoveryRequest::default() }
    }

    async fn send(&self, request: DiscoveryRequest) -> Result<(), StreamError> {
        self.requests.send(request).await.map_err(|_| StreamError::Ended)
    }
}

impl XdsTls {
    fn config(&self) -> Result<ClientTlsConfig, StreamError> {
        let mut config = ClientTlsConfig::new();
        // tonic fails where the system has no roots, as in a small image. The CA is enough.
        if self.ca.is_none() || !rustls_native_certs::load_native_certs().certs.is_empty() {
            config = config.with_native_roots();
        }
        if let Some(ca) = &self.ca {
            config = config.ca_certificate(Certificate::from_pem(read(ca)?));
        }
        if let Some((certificate, key)) = &self.identity {
            config = config.identity(Identity::from_pem(read(certificate)?, read(key)?));
        }
        if let Some(name) = &self.server_name {
            config = config.domain_name(name);
        }
        Ok(config)
    }
}

fn read(path: &Path) -> Result<Vec<u8>, StreamError> {
    tidegate_disk::read(path).map_err(|error| StreamError::File(path.display().to_string(), error))
}

/// The problems, one per line, as many as fit.
fn one_per_line(problems: &[String]) -> String {
    let mut lines = String::new();
    for problem in problems {
        if lines.len() + problem.len() > NACK_BYTES_MAX {
            lines.push('…');
            break;
        }
        lines.push_str(problem);
        lines.push('\n');
    }
    lines.trim_end().to_owned()
}

/// An error with its causes: tonic's own text is only "transport error".
fn with_causes(error: &dyn std::error::Error) -> String {
    std::iter::successors(error.source(), |cause| cause.source())
        .fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// A random number from 0 to 1.
fn random() -> f64 {
    let mut bytes = [0; 4];
    // Without a source of randomness, jitter takes the middle.
    getrandom::fill(&mut bytes).map_or(0.5, |()| f64::from(u32::from_ne_bytes(bytes)) / f64::from(u32::MAX))
}
