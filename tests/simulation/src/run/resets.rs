//! Resets of all counters of a limit in a run: who has heard of which, and which counters it asks then.

use std::sync::Arc;

use tidegate_engine::rules::{Epochs, PathNode, PathPrefix, Reach, RuleSet};

use super::{Run, State};
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
        state.rules = None;
        // As the program does whenever it puts rules in force.
        state.store.iter().for_each(|store| store.clear_deny_cache());
    }

    /// The rules of a node, in its epochs.
    pub(super) fn rules_of(&self, state: &mut State) -> Arc<RuleSet> {
        let loaded = &self.rules[state.version];
        let rules = state.rules.get_or_insert_with(|| match state.epochs.is_empty() {
            true => Arc::clone(loaded),
            false => Arc::new(RuleSet::clone(loaded).in_epochs(&state.epochs)),
        });
        Arc::clone(rules)
    }

    /// Which of the counters of this limit a node asks that has heard of these resets: another number for each epoch.
    pub(super) fn epoch_of(&self, epochs: &Epochs, limit: usize) -> u64 {
        // What requests bring along is of no rule.
        match self.scenario.limits[limit].is_override {
            true => 0,
            false => epochs.of(&path(None)) * EPOCHS_MAX + epochs.of(&path(Some(limit))),
        }
    }
}

/// The path of a limit; of all of them.
fn path(limit: Option<usize>) -> PathPrefix {
    let node = |limit| PathNode { key: format!("l{limit}"), value: None };
    PathPrefix { domain: "sim".to_owned(), nodes: limit.into_iter().map(node).collect(), reach: Reach::Below }
}
