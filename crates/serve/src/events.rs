//! Events: notifications for people. A key comes near its limit; a key is denied for the first time in a window, or
//! for a full window; a ban begins or ends; rules are refused; the shared store is lost, or back.
//!
//! In: decisions, with their rules; rules that were refused; the state of the shared store. Out: JSON, in
//! the queue of each outlet.
//!
//! No decision waits for an event. Most decisions need one comparison: is the key near its limit? For keys that are,
//! a table says whether that was emitted in this window. The table has a bounded number of keys, and nobody waits for
//! it. An event goes into a bounded queue for each outlet, or is dropped and counted if the queue is full. Each rule
//! emits a bounded number of events a second; the rule's next event has the number of those that were not emitted.
//!
//! - `kind`: what can happen; `near`: from which share of its limit on a key is near it, for each rule
//! - `keys`, `recent`: what was emitted about which key, and what this thread asked that table a moment ago
//! - `budget`: how many events a rule has left in this second
//! - `event`: an event, and its JSON
//! - `outlet`: the queue to an outlet, and what became of its events; `lines`: the outlet to a file

mod budget;
mod event;
mod keys;
mod kind;
mod lines;
mod near;
mod outlet;
mod recent;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

pub use self::event::{KeyNames, hex};
pub use self::kind::{EventKind, Kinds};
pub use self::lines::{Lines, LinesTo};
pub use self::outlet::{Outlet, OutletTotals, Queue};

use self::budget::Budgets;
use self::event::{Counts, Event, KeyEvent, What};
use self::keys::Keys;
use self::near::Shares;
use crate::bans::SeenBan;
use crate::clock::Clock;
use tidegate_engine::decision::{Decision, Limited, Status};
use tidegate_engine::key::Key;
use tidegate_engine::overlay::Overlay;
use tidegate_engine::plan::{Hits, Plan};
use tidegate_engine::request::Request;
use tidegate_engine::rules::RuleSet;

/// Which events are emitted, and how many.
#[derive(Clone, Debug)]
pub struct EventOptions {
    /// The kinds that are emitted.
    pub kinds: Kinds,
    /// From this share of its limit a key is near it, unless its rule has another share.
    pub near: f64,
    /// Events a second for each rule.
    pub per_second_max: u32,
    /// Events that may wait for each outlet.
    pub queue_max: usize,
}

/// Emits events to every outlet.
pub struct Events {
    options: EventOptions,
    /// Whether events show the entries of descriptors.
    shows_entries: bool,
    began: Instant,
    wall: Clock,
    keys: Keys,
    outlets: Vec<Outlet>,
    emitted: [AtomicU64; EventKind::ALL.len()],
    left_out: AtomicU64,
}

/// What events need of a set of rules.
#[derive(Debug, Default)]
pub struct RuleEvents {
    shares: Shares,
    budgets: Budgets,
}

/// A decision, with the request and the plan that it was made from.
#[derive(Clone, Copy)]
pub struct Decided<'a, 'r, 'p> {
    /// The request.
    pub request: &'a Request<'r>,
    /// Its plan.
    pub plan: &'a Plan<'p>,
    /// The overlay of the plan.
    pub overlay: Overlay<'a>,
    /// The decision.
    pub decision: &'a Decision<'p>,
}

impl Events {
    /// Events for these outlets. `began` is the time now, and `wall` gives the time of events.
    pub fn new(
        options: EventOptions,
        names: &KeyNames,
        (began, wall): (Instant, Clock),
        outlets: Vec<Outlet>,
    ) -> Self {
        let (emitted, left_out) = Default::default();
        let shows_entries = names.shows_entries;
        Self { options, shows_entries, began, wall, keys: Keys::default(), outlets, emitted, left_out }
    }

    /// What is needed of these rules.
    pub fn of_rules(&self, rules: &RuleSet) -> RuleEvents {
        RuleEvents {
            shares: Shares::of(rules.rules(), self.options.near),
            budgets: Budgets::of(rules.rules().len()),
        }
    }

    /// Emits the events of a decision that was made at this time, under these rules.
    #[inline(never)] // Most have no events: the way of a decision stays short.
    pub fn decided(&self, rules: &RuleEvents, decided: Decided<'_, '_, '_>, at: Instant) {
        for (index, status) in decided.decision.statuses.iter().enumerate() {
            let Status::Limited(limited) = status else { continue };
            if rules.shares.reached(limited) {
                self.near_or_over(rules, decided, index, limited, at);
            }
        }
    }

    /// Emits that a key is near its limit or over it, unless that was emitted already.
    #[cold]
    fn near_or_over(
        &self,
        rules: &RuleEvents,
        decided: Decided<'_, '_, '_>,
        index: usize,
        limited: &Limited<'_>,
        at: Instant,
    ) {
        let status = &decided.decision.statuses[index];
        let (Hits::Take(hits @ 1..), Some((_, check))) = (limited.hits, status.shown(decided.plan, index))
        else {
            return;
        };
        // Times of the table start at 1, because 0 means never.
        let (now, window) = (self.nanos(at).max(1), limited.limit.window_nanos());
        // The next period of a calendar is another key: what was emitted about the last one does not count.
        let period = limited.limit.periods().map(|_| limited.limit.period_around(self.wall.at(at)).0);
        let key = Key(check.key.0 ^ period.map_or(0, |began| u128::from(began.as_nanos()) << 64));
        let notice = match limited.verdict.over {
            true => self.keys.denied(key, now, window),
            false => self.keys.near(key, now, window),
        };
        let Some(notice) = notice.filter(|notice| self.options.kinds.has(notice.kind())) else { return };
        let second = (now / 1_000_000_000) as u32;
        match rules.budgets.take(limited, second, self.options.per_second_max) {
            Some(left_out) => {
                let counts = Counts { hits, left_out };
                let key = KeyEvent::new(decided, index, limited, check.key, counts, self.shows_entries);
                self.emit(What::Key(notice, key), at);
            }
            None => {
                self.left_out.fetch_add(1, Relaxed);
            }
        }
    }

    /// This node sees for the first time that a key of this limit is banned.
    pub fn ban_began(&self, rules: &RuleEvents, limited: &Limited<'_>, ban: SeenBan, at: Instant) {
        if !self.options.kinds.has(EventKind::BanBegan) {
            return;
        }
        let second = (self.nanos(at).max(1) / 1_000_000_000) as u32;
        match rules.budgets.take(limited, second, self.options.per_second_max) {
            Some(left_out) => self.emit(What::BanBegan { ban, left_out }, at),
            None => _ = self.left_out.fetch_add(1, Relaxed),
        }
    }

    /// A ban is over.
    pub fn ban_ended(&self, ban: SeenBan, at: Instant) {
        self.emit_if_wanted(What::BanEnded(ban), at);
    }

    /// A set of rules was refused for these problems.
    pub fn reload_refused(&self, problems: &[String], at: Instant) {
        self.emit_if_wanted(What::reload_refused(problems), at);
    }

    /// This shared store does not answer any more, for this reason.
    pub fn store_lost(&self, store: &str, why: &str, at: Instant) {
        self.emit_if_wanted(What::store_lost(store, why), at);
    }

    /// This shared store answers again.
    pub fn store_back(&self, store: &str, at: Instant) {
        self.emit_if_wanted(What::StoreBack { store: store.to_owned() }, at);
    }

    fn emit_if_wanted(&self, what: What, at: Instant) {
        if self.options.kinds.has(what.kind()) {
            self.emit(what, at);
        }
    }

    fn emit(&self, what: What, at: Instant) {
        self.emitted[what.kind() as usize].fetch_add(1, Relaxed);
        let event = Arc::new(Event { at: self.wall.at(at), what });
        self.outlets.iter().for_each(|outlet| outlet.push(&event));
    }

    fn nanos(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.began).as_nanos()).unwrap_or(u64::MAX)
    }

    /// Events that were emitted, by kind.
    pub fn emitted(&self) -> impl Iterator<Item = (EventKind, u64)> {
        EventKind::ALL.into_iter().zip(&self.emitted).map(|(kind, count)| (kind, count.load(Relaxed)))
    }

    /// Events that were not emitted because their rule had emitted enough in that second.
    pub fn left_out(&self) -> u64 {
        self.left_out.load(Relaxed)
    }

    /// Events that outlets dropped.
    pub fn dropped(&self) -> u64 {
        self.outlets.iter().flat_map(|outlet| outlet.totals().dropped()).map(|(_, count)| count).sum()
    }

    /// The outlets.
    pub fn outlets(&self) -> &[Outlet] {
        &self.outlets
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::clock::monotonic;
    use crate::service::fixture;
    use tidegate_engine::decision::conclude;
    use tidegate_engine::memory::{MemoryOptions, MemoryStore};
    use tidegate_engine::plan::Modes;
    use tidegate_engine::time::Timestamp;

    /// The second denial comes two hours after the first one, and after midnight.
    #[test]
    fn a_key_that_is_denied_in_two_periods_of_a_calendar_has_an_event_in_each() {
        let began = monotonic();
        let wall = Clock::new(began, Timestamp::from_secs(1_790_035_200 - 3_600));
        let kinds = Kinds::parse("denied").expect("a kind");
        let options = EventOptions { kinds, near: 0.8, per_second_max: 9, queue_max: 1 };
        let events = Events::new(options, &KeyNames::new(b"secret", false), (began, wall), Vec::new());
        let limit = "rate_limit: {requests_per_unit: 1, period: {calendar: day}}";
        let rules = fixture::rules(&format!("domain: shop\ndescriptors: [{{key: user, {limit}}}]"));
        let (store, of_rules) = (MemoryStore::new(MemoryOptions::new(1 << 20)), events.of_rules(&rules));
        let request = Request::new("shop", 1).descriptor(&[("user", "alice")]);
        let plan = rules.plan(&request, Modes::default());
        let emitted = |hours: u64| {
            let at = began + Duration::from_secs(3_600 * hours);
            for _ in 0..3 {
                let decision = &conclude(&plan, &store.apply(&plan, wall.at(at)));
                let overlay = Overlay::default();
                events.decided(&of_rules, Decided { request: &request, plan: &plan, overlay, decision }, at);
            }
            events.emitted().map(|(_, count)| count).sum::<u64>()
        };
        assert_eq!([0, 2].map(emitted), [1, 2]);
    }

    /// Of one rule there is one event a second.
    #[test]
    fn an_event_that_nobody_wants_leaves_its_room_to_others() {
        let (began, kinds) = (monotonic(), Kinds::parse("near_limit").expect("a kind"));
        let wall = Clock::new(began, Timestamp::from_secs(1_790_000_000));
        let options = EventOptions { kinds, near: 0.8, per_second_max: 1, queue_max: 1 };
        let events = Events::new(options, &KeyNames::new(b"secret", false), (began, wall), Vec::new());
        let limit = "rate_limit: {unit: minute, requests_per_unit: 10}";
        let rules = fixture::rules(&format!("domain: shop\ndescriptors: [{{key: user, {limit}}}]"));
        let (store, of_rules) = (MemoryStore::new(MemoryOptions::new(1 << 20)), events.of_rules(&rules));
        let emitted = |second: u64, user: &str, times: usize| {
            let at = began + Duration::from_secs(second);
            let request = Request::new("shop", 1).descriptor(&[("user", user)]);
            let plan = rules.plan(&request, Modes::default());
            for _ in 0..times {
                let decision = &conclude(&plan, &store.apply(&plan, wall.at(at)));
                let overlay = Overlay::default();
                events.decided(&of_rules, Decided { request: &request, plan: &plan, overlay, decision }, at);
            }
            events.emitted().map(|(_, count)| count).sum::<u64>()
        };
        assert_eq!([emitted(0, "alice", 10), emitted(2, "alice", 1), emitted(2, "bob", 10)], [1, 1, 2]);
    }
}
