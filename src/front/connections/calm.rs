//! Ends a connection of HTTP/2 whose client floods it with frames that are part of no call. hyper answers or ignores
//! PING, SETTINGS, WINDOW_UPDATE and PRIORITY for as long as they come. The lane counts them itself.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tidegate_grpc::connection::PassingFrames;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::clock;

/// The bytes of a connection. Reading fails once its client has sent too many useless frames.
pub(super) struct Calm<S> {
    stream: S,
    frames: PassingFrames,
}

impl<S> Calm<S> {
    /// A connection of which nothing has been read.
    pub(super) fn new(stream: S) -> Self {
        Self { stream, frames: PassingFrames::new(clock::timer()) }
    }
}

impl<S: Unpin> Calm<S> {
    fn counted(&mut self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(bytes)) = written {
            self.frames.sent(bytes);
        }
        written
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Calm<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        match self.frames.receive(&buffer.filled()[before..], clock::timer()) {
            true => Poll::Ready(Ok(())),
            false => Poll::Ready(Err(io::Error::other("too many frames that ask for nothing"))),
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Calm<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.counted(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.counted(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
