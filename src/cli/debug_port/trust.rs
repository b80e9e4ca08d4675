//! TLS to a debug port. In: the options that name PEM files. Out: handshakes, with our certificate if there is one.

use std::io;
use std::sync::Arc;

use clap::{Arg, ArgMatches};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

const CACERT: &str = "cacert";
const CERT: &str = "cert";
const KEY: &str = "key";

/// The authorities that we trust, and our certificate. Clones share everything.
#[derive(Clone)]
pub(in crate::cli) struct Trust(Arc<ClientConfig>);

/// A file that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {problem}")]
pub(in crate::cli) struct TrustError {
    option: &'static str,
    path: String,
    problem: String,
}

impl TrustError {
    /// The option that names it.
    pub(in crate::cli) fn option(&self) -> &'static str {
        self.option
    }
}

pub(in crate::cli) fn arguments() -> [Arg; 3] {
    let file =
        |name: &'static str, help: &'static str| Arg::new(name).long(name).value_name("FILE").help(help);
    [
        file(CACERT, "for https: PEM certificates that are trusted in addition to the system's"),
        file(CERT, "for https: PEM chain that is shown to the limiter").requires(KEY),
        file(KEY, "its PEM key").requires(CERT),
    ]
}

impl Trust {
    /// Reads the files of these options.
    pub(super) fn read(matches: &ArgMatches) -> Result<Self, TrustError> {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        for certificate in certificates(matches, CACERT)?.into_iter().flatten() {
            roots.add(certificate).map_err(|error| bad(matches, CACERT, error))?;
        }
        let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("ring has ciphers for every version")
            .with_root_certificates(roots);
        let config = match (certificates(matches, CERT)?, pem(matches, KEY)?) {
            (Some(chain), Some(key)) => {
                let key = PrivateKeyDer::from_pem_slice(&key).map_err(|error| bad(matches, KEY, error))?;
                builder.with_client_auth_cert(chain, key).map_err(|error| bad(matches, KEY, error))?
            }
            _ => builder.with_no_client_auth(),
        };
        Ok(Self(Arc::new(config)))
    }

    /// Speaks TLS with this host.
    pub(super) async fn handshake(&self, host: &str, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        TlsConnector::from(Arc::clone(&self.0)).connect(name, stream).await
    }
}

/// The certificates of an option; `None` if it is not given.
fn certificates(
    matches: &ArgMatches,
    option: &'static str,
) -> Result<Option<Vec<CertificateDer<'static>>>, TrustError> {
    let Some(pem) = pem(matches, option)? else { return Ok(None) };
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    match read {
        Ok(certificates) if certificates.is_empty() => {
            Err(bad(matches, option, "holds no certificate in PEM"))
        }
        Ok(certificates) => Ok(Some(certificates)),
        Err(error) => Err(bad(matches, option, error)),
    }
}

/// The file of an option; `None` if it is not given.
fn pem(matches: &ArgMatches, option: &'static str) -> Result<Option<Vec<u8>>, TrustError> {
    let read =
        |path: &String| tidegate_disk::read(path.as_ref()).map_err(|error| bad(matches, option, error));
    matches.get_one::<String>(option).map(read).transpose()
}

fn bad(matches: &ArgMatches, option: &'static str, problem: impl ToString) -> TrustError {
    let path = matches.get_one::<String>(option).cloned().unwrap_or_default();
    let option = match option {
        CACERT => "--cacert",
        CERT => "--cert",
        _ => "--key",
    };
    TrustError { option, path, problem: problem.to_string() }
}
