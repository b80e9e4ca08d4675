//! The socket under a connection: TCP or unix. A peer that does not read is given up.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::Sleep;

/// How long bytes may wait to be sent without one of them leaving: the peer reads nothing, and would hold its place and
/// its answers for ever.
const WRITE_STALL_TIMEOUT: Duration = Duration::from_secs(30);

/// A socket that belongs to no runtime: on its way from a listener to the thread that serves it.
#[derive(Debug)]
pub(super) enum Detached {
    Tcp(std::net::TcpStream),
    Unix(std::os::unix::net::UnixStream),
}

/// A socket of the runtime that it was made on.
#[derive(Debug)]
pub struct Socket {
    kind: Kind,
    /// Runs while bytes wait to be sent. Made only then, which is rare.
    stalled: Option<Pin<Box<Sleep>>>,
}

#[derive(Debug)]
enum Kind {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Detached {
    /// Hands it to the runtime of the caller.
    pub(super) fn attach(self) -> io::Result<Socket> {
        let kind = match self {
            Self::Tcp(stream) => Kind::Tcp(TcpStream::from_std(stream)?),
            Self::Unix(stream) => Kind::Unix(UnixStream::from_std(stream)?),
        };
        Ok(Socket { kind, stalled: None })
    }
}

/// Calls a method of whichever stream it is.
macro_rules! with_stream {
    ($kind:expr, $stream:ident => $call:expr) => {
        match $kind {
            Kind::Tcp($stream) => $call,
            Kind::Unix($stream) => $call,
        }
    };
}

impl Socket {
    /// The outcome of a write, unless it has waited for too long.
    fn within_patience(
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
        with_stream!(&mut self.kind, stream => Pin::new(stream).poll_read(context, buffer))
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = with_stream!(&mut self.kind, stream => Pin::new(stream).poll_write(context, bytes));
        self.within_patience(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written =
            with_stream!(&mut self.kind, stream => Pin::new(stream).poll_write_vectored(context, slices));
        self.within_patience(context, written)
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
