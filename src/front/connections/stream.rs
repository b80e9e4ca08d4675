//! The bytes of one connection, plain or TLS, once its client has said which protocol it speaks.
//!
//! In: a socket. Out: a [`Stream`] that hands out all that the client said, its greeting included.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio_rustls::server::TlsStream;

use super::socket::Socket;

/// How a connection of HTTP/2 begins.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// What a client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/2: it began with the preface.
    Http2,
    /// HTTP/1, or nothing that we know: it began with anything else.
    Http1,
}

/// The bytes of one connection. Which kind it is costs a branch a call and no allocation.
#[derive(Debug)]
pub struct Stream {
    transport: Transport,
    greeting: Greeting,
}

/// What carries the bytes.
#[derive(Debug)]
pub(super) enum Transport {
    Plain(Socket),
    Tls(Box<TlsStream<Socket>>),
}

/// What the client said first: read to know its protocol, and read once more by whoever serves it.
#[derive(Debug)]
struct Greeting {
    bytes: [u8; PREFACE.len()],
    said: usize,
    handed_out: usize,
}

impl Stream {
    /// Waits for the preface of HTTP/2, or for anything that is not its beginning.
    ///
    /// # Errors
    /// When the client ends the connection before.
    pub(super) async fn greeted(mut transport: Transport) -> io::Result<(Self, Protocol)> {
        let mut greeting = Greeting { bytes: [0; PREFACE.len()], said: 0, handed_out: 0 };
        while greeting.said < PREFACE.len() && PREFACE.starts_with(greeting.text()) {
            match transport.read(&mut greeting.bytes[greeting.said..]).await? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                length => greeting.said += length,
            }
        }
        let protocol = if greeting.text() == PREFACE { Protocol::Http2 } else { Protocol::Http1 };
        Ok((Self { transport, greeting }, protocol))
    }
}

impl Greeting {
    fn text(&self) -> &[u8] {
        &self.bytes[..self.said]
    }

    /// Hands out what fits of what is left.
    fn hand_out(&mut self, buffer: &mut ReadBuf<'_>) {
        let left = &self.bytes[self.handed_out..self.said];
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
        if self.greeting.handed_out < self.greeting.said {
            self.greeting.hand_out(buffer);
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.transport).poll_read(context, buffer)
    }
}

/// Calls a method of whichever transport it is.
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
