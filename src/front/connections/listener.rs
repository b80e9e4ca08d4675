//! Where connections come in: a TCP port or a unix socket, with TLS or without.

use std::fmt;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket, UnixListener, UnixSocket, UnixStream, lookup_host};

use super::socket::Detached;
use super::stream::{Protocol, Stream, Transport};
use super::tls::Tls;
use crate::front::Life;
use tidegate_operate::peer::{Certificate, Peer};

/// Connections that may wait to be accepted. The system cuts this to its own bound (net.core.somaxconn). With too few, a
/// client whose SYN is dropped tries again after a second, and all proxies come back at once after a restart.
const BACKLOG: u32 = i32::MAX as u32;
/// A pause after an error of `accept`. Usually file descriptors have run out, and there will be none a moment later
/// either.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How long a client may take to send the bytes that show its protocol, TLS included.
const GREETING_TIMEOUT: Duration = Duration::from_secs(10);
/// The same during draining.
const LATE_GREETING: Duration = Duration::from_millis(200);

/// Takes connections. Dropping it closes it, and removes the file of a unix socket.
#[derive(Debug)]
pub struct Listener {
    place: ListenerKind,
    tls: Option<Arc<Tls>>,
}

#[derive(Debug)]
enum ListenerKind {
    Tcp(TcpListener),
    /// The file is dropped first: a new client then finds no file, instead of one that nobody listens on.
    Unix(SocketFile, UnixListener),
}

/// A connection that has just been accepted. It belongs to no thread, and nothing of it has been read.
#[derive(Debug)]
pub struct Arrival {
    socket: Detached,
    tls: Option<Arc<Tls>>,
    /// The peer's address. `None` on a unix socket.
    pub peer: Option<SocketAddr>,
}

/// A connection whose protocol is known: what a driver gets.
#[derive(Debug)]
pub struct Session {
    /// All bytes of the client from the first one on, and the stream for the answers.
    pub stream: Stream,
    /// The protocol of the client.
    pub protocol: Protocol,
    pub peer: Peer,
}

impl Listener {
    /// Listens on a TCP port.
    /// Fails with the error of the system.
    pub async fn tcp(host: &str, port: u16) -> io::Result<Self> {
        let mut refused = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for address in lookup_host((host, port)).await? {
            match listen_at(address) {
                Ok(listener) => return Ok(listener.into()),
                Err(error) => refused = error,
            }
        }
        Err(refused)
    }

    /// Listens on a unix socket. Removes a stale one first.
    /// Fails with the error of the system: `AddrInUse` when somebody listens there, or when the path is no socket.
    pub async fn unix(path: &Path) -> io::Result<Self> {
        let listener = match listen_on(path) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_stale(path).await => {
                fs::remove_file(path)?;
                listen_on(path)?
            }
            bound => bound?,
        };
        Ok(Self { place: ListenerKind::Unix(SocketFile::at(path)?, listener), tls: None })
    }

    /// The same listener with TLS.
    #[must_use]
    pub fn with_tls(self, tls: Option<Arc<Tls>>) -> Self {
        Self { tls, ..self }
    }

    /// Whether clients have to speak TLS.
    pub fn has_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// The address of a TCP port.
    pub fn address(&self) -> Option<SocketAddr> {
        match &self.place {
            ListenerKind::Tcp(listener) => listener.local_addr().ok(),
            ListenerKind::Unix(..) => None,
        }
    }

    /// The path of a unix socket.
    pub fn path(&self) -> Option<&Path> {
        match &self.place {
            ListenerKind::Tcp(_) => None,
            ListenerKind::Unix(file, _) => Some(&file.path),
        }
    }

    /// Waits for the next connection.
    pub async fn accept(&self) -> Arrival {
        loop {
            match self.place.accept().await {
                Ok((socket, peer)) => return Arrival { socket, tls: self.tls.clone(), peer },
                Err(error) => {
                    tracing::debug!(%error, "accept failed");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

impl From<TcpListener> for Listener {
    fn from(listener: TcpListener) -> Self {
        Self { place: ListenerKind::Tcp(listener), tls: None }
    }
}

impl fmt::Display for Listener {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            ListenerKind::Tcp(listener) => match listener.local_addr() {
                Ok(address) => write!(formatter, "{address}"),
                Err(error) => write!(formatter, "{error}"),
            },
            ListenerKind::Unix(file, _) => write!(formatter, "unix:{}", file.path.display()),
        }?;
        formatter.write_str(if self.has_tls() { " with TLS" } else { "" })
    }
}

impl ListenerKind {
    async fn accept(&self) -> io::Result<(Detached, Option<SocketAddr>)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                // Answers are small and each is awaited: never delay one to gather more.
                let _ = stream.set_nodelay(true);
                Ok((Detached::Tcp(stream.into_std()?), Some(peer)))
            }
            Self::Unix(_, listener) => {
                let (stream, _) = listener.accept().await?;
                Ok((Detached::Unix(stream.into_std()?), None))
            }
        }
    }
}

impl Arrival {
    /// Waits, on the runtime of the caller, until the client's first bytes have shown its protocol. `None` if they do
    /// not come in time, or draining begins before. A driver would wait for them without a bound, and look
    /// for dead peers only afterwards.
    pub async fn greeted(self, life: &mut Life) -> Option<Session> {
        let address = self.peer;
        let greeted = tokio::select! {
            biased;
            greeted = tokio::time::timeout(GREETING_TIMEOUT, self.greeting()) => greeted,
            // A client whose first bytes are on the wire still gets a graceful end.
            () = async { life.draining().await; tokio::time::sleep(LATE_GREETING).await } => return None,
        };
        match greeted {
            Ok(Ok((stream, protocol, certificate))) => {
                Some(Session { stream, protocol, peer: Peer { address, certificate } })
            }
            Ok(Err(error)) => {
                tracing::debug!(peer = ?address, %error, "no connection");
                None
            }
            Err(_) => {
                tracing::debug!(peer = ?address, "no connection: the TLS handshake or the first bytes took too long");
                None
            }
        }
    }

    async fn greeting(self) -> io::Result<(Stream, Protocol, Option<Certificate>)> {
        let socket = self.socket.attach()?;
        let (transport, certificate) = match self.tls {
            None => (Transport::Plain(socket), None),
            Some(tls) => {
                let stream = tls.handshake(socket).await?;
                let certificate = Certificate::shown_by(stream.get_ref().1);
                (Transport::Tls(Box::new(stream)), certificate)
            }
        };
        let (stream, protocol) = Stream::greeted(transport).await?;
        Ok((stream, protocol, certificate))
    }
}

fn listen_at(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // Closed connections of the previous process do not keep the port in use.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

fn listen_on(path: &Path) -> io::Result<UnixListener> {
    let socket = UnixSocket::new_stream()?;
    socket.bind(path)?;
    socket.listen(BACKLOG)
}

/// The file of a unix socket. It is removed with its listener, unless another socket has taken its name.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
}

impl SocketFile {
    fn at(path: &Path) -> io::Result<Self> {
        // A relative path would change with the working directory.
        let path = std::path::absolute(path)?;
        let identity = Self::identity(&path)?;
        Ok(Self { path, identity })
    }

    fn identity(path: &Path) -> io::Result<(u64, u64)> {
        fs::symlink_metadata(path).map(|metadata| (metadata.dev(), metadata.ino()))
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if Self::identity(&self.path).is_ok_and(|identity| identity == self.identity) {
            let removed = fs::remove_file(&self.path);
            if let Err(error) = removed {
                tracing::warn!("{}: cannot be removed: {error}", self.path.display());
            }
        }
    }
}

/// Whether nobody listens on a socket. Asks without blocking: a listener may be too busy to answer.
async fn is_stale(path: &Path) -> bool {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket());
    let refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    is_socket && UnixStream::connect(path).await.is_err_and(refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// More than the 128 that most programs ask for, and fewer than a process may have open files.
    const CROWD: usize = 400;

    #[tokio::test]
    async fn a_crowd_waits_to_be_accepted_and_is_not_turned_away() {
        let listener = Listener::tcp("127.0.0.1", 0).await.expect("a free port");
        let address = listener.address().expect("it is bound");
        let somaxconn = fs::read_to_string("/proc/sys/net/core/somaxconn").expect("Linux has it");
        let allowed: usize = somaxconn.trim().parse().expect("a number");
        // A connection that is turned away is tried again after a second.
        let connect = |_| std::net::TcpStream::connect_timeout(&address, Duration::from_millis(900));
        let crowd: Result<Vec<_>, _> = (0..CROWD.min(allowed)).map(connect).collect();
        crowd.expect("nobody is turned away");

        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket");
        let _listener = Listener::unix(&path).await.expect("a free name");
        let mut crowd = Vec::new();
        for _ in 0..CROWD.min(allowed) {
            crowd.push(UnixStream::connect(&path).await.expect("nobody is turned away"));
        }
    }
}
