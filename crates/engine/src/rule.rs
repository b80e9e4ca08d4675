//! A compiled rule: a node with a limit, with everything precomputed that a request needs.

use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;

use crate::classes::Classes;
use crate::cost::CostUse;
use crate::held_costs::HeldCosts;
use crate::key::{Key, KeySecret, KeySeed, SharedId};
use crate::limit::{Algorithm, BanTerms, HoldTerms, Limit, Share, Slot};
use crate::metric_name::MetricName;
use crate::prefix::{Addresses, CountedAs, Prefixes};
use crate::request::Entry;
use crate::unit::Window;

crate::named! {
    /// How a rule's counters are shared between nodes. Names are those of rule files.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Sync {
        /// Every decision asks the shared store.
        Strict = "strict",
        /// A node takes several hits at once and then decides alone.
        Leased = "leased",
    }
}

crate::named! {
    /// What a rule answers when the shared store does not. Names are those of rule files.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum StoreFailure {
        /// The call fails; the proxy's own failure mode decides.
        Error = "error",
        /// Over the limit.
        Deny = "deny",
        /// Within the limit, uncounted.
        Allow = "allow",
        /// This node decides alone, with its share of the limit.
        Local = "local",
    }
}

/// A place in a file of rules, line and column from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Written {
    pub file: Arc<str>,
    pub line: u32,
    pub column: u32,
}

impl fmt::Display for Written {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}:{}", self.file, self.line, self.column)
    }
}

/// A candidate: other numbers for a rule's limit.
#[derive(Clone, Debug)]
pub struct CandidateLimit {
    /// The rule's limit, but for N and `burst`.
    pub limit: Limit,
    /// The constant part of its counters' keys: that of its rule, marked.
    pub seed: KeySeed,
}

/// The constant parts of a rule's keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seeds {
    /// Of its counters.
    pub seed: KeySeed,
    /// Of its counters, where several processes have to agree on it.
    pub shared: SharedId,
    /// Of its candidate's counters.
    pub candidate: Option<KeySeed>,
}

/// How a limit counts: the window of its answers, and the constant parts of its counters' keys. A record may have
/// others than its rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counting {
    /// The window in answers. With the rule's `window`, in the largest unit that divides it.
    pub window: Window,
    /// The constant part of the keys: domain, path, algorithm, window, granularity.
    pub seed: KeySeed,
    /// The same part, where several processes have to agree on it.
    pub shared: SharedId,
}

/// A node with a limit, compiled.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Its number in the set: 0, 1, 2, … in file order.
    pub id: usize,
    /// Its domain.
    pub domain: Arc<str>,
    /// Where it was written.
    pub written: Written,
    /// Its limit; `None` is `unlimited`.
    pub limit: Option<Limit>,
    /// How many rules after it in the set are further limits of the same node.
    pub further: usize,
    /// It counts by one of several lengths of a prefix: its N is that of the longest one times this, also under an exception.
    pub factor: Option<u32>,
    /// Its candidate.
    pub candidate: Option<Box<CandidateLimit>>,
    /// How it counts.
    pub counting: Counting,
    /// `name`, or empty.
    pub name: Arc<str>,
    /// Names of the limits that it replaces when both match one request.
    pub replaces: Vec<Arc<str>>,
    /// Count and report, never deny.
    pub shadow_mode: bool,
    /// Over only when every quota-mode descriptor of the request is.
    pub quota_mode: bool,
    /// Its path in metrics.
    pub metric_name: MetricName,
    /// `metadata`, returned as dynamic metadata; null when there is none.
    pub metadata: serde_json::Value,
    /// `sync`, if the rule sets it.
    pub sync: Option<Sync>,
    /// What a descriptor's own cost means.
    pub cost: CostUse,
    /// `on_store_failure`, if the rule sets it.
    pub on_store_failure: Option<StoreFailure>,
    /// `near`, if the rule sets it: from this share of its limit a key is near it. Above 0, and 1 at most.
    pub near: Option<f64>,
    /// The constant parts of its counters' keys and that of the candidate as they were loaded, if a reset has replaced them.
    pub loaded: Option<Box<Seeds>>,
    /// The constant part of the names of what is learnt about it: its domain and its path alone. It forgets nothing when its
    /// limit changes.
    pub learning: KeySeed,
    /// Its keys may have records (`limits_from: store`): the constant part of their names in caches. It depends on the domain
    /// and the keys of the path alone: a record keeps its name when rules change.
    pub records: Option<KeySeed>,
    /// It has no classes, prefixes or slots: the values of its path alone name its counters, and each has its limit.
    pub is_plain: bool,
    /// A level of its path has a prefix, or a pattern of a kind that `envoyproxy/ratelimit` does not know.
    pub has_own_pattern: bool,
    /// Its classes of importance.
    pub classes: Option<Classes>,
    /// Which levels' values are part of its counters' keys: those of wildcards without `share_threshold` and of
    /// nodes without a value. Bit i stands for level i (there are at most 32).
    pub keyed_levels: u32,
    /// The prefixes by which levels of its path count addresses, if any does.
    pub prefixes: Option<Prefixes>,
    /// If it is a ban: the keys that `on` names. Without `on` there are none.
    pub ban_on: Box<[Box<str>]>,
    /// How many levels its path has. A descriptor may have one entry more, which names its class or its call.
    pub levels: usize,
    /// The key of the entry that names a call, with `concurrency`.
    pub call_id: Option<Arc<str>>,
    /// If it is the holds of a rule that says `hold`: how much is held.
    pub held_costs: Option<HeldCosts>,
    /// The wait of a request that is denied by slots or holds alone: nobody knows when they end.
    pub retry_nanos: u64,
}

impl Rule {
    /// Its name for people: its domain and the names of its nodes, separated by dots.
    pub fn path(&self) -> String {
        let mut path = String::new();
        let _ = self.write_path(&mut path);
        path
    }

    /// Writes its [`path`](Self::path), without allocating.
    /// Fails as `out` does.
    #[doc(hidden)]
    pub fn write_path(&self, out: &mut impl fmt::Write) -> fmt::Result {
        out.write_str(&self.domain)?;
        self.metric_name.rolled_up().iter().try_for_each(|name| write!(out, ".{name}"))
    }

    /// Whether its keys may count by this algorithm: `fixed_window` counts hits that it denies, so a class would take what
    /// is left to higher ones.
    pub(crate) fn goes_with(&self, algorithm: Algorithm) -> bool {
        self.classes.is_none() || algorithm != Algorithm::FixedWindow
    }

    /// Its terms, if it is the ban of the rules before it, which share its node.
    pub fn ban_terms(&self) -> Option<BanTerms> {
        self.limit.as_ref()?.ban_terms()
    }

    /// Whether it counts hits or calls. Otherwise it is the ban or the holds of the rule before it.
    pub fn is_limit(&self) -> bool {
        self.ban_terms().is_none() && self.hold_terms().is_none()
    }

    /// The terms of its holds, if it is those of the rule before it.
    pub fn hold_terms(&self) -> Option<HoldTerms> {
        self.limit.as_ref()?.hold_terms()
    }

    /// The numbers of a limit of this rule, its own or its candidate's: `100 per minute, burst 20`.
    pub fn counts_text(&self, limit: &Limit) -> String {
        let counts = limit.counts(self.counting.window);
        let burst = (limit.burst() != limit.requests()).then(|| format!(", burst {}", limit.burst()));
        format!("{counts}{}", burst.unwrap_or_default())
    }

    /// The entries of its path: those of a descriptor that met it, without the one that names a class or a call.
    #[inline]
    pub fn own_entries<'s, 'e>(&self, entries: &'s [Entry<'e>]) -> &'s [Entry<'e>] {
        entries.get(..self.levels).unwrap_or(entries)
    }

    /// The value of the entry after those: it names a class or a call.
    #[inline]
    pub fn trailing<'e>(&self, entries: &[Entry<'e>]) -> Option<&'e str> {
        entries.get(self.levels).map(|entry| entry.value)
    }

    /// The class of a descriptor that met it, and its share. `None`: it has no classes.
    #[inline]
    pub fn class_of(&self, entries: &[Entry<'_>]) -> Option<(&str, Share)> {
        Some(self.classes.as_ref()?.of(self.trailing(entries)))
    }

    /// The constant parts of its keys as they were loaded.
    pub(crate) fn loaded_seeds(&self) -> Seeds {
        let candidate = self.candidate.as_ref().map(|candidate| candidate.seed);
        let Counting { seed, shared, .. } = self.counting;
        self.loaded.as_deref().copied().unwrap_or(Seeds { seed, shared, candidate })
    }

    /// A slot for a call of this id; each call without an id is another one. The id of one text is the same on all nodes, and
    /// before and after a reset: what renews a slot from before has its id too.
    pub(crate) fn new_slot(&self, id: Option<&str>) -> Slot {
        let random = || RandomState::new().hash_one(());
        let SharedId(shared) = self.loaded_seeds().shared;
        let named = |id| KeySecret::new(shared).seed([b"slot".as_slice()]).key([id]);
        let id = id.filter(|id| !id.is_empty());
        Slot::of(id.map_or_else(random, |id| named(id).0 as u64), random())
    }

    /// The key of the counter for a request whose entries matched this rule.
    #[inline]
    pub fn key(&self, entries: &[Entry<'_>]) -> Key {
        match self.prefixes {
            None => self.plain_key(entries),
            Some(_) => self.key_with(&self.counting.seed, entries),
        }
    }

    /// The same for rules without prefixes.
    #[inline]
    pub(crate) fn plain_key(&self, entries: &[Entry<'_>]) -> Key {
        self.counting.seed.key(self.keyed(entries).map(|(_, entry)| entry.value))
    }

    /// The name of the counter of these entries for what is learnt about it: no reset and no other limit changes it.
    pub(crate) fn learning_key(&self, entries: &[Entry<'_>]) -> Key {
        self.key_with(&self.learning, entries)
    }

    /// Its candidate, and the key of the candidate's counter for a request whose entries matched this rule.
    pub fn candidate(&self, entries: &[Entry<'_>]) -> Option<(Limit, Key)> {
        let CandidateLimit { limit, seed } = self.candidate.as_deref()?;
        Some((self.limit_for(*limit, entries), self.key_with(seed, entries)))
    }

    /// A limit of this rule as it is for these entries: 0 where a prefix denies what is no address.
    #[inline]
    pub(crate) fn limit_for(&self, limit: Limit, entries: &[Entry<'_>]) -> Limit {
        match &self.prefixes {
            Some(prefixes) if prefixes.deny(entries.iter().map(|entry| entry.value)) => {
                limit.with_requests(0).with_burst(0)
            }
            _ => limit,
        }
    }

    /// The addresses in the values of a descriptor, if levels of its path count by prefixes.
    pub(crate) fn addresses(&self, entries: &[Entry<'_>]) -> Option<Addresses> {
        Some(self.prefixes.as_ref()?.read(entries.iter().map(|entry| entry.value)))
    }

    /// The same key as [`key`](Self::key) makes, of a descriptor whose addresses are read already.
    pub(crate) fn key_by(&self, entries: &[Entry<'_>], addresses: Option<&Addresses>) -> Key {
        self.key_under(&self.counting.seed, entries, addresses)
    }

    /// The same with another seed, or for a path with prefixes. Not inlined, because few requests need it.
    #[inline(never)]
    pub(crate) fn key_with(&self, seed: &KeySeed, entries: &[Entry<'_>]) -> Key {
        self.key_under(seed, entries, self.addresses(entries).as_ref())
    }

    fn key_under(&self, seed: &KeySeed, entries: &[Entry<'_>], addresses: Option<&Addresses>) -> Key {
        let keyed = self.keyed(entries);
        match (&self.prefixes, addresses) {
            (Some(prefixes), Some(addresses)) => {
                seed.key_of(keyed.map(|(level, entry)| prefixes.key_part(level, addresses, entry.value)))
            }
            _ => seed.key(keyed.map(|(_, entry)| entry.value)),
        }
    }

    /// The keys whose values are part of the counter's key, for a request whose entries matched this rule; and what each
    /// of these values counts as.
    pub fn counted<'s, 'e: 's>(
        &'s self,
        entries: &'s [Entry<'e>],
    ) -> impl Iterator<Item = (&'e str, CountedAs<'e>)> + use<'s, 'e> {
        self.keyed(entries).map(|(level, &Entry { key, value })| {
            let prefix = self.prefixes.as_ref().and_then(|prefixes| prefixes.of_level(level));
            (key, prefix.map_or(CountedAs::Value(value), |prefix| prefix.counts_as(value)))
        })
    }

    /// The entries whose values are part of the counter's key, each with its level.
    #[inline]
    fn keyed<'s, 'e>(
        &self,
        entries: &'s [Entry<'e>],
    ) -> impl Iterator<Item = (usize, &'s Entry<'e>)> + use<'s, 'e> {
        let keyed_levels = self.keyed_levels;
        let is_keyed = move |level: usize| keyed_levels >> level & 1 == 1;
        entries.iter().take(32).enumerate().filter(move |&(level, _)| is_keyed(level))
    }
}
