//! The bytes of one connection, plain or TLS, once its client has said which protocol it speaks.
//!
//! In: a socket. Out: a [`Stream`] that hands out all that the client said, its greeting included.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio_rustls::server::TlsStream;

use super::socket::Socket;
use crate::clock::monotonic;

/// How a connection of HTTP/2 begins.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// What a connection reads in a turn. One turn of 64 KiB of small frames would hold up everybody else on its thread for
/// milliseconds.
const TURN_BYTES: usize = 8 * 1_024;

/// What a connection reads at once, and how long it reads in a turn, where frames cost so much that [`TURN_BYTES`] of
/// them take too long: opening a stream by 15 bytes costs hyper microseconds, and others wait for all of a turn.
const SHORT_READ: usize = 1_024;
const SHORT_TURN: Duration = Duration::from_micros(300);

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
    turn: Turn,
}

/// What a connection may do before everything else on its thread has its turn.
#[derive(Debug)]
struct Turn {
    read: usize,
    read_max: usize,
    /// When a turn ends that is limited in time.
    ends: Option<Instant>,
    time_max: Duration,
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
        Ok((Self { transport, greeting, turn: Turn::LONG }, protocol))
    }

    /// For whoever takes long for what is read.
    pub(super) fn in_short_turns(self) -> Self {
        Self { turn: Turn { read_max: SHORT_READ, time_max: SHORT_TURN, ..self.turn }, ..self }
    }
}

impl Turn {
    const LONG: Self = Self { read: 0, read_max: usize::MAX, ends: None, time_max: Duration::MAX };

    fn begin(&mut self) {
        self.read = 0;
        self.ends = None;
    }

    /// Whether it is over. Its time begins when this is first asked.
    fn is_over(&mut self) -> bool {
        if self.time_max == Duration::MAX {
            return self.read >= TURN_BYTES;
        }
        let now = monotonic();
        now >= *self.ends.get_or_insert(now + self.time_max) || self.read >= TURN_BYTES
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
        if self.turn.is_over() {
            // Everything else on this thread has its turn, and then this goes on.
            self.turn.begin();
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let room = buffer.remaining().min(self.turn.read_max);
        let mut part = ReadBuf::new(buffer.initialize_unfilled_to(room));
        let read = Pin::new(&mut self.transport).poll_read(context, &mut part);
        let heard = part.filled().len();
        buffer.advance(heard);
        self.turn.read += heard;
        // A read that leaves room has taken all that there was.
        if read.is_pending() || heard < room {
            self.turn.begin();
        }
        read
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

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;
    use tokio::net::TcpListener;

    use super::*;
    use crate::front::connections::socket::Detached;

    #[tokio::test]
    async fn whoever_has_much_to_say_says_it_in_turns() {
        let turns = turns_of(|stream| stream, Duration::ZERO).await;
        assert!(turns.iter().all(|&turn| turn <= 2 * TURN_BYTES), "{turns:?}");
        assert!(turns.len() >= 5, "{turns:?}");
    }

    #[tokio::test]
    async fn what_takes_long_ends_a_short_turn() {
        let turns = turns_of(Stream::in_short_turns, SHORT_TURN).await;
        assert!(turns.iter().all(|&turn| turn <= SHORT_READ), "{turns:?}");
    }

    /// How much was heard in each turn, where every read takes so long.
    async fn turns_of(with: impl FnOnce(Stream) -> Stream, takes: Duration) -> Vec<usize> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let mut client = tokio::net::TcpStream::connect(address).await.expect("it listens");
        let said = vec![b'x'; 10 * TURN_BYTES];
        client.write_all(&said).await.expect("buffered");
        let socket = listener.accept().await.expect("a connection").0.into_std().expect("it is open");
        let transport = Transport::Plain(Detached::Tcp(socket).attach().expect("a runtime"));
        let mut stream = with(Stream::greeted(transport).await.expect("it said something").0);
        let mut turns = Vec::new();
        while turns.iter().sum::<usize>() < said.len() {
            let turn = std::future::poll_fn(|context| Poll::Ready(a_turn(&mut stream, takes, context))).await;
            turns.extend(Some(turn).filter(|&turn| turn > 0));
            tokio::task::yield_now().await;
        }
        turns
    }

    /// Reads until there is nothing more for now. How much that was.
    fn a_turn(stream: &mut Stream, takes: Duration, context: &mut Context<'_>) -> usize {
        let (mut bytes, mut heard) = (vec![0; TURN_BYTES], 0);
        loop {
            let mut buffer = ReadBuf::new(&mut bytes);
            match Pin::new(&mut *stream).poll_read(context, &mut buffer) {
                Poll::Ready(read) => read.expect("it is open"),
                Poll::Pending => return heard,
            }
            heard += buffer.filled().len();
            // What a server does with it: the end of a turn is compared with the machine's own clock.
            let began = monotonic();
            while began.elapsed() < takes {}
        }
    }
}
