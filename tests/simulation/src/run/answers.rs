//! What an answer says: judged by what it says of each counter, by rules that are written here once more.
//!
//! In: a decision, and what the request asked. Out: what each counter was charged, for the oracle. A candidate has a counter of
//! its own, which is judged as any other.

use std::cmp::Reverse;
use std::sync::atomic::Ordering::Relaxed;

use tidegate_engine::limit::{Algorithm, DEFAULT_BUCKETS};
use tidegate_engine::overlay::Effect;
use tidegate_engine::rules::StoreFailure;

use super::call::Call;
use super::decided::{Counter, Decided, Met, Trial};
use super::decider::Decider;
use super::{Kind, Run};
use crate::oracle::{Bans, Outcome, Record};
use crate::scenario::{DEBT_WINDOWS, FULL, Item, Layout, LimitSpec};
use crate::world::{MICRO, SECOND, lock};

/// So many bytes of memory have room for all counters.
const ROOMY: u64 = 1 << 20;

/// Denies a request, alone or with all others of its kind.
fn denies(counter: &Counter) -> bool {
    counter.over && !counter.by.is_shadow
}

/// Whether nobody knows if this counter is over: a ban denies its descriptor, which says that a counter of hits is full until then.
pub(super) fn is_hidden(counter: &Counter, decided: &Decided) -> bool {
    let mut bans = decided.bans.iter().filter(|ban| ban.at == counter.at && !ban.has_begun);
    !counter.is_slots && bans.any(|ban| counter.reset_nanos >= ban.left)
}

/// Whether this is the limit that its descriptor has to show: of those that deny the one that does it for the longest time, then
/// of those that are over; else the one with the least remaining. Slots that deny nothing have no hits to compare.
fn is_due(counter: &Counter, all: &[Counter]) -> bool {
    let own = || all.iter().filter(|other| other.at == counter.at);
    let rank = |it: &Counter| (denies(it), it.over);
    let worst = own().map(rank).max();
    let of_worst = || own().filter(|it| Some(rank(it)) == worst);
    let due = match worst {
        Some((_, true)) => of_worst().min_by_key(|it| Reverse(it.reset_nanos)),
        _ => of_worst().filter(|it| !it.is_slots).min_by_key(|it| it.remaining).or_else(|| of_worst().next()),
    };
    due.is_some_and(|due| std::ptr::eq(due, counter))
}

impl Run {
    /// Judges what a request was answered, and notes it. Returns whether it passes, but for SHADOW_MODE.
    pub(super) fn judge_answer(&self, call: &Call<'_>, decided: &Decided) -> bool {
        let Call { it, items, .. } = call;
        let (number, is_patient) = (it.number, it.deadline.is_none());
        let counters = &decided.counters;
        let is_wrong = |what: String| self.wrong(Kind::WrongAnswer, format!("request {number} {what}"));
        let passes = self.check_passes(decided, is_wrong);
        self.check_shown(decided).into_iter().for_each(is_wrong);
        let any_over = counters.iter().any(|counter| counter.over);
        let records = &mut lock(&self.records)[call.first..];
        for (record, counter) in records.iter_mut().zip(counters) {
            self.check_rule(record, counter, decided);
            self.check_limit(record, (counter, decided), is_patient, |effect| effect == counter.excepted);
            let over = counter.over && !is_hidden(counter, decided);
            let outcome = self.outcome(counter.by, over, passes, any_over);
            self.settle(record, counter, outcome, decided.is_full);
            self.note_bans(record, counter, decided, passes);
        }
        self.judge_trials(items, decided, &mut records[items.len()..]);
        passes
    }

    /// Whether a request passes, but for SHADOW_MODE, by what the decision says of its counters and bans. Its code has to say the same.
    pub(super) fn check_passes(&self, decided: &Decided, is_wrong: impl Fn(String)) -> bool {
        let Decided { is_ok, counters, bans, met, .. } = decided;
        let passes = self.passes(met, counters.iter()) && bans.is_empty();
        if *is_ok != (passes || self.scenario.modes.shadow) {
            let is = if *is_ok { "admitted" } else { "denied" };
            is_wrong(format!(
                "was {is}, with {} counters over",
                counters.iter().filter(|it| it.over).count()
            ));
        }
        passes
    }

    /// Judges what the candidates of these say. `records`: what they were asked.
    pub(super) fn judge_trials(&self, items: &[Item], decided: &Decided, records: &mut [Record]) {
        let with_candidates = items.iter().enumerate().filter(|(_, item)| self.candidate_of(item).is_some());
        for ((place, item), record) in with_candidates.zip(records) {
            let trial = decided.trials.iter().find(|trial| trial.place == place);
            self.judge_trial(decided, (place, item), trial, record);
        }
    }

    /// Whether a request passes, but for SHADOW_MODE: no counter denies it that is not in quota mode, and of those that are
    /// not all are over. With QUOTA_MODE a descriptor without a limit is one that is not over.
    fn passes<'c>(&self, met: &[Met], counters: impl Iterator<Item = &'c Counter> + Clone) -> bool {
        let mut of_rules = counters.clone().filter(|counter| !counter.by.is_quota);
        let mut in_quota_mode = counters.filter(|counter| counter.by.is_quota).peekable();
        let has_other = met.iter().any(|met| matches!(met, Met::NoLimit | Met::Replaced));
        let is_spent = in_quota_mode.peek().is_some() && in_quota_mode.all(denies);
        !of_rules.any(denies) && (!is_spent || self.scenario.modes.quota && has_other)
    }

    /// What is wrong with the limit that headers show, and with how long a client is asked to wait: the last limit that denies
    /// the request, or the first of those that have least left; and as long as all that deny it need.
    pub(super) fn check_shown(&self, decided: &Decided) -> Option<String> {
        let all = decided.counters.iter();
        if let Some(counter) = all.clone().find(|it| it.is_shown != is_due(it, &decided.counters)) {
            let (at, rule) = (counter.at, counter.rule);
            return Some(format!("shows rule {rule:?} for descriptor {at}: {}", counter.is_shown));
        }
        let denying = all.clone().filter(|counter| counter.is_shown && denies(counter));
        let last = denying.clone().rfind(|counter| !counter.by.is_quota);
        let least = || all.filter(|counter| counter.is_shown).min_by_key(|counter| counter.remaining);
        let shown = last.or_else(least).map(|counter| (counter.by.requests, counter.remaining));
        let waits = denying.map(|counter| counter.reset_nanos.div_ceil(SECOND).max(1)).max();
        let waits = waits.filter(|_| !decided.is_ok);
        ((decided.shown, decided.retry_after_secs) != (shown, waits)).then(|| {
            let (said, secs) = (decided.shown, decided.retry_after_secs);
            format!("shows {said:?} and waits {secs:?} s, though {shown:?} and {waits:?} s are due")
        })
    }

    /// What becomes of hits that are over, or not, in a request that passes, or not. `any_over`: one of its counters is over.
    pub(super) fn outcome(&self, by: Decider, over: bool, passes: bool, any_over: bool) -> Outcome {
        let is_stopped = any_over && self.scenario.modes.stop_increment_when_over;
        match over {
            false if passes && !(is_stopped && by.algorithm == Algorithm::FixedWindow) => Outcome::Admitted,
            over => Outcome::Denied { over },
        }
    }

    /// The limit that a record is about, or whose candidate it is about.
    pub(super) fn limit_of(&self, it: &Record) -> &LimitSpec {
        let limits = &self.scenario.limits;
        &limits[it.limit % limits.len()]
    }

    /// Notes what a counter was charged.
    pub(super) fn settle(&self, record: &mut Record, counter: &Counter, outcome: Outcome, is_full: bool) {
        let Decider { requests, room, window, algorithm, granularity, .. } = counter.by;
        (record.outcome, record.granularity) = (outcome, granularity);
        (record.answered, record.requests, record.window) = (self.world.now(), requests, window);
        let (own, own_room) = self.limit_of(record).under(requests, None, None);
        record.algorithm = Some(algorithm).filter(|algorithm| *algorithm != own);
        record.room = Some(room).filter(|room| *room != own_room);
        // Nor how often a fixed window has no room that counts what it denies.
        let is_over = outcome == Outcome::Denied { over: true };
        let lacks_room = is_over && algorithm == Algorithm::FixedWindow && self.may_lack_room();
        if let Some(reserving) = &mut record.reserving {
            reserving.found = counter.found;
        }
        (record.remaining, record.reset_nanos) = (counter.remaining, counter.reset_nanos);
        record.is_full = is_full || lacks_room;
    }

    /// Notes what an answer says of bans.
    fn note_bans(&self, record: &mut Record, counter: &Counter, decided: &Decided, passes: bool) {
        let own = decided.bans.iter().find(|ban| ban.at == counter.at);
        let is_first = self.scenario.limits[record.limit].further.is_none();
        // An exception that denies leaves the ban as its rule, or a record, has it.
        let may_be_shadow =
            counter.excepted == Some(Effect::Deny) && self.scenario.limits[record.limit].is_shadow;
        let is_shadow = counter.by.is_shadow || may_be_shadow;
        // A question is none of the costs that are reported.
        let is_reported = record.is_reported && record.hits > 0;
        let may_be_banned = record.bans.of.is_some() && !is_reported && !is_shadow;
        if own.is_some() && is_first && !may_be_banned && !may_be_shadow {
            let what = format!("request {} was denied by a ban that does not concern it", record.request);
            self.wrong(Kind::WrongAnswer, what);
        }
        let of_rule = decided.counters.iter().filter(|other| other.at == counter.at && !other.is_slots);
        let mut denying = of_rule.filter(|other| denies(other) && other.by.requests > 0);
        let is_banned = own.is_some_and(|ban| !ban.has_begun);
        let strikes = may_be_banned && !passes && !is_banned && record.hits > 0 && denying.next().is_some();
        record.bans = Bans {
            is_banned: decided.bans.iter().any(|ban| !ban.has_begun),
            left: own.map(|ban| ban.left).filter(|_| is_first),
            strikes,
            has_room: !self.may_lack_room(),
            is_shadow,
            ..record.bans
        };
    }

    /// The N of the candidate of an item.
    pub(super) fn candidate_of(&self, item: &Item) -> Option<u32> {
        self.scenario.limits[item.limit].candidate
    }

    /// Judges what a candidate says, which stands in for its rule's limit wherever the request asks that. It says nothing where
    /// Redis does not answer, and where an exception or a record holds.
    fn judge_trial(
        &self,
        decided: &Decided,
        (place, item): (usize, &Item),
        trial: Option<&Trial>,
        record: &mut Record,
    ) {
        let is_wrong = |what: String| {
            self.wrong(Kind::WrongAnswer, format!("request {}: the candidate {what}", record.request));
        };
        let limit = &self.scenario.limits[item.limit];
        let Some(Trial { passes: said, counter, .. }) = trial else {
            // Where Redis says what its limit does, it says this too, unless replicas lack what only the candidate charged.
            let has_answer = limit.failure == StoreFailure::Error && self.scenario.wait_replicas == 0;
            let is_due = has_answer && !limit.is_operated();
            if is_due {
                is_wrong("was not asked".to_owned());
            }
            return;
        };
        if (counter.rule, Some(counter.by.requests)) != (decided.counters[place].rule, limit.candidate) {
            is_wrong(format!("is one of {} hits", counter.by.requests));
        }
        // All candidates of the rule stand in together. Where one did not answer, nobody knows what would have become.
        let of_rule = || decided.trials.iter().filter(|other| other.counter.rule == counter.rule);
        if of_rule().count() < decided.counters.iter().filter(|other| other.rule == counter.rule).count() {
            return;
        }
        let stands_in =
            |(place, own)| of_rule().find(|other| other.place == place).map_or(own, |other| &other.counter);
        let counters = decided.counters.iter().enumerate().map(stands_in);
        // Without the denial that begins a ban there would be none.
        let is_banned = decided.bans.iter().any(|ban| !ban.has_begun);
        // With `deny` a ban without an answer denies too, and the decision does not say so.
        let refuses = |limit: &LimitSpec| limit.shape.ban.is_some() && limit.failure == StoreFailure::Deny;
        let is_refused = !said && self.scenario.limits.iter().any(refuses);
        let passes = self.passes(&decided.met, counters.clone()) && !is_banned && !is_refused;
        if *said != (passes || self.scenario.modes.shadow) {
            is_wrong(format!("would let it pass: {said}, though that is {passes}"));
        }
        let any_over = counters.into_iter().any(|counter| counter.over);
        // Nobody counts how often there is no room for candidates.
        record.bans.is_banned = is_banned;
        let outcome = self.outcome(counter.by, counter.over, passes, any_over);
        self.settle(record, counter, outcome, self.may_lack_room());
    }

    /// Whether memory may have no room for a counter.
    pub(super) fn may_lack_room(&self) -> bool {
        matches!(self.scenario.layout, Layout::Alone(alone) if alone.max_bytes < ROOMY)
    }

    /// A descriptor is decided by its own rule, and the answer says so much of its counter as can be.
    pub(super) fn check_rule(&self, record: &Record, counter: &Counter, decided: &Decided) {
        let limit = &self.scenario.limits[record.limit];
        let own = self.rule_ids[record.limit][record.key as usize];
        let is_wrong =
            |what: String| self.wrong(Kind::WrongAnswer, format!("request {} {what}", record.request));
        if counter.rule != own {
            is_wrong(format!("met rule {:?} instead of {own:?}", counter.rule));
        }
        // A bucket drains as long as its level takes, which another N may have left. Whom an exception denies waits for its end.
        let is_banned = decided.bans.iter().any(|ban| ban.at == counter.at);
        let is_of_window =
            !counter.by.algorithm.is_bucket() && counter.excepted != Some(Effect::Deny) && !is_banned;
        // Holds that may be lost count as full for their `ttl`.
        let ttl = limit.shape.reserve.map_or(0, |reserve| reserve.ttl);
        // What may be lost counts as full until a time that the clock had before a boot set it back: for so much longer.
        let lag = self.lag.load(Relaxed);
        let windows = if limit.shape.carries_debt { 2 + DEBT_WINDOWS } else { 2 };
        let counts_for = counter.by.window + counter.by.granularity.max(counter.by.window / DEFAULT_BUCKETS);
        if is_of_window && counter.reset_nanos > windows * counts_for.max(ttl).max(SECOND) + lag {
            let (reset, window) = (counter.reset_nanos / MICRO, counter.by.window / MICRO);
            is_wrong(format!("is asked to wait {reset} us, of a window of {window} us"));
        }
        let of = counter.by.room * record.share / FULL;
        if counter.remaining > of {
            is_wrong(format!("left {} hits of {of}", counter.remaining));
        }
    }
}
