//! What a stream is, and which there are.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use foldhash::fast::RandomState;

use super::STREAMS_MAX;
use crate::hpack::Route;

/// What a stream asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// A call of gRPC.
    Call(Route),
    /// Something else: it gets this status, and a text unless it asked for a head alone.
    Rejected { status: u16, with_text: bool },
}

/// How far a stream has come.
#[derive(Debug)]
pub enum State<W> {
    /// The body is still coming.
    Receiving,
    /// The answer comes later.
    Waiting(W),
    /// The answer is on its way, as far as windows allow.
    Sending(Then<W>),
}

/// What follows the bytes of an answer.
#[derive(Debug)]
pub enum Then<W> {
    /// The trailers of a good call.
    Trailers,
    /// Nothing.
    Nothing,
    /// More, later.
    More(W),
}

/// One stream. It is moved a few times in its life, so it is kept small.
#[derive(Debug)]
pub struct Stream<W> {
    pub id: u32,
    pub request: Request,
    pub state: State<W>,
    /// When the caller waits no longer.
    pub deadline: Option<Instant>,
    /// When whatever it does is too late.
    pub due: Option<Instant>,
    /// Bytes that the client may still send.
    pub receive_window: u32,
    /// Bytes that we may still send; settings may make it negative.
    pub send_window: i64,
    /// What the body has to have in the end, and what came of it.
    pub content_length: Option<u64>,
    pub received: u64,
    /// Receiving: the body so far. Sending: the answer, of which so much is sent.
    pub body: Vec<u8>,
    pub sent: usize,
    /// It stands in the queue of those that wait for the connection's window.
    pub queued: bool,
}

/// The streams of one connection, and which of those that are no more are so by our own hand.
#[derive(Debug)]
pub struct Streams<W> {
    /// The stream that began last, as long as no other has: its body mostly comes next, and then its answer.
    newest: Option<Stream<W>>,
    others: HashMap<u32, Stream<W>, RandomState>,
    last: u32,
    /// Streams that we reset or answered early: what is still under way for them is let pass.
    ignored: VecDeque<u32>,
    /// No stream is due before.
    due: Option<Instant>,
}

/// Whether what may hold so many holds far fewer.
pub fn has_spare(capacity: usize, length: usize) -> bool {
    const FEW: usize = 32;
    capacity > 2 * length + FEW
}

impl<W> Streams<W> {
    pub fn new() -> Self {
        let others = HashMap::with_hasher(RandomState::default());
        Self { newest: None, others, last: 0, ignored: VecDeque::new(), due: None }
    }

    /// The highest number of a stream that began.
    pub fn last(&self) -> u32 {
        self.last
    }

    /// A stream of this number begins. The number is used even if it is refused.
    pub fn begin(&mut self, id: u32) {
        self.last = id;
    }

    /// Whether no stream of this number has begun.
    #[inline]
    pub fn is_idle(&self, id: u32) -> bool {
        id & 1 == 0 || id > self.last
    }

    /// Whether this is the stream that began last, and its body is still coming.
    #[inline]
    pub fn is_newest(&self, id: u32) -> bool {
        let is_newest = |newest: &Stream<W>| newest.id == id && matches!(newest.state, State::Receiving);
        self.newest.as_ref().is_some_and(is_newest)
    }

    pub fn len(&self) -> usize {
        self.others.len() + usize::from(self.newest.is_some())
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[inline]
    pub fn get(&mut self, id: u32) -> Option<&mut Stream<W>> {
        match &mut self.newest {
            Some(newest) if newest.id == id => self.newest.as_mut(),
            _ => self.others.get_mut(&id),
        }
    }

    #[inline]
    pub fn remove(&mut self, id: u32) -> Option<Stream<W>> {
        match &self.newest {
            Some(newest) if newest.id == id => self.newest.take(),
            _ => self.others.remove(&id),
        }
    }

    /// A stream of which the body is to come.
    #[inline]
    pub fn insert_newest(&mut self, stream: Stream<W>) {
        self.note_due(stream.due);
        if let Some(older) = self.newest.replace(stream) {
            self.others.insert(older.id, older);
        }
    }

    pub fn insert(&mut self, stream: Stream<W>) {
        self.note_due(stream.due);
        match &self.newest {
            None if stream.id == self.last => self.newest = Some(stream),
            _ => drop(self.others.insert(stream.id, stream)),
        }
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Stream<W>> {
        self.newest.iter_mut().chain(self.others.values_mut())
    }

    /// Whether there is memory for many more streams than there are.
    pub fn has_spare(&self) -> bool {
        has_spare(self.others.capacity(), self.others.len())
            || has_spare(self.ignored.capacity(), self.ignored.len())
    }

    /// Keeps no more memory than there are streams.
    pub fn shrink(&mut self) {
        self.others.shrink_to_fit();
        self.ignored.shrink_to_fit();
    }

    pub fn clear(&mut self) {
        self.newest = None;
        self.others.clear();
    }

    /// What is under way for this stream, which is no more, is let pass from now on.
    pub fn ignore(&mut self, id: u32) {
        if self.ignored.len() >= STREAMS_MAX {
            self.ignored.pop_front();
        }
        self.ignored.push_back(id);
    }

    pub fn is_ignored(&self, id: u32) -> bool {
        self.ignored.contains(&id)
    }

    /// No stream is due before.
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// The streams that are due. It looks at all of them, but only when one may be.
    pub fn overdue(&mut self, now: Instant) -> Vec<u32> {
        if self.due.is_none_or(|due| now < due) {
            return Vec::new();
        }
        let all = || self.newest.iter().chain(self.others.values());
        let overdue = |due: Instant| due <= now;
        let late = all().filter(|stream| stream.due.is_some_and(overdue)).map(|stream| stream.id).collect();
        self.due = all().filter_map(|stream| stream.due).filter(|&due| !overdue(due)).min();
        late
    }

    #[inline]
    fn note_due(&mut self, due: Option<Instant>) {
        if let Some(due) = due
            && self.due.is_none_or(|earliest| due < earliest)
        {
            self.due = Some(due);
        }
    }
}
