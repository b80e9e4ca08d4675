//! Complete requests that are not answered yet. Requests that arrived together are answered together, so that their
//! accesses to memory overlap.
//!
//! A client cannot notice this, except by the time that it takes: any frame that does not belong to the next request is
//! processed after the requests before it are answered.

use std::borrow::Cow;
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use super::answers::SEND_TIMEOUT;
use super::streams::{Request, State, Stream};
use super::{BATCH_MAX, Call, Connection, ErrorCode, Head, Outcome, READ_TIMEOUT, Serve, Turn, flag, kind};
use crate::hpack::Route;

/// How long a call may wait for its answer, at most. Its `grpc-timeout` may be shorter.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// The state of one [`Connection::receive`]: what [`Turn`] holds, and the requests that are ready.
pub struct Reading<'t, 'i, S: Serve> {
    pub now: Instant,
    /// Until when a request that begins now has to be complete, at the latest.
    pub read_due: Instant,
    pub serve: &'t mut S,
    pub out: &'t mut Vec<u8>,
    ready: SmallVec<[Ready<'i>; BATCH_MAX]>,
    /// Their streams, at the same indices.
    streams: SmallVec<[Option<Stream<S>>; BATCH_MAX]>,
}

/// A complete request.
struct Ready<'i> {
    stream: u32,
    route: Route,
    deadline: Option<Instant>,
    body: Cow<'i, [u8]>,
}

impl<'t, S: Serve> Reading<'t, '_, S> {
    pub fn new(turn: &'t mut Turn<'_, S>) -> Self {
        let Turn { now, serve, out } = turn;
        let (now, read_due) = (*now, *now + READ_TIMEOUT);
        Self { now, read_due, serve, out, ready: SmallVec::new(), streams: SmallVec::new() }
    }

    /// The number of requests that are ready.
    pub fn ready(&self) -> usize {
        self.ready.len()
    }
}

impl<S: Serve> Connection<S> {
    /// Whether this frame begins a request, or may complete the newest one.
    #[inline]
    pub(super) fn may_extend_batch(&self, head: Head) -> bool {
        match head.kind {
            kind::HEADERS => head.stream > self.streams.last(),
            kind::DATA => head.has(flag::END_STREAM) && self.streams.is_newest(head.stream),
            _ => false,
        }
    }

    /// Adds a complete request to those that are ready.
    #[inline]
    pub(super) fn request_complete<'i>(
        &mut self,
        mut stream: Stream<S>,
        body: Cow<'i, [u8]>,
        reading: &mut Reading<'_, 'i, S>,
    ) {
        let route = match stream.request {
            Request::Call(route) => route,
            Request::Rejected { status, with_text } => {
                stream.due = Some(reading.now + SEND_TIMEOUT);
                self.answer_ready(reading);
                return self.reject(stream, status, with_text, reading.out);
            }
        };
        reading.ready.push(Ready { stream: stream.id, route, deadline: stream.deadline, body });
        reading.streams.push(Some(stream));
        if reading.ready() == BATCH_MAX {
            self.answer_ready(reading);
        }
    }

    /// Answers all requests that are ready.
    pub(super) fn answer_ready(&mut self, reading: &mut Reading<'_, '_, S>) {
        let Reading { now, serve, out, ready, streams, .. } = reading;
        if ready.is_empty() {
            return;
        }
        // Filled in place: `collect` would move them.
        let mut calls: SmallVec<[Call<'_, S::Note>; BATCH_MAX]> = SmallVec::new();
        calls.extend(ready.iter().map(Ready::call));
        if self.takes_notes {
            for (call, stream) in calls.iter_mut().zip(streams.iter_mut()) {
                call.note = stream.as_mut().and_then(|stream| stream.note.take());
            }
        }
        serve.answer_batch(&mut calls, |place, outcome| self.answer(&mut streams[place], outcome, *now, out));
        drop(calls);
        ready.clear();
        streams.clear();
    }

    /// Answers a request whose stream has this place.
    #[inline]
    fn answer(
        &mut self,
        place: &mut Option<Stream<S>>,
        outcome: Outcome<'_, S::Waiting>,
        now: Instant,
        out: &mut Vec<u8>,
    ) {
        // A usual answer ends its stream, which then need not be moved.
        if let (Some(stream), Outcome::Now(Ok(message))) = (&*place, &outcome)
            && self.succeed_at_once(stream, message, out)
        {
            *place = None;
        } else if let Some(stream) = place.take() {
            self.answer_other(stream, outcome, now, out);
        }
    }

    /// Answers in any other way.
    #[inline(never)] // The way of usual answers stays short.
    fn answer_other(
        &mut self,
        mut stream: Stream<S>,
        outcome: Outcome<'_, S::Waiting>,
        now: Instant,
        out: &mut Vec<u8>,
    ) {
        match outcome {
            Outcome::Now(Ok(message)) => {
                stream.due = Some(now + SEND_TIMEOUT);
                self.succeed(stream, message, out);
            }
            Outcome::Now(Err(status)) => self.fail(&stream, &status, out),
            Outcome::Later(waiting) => {
                let latest = now + ANSWER_TIMEOUT;
                stream.due = Some(stream.deadline.map_or(latest, |deadline| deadline.clamp(now, latest)));
                stream.state = State::Waiting(waiting);
                self.streams.insert(stream);
            }
            Outcome::Stream(message, waiting) => self.begin_stream(stream, &message, waiting, out),
            Outcome::Refused => self.reset(stream.id, ErrorCode::RefusedStream, out),
        }
    }
}

impl Ready<'_> {
    fn call<N>(&self) -> Call<'_, N> {
        Call { stream: self.stream, route: self.route, deadline: self.deadline, body: &self.body, note: None }
    }
}
