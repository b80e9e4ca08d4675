//! Calls in flight: never more at once than there are slots, and a slot for whoever asks while there is one.
//!
//! A call surely holds its slot from its answer until its token is released, or until its `ttl` after it was asked for: whatever else
//! was sent frees nothing. It may hold it from when it asks until that release was acknowledged, or until its `ttl` after its answer.
//! So of the calls that surely hold a slot at one moment the last one fitted into its own N together with all others, and no other of
//! the same id was admitted meanwhile. A denial has its cause: as many others may hold a slot, or one of its own id does.
//!
//! A renewal is judged as a call of the same slot: both together hold one. It needs no room while its slot is surely held.
//!
//! What is allowed nevertheless: what a server or a process without Redis loses frees slots, or takes back releases; what `allow`
//! admits while Redis does not answer has no slot, or takes one after its answer, and after its release perhaps; and a call without an
//! answer may hold one. Where what was lost counts as full, it
//! does so for the `ttl` in force, not for a longer one of before.

use std::collections::{BTreeMap, BTreeSet};

use super::census::Tally;
use super::{LATE, Loss, Outcome, Record, Rules};
use crate::scenario::LimitSpec;
use crate::world::{MICRO, SECOND, Time};

/// More descriptors than a batch has.
const NAMED_MAX: usize = 64;

/// A token that was sent back.
#[derive(Clone, Copy, Debug)]
pub struct Release {
    /// The place of the record of its call.
    pub of: usize,
    /// After which resets the node releases: in another epoch it is another counter.
    pub epoch: u64,
    /// When.
    pub asked: Time,
    /// When that was answered; [`Time::MAX`]: it was not.
    pub done: Time,
}

/// A call or a renewal, and the releases of its token.
struct Call<'r> {
    it: &'r Record,
    /// Its slot: the place of the record of the call that took it first.
    slot: usize,
    releases: Vec<&'r Release>,
    /// The request names it more than once: it takes one slot.
    is_named_before: bool,
}

/// A call that surely holds its slot.
#[derive(Clone, Copy)]
struct Held<'c> {
    from: Time,
    until: Time,
    call: &'c Call<'c>,
}

/// The slots of one counter.
struct Counter<'r> {
    limit: &'r LimitSpec,
    rules: Rules<'r>,
    /// After a loss all slots count as taken for so long, by the shortest `ttl` that anybody asked with; 0: they are free.
    full_for: Time,
    /// No call may hold a slot for longer after it was asked for.
    longest: Time,
    calls: Vec<Call<'r>>,
}

/// What may not happen to slots, and did.
pub fn wrong_slots(rules: &Rules<'_>, records: &[Record], releases: &[Release]) -> Option<String> {
    counters(rules, records.iter().enumerate(), releases).into_iter().find_map(
        |((limit, key, _), counter)| {
            let starved = || (0..counter.calls.len()).find_map(|place| counter.starved(place));
            let found = counter.too_many().or_else(starved);
            found.map(|found| format!("slots of limit {limit}, key {key}: {found}"))
        },
    )
}

/// What is wrong with what answers say: how many slots are left, or how long to wait for one.
pub fn wrongly_left_slots(rules: &Rules<'_>, records: &[Record], releases: &[Release]) -> Option<String> {
    counters(rules, records.iter().enumerate(), releases).into_iter().find_map(
        |((limit, key, _), counter)| {
            let found = (0..counter.calls.len()).find_map(|place| counter.wrongly_left(place))?;
            Some(format!("slots of limit {limit}, key {key}: {found}"))
        },
    )
}

/// What is wrong with an explanation of slots: it takes none, and says what an answer would.
pub(super) fn wrong_explanation(
    rules: &Rules<'_>,
    (records, releases): (&[Record], &[Release]),
    (explained, others): (&Record, &[Record]),
) -> Option<String> {
    let counter_of = |it: &Record| (it.limit, it.key, it.epoch);
    let own = counter_of(explained);
    let all = records.iter().chain(others).chain([explained]).enumerate();
    let counter = counters(rules, all.filter(|(_, it)| counter_of(it) == own), releases).remove(&own)?;
    let place = counter.calls.iter().position(|call| std::ptr::eq(call.it, explained))?;
    // Two descriptors of one id have one slot: whether there is one is said of the first.
    let asks_first = explained.hits > 0 && !counter.calls[place].is_named_before;
    let is_wrong = explained.outcome == Outcome::Admitted && asks_first && counter.is_full(place);
    let found =
        is_wrong.then(|| format!("a call would be admitted at {} us into none", explained.answered / MICRO));
    found.or_else(|| counter.starved(place)).or_else(|| counter.wrongly_left(place))
}

/// How many answers about slots there were, and how many of them have to be right.
pub(super) fn census_of_slots(rules: &Rules<'_>, records: &[Record], releases: &[Release]) -> Tally {
    let mut tally = Tally::default();
    for counter in counters(rules, records.iter().enumerate(), releases).into_values() {
        for (place, call) in counter.calls.iter().enumerate() {
            let is_judged = match call.it.outcome {
                Outcome::Unknown => continue,
                Outcome::Admitted => counter.holds(call).is_some() || call.it.hits == 0,
                Outcome::Denied { over: true } => {
                    counter.explains(call.it)
                        || rules.is_cold(counter.limit, call.it)
                        || counter.is_full(place)
                }
                Outcome::Denied { over: false } => true,
            };
            tally.count(1, is_judged);
        }
    }
    tally
}

/// The calls of each counter, by the time at which they were asked. Another `ttl` is no other counter. `records`: each with its place
/// among all.
fn counters<'r>(
    rules: &Rules<'r>,
    records: impl Iterator<Item = (usize, &'r Record)>,
    releases: &'r [Release],
) -> BTreeMap<(usize, u64, u64), Counter<'r>> {
    let mut all: BTreeMap<usize, Vec<&Release>> = BTreeMap::new();
    releases.iter().for_each(|release| all.entry(release.of).or_default().push(release));
    let mut counters = BTreeMap::new();
    for (place, it) in records {
        let limit = &rules.limits[it.limit];
        if !limit.is_slots() {
            continue;
        }
        let new = || Counter { limit, rules: *rules, full_for: 0, longest: 0, calls: Vec::new() };
        let counter: &mut Counter<'_> = counters.entry((it.limit, it.key, it.epoch)).or_insert_with(new);
        let is_same =
            |other: &Call<'_>| other.it.request == it.request && other.it.id == it.id && other.it.hits > 0;
        let is_named_before = it.id.is_some() && counter.calls.iter().rev().take(NAMED_MAX).any(is_same);
        let slot = it.renews.unwrap_or(place);
        let releases = all.get(&slot).cloned().unwrap_or_default();
        counter.calls.push(Call { it, slot, releases, is_named_before });
    }
    for counter in counters.values_mut() {
        counter.calls.sort_by_key(|call| call.it.asked);
        let lasts = |call: &Call<'_>| rules.may_end(counter.limit, call.it) - call.it.asked;
        counter.longest = counter.calls.iter().map(lasts).max().unwrap_or(0);
        // What was lost counts as full, where whoever decides knows of it.
        let is_full = |it: &Record| rules.knows_losses && rules.denies_cold(counter.limit, it);
        let full_for = |call: &Call<'_>| if is_full(call.it) { call.it.window } else { 0 };
        counter.full_for = counter.calls.iter().map(full_for).min().unwrap_or(0);
    }
    counters
}

impl Rules<'_> {
    /// When a call takes its slot at the latest: where the node did not wait for Redis, that may be after the answer.
    fn takes_until(&self, limit: &LimitSpec, it: &Record) -> Time {
        let is_late = it.outcome == Outcome::Unknown || self.is_alone(limit, it);
        it.answered + if is_late { self.timeout } else { 0 }
    }

    /// When a call holds no slot any more, if it ever did.
    fn may_end(&self, limit: &LimitSpec, it: &Record) -> Time {
        self.takes_until(limit, it) + it.window.max(it.rule_window) + self.lag + LATE
    }
}

impl Counter<'_> {
    /// Those calls that may hold a slot at this time or later, each with its place.
    fn recent(&self, at: Time) -> impl Iterator<Item = (usize, &Call<'_>)> {
        let first = self.calls.partition_point(|call| call.it.asked + self.longest < at);
        self.calls.iter().enumerate().skip(first)
    }

    /// From when to when a call surely holds its slot.
    fn holds<'c>(&self, call: &'c Call<'c>) -> Option<Held<'c>> {
        let it = call.it;
        let is_lost = |loss: &&Loss| loss.acknowledged && loss.touches(it.asked, it.answered);
        let lost = self.rules.losses.iter().filter(is_lost).map(|loss| loss.until).min();
        let is_sure = it.outcome == Outcome::Admitted
            && it.hits > 0
            && !it.is_full
            && !call.is_named_before
            && !self.rules.is_alone(self.limit, it)
            && (lost.is_none() || self.full_for > 0);
        let ends = lost.map_or(Time::MAX, |lost| lost + self.full_for).min(it.asked + it.window);
        let ends = ends.saturating_sub(self.rules.lead);
        let may_free = call.releases.iter().filter(|release| release.done >= it.asked);
        let released = may_free.map(|release| release.asked).min().unwrap_or(Time::MAX);
        let held = Held { from: it.answered, until: ends.min(released), call };
        (is_sure && held.from < held.until).then_some(held)
    }

    /// More calls than there are slots, or two of one id.
    fn too_many(&self) -> Option<String> {
        // What is held is renewed whatever N is by then.
        let mut largest: BTreeMap<usize, u32> = BTreeMap::new();
        for Call { slot, it, .. } in &self.calls {
            let known = largest.entry(*slot).or_default();
            *known = it.requests.max(*known);
        }
        let mut held: Vec<Held<'_>> = self.calls.iter().filter_map(|call| self.holds(call)).collect();
        held.sort_by_key(|held| held.from);
        let mut now: Vec<Held<'_>> = Vec::new();
        for own @ Held { from, call: Call { it, slot, .. }, .. } in held {
            now.retain(|other| other.until > from);
            let same = |other: &&Held<'_>| {
                let is_same = it.id.is_some() && other.call.it.id == it.id && other.call.slot != *slot;
                is_same && other.from < it.asked && other.until > it.answered
            };
            if let Some(other) = now.iter().find(same) {
                let (repeated, first) = (it.request, other.call.it.request);
                return Some(format!(
                    "request {repeated} was admitted, though request {first} of its id held a slot"
                ));
            }
            now.push(own);
            let slots: BTreeSet<usize> = now.iter().map(|held| held.call.slot).collect();
            let most = slots.iter().map(|slot| u64::from(largest[slot])).max()?;
            if slots.len() as u64 > most {
                let requests: Vec<_> = now.iter().map(|held| held.call.it.request).collect();
                return Some(format!("requests {requests:?} hold {most} slots at {} us", from / MICRO));
            }
        }
        None
    }

    /// A denial of the call at this place though there was a slot, whoever may have held one.
    fn starved(&self, place: usize) -> Option<String> {
        let it = self.calls[place].it;
        let is_wrong = it.is_over()
            && self.explains(it)
            && !it.bans.is_banned
            && (self.is_held(place) || !self.may_be_full(place));
        let (request, at) = (it.request, it.answered / MICRO);
        is_wrong.then(|| format!("request {request} was denied at {at} us, though there was a slot"))
    }

    /// More or fewer slots that are left by the answer to the call at this place than there may be, or another wait than that of all
    /// denials: nobody knows when a slot is released.
    fn wrongly_left(&self, place: usize) -> Option<String> {
        let Call { it, slot, .. } = &self.calls[place];
        // During a ban nobody asks for slots.
        let is_asked = it.outcome != Outcome::Unknown && it.requests > 0 && !it.bans.is_banned;
        if !is_asked || !self.explains(it) {
            return None;
        }
        let (request, at) = (it.request, it.answered / MICRO);
        let own = u64::from(it.outcome == Outcome::Admitted && it.hits > 0);
        // A limit that denies nothing lets a call pass whose id has a slot.
        let may_have_one = it.id.is_some() && self.may_be_holding(place).any(|call| call.it.id == it.id);
        let held: BTreeSet<usize> =
            self.holding(place).map(|call| call.slot).filter(|it| it != slot).collect();
        let may: BTreeSet<usize> = self.may_be_holding(place).map(|call| call.slot).collect();
        let left =
            |slots: BTreeSet<usize>, own| u64::from(it.requests).saturating_sub(slots.len() as u64 + own);
        let [most, least] = [left(held, if may_have_one { 0 } else { own }), left(may, own)];
        if it.remaining > most || it.remaining < least && own > 0 {
            let said = it.remaining;
            return Some(format!(
                "request {request} left {said} slots at {at} us, and not {least} to {most}"
            ));
        }
        // Who begins a ban waits for its end.
        let may_ban =
            self.limit.further.is_some_and(|(first, _)| self.rules.limits[first].shape.ban.is_some());
        let wait = if it.is_over() { SECOND } else { 0 };
        (it.reset_nanos != wait && !may_ban)
            .then(|| format!("request {request} is asked to wait {} us at {at} us", it.reset_nanos / MICRO))
    }

    /// Whether a denial can be explained from outside.
    fn explains(&self, it: &Record) -> bool {
        let (rules, limit) = (&self.rules, self.limit);
        !it.is_full && !rules.is_alone(limit, it) && !rules.may_be_cold(limit, it)
    }

    /// The calls that surely hold slots all the time while the call at this place is answered.
    fn holding(&self, place: usize) -> impl Iterator<Item = &Call<'_>> {
        let it = self.calls[place].it;
        let recent = self.recent(it.asked).map(|(_, call)| call).take_while(|call| call.it.asked <= it.asked);
        recent.filter(|call| {
            self.holds(call).is_some_and(|held| held.from < it.asked && held.until > it.answered)
        })
    }

    /// Whether the renewal at this place is of a slot that is surely held.
    fn is_held(&self, place: usize) -> bool {
        let Call { it, slot, .. } = &self.calls[place];
        it.renews.is_some() && self.holding(place).any(|call| call.slot == *slot)
    }

    /// Whether the call at this place is denied by those that surely hold slots meanwhile.
    fn is_full(&self, place: usize) -> bool {
        let it = self.calls[place].it;
        let is_repeated =
            it.id.is_some() && it.hits > 0 && self.holding(place).any(|call| call.it.id == it.id);
        let slots: BTreeSet<usize> = self.holding(place).map(|call| call.slot).collect();
        it.requests == 0 || is_repeated || slots.len() as u64 >= it.requests.into()
    }

    /// Whether as many other calls may hold slots as there are, when the call at this place is denied, or one of its own id may.
    fn may_be_full(&self, place: usize) -> bool {
        let it = self.calls[place].it;
        let (ids, slots): (Vec<Option<u8>>, BTreeSet<usize>) =
            self.may_be_holding(place).map(|other| (other.it.id, other.slot)).unzip();
        it.id.is_some() && ids.contains(&it.id) || slots.len() as u64 >= it.requests.into()
    }

    /// The calls of other slots that may hold them when the call at this place is answered.
    fn may_be_holding(&self, place: usize) -> impl Iterator<Item = &Call<'_>> {
        let Call { it, slot, .. } = &self.calls[place];
        let others = self.recent(it.asked).take_while(|(_, other)| other.it.asked <= it.answered);
        let others = others.filter(move |&(number, other)| {
            number != place && other.slot != *slot && self.may_hold(other, it.asked)
        });
        others.map(|(_, other)| other)
    }

    /// Whether a call may hold a slot at this time or later.
    fn may_hold(&self, call: &Call<'_>, at: Time) -> bool {
        let it = call.it;
        let is_released = |release: &&Release| {
            let stays = self.rules.losses.iter().all(|loss| loss.until < release.asked);
            let is_after = release.asked >= self.rules.takes_until(self.limit, it);
            is_after && release.done <= at && release.epoch == it.epoch && stays
        };
        it.hits > 0
            && self.rules.may_end(self.limit, it) >= at
            && self.rules.may_count_until(self.limit, it).is_some_and(|until| until >= at)
            && !call.releases.iter().any(is_released)
    }
}
