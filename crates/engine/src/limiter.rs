//! The interface for programs that embed the engine: rules and counters in one value.
//!
//! In: texts of rules, then requests, each with its time. Out: answers. It starts no thread and reads no clock: the
//! caller passes the time, and calls [`Limiter::sweep`].

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use parking_lot::RwLock;

use crate::decision::{Code, Decision, Limited, conclude};
use crate::explain::explain;
use crate::key::KeySecret;
use crate::limit::Algorithm;
use crate::memory::{MemoryOptions, MemoryStore, StoreFull};
use crate::plan::Modes;
use crate::request::Request;
use crate::rules::{Diagnostic, LoadOptions, RuleSet, SourceFile, load};
use crate::time::Timestamp;

/// The default bound on the bytes of all counters.
const MAX_BYTES: u64 = 64 << 20;

/// Rules, and the counters of requests under them. All threads share one.
#[derive(Debug)]
pub struct Limiter {
    rules: RwLock<Arc<RuleSet>>,
    store: MemoryStore,
    options: LoadOptions,
}

/// Builds a [`Limiter`]: see [`Limiter::builder`].
#[derive(Debug)]
#[must_use = "a builder does nothing until it builds"]
pub struct LimiterBuilder {
    files: Vec<SourceFile>,
    options: LoadOptions,
    memory: MemoryOptions,
}

/// The answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Outcome {
    /// Whether it may pass.
    pub code: Code,
    /// N of the tightest limit. `None`, like the next two, when no counter was checked.
    pub limit: Option<u64>,
    /// Hits that would still pass.
    pub remaining: Option<u64>,
    /// Denied: seconds until there is room again. Otherwise: seconds until capacity comes back.
    pub reset_secs: Option<u64>,
    /// Denied: seconds after which a retry makes sense.
    pub retry_after_secs: Option<u64>,
}

impl Outcome {
    /// It may pass.
    pub fn passes(&self) -> bool {
        self.code == Code::Ok
    }

    /// The answer that a decision gives.
    #[doc(hidden)]
    pub fn of(decision: &Decision<'_>) -> Self {
        let tightest = decision.tightest();
        Self {
            code: decision.code,
            limit: tightest.map(|limited| limited.limit.requests()),
            remaining: tightest.map(Limited::remaining),
            reset_secs: tightest.map(Limited::reset_secs),
            retry_after_secs: decision.retry_after_secs(),
        }
    }
}

impl Limiter {
    /// A builder without rules yet, with room for 64 MiB of counters.
    pub fn builder() -> LimiterBuilder {
        let options = LoadOptions::new(KeySecret::new(random())).strict(true);
        let memory = MemoryOptions::new(MAX_BYTES);
        LimiterBuilder { files: Vec::new(), options, memory }
    }

    /// Decides, and charges the hits if the request passes: to all of its counters or to none. `now` is one reading of
    /// the caller's clock, which should not go back; a [`Clock`](crate::Clock) never does.
    pub fn decide(&self, request: &Request<'_>, now: Timestamp) -> Outcome {
        self.decide_with(request, now, Outcome::of)
    }

    /// Like [`decide`](Self::decide), but passes `render` the complete decision, with the status of each descriptor.
    pub fn decide_with<T>(
        &self,
        request: &Request<'_>,
        now: Timestamp,
        render: impl FnOnce(&Decision<'_>) -> T,
    ) -> T {
        let rules = self.rules();
        let plan = rules.plan(request, Modes::default());
        let decision = conclude(&plan, &self.store.apply(&plan, now));
        if plan.learns_costs {
            rules.observe_costs(request, &plan);
        }
        if request.reservation().is_some() {
            rules.observe_commit(request, &plan, decision.found());
        }
        render(&decision)
    }

    /// Explains, for people, the answer that the request would get now, and why. It charges nothing.
    pub fn explain(&self, request: &Request<'_>, now: Timestamp) -> String {
        let rules = self.rules();
        let plan = rules.plan(request, Modes::default());
        explain(&rules, request, &plan, self.store.look(&plan, now)).to_string()
    }

    /// Replaces all rules by these files, each a name and a text. Counters of limits that stay keep their hits.
    ///
    /// # Errors
    /// Every problem of the files, by place. The old rules stay in force.
    pub fn reload<N: Into<String>, T: Into<Vec<u8>>>(
        &self,
        files: impl IntoIterator<Item = (N, T)>,
    ) -> Result<(), Vec<Diagnostic>> {
        let files: Vec<_> = files.into_iter().map(|(name, text)| source(name, text)).collect();
        let mut rules = load(&files, &self.options)?.rules;
        rules.keep_learnt(&self.rules());
        let rules = Arc::new(rules);
        let old = std::mem::replace(&mut *self.rules.write(), rules);
        // Freeing many rules takes a while, so the lock is released first.
        drop(old);
        Ok(())
    }

    /// Forgets the counters that have expired at `now`, which frees their memory. Call it every second or so, from any
    /// thread; decisions go on meanwhile. Returns how many were forgotten.
    pub fn sweep(&self, now: Timestamp) -> u64 {
        let mut forgotten = 0;
        loop {
            let swept = self.store.sweep(now);
            forgotten += swept.forgotten;
            if swept.round_done {
                return forgotten;
            }
        }
    }

    /// The rules in force.
    fn rules(&self) -> Arc<RuleSet> {
        Arc::clone(&self.rules.read())
    }
}

impl LimiterBuilder {
    /// Adds a rule file. Its name is for diagnostics.
    pub fn file(mut self, name: impl Into<String>, text: impl Into<Vec<u8>>) -> Self {
        self.files.push(source(name, text));
        self
    }

    /// Sets the secret under which keys are made, so that nobody can choose values that collide. Random by default.
    pub fn secret(mut self, secret: [u8; 16]) -> Self {
        self.options.secret = KeySecret::new(secret);
        self
    }

    /// Sets the most bytes that all counters take together. 64 MiB by default.
    pub fn max_bytes(mut self, max_bytes: u64) -> Self {
        self.memory.max_bytes = max_bytes;
        self
    }

    /// Sets the answer to a request that needs a new counter when there is no room. [`StoreFull::Deny`] by default.
    pub fn when_full(mut self, full: StoreFull) -> Self {
        self.memory.full = full;
        self
    }

    /// Sets the algorithm of rules that name none. [`Algorithm::SlidingWindow`] by default.
    pub fn algorithm(mut self, algorithm: Algorithm) -> Self {
        self.options.default_algorithm = algorithm;
        self
    }

    /// Sets whether rules that are valid but probably unintended are refused. They are by default.
    pub fn strict(mut self, strict: bool) -> Self {
        self.options.strict = strict;
        self
    }

    /// Loads the files.
    ///
    /// # Errors
    /// Every problem of the files, each with its place.
    pub fn build(self) -> Result<Limiter, Vec<Diagnostic>> {
        let rules = load(&self.files, &self.options)?.rules;
        let store = MemoryStore::new(self.memory);
        Ok(Limiter { rules: RwLock::new(Arc::new(rules)), store, options: self.options })
    }
}

fn source(name: impl Into<String>, text: impl Into<Vec<u8>>) -> SourceFile {
    SourceFile { name: name.into(), bytes: text.into(), presumed: false }
}

/// Random bytes: hashes by the standard library's `RandomState`, whose keys come from the system.
fn random() -> [u8; 16] {
    let [high, low] = [RandomState::new(), RandomState::new()].map(|state| state.hash_one(0_u8));
    (u128::from(high) << 64 | u128::from(low)).to_le_bytes()
}
