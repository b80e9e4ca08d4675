//! The load generator's end of a connection: plain, or TLS with a certificate of this run's own.

use std::fs;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use mio::net::TcpStream;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

const NAME: &str = "localhost";

/// A socket that never blocks.
pub(crate) enum Socket {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Socket {
    /// Connects; with TLS, completes the handshake.
    pub(crate) fn connect(address: SocketAddr, tls: bool) -> io::Result<Socket> {
        let mut socket = std::net::TcpStream::connect(address)?;
        socket.set_nodelay(true)?;
        let mut session = tls.then(session).transpose()?;
        if let Some(session) = &mut session {
            while session.is_handshaking() {
                session.complete_io(&mut socket)?;
            }
        }
        socket.set_nonblocking(true)?;
        let socket = TcpStream::from_std(socket);
        Ok(match session {
            Some(session) => Socket::Tls(Box::new(StreamOwned::new(session, socket))),
            None => Socket::Plain(socket),
        })
    }

    /// The socket to register with epoll.
    pub(crate) fn source(&mut self) -> &mut TcpStream {
        match self {
            Socket::Plain(socket) => socket,
            Socket::Tls(stream) => &mut stream.sock,
        }
    }

    /// Whether a short read means that the socket is empty, so that epoll reports further bytes.
    pub(crate) fn short_read_means_empty(&self) -> bool {
        matches!(self, Socket::Plain(_))
    }
}

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Plain(socket) => socket.read(buffer),
            Socket::Tls(stream) => stream.read(buffer),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Plain(socket) => socket.write(buffer),
            Socket::Tls(stream) => stream.write(buffer),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Socket::Plain(socket) => socket.flush(),
            Socket::Tls(stream) => stream.flush(),
        }
    }
}

/// A server certificate, and a client configuration that trusts it.
struct Identity {
    certificate: String,
    key: String,
    client: Arc<ClientConfig>,
}

impl Identity {
    /// The certificate of this run.
    fn of_run() -> &'static Identity {
        static IDENTITY: OnceLock<Identity> = OnceLock::new();
        IDENTITY.get_or_init(|| {
            let made = rcgen::generate_simple_self_signed([NAME.to_owned()]).expect("a certificate");
            let mut roots = RootCertStore::empty();
            roots.add(made.cert.der().clone()).expect("it is well-formed");
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
            let config = config.expect("ring has what TLS needs").with_root_certificates(roots);
            let mut client = config.with_no_client_auth();
            client.alpn_protocols = vec![b"h2".to_vec()];
            let (certificate, key) = (made.cert.pem(), made.signing_key.serialize_pem());
            Identity { certificate, key, client: Arc::new(client) }
        })
    }
}

/// The settings with which Tidegate serves TLS. Their files are written to this folder.
pub(crate) fn settings(folder: &Path) -> io::Result<[(&'static str, String); 3]> {
    let Identity { certificate, key, .. } = Identity::of_run();
    let [certificate_file, key_file] = ["cert.pem", "key.pem"].map(|name| folder.join(name));
    fs::write(&certificate_file, certificate)?;
    fs::write(&key_file, key)?;
    Ok([
        ("GRPC_SERVER_USE_TLS", "true".to_owned()),
        ("GRPC_SERVER_TLS_CERT", certificate_file.display().to_string()),
        ("GRPC_SERVER_TLS_KEY", key_file.display().to_string()),
    ])
}

fn session() -> io::Result<ClientConnection> {
    let name = ServerName::try_from(NAME).expect("a name");
    ClientConnection::new(Arc::clone(&Identity::of_run().client), name).map_err(io::Error::other)
}
