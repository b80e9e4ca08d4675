//! Bans, for the path of a request and for operators: which are new, and those that an operator begins or lifts.

use std::time::Instant;

use smallvec::SmallVec;

use super::{Service, ServiceError};
use crate::bans::{Bans, SeenBan};
use crate::events::RuleEvents;
use tidegate_engine::decision::{Decision, Status};
use tidegate_engine::key::Key;
use tidegate_engine::limit::Verdict;
use tidegate_engine::plan::{Check, Modes, Step};
use tidegate_engine::request::Request;
use tidegate_engine::strikes::{beginning, lifting};
use tidegate_engine::time::Timestamp;
use tidegate_redis::runtime::Runtime;

/// Why an operator's change of a ban was not made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BanError {
    /// No rule with a ban is met.
    #[error("no rule with a `ban` applies to these entries (one in shadow mode bans nobody)")]
    NoBan,
    /// There is no room for its counter.
    #[error("not done, because there is no memory for more counters (MAX_COUNTER_BYTES)")]
    NoRoom,
    /// The counters could not be asked.
    #[error(transparent)]
    Service(#[from] ServiceError),
}

/// The bans of a request that an operator changed, by key, each with the verdict of its counter.
type ChangedBans = SmallVec<[(Key, Verdict); 1]>;

impl<R: Runtime> Service<R> {
    /// The bans that this node has seen.
    pub fn bans(&self) -> &Bans {
        &self.bans
    }

    /// The known bans that are in force, with times of the wall clock.
    pub fn known_bans(&self) -> Vec<SeenBan> {
        let (now, wall) = (self.now(), self.runtime.wall());
        let shown = |ban: SeenBan| {
            let ago = now.nanos_since(ban.since);
            let since = Timestamp::from_nanos(wall.as_nanos().saturating_sub(ago));
            SeenBan { since, until: wall.plus(ban.until.nanos_since(now)), ..ban }
        };
        self.bans.all(now).into_iter().map(shown).collect()
    }

    /// Notes the bans that deny a request, and emits events of those that began or ended.
    #[cold]
    pub(super) fn note_bans(
        &self,
        rule_events: &RuleEvents,
        request: &Request<'_>,
        decision: &Decision<'_>,
        at: Instant,
    ) {
        for banned in decision.bans() {
            let (ended, begun) = self.bans.observe(request, banned, self.clock.at(at));
            let Some(events) = &self.events else { continue };
            ended.into_iter().for_each(|ban| events.ban_ended(ban, at));
            if let (Some(ban), Status::Limited(limited)) = (begun, &decision.statuses[banned.descriptor]) {
                events.ban_began(rule_events, limited, ban, at);
            }
        }
    }

    /// Forgets the bans that are over, and emits an event of each.
    pub(super) fn end_bans(&self) {
        let now = self.runtime.monotonic();
        let ended = self.bans.ended(self.clock.at(now));
        if let Some(events) = &self.events {
            ended.into_iter().for_each(|ban| events.ban_ended(ban, now));
        }
    }

    /// Bans the keys of a request for so many seconds from now, whatever ban there was before. Forgets the denials that count.
    /// Fails when no rule with a ban is met, there is no room, or the shared store does not answer.
    pub async fn ban(&self, request: &Request<'_>, secs: u32) -> Result<(), BanError> {
        let begun = self.change_bans(request, |ban| beginning(ban, secs)).await?;
        match begun.iter().all(|(_, verdict)| verdict.is_counted) {
            true => Ok(()),
            false => Err(BanError::NoRoom),
        }
    }

    /// Lifts the bans of a request's keys, and forgets the denials that count. Returns whether any was banned.
    /// Fails when no rule with a ban is met, or the shared store does not answer.
    pub async fn lift(&self, request: &Request<'_>) -> Result<bool, BanError> {
        let lifted = self.change_bans(request, |ban| Some(lifting(ban))).await?;
        Ok(lifted.iter().any(|(_, verdict)| verdict.over))
    }

    /// Changes the counters of a request's bans, and no others. Forgets the bans that this node has seen of these keys.
    async fn change_bans(
        &self,
        request: &Request<'_>,
        change: impl for<'c> Fn(&Check<'c>) -> Option<Check<'c>>,
    ) -> Result<ChangedBans, BanError> {
        let live = self.snapshot()?;
        let mut plan = live.rules().plan(request, Modes::default());
        plan.candidates.clear();
        let mut keys: SmallVec<[(usize, Key); 1]> = SmallVec::new();
        for (place, step) in plan.steps.iter_mut().enumerate() {
            let changed = match step {
                Step::Check(check) if check.is_ban() => change(check),
                _ => None,
            };
            keys.extend(changed.map(|check| (place, check.key)));
            *step = changed.map_or(Step::Unmatched, Step::Check);
        }
        if keys.is_empty() {
            return Err(BanError::NoBan);
        }
        let applied = self.counters.finish(request, &plan, None, self.now()).await;
        let verdicts = applied.map_err(ServiceError::from)?.verdicts;
        let changed: ChangedBans =
            keys.into_iter().filter_map(|(place, key)| Some((key, verdicts[place]?))).collect();
        let now = self.runtime.monotonic();
        for (key, _) in changed.iter().filter(|(_, verdict)| verdict.is_counted) {
            if let (Some(ban), Some(events)) = (self.bans.forget(*key), &self.events) {
                events.ban_ended(ban, now);
            }
        }
        Ok(changed)
    }
}
