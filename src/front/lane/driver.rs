//! Drives one connection of the lane on its socket: reads, writes, timers, pending answers, and the end of its life.
//!
//! Each connection is one task, and makes one read and one write for many frames. The buffers belong to the thread, so
//! an idle connection holds none. Output in the thread's buffer is sent, or kept for its connection, before the next
//! connection uses the buffer. Nothing is read or decided while output waits to be sent. After a full read, or when
//! frames are left, a connection yields to the others.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use super::LaneFront;
use super::calls::{Calls, Completion};
use crate::clock;
use crate::front::Life;
use tidegate_grpc::connection::{Connection, OUTPUT_BYTES_MAX, Turn};
use tidegate_grpc::frames::Head;
use tidegate_serve::health::Status as HealthStatus;
use tidegate_serve::metrics::Metrics;

/// Bytes of one read: a few hundred small calls. A connection keeps the bytes that it cannot process yet.
const READ_BYTES: usize = 32 * 1_024;
/// Capacity that a connection's buffer for them keeps when it holds less.
const REST_BYTES_KEPT: usize = 512;
/// Capacity that a thread's buffer for output keeps between two writes.
const WRITE_BYTES_KEPT: usize = 128 * 1_024;
/// How long a connection lingers, so that its last GOAWAY is read and not lost to a reset.
const LINGER: Duration = Duration::from_millis(500);
/// While it lingers, so many bytes are read at a time, with a pause after each read.
const LINGER_BYTES: usize = 32 * 1_024;
const LINGER_PAUSE: Duration = Duration::from_millis(10);

/// The buffers that the connections of a thread share.
struct Buffers {
    input: Box<[u8]>,
    output: Vec<u8>,
}

thread_local! {
    static BUFFERS: RefCell<Buffers> =
        RefCell::new(Buffers { input: vec![0; READ_BYTES].into(), output: Vec::with_capacity(WRITE_BYTES_KEPT) });
}

/// Serves one connection to its end.
pub async fn serve(stream: impl AsyncRead + AsyncWrite + Unpin, front: LaneFront, life: Life) {
    let _open = Open::begin(Arc::clone(&front.handler.metrics));
    let peer_log = Arc::clone(&front.peer_log);
    let mut driver = Driver::new(stream, front);
    if let Err(error) = driver.live(life).await {
        tracing::debug!(%error, "connection broke");
    }
    if let Some(ended) = driver.connection.ended() {
        driver.metrics.lane_ended(ended.code as u8, ended.why.is_some());
        peer_log.log(ended);
    }
    let _ = tokio::time::timeout(LINGER, driver.linger()).await;
}

/// A connection without a socket, for the benchmark: takes input, appends output, returns how many bytes it processed.
pub fn bare(front: LaneFront) -> impl FnMut(&[u8], &mut Vec<u8>) -> usize {
    let mut greeting = Vec::new();
    let mut calls = Calls::new(front);
    let mut connection = Connection::new(clock::timer(), calls.served(), &mut greeting);
    move |input, out| {
        out.append(&mut greeting);
        connection.receive(input, &mut Turn { now: clock::timer(), serve: &mut calls, out })
    }
}

/// Counts a connection for as long as it is open.
struct Open(Arc<Metrics>);

impl Open {
    fn begin(metrics: Arc<Metrics>) -> Self {
        metrics.lane_opened();
        Self(metrics)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.lane_closed();
    }
}

struct Driver<S> {
    stream: S,
    connection: Connection<Calls>,
    calls: Calls,
    metrics: Arc<Metrics>,
    /// Unprocessed input: an incomplete frame, or frames that wait until output is sent.
    rest: Vec<u8>,
    /// Output that the socket has not taken yet, from `sent` on.
    unsent: Vec<u8>,
    sent: usize,
    /// The stream may hold back bytes that were written (TLS does).
    unflushed: bool,
    timer: Pin<Box<Sleep>>,
    /// The time that the timer was last set to, and polled for; `None`: it was never set.
    armed: Option<Instant>,
}

/// The result of a poll for input.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Input {
    None,
    /// All that was available was read, and its complete frames were processed.
    Some,
    /// The buffer is full, or frames are left that wait until output is sent.
    Full,
    /// The peer has closed the connection.
    End,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Driver<S> {
    fn new(stream: S, front: LaneFront) -> Self {
        let mut unsent = Vec::new();
        let metrics = Arc::clone(&front.handler.metrics);
        let calls = Calls::new(front);
        Self {
            stream,
            connection: Connection::new(clock::timer(), calls.served(), &mut unsent),
            metrics,
            calls,
            rest: Vec::new(),
            unsent,
            sent: 0,
            unflushed: false,
            timer: Box::pin(tokio::time::sleep(Duration::MAX)),
            armed: None,
        }
    }

    /// Runs the connection until it ends by itself, or until its life and then its grace are over.
    async fn live(&mut self, mut life: Life) -> io::Result<()> {
        // `FuturesUnordered` polls it only when it is woken, not at each poll of the connection.
        let mut over: FuturesUnordered<_> = [life.over()].into_iter().collect();
        tokio::select! {
            biased;
            ended = self.run() => return ended,
            _ = over.next() => self.connection.drain(clock::timer(), &mut self.unsent),
        }
        drop(over);
        tokio::select! {
            biased;
            ended = self.run() => return ended,
            () = life.grace_over() => self.connection.close(&mut self.unsent),
        }
        let closing = tokio::time::timeout(LINGER, self.run());
        closing.await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }

    /// Runs until the connection ends by itself. One poll is bounded by what it reads. Tokio's own budget is off: it
    /// would end a poll before finished answers are sent, or before the timer is set.
    fn run(&mut self) -> impl Future<Output = io::Result<()>> {
        tokio::task::unconstrained(poll_fn(|context| self.poll(context)))
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        BUFFERS.with_borrow_mut(|buffers| {
            let polled = self.poll_batches(buffers, context);
            let counts = self.connection.take_counts();
            self.metrics.lane_streams(counts.streams, counts.reset_by_client, counts.reset_by_server);
            polled
        })
    }

    fn poll_batches(&mut self, buffers: &mut Buffers, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The clock is read once for the whole poll, which is bounded. The timeouts here are seconds.
        let now = clock::timer();
        loop {
            ready!(self.poll_unsent(context))?;
            if self.connection.is_over() {
                return Poll::Ready(Ok(()));
            }
            let output = &mut buffers.output;
            // A connection that broke may have left output, which must not be sent on this one.
            output.clear();
            let mut turn = Turn { now, serve: &mut self.calls, out: output };
            poll_events(&mut self.connection, &mut turn, context);
            // Input before timers: bytes that have arrived are not late.
            let input = self.poll_input(now, &mut buffers.input, output, context)?;
            // After some input there is another round, unless output waits; while it waits nothing times out.
            if input != Input::Some {
                self.poll_timer(now, output, context);
            }
            self.send(output, context)?;
            match input {
                Input::End => return Poll::Ready(Ok(())),
                Input::Full => {
                    context.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Input::None if self.is_sent() && !self.connection.is_over() => return Poll::Pending,
                Input::None | Input::Some => {}
            }
        }
    }

    /// Reads input, unless there is a complete frame already, and passes it to the connection.
    fn poll_input(
        &mut self,
        now: Instant,
        input: &mut [u8],
        out: &mut Vec<u8>,
        context: &mut Context<'_>,
    ) -> io::Result<Input> {
        let rest = self.rest.len();
        input[..rest].copy_from_slice(&self.rest);
        let mut buffer = ReadBuf::new(input);
        buffer.set_filled(rest);
        if !Head::begins_whole_frame(&self.rest) {
            if Pin::new(&mut self.stream).poll_read(context, &mut buffer)?.is_pending() {
                return Ok(Input::None);
            }
            if buffer.filled().len() == rest {
                return Ok(Input::End);
            }
        }
        let is_full = buffer.remaining() == 0;
        let filled = buffer.filled();
        let used = self.connection.receive(filled, &mut Turn { now, serve: &mut self.calls, out });
        self.keep_rest(&filled[used..]);
        let is_behind = Head::begins_whole_frame(&self.rest);
        Ok(if is_full || is_behind { Input::Full } else { Input::Some })
    }

    /// Keeps input that has to be passed to the connection again.
    fn keep_rest(&mut self, rest: &[u8]) {
        self.rest.clear();
        self.rest.shrink_to(rest.len().max(REST_BYTES_KEPT));
        self.rest.extend_from_slice(rest);
    }

    /// Handles timeouts that are due, and sets the timer for the next one.
    fn poll_timer(&mut self, now: Instant, out: &mut Vec<u8>, context: &mut Context<'_>) {
        let mut deadline = self.connection.deadline();
        if now >= deadline {
            self.connection.tick(&mut Turn { now, serve: &mut self.calls, out });
            deadline = self.connection.deadline();
        }
        // A timer that fires too early costs less than setting it for every batch.
        if self.armed.is_none_or(|armed| deadline < armed || armed <= now) {
            self.armed = Some(deadline);
            self.timer.as_mut().reset(deadline.into());
            if self.timer.as_mut().poll(context).is_ready() {
                context.waker().wake_by_ref();
            }
        }
    }

    /// Sends `out` and empties it; what the socket does not take now is kept.
    fn send(&mut self, out: &mut Vec<u8>, context: &mut Context<'_>) -> io::Result<()> {
        let mut sent = 0;
        while self.is_sent() && sent < out.len() {
            match Pin::new(&mut self.stream).poll_write(context, &out[sent..])? {
                Poll::Ready(0) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(length) => sent += length,
                Poll::Pending => break,
            }
            self.unflushed = true;
        }
        self.unsent.extend_from_slice(&out[sent..]);
        out.clear();
        out.shrink_to(WRITE_BYTES_KEPT);
        if self.unflushed && self.is_sent() {
            self.unflushed = Pin::new(&mut self.stream).poll_flush(context)?.is_pending();
        }
        Ok(())
    }

    fn is_sent(&self) -> bool {
        self.sent == self.unsent.len()
    }

    /// Sends the output that was kept.
    fn poll_unsent(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.is_sent() {
            let length = ready!(Pin::new(&mut self.stream).poll_write(context, &self.unsent[self.sent..]))?;
            if length == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.sent += length;
            self.unflushed = true;
        }
        if self.sent > 0 {
            self.unsent = Vec::new();
            self.sent = 0;
        }
        if self.unflushed {
            ready!(Pin::new(&mut self.stream).poll_flush(context))?;
            self.unflushed = false;
        }
        Poll::Ready(Ok(()))
    }

    /// Shuts down our half, and discards input, so that the peer can read our output to its end. It reads little at a
    /// time, and processes none of it: a flood then waits at its sender, and costs next to nothing here.
    async fn linger(&mut self) -> io::Result<()> {
        poll_fn(|context| self.poll_unsent(context)).await?;
        poll_fn(|context| Pin::new(&mut self.stream).poll_shutdown(context)).await?;
        while poll_fn(|context| self.poll_discard(context)).await? > 0 {
            tokio::time::sleep(LINGER_PAUSE).await;
        }
        Ok(())
    }

    /// Reads a little and discards it; 0 bytes are the end.
    fn poll_discard(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        BUFFERS.with_borrow_mut(|buffers| {
            let mut discarded = ReadBuf::new(&mut buffers.input[..LINGER_BYTES]);
            ready!(Pin::new(&mut self.stream).poll_read(context, &mut discarded))?;
            Poll::Ready(Ok(discarded.filled().len()))
        })
    }
}

/// Passes finished answers to the connection, up to [`OUTPUT_BYTES_MAX`] of output.
fn poll_events(connection: &mut Connection<Calls>, turn: &mut Turn<'_, Calls>, context: &mut Context<'_>) {
    while !turn.serve.waiting.is_empty() {
        if turn.out.len() >= OUTPUT_BYTES_MAX {
            return context.waker().wake_by_ref();
        }
        let Poll::Ready(Some(finished)) = turn.serve.waiting.poll_join_next(context) else { return };
        match finished {
            Ok((stream, Completion::Answer(answer))) => {
                connection.complete(stream, answer.as_deref().map_err(Clone::clone), turn.now, turn.out);
            }
            Ok((stream, Completion::Health(status, news, watcher))) => {
                let more =
                    (status != HealthStatus::Draining).then(|| turn.serve.follow(stream, status, watcher));
                connection.push(stream, news.as_deref(), more, turn.now, turn.out);
            }
            // It was cancelled. (If it panicked, the call is answered when it times out.)
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

    use super::*;
    use crate::front::DrainSwitch;
    use crate::front::Handler;
    use crate::front::tests::{metrics, service};
    use tidegate_grpc::frames::{self, PREFACE, flag};
    use tidegate_serve::health::Health;
    use tidegate_serve::refusal::Bounds;

    fn front() -> LaneFront {
        let metrics = metrics();
        let handler = Handler::new(service(None, &metrics).into(), metrics, Bounds::default());
        LaneFront::new(handler.into(), Health::starting().into())
    }

    /// A client that has sent the preface, SETTINGS and this PING.
    async fn client(payload: &[u8; 8]) -> (DuplexStream, DuplexStream) {
        let (mut client, stream) = tokio::io::duplex(1_024);
        let mut sent = PREFACE.to_vec();
        frames::settings(&mut sent, &[]);
        frames::ping(&mut sent, 0, payload);
        client.write_all(&sent).await.expect("there is room");
        (client, stream)
    }

    fn pong(payload: &[u8; 8]) -> Vec<u8> {
        let mut pong = Vec::new();
        frames::ping(&mut pong, flag::ACK, payload);
        pong
    }

    #[tokio::test(start_paused = true)]
    async fn output_of_a_broken_connection_is_not_sent_on_another() {
        let switch = DrainSwitch::new();
        let (gone, stream) = client(b"the dead").await;
        drop(gone);
        serve(stream, front(), Life::until(switch.drain())).await;
        let (mut living, stream) = client(b"the live").await;
        let serving = tokio::spawn(serve(stream, front(), Life::until(switch.drain())));
        let mut received = Vec::new();
        while !received.ends_with(&pong(b"the live")) {
            assert!(living.read_buf(&mut received).await.expect("it is served") > 0);
        }
        let mut expected = Vec::new();
        let served = Calls::new(front()).served();
        let _ = Connection::<Calls>::new(clock::timer(), served, &mut expected);
        frames::settings_ack(&mut expected);
        assert_eq!(received, [expected, pong(b"the live")].concat());
        drop(living);
        serving.await.expect("no panic");
    }

    /// A client that sends a greeting and then endless calls, and reads no answer.
    struct Stalled {
        greeting: Vec<u8>,
        calls: Vec<u8>,
        bytes: usize,
    }

    impl AsyncRead for Stalled {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            let greeting = std::mem::take(&mut self.greeting);
            buffer.put_slice(&greeting);
            while greeting.is_empty() && buffer.remaining() > 0 {
                let part = &self.calls[self.bytes % self.calls.len()..];
                let part = &part[..part.len().min(buffer.remaining())];
                buffer.put_slice(part);
                self.bytes += part.len();
            }
            Poll::Ready(Ok(()))
        }
    }

    impl AsyncWrite for Stalled {
        fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            if self.bytes == 0 { Poll::Ready(Ok(bytes.len())) } else { Poll::Pending }
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_no_answer_costs_little_memory() {
        let mut greeting = PREFACE.to_vec();
        frames::settings(&mut greeting, &[]);
        frames::window_update(&mut greeting, 0, 1 << 30);
        let mut calls = Vec::new();
        // Calls of an unknown method: the answer is many times as long as the call.
        for stream in (1..40_000).step_by(2) {
            frames::headers(&mut calls, stream, flag::END_STREAM, |out| {
                out.extend_from_slice(b"\x83\x86\x84\x0f\x10\x10application/grpc");
            });
        }
        let mut driver = Driver::new(Stalled { greeting, calls, bytes: 0 }, front());
        for _ in 0..100 {
            assert!(poll_fn(|context| Poll::Ready(driver.poll(context))).await.is_pending());
        }
        let held = driver.unsent.capacity() + driver.rest.capacity();
        assert!(held <= 64 * 1_024, "{held} bytes");
        assert!(driver.stream.bytes <= READ_BYTES, "{} bytes were read", driver.stream.bytes);
    }

    #[tokio::test(start_paused = true)]
    async fn draining_ends_a_connection_in_two_phases() {
        let switch = DrainSwitch::new();
        let (mut living, stream) = client(b"a client").await;
        let serving = tokio::spawn(serve(stream, front(), Life::until(switch.drain())));
        let mut received = Vec::new();
        while !received.ends_with(&pong(b"a client")) {
            assert!(living.read_buf(&mut received).await.expect("it is served") > 0);
        }
        switch.throw();
        // The client never acknowledges the PING, so the first phase times out.
        received.clear();
        living.read_to_end(&mut received).await.expect("closed in order");
        let mut expected = Vec::new();
        frames::goaway(&mut expected, frames::U31_MAX, frames::ErrorCode::NoError);
        frames::ping(&mut expected, 0, b"go away!");
        frames::goaway(&mut expected, 0, frames::ErrorCode::NoError);
        assert_eq!(received, expected);
        drop(living);
        serving.await.expect("no panic");
    }

    /// A header block without any index.
    fn block(fields: &[(&str, &str)], out: &mut Vec<u8>) {
        for (name, value) in fields {
            for (before, text) in [(&[0][..], name), (&[], value)] {
                out.extend_from_slice(before);
                out.push(u8::try_from(text.len()).expect("short"));
                out.extend_from_slice(text.as_bytes());
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn draining_ends_a_watch_and_repeats_no_status() {
        let (switch, front) = (DrainSwitch::new(), front());
        let (mut living, stream) = client(b"a client").await;
        let serving = tokio::spawn(serve(stream, front.clone(), Life::until(switch.drain())));
        let mut sent = Vec::new();
        frames::headers(&mut sent, 1, 0, |out| {
            let path = "/grpc.health.v1.Health/Watch";
            let call = [(":method", "POST"), (":scheme", "http"), (":path", path)];
            block(&call, out);
            block(&[("content-type", "application/grpc")], out);
        });
        frames::data(&mut sent, 1, flag::END_STREAM, &[0; 5]);
        living.write_all(&sent).await.expect("there is room");
        let mut received = Vec::new();
        let not_serving = [0, 0, 0, 0, 2, 8, 2];
        while !received.ends_with(&not_serving) {
            assert!(living.read_buf(&mut received).await.expect("it is served") > 0);
        }
        received.clear();
        front.health.drain();
        while !received.ends_with(b"grpc-status\x010") {
            assert!(living.read_buf(&mut received).await.expect("it is served") > 0);
        }
        let head = frames::Head::read(&received).expect("a frame");
        assert_eq!((head.kind, head.flags & flag::END_STREAM), (frames::kind::HEADERS, flag::END_STREAM));
        drop(living);
        serving.await.expect("no panic");
    }
}
