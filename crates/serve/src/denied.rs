//! The keys that were denied most in the last minutes, by their names. There is one only with KEEP_KEYS=true, because
//! names of keys hold values of requests.
//!
//! In: denials. Out: keys with counts. Memory is bounded, however many keys are denied: each shard is a sketch
//! ([`HeavyKeys`]) of the current period and one of the period before.

use parking_lot::Mutex;

use tidegate_engine::decision::{Code, Decision, Status};
use tidegate_engine::heavy::HeavyKeys;
use tidegate_engine::key::Key;
use tidegate_engine::plan::{Check, Origin, Plan, Step};
use tidegate_engine::request::{Entry, Request};
use tidegate_engine::text::{cut, one_line};

/// Parts by key, so that workers seldom wait for each other. A power of two.
const SHARDS: usize = 16;

/// Keys in one sketch. A key that has more than 1/64 of the denials of its shard is in it.
const KEYS_MAX: usize = 64;

/// Characters of a name that are kept.
const NAME_CHARS_MAX: usize = 160;

/// The keys that were denied most.
pub struct DeniedKeys {
    shards: Box<[Mutex<Shard>]>,
}

struct Shard {
    current: HeavyKeys<Name>,
    before: HeavyKeys<Name>,
}

/// A key, as people know it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Name {
    rule: Box<str>,
    entries: Box<str>,
}

/// A key that was denied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeniedKey {
    /// The path of the rule, with its domain.
    pub rule: Box<str>,
    /// The descriptor: `user=alice plan=free`, cut when it is long.
    pub entries: Box<str>,
    /// Denials, at most.
    pub count: u64,
    /// By how much the count may be too high.
    pub error: u64,
}

impl Default for DeniedKeys {
    /// No key was denied.
    fn default() -> Self {
        Self { shards: (0..SHARDS).map(|_| Mutex::new(Shard::new())).collect() }
    }
}

impl Shard {
    fn new() -> Self {
        Self { current: HeavyKeys::new(KEYS_MAX), before: HeavyKeys::new(KEYS_MAX) }
    }
}

impl DeniedKeys {
    /// Counts the keys that denied this request, if any did.
    #[inline]
    pub fn observe(&self, request: &Request<'_>, plan: &Plan<'_>, decision: &Decision<'_>) {
        if decision.code == Code::OverLimit {
            self.denied(request, plan, decision);
        }
    }

    #[cold]
    fn denied(&self, request: &Request<'_>, plan: &Plan<'_>, decision: &Decision<'_>) {
        let steps = plan.steps.iter().zip(&decision.statuses);
        for ((step, status), descriptor) in steps.zip(request.descriptors()) {
            let (Step::Check(check), Status::Limited(limited)) = (step, status) else { continue };
            if limited.is_denied() {
                let name = || Name::of(check, request.domain(), descriptor.entries);
                self.shard(check.key).lock().current.add(check.key, 1, name);
            }
        }
    }

    fn shard(&self, key: Key) -> &Mutex<Shard> {
        &self.shards[key.0 as usize % SHARDS]
    }

    /// Begins a new period. What was denied before the last call is forgotten.
    pub fn turn(&self) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            shard.before = std::mem::replace(&mut shard.current, HeavyKeys::new(KEYS_MAX));
        }
    }

    /// The keys with the most denials in this period and the one before, `most` of them at most.
    pub fn top(&self, most: usize) -> Vec<DeniedKey> {
        let mut all: Vec<_> = self.shards.iter().flat_map(|shard| shard.lock().all()).collect();
        all.sort_by(|one, other| other.count.cmp(&one.count).then_with(|| one.entries.cmp(&other.entries)));
        all.truncate(most);
        all
    }
}

impl Shard {
    /// The keys of both periods together.
    fn all(&self) -> Vec<DeniedKey> {
        let mut all: Vec<(Key, DeniedKey)> = Vec::with_capacity(2 * KEYS_MAX);
        for (key, heavy) in self.current.keys_by_count().chain(self.before.keys_by_count()) {
            if let Some((_, known)) = all.iter_mut().find(|(known, _)| *known == key) {
                known.count = known.count.saturating_add(heavy.count);
                known.error = known.error.saturating_add(heavy.error);
                continue;
            }
            let Name { rule, entries } = heavy.about.clone();
            all.push((key, DeniedKey { rule, entries, count: heavy.count, error: heavy.error }));
        }
        all.into_iter().map(|(_, denied)| denied).collect()
    }
}

impl Name {
    fn of(check: &Check<'_>, domain: &str, entries: &[Entry<'_>]) -> Self {
        let rule = match check.origin {
            Origin::Rule { rule, .. } => rule.path(),
            Origin::Override { .. } => format!("{domain}: a limit of the request"),
        };
        Self { rule: kept(&rule), entries: entries_text(entries) }
    }
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
    use tidegate_engine::time::Timestamp;

    const RULES: &str = "
domain: shop
descriptors:
  - { key: user, rate_limit: { unit: day, requests_per_unit: 2 } }
  - { key: quiet, shadow_mode: true, rate_limit: { unit: day, requests_per_unit: 1 } }
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
            let request = Request::new("shop", 1).descriptor(&[(key, value)]);
            let plan = self.rules.plan(&request, Modes::default());
            for _ in 0..times {
                let verdicts = self.store.apply(&plan, Timestamp::from_secs(1));
                self.denied.observe(&request, &plan, &conclude(&plan, &verdicts));
            }
        }

        fn shown(&self) -> Vec<(String, u64)> {
            let shown = |key: DeniedKey| (format!("{} {}", key.rule, key.entries), key.count);
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

    #[test]
    fn a_flood_of_keys_takes_no_more_room_and_hides_no_heavy_key() {
        let limiter = Limiter::new();
        for stranger in 0..5_000 {
            limiter.ask(3, "user", &format!("u{stranger}"));
            limiter.ask(1, "user", "heavy");
        }
        let top = &limiter.denied.top(usize::MAX)[..];
        assert!(top.len() <= SHARDS * KEYS_MAX, "{}", top.len());
        assert_eq!(&*top[0].entries, "user=heavy");
        assert!(top[0].count >= 4_998 && top[0].count - top[0].error <= 4_998, "{:?}", top[0]);
    }

    #[test]
    fn a_name_is_one_short_line() {
        let limiter = Limiter::new();
        limiter.ask(3, "user", "\u{202e}\n\u{1b}[2J");
        limiter.ask(4, "user", &"x".repeat(1_000));
        let names: Vec<_> = limiter.denied.top(9).into_iter().map(|key| key.entries).collect();
        assert_eq!(names[0].chars().count(), NAME_CHARS_MAX + 1);
        assert_eq!(&*names[1], "user=\\u{202e}\\n\\u{1b}[2J");
    }
}
