//! What happens to the nodes and the ring in a run: a list of steps, each at its time.

use crate::random::Random;
use crate::ring::node::Begin;
use tidegate_engine::time::SECOND_NANOS;

tidegate_engine::named! {
    /// What happens. Names are those of results.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Event {
        /// Nothing: what the measurement itself shows.
        Nothing = "nothing",
        /// Every node ends, writes its counters, and begins on another machine, one after the other.
        Rollout = "rollout",
        /// A node is killed, and comes back.
        Death = "death",
        /// A third of the nodes is killed at once, and comes back.
        Zone = "zone",
        /// A node is added: first all proxies change their ring, one after the other, then the node begins.
        Grow = "grow",
        /// The same in the wrong order: the node began a window before the proxies change.
        GrowTooEarly = "grow, too early",
        /// A node is taken away: all nodes stop, all proxies change, all others begin without counters.
        Shrink = "shrink",
    }
}

/// What a node does without its counters: COLD_START.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColdStart {
    /// Every counter is empty.
    Allow,
    /// Every counter is full for a window.
    Deny,
}

/// One thing that happens.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    Kill(usize),
    Stop(usize),
    Begin(usize, Begin),
    /// This proxy has the second ring from now on.
    Turn(usize),
}

/// When the event begins: until then every counter has come to what it usually is.
pub const BEGINS_SECS: u64 = 70;

/// Seconds that a node needs to end and to begin again; that a node or a zone is away; between two proxies.
const RESTART_SECS: u64 = 4;
const AWAY_SECS: u64 = 15;
const ZONE_SECS: u64 = 30;
const TURN_SECS: u64 = 3;

impl Event {
    /// How many nodes the second ring has.
    pub(super) const fn nodes_after(self, nodes: usize) -> usize {
        match self {
            Self::Grow | Self::GrowTooEarly => nodes + 1,
            Self::Shrink => nodes - 1,
            _ => nodes,
        }
    }

    /// All steps in order, each with its time in nanoseconds.
    pub(super) fn steps(
        self,
        (nodes, proxies): (usize, usize),
        cold: ColdStart,
        random: &mut Random,
    ) -> Vec<(u64, Step)> {
        let empty = if cold == ColdStart::Deny { Begin::Cold } else { Begin::Empty };
        let turns =
            |from: u64| (0..proxies).map(move |proxy| (from + proxy as u64 * TURN_SECS, Step::Turn(proxy)));
        let turned = BEGINS_SECS + proxies as u64 * TURN_SECS;
        let dies =
            |node, secs| [(BEGINS_SECS, Step::Kill(node)), (BEGINS_SECS + secs, Step::Begin(node, empty))];
        let steps: Vec<(u64, Step)> = match self {
            Self::Nothing => Vec::new(),
            Self::Rollout => (0..nodes)
                .flat_map(|node| {
                    let at = BEGINS_SECS + node as u64 * (RESTART_SECS + 1);
                    [(at, Step::Stop(node)), (at + RESTART_SECS, Step::Begin(node, Begin::Kept))]
                })
                .collect(),
            Self::Death => dies(random.below(nodes as u64) as usize, AWAY_SECS).to_vec(),
            Self::Zone => (0..nodes).step_by(3).flat_map(|node| dies(node, ZONE_SECS)).collect(),
            Self::Grow => turns(BEGINS_SECS).chain([(turned, Step::Begin(nodes, empty))]).collect(),
            Self::GrowTooEarly => {
                [(1, Step::Begin(nodes, empty))].into_iter().chain(turns(BEGINS_SECS)).collect()
            }
            Self::Shrink => (0..nodes)
                .map(|node| (BEGINS_SECS, Step::Kill(node)))
                .chain(turns(BEGINS_SECS + 1))
                .chain((0..nodes - 1).map(|node| (turned + 1, Step::Begin(node, empty))))
                .collect(),
        };
        let mut steps: Vec<_> = steps.into_iter().map(|(secs, step)| (secs * SECOND_NANOS, step)).collect();
        steps.sort_by_key(|(at, _)| *at);
        steps
    }
}
