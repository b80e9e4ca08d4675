//! A TLS client that shows what a server says of itself: rustls, which the program uses too; Envoy's BoringSSL is the
//! peer that does not share its code.

use std::io::{self, BufReader, ErrorKind, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::http::{self, Answer};
use super::pki::{Authority, Identity};

/// A connection whose handshake is done.
pub struct Connection(StreamOwned<ClientConnection, TcpStream>);

impl Connection {
    /// Connects to a port as `localhost`, trusting this authority, with this identity if the server wants one.
    ///
    /// With TLS 1.3 a server that refuses the client says so after the handshake, with the first answer.
    pub fn open(
        port: u16,
        trusted: &Authority,
        identity: Option<&Identity>,
        protocols: &[&str],
    ) -> io::Result<Self> {
        let mut roots = RootCertStore::empty();
        let authority = CertificateDer::from_pem_slice(trusted.pem().as_bytes()).expect("our own");
        roots.add(authority).expect("our own");
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("ring has ciphers for every version")
            .with_root_certificates(roots);
        let mut config = match identity {
            None => config.with_no_client_auth(),
            Some(Identity { chain, key }) => {
                let chain = CertificateDer::from_pem_slice(chain.as_bytes()).expect("our own");
                let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).expect("our own");
                config.with_client_auth_cert(vec![chain], key).expect("they belong together")
            }
        };
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        let name = ServerName::try_from("localhost").expect("a name");
        let mut session = ClientConnection::new(Arc::new(config), name).expect("a sound configuration");
        let mut socket = http::connect(port)?;
        while session.is_handshaking() {
            session.complete_io(&mut socket)?;
        }
        Ok(Self(StreamOwned::new(session, socket)))
    }

    /// Says this, in whatever protocol.
    pub fn say(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).expect("it takes that");
    }

    /// Says the same again and again, for so long or until the server takes no more. Whether it took no more. Nothing is
    /// read, so it must not be anything that is answered.
    pub fn is_ended_by(&mut self, bytes: &[u8], duration: Duration) -> bool {
        let chunk = bytes.repeat(1024);
        let began = Instant::now();
        while began.elapsed() < duration {
            if let Err(error) = self.0.write_all(&chunk) {
                // A server that only reads no more has not ended it.
                return !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
            }
        }
        false
    }

    /// What was agreed to be spoken.
    pub fn protocol(&self) -> Option<&str> {
        self.0.conn.alpn_protocol().map(|protocol| str::from_utf8(protocol).expect("ASCII"))
    }

    /// Whether the server showed this certificate.
    pub fn shows(&self, identity: &Identity) -> bool {
        let expected = CertificateDer::from_pem_slice(identity.chain.as_bytes()).expect("our own");
        self.0.conn.peer_certificates().and_then(<[_]>::first) == Some(&expected)
    }

    /// A GET over HTTP/1.1.
    pub fn get(&mut self, path: &str) -> io::Result<Answer> {
        self.send("GET", path, &[], "")
    }

    /// A request over HTTP/1.1.
    pub fn send(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> io::Result<Answer> {
        let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let length = body.len();
        let head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\n{headers}");
        write!(self.0, "{head}content-length: {length}\r\n\r\n{body}")?;
        http::read_answer(&mut BufReader::new(&mut self.0), false)
    }
}
