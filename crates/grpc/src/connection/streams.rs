//! The state of a stream, and the table of streams.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use foldhash::fast::RandomState;

use super::{STREAMS_MAX, Serve};
use crate::hpack::Route;

/// What the client asks for on a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// A gRPC call.
    Call(Route),
    /// Anything else. It is answered with this HTTP status, and with a text unless the method is HEAD.
    Rejected { status: u16, with_text: bool },
}

/// The state of a stream.
#[derive(Debug)]
pub enum State<W> {
    /// The body is incomplete.
    Receiving,
    /// The request is complete, and its answer is pending.
    Waiting(W),
    /// The answer is being sent, as far as the windows allow.
    Sending(Then<W>),
}

/// What follows the bytes of an answer.
#[derive(Debug)]
pub enum Then<W> {
    /// The trailers of a successful call.
    Trailers,
    Nothing,
    /// More messages, later.
    More(W),
    /// Answers to the messages that the client may still send.
    Dialog(Box<Dialog>),
}

/// What a dialog has in addition to the answers.
#[derive(Debug, Default)]
pub struct Dialog {
    /// The beginning of a message.
    pub input: Vec<u8>,
    /// The client sends no more.
    pub is_ended: bool,
}

/// One stream. It is moved a few times in its life, so it takes at most 128 bytes: more are moved by a call of `memmove`,
/// with which a batch of requests takes several percent longer.
pub struct Stream<S: Serve> {
    pub id: u32,
    pub request: Request,
    pub state: State<S::Waiting>,
    /// What [`Serve::note`] noted.
    pub note: Option<S::Note>,
    /// When the caller stops waiting.
    pub deadline: Option<Instant>,
    /// When the current state times out.
    pub due: Option<Instant>,
    /// Bytes that the client may still send.
    pub receive_window: u32,
    /// Bytes that we may still send; SETTINGS may make it negative.
    pub send_window: i64,
    /// The bytes of the body that are still to come, if its length was announced.
    pub body_left: Option<u64>,
    /// Receiving: the body so far. Sending: the answer, of which `sent` bytes are sent.
    pub body: Vec<u8>,
    pub sent: usize,
    /// It is in the queue for the connection's window.
    pub queued: bool,
}

/// The streams of one connection, and those closed streams whose frames are ignored.
pub struct Streams<S: Serve> {
    /// The newest stream, in a slot of its own: its body usually comes next, and then its answer.
    newest: Option<Stream<S>>,
    others: HashMap<u32, Stream<S>, RandomState>,
    last: u32,
    /// Streams that we reset or answered early. Frames in flight for them are ignored.
    ignored: VecDeque<u32>,
    /// No stream is due before this.
    due: Option<Instant>,
}

/// Whether a collection has room for many more items than it holds.
pub fn has_spare(capacity: usize, length: usize) -> bool {
    const FEW: usize = 32;
    capacity > 2 * length + FEW
}

impl<S: Serve> Streams<S> {
    pub fn new() -> Self {
        let others = HashMap::with_hasher(RandomState::default());
        Self { newest: None, others, last: 0, ignored: VecDeque::new(), due: None }
    }

    /// The highest stream identifier that was used.
    pub fn last(&self) -> u32 {
        self.last
    }

    /// Marks an identifier as used by a new stream, even if that is refused.
    pub fn begin(&mut self, id: u32) {
        self.last = id;
    }

    /// Whether no stream has used this identifier (RFC 9113, 5.1: idle).
    #[inline]
    pub fn is_idle(&self, id: u32) -> bool {
        id & 1 == 0 || id > self.last
    }

    /// Whether this is the newest stream, and its body is incomplete.
    #[inline]
    pub fn is_newest(&self, id: u32) -> bool {
        let is_newest = |newest: &Stream<S>| newest.id == id && matches!(newest.state, State::Receiving);
        self.newest.as_ref().is_some_and(is_newest)
    }

    pub fn len(&self) -> usize {
        self.others.len() + usize::from(self.newest.is_some())
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[inline]
    pub fn get(&mut self, id: u32) -> Option<&mut Stream<S>> {
        match &mut self.newest {
            Some(newest) if newest.id == id => self.newest.as_mut(),
            _ => self.others.get_mut(&id),
        }
    }

    #[inline]
    pub fn remove(&mut self, id: u32) -> Option<Stream<S>> {
        match &self.newest {
            Some(newest) if newest.id == id => self.newest.take(),
            _ => self.others.remove(&id),
        }
    }

    /// Adds the newest stream, whose body is incomplete.
    #[inline(always)] // The stream is then made in its place.
    pub fn insert_newest(&mut self, stream: Stream<S>) {
        self.note_due(stream.due);
        // Usually there is none; `replace` would move it out all the same.
        if self.newest.is_some() {
            self.others.extend(self.newest.take().map(|older| (older.id, older)));
        }
        self.newest = Some(stream);
    }

    pub fn insert(&mut self, stream: Stream<S>) {
        self.note_due(stream.due);
        match &self.newest {
            None if stream.id == self.last => self.newest = Some(stream),
            _ => drop(self.others.insert(stream.id, stream)),
        }
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Stream<S>> {
        self.newest.iter_mut().chain(self.others.values_mut())
    }

    /// Whether there is room for many more streams than there are.
    pub fn has_spare(&self) -> bool {
        has_spare(self.others.capacity(), self.others.len())
            || has_spare(self.ignored.capacity(), self.ignored.len())
    }

    /// Frees spare memory.
    pub fn shrink(&mut self) {
        self.others.shrink_to_fit();
        self.ignored.shrink_to_fit();
    }

    pub fn clear(&mut self) {
        self.newest = None;
        self.others.clear();
    }

    /// Notes that frames for this closed stream are ignored.
    pub fn ignore(&mut self, id: u32) {
        if self.ignored.len() >= STREAMS_MAX {
            self.ignored.pop_front();
        }
        self.ignored.push_back(id);
    }

    pub fn is_ignored(&self, id: u32) -> bool {
        self.ignored.contains(&id)
    }

    /// No stream is due before this.
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// The streams that are due. It looks at all streams, but only when one may be due.
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
