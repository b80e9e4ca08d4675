//! What goes wrong in a scenario, or is changed by operators, and when.

use tidegate_engine::overlay::Effect;

use super::{Item, Terms};
use crate::redis::server::Refusal;
use crate::world::Time;

/// A request that is explained has one descriptor, and so many more at most.
pub(super) const MORE_MAX: usize = 3;

/// Something that goes wrong, or is changed.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// When.
    pub at: Time,
    /// What.
    pub what: What,
}

/// What goes wrong: at which node or server, and for how long.
#[allow(missing_docs, reason = "most fields say what they are by their names")]
#[derive(Clone, Copy, Debug)]
pub enum What {
    /// Messages between a node and a server wait.
    Cut { node: usize, server: usize, lasts: Time },
    /// Connections between a node and a server break.
    Break { node: usize, server: usize },
    /// Connections between a node and a server are open at one end only.
    Lose { node: usize, server: usize },
    /// The oldest connection between a node and a server is open at one end only.
    LoseOne { node: usize, server: usize },
    /// A server stands still.
    Stop { server: usize, lasts: Time },
    /// A server refuses what it is asked.
    Refuse { server: usize, lasts: Time, why: Refusal },
    /// FLUSHALL.
    Flush { server: usize },
    /// A server is restarted without its data, and is away meanwhile.
    Restart { server: usize, lasts: Time },
    /// A replica takes over that lacks what was written last.
    FailOver {
        server: usize,
        /// It lacks what was written in so long.
        lacks: Time,
    },
    /// A node stands still, while its clock goes on.
    Pause { node: usize, lasts: Time },
    /// A node dies, and comes back.
    Crash { node: usize, lasts: Time },
    /// A node is stopped, and comes back.
    StopNode { node: usize, lasts: Time },
    /// A node is stopped, and comes back with other settings.
    Upgrade { node: usize, lasts: Time },
    /// The clocks of all servers step.
    StepServers { by: Time, is_ahead: bool },
    /// A node without Redis dies in the middle of something, after so many steps of its disk, and comes back.
    Die {
        node: usize,
        during: During,
        steps: usize,
        /// Its machine dies too: what was not synced may be lost.
        with_machine: bool,
        lasts: Time,
    },
    /// The wall clock of a node without Redis steps.
    StepWall {
        node: usize,
        /// It is ahead of the world by so much then.
        ahead: Time,
    },
    /// Half of a master's slots move to another one, and take so long.
    MoveSlots { server: usize, to: usize, lasts: Time },
    /// A node takes other rules.
    Reload {
        node: usize,
        /// The N and W of each limit that are in force then.
        version: usize,
    },
    /// A node makes an exception, which is ended after so long. Where nodes share them: an operator sends both to this node.
    Except { node: usize, limit: usize, whom: Whom, effect: Effect, lasts: Time },
    /// Somebody asks a node how this would be answered, and why.
    Explain {
        node: usize,
        item: Item,
        /// Other descriptors of the same request.
        with: [Option<Item>; MORE_MAX],
    },
    /// An operator bans a key at a node, or lifts its ban.
    Ban {
        node: usize,
        /// The limit whose rule has the ban.
        limit: usize,
        /// The counter whose key it is.
        key: u64,
        /// For so long, in full seconds; `None`: its ban is lifted.
        lasts: Option<Time>,
    },
    /// The record of a counter is put into the store of records, or removed.
    Record {
        limit: usize,
        key: u64,
        /// What it says; `None`: it is removed.
        terms: Option<Terms>,
        /// Every node that reaches the store hears of it within so long. In Redis: an operator thinks for so long between
        /// reading the record and changing it.
        heard_within: Time,
    },
    /// Something happens to the server that has records, exceptions, or both.
    OfRecords {
        what: Outage,
        /// For so long, or it lacks what was written in so long.
        lasts: Time,
    },
    /// A node does not reach the store of records, nor that of exceptions.
    RecordsAway { node: usize, lasts: Time },
    /// Something is the matter with the disk of records of a node without Redis.
    OfDisk { what: DiskTrouble, lasts: Time },
    /// A reset of a counter, of all counters of a limit, or of all limits: from then on they are other counters.
    Reset {
        /// Of which limit; `None`: all.
        limit: Option<usize>,
        /// Which counter of it; `None`: all.
        key: Option<u64>,
        /// A later reset has a greater number.
        epoch: u64,
        /// Every node hears of it within so long.
        heard_within: Time,
    },
}

/// What happens to the server that has records, exceptions, or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outage {
    /// It stands still.
    Stop,
    /// It is away, and comes back with its data.
    Restart,
    /// It is away, and comes back without its data.
    RestartEmpty,
    /// It refuses what it is asked.
    Refuse(Refusal),
    /// Connections of this node are open at one end only.
    Lose(usize),
    /// FLUSHALL.
    Flush,
    /// A replica takes over that lacks what was written last.
    FailOver,
}

/// What is the matter with the disk of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskTrouble {
    /// It takes no change, and no folder is opened.
    Full,
    /// It does not answer reads, either.
    Broken,
    /// It takes longer than requests wait.
    Slow,
}

/// Which counters of a limit an exception is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Whom {
    /// All: its entries have no values.
    All,
    /// All: its values are patterns.
    Pattern,
    /// This one.
    One(u64),
}

impl Whom {
    /// Whether it is for this counter.
    pub fn is_for(self, key: u64) -> bool {
        !matches!(self, Self::One(one) if one != key)
    }

    /// Whether it is for one counter.
    pub fn is_one(self) -> bool {
        matches!(self, Self::One(_))
    }
}

/// What a process does when it dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum During {
    /// It answers requests.
    Serving,
    /// It writes a checkpoint.
    Checkpoint,
    /// It writes its counters at its end.
    End,
    /// It was killed, and the next one begins.
    Start,
}

impl What {
    /// The node that it is about.
    pub fn node(self) -> Option<usize> {
        match self {
            Self::Cut { node, .. }
            | Self::Break { node, .. }
            | Self::Lose { node, .. }
            | Self::LoseOne { node, .. }
            | Self::Pause { node, .. }
            | Self::Crash { node, .. }
            | Self::StopNode { node, .. }
            | Self::Upgrade { node, .. }
            | Self::Die { node, .. }
            | Self::StepWall { node, .. }
            | Self::Reload { node, .. }
            | Self::Except { node, .. }
            | Self::Explain { node, .. }
            | Self::Ban { node, .. }
            | Self::OfRecords { what: Outage::Lose(node), .. }
            | Self::RecordsAway { node, .. } => Some(node),
            Self::Stop { .. }
            | Self::Refuse { .. }
            | Self::Flush { .. }
            | Self::Restart { .. }
            | Self::StepServers { .. }
            | Self::FailOver { .. }
            | Self::MoveSlots { .. }
            | Self::Record { .. }
            | Self::OfRecords { .. }
            | Self::OfDisk { .. }
            | Self::Reset { .. } => None,
        }
    }
}
