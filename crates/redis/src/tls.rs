//! TLS to Redis: trusted certificates, our own certificate, and whether names are verified.

use std::error::Error as StdError;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

/// The files of TLS to Redis, in PEM.
#[derive(Clone, Debug, Default)]
pub struct TlsFiles {
    /// Certificates that are trusted in addition to the system's.
    pub authority: Option<Vec<u8>>,
    /// Our certificate chain and its key.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
    /// Verifies the chain but not the name.
    pub any_name: bool,
}

/// Which file is wrong, and why.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// The trusted certificates.
    #[error("authority: {0}")]
    Authority(Cause),
    /// Neither the system nor a file has a trusted certificate.
    #[error("no authority is trusted: {0}")]
    NoAuthority(Cause),
    /// Our chain is malformed, or the key does not belong to it.
    #[error("chain: {0}")]
    Chain(Cause),
    /// Our key is malformed.
    #[error("key: {0}")]
    Key(Cause),
}

type Cause = Box<dyn StdError + Send + Sync>;

/// The configuration of these files.
/// Fails when a file is wrong.
pub fn config(files: &TlsFiles) -> Result<Arc<ClientConfig>, TlsError> {
    let provider = Arc::new(ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    for certificate in files.authority.iter().flat_map(|pem| CertificateDer::pem_slice_iter(pem)) {
        let certificate = certificate.map_err(|error| TlsError::Authority(error.into()))?;
        roots.add(certificate).map_err(|error| TlsError::Authority(error.into()))?;
    }
    let by_chain = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
        .build()
        .map_err(|error| TlsError::NoAuthority(error.into()))?;
    let verifier = Arc::new(Verifier { by_chain, any_name: files.any_name });
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("ring has ciphers for every version")
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let config = match &files.identity {
        None => builder.with_no_client_auth(),
        Some((chain, key)) => {
            let chain = CertificateDer::pem_slice_iter(chain)
                .collect::<Result<Vec<_>, _>>()
                .map_err(|error| TlsError::Chain(error.into()))?;
            let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| TlsError::Key(error.into()))?;
            builder.with_client_auth_cert(chain, key).map_err(|error| TlsError::Chain(error.into()))?
        }
    };
    Ok(Arc::new(config))
}

/// Verifies the chain, and the name unless any name is allowed.
#[derive(Debug)]
struct Verifier {
    by_chain: Arc<WebPkiServerVerifier>,
    any_name: bool,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        // The name is verified last: an error about the name means that the chain is good.
        match self.by_chain.verify_server_cert(certificate, intermediates, name, ocsp, now) {
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if self.any_name => Ok(ServerCertVerified::assertion()),
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.by_chain.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.by_chain.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.by_chain.supported_verify_schemes()
    }
}
