//! TLS on a port: our identity, and which clients may connect. rustls with ring.
//!
//! In: PEM texts, again whenever they change. Out: handshakes. Open connections keep the identity that they began with.
//! It does not know which files hold the texts. rustls compares certificates with the wall clock.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::client::verify_server_name;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, DnsName, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{NoServerSessionStorage, ParsedCertificate, VerifierBuilderError, WebPkiClientVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, RootCertStore, ServerConfig, SignatureScheme};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::Port;
use super::socket::Socket;

/// The identity of a port, and which clients may connect, as PEM texts.
#[derive(Clone, Copy)]
pub struct Identity<'a> {
    /// Our certificate, then those between it and the one that clients trust.
    pub chain: &'a [u8],
    /// The private key of the first certificate.
    pub key: &'a [u8],
    /// The authority that has to sign clients' certificates. `None`: clients need no certificate.
    pub client_ca: Option<&'a [u8]>,
    /// The DNS name that a client's certificate has to carry, if it needs one.
    pub client_name: Option<&'a str>,
}

/// A problem of an [`Identity`], by its part.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error(transparent)]
    Chain(PartError),
    #[error(transparent)]
    Key(PartError),
    /// The authority of clients.
    #[error(transparent)]
    ClientCa(PartError),
    /// The name of clients.
    #[error("{0:?} is not a DNS name")]
    ClientName(String),
}

/// A problem of a PEM text.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum PartError {
    #[error("holds no certificate in PEM")]
    NoCertificate,
    #[error("holds no certificates in PEM: {0}")]
    BadCertificates(pem::Error),
    #[error("holds no private key in PEM: {0}")]
    NoKey(pem::Error),
    #[error("is not the key of the certificate")]
    OtherKey,
    #[error("holds a certificate that is expired, and the one in force is not")]
    Expired,
    #[error(transparent)]
    Refused(#[from] rustls::Error),
    #[error(transparent)]
    NoAuthority(#[from] VerifierBuilderError),
}

/// TLS on one port.
pub struct Tls {
    config: ArcSwap<ServerConfig>,
    /// Protocols to offer, best first.
    protocols: &'static [&'static [u8]],
    failed: AtomicU64,
    /// When the first certificate of the chain in force expires, in seconds of unix time; 0 if it cannot be read.
    not_after: AtomicU64,
    /// The same for our own certificate, the first of the chain.
    own_not_after: AtomicU64,
}

impl Tls {
    /// TLS on `port` with this identity.
    /// Fails when the identity cannot be used.
    pub fn new(port: Port, identity: &Identity<'_>) -> Result<Self, TlsError> {
        let protocols: &[&[u8]] = match port {
            Port::Grpc => &[b"h2"],
            Port::Http => &[b"h2", b"http/1.1"],
        };
        let config = ArcSwap::from_pointee(config(identity, protocols)?);
        let (not_after, own_not_after) = not_after_unix_secs(identity.chain);
        let (not_after, own_not_after) = (AtomicU64::new(not_after), AtomicU64::new(own_not_after));
        Ok(Self { config, protocols, failed: AtomicU64::new(0), not_after, own_not_after })
    }

    /// New connections get this identity from now on. It is `now_unix_secs`.
    /// Fails when it cannot be used, or is expired while the previous one is not. Then the previous one stays.
    pub fn replace(&self, identity: &Identity<'_>, now_unix_secs: u64) -> Result<(), TlsError> {
        let config = config(identity, self.protocols)?;
        let (not_after, own_not_after) = not_after_unix_secs(identity.chain);
        if own_not_after < now_unix_secs && now_unix_secs <= self.own_not_after.load(Ordering::Relaxed) {
            return Err(TlsError::Chain(PartError::Expired));
        }
        self.config.store(Arc::new(config));
        self.not_after.store(not_after, Ordering::Relaxed);
        self.own_not_after.store(own_not_after, Ordering::Relaxed);
        Ok(())
    }

    /// When the first certificate of the chain in force expires, in seconds of unix time. `None`: it cannot be read.
    pub fn not_after_unix_secs(&self) -> Option<u64> {
        Some(self.not_after.load(Ordering::Relaxed)).filter(|&secs| secs > 0)
    }

    /// Handshakes that clients did not finish, since the start.
    pub fn handshakes_failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    pub(super) async fn handshake(&self, socket: Socket) -> io::Result<TlsStream<Socket>> {
        let failure = CountedUnlessDone(&self.failed);
        let stream = TlsAcceptor::from(self.config.load_full()).accept(socket).await?;
        std::mem::forget(failure);
        Ok(stream)
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Tls").finish_non_exhaustive()
    }
}

/// Counts a handshake that fails by an error, or that nobody waits for any more.
struct CountedUnlessDone<'a>(&'a AtomicU64);

impl Drop for CountedUnlessDone<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// The configuration of rustls for an identity.
fn config(identity: &Identity<'_>, protocols: &[&[u8]]) -> Result<ServerConfig, TlsError> {
    let provider = Arc::new(ring::default_provider());
    let chain = certificates(identity.chain).map_err(TlsError::Chain)?;
    let key = PrivateKeyDer::from_pem_slice(identity.key)
        .map_err(|error| TlsError::Key(PartError::NoKey(error)))?;
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .expect("ring has ciphers for every version");
    let builder = match identity.client_ca {
        Some(authority) => {
            builder.with_client_cert_verifier(verifier(authority, identity.client_name, provider)?)
        }
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_single_cert(chain, key).map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => TlsError::Key(PartError::OtherKey),
        rustls::Error::InvalidCertificate(_) => TlsError::Chain(error.into()),
        error => TlsError::Key(error.into()),
    })?;
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    // Connections last for hours: resuming saves nothing, and would admit clients that a new authority refuses.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

/// All certificates of a PEM text. There has to be one.
fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, PartError> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let certificates = read.map_err(PartError::BadCertificates)?;
    if certificates.is_empty() { Err(PartError::NoCertificate) } else { Ok(certificates) }
}

/// When the first certificate of this chain to expire does so, and when our own does, which is at the front, in
/// seconds of unix time; 0 if none can be read. rustls has accepted the chain without checking that. A chain may
/// contain an old certificate of an authority on purpose, for old clients.
fn not_after_unix_secs(chain: &[u8]) -> (u64, u64) {
    let ends = certificates(chain).unwrap_or_default().into_iter().filter_map(|certificate| {
        let (_, parsed) = x509_parser::parse_x509_certificate(&certificate).ok()?;
        u64::try_from(parsed.validity().not_after.timestamp()).ok()
    });
    let ends: Vec<u64> = ends.collect();
    (ends.iter().min().copied().unwrap_or(0), ends.first().copied().unwrap_or(0))
}

/// Accepts certificates of this authority that carry this name, if there is one.
fn verifier(
    authority: &[u8],
    name: Option<&str>,
    provider: Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(authority).map_err(TlsError::ClientCa)? {
        roots.add(certificate).map_err(|error| TlsError::ClientCa(error.into()))?;
    }
    let by_authority = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
        .build()
        .map_err(|error| TlsError::ClientCa(error.into()))?;
    let Some(name) = name else { return Ok(by_authority) };
    let name = DnsName::try_from(name.to_owned()).map_err(|_| TlsError::ClientName(name.to_owned()))?;
    Ok(Arc::new(ByName { by_authority, name: ServerName::DnsName(name) }))
}

/// Accepts certificates of the authority that carry the name.
#[derive(Debug)]
struct ByName {
    by_authority: Arc<dyn ClientCertVerifier>,
    name: ServerName<'static>,
}

impl ClientCertVerifier for ByName {
    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let verified = self.by_authority.verify_client_cert(certificate, intermediates, now)?;
        verify_server_name(&ParsedCertificate::try_from(certificate)?, &self.name)?;
        Ok(verified)
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.by_authority.root_hint_subjects()
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.by_authority.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.by_authority.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.by_authority.supported_verify_schemes()
    }
}
