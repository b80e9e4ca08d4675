//! Resets by epochs in a run, of one counter or of many: which node has received which, and which counters it asks
//! then. Nodes hear of them from a list, or follow them through Redis by the program's own `Resets`.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;

use tidegate_engine::rules::{Epoch, Epochs, ResetPath};
use tidegate_operate::resets::{ResetError, Resets};
use tidegate_serve::service::Service;

use super::names::{KEYS, LIMITS_MAX, leading_to, resets, resets_of};
use super::{Kind, Run, SENT_AGAIN, SENT_FOR};
use crate::node::{Node, world_time};
use crate::oracle::{Loss, Troubles};
use crate::scenario::{Fault, What};
use crate::world::{MILLI, SECOND, Span, Time, lock};

/// More resets than a scenario has.
const EPOCHS_MAX: u64 = 1_000;

/// Where nothing fails a reset is in force everywhere within half a second.
const IN_FORCE_AFTER: Time = 500 * MILLI;

/// Which counters: of this limit or of all, this one or all.
type Which = (Option<usize>, Option<u64>);

/// In which epoch each counter of each limit is.
pub(super) type EpochNumbers = [[u64; KEYS.len()]; LIMITS_MAX];

/// What operators have done through Redis.
#[derive(Default)]
pub(super) struct Operated {
    /// All resets that were sent.
    begun: BTreeSet<(ResetPath, Epoch)>,
    /// Those that all servers had.
    kept: Epochs,
    /// The counters of those, since when.
    kept_since: Vec<(Time, EpochNumbers)>,
    /// Those that nobody sends again.
    done: Vec<Epoch>,
    /// Nodes that were asked and lacked one: since when all servers had it, and when that was.
    late: Vec<Span>,
}

impl Operated {
    fn is_done(&self, epoch: Epoch) -> bool {
        self.done.contains(&epoch)
    }
}

impl Run {
    /// Resets these counters: one of this limit, all of it, or of all limits. It reaches the nodes one after the other.
    pub(super) fn reset(self: &Arc<Self>, which: Which, epoch: u64, heard_within: Time) {
        if self.scenario.follows_resets {
            return self.send_reset(which, epoch);
        }
        self.heard_by_all(epoch, heard_within, move |run, node| run.hear(node, which, epoch));
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

    /// An operator has a node do a reset that does not stand still, and another one if it fails, until it is done.
    fn send_reset(self: &Arc<Self>, which: Which, epoch: u64) {
        let now = self.world.now();
        if now > self.scenario.asked_until() + SENT_FOR {
            return;
        }
        // Most are done when they are sent again.
        self.after(SENT_AGAIN, move |run| {
            if !lock(&run.operated).is_done(epoch) {
                run.send_reset(which, epoch);
            }
        });
        let resets = |node: usize| Some((node, lock(&self.nodes)[node].resets.clone()?));
        let Some((node, resets)) = self.serving(epoch + now, resets) else { return };
        self.world.note(|| format!("node {node} is sent reset {epoch}"));
        let (run, service) = (Arc::clone(self), lock(&self.nodes)[node].service.clone());
        let Some(service) = service else { return };
        let paths = self::resets(&self.scenario.limits, which.0, which.1);
        lock(&self.operated).begun.extend(paths.iter().map(|path| (path.clone(), epoch)));
        self.world.spawn(node, async move {
            for path in paths {
                let wanted = match resets.plan(path.clone(), Some(epoch), world_time(run.world.now())) {
                    Ok(wanted) => wanted,
                    // Nothing can change that.
                    Err(_) => return lock(&run.operated).done.push(epoch),
                };
                let begun = run.watched(node, &service, resets.begin(&wanted)).await;
                run.world.note(|| format!("node {node}: reset {epoch} of {path:?}: {begun:?}"));
                match begun {
                    Ok(()) => run.acknowledge(path, epoch),
                    Err(ResetError::Older(_)) => {}
                    Err(_) => return,
                }
            }
            lock(&run.operated).done.push(epoch);
        });
    }

    /// A reset is in force, and all servers have it.
    fn acknowledge(&self, path: ResetPath, epoch: u64) {
        let operated = &mut *lock(&self.operated);
        operated.kept.raise(path, epoch);
        let numbers = self.epochs_of(&operated.kept);
        operated.kept_since.push((self.world.now(), numbers));
    }

    /// Has a node that starts follow resets, if nodes do. As its other tasks it goes on after the last request.
    pub(super) fn follow_resets(self: &Arc<Self>, node: usize, runtime: Node, service: &Arc<Service<Node>>) {
        if !self.scenario.follows_resets {
            return;
        }
        let resets = Arc::new(Resets::on(runtime, Arc::clone(service)));
        lock(&self.nodes)[node].resets = Some(Arc::clone(&resets));
        let (run, service) = (Arc::clone(self), Arc::clone(service));
        self.world
            .spawn_on((node, 0), async move { match run.watched(node, &service, resets.follow()).await {} });
    }

    /// Runs what may change the resets of a process, and notes each change.
    async fn watched<T>(
        &self,
        node: usize,
        service: &Arc<Service<Node>>,
        changes: impl Future<Output = T>,
    ) -> T {
        let mut changes = pin!(changes);
        poll_fn(move |context| {
            let polled = changes.as_mut().poll(context);
            self.note_resets(node, service);
            polled
        })
        .await
    }

    /// Notes which resets a process has received.
    fn note_resets(&self, node: usize, service: &Arc<Service<Node>>) {
        let mut nodes = lock(&self.nodes);
        let Some(state) = nodes.get_mut(node) else { return };
        let is_it = state.service.as_ref().is_some_and(|own| Arc::ptr_eq(own, service));
        let received = service.epochs();
        if !is_it || received == state.epochs {
            return;
        }
        self.world.note(|| format!("node {node} has resets {received:?}"));
        if let Some((path, epoch)) = state.epochs.iter().find(|(path, epoch)| received.of(path) < *epoch) {
            self.wrong(Kind::WrongReset, format!("node {node} forgets reset {epoch} of {path:?}"));
        }
        let operated = lock(&self.operated);
        let unknown =
            received.iter().find(|(path, epoch)| !operated.begun.contains(&((*path).clone(), *epoch)));
        if let Some((path, epoch)) = unknown {
            self.wrong(
                Kind::WrongReset,
                format!("node {node} has reset {epoch} of {path:?}, which nobody sent"),
            );
        }
        state.epoch_numbers = self.epochs_of(&received);
        state.epochs = received;
    }

    /// Notes that a node is asked that has not received a reset which should be in force everywhere.
    pub(super) fn note_late_resets(&self, node: usize, numbers: &EpochNumbers) {
        if !self.scenario.follows_resets {
            return;
        }
        let now = self.world.now();
        let operated = &mut *lock(&self.operated);
        let due = operated
            .kept_since
            .iter()
            .filter(|(since, due)| since + IN_FORCE_AFTER < now && is_behind(numbers, due));
        let late: Vec<_> = due.map(|&(from, _)| Span { node, from, until: now }).collect();
        operated.late.extend(late);
    }

    /// A reset that was not in force in time, though nothing failed.
    pub(super) fn late_reset(&self, troubles: &Troubles, losses: &[Loss]) -> Option<String> {
        let operated = lock(&self.operated);
        // A reset is gone for good if servers lose it, and the processes end that have received it.
        let ends = |fault: &Fault| {
            matches!(fault.what, What::Crash { .. } | What::StopNode { .. } | What::Upgrade { .. })
        };
        let may_be_gone = |now: Time| {
            let has_ended = self.scenario.faults.iter().any(|fault| fault.at <= now && ends(fault));
            has_ended && losses.iter().any(|loss| loss.until <= now)
        };
        // A node that is far away gives connections up whose calls have no answer in time.
        let Span { node, from, until } = operated.late.iter().find(|Span { node, from, until }| {
            let fails = troubles.of(*node, from.saturating_sub(SECOND), *until).is_some();
            !fails && *from >= troubles.far_until(*node) && !may_be_gone(*until)
        })?;
        let millis = (until - from) / MILLI;
        Some(format!("node {node} has not received a reset {millis} ms after all servers had it"))
    }

    /// Nodes agree about resets when nothing has failed for a while, and none that was done is forgotten but by servers.
    pub(super) fn check_resets(&self) {
        if !self.scenario.follows_resets {
            return;
        }
        let (nodes, operated) = (lock(&self.nodes), lock(&self.operated));
        let is_lost = !lock(&self.losses).is_empty();
        for (node, state) in nodes.iter().enumerate() {
            let lacks = |others: &Epochs| others.iter().any(|(path, epoch)| state.epochs.of(path) < epoch);
            let other = nodes.iter().position(|other| lacks(&other.epochs));
            if let Some(other) = other {
                self.wrong(
                    Kind::WrongReset,
                    format!("node {node} has not received all resets of node {other}"),
                );
            }
            if !is_lost && lacks(&operated.kept) {
                self.wrong(
                    Kind::WrongReset,
                    format!("node {node} has not received all resets that were done"),
                );
            }
        }
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

/// Whether a counter is in an older epoch than it is there.
fn is_behind(own: &EpochNumbers, due: &EpochNumbers) -> bool {
    let digits = |number: u64| {
        std::iter::successors(Some(number), |rest| Some(rest / EPOCHS_MAX)).take_while(|rest| *rest > 0)
    };
    let is_older = |(own, due): (&u64, &u64)| {
        let mut own = digits(*own).map(|rest| rest % EPOCHS_MAX);
        digits(*due).any(|rest| own.next().unwrap_or(0) < rest % EPOCHS_MAX)
    };
    own.as_flattened().iter().zip(due.as_flattened()).any(is_older)
}
