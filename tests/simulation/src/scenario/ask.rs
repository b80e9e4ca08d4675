//! What one client asks in a scenario: its descriptors, how long it waits, and what it does afterwards.

use super::{Limitless, Release, Renewal, Reservation};
use crate::world::Time;

/// What one client asks.
#[derive(Clone, Debug)]
pub struct Ask {
    /// When.
    pub at: Time,
    /// Which node.
    pub node: usize,
    /// A descriptor each.
    pub items: Vec<Item>,
    /// One that comes before them.
    pub limitless: Option<Limitless>,
    /// How long it waits.
    pub deadline: Option<Time>,
    /// When it goes away without waiting for the answer.
    pub cancelled: Option<Cancelled>,
    /// How much later it gives back what it was admitted, at another node perhaps.
    pub refunded: Option<(Time, usize)>,
    /// How the end of its calls is reported, if it is.
    pub released: Option<Release>,
    /// How its slots are renewed, if they are.
    pub renewed: Option<Renewal>,
    /// The reservation that it makes or ends.
    pub reserves: Option<Reservation>,
    /// The worker that reads it.
    pub worker: usize,
    /// A worker reads requests of the same batch together, up to eight. `None`: it comes alone.
    pub batch: Option<u32>,
    /// What is unusual about it.
    pub form: Form,
}

impl Ask {
    /// A request that comes alone, of a client that waits for its answer.
    pub fn new(at: Time, node: usize, items: Vec<Item>) -> Self {
        let (limitless, deadline, cancelled, refunded, released, renewed) = Default::default();
        Self {
            at,
            node,
            items,
            limitless,
            deadline,
            cancelled,
            refunded,
            released,
            renewed,
            reserves: None,
            worker: 0,
            batch: None,
            form: Form::Usual,
        }
    }

    /// How long after the answer its client still does something about it.
    pub fn lasts(&self) -> Time {
        let refunded = self.refunded.map(|(after, _)| after);
        let released = self.released.map(|release| release.after + release.again.unwrap_or(0));
        let renewed = self.renewed.map(|renewal| renewal.times * renewal.every);
        [refunded, released, renewed].into_iter().flatten().max().unwrap_or(0)
    }

    /// Whether a worker reads this request together with another.
    pub fn is_read_with(&self, other: &Self) -> bool {
        self.batch.is_some() && (self.at, self.node, self.batch) == (other.at, other.node, other.batch)
    }
}

/// What a front makes of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A request that is decided.
    Usual,
    /// A request of another domain, which has no rules.
    Elsewhere,
    /// A request that is refused when a part of it was read.
    Refused,
    /// Nothing: its client went away, or its message is not there yet.
    Nothing,
}

/// When a client goes away.
#[derive(Clone, Copy, Debug)]
pub enum Cancelled {
    /// After so long.
    After(Time),
    /// When its request has waited so many times.
    Waiting(u32),
}

/// One descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item {
    /// Which limit.
    pub limit: usize,
    /// Which counter of it.
    pub key: u64,
    /// How many hits.
    pub hits: u64,
    /// The value of one more entry, by its place: a class of the limit or a name that is none, or the id of a call.
    pub last: Option<u8>,
    /// Which address of its prefix asks, where the limit has one.
    pub address: u8,
}

impl Item {
    /// So many hits of a counter.
    pub fn new(limit: usize, key: u64, hits: u64) -> Self {
        Self { limit, key, hits, last: None, address: 0 }
    }
}
