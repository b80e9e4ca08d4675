//! A socket to a server whose replies are bounded. A reply is kept in memory until it is complete, and a server, or
//! an attacker in its place, may send one without an end.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes that may be read without a complete reply. The largest reply that is asked for, a thousand batches of
/// changed records, has some 100 MiB if their names are long.
const REPLY_BYTES_MAX: usize = 256 << 20;

/// Bytes that were read since the last reply. Clones share the count.
#[derive(Clone, Debug, Default)]
pub(super) struct Unanswered(Arc<AtomicUsize>);

/// A socket on which reading fails after too many bytes without a complete reply.
pub(super) struct Bounded<S> {
    stream: S,
    unanswered: Unanswered,
}

impl Unanswered {
    /// A complete reply has arrived.
    pub(super) fn answered(&self) {
        self.0.store(0, Relaxed);
    }
}

impl<S> Bounded<S> {
    /// Counts on this counter.
    pub(super) fn new(stream: S, unanswered: Unanswered) -> Self {
        Self { stream, unanswered }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Bounded<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        let read = buffer.filled().len() - before;
        match self.unanswered.0.fetch_add(read, Relaxed) + read <= REPLY_BYTES_MAX {
            true => Poll::Ready(Ok(())),
            false => Poll::Ready(Err(io::Error::other("a reply is too large (expected at most 256 MiB)"))),
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Bounded<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
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

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;

    use super::*;

    #[tokio::test]
    async fn a_reply_without_an_end_is_not_read_for_ever() {
        let unanswered = Unanswered::default();
        let mut stream = Bounded::new(tokio::io::repeat(b'0'), unanswered.clone());
        let mut piece = vec![0; 1 << 20];
        for _ in 0..2 {
            for _ in 0..200 {
                stream.read_exact(&mut piece).await.expect("within the bound");
            }
            unanswered.answered();
        }
        let mut read = 0;
        let refused = loop {
            match stream.read(&mut piece).await {
                Ok(length) => read += length,
                Err(error) => break error,
            }
        };
        assert!(read <= REPLY_BYTES_MAX && refused.to_string().contains("too large"), "{read}: {refused}");
    }
}
