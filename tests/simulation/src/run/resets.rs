//! Resets by epochs in a run, of one counter or of many: which node has received which, and which counters it asks
//! then.

use std::sync::Arc;

use tidegate_engine::rules::Epochs;

use super::Run;
use super::names::{KEYS, LIMITS_MAX, leading_to, resets, resets_of};
use crate::world::{Time, lock};

/// More resets than a scenario has.
const EPOCHS_MAX: u64 = 1_000;

/// Which counters: of this limit or of all, this one or all.
type Which = (Option<usize>, Option<u64>);

/// In which epoch each counter of each limit is.
pub(super) type EpochNumbers = [[u64; KEYS.len()]; LIMITS_MAX];

impl Run {
    /// Resets these counters: one of this limit, all of it, or of all limits. It reaches the nodes one after the other.
    pub(super) fn reset(self: &Arc<Self>, which: Which, epoch: u64, heard_within: Time) {
        let nodes = self.scenario.clocks.len() as u64;
        for node in 0..nodes {
            // Not always in the same order.
            let place = (node + self.scenario.seed + epoch) % nodes;
            let run = Arc::clone(self);
            let at = self.world.now() + heard_within * place / nodes;
            self.world.at(at, move |_| run.hear(node as usize, which, epoch));
        }
    }

    fn hear(&self, node: usize, which: Which, epoch: u64) {
        self.world.note(|| format!("node {node} learns of reset {epoch}"));
        let paths = resets(&self.scenario.limits, which.0, which.1);
        let mut nodes = lock(&self.nodes);
        // When the run is over, nobody is there any more.
        let Some(state) = nodes.get_mut(node) else { return };
        match &state.home {
            Some(home) => {
                // Nobody reaches a process that is away.
                let Some(service) = &state.service else { return };
                let mut one = Epochs::default();
                paths.into_iter().for_each(|path| _ = one.raise(path, epoch));
                home.reset(service, &one);
                state.epochs = service.epochs();
            }
            None => {
                paths.into_iter().for_each(|path| _ = state.epochs.raise(path, epoch));
                state.service.iter().for_each(|service| service.begin_epochs(&state.epochs));
            }
        }
        state.epoch_numbers = self.epochs_of(&state.epochs);
    }

    /// Which counters of each limit a node asks that has received these resets: another number for each epoch.
    pub(super) fn epochs_of(&self, epochs: &Epochs) -> EpochNumbers {
        let mut numbers = EpochNumbers::default();
        // What requests bring along is of no rule.
        let limits = self.scenario.limits.iter().enumerate().filter(|(_, limit)| !limit.is_override);
        for (limit, spec) in limits {
            for (key, number) in (0..).zip(&mut numbers[limit]) {
                // The reset of a counter resets the further ones that it leads to.
                let mut own: Vec<_> = match spec.further {
                    None => resets_of(&self.scenario.limits, limit, key),
                    Some((of, further)) => leading_to(further, key)
                        .flat_map(|key| resets_of(&self.scenario.limits, of, key))
                        .collect(),
                };
                own.sort();
                own.dedup();
                *number = own.iter().fold(0, |number, path| number * EPOCHS_MAX + epochs.of(path));
            }
        }
        numbers
    }
}
