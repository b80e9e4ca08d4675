//! A connection to a receiver. Every operation on it has a timeout of a few seconds.

use std::fmt;
use std::io;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::{TcpStream, UdpSocket};

/// How long opening a connection, or writing a payload, may take.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of a payload over UDP: they fit into a packet on nearly every network.
const DATAGRAM_BYTES: usize = 1_432;
/// Bytes of a payload over TCP.
const STREAM_BYTES: usize = 16 * 1_024;

/// Where a receiver is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// Its host, a name or an address.
    pub host: String,
    pub port: u16,
    pub transport: Transport,
}

/// A transport of StatsD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Transport {
    Tcp,
    Udp,
}

impl fmt::Display for Address {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let transport = if self.transport == Transport::Tcp { "tcp" } else { "udp" };
        write!(out, "{transport}://{}:{}", self.host, self.port)
    }
}

pub(super) enum Connection {
    Tcp(TcpStream),
    Udp(UdpSocket),
}

impl Connection {
    pub(super) async fn open(address: &Address) -> io::Result<Self> {
        in_time(async {
            let host = (address.host.as_str(), address.port);
            match address.transport {
                Transport::Tcp => TcpStream::connect(host).await.map(Self::Tcp),
                Transport::Udp => udp(host).await.map(Self::Udp),
            }
        })
        .await
    }

    /// The most bytes to write at a time, unless a single line is longer.
    pub(super) fn payload_bytes(&self) -> usize {
        match self {
            Self::Tcp(_) => STREAM_BYTES,
            Self::Udp(_) => DATAGRAM_BYTES,
        }
    }

    /// Whether the receiver can move to another address unnoticed.
    pub(super) fn forgets(&self) -> bool {
        matches!(self, Self::Udp(_))
    }

    /// Writes whole lines. Does nothing without lines.
    pub(super) async fn write(&mut self, lines: &str) -> io::Result<()> {
        if lines.is_empty() {
            return Ok(());
        }
        match self {
            Self::Tcp(stream) => {
                still_open(stream)?;
                in_time(stream.write_all(lines.as_bytes())).await
            }
            Self::Udp(socket) => match in_time(socket.send(lines.as_bytes())).await {
                // A line that fits into no packet is dropped; otherwise it would be sent again and again.
                Err(error) if error.raw_os_error() == Some(rustix::io::Errno::MSGSIZE.raw_os_error()) => {
                    Ok(())
                }
                sent => sent.map(drop),
            },
        }
    }
}

async fn udp(host: (&str, u16)) -> io::Result<UdpSocket> {
    let mut failed = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in tokio::net::lookup_host(host).await? {
        let any = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let socket = UdpSocket::bind(any).await?;
        match socket.connect(address).await {
            Ok(()) => return Ok(socket),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

/// Fails when the receiver has closed the connection: the first write after that would succeed and be lost. A receiver
/// sends nothing, so this read finds either nothing or the end.
fn still_open(stream: &TcpStream) -> io::Result<()> {
    match stream.try_read(&mut [0; 64]) {
        Ok(0) => Err(io::ErrorKind::ConnectionReset.into()),
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
        Err(error) => Err(error),
    }
}

async fn in_time<T>(work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::time::timeout(TIMEOUT, work).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}
