//! What the oracle knows: what clients asked and were answered, and what servers forgot.

use tidegate_engine::limit::{Algorithm, Found};

use crate::scenario::{FULL, LimitSpec};
use crate::world::Time;

/// What one descriptor of a request asked of a counter, and what became of it.
#[derive(Clone, Copy, Debug)]
pub struct Record {
    /// The number of the request.
    pub request: usize,
    /// Which node was asked.
    pub node: usize,
    /// Which of its processes: how often the node had been started. An older one may still decide what it was asked.
    pub process: u64,
    /// Which limit.
    pub limit: usize,
    /// Which counter.
    pub key: u64,
    /// After which resets: in another epoch it is another counter.
    pub epoch: u64,
    /// How many hits.
    pub hits: u64,
    /// When they were asked for.
    pub asked: Time,
    /// When that was answered, or nothing can happen any more.
    pub answered: Time,
    /// How long the client waited at most.
    pub deadline: Option<Time>,
    /// The N that was in force at the node.
    pub requests: u32,
    /// What its class may use of that, in millionths.
    pub share: u64,
    /// And its W.
    pub window: Time,
    /// W of its rule. A record may say another. When a reload changes this, counters of records start empty too.
    pub rule_window: Time,
    /// The algorithm, where a record says another than its rule.
    pub algorithm: Option<Algorithm>,
    /// The width of its buckets, if it counts in buckets of time.
    pub granularity: Time,
    /// How many hits fit at once, where a record says more or less than its rule.
    pub room: Option<u64>,
    /// The id of its call.
    pub id: Option<u8>,
    /// The place of the record of the call whose slot it renews.
    pub renews: Option<usize>,
    /// What it does about a reservation.
    pub reserving: Option<Reserving>,
    /// They were not asked for, but reported.
    pub is_reported: bool,
    /// The node replied that Redis does not answer, and sends later what was reported.
    pub is_kept: bool,
    /// They were given back.
    pub is_refunded: bool,
    /// No other descriptor of the request is there.
    pub is_single: bool,
    /// Redis checks and charges all of the request in one step: what is denied charges nothing.
    pub is_plain: bool,
    /// There was no room in memory: hits that were admitted or reported may not count.
    pub is_full: bool,
    /// How many hits are left, as the answer says.
    pub remaining: u64,
    /// After so long the counter has room again or is empty, as the answer says.
    pub reset_nanos: Time,
    /// What was answered.
    pub outcome: Outcome,
    /// What was answered about bans.
    pub bans: Bans,
}

/// What one descriptor did about a reservation, and found.
#[derive(Clone, Copy, Debug)]
pub struct Reserving {
    /// Of this id.
    pub id: u32,
    /// By this rule.
    pub rule: Option<usize>,
    /// It ends it. Its hits are the cost.
    pub is_commit: bool,
    /// What the answer says of it.
    pub found: Option<Found>,
}

/// What one descriptor asked of a ban, and was answered.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bans {
    /// The ban that its rule has.
    pub of: Option<u64>,
    /// A ban denied the request, so that it was not counted.
    pub is_banned: bool,
    /// For how long the answer says that this key is banned.
    pub left: Option<Time>,
    /// The denial counts towards the ban, if a counter decided.
    pub strikes: bool,
    /// There is room in memory for all of it.
    pub has_room: bool,
    /// The limit denies nothing, by its rule or by an exception.
    pub is_shadow: bool,
}

/// What was answered about one counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing, or an error: the hits may count or not.
    Unknown,
    /// The hits fit, and the request passes.
    Admitted,
    /// The hits are not charged: they do not fit, or the request does not pass. By a shadow they may pass all the same.
    Denied {
        /// These hits do not fit.
        over: bool,
    },
}

impl Record {
    /// It was denied because its hits do not fit into N. A limit of no hits needs no reason.
    pub(super) fn is_over(&self) -> bool {
        self.outcome == Outcome::Denied { over: true } && self.requests > 0
    }

    /// Whether both are about one counter.
    pub(super) fn is_of_counter(&self, other: &Self) -> bool {
        self.counter() == other.counter()
    }

    /// Whether both are about one key of one limit, by the same rule and after the same resets. Records may have given it several
    /// counters.
    pub(super) fn is_of_key(&self, other: &Self) -> bool {
        let key = |it: &Self| (it.limit, it.key, it.epoch, it.rule_window);
        key(self) == key(other)
    }

    /// The same as if it had been asked of the counter of this one. It does not surely count there.
    pub(super) fn as_if_of(&self, other: &Self) -> Self {
        let Self { window, granularity, algorithm, .. } = *other;
        Self { window, granularity, algorithm, is_kept: false, ..*self }
    }

    /// What all records of its counter have in common: the limit, the key, the epoch, the windows, the width of buckets, and another
    /// algorithm.
    pub(super) fn counter(&self) -> (usize, u64, u64, [Time; 3], Option<u8>) {
        let algorithm = self.algorithm.map(|algorithm| algorithm as u8);
        (self.limit, self.key, self.epoch, [self.rule_window, self.window, self.granularity], algorithm)
    }

    /// How many hits fit at once. `limit`: its own.
    pub(super) fn room(&self, limit: &LimitSpec) -> u64 {
        self.room.unwrap_or_else(|| limit.room(self.requests))
    }

    /// How many of them fit for its class.
    pub(super) fn capacity(&self, limit: &LimitSpec) -> u64 {
        self.room(limit) * self.share / FULL
    }

    /// It surely counts.
    pub(super) fn counts(&self) -> bool {
        let charged = match self.outcome {
            Outcome::Unknown => self.is_kept,
            Outcome::Admitted => true,
            Outcome::Denied { .. } => self.is_reported,
        };
        charged && self.hits > 0 && !self.is_refunded && !self.is_full
    }
}

/// A server forgot what was written last.
#[derive(Clone, Copy, Debug)]
pub struct Loss {
    /// It forgot what was written from then on.
    pub since: Time,
    /// Nothing is forgotten that is written later.
    pub until: Time,
    /// It forgot hits that were admitted too. Otherwise only those whose clients had another answer.
    pub acknowledged: bool,
}

impl Loss {
    /// Whether it concerns what was written at some time between these.
    pub(super) fn touches(&self, from: Time, until: Time) -> bool {
        self.since <= until && self.until >= from
    }
}

/// Hits went back, or may have.
#[derive(Clone, Copy, Debug)]
pub struct Refund {
    /// Those that this was admitted.
    pub taken: Record,
    /// The node that was asked to take them back.
    pub node: usize,
    /// When it was asked for.
    pub asked: Time,
    /// When that was answered; [`Time::MAX`]: it was not.
    pub done: Time,
}

impl Refund {
    /// Whether they went back to the counter of a record, after whichever resets.
    pub(super) fn is_of(&self, it: &Record) -> bool {
        (self.taken.limit, self.taken.key) == (it.limit, it.key)
    }
}

/// An operator banned a key or lifted its ban, or may have.
#[derive(Clone, Copy, Debug)]
pub struct BanChange {
    /// Of this limit.
    pub limit: usize,
    /// The ban that its rule has for this key.
    pub of: u64,
    /// After which resets.
    pub epoch: u64,
    /// The node that was asked.
    pub node: usize,
    /// When it was asked for.
    pub asked: Time,
    /// When that was answered, or nothing can happen any more. 0: the answer was that nothing is done.
    pub done: Time,
    /// How long the ban lasts; `None`: the ban is lifted.
    pub lasts: Option<Time>,
    /// It was answered as done.
    pub is_known: bool,
    /// The answer to a lift: whether the key was banned.
    pub was_banned: Option<bool>,
}
