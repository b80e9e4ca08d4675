//! Resets of all counters of a limit in a run: who has heard of which, and which counters it asks then.

use std::sync::Arc;

use tidegate_engine::rules::{Epochs, PathNode, PathPrefix, Reach};

use super::Run;
use super::ask::LIMITS;
use crate::world::{Time, lock};

/// More resets than a scenario has.
const EPOCHS_MAX: u64 = 1_000;

impl Run {
    /// All counters of this limit, or of all, begin anew. Nodes hear of it one after the other.
    pub(super) fn reset_all(self: &Arc<Self>, limit: Option<usize>, epoch: u64, heard_within: Time) {
        let nodes = self.scenario.clocks.len() as u64;
        for node in 0..nodes {
            // Not always in the same order.
            let place = (node + self.scenario.seed + epoch) % nodes;
            let run = Arc::clone(self);
            let at = self.world.now() + heard_within * place / nodes;
            self.world.at(at, move |_| run.hear(node as usize, limit, epoch));
        }
    }

    fn hear(&self, node: usize, limit: Option<usize>, epoch: u64) {
        self.world.tell(|| format!("node {node} hears of reset {epoch}"));
        let mut nodes = lock(&self.nodes);
        // When the run is over, nobody is there any more.
        let Some(state) = nodes.get_mut(node) else { return };
        state.epochs.raise(path(limit), epoch);
        state.epoch_numbers = self.epochs_of(&state.epochs);
        state.service.iter().for_each(|service| _ = service.begin_epochs(&state.epochs));
    }

    /// Which of the counters of each limit a node asks that has heard of these resets: another number for each epoch.
    fn epochs_of(&self, epochs: &Epochs) -> [u64; LIMITS.len()] {
        let limits = self.scenario.limits.iter().enumerate();
        let mut numbers = [0; LIMITS.len()];
        // What requests bring along is of no rule.
        for (number, _) in limits.filter(|(_, limit)| !limit.is_override) {
            numbers[number] = epochs.of(&path(None)) * EPOCHS_MAX + epochs.of(&path(Some(number)));
        }
        numbers
    }
}

/// The path of a limit; of all of them.
fn path(limit: Option<usize>) -> PathPrefix {
    let node = |limit| PathNode { key: format!("l{limit}"), value: None };
    PathPrefix { domain: "sim".to_owned(), nodes: limit.into_iter().map(node).collect(), reach: Reach::Below }
}
