//! Bans: whom a limit denied often enough is denied for as long as it was said, and nobody else is.
//!
//! An answer that a key is banned says when the ban ends, so answers with the same end are about one ban. It began its length before
//! that. So each ban has its cause: at that moment, as many denials may have counted as begin one, and the ban before had ended. Of bans in
//! a row each is twice as long as the one before, up to the longest. And nobody is admitted before the end, at any node; nor after as many
//! denials as surely counted, for the time of a first ban.
//!
//! An operator's ban replaces whatever was there: it has its own length, and is none of those in a row. After a lift no denial from before it
//! counts, and no ban from before it denies.
//!
//! That a banned request charges nothing is judged where its limit is: as a request that was denied by another counter.
//!
//! What is allowed nevertheless:
//! - A node reports its denials within a second, and later while it has no answer from Redis. It may report one more than once then: where
//!   each counts, nobody knows how many they were.
//! - A node remembers a ban for a second, as it was when it asked.
//! - What a server or a process without Redis loses may be a ban, denials, or that there were bans before.
//! - A node that decides alone asks for no ban, unless its rule says to deny then.
//! - A denial may find no room in memory, and a denial by a cold counter does not count.
//! - What an operator did without an answer may have happened, or not.
//! - Clocks of servers that step, or are others after a failover, move the end of a ban, and denials apart, by as much.

use std::collections::BTreeMap;

use super::census::Tally;
use super::{BanChange, LATE, Outcome, Record, Rules, SENT};
use crate::scenario::{Ban, LimitSpec};
use crate::world::{MICRO, SECOND, Time};

/// What may not happen about bans, and did.
pub fn wrong_bans(rules: &Rules<'_>, records: &[Record]) -> Option<String> {
    let unanswered = rules.ban_changes.iter().find(|it| {
        let has_failed = !it.is_known && it.done > 0 && it.done < Time::MAX;
        let may_fail = rules.troubles.of(it.node, it.asked, it.done).is_some();
        has_failed && !may_fail && it.asked >= rules.troubles.far_until(it.node)
    });
    if let Some(it) = unanswered {
        return Some(format!("{it:?} has failed, though nothing else did"));
    }
    counters(rules, records).into_iter().find_map(|((limit, ..), counter)| {
        let found = counter.seen().1.or_else(|| {
            let sure = counter.sure();
            counter.admitted(&sure).or_else(|| counter.lifted(&sure))
        });
        found.map(|found| format!("ban of limit {limit}: {found}"))
    })
}

/// How many answers said that a key is banned, and of how many the cause has to be seen.
pub(super) fn census_of_bans(rules: &Rules<'_>, records: &[Record]) -> Tally {
    let mut tally = Tally::default();
    for counter in counters(rules, records).into_values() {
        for seen in counter.seen().0 {
            tally.count(seen.answers, seen.is_judged);
        }
    }
    tally
}

/// What was asked of one ban, by the time at which it was asked.
struct Counter<'r> {
    limit: &'r LimitSpec,
    ban: Ban,
    rules: &'r Rules<'r>,
    own: Vec<&'r Record>,
    /// What operators did.
    changes: Vec<&'r BanChange>,
}

/// A ban, as answers say. Times are from the earliest to the latest.
#[derive(Clone, Copy)]
struct Seen {
    ends: [Time; 2],
    /// When it was first asked for, and answered.
    known: [Time; 2],
    /// So many answers said it.
    answers: u64,
    /// How many bans in a row there may be with it. An operator's is none of them.
    in_row: [u32; 2],
    is_judged: bool,
}

/// A ban that is surely there.
struct Sure<'r> {
    /// The operator's change that began it.
    by: Option<&'r BanChange>,
    /// When it was learned of at the earliest.
    learned: Time,
    /// From the first question to the last answer by which it is known.
    known: [Time; 2],
    from: Time,
    until: Time,
}

fn counters<'r>(rules: &'r Rules<'r>, records: &'r [Record]) -> BTreeMap<(usize, u64, u64), Counter<'r>> {
    let mut counters = BTreeMap::new();
    let new = |limit: usize| {
        let limit = &rules.limits[limit];
        Some(Counter { limit, ban: limit.shape.ban?, rules, own: Vec::new(), changes: Vec::new() })
    };
    for it in records {
        let Some((of, counter)) = it.bans.of.zip(new(it.limit)) else { continue };
        counters.entry((it.limit, of, it.epoch)).or_insert(counter).own.push(it);
    }
    for it in rules.ban_changes.iter().filter(|it| it.done >= it.asked) {
        let counter = counters.get_mut(&(it.limit, it.of, it.epoch));
        counter.into_iter().for_each(|counter| counter.changes.push(it));
    }
    counters.values_mut().for_each(|counter| counter.own.sort_by_key(|it| it.asked));
    counters
}

impl<'r> Counter<'r> {
    /// Denials count after so long at the latest: nodes report them to Redis.
    fn reports_within(&self) -> Time {
        if self.rules.has_redis { SECOND } else { 0 }
    }

    /// By how much an end may be another than an answer said.
    fn slack(&self) -> Time {
        LATE + self.rules.lag + self.rules.lead
    }

    /// Denials that count are so far apart at least, by clocks of servers that may step between them.
    fn every(&self) -> Time {
        self.ban.every.saturating_sub(self.rules.lag + self.rules.lead)
    }

    /// Whether what was there at this time may be lost when another question is answered. What was written before a loss begins
    /// is still there.
    fn may_be_lost(&self, [asked, answered]: [Time; 2], until: Time) -> bool {
        let since = asked.saturating_sub(self.reports_within());
        let mut losses = self.rules.losses.iter();
        losses.any(|loss| loss.touches(since, answered + LATE) && loss.since <= until)
    }

    /// When a ban ends that this answer says.
    fn ends(&self, it: &Record, left: Time) -> [Time; 2] {
        // What a node remembers was decided a little later than it asked.
        let called = if self.rules.remembers_denials { self.rules.timeout } else { 0 };
        [it.asked + left, it.answered + left + called]
    }

    /// When a node that answers at this time may have learned of the ban.
    fn learned(&self, at: Time) -> Time {
        at.saturating_sub(if self.rules.remembers_denials { SECOND } else { 0 })
    }

    /// Whether an operator may have changed something between these times, but for these changes.
    fn may_be_changed(&self, [from, until]: [Time; 2], but: [Option<&BanChange>; 2]) -> bool {
        let is_other = |it: &BanChange| but.into_iter().flatten().all(|but| !std::ptr::eq(but, it));
        self.changes.iter().any(|it| it.asked <= until && it.done >= from && is_other(it))
    }

    /// The last change before an answer of which this surely knows, so that nothing from before it is there.
    fn changed_before(&self, it: &Record) -> Option<&'r BanChange> {
        let is_known = |change: &&&BanChange| {
            let is_before = change.is_known && change.done < self.learned(it.asked);
            is_before && !self.may_be_lost([change.asked, change.done], it.answered)
        };
        self.changes.iter().filter(is_known).max_by_key(|change| change.asked).copied()
    }

    /// The bans that answers say, by the time at which they were first asked for; and what is wrong with one.
    fn seen(&self) -> (Vec<Seen>, Option<String>) {
        let (mut all, slack): (Vec<Seen>, Time) = (Vec::new(), self.slack());
        for it in &self.own {
            let Some(left) = it.bans.left else { continue };
            let ends = self.ends(it, left);
            let changed = self.changed_before(it);
            let is_same = |seen: &&mut Seen| {
                let stays = changed.is_none_or(|changed| changed.asked <= self.learned(seen.known[0]));
                stays && seen.ends[0] <= ends[1] + slack && ends[0] <= seen.ends[1] + slack
            };
            if let Some(seen) = all.iter_mut().rev().find(is_same) {
                seen.answers += 1;
                continue;
            }
            let seen =
                Seen { ends, known: [it.asked, it.answered], answers: 1, in_row: [0; 2], is_judged: true };
            let own = self.explained(&seen, it, &all, changed);
            let Some(seen) = self.operated(&seen, changed, own) else {
                let (answered, left, after) = (it.answered / MICRO, left / MICRO, self.ban.after);
                let what = format!(
                    "request {} was denied at {answered} us for {left} us, though there were no {after} denials that begin \
                     such a ban",
                    it.request
                );
                return (all, Some(what));
            };
            all.push(seen);
        }
        (all, None)
    }

    /// A ban that an operator may have begun, or that has the cause of its `own`. `changed`: what an operator has surely done before.
    fn operated(&self, seen: &Seen, changed: Option<&BanChange>, own: Option<Seen>) -> Option<Seen> {
        let slack = self.slack();
        let begins = |it: &&&BanChange| {
            let Some(lasts) = it.lasts else { return false };
            let is_over = changed.is_some_and(|changed| it.done < changed.asked);
            let ends = [(it.asked + lasts).saturating_sub(slack), it.done.saturating_add(lasts + slack)];
            !is_over && it.asked <= seen.known[1] && ends[0] <= seen.ends[1] && seen.ends[0] <= ends[1]
        };
        let Some(by) = self.changes.iter().find(begins) else { return own };
        let most = own.map_or(0, |own| own.in_row[1]);
        let is_judged = by.is_known || own.is_some_and(|own| own.is_judged);
        Some(Seen { in_row: [0, most], is_judged, ..*seen })
    }

    /// A ban that denials began, with how many in a row it may be, after those that were seen before. `None`: they did not.
    /// `changed`: what an operator has surely done before.
    fn explained(&self, seen: &Seen, it: &Record, all: &[Seen], changed: Option<&BanChange>) -> Option<Seen> {
        let (slack, rules) = (self.slack(), self.rules);
        let is_there =
            |other: &&Seen| changed.is_none_or(|changed| changed.asked <= self.learned(other.known[0]));
        let earlier = all.iter().filter(is_there).filter(|other| other.ends[0] < seen.ends[0]);
        let before = earlier.clone().max_by_key(|other| other.ends[0]);
        let stays = |before: &&Seen| {
            let is_changed = self.may_be_changed([self.learned(before.known[0]), it.answered], [None; 2]);
            // Who asked before may have been answered later, about a ban that followed.
            let is_before = before.known[1] <= it.asked;
            is_before && !is_changed && !self.may_be_lost([before.known[0], it.answered], it.answered)
        };
        let last = before.filter(stays);
        // Where the last one is lost, those before it may be there.
        let all_in_row = || earlier.clone().map(|other| other.in_row[1]).max().unwrap_or(0);
        let in_row_before = last.map_or_else(all_in_row, |last| last.in_row[1]);
        let (free_from, reported_from) = self.changed_to(changed, it);
        let ended = last.map_or(0, |last| last.ends[0]).max(free_from);
        // A denial during a ban may come to Redis after it.
        let fails = last.is_some_and(|last| rules.troubles.touch(last.known[0], it.answered));
        let ended_surely = if fails { 0 } else { last.map_or(0, |last| last.ends[0]) };
        let struck = ended_surely.saturating_sub(slack + self.reports_within()).max(reported_from);
        let (mut in_row, mut is_judged) = (None, false);
        for level in 0..=self.ban.last_level() {
            let lasts = self.ban.lasts(level);
            let begins =
                [seen.ends[0].saturating_sub(lasts + slack), (seen.ends[1] + slack).saturating_sub(lasts)];
            let since = struck.max(begins[0].saturating_sub(self.ban.within));
            let (strikes, may_repeat) = self.strikes_at_most([since, begins[1]], self.every());
            let has_cause = strikes >= self.ban.after;
            let is_free = begins[1] >= ended && begins[0] <= it.answered;
            let (least, most) =
                self.levels_after(before, last.is_some(), in_row_before, (begins, reported_from));
            if (has_cause || may_repeat) && is_free && level >= least && most.is_none_or(|most| level <= most)
            {
                is_judged |= has_cause;
                in_row = Some([in_row.map_or(level + 1, |[first, _]: [u32; 2]| first), level + 1]);
            }
        }
        Some(Seen { in_row: in_row?, is_judged, ..*seen })
    }

    /// After what an operator has surely done before: from when a ban may begin, and which denials may count.
    fn changed_to(&self, changed: Option<&BanChange>, it: &Record) -> (Time, Time) {
        let Some(changed) = changed else { return (0, 0) };
        let of_no_ban = changed.lasts.is_none() && changed.was_banned != Some(true);
        // Where no ban was lifted, nobody knows which denials are reported later.
        let reported = self.slack() + if of_no_ban { self.reports_within() } else { 0 };
        // Another one may have lifted the ban.
        let stays = !self.may_be_changed([changed.asked, it.answered], [Some(changed), None]);
        let free_from = changed.asked + changed.lasts.filter(|_| stays).unwrap_or(0);
        let fails = self.rules.troubles.touch(changed.asked.saturating_sub(reported), it.answered);
        (free_from, if fails { 0 } else { free_from.saturating_sub(reported) })
    }

    /// How many bans in a row there were before one that began then: at least, and at most. `stays`: the one before was neither lost nor
    /// changed. `in_row`: so many may be there of those that were seen. `since`: only denials from then on count, because of an operator.
    fn levels_after(
        &self,
        before: Option<&Seen>,
        stays: bool,
        in_row: u32,
        (begins, since): ([Time; 2], Time),
    ) -> (u32, Option<u32>) {
        let (slack, ban) = (self.slack(), &self.ban);
        let ended = |before: &Seen| if stays { before.ends[0] } else { before.ends[0].min(before.known[0]) };
        let from = before.map_or(0, |before| ended(before).saturating_sub(slack + self.reports_within()));
        // Nobody may have asked during a ban. Each had its denials too.
        let (strikes, may_repeat) = self.strikes_at_most([from.max(since), begins[1]], 0);
        let not_seen = (!may_repeat).then(|| (strikes / ban.after).saturating_sub(1) as u32);
        let Some(before) = before else { return (0, not_seen) };
        let is_kept = stays && begins[1] + slack < before.ends[0] + ban.longest;
        let is_forgotten = begins[0] > before.ends[1] + ban.longest + slack && not_seen == Some(0);
        let least = if is_kept { before.in_row[0].min(ban.last_level()) } else { 0 };
        let most = not_seen.map(|not_seen| if is_forgotten { 0 } else { in_row + not_seen });
        (least, most)
    }

    /// How many denials may have counted between these times, if each counts that comes so long after another; and whether a node
    /// may have reported some of them more than once.
    fn strikes_at_most(&self, [since, until]: [Time; 2], every: Time) -> (u64, bool) {
        let (rules, mut strikes, mut last) = (self.rules, 0, None::<Time>);
        let (each_counts, mut may_repeat) = (self.rules.has_redis && self.ban.every == 0, false);
        // Until when each node may report denials.
        let mut reports = BTreeMap::new();
        for it in self.own.iter().take_while(|it| it.asked <= until) {
            // It counts when it is reported, by what the node knows of that.
            let latest = it.answered + if rules.has_redis { rules.timeout } else { 0 };
            if latest < since {
                continue;
            }
            let is_unknown = it.outcome == Outcome::Unknown;
            // A call without an answer may have reported them.
            let has_no_answer = is_unknown || rules.is_alone(self.limit, it);
            let is_lost = has_no_answer && reports.get(&it.node).is_some_and(|until| *until >= it.asked);
            let may_strike = it.bans.strikes || is_unknown && it.hits > 0;
            let fails = may_strike && self.may_have_no_answer(it);
            may_repeat |= each_counts && (is_lost || fails);
            if may_strike {
                reports.insert(it.node, it.answered + self.reports_within());
                let at = it.asked.max(since).max(last.map_or(0, |last| last + every));
                if at <= latest.min(until) {
                    (strikes, last) = (strikes + 1, Some(at));
                }
            }
        }
        (strikes, may_repeat)
    }

    /// A request that was admitted though its key was surely banned.
    fn admitted(&self, sure: &[Sure<'_>]) -> Option<String> {
        let is_admitted = |it: &&&Record| {
            let is_cost = self.limit.is_reported && it.hits > 0;
            let is_asked = it.outcome == Outcome::Admitted && !it.bans.is_shadow && !is_cost;
            is_asked && !self.rules.is_alone(self.limit, it)
        };
        self.own.iter().filter(is_admitted).find_map(|it| {
            let denies = |ban: &&Sure<'_>| self.is_there(ban, [it.asked, it.answered], None);
            let Sure { from, until, .. } = sure.iter().find(denies)?;
            Some(format!(
                "request {} was admitted at {} us, though its key was banned from {} us to {} us",
                it.request,
                it.answered / MICRO,
                from / MICRO,
                until / MICRO
            ))
        })
    }

    /// A lift whose answer is that there was no ban, though there surely was one, or the opposite.
    fn lifted(&self, sure: &[Sure<'_>]) -> Option<String> {
        let is_wrong = |it: &&&BanChange| {
            let during = [it.asked, it.done];
            let is_sure = || sure.iter().any(|ban| self.is_there(ban, during, Some(it)));
            let lasts =
                |other: &BanChange| other.done.saturating_add(other.lasts.unwrap_or(0) + self.slack());
            let may_last = |other: &&&BanChange| other.asked <= it.done && lasts(other) >= it.asked;
            let may_be_banned = || {
                let since = it.asked.saturating_sub(self.ban.longest + self.ban.within + self.slack());
                let (strikes, may_repeat) = self.strikes_at_most([since, it.done], self.every());
                let operated = self.changes.iter().filter(may_last).any(|other| other.lasts.is_some());
                strikes >= self.ban.after || may_repeat || operated
            };
            it.was_banned.is_some_and(|was_banned| if was_banned { !may_be_banned() } else { is_sure() })
        };
        let it = self.changes.iter().find(is_wrong)?;
        Some(format!("a lift was answered at {} us: banned {:?}", it.done / MICRO, it.was_banned))
    }

    /// All bans that are surely there.
    fn sure(&self) -> Vec<Sure<'r>> {
        let known = self.changes.iter().filter(|it| it.is_known);
        let operated = known.filter_map(|it| {
            let until = (it.asked + it.lasts?).saturating_sub(self.slack());
            Some(Sure { by: Some(it), learned: it.asked, known: [it.asked, it.done], from: it.done, until })
        });
        self.said().chain(self.begun()).chain(operated).collect()
    }

    /// Whether a ban is surely there all the time, but for this change.
    fn is_there(&self, ban: &Sure<'_>, [asked, answered]: [Time; 2], but: Option<&BanChange>) -> bool {
        let is_in = asked > ban.from && answered < ban.until;
        is_in
            && !self.may_be_changed([ban.learned, answered], [but, ban.by])
            && !self.may_be_lost(ban.known, answered)
    }

    /// The bans that answers say.
    fn said(&self) -> impl Iterator<Item = Sure<'r>> {
        self.own.iter().filter_map(|it| {
            let until = (it.asked + it.bans.left?).saturating_sub(self.slack());
            let learned = self.learned(it.asked);
            Some(Sure { by: None, learned, known: [it.asked, it.answered], from: it.answered, until })
        })
    }

    /// The bans that begin with as many denials as surely counted: each of these, or one before it within `every`.
    fn begun(&self) -> impl Iterator<Item = Sure<'r>> {
        let (ban, reported) = (&self.ban, self.reports_within());
        let mut sure: Vec<&Record> = Vec::new();
        for it in self.own.iter().filter(|it| self.surely_strikes(it)) {
            let steps = self.rules.lag + self.rules.lead;
            let apart = if ban.every > 0 { ban.every + reported + steps } else { 0 };
            if sure.last().is_none_or(|last| it.asked > last.answered + apart) {
                sure.push(it);
            }
        }
        let all = sure.windows(ban.after as usize).map(|strikes| (strikes[0], strikes[strikes.len() - 1]));
        let begun = all.filter_map(|(first, last)| {
            let (earliest, from) = (first.asked.saturating_sub(ban.every), last.answered + reported);
            let until = (earliest + ban.first).saturating_sub(self.slack());
            let counts = from + self.slack() < earliest + ban.within;
            let known = [first.asked, last.answered + reported];
            let is_sure = counts && from < until && self.begins_in_none(earliest);
            is_sure.then_some(Sure { by: None, learned: first.asked, known, from, until })
        });
        begun.collect::<Vec<_>>().into_iter()
    }

    /// Whether denials from this time on are surely during no ban that began before: a node that remembers a denial asks for no ban.
    fn begins_in_none(&self, at: Time) -> bool {
        let since = at.saturating_sub(self.ban.longest + self.ban.within + self.slack());
        let (strikes, may_repeat) = self.strikes_at_most([since, at], 0);
        let ends = |it: &BanChange| it.lasts.map_or(0, |lasts| it.done.saturating_add(lasts + self.slack()));
        if self.changes.iter().any(|it| it.asked <= at && ends(it) >= at) {
            return false;
        }
        !self.rules.remembers_denials || strikes < self.ban.after && !may_repeat
    }

    /// Whether a denial surely counts, unless another one does that came within `every` before it.
    fn surely_strikes(&self, it: &Record) -> bool {
        let (rules, limit) = (self.rules, self.limit);
        let is_usual = it.bans.strikes && it.bans.has_room && !it.is_full;
        is_usual
            && !self.may_have_no_answer(it)
            && !rules.is_alone(limit, it)
            && !rules.may_be_cold(limit, it)
    }

    /// Whether a call that reports a denial may have no answer in time.
    fn may_have_no_answer(&self, it: &Record) -> bool {
        let troubles = self.rules.troubles;
        let is_far = it.asked < troubles.far_until(it.node);
        is_far || troubles.of(it.node, it.asked, it.answered + SENT).is_some()
    }
}
