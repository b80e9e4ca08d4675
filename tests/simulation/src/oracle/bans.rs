//! Bans: whom a limit denied often enough is denied for as long as it was said, and nobody else is.
//!
//! An answer that a key is banned says when the ban ends, so answers with the same end are about one ban. It began its length before
//! that. So each ban has its cause: at that moment, as many denials may have counted as begin one, and the ban before had ended. Of bans in
//! a row each is twice as long as the one before, up to the longest. And nobody is admitted before the end, at any node; nor after as many
//! denials as surely counted, for the time of a first ban.
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
//! - Clocks of servers that step, or are others after a failover, move the end of a ban, and denials apart, by as much.

use std::collections::BTreeMap;

use super::{LATE, Loss, Outcome, Record, Rules, SENT};
use crate::scenario::{Ban, LimitSpec};
use crate::world::{MICRO, Time};

/// What may not happen about bans, and did.
pub fn wrong_bans(rules: &Rules<'_>, records: &[Record]) -> Option<String> {
    counters(rules, records).into_iter().find_map(|((limit, ..), counter)| {
        let found = counter.seen().1.or_else(|| counter.admitted());
        found.map(|found| format!("ban of limit {limit}: {found}"))
    })
}

/// How many answers said that a key is banned, and of how many the cause has to be seen.
pub(super) fn census_of_bans(rules: &Rules<'_>, records: &[Record]) -> [u64; 2] {
    let (mut answered, mut judged) = (0, 0);
    for counter in counters(rules, records).into_values() {
        for seen in counter.seen().0 {
            (answered, judged) =
                (answered + seen.answers, judged + if seen.is_judged { seen.answers } else { 0 });
        }
    }
    [answered, judged]
}

/// What was asked of one ban, by the time at which it was asked.
struct Counter<'r> {
    limit: &'r LimitSpec,
    ban: Ban,
    rules: &'r Rules<'r>,
    own: Vec<&'r Record>,
}

/// A ban, as answers say. Times are from the earliest to the latest.
#[derive(Clone, Copy)]
struct Seen {
    ends: [Time; 2],
    /// When it was first asked for.
    asked: Time,
    /// So many answers said it.
    answers: u64,
    /// How many bans in a row there may have been before.
    levels: [u32; 2],
    is_judged: bool,
}

/// A ban that is surely there.
struct Sure {
    /// From the first question to the last answer by which it is known.
    known: [Time; 2],
    from: Time,
    until: Time,
}

fn counters<'r>(rules: &'r Rules<'r>, records: &'r [Record]) -> BTreeMap<(usize, u64, u64), Counter<'r>> {
    let mut counters = BTreeMap::new();
    for it in records {
        let limit = &rules.limits[it.limit];
        let (Some(of), Some(ban)) = (it.bans.of, limit.shape.ban) else { continue };
        let new = || Counter { limit, ban, rules, own: Vec::new() };
        counters.entry((it.limit, of, it.epoch)).or_insert_with(new).own.push(it);
    }
    counters.values_mut().for_each(|counter| counter.own.sort_by_key(|it| it.asked));
    counters
}

impl Counter<'_> {
    /// By how much an end may be another than an answer said.
    fn slack(&self) -> Time {
        LATE + self.rules.lag + self.rules.lead
    }

    /// Whether what was there at this time may be lost when another question is answered. What was written before a loss begins
    /// is still there.
    fn may_be_lost(&self, [asked, answered]: [Time; 2], until: Time) -> bool {
        let since = asked.saturating_sub(self.rules.reports_within);
        let is_lost = |loss: &Loss| loss.since <= answered + LATE && loss.until >= since;
        self.rules.losses.iter().any(|loss| is_lost(loss) && loss.since <= until)
    }

    /// When a ban ends that this answer says.
    fn ends(&self, it: &Record, left: Time) -> [Time; 2] {
        // What a node remembers was decided a little later than it asked.
        let called = if self.rules.remembers_denials { self.rules.timeout } else { 0 };
        [it.asked + left, it.answered + left + called]
    }

    /// The bans that answers say, by the time at which they were first asked for; and what is wrong with one.
    fn seen(&self) -> (Vec<Seen>, Option<String>) {
        let (mut all, slack): (Vec<Seen>, Time) = (Vec::new(), self.slack());
        for it in &self.own {
            let Some(left) = it.bans.left else { continue };
            let ends = self.ends(it, left);
            let is_same =
                |seen: &&mut Seen| seen.ends[0] <= ends[1] + slack && ends[0] <= seen.ends[1] + slack;
            if let Some(seen) = all.iter_mut().rev().find(is_same) {
                seen.answers += 1;
                continue;
            }
            let seen = Seen { ends, asked: it.asked, answers: 1, levels: [0; 2], is_judged: true };
            let Some(seen) = self.explained(&seen, it, &all) else {
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

    /// A ban with the levels that it may have, after those that were seen before. `None`: it has none.
    fn explained(&self, seen: &Seen, it: &Record, all: &[Seen]) -> Option<Seen> {
        let (slack, rules) = (self.slack(), self.rules);
        let before =
            all.iter().filter(|other| other.ends[0] < seen.ends[0]).max_by_key(|other| other.ends[0]);
        let stays = |before: &&Seen| !self.may_be_lost([before.asked, it.answered], it.answered);
        let last = before.filter(stays);
        // A denial during a ban may come to Redis after it.
        let fails = last.is_some_and(|last| rules.troubles.touch(last.asked, it.answered));
        let ended = last.map_or(0, |last| last.ends[0]);
        let struck = if fails { 0 } else { ended.saturating_sub(slack + rules.reports_within) };
        let (mut levels, mut is_judged) = (None, false);
        for level in 0..=self.ban.last_level() {
            let lasts = self.ban.lasts(level);
            let begins =
                [seen.ends[0].saturating_sub(lasts + slack), (seen.ends[1] + slack).saturating_sub(lasts)];
            let since = struck.max(begins[0].saturating_sub(self.ban.within));
            let (strikes, may_repeat) = self.strikes_at_most([since, begins[1]], self.ban.every);
            let has_cause = strikes >= self.ban.after;
            let is_free = begins[1] >= ended && begins[0] <= it.answered;
            let (least, most) = self.levels_after(before, last.is_some(), begins);
            if (has_cause || may_repeat) && is_free && level >= least && most.is_none_or(|most| level <= most)
            {
                is_judged |= has_cause;
                levels = Some([levels.map_or(level, |[first, _]: [u32; 2]| first), level]);
            }
        }
        Some(Seen { levels: levels?, is_judged, ..*seen })
    }

    /// How many bans in a row there were before one that began then: at least, and at most. `stays`: the one before was not lost.
    fn levels_after(&self, before: Option<&Seen>, stays: bool, begins: [Time; 2]) -> (u32, Option<u32>) {
        let (slack, ban) = (self.slack(), &self.ban);
        let from =
            before.map_or(0, |before| before.ends[0].saturating_sub(slack + self.rules.reports_within));
        // Nobody may have asked during a ban. Each had its denials too.
        let (strikes, may_repeat) = self.strikes_at_most([from, begins[1]], 0);
        let not_seen = (!may_repeat).then(|| (strikes / ban.after).saturating_sub(1) as u32);
        let Some(before) = before else { return (0, not_seen) };
        let is_kept = stays && begins[1] + slack < before.ends[0] + ban.longest;
        let is_forgotten = begins[0] > before.ends[1] + ban.longest + slack && not_seen == Some(0);
        let least = if is_kept { (before.levels[0] + 1).min(ban.last_level()) } else { 0 };
        let most = not_seen.map(|not_seen| if is_forgotten { 0 } else { before.levels[1] + 1 + not_seen });
        (least, most)
    }

    /// How many denials may have counted between these times, if each counts that comes so long after another; and whether a node
    /// may have reported some of them more than once.
    fn strikes_at_most(&self, [since, until]: [Time; 2], every: Time) -> (u64, bool) {
        let (rules, mut strikes, mut last) = (self.rules, 0, None::<Time>);
        let (each_counts, mut may_repeat) = (rules.reports_within > 0 && self.ban.every == 0, false);
        // Until when each node may report denials.
        let mut reports = BTreeMap::new();
        for it in self.own.iter().take_while(|it| it.asked <= until) {
            // It counts when it is reported, by what the node knows of that.
            let latest = it.answered + if rules.reports_within > 0 { rules.timeout } else { 0 };
            if latest < since {
                continue;
            }
            let is_unknown = it.outcome == Outcome::Unknown;
            // A call without an answer may have reported them.
            let has_no_answer = is_unknown || rules.is_alone(self.limit, it);
            let is_lost = has_no_answer && reports.get(&it.node).is_some_and(|until| *until >= it.asked);
            let may_strike = it.bans.strikes || is_unknown && it.hits > 0;
            let fails = may_strike && rules.troubles.of(it.node, it.asked, it.answered + SENT).is_some();
            may_repeat |= each_counts && (is_lost || fails);
            if may_strike {
                reports.insert(it.node, it.answered + rules.reports_within);
                let apart = every.saturating_sub(rules.lag + rules.lead);
                let at = it.asked.max(since).max(last.map_or(0, |last| last + apart));
                if at <= latest.min(until) {
                    (strikes, last) = (strikes + 1, Some(at));
                }
            }
        }
        (strikes, may_repeat)
    }

    /// A request that was admitted though its key was surely banned.
    fn admitted(&self) -> Option<String> {
        let sure: Vec<Sure> = self.said().chain(self.begun()).collect();
        let is_admitted = |it: &&&Record| {
            let is_asked = it.outcome == Outcome::Admitted && !it.bans.is_shadow && !self.limit.is_reported;
            is_asked && !self.rules.is_alone(self.limit, it)
        };
        self.own.iter().filter(is_admitted).find_map(|it| {
            let denies = |ban: &&Sure| {
                let is_in = it.asked > ban.from && it.answered < ban.until;
                is_in && !self.may_be_lost(ban.known, it.answered)
            };
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

    /// The bans that answers say.
    fn said(&self) -> impl Iterator<Item = Sure> {
        self.own.iter().filter_map(|it| {
            let until = (it.asked + it.bans.left?).saturating_sub(self.slack());
            Some(Sure { known: [it.asked, it.answered], from: it.answered, until })
        })
    }

    /// The bans that begin with as many denials as surely counted: each of these, or one before it within `every`.
    fn begun(&self) -> impl Iterator<Item = Sure> {
        let (ban, reported) = (&self.ban, self.rules.reports_within);
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
            is_sure.then_some(Sure { known, from, until })
        });
        begun.collect::<Vec<_>>().into_iter()
    }

    /// Whether denials from this time on are surely during no ban that began before: a node that remembers a denial asks for no ban.
    fn begins_in_none(&self, at: Time) -> bool {
        let since = at.saturating_sub(self.ban.longest + self.ban.within + self.slack());
        let (strikes, may_repeat) = self.strikes_at_most([since, at], 0);
        !self.rules.remembers_denials || strikes < self.ban.after && !may_repeat
    }

    /// Whether a denial surely counts, unless another one does that came within `every` before it.
    fn surely_strikes(&self, it: &Record) -> bool {
        let (rules, limit) = (self.rules, self.limit);
        let fails = rules.troubles.of(it.node, it.asked, it.answered + SENT).is_some();
        let is_far = it.asked < rules.troubles.far_until(it.node);
        let is_usual = it.bans.strikes && it.bans.has_room && !it.is_full;
        is_usual && !fails && !is_far && !rules.is_alone(limit, it) && !rules.may_be_cold(limit, it)
    }
}
