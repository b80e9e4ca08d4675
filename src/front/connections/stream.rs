//! The bytes of one connection, plain or TLS, once its protocol is known.
//!
//! In: a socket. Out: a [`Stream`] of all bytes of the client, from the first one on.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio_rustls::server::TlsStream;

use super::socket::Socket;

/// How a connection of HTTP/2 begins.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Bytes that a connection reads in a turn. A turn of 64 KiB of small frames would delay everybody else on the thread
/// by milliseconds.
const TURN_BYTES: usize = 8 * 1_024;

/// The protocol of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/2: it began with the preface.
    Http2,
    /// HTTP/1 or unknown: it began with anything else.
    Http1,
}

/// The bytes of one connection. Either kind costs a branch per call and no allocation.
#[derive(Debug)]
pub struct Stream {
    transport: Transport,
    greeting: Greeting,
    read_in_turn: usize,
}

/// What carries the bytes.
#[derive(Debug)]
pub(super) enum Transport {
    Plain(Socket),
    Tls(Box<TlsStream<Socket>>),
}

/// The client's first bytes: read to detect its protocol, and passed to the driver later.
#[derive(Debug)]
struct Greeting {
    bytes: [u8; PREFACE.len()],
    len: usize,
    handed_out: usize,
}

impl Stream {
    /// Reads the preface of HTTP/2, or until something differs from it.
    /// Fails when the client ends the connection before that.
    pub(super) async fn greeted(mut transport: Transport) -> io::Result<(Self, Protocol)> {
        let mut greeting = Greeting { bytes: [0; PREFACE.len()], len: 0, handed_out: 0 };
        while greeting.len < PREFACE.len() && PREFACE.starts_with(greeting.text()) {
            match transport.read(&mut greeting.bytes[greeting.len..]).await? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                length => greeting.len += length,
            }
        }
        let protocol = if greeting.text() == PREFACE { Protocol::Http2 } else { Protocol::Http1 };
        Ok((Self { transport, greeting, read_in_turn: 0 }, protocol))
    }
}

impl Greeting {
    fn text(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Hands out as much of the rest as fits.
    fn hand_out(&mut self, buffer: &mut ReadBuf<'_>) {
        let left = &self.bytes[self.handed_out..self.len];
        let fits = left.len().min(buffer.remaining());
        buffer.put_slice(&left[..fits]);
        self.handed_out += fits;
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.greeting.handed_out < self.greeting.len {
            self.greeting.hand_out(buffer);
            return Poll::Ready(Ok(()));
        }
        if self.read_in_turn >= TURN_BYTES {
            // Other tasks on this thread run first; then this one continues.
            self.read_in_turn = 0;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.transport).poll_read(context, buffer);
        self.read_in_turn += buffer.filled().len() - before;
        // A read that leaves room in the buffer has taken everything that was there.
        if read.is_pending() || buffer.remaining() > 0 {
            self.read_in_turn = 0;
        }
        read
    }
}

/// Calls a method of the transport of either kind.
macro_rules! with_transport {
    ($transport:expr, $stream:ident => $call:expr) => {
        match $transport {
            Transport::Plain($stream) => $call,
            Transport::Tls($stream) => $call,
        }
    };
}

impl AsyncRead for Transport {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        with_transport!(self.get_mut(), stream => Pin::new(stream).poll_read(context, buffer))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        with_transport!(&mut self.transport, stream => Pin::new(stream).poll_write(context, bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        with_transport!(&mut self.transport, stream => Pin::new(stream).poll_write_vectored(context, slices))
    }

    fn is_write_vectored(&self) -> bool {
        with_transport!(&self.transport, stream => stream.is_write_vectored())
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        with_transport!(&mut self.transport, stream => Pin::new(stream).poll_flush(context))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        with_transport!(&mut self.transport, stream => Pin::new(stream).poll_shutdown(context))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;
    use tokio::net::TcpListener;

    use super::*;
    use crate::front::connections::socket::Detached;

    #[tokio::test]
    async fn a_client_that_sends_a_lot_is_read_in_turns() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let mut client = tokio::net::TcpStream::connect(address).await.expect("it listens");
        let sent = vec![b'x'; 10 * TURN_BYTES];
        client.write_all(&sent).await.expect("buffered");
        let socket = listener.accept().await.expect("a connection").0.into_std().expect("it is open");
        let transport = Transport::Plain(Detached::Tcp(socket).attach().expect("a runtime"));
        let (mut stream, _) = Stream::greeted(transport).await.expect("it sent something");
        let (mut received, mut turns) = (0, 0);
        while received < sent.len() {
            let turn = std::future::poll_fn(|context| Poll::Ready(a_turn(&mut stream, context))).await;
            assert!(turn <= 2 * TURN_BYTES, "{turn} bytes in one turn");
            (received, turns) = (received + turn, turns + usize::from(turn > 0));
            tokio::task::yield_now().await;
        }
        assert!(turns >= 5, "{turns} turns");
    }

    /// Reads until there is nothing more for now. Returns how many bytes that was.
    fn a_turn(stream: &mut Stream, context: &mut Context<'_>) -> usize {
        let (mut bytes, mut heard) = (vec![0; TURN_BYTES], 0);
        loop {
            let mut buffer = ReadBuf::new(&mut bytes);
            match Pin::new(&mut *stream).poll_read(context, &mut buffer) {
                Poll::Ready(read) => read.expect("it is open"),
                Poll::Pending => return heard,
            }
            heard += buffer.filled().len();
        }
    }
}
