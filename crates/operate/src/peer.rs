//! Who is at the other end of a connection: its address, and the certificate that it has shown.

use std::net::SocketAddr;

use rustls::ServerConnection;
use rustls::client::verify_server_name;
use rustls::pki_types::{CertificateDer, DnsName, ServerName};
use rustls::server::ParsedCertificate;
use x509_parser::extensions::GeneralName;

/// A client.
#[derive(Clone, Debug, Default)]
pub struct Peer {
    /// `None` on a unix socket.
    pub address: Option<SocketAddr>,
    /// Its certificate, which TLS has verified. `None`: it needed none, or there is no TLS.
    pub certificate: Option<Certificate>,
}

/// The certificate of a client, which comes from the authority that the port trusts.
#[derive(Clone, Debug)]
pub struct Certificate(CertificateDer<'static>);

impl Peer {
    /// A client at this address, without a certificate.
    pub fn at(address: SocketAddr) -> Self {
        Self { address: Some(address), certificate: None }
    }
}

impl Certificate {
    /// What the client showed in a handshake that is done.
    pub fn shown_by(connection: &ServerConnection) -> Option<Self> {
        let first = connection.peer_certificates()?.first()?;
        Some(Self(first.clone().into_owned()))
    }

    /// Whether it carries this name: a URI as it is written, or a name in DNS, also by a wildcard.
    pub fn carries(&self, name: &str) -> bool {
        if name.contains("://") { self.carries_uri(name) } else { self.carries_dns_name(name) }
    }

    fn carries_dns_name(&self, name: &str) -> bool {
        let Ok(name) = DnsName::try_from(name) else { return false };
        let parsed = ParsedCertificate::try_from(&self.0);
        parsed.is_ok_and(|parsed| verify_server_name(&parsed, &ServerName::DnsName(name)).is_ok())
    }

    fn carries_uri(&self, uri: &str) -> bool {
        let Ok((_, parsed)) = x509_parser::parse_x509_certificate(&self.0) else { return false };
        let Ok(Some(names)) = parsed.subject_alternative_name() else { return false };
        names.value.general_names.iter().any(|name| matches!(name, GeneralName::URI(own) if *own == uri))
    }
}
