//! The fullest counters of a rule, and those that deny most, while somebody asks for them.
//!
//! In: decisions. Out: a few counters of each rule that is watched. A rule is watched from the first question about it
//! until ten minutes after the last one; while none is, a decision pays one branch. Bounded: [`RULES_MAX`] rules, with
//! [`COUNTERS_MAX`] counters each. Watches belong to a set of rules, and end with it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use parking_lot::Mutex;

use crate::denied::entries_text;
use tidegate_engine::decision::{Decision, Limited, Status};
use tidegate_engine::heavy::HeavyKeys;
use tidegate_engine::key::Key;
use tidegate_engine::keyed::KeyMap;
use tidegate_engine::plan::{Origin, Plan};
use tidegate_engine::request::{Entry, Request};

/// Rules that are watched at a time.
pub const RULES_MAX: usize = 16;
/// Counters that are kept for one rule, of each kind.
pub const COUNTERS_MAX: usize = 64;
/// How long a rule is watched after the last question.
const WATCHED_FOR: Duration = Duration::from_secs(600);

/// The rules that are watched.
#[derive(Default)]
pub struct Watches {
    is_any: AtomicBool,
    watches: ArcSwap<Vec<Arc<Watch>>>,
    /// Makes changes one at a time.
    changing: Mutex<()>,
}

/// Sixteen rules are watched already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{RULES_MAX} rules are watched already (expected one of these, or ten minutes without a question about one)"
)]
pub struct TooManyWatches;

/// One rule.
pub struct Watch {
    rule: usize,
    began: Instant,
    seen: Mutex<Seen>,
}

struct Seen {
    asked: Instant,
    fullest: KeyMap<Full>,
    denied: HeavyKeys<Box<str>>,
}

/// The contents of a counter when it was last asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct Full {
    /// The descriptor.
    pub name: Box<str>,
    /// The hits in it.
    pub used: u64,
    /// The hits that fit.
    pub limit: u64,
    /// When it was last asked for.
    pub at: Instant,
    /// From this time on its contents are unknown.
    until: Instant,
}

/// Denials of one counter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denied {
    /// The descriptor.
    pub name: Box<str>,
    /// How often it denied, at most.
    pub count: u64,
    /// How much too high that may be.
    pub error: u64,
}

/// What is known of a rule, the fullest and the most denied first.
#[derive(Clone, Debug, PartialEq)]
pub struct Watched {
    /// Since when it is watched.
    pub since: Instant,
    /// The fullest counters.
    pub fullest: Vec<(Key, Full)>,
    /// The counters that denied most.
    pub denied: Vec<(Key, Denied)>,
}

impl Watches {
    /// Takes the counters of a decision.
    #[inline]
    pub fn observe(&self, request: &Request<'_>, plan: &Plan<'_>, decision: &Decision<'_>, at: Instant) {
        if self.is_any.load(Relaxed) {
            self.look(request, plan, decision, at);
        }
    }

    #[cold]
    fn look(&self, request: &Request<'_>, plan: &Plan<'_>, decision: &Decision<'_>, at: Instant) {
        let watches = self.watches.load();
        for ((index, status), descriptor) in decision.statuses.iter().enumerate().zip(request.descriptors()) {
            let (Some((_, check)), Status::Limited(limited)) = (status.shown(plan, index), status) else {
                continue;
            };
            let Origin::Rule { rule, .. } = check.origin else { continue };
            if let Some(watch) = watches.iter().find(|watch| watch.rule == rule.id) {
                watch.see(check.key, limited, rule.own_entries(descriptor.entries), at);
            }
        }
    }

    /// The known counters of the rule with this number, `most` of each kind at most. Watches the rule from now on.
    /// Fails when there is no room for another one.
    pub fn ask(&self, rule: usize, most: usize, now: Instant) -> Result<Watched, TooManyWatches> {
        let _changing = self.changing.lock();
        let mut watches: Vec<_> =
            self.watches.load().iter().filter(|it| it.is_wanted(now)).cloned().collect();
        let watch = match watches.iter().find(|watch| watch.rule == rule) {
            Some(watch) => Arc::clone(watch),
            None if watches.len() >= RULES_MAX => return Err(TooManyWatches),
            None => {
                watches.push(Arc::new(Watch::new(rule, now)));
                Arc::clone(watches.last().expect("it was just added"))
            }
        };
        let report = watch.report(most, now);
        self.watches.store(Arc::new(watches));
        self.is_any.store(true, Relaxed);
        Ok(report)
    }

    /// Ends watches that nobody asks for any more.
    pub fn end_unwanted(&self, now: Instant) {
        if !self.is_any.load(Relaxed) {
            return;
        }
        let _changing = self.changing.lock();
        let left: Vec<_> = self.watches.load().iter().filter(|it| it.is_wanted(now)).cloned().collect();
        self.is_any.store(!left.is_empty(), Relaxed);
        self.watches.store(Arc::new(left));
    }
}

impl Watch {
    fn new(rule: usize, now: Instant) -> Self {
        let denied = HeavyKeys::new(COUNTERS_MAX);
        let seen = Mutex::new(Seen { asked: now, fullest: KeyMap::default(), denied });
        Self { rule, began: now, seen }
    }

    fn is_wanted(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.seen.lock().asked) < WATCHED_FOR
    }

    fn see(&self, key: Key, limited: &Limited<'_>, entries: &[Entry<'_>], at: Instant) {
        let verdict = &limited.verdict;
        let used = if verdict.over { verdict.before } else { verdict.after };
        let ends = limited.limit.periods().map(|_| verdict.reset_nanos);
        let lasts = Duration::from_nanos(ends.unwrap_or(limited.limit.window_nanos()));
        let until = at.checked_add(lasts).unwrap_or(at);
        let name = || entries_text(entries);
        let mut seen = self.seen.lock();
        if limited.is_denied() {
            seen.denied.add(key, 1, name);
        }
        let limit = limited.limit.capacity();
        seen.note_full(key, Full { name: Box::default(), used, limit, at, until }, name);
    }

    fn report(&self, most: usize, now: Instant) -> Watched {
        let mut seen = self.seen.lock();
        seen.asked = now;
        seen.fullest.retain(|_, full| full.until > now);
        let mut fullest: Vec<_> = seen.fullest.iter().map(|(key, full)| (*key, full.clone())).collect();
        fullest.sort_by(|(_, one), (_, other)| other.share().total_cmp(&one.share()));
        fullest.truncate(most);
        let denied = seen.denied.keys_by_count().take(most);
        let denied = denied.map(|(key, heavy)| {
            (key, Denied { name: heavy.about.clone(), count: heavy.count, error: heavy.error })
        });
        Watched { since: self.began, fullest, denied: denied.collect() }
    }
}

impl Seen {
    /// Keeps a counter that is known already, or fuller than the least full of those that are.
    fn note_full(&mut self, key: Key, full: Full, name: impl FnOnce() -> Box<str>) {
        if let Some(known) = self.fullest.get_mut(&key) {
            *known = Full { name: std::mem::take(&mut known.name), ..full };
            return;
        }
        if self.fullest.len() >= COUNTERS_MAX {
            let share = |of: &Full| if of.until <= full.at { -1.0 } else { of.share() };
            let least =
                self.fullest.iter().min_by(|(_, one), (_, other)| share(one).total_cmp(&share(other)));
            match least.map(|(&key, least)| (key, share(least))) {
                Some((replaced, least)) if least < full.share() => _ = self.fullest.remove(&replaced),
                _ => return,
            }
        }
        self.fullest.insert(key, Full { name: name(), ..full });
    }
}

impl Full {
    /// How full it is: 1 is full.
    pub fn share(&self) -> f64 {
        self.used as f64 / self.limit.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::monotonic;
    use crate::service::fixture::rules;
    use tidegate_engine::decision::conclude;
    use tidegate_engine::memory::{MemoryOptions, MemoryStore};
    use tidegate_engine::plan::Modes;
    use tidegate_engine::rules::RuleSet;
    use tidegate_engine::time::Timestamp;

    const RULES: &str = "
domain: shop
descriptors:
  - { key: user, rate_limit: { unit: minute, requests_per_unit: 10 } }
  - { key: other, rate_limit: { unit: minute, requests_per_unit: 10 } }
  - { key: budget, rate_limit: { requests_per_unit: 10, period: { calendar: day } } }
";

    /// A limiter of which the first rule is watched.
    struct Limiter {
        rules: RuleSet,
        store: MemoryStore,
        watches: Watches,
        began: Instant,
    }

    impl Limiter {
        fn watched() -> Self {
            let (store, watches) = (MemoryStore::new(MemoryOptions::new(1 << 24)), Watches::default());
            let limiter = Self { rules: rules(RULES), store, watches, began: monotonic() };
            let first = limiter.watches.ask(0, 9, limiter.began).expect("there is room");
            assert!(first.fullest.is_empty() && first.denied.is_empty());
            limiter
        }

        fn ask(&self, times: usize, key: &str, value: &str) {
            self.ask_at(NOW, times, key, value);
        }

        fn ask_at(&self, after: Duration, times: usize, key: &str, value: &str) {
            let request = Request::new("shop", 1).descriptor(&[(key, value)]);
            let plan = self.rules.plan(&request, Modes::default());
            for _ in 0..times {
                let verdicts = self.store.apply(&plan, Timestamp::from_secs(1));
                let decision = conclude(&plan, &verdicts);
                self.watches.observe(&request, &plan, &decision, self.began + after);
            }
        }

        fn report(&self, most: usize, after: Duration) -> Watched {
            self.watches.ask(0, most, self.began + after).expect("it is watched")
        }
    }

    const NOW: Duration = Duration::ZERO;

    #[test]
    fn the_fullest_and_the_most_denied_of_one_rule_are_shown() {
        let limiter = Limiter::watched();
        for (times, user) in [(3, "a"), (10, "b"), (14, "c")] {
            limiter.ask(times, "user", user);
            limiter.ask(50, "other", user);
        }
        let watched = limiter.report(2, NOW);
        let fullest = watched.fullest.iter().map(|(_, full)| (&*full.name, full.used, full.limit));
        let mut fullest: Vec<_> = fullest.collect();
        fullest.sort_unstable();
        assert_eq!(fullest, [("user=b", 10, 10), ("user=c", 10, 10)]);
        let denied = watched.denied.iter().map(|(_, denied)| (&*denied.name, denied.count));
        assert_eq!(denied.collect::<Vec<_>>(), [("user=c", 4)]);
        assert_eq!(limiter.report(9, NOW).fullest.len(), 3);
        assert!(limiter.report(9, Duration::from_secs(61)).fullest.is_empty(), "the window is over");
    }

    #[test]
    fn a_flood_of_counters_takes_no_more_room_and_hides_no_full_one() {
        let limiter = Limiter::watched();
        limiter.ask(9, "user", "early");
        for stranger in 0..5_000 {
            limiter.ask(1, "user", &format!("u{stranger}"));
        }
        limiter.ask(8, "user", "late");
        let watched = limiter.report(usize::MAX, NOW);
        assert_eq!(watched.fullest.len(), COUNTERS_MAX);
        let names = [0, 1].map(|place| &*watched.fullest[place].1.name);
        assert_eq!(names, ["user=early", "user=late"]);
    }

    #[test]
    fn counters_whose_window_is_over_make_room_for_emptier_ones() {
        let limiter = Limiter::watched();
        (0..COUNTERS_MAX).for_each(|early| limiter.ask(9, "user", &format!("u{early}")));
        limiter.ask_at(Duration::from_secs(61), 1, "user", "late");
        let watched = limiter.report(9, Duration::from_secs(62));
        let names: Vec<_> = watched.fullest.iter().map(|(_, full)| &*full.name).collect();
        assert_eq!(names, ["user=late"]);
    }

    /// Ten seconds before midnight.
    #[test]
    fn a_full_budget_is_shown_until_its_period_ends() {
        let (limiter, at) = (Limiter::watched(), Timestamp::from_secs(1_790_035_190));
        let shown = |secs| {
            let watched = limiter.watches.ask(2, 9, limiter.began + Duration::from_secs(secs));
            watched.expect("there is room").fullest.len()
        };
        shown(0);
        let request = Request::new("shop", 1).descriptor(&[("budget", "a")]);
        let plan = limiter.rules.plan(&request, Modes::default());
        let decision = conclude(&plan, &limiter.store.apply(&plan, at));
        limiter.watches.observe(&request, &plan, &decision, limiter.began);
        assert_eq!([9, 10].map(shown), [1, 0]);
    }

    #[test]
    fn a_question_prolongs_a_watch() {
        let limiter = Limiter::watched();
        let is_watched_at = |secs| {
            limiter.watches.end_unwanted(limiter.began + Duration::from_secs(secs));
            limiter.watches.is_any.load(Relaxed)
        };
        limiter.report(9, Duration::from_secs(599));
        assert_eq!([1_198, 1_199].map(is_watched_at), [true, false]);
    }

    #[test]
    fn watches_end_when_nobody_asks() {
        let limiter = Limiter::watched();
        let at = |secs| limiter.began + Duration::from_secs(secs);
        limiter.watches.end_unwanted(at(599));
        assert!(limiter.watches.is_any.load(Relaxed));
        for rule in 1..RULES_MAX {
            assert!(limiter.watches.ask(rule, 1, at(599)).is_ok());
        }
        assert_eq!(limiter.watches.ask(99, 1, at(599)), Err(TooManyWatches));
        assert!(limiter.watches.ask(99, 1, at(600)).is_ok(), "the first one has ended");
        limiter.watches.end_unwanted(at(1_200));
        assert!(!limiter.watches.is_any.load(Relaxed));
    }
}
