//! The face for programs that embed the engine: rules and counters in one value.
//!
//! In: texts of rules, then requests, each with its time. Out: answers. It starts no thread and reads no clock: the
//! caller says when it is, and calls [`Limiter::sweep`].

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use parking_lot::RwLock;

use crate::decision::{Code, Decision, Limited, conclude};
use crate::explain::explain;
use crate::key::KeySecret;
use crate::limit::Algorithm;
use crate::memory::{MemoryOptions, MemoryStore, StoreFull};
use crate::plan::Modes;
use crate::request::{DescriptorOptions, Request};
use crate::rules::{Diagnostic, LoadOptions, RuleSet, SourceFile, load};
use crate::time::Timestamp;

/// Bytes of all counters, where nothing else is said.
const MAX_BYTES: u64 = 64 << 20;

/// Rules, and the counters of requests under them. To be shared by all threads that ask.
#[derive(Debug)]
pub struct Limiter {
    rules: RwLock<Arc<RuleSet>>,
    store: MemoryStore,
    options: LoadOptions,
}

/// A [`Limiter`] in the making: [`Limiter::builder`].
#[derive(Debug)]
#[must_use = "a builder does nothing until it builds"]
pub struct LimiterBuilder {
    files: Vec<SourceFile>,
    options: LoadOptions,
    memory: MemoryOptions,
}

/// What a request is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Answer {
    /// Whether it may pass.
    pub code: Code,
    /// Hits per window of the tightest limit; `None`, like the next two, where no counter was asked.
    pub limit: Option<u32>,
    /// Hits that would still pass.
    pub remaining: Option<u32>,
    /// Seconds until there is room again, where it is denied; until all of the limit is there, where it is not.
    pub reset_secs: Option<u64>,
    /// Seconds after which it makes sense to ask again, where it is denied.
    pub retry_after_secs: Option<u64>,
}

impl Answer {
    /// It may pass.
    pub fn passes(&self) -> bool {
        self.code == Code::Ok
    }

    /// What this decision is told as.
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
    /// A limiter without rules yet, with room for counters of 64 MiB.
    pub fn builder() -> LimiterBuilder {
        let options = LoadOptions::new(KeySecret::new(random())).strict(true);
        let memory = MemoryOptions::new(MAX_BYTES);
        LimiterBuilder { files: Vec::new(), options, memory }
    }

    /// Decides, and charges the hits if the request passes: all of its counters or none. `now` is one reading of the
    /// caller's clock, which should not go back; [`Clock`](crate::Clock) is one that does not.
    pub fn decide(&self, request: &Request<'_>, now: Timestamp) -> Answer {
        self.decide_with(request, now, Answer::of)
    }

    /// The same, where more of it is wanted than an [`Answer`] tells: what each descriptor met.
    pub fn decide_with<T>(
        &self,
        request: &Request<'_>,
        now: Timestamp,
        render: impl FnOnce(&Decision<'_>) -> T,
    ) -> T {
        let rules = self.rules();
        let plan = rules.plan(request, Modes::default());
        render(&conclude(&plan, &self.store.apply(&plan, now)))
    }

    /// Why the request would be answered as it would be now, for people. It changes nothing. Costs that descriptors bring
    /// themselves are not looked at: each asks for what the request as a whole says.
    pub fn explain(&self, request: &Request<'_>, now: Timestamp) -> String {
        let mut question = Request::new(request.domain(), 0);
        for descriptor in request.descriptors() {
            let limit = descriptor.options.limit;
            let only_asks = DescriptorOptions { limit, hits_addend: Some(0), is_negative_hits: false };
            question.push(descriptor.entries.iter().copied(), only_asks);
        }
        let rules = self.rules();
        let plan = rules.plan(&question, Modes::default());
        let verdicts = self.store.apply(&plan, now);
        let hits = u64::from(request.hits_addend().max(1));
        explain(&rules, &question, &plan, verdicts, hits).to_string()
    }

    /// Puts these files in force, each a name and a text, in the place of all that there were. Counters go on counting
    /// under limits that are still there.
    ///
    /// # Errors
    /// What is wrong with the files, by place. The rules that there were stay in force.
    pub fn reload<N: Into<String>, T: Into<Vec<u8>>>(
        &self,
        files: impl IntoIterator<Item = (N, T)>,
    ) -> Result<(), Vec<Diagnostic>> {
        let files: Vec<_> = files.into_iter().map(|(name, text)| source(name, text)).collect();
        let rules = Arc::new(load(&files, &self.options)?.rules);
        let old = std::mem::replace(&mut *self.rules.write(), rules);
        // Many rules take a while to free: not while others wait for the lock.
        drop(old);
        Ok(())
    }

    /// Forgets the counters that equal unused ones at `now`, which gives their memory back. To be called every second or
    /// so, by any thread; decisions go on meanwhile. Returns how many were forgotten.
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

    /// Those in force at this moment.
    fn rules(&self) -> Arc<RuleSet> {
        Arc::clone(&self.rules.read())
    }
}

impl LimiterBuilder {
    /// Adds a file of rules. Its name is for diagnostics.
    pub fn file(mut self, name: impl Into<String>, text: impl Into<Vec<u8>>) -> Self {
        self.files.push(source(name, text));
        self
    }

    /// The secret under which the counters' keys are made, against those who would choose values that collide. Random
    /// unless it is told here.
    pub fn secret(mut self, secret: [u8; 16]) -> Self {
        self.options.secret = KeySecret::new(secret);
        self
    }

    /// The most bytes that all counters together take; 64 MiB unless it is told here.
    pub fn max_bytes(mut self, max_bytes: u64) -> Self {
        self.memory.max_bytes = max_bytes;
        self
    }

    /// What a request is answered that needs a new counter when there is no room: [`StoreFull::Deny`] unless it is told
    /// here.
    pub fn when_full(mut self, full: StoreFull) -> Self {
        self.memory.full = full;
        self
    }

    /// The algorithm of rules that name none: [`Algorithm::SlidingWindow`] unless it is told here.
    pub fn algorithm(mut self, algorithm: Algorithm) -> Self {
        self.options.default_algorithm = algorithm;
        self
    }

    /// Whether rules are refused that are good, and probably not meant as they are written. They are, unless it is told
    /// here.
    pub fn strict(mut self, strict: bool) -> Self {
        self.options.strict = strict;
        self
    }

    /// Reads the files.
    ///
    /// # Errors
    /// All that is wrong with them, each with its place.
    pub fn build(self) -> Result<Limiter, Vec<Diagnostic>> {
        let rules = load(&self.files, &self.options)?.rules;
        let store = MemoryStore::new(self.memory);
        Ok(Limiter { rules: RwLock::new(Arc::new(rules)), store, options: self.options })
    }
}

fn source(name: impl Into<String>, text: impl Into<Vec<u8>>) -> SourceFile {
    SourceFile { name: name.into(), bytes: text.into(), presumed: false }
}

/// What the standard library keeps its own tables safe with: hashes under keys that the system made at random.
fn random() -> [u8; 16] {
    let [high, low] = [RandomState::new(), RandomState::new()].map(|state| state.hash_one(0_u8));
    (u128::from(high) << 64 | u128::from(low)).to_le_bytes()
}
