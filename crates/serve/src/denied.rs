//! The keys that were denied most in the last ten minutes, by their names: for bearers of the admin token, and for
//! everybody with KEEP_KEYS=true. Names of keys contain values of requests, so if nobody may see them none are kept.
//!
//! In: denials. Out: keys with counts and times. Memory is bounded, however many keys are denied: each shard is a sketch
//! ([`HeavyKeys`]) of the current period and one of the period before.

use std::time::Duration;

use parking_lot::Mutex;

use tidegate_engine::decision::{Code, Decision, Status};
use tidegate_engine::explain::Denials;
use tidegate_engine::heavy::HeavyKeys;
use tidegate_engine::key::Key;
use tidegate_engine::plan::{Check, Origin, Plan};
use tidegate_engine::request::{Entry, Request, RequestBuf};
use tidegate_engine::text::{cut, one_line};
use tidegate_engine::time::Timestamp;

/// The length of a period. The previous period is kept too, so denials are known for ten minutes at most.
pub const PERIOD: Duration = Duration::from_secs(300);

/// Parts by key, so that workers seldom wait for each other. A power of two.
const SHARDS: usize = 16;

/// Keys in one sketch. It is certain to contain every key with more than 1/64 of the denials of its shard.
const KEYS_MAX: usize = 64;

/// Characters of a name that are kept.
const NAME_CHARS_MAX: usize = 160;

/// Bytes of a question that are kept.
const QUESTION_BYTES_MAX: usize = 512;

/// The keys that were denied most.
pub struct DeniedKeys {
    shards: Box<[Mutex<Shard>]>,
}

struct Shard {
    current: HeavyKeys<Seen>,
    before: HeavyKeys<Seen>,
}

/// What is kept of a key.
#[derive(Clone, Debug)]
struct Seen {
    name: Name,
    first: Timestamp,
    last: Timestamp,
}

/// A key, as people know it.
#[derive(Clone, Debug)]
pub struct Name {
    /// The path of the rule, with its domain.
    pub rule: Box<str>,
    /// The descriptor: `user=alice plan=free`, cut when it is long.
    pub entries: Box<str>,
    /// A request that has the key. `None`: it is too long to be kept.
    pub question: Option<RequestBuf>,
}

/// A key that was denied.
#[derive(Clone, Debug)]
pub struct DeniedKey {
    /// The key.
    pub name: Name,
    /// How often, and when.
    pub denials: Denials,
}

impl Default for DeniedKeys {
    /// No key was denied.
    fn default() -> Self {
        Self { shards: (0..SHARDS).map(|_| Mutex::new(Shard::new())).collect() }
    }
}

impl DeniedKeys {
    /// Counts the keys that denied this request, if any did. `at` is called only for a denial.
    #[inline]
    pub fn observe(
        &self,
        request: &Request<'_>,
        plan: &Plan<'_>,
        decision: &Decision<'_>,
        at: impl FnOnce() -> Timestamp,
    ) {
        if decision.code == Code::OverLimit {
            self.denied(request, plan, decision, at());
        }
    }

    #[cold]
    fn denied(&self, request: &Request<'_>, plan: &Plan<'_>, decision: &Decision<'_>, at: Timestamp) {
        for ((index, status), descriptor) in decision.statuses.iter().enumerate().zip(request.descriptors()) {
            let (Some((_, check)), Status::Limited(limited)) = (status.shown(plan, index), status) else {
                continue;
            };
            if limited.is_denied() {
                let name = || Name::of(check, request.domain(), descriptor.entries);
                self.shard(check.key).lock().add(check.key, at, name);
            }
        }
    }

    fn shard(&self, key: Key) -> &Mutex<Shard> {
        &self.shards[key.0 as usize % SHARDS]
    }

    /// Begins a new period. Denials from before the previous call are forgotten.
    pub fn turn(&self) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            shard.before = std::mem::replace(&mut shard.current, HeavyKeys::new(KEYS_MAX));
        }
    }

    /// The keys with the most denials in this period and the one before, `most` of them at most.
    pub fn top(&self, most: usize) -> Vec<DeniedKey> {
        let mut all: Vec<_> = self.shards.iter().flat_map(|shard| shard.lock().all()).collect();
        all.sort_by(|one, other| {
            let by_count = other.denials.count.cmp(&one.denials.count);
            by_count.then_with(|| one.name.entries.cmp(&other.name.entries))
        });
        all.truncate(most);
        all
    }

    /// The denials of one key, if it is known.
    pub fn of(&self, key: Key) -> Option<Denials> {
        self.shard(key).lock().of(key)
    }
}

impl Shard {
    fn new() -> Self {
        Self { current: HeavyKeys::new(KEYS_MAX), before: HeavyKeys::new(KEYS_MAX) }
    }

    fn add(&mut self, key: Key, at: Timestamp, name: impl FnOnce() -> Name) {
        let Self { current, before } = self;
        // If a key is denied all the time, its first denial was long ago.
        let first = || before.get(key).map_or(at, |known| known.about.first);
        current.add(key, 1, || Seen { name: name(), first: first(), last: at }).last = at;
    }

    /// The keys of both periods together.
    fn all(&self) -> Vec<DeniedKey> {
        let before = self.before.keys_by_count().filter(|(key, _)| self.current.get(*key).is_none());
        let both = self.current.keys_by_count().chain(before);
        both.filter_map(|(key, heavy)| {
            Some(DeniedKey { name: heavy.about.name.clone(), denials: self.of(key)? })
        })
        .collect()
    }

    fn of(&self, key: Key) -> Option<Denials> {
        let mut known = [&self.before, &self.current].into_iter().filter_map(|period| period.get(key));
        let oldest = known.next()?;
        let Seen { first, last, .. } = oldest.about;
        let denials = Denials { count: oldest.count, error: oldest.error, first, last };
        Some(known.fold(denials, |sum, heavy| Denials {
            count: sum.count.saturating_add(heavy.count),
            error: sum.error.saturating_add(heavy.error),
            last: heavy.about.last,
            ..sum
        }))
    }
}

impl Name {
    fn of(check: &Check<'_>, domain: &str, entries: &[Entry<'_>]) -> Self {
        let rule = match check.origin {
            Origin::Rule { rule, .. } => rule.path(),
            Origin::Override { .. } => format!("{domain}: a limit of the request"),
        };
        let entries = check.origin.rule().map_or(entries, |rule| rule.own_entries(entries));
        Self { rule: kept(&rule), entries: entries_text(entries), question: question(domain, entries) }
    }
}

/// A request with this descriptor, if it is short.
fn question(domain: &str, entries: &[Entry<'_>]) -> Option<RequestBuf> {
    let bytes = entries.iter().map(|entry| entry.key.len() + entry.value.len()).sum::<usize>();
    (domain.len() + bytes <= QUESTION_BYTES_MAX).then(|| {
        let mut question = RequestBuf::new(domain);
        entries.iter().for_each(|entry| question.push(entry.key, entry.value));
        question.close();
        question
    })
}

/// A descriptor for people: `user=alice plan=free`, one line, cut when it is long.
pub fn entries_text(entries: &[Entry<'_>]) -> Box<str> {
    let mut text = String::new();
    for entry in entries {
        text.extend([if text.is_empty() { "" } else { " " }, entry.key, "=", entry.value]);
    }
    kept(&text)
}

fn kept(text: &str) -> Box<str> {
    Box::from(&*one_line(&cut(text, NAME_CHARS_MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::fixture::rules;
    use tidegate_engine::decision::conclude;
    use tidegate_engine::memory::{MemoryOptions, MemoryStore};
    use tidegate_engine::plan::Modes;
    use tidegate_engine::rules::RuleSet;
    use tidegate_engine::time::SECOND_NANOS;

    const RULES: &str = "
domain: shop
descriptors:
  - { key: user, rate_limit: { unit: day, requests_per_unit: 2 } }
  - { key: quiet, shadow_mode: true, rate_limit: { unit: day, requests_per_unit: 1 } }
  - key: tenant
    rate_limit: { unit: day, requests_per_unit: 2 }
    classes: { key: priority, shares: { critical: 1.0, batch: 0.5 } }
";

    /// A limiter that counts the keys that it denies.
    struct Limiter {
        rules: RuleSet,
        store: MemoryStore,
        denied: DeniedKeys,
    }

    impl Limiter {
        fn new() -> Self {
            let store = MemoryStore::new(MemoryOptions::new(1 << 24));
            Self { rules: rules(RULES), store, denied: DeniedKeys::default() }
        }

        /// Asks this often.
        fn ask(&self, times: usize, key: &str, value: &str) {
            self.ask_at(Timestamp::from_secs(1), times, key, value);
        }

        fn ask_at(&self, at: Timestamp, times: usize, key: &str, value: &str) {
            let request = Request::new("shop", 1).descriptor(&[(key, value)]);
            let plan = self.rules.plan(&request, Modes::default());
            for _ in 0..times {
                let verdicts = self.store.apply(&plan, Timestamp::from_secs(1));
                self.denied.observe(&request, &plan, &conclude(&plan, &verdicts), || at);
            }
        }

        fn shown(&self) -> Vec<(String, u64)> {
            let shown =
                |DeniedKey { name, denials }| (format!("{} {}", name.rule, name.entries), denials.count);
            self.denied.top(10).into_iter().map(shown).collect()
        }
    }

    #[test]
    fn keys_are_counted_when_they_deny_and_only_then() {
        let limiter = Limiter::new();
        limiter.ask(7, "user", "alice");
        limiter.ask(3, "user", "bob");
        limiter.ask(2, "user", "carol");
        limiter.ask(9, "quiet", "x");
        let of = |user: &str, count| (format!("shop.user user={user}"), count);
        assert_eq!(limiter.shown(), [of("alice", 5), of("bob", 1)]);
        limiter.denied.turn();
        limiter.ask(7, "user", "bob");
        assert_eq!(limiter.shown(), [of("bob", 8), of("alice", 5)]);
        limiter.denied.turn();
        assert_eq!(limiter.shown(), [of("bob", 7)], "two periods later the first is forgotten");
        limiter.denied.turn();
        assert_eq!(limiter.shown(), []);
    }

    /// A class is no part of a key.
    #[test]
    fn a_key_has_one_name_whatever_classes_are_denied() {
        let limiter = Limiter::new();
        for class in ["batch", "critical"] {
            let request = Request::new("shop", 1).descriptor(&[("tenant", "acme"), ("priority", class)]);
            let plan = limiter.rules.plan(&request, Modes::default());
            for _ in 0..2 {
                let verdicts = limiter.store.apply(&plan, Timestamp::from_secs(1));
                let decision = conclude(&plan, &verdicts);
                limiter.denied.observe(&request, &plan, &decision, || Timestamp::from_secs(1));
            }
        }
        assert_eq!(limiter.shown(), [("shop.tenant tenant=acme".to_owned(), 2)]);
    }

    #[test]
    fn the_first_and_the_last_denial_are_known_as_long_as_a_key_is_denied() {
        let limiter = Limiter::new();
        limiter.ask(2, "user", "alice");
        let times = || {
            let denials = limiter.denied.top(9).first()?.denials;
            Some([denials.first, denials.last].map(|at| at.as_nanos() / SECOND_NANOS))
        };
        for (second, known) in [(10, [10, 10]), (20, [10, 20]), (30, [10, 30]), (40, [10, 40])] {
            limiter.ask_at(Timestamp::from_secs(second), 1, "user", "alice");
            assert_eq!(times(), Some(known));
            limiter.denied.turn();
            assert_eq!(times(), Some(known), "in the period before");
        }
        limiter.denied.turn();
        assert_eq!(times(), None);
        limiter.ask_at(Timestamp::from_secs(50), 1, "user", "alice");
        assert_eq!(times(), Some([50, 50]), "it begins again");
    }

    /// A key that takes the room of others may have been denied as often as they were.
    #[test]
    fn of_two_periods_both_counts_and_both_errors_are_added() {
        let (mut shard, at, late) = (Shard::new(), Timestamp::from_secs(1), Key(KEYS_MAX as u128));
        let name = || Name { rule: Box::default(), entries: Box::default(), question: None };
        for _ in 0..2 {
            shard.before = std::mem::replace(&mut shard.current, HeavyKeys::new(KEYS_MAX));
            for key in (0..KEYS_MAX as u128).map(Key).chain([late]) {
                shard.add(key, at, name);
            }
        }
        let denials = shard.of(late).expect("it is known");
        assert_eq!((denials.count, denials.error), (4, 2));
    }

    #[test]
    fn a_key_is_asked_about_by_the_request_that_led_to_it() {
        let limiter = Limiter::new();
        for value in ["a=b\nc", &"x".repeat(QUESTION_BYTES_MAX)] {
            limiter.ask(3, "user", value);
        }
        let questions: Vec<_> = limiter.denied.top(9).into_iter().map(|key| key.name.question).collect();
        let [Some(question), None] = &questions[..] else { panic!("{questions:?}") };
        let request = question.as_request();
        let entries = request.descriptors().next().expect("one").entries;
        assert_eq!((request.domain(), entries), ("shop", &[Entry { key: "user", value: "a=b\nc" }][..]));
        let plan = limiter.rules.plan(&request, Modes::default());
        let tidegate_engine::plan::Step::Check(check) = &plan.steps[0] else { panic!("it meets a rule") };
        assert_eq!(limiter.denied.of(check.key).map(|denials| denials.count), Some(1));
    }

    #[test]
    fn a_flood_of_keys_takes_no_more_room_and_hides_no_heavy_key() {
        let limiter = Limiter::new();
        for stranger in 0..5_000 {
            limiter.ask(3, "user", &format!("u{stranger}"));
            limiter.ask(1, "user", "heavy");
        }
        let top = &limiter.denied.top(usize::MAX)[..];
        assert!(top.len() <= SHARDS * KEYS_MAX, "{}", top.len());
        assert_eq!(&*top[0].name.entries, "user=heavy");
        let Denials { count, error, .. } = top[0].denials;
        assert!(count >= 4_998 && count - error <= 4_998, "{:?}", top[0]);
    }

    #[test]
    fn a_name_is_one_short_line() {
        let limiter = Limiter::new();
        limiter.ask(3, "user", "\u{202e}\n\u{1b}[2J");
        limiter.ask(4, "user", &"x".repeat(1_000));
        let names: Vec<_> = limiter.denied.top(9).into_iter().map(|key| key.name.entries).collect();
        assert_eq!(names[0].chars().count(), NAME_CHARS_MAX + 1);
        assert_eq!(&*names[1], "user=\\u{202e}\\n\\u{1b}[2J");
    }
}
