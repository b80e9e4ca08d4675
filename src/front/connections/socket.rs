//! The socket under a connection: TCP or unix. Gives up a peer that does not read.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::Sleep;

use super::spin;

/// How long bytes may wait while the system takes none of them. A peer that reads nothing would keep its connection
/// and its answers for ever. The time is long because the system takes more only once a good part of its buffer is
/// free.
pub(super) const WRITE_STALL_TIMEOUT: Duration = Duration::from_secs(60);

/// A socket of no runtime, between a listener and the thread that serves it.
#[derive(Debug)]
pub(super) enum Detached {
    Tcp(std::net::TcpStream),
    Unix(std::os::unix::net::UnixStream),
}

/// A socket of the runtime that it was attached to.
#[derive(Debug)]
pub struct Socket {
    kind: SocketKind,
    /// Runs while bytes wait to be sent. Made only then, which is rare.
    stalled: Option<Pin<Box<Sleep>>>,
}

#[derive(Debug)]
enum SocketKind {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Detached {
    /// Attaches the socket to the runtime of the caller.
    pub(super) fn attach(self) -> io::Result<Socket> {
        let kind = match self {
            Self::Tcp(stream) => SocketKind::Tcp(TcpStream::from_std(stream)?),
            Self::Unix(stream) => SocketKind::Unix(UnixStream::from_std(stream)?),
        };
        Ok(Socket { kind, stalled: None })
    }
}

/// Calls a method of the stream of either kind.
macro_rules! with_stream {
    ($kind:expr, $stream:ident => $call:expr) => {
        match $kind {
            SocketKind::Tcp($stream) => $call,
            SocketKind::Unix($stream) => $call,
        }
    };
}

impl Socket {
    /// The outcome of a write, or an error once it has waited for too long.
    fn within_timeout(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep(WRITE_STALL_TIMEOUT)));
        stalled.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = with_stream!(&mut self.kind, stream => Pin::new(stream).poll_read(context, buffer));
        if read.is_ready() {
            spin::note_read();
        }
        read
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = with_stream!(&mut self.kind, stream => Pin::new(stream).poll_write(context, bytes));
        self.within_timeout(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written =
            with_stream!(&mut self.kind, stream => Pin::new(stream).poll_write_vectored(context, slices));
        self.within_timeout(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        with_stream!(&self.kind, stream => stream.is_write_vectored())
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        with_stream!(&mut self.kind, stream => Pin::new(stream).poll_flush(context))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        with_stream!(&mut self.kind, stream => Pin::new(stream).poll_shutdown(context))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// Both ends of a connection.
    fn pair() -> (Socket, UnixStream) {
        let (ours, peer) = std::os::unix::net::UnixStream::pair().expect("sockets");
        ours.set_nonblocking(true).expect("a socket");
        peer.set_nonblocking(true).expect("a socket");
        let ours = Detached::Unix(ours).attach().expect("a runtime");
        (ours, UnixStream::from_std(peer).expect("a runtime"))
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_reads_nothing_for_long_is_given_up() {
        let (mut ours, _peer) = pair();
        let answers = vec![0; 10_000_000];
        let waited = tokio::time::timeout(WRITE_STALL_TIMEOUT * 2, ours.write_all(&answers)).await;
        let error = waited.expect("given up").expect_err("nobody reads");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_reads_slowly_is_waited_for() {
        let (mut ours, mut peer) = pair();
        let answers = vec![0; 1_000_000];
        let reading = async {
            let (mut read, mut left) = (vec![0; 1_000_000], 1_000_000);
            while left > 0 {
                tokio::time::sleep(WRITE_STALL_TIMEOUT * 9 / 10).await;
                left -= peer.read(&mut read).await.expect("something is sent");
            }
        };
        let (written, ()) = tokio::join!(ours.write_all(&answers), reading);
        written.expect("all of it is sent");
    }
}
