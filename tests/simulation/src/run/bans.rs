//! What operators do with bans in a run: they begin and lift them at a node, which may fail as a request may.
//!
//! In: a limit, one of its counters, and how long its key is banned. Out: a call of the node's own service, and what became of it,
//! for the oracle.

use std::sync::Arc;

use tidegate_engine::request::{DescriptorOptions, Entry, Request};
use tidegate_serve::service::BanError;

use super::names::{ban_of, entries};
use super::{Kind, LATE_MAX, Run};
use crate::oracle::BanChange;
use crate::world::{SECOND, Time, lock};

impl Run {
    /// An operator bans the key of a counter for so long, or lifts its ban, unless the node is away.
    pub(super) fn change_ban(self: &Arc<Self>, node: usize, (limit, key): (usize, u64), lasts: Option<Time>) {
        let service = lock(&self.nodes)[node].service.clone();
        let (Some(service), Some(of)) = (service, ban_of(&self.scenario.limits, &self.rule_ids, limit, key))
        else {
            return;
        };
        let run = Arc::clone(self);
        self.world.spawn(node, async move {
            let epoch = lock(&run.nodes)[node].epoch_numbers[limit][key as usize];
            let (asked, done, is_known, was_banned) = (run.world.now(), Time::MAX, false, None);
            let change = BanChange { limit, of, epoch, node, asked, done, lasts, is_known, was_banned };
            let place = {
                let mut changes = lock(&run.ban_changes);
                changes.push(change);
                changes.len() - 1
            };
            let own = entries(&run.scenario.limits, limit, key);
            let mut request = Request::new("sim", 1);
            request
                .push(own.into_iter().map(|(key, value)| Entry { key, value }), DescriptorOptions::default());
            let answered = match lasts {
                Some(lasts) => service.ban(&request, (lasts / SECOND) as u32).await.map(|()| None),
                None => service.lift(&request).await.map(Some),
            };
            run.note_ban_change(place, answered);
        });
    }

    /// Notes what became of a change, and judges whether it may have become that.
    fn note_ban_change(&self, place: usize, answered: Result<Option<bool>, BanError>) {
        let (now, change) = (self.world.now(), lock(&self.ban_changes)[place]);
        self.world.note(|| format!("node {}: {change:?}: {answered:?}", change.node));
        let limit = &self.scenario.limits[change.limit];
        // A record may deny where its rule does not.
        let bans = !limit.is_shadow || limit.recorded.is_some();
        let is_due = match &answered {
            Ok(_) => bans,
            Err(BanError::NoBan) => !bans,
            Err(BanError::NoRoom) => self.may_lack_room() && change.lasts.is_some(),
            Err(BanError::Service(_)) => self.scenario.layout.servers() > 0,
        };
        if !is_due {
            self.wrong(Kind::WrongBan, format!("{change:?} was answered by {answered:?}"));
        }
        let own = &mut lock(&self.ban_changes)[place];
        match answered {
            Ok(was_banned) => (own.done, own.is_known, own.was_banned) = (now, true, was_banned),
            Err(BanError::NoBan | BanError::NoRoom) => own.done = 0,
            // A server does nothing after the deadline of a call.
            Err(BanError::Service(_)) => own.done = now + self.scenario.timeout + LATE_MAX,
        }
    }
}
