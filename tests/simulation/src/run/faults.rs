//! What goes wrong in a run, and how it heals.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};

use super::Run;
use super::alone::{Death, Home};
use super::decider::{Excepted, Made};
use crate::node::world_time;
use crate::oracle::Loss;
use crate::redis::database::Database;
use crate::redis::server::{Moving, Server};
use crate::scenario::{During, Layout, What};
use crate::world::{Span, Time, lock};

impl Run {
    /// Something goes wrong, or is changed.
    pub(super) fn fault(self: &Arc<Self>, what: What) {
        let (world, network, now) = (&self.world, &self.network, self.world.now());
        world.note(|| format!("{what:?}"));
        let later = |lasts: Time, then: fn(&Arc<Self>, What)| self.after(lasts, move |run| then(run, what));
        match what {
            What::Cut { node, server, lasts } => network.cut(node, server, now + lasts),
            What::Break { node, server } => network.break_way(node, server),
            What::Lose { node, server } => network.lose(node, server),
            What::LoseOne { node, server } => network.lose_one(node, server),
            What::Stop { server, lasts } => network.stop(server, now + lasts),
            What::Refuse { server, lasts, why } => {
                network.server(server, |it| it.refuses = Some(why));
                later(lasts, Self::heal);
            }
            What::Flush { server } => {
                network.server(server, Server::flush);
                self.all_is_lost();
            }
            What::Restart { server, lasts } => {
                network.break_all(server);
                network.set_gone(server, true);
                network.server(server, |it| it.restart(Database::default()));
                self.all_is_lost();
                later(lasts, Self::heal);
            }
            What::FailOver { server, lacks } => self.fail_over(server, lacks),
            What::MoveSlots { server, to, lasts } => self.move_slots(server, to, lasts),
            What::Pause { node, lasts } => {
                world.freeze(node);
                lock(&self.pauses).push(Span { node, from: now, until: now + lasts });
                later(lasts, Self::heal);
            }
            What::Crash { node, lasts } => {
                self.kill(node);
                later(lasts, Self::heal);
            }
            What::Die { node, during, steps, with_machine, lasts } => {
                self.die(node, during, Death { steps, with_machine });
                later(lasts, Self::heal);
            }
            What::StepWall { node, ahead } => {
                lock(&self.nodes)[node].home.iter_mut().for_each(|home| home.step_wall(ahead));
            }
            What::StopNode { node, lasts } => {
                self.stop_node(node);
                later(lasts, Self::heal);
            }
            What::Upgrade { node, lasts } => {
                self.stop_node(node);
                lock(&self.nodes)[node].is_upgraded ^= true;
                later(lasts, Self::heal);
            }
            What::StepServers { by, is_ahead } => {
                network.step_servers(by, is_ahead);
                self.lag.fetch_add(if is_ahead { 0 } else { by }, Relaxed);
            }
            What::Reload { node, version } => {
                let state = &mut lock(&self.nodes)[node];
                state.version = version;
                state.service.iter().for_each(|service| _ = service.install(self.rules(version)));
            }
            What::Except { node, limit, whom, effect, lasts } if self.is_alone() => {
                self.change_book(node, (limit, whom), Some((effect, lasts)));
                later(lasts, Self::heal);
            }
            What::Except { node, limit, whom, effect, lasts } if self.scenario.shares_exceptions() => {
                self.make_shared(node, (limit, whom), effect, lasts);
                later(lasts, Self::heal);
            }
            What::Except { node, limit, whom, effect, lasts } => {
                let (from, until) = (None, Some(world_time(now + lasts)));
                self.except(node, |excepted| excepted.make(now, Made { limit, whom, effect, from, until }));
                later(lasts, Self::heal);
            }
            What::Explain { node, item, with } => {
                self.explain(node, [item].into_iter().chain(with.into_iter().flatten()).collect());
            }
            What::Ban { node, limit, key, lasts } => self.change_ban(node, (limit, key), lasts),
            What::Record { limit, key, terms, heard_within } => {
                self.record((limit, key), terms, heard_within);
            }
            What::OfRecords { what, lasts } => self.strike_records(what, lasts),
            What::OfDisk { what, lasts } => {
                self.record_disk.iter().for_each(|disk| disk.fails(what, now + lasts));
            }
            What::RecordsAway { node, lasts } => self.records_are_away(node, lasts),
            What::Reset { limit, key, epoch, heard_within } => {
                self.reset((limit, key), epoch, heard_within);
            }
        }
    }

    /// A fault is over.
    fn heal(self: &Arc<Self>, what: What) {
        match what {
            What::Refuse { server, .. } => self.network.server(server, |it| it.refuses = None),
            What::Restart { server, .. } => self.network.set_gone(server, false),
            What::Pause { node, .. } => self.world.thaw(node),
            What::Crash { node, .. }
            | What::StopNode { node, .. }
            | What::Upgrade { node, .. }
            | What::Die { node, .. } => self.start(node),
            // Those of one counter end by themselves.
            What::Except { whom, .. } if self.is_alone() && whom.is_one() => {}
            What::Except { node, limit, whom, .. } if self.is_alone() => {
                self.change_book(node, (limit, whom), None);
            }
            What::Except { node, limit, whom, .. } if self.scenario.shares_exceptions() => {
                self.end_shared(node, (limit, whom));
            }
            What::Except { node, limit, whom, .. } => {
                let now = self.world.now();
                self.except(node, |excepted| excepted.end(now, (limit, whom)));
            }
            _ => {}
        }
    }

    /// Whether there is no Redis.
    pub(super) fn is_alone(&self) -> bool {
        matches!(self.scenario.layout, Layout::Alone(_))
    }

    /// A node without Redis dies, after so many steps of its disk, and its machine perhaps.
    fn die(self: &Arc<Self>, node: usize, during: During, death: Death) {
        let with_home =
            |act: &mut dyn FnMut(&mut Home)| lock(&self.nodes)[node].home.iter_mut().for_each(act);
        match during {
            During::End => {
                with_home(&mut |home| home.will_die(death));
                return self.stop_node(node);
            }
            During::Checkpoint => with_home(&mut |home| home.checkpoint(death.steps, self.world.now())),
            During::Serving | During::Start => {}
        }
        self.kill(node);
        match during {
            During::Start => with_home(&mut |home| home.will_die(death)),
            _ if death.with_machine => with_home(&mut |home| home.lose_power(self.world.now())),
            _ => {}
        }
    }

    /// A node has other exceptions from now on.
    fn except(&self, node: usize, change: impl FnOnce(&Excepted)) {
        let state = &lock(&self.nodes)[node];
        change(&state.excepted);
        // A process that is stopped still answers what it was asked before.
        let lives = state.lives.iter().filter_map(Weak::upgrade);
        lives.for_each(|service| service.except(state.excepted.all(&self.scenario.limits)));
    }

    pub(super) fn after(self: &Arc<Self>, lasts: Time, then: impl FnOnce(&Arc<Self>) + Send + 'static) {
        let run = Arc::clone(self);
        self.world.at(self.world.now() + lasts, move |_| then(&run));
    }

    fn all_is_lost(&self) {
        lock(&self.losses).push(Loss { since: 0, until: self.world.now(), acknowledged: true });
    }

    /// A replica takes over that has nothing of what is written from now on. Behind a sentinel it has a name of its own,
    /// and the old master may not know yet.
    fn fail_over(self: &Arc<Self>, server: usize, lacks: Time) {
        let (from, to) = match self.scenario.layout {
            Layout::Sentinel => {
                let first = self.network.server(0, |it| it.is_replica);
                (usize::from(first), usize::from(!first))
            }
            _ => (server, server),
        };
        // One at a time.
        if [from, to].iter().any(|&number| self.network.server(number, |it| it.replicas == 0)) {
            return;
        }
        // So the old master answers each WAIT that it has no replicas.
        self.network.server(from, |it| it.replicas = 0);
        let (since, copy) = (self.world.now(), self.network.server(from, |it| it.copy()));
        let knows_late = from != to && server != from;
        let copy = match knows_late {
            true => {
                self.take_over(to, copy);
                None
            }
            false => Some(copy),
        };
        self.after(lacks, move |run| {
            copy.into_iter().for_each(|copy| run.take_over(to, copy));
            run.network.server(from, |it| {
                (it.is_replica, it.replicas) = (from != to, 1);
            });
            run.network.break_all(from);
            run.lost_since(since, to);
            run.world.note(|| format!("server {from} is the master no more, but {to}"));
        });
    }

    fn take_over(&self, server: usize, copy: Database) {
        let replicas_ahead = self.scenario.replicas_ahead;
        let has_own_clock = self.scenario.layout == Layout::Sentinel;
        self.network.server(server, |it| {
            it.restart(copy);
            it.is_replica = false;
            // Its replica is another machine, and has been one since.
            it.ahead = if has_own_clock { it.ahead } else { replicas_ahead - it.ahead };
        });
        self.lag.fetch_add(replicas_ahead, Relaxed);
        let name = self.network.server(server, |it| it.name.clone());
        if self.scenario.layout == Layout::Sentinel {
            self.network.server(2, |it| it.master = Some(name));
        }
    }

    /// A server has nothing of what was written since then, nor of keys that came since then.
    fn lost_since(&self, since: Time, server: usize) {
        let keys_came = lock(&self.moves).iter().any(|&(to, at)| to == server && at >= since);
        let (since, acknowledged) =
            if keys_came { (0, true) } else { (since, self.scenario.wait_replicas == 0) };
        lock(&self.losses).push(Loss { since, until: self.world.now(), acknowledged });
    }

    /// Half of the last slots of a master go to another: first it says so, then their keys go, then everybody knows.
    fn move_slots(self: &Arc<Self>, from: usize, to: usize, lasts: Time) {
        let is_moving = |server| self.network.server(server, |it| it.moving.is_some());
        if from == to || is_moving(from) || is_moving(to) {
            return;
        }
        let Some(slots) = self.network.server(from, |it| it.last_half()) else { return };
        let name = self.network.server(to, |it| it.name.clone());
        let moving = |to| Some(Moving { slots: slots.clone(), to, keys_moved: false });
        self.network.server(from, |it| it.moving = moving(Some(name)));
        self.network.server(to, |it| it.moving = moving(None));
        self.after(lasts / 2, move |run| {
            let keys = run.network.server(from, Server::send_keys);
            run.network.server(to, |it| it.receive_keys(keys));
            lock(&run.moves).push((to, run.world.now()));
            run.world.note(|| format!("keys of server {from} are at server {to}"));
        });
        self.after(lasts, move |run| {
            run.network.server(from, Server::end_move);
            run.network.server(to, Server::end_move);
            run.network.draw_map();
        });
    }
}
