//! Rules from a control plane: the aggregated discovery stream (ADS), state of the world.
//!
//! In: where the control plane is, and who takes what it says. Each response is a whole state of the world: all
//! resources become files ([`Resources`]), and whoever takes them says whether they are in force (ACK) or every problem
//! that they have (NACK). A stream that is lost is opened again after a pause, with the version that is in force; what
//! is in force stays meanwhile.
//!
//! Deliberately not here: incremental updates, other types of resources, what a set of rules means.

mod backoff;
mod proto;
mod resource;

use std::convert::Infallible;
use std::io;
use std::path::PathBuf;
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
use self::resource::TYPE_URL;

/// How long one attempt to connect may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Finds a control plane that is gone without a word.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of problems that a NACK tells: it travels in one message, of which the other side takes 4 MiB by default.
const NACK_BYTES_MAX: usize = 64 * 1_024;

/// Where a control plane is, and who we are there.
#[derive(Clone, Debug)]
pub struct XdsOptions {
    /// `host:port`.
    pub server: String,
    /// The node's name.
    pub node_id: String,
    /// What else it tells of itself, all of it text.
    pub node_metadata: Vec<(String, String)>,
    /// Headers of the stream.
    pub headers: Vec<(String, String)>,
    /// TLS, unless the connection is plain.
    pub tls: Option<XdsTls>,
    /// Pauses between attempts.
    pub backoff: Backoff,
    /// Bytes of the largest message that is taken; gRPC's own default is 4 MiB.
    pub message_bytes_max: Option<usize>,
}

/// How a control plane is verified, and how we show who we are. Files are read at every attempt, so certificates may
/// change.
#[derive(Clone, Debug, Default)]
pub struct XdsTls {
    /// Trusted beside the roots of the system.
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
    attempt: u32,
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

/// The requests of one stream.
struct Requests {
    node: Node,
    requests: mpsc::Sender<DiscoveryRequest>,
}

impl XdsSource {
    /// A subscription that has not begun.
    pub fn new(options: XdsOptions) -> Self {
        Self { options, version: String::new(), attempt: 0 }
    }

    /// Follows the control plane without an end. `take` puts a state of the world in force, or refuses it with every
    /// problem that it has; it is also told of one that cannot be decoded.
    pub async fn follow<F: Future<Output = Result<(), Vec<String>>>>(
        mut self,
        mut take: impl FnMut(Result<Resources, Vec<ResourceError>>) -> F,
    ) -> Infallible {
        loop {
            let Err(error) = self.stream(&mut take).await;
            let pause = self.options.backoff.pause(self.attempt, random());
            self.attempt = self.attempt.saturating_add(1);
            tracing::warn!(
                "rules: no stream from {} (next attempt in {pause:?}): {error}",
                self.options.server
            );
            tokio::time::sleep(pause).await;
        }
    }

    /// One stream, until it is lost.
    async fn stream<F: Future<Output = Result<(), Vec<String>>>>(
        &mut self,
        take: &mut impl FnMut(Result<Resources, Vec<ResourceError>>) -> F,
    ) -> Result<Infallible, StreamError> {
        let mut client = AggregatedDiscoveryServiceClient::new(self.connect().await?);
        if let Some(bytes_max) = self.options.message_bytes_max {
            client = client.max_decoding_message_size(bytes_max);
        }
        // One answer a response, and the next response is only read when that is on its way.
        let (requests, outgoing) = mpsc::channel(1);
        let requests = Requests { node: self.node(), requests };
        requests.subscribe(&self.version).await?;
        let request = self.with_headers(Request::new(ReceiverStream::new(outgoing)));
        let mut responses = client.stream_aggregated_resources(request).await?.into_inner();
        tracing::info!("rules: following {}", self.options.server);
        loop {
            let response = responses.message().await?.ok_or(StreamError::Ended)?;
            self.attempt = 0;
            let taken = take(Resources::decode(&response.resources)).await;
            let problems = taken.err().unwrap_or_default();
            if problems.is_empty() {
                self.version.clone_from(&response.version_info);
            }
            requests.acknowledge(&self.version, &response, &problems).await?;
        }
    }

    async fn connect(&self) -> Result<Channel, StreamError> {
        let scheme = if self.options.tls.is_some() { "https" } else { "http" };
        let mut endpoint = Endpoint::from_shared(format!("{scheme}://{}", self.options.server))?
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
                _ => tracing::warn!("rules: {name:?} is no header, or its value is none; left out"),
            }
        }
        request
    }
}

impl Requests {
    async fn subscribe(&self, version: &str) -> Result<(), StreamError> {
        self.send(DiscoveryRequest { version_info: version.to_owned(), ..self.request() }).await
    }

    /// Tells what became of a response, and which version is in force now.
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
        let mut config = ClientTlsConfig::new().with_native_roots();
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

fn read(path: &PathBuf) -> Result<Vec<u8>, StreamError> {
    std::fs::read(path).map_err(|error| StreamError::File(path.display().to_string(), error))
}

/// All problems, a line each, as far as they fit.
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

/// An error with what caused it: tonic's own text is "transport error".
fn with_causes(error: &dyn std::error::Error) -> String {
    std::iter::successors(error.source(), |cause| cause.source())
        .fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// From 0 to 1.
fn random() -> f64 {
    let mut bytes = [0; 4];
    // Without randomness every pause is drawn in the middle.
    getrandom::fill(&mut bytes).map_or(0.5, |()| f64::from(u32::from_ne_bytes(bytes)) / f64::from(u32::MAX))
}
