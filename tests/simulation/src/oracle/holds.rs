//! Reservations: what is held counts until it ends, a cost is charged once, and nobody is denied for what has ended.
//!
//! A reservation surely holds its hits from its answer until its `ttl` after it was first asked for, or until somebody asks to end it; with
//! `expired: charge` for as long as hits of its expiry count. A commit surely charges from its answer on what it owes by what it found.
//! So whoever is admitted hits fits into N together with all of that, and with what was surely counted before, as `oracle.rs` says. And
//! whoever is denied does not fit, though everything counted that may have.
//!
//! Where a hold may be less than the worst case, `learnt.rs` says how much it is at least, and at most. So whoever is admitted hits fits
//! into N together with the least of each reservation, and into N and its overdraft together with the worst case of each. What commits
//! cost beyond that is charged, and is there for those who come later. And whoever is denied does not fit into one of the two.
//!
//! What an answer found under an id is judged too: an admitted reservation is open until its `ttl`, and who comes to one that was ended
//! finds that. What is also allowed: a server or a process without Redis may lose holds and their ends.

use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use tidegate_engine::limit::{Algorithm, Found};
use tidegate_engine::rules::StoreFailure;

use super::census::Tally;
use super::debts::unpaid;
use super::learnt::Learnt;
use super::starved::Counted;
use super::{LATE, Outcome, Record, Rules, before, given_back_alone};
use crate::scenario::{DAY_ENDS, LimitSpec, Reserve};
use crate::world::{MICRO, Time};

/// What may not happen to reservations, and did.
pub fn wrong_holds(rules: &Rules<'_>, records: &[Record]) -> Option<String> {
    counters(rules, records).into_iter().find_map(|((limit, key, ..), counter)| {
        let found = counter.lost().or_else(|| counter.too_much()).or_else(|| counter.starved());
        found.map(|found| format!("reservations of limit {limit}, key {key}: {found}"))
    })
}

/// Something that was admitted by a limit that has reservations, and says that less is left than there is.
pub fn wrongly_left_holds(rules: &Rules<'_>, records: &[Record]) -> Option<String> {
    counters(rules, records).into_iter().find_map(|((limit, key, ..), counter)| {
        counter.leaves_too_little().map(|found| format!("reservations of limit {limit}, key {key}: {found}"))
    })
}

/// What is wrong with an explanation of a limit that has reservations: it is one of plain hits, and charges none.
pub(super) fn wrong_explanation(
    rules: &Rules<'_>,
    records: &[Record],
    (explained, others): (&Record, &[Record]),
) -> Option<String> {
    let of_limit = records.iter().filter(|it| it.limit == explained.limit);
    let all: Vec<Record> = of_limit.chain(others).chain([explained]).copied().collect();
    let counter = counters(rules, &all);
    let counter = counter.get(&(explained.limit, explained.key, explained.epoch, explained.window))?;
    let is_it = |it: &Record| it.request == explained.request && it.outcome != Outcome::Unknown;
    let place = counter.own.iter().position(is_it)?;
    let (strict, counting) = counter.surely();
    let admitted = (explained.outcome == Outcome::Admitted).then_some(explained);
    let found = admitted.and_then(|it| counter.on_top(&strict, &counting, it));
    found.or_else(|| counter.denied_with_room(place..place + 1))
}

/// How many reservations had an answer, and how many of these have to be right.
pub(super) fn census_of_holds(rules: &Rules<'_>, records: &[Record]) -> Tally {
    let mut tally = Tally::default();
    for counter in counters(rules, records).into_values() {
        for it in counter.own.iter().filter(|it| it.reserving.is_some()) {
            let is_judged = match it.outcome {
                Outcome::Unknown => continue,
                Outcome::Admitted => rules.judges(counter.limit, it),
                Outcome::Denied { over: true } => counter.explains(it),
                Outcome::Denied { over: false } => true,
            };
            tally.count(1, is_judged || counter.is_commit(it));
        }
    }
    tally
}

/// What was asked of one counter and its holds.
struct Counter<'r> {
    limit: &'r LimitSpec,
    reserve: Reserve,
    rules: Rules<'r>,
    /// By the time at which it was asked.
    own: Vec<Record>,
    /// The same as hits that are charged: reservations charge none, and commits what they owe.
    charges: Vec<Record>,
    /// Those of each id, in all windows: without Redis a record with another window has the same holds.
    by_id: Rc<Ids>,
    /// What each request that reserves holds: the least and the most.
    sizes: BTreeMap<usize, [u64; 2]>,
}

/// What was asked under each id, by the time at which it was asked.
type Ids = BTreeMap<u32, Vec<Record>>;

/// Which hits of a reservation count.
#[derive(Clone, Copy)]
enum Size {
    /// Those that it holds.
    Held,
    /// Those that its call may cost.
    Worst,
}

/// The counters of these: a record with another window has one of its own. What had no answer may be of any of them.
fn counters<'r>(rules: &Rules<'r>, records: &[Record]) -> BTreeMap<(usize, u64, u64, Time), Counter<'r>> {
    let (mut counters, all_ids) = (BTreeMap::new(), ids(rules, records));
    let is_known = |it: &&Record| it.outcome != Outcome::Unknown;
    for it in records.iter().filter(is_known) {
        let limit = &rules.limits[it.limit];
        let Some(reserve) = limit.shape.reserve else { continue };
        let by_id = || all_ids.get(&(it.limit, it.key, it.epoch)).cloned().unwrap_or_default();
        let (own, charges, sizes) = Default::default();
        let new = || Counter { limit, reserve, rules: *rules, own, charges, by_id: by_id(), sizes };
        let of = (it.limit, it.key, it.epoch, it.window);
        let counter: &mut Counter<'_> = counters.entry(of).or_insert_with(new);
        counter.own.push(worst(it, &reserve));
    }
    for it in records.iter().filter(|it| !is_known(it)) {
        let first = (it.limit, it.key, it.epoch, 0);
        for (_, counter) in counters.range_mut(first..=(it.limit, it.key, it.epoch, Time::MAX)) {
            counter.own.push(worst(it, &counter.reserve));
        }
    }
    let mut learnt: BTreeMap<usize, Learnt<'_>> = BTreeMap::new();
    for (&(limit, ..), counter) in &mut counters {
        if let Some(hold) = counter.reserve.hold {
            let learnt = learnt.entry(limit).or_insert_with(|| Learnt::of(limit, records));
            let reserves = counter.own.iter().filter(|it| it.reserving.is_some_and(|it| !it.is_commit));
            counter.sizes = reserves.map(|it| (it.request, learnt.bounds(&hold, it))).collect();
        }
        counter.own.sort_by_key(|it| it.asked);
        counter.charges = counter.own.iter().map(charge).collect();
    }
    counters
}

/// What was asked under the ids of each key.
fn ids(rules: &Rules<'_>, records: &[Record]) -> BTreeMap<(usize, u64, u64), Rc<Ids>> {
    let mut all: BTreeMap<_, Ids> = BTreeMap::new();
    for it in records {
        if let (Some(reserve), Some(reserving)) = (rules.limits[it.limit].shape.reserve, it.reserving) {
            let ids = all.entry((it.limit, it.key, it.epoch)).or_default();
            ids.entry(reserving.id).or_default().push(worst(it, &reserve));
        }
    }
    all.values_mut().flat_map(Ids::values_mut).for_each(|of_id| of_id.sort_by_key(|it| it.asked));
    all.into_iter().map(|(of, ids)| (of, Rc::new(ids))).collect()
}

/// A record with the worst case of what it holds.
fn worst(it: &Record, reserve: &Reserve) -> Record {
    let holds = it.reserving.is_some_and(|reserving| !reserving.is_commit);
    let max = reserve.hold.filter(|_| holds).map_or(u64::MAX, |hold| hold.max);
    Record { hits: it.hits.min(max), ..*it }
}

/// What a record charges.
fn charge(it: &Record) -> Record {
    let Some(reserving) = it.reserving else { return *it };
    match reserving.found.filter(|_| reserving.is_commit && it.outcome != Outcome::Unknown) {
        Some(found) => {
            let paid = match found {
                Found::Ended => it.hits,
                Found::Expired(charged) => charged,
                _ => 0,
            };
            Record { hits: it.hits.saturating_sub(paid), outcome: Outcome::Admitted, ..*it }
        }
        None if reserving.is_commit => Record { outcome: Outcome::Unknown, ..*it },
        None => Record { hits: 0, ..*it },
    }
}

impl Counter<'_> {
    fn is_commit(&self, it: &Record) -> bool {
        it.reserving.is_some_and(|reserving| reserving.is_commit)
    }

    fn found(&self, it: &Record) -> Option<Found> {
        it.reserving.and_then(|reserving| reserving.found).filter(|_| it.outcome != Outcome::Unknown)
    }

    /// Until when a hold counts that expires then. In a budget that is the end of the day.
    fn counts_until(&self, it: &Record, expires: Time) -> Time {
        match (self.reserve.charges, self.limit.algorithm) {
            (false, _) => expires,
            (true, Algorithm::Calendar) => expires.max(DAY_ENDS),
            (true, _) => expires + self.limit.empties_in(it.window),
        }
    }

    fn is_lost(&self, since: Time, until: Time) -> bool {
        self.rules.losses.iter().any(|loss| loss.touches(since, until))
    }

    /// Whether this surely holds hits when it was answered.
    fn surely_holds(&self, it: &Record) -> bool {
        let is_sure = it.outcome == Outcome::Admitted && it.hits > 0 && !it.is_full;
        // A node holds nothing without Redis, and with `local` it denies then, but not in shadow mode.
        let passes = match self.limit.failure {
            StoreFailure::Allow => true,
            StoreFailure::Local => it.bans.is_shadow,
            _ => false,
        };
        let is_allowed = passes && self.rules.is_alone(self.limit, it);
        // In shadow mode what finds no room to be held passes, and nothing says so.
        let is_refused = it.bans.is_shadow && self.may_be_cold(it);
        is_sure && !self.is_commit(it) && !is_allowed && !is_refused
    }

    /// When the reservation of these records expires at the earliest.
    fn expires(&self, of_id: &[Record]) -> Time {
        let begun = of_id.iter().filter(|it| !self.is_commit(it)).map(|it| it.asked).min();
        (begun.unwrap_or(0) + self.reserve.ttl).saturating_sub(self.rules.lead + MICRO)
    }

    /// The least and the most that a reservation is about.
    fn hits(&self, it: &Record, size: Size) -> [u64; 2] {
        match size {
            Size::Held => self.sizes.get(&it.request).copied().unwrap_or([it.hits; 2]),
            Size::Worst => [it.hits; 2],
        }
    }

    /// The hits that a reservation surely holds all the time while a request is answered.
    fn held_at_least(&self, of_id: &[Record], at: &Record, size: Size) -> u64 {
        let own = of_id.iter().filter(|it| it.window == at.window);
        let mut held = own.filter(|it| self.surely_holds(it) && it.answered < at.asked);
        let Some(first) = held.next() else { return 0 };
        // Any of those that were asked for before may be the one that was made.
        let reserves = of_id.iter().filter(|it| !self.is_commit(it) && it.asked <= at.answered);
        let hits = reserves.map(|it| self.hits(it, size)[0]).min().unwrap_or(0);
        let expires = self.expires(of_id);
        if self.is_lost(of_id[0].asked, at.answered) || self.counts_until(first, expires) <= at.answered {
            return 0;
        }
        let ended = of_id.iter().filter(|it| self.is_commit(it) && it.asked <= at.answered);
        // Of an expired one the cost stays.
        let stays = |it: &Record| match self.found(it) {
            Some(Found::Expired(_)) if self.reserve.charges => it.hits,
            _ => 0,
        };
        ended.map(stays).min().map_or(hits, |cost| hits.min(cost))
    }

    /// The hits that a reservation may hold at some time while a request is answered.
    fn held_at_most(&self, of_id: &[Record], at: &Record, size: Size) -> u64 {
        let may_hold = |it: &&Record| {
            let charged = it.answered + if it.outcome == Outcome::Unknown { self.rules.timeout } else { 0 };
            let until = self.counts_until(it, charged + self.reserve.ttl) + self.rules.lag + LATE;
            // In shadow mode a limit holds none back, whether it fits or not.
            let may_count =
                || self.rules.may_count_until(self.limit, it).is_some_and(|until| until >= at.asked);
            let stays = it.bans.is_shadow || may_count();
            let is_ended = |end: &Record| {
                // A commit that finds an ended one ends nothing.
                let ends = self.found(end).is_some_and(|found| found != Found::Ended);
                let is_done = ends && end.answered <= at.asked && end.window == it.window;
                let is_after = charged <= end.asked || at.answered + LATE < end.asked + self.reserve.ttl;
                let keeps_cost = matches!(self.found(end), Some(Found::Expired(1..))) && end.hits > 0;
                let stays = self.rules.losses.iter().all(|loss| loss.until < end.asked);
                is_done && is_after && stays && !keeps_cost
            };
            let is_ended = of_id.iter().any(|end| self.is_commit(end) && is_ended(end));
            !self.is_commit(it) && it.asked <= at.answered && until >= at.asked && stays && !is_ended
        };
        // Of an expired one that was ended the cost counts, if it was no more than the worst case.
        let late = |end: &Record| match self.found(end) {
            Some(Found::Expired(charged)) => end.hits.min(charged),
            Some(_) => 0,
            None => end.hits,
        };
        let ended = of_id.iter().filter(|end| self.is_commit(end) && end.asked <= at.answered);
        let cost = ended.map(late).max().unwrap_or(0);
        of_id
            .iter()
            .filter(may_hold)
            .map(|it| self.hits(it, size)[1].max(cost.min(it.hits)))
            .max()
            .unwrap_or(0)
    }

    /// What all other reservations hold.
    fn held(&self, at: &Record, size: Size, of: impl Fn(&Self, &[Record], &Record, Size) -> u64) -> u64 {
        let own = at.reserving.map(|reserving| reserving.id);
        let others = self.by_id.iter().filter(|(id, _)| Some(**id) != own);
        others.map(|(_, of_id)| of(self, of_id, at, size)).sum()
    }

    /// Something that was admitted though no room was left by what was surely counted and held.
    fn too_much(&self) -> Option<String> {
        let (rules, counting) = self.surely();
        let admitted = || self.own.iter().filter(|it| it.outcome == Outcome::Admitted && self.is_new(it));
        let found = admitted().find_map(|it| self.on_top(&rules, &counting, it));
        // A reservation may hold one hit of what it asks for.
        let least = |it: &Record| if it.reserving.is_some() { 1 } else { it.hits };
        let charged: Vec<_> = admitted().map(|it| Record { hits: least(it), ..*it }).collect();
        found.or_else(|| unpaid(&self.rules, self.limit, charged.iter(), &counting))
    }

    /// What is surely charged, and the rules by which that is judged which was admitted.
    fn surely(&self) -> (Rules<'_>, Vec<Record>) {
        let rules = Rules { losses: self.rules.losses_of(self.limit, &self.own), ..self.rules };
        let counting = self.charges.iter().copied().filter(|it| rules.counts(self.limit, it)).collect();
        (rules, counting)
    }

    /// Whether this needs room: a reservation that is open already is answered as the first time, also if costs have gone beyond N
    /// since.
    fn is_new(&self, it: &Record) -> bool {
        !self.is_commit(it) && self.found(it) != Some(Found::Open)
    }

    /// What is wrong with something that was admitted: what was surely there leaves less room.
    fn on_top(&self, rules: &Rules<'_>, counting: &[Record], it: &Record) -> Option<String> {
        if !rules.judges(self.limit, it) {
            return None;
        }
        let window = [it.asked.saturating_sub(it.window), it.answered];
        let before = before(rules, self.limit, counting, it)?;
        let before = before.saturating_sub(given_back_alone(rules, self.limit, it, window));
        self.bounds(it).find_map(|(max, size)| {
            let held = self.held(it, size, Self::held_at_least);
            let [hits, _] = self.hits(it, size);
            let wanted = if self.limit.algorithm.is_strict() { hits.max(1) } else { hits };
            (before + held + wanted > max || before + held + hits + it.remaining > max).then(|| {
                format!(
                    "request {} was admitted {hits} hits at {} us and left {}, though {before} of {max} were there and \
                     {held} were held",
                    it.request,
                    it.answered / MICRO,
                    it.remaining
                )
            })
        })
    }

    /// The most that may be there for a request: N, with what is held; and where that is learnt, N and the overdraft, with the worst
    /// cases.
    fn bounds(&self, it: &Record) -> impl Iterator<Item = (u64, Size)> + use<> {
        let max = it.capacity(self.limit);
        let overdraft = self.reserve.hold.map(|hold| max * (1_000 + hold.overdraft) / 1_000);
        std::iter::once((max, Size::Held)).chain(overdraft.map(|max| (max, Size::Worst)))
    }

    /// Whether a denial can be explained from outside.
    fn explains(&self, it: &Record) -> bool {
        // A commit may charge the counter of another window than that of its reservation.
        let is_of_rule = it.window == it.rule_window;
        is_of_rule && self.rules.explains(self.limit, it) && !self.may_be_cold(it)
    }

    /// Whether holds may have been lost: these count as full for as long as they last, whatever the limit is.
    fn may_be_cold(&self, it: &Record) -> bool {
        let ttl = self.reserve.ttl;
        let (of_holds, lasts) = (
            Record { window: ttl, rule_window: ttl, granularity: 0, ..*it },
            LimitSpec { algorithm: Algorithm::Holds, burst: None, ..*self.limit },
        );
        self.rules.may_be_cold(&lasts, &of_holds)
    }

    /// A denial though there was room, whatever may have counted or was held.
    fn starved(&self) -> Option<String> {
        self.denied_with_room(0..self.own.len())
    }

    /// The same of the records at these places.
    fn denied_with_room(&self, mut places: Range<usize>) -> Option<String> {
        let rules = &Rules { losses: self.rules.losses_of(self.limit, &self.own), ..self.rules };
        let counting: Vec<Record> = self.charges.iter().copied().filter(Record::counts).collect();
        let counted = Counted::new(rules, self.limit, (&self.charges, &counting));
        places.find_map(|place| {
            let it = &self.own[place];
            let has_no_conflict = matches!(self.found(it), None | Some(Found::Nothing | Found::Open));
            if !it.is_over() || !has_no_conflict || self.is_commit(it) || !self.explains(it) {
                return None;
            }
            let fits = |(most, size): (u64, Size)| {
                let wanted = self.hits(it, size)[1].max(1);
                let there = counted.fewer_than((most + 1).saturating_sub(wanted), place)?;
                let held = self.held(it, size, Self::held_at_most);
                (there + held + wanted <= most).then_some((wanted, there, most, held))
            };
            // It has to be denied by one of the bounds.
            let mut fitting = self.bounds(it).map(fits);
            let (wanted, there, most, held) = fitting.next()??;
            fitting.all(|fits| fits.is_some()).then(|| {
                format!(
                    "request {} was denied {wanted} hits at {} us, though at most {there} of {most} were there and {held} \
                     were held",
                    it.request,
                    it.answered / MICRO
                )
            })
        })
    }

    /// Something that was admitted and says that less is left than N without all that may be there or was held.
    fn leaves_too_little(&self) -> Option<String> {
        // Where a hold may be less than the worst case, nobody knows which of the two bounds an answer shows.
        if self.reserve.hold.is_some() {
            return None;
        }
        let rules = &Rules { losses: self.rules.losses_of(self.limit, &self.own), ..self.rules };
        let counting: Vec<Record> = self.charges.iter().copied().filter(Record::counts).collect();
        let counted = Counted::new(rules, self.limit, (&self.charges, &counting));
        self.own.iter().enumerate().find_map(|(place, it)| {
            let has_no_conflict = matches!(self.found(it), None | Some(Found::Nothing | Found::Open));
            if it.outcome != Outcome::Admitted
                || !has_no_conflict
                || self.is_commit(it)
                || !self.explains(it)
            {
                return None;
            }
            let (most, answered) = (it.capacity(self.limit), it.answered / MICRO);
            let missing = most.saturating_sub(it.hits + it.remaining);
            let there = counted.fewer_than(missing, place)?;
            let held = self.held(it, Size::Held, Self::held_at_most);
            (there + held < missing).then(|| {
                format!(
                    "request {} left {} at {answered} us with {} hits, though at most {there} of {most} were there and {held} \
                     were held",
                    it.request, it.remaining, it.hits
                )
            })
        })
    }

    /// A reservation that was not found as it surely was.
    fn lost(&self) -> Option<String> {
        self.by_id.values().find_map(|of_id| {
            of_id.iter().find_map(|it| {
                let found = self.found(it)?;
                let is_right = it.is_full
                    || self.is_lost(of_id[0].asked, it.answered)
                    || self.may_be_found(of_id, it, found);
                (!is_right)
                    .then(|| format!("request {} found {found:?} at {} us", it.request, it.answered / MICRO))
            })
        })
    }

    /// Whether this may be found under the id of these records, where nothing is lost.
    fn may_be_found(&self, of_id: &[Record], it: &Record, found: Found) -> bool {
        let ttl = self.reserve.ttl;
        let is_remembered = |end: &&Record| {
            let is_first = !matches!(self.found(end), None | Some(Found::Ended));
            self.is_commit(end) && is_first && it.answered + self.rules.lead + MICRO < end.asked + ttl
        };
        let is_own = |other: &&Record| other.window == it.window;
        if of_id.iter().filter(is_own).any(|end| end.answered < it.asked && is_remembered(&end)) {
            return found == Found::Ended;
        }
        let may_be_ended = of_id
            .iter()
            .any(|end| self.is_commit(end) && end.asked <= it.answered && end.request != it.request);
        let held = of_id.iter().filter(is_own);
        let held = held.filter(|other| self.surely_holds(other) && other.answered < it.asked);
        let is_there = !may_be_ended && held.count() > 0;
        if is_there && self.expires(of_id) > it.answered {
            return matches!(found, Found::Open | Found::Other);
        }
        // Its id is known for one `ttl` more.
        let is_known = is_there && self.expires(of_id) + ttl > it.answered;
        let reserves = || of_id.iter().filter(|other| !self.is_commit(other) && other.asked <= it.answered);
        let lasts = |other: &Record| other.answered + self.rules.timeout + ttl + self.rules.lag + LATE;
        match found {
            Found::Open | Found::Other => reserves().any(|other| lasts(other) >= it.asked),
            Found::Expired(charged) if self.reserve.charges => reserves().any(|other| other.hits == charged),
            Found::Expired(charged) => charged == 0 && reserves().count() > 0,
            Found::Ended => may_be_ended,
            Found::Nothing => !is_known,
            Found::Full => false,
        }
    }
}

/// The most that a bucket holds: a reported cost fills it no further.
pub(super) fn level_max(limit: &LimitSpec) -> f64 {
    match limit.algorithm {
        Algorithm::TokenBucket | Algorithm::LeakyBucket if limit.shape.reserve.is_some() => {
            let requests = f64::from(limit.requests[0]);
            limit.room(limit.requests[0]) as f64 + 16.0 * requests
        }
        _ => f64::MAX,
    }
}
