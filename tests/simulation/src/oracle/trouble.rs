//! When nodes may have had no answer from Redis, as seen from outside: what failed, for how long, and until it had healed.
//!
//! In: what went wrong, and when. Out: for each node the times at which it may decide alone. What it admits then has to be at
//! Redis when such a time ends, unless the node died.

use crate::world::{SECOND, Time};

/// How long a node may take to find its servers again: connections are tried again after a second at most, and what was
/// admitted alone is sent within another one.
const HEALS: Time = 3 * SECOND;

/// Something that failed.
#[derive(Clone, Copy, Debug)]
pub struct Trouble {
    /// At one node, or at all.
    pub node: Option<usize>,
    /// Since when.
    pub from: Time,
    /// Until when, without what it takes to heal.
    pub until: Time,
    /// The node forgets what it admitted alone.
    pub forgets: bool,
}

/// Troubles of each node, by time. Those that touch each other are one.
#[derive(Debug, Default)]
pub struct Troubles {
    of: Vec<Vec<Trouble>>,
    /// Until when a node is so far away that a call may take longer than the node waits.
    far_until: Vec<Time>,
}

impl Troubles {
    /// All that failed. `far_until`: of each node, until when it is far away.
    pub fn new(far_until: Vec<Time>, all: &[Trouble]) -> Self {
        Self { of: (0..far_until.len()).map(|node| merged(node, all)).collect(), far_until }
    }

    /// Until when a node is so far away that calls may take too long for it.
    pub fn far_until(&self, node: usize) -> Time {
        self.far_until.get(node).filter(|until| **until > 0).map_or(0, |until| until + HEALS)
    }

    /// What troubled a node at some time between these.
    pub fn of(&self, node: usize, from: Time, until: Time) -> Option<&Trouble> {
        let own = self.of.get(node)?;
        own[own.partition_point(|it| it.until < from)..].first().filter(|it| it.from <= until)
    }

    /// Whether any node was troubled at some time between these.
    pub fn touch(&self, from: Time, until: Time) -> bool {
        (0..self.of.len()).any(|node| self.of(node, from, until).is_some())
    }
}

fn merged(node: usize, all: &[Trouble]) -> Vec<Trouble> {
    let own = all.iter().filter(|it| it.node.is_none_or(|of| of == node));
    let mut own: Vec<_> = own.map(|it| Trouble { until: it.until + HEALS, ..*it }).collect();
    own.sort_by_key(|it| it.from);
    let mut merged: Vec<Trouble> = Vec::new();
    for it in own {
        match merged.last_mut().filter(|last| last.until >= it.from) {
            Some(last) => {
                (last.until, last.forgets) = (last.until.max(it.until), last.forgets || it.forgets);
            }
            None => merged.push(it),
        }
    }
    merged
}
