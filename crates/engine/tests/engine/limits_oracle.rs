//! A naive oracle for every algorithm: it keeps every hit in a list and recomputes each answer from the definition, in
//! rationals. It shares no code with the engine, and is not meant to be fast.

use std::collections::BTreeSet;

use tidegate_engine::limit::Algorithm;

/// A limit, in plain numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) algorithm: Algorithm,
    pub(crate) requests: u64,
    pub(crate) burst: u64,
    pub(crate) window: u64,
    /// Buckets of this many nanoseconds; none: a sixtieth of the window each.
    pub(crate) granularity: Option<u64>,
}

/// What the oracle says: the fields of a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) over: bool,
    pub(crate) before: u64,
    pub(crate) after: u64,
    pub(crate) remaining: u64,
    pub(crate) reset_nanos: u64,
}

/// A counter by definition.
#[derive(Clone, Debug, Default)]
pub(crate) struct Naive {
    /// (time, hits) of everything that was charged; negative hits (buckets only) were given back.
    events: Vec<(u64, i128)>,
    /// The latest time since the counter exists.
    latest: Option<u64>,
}

impl Naive {
    /// The time that counts at `now`: never before the latest one.
    pub(crate) fn time(&self, now: u64) -> u64 {
        self.latest.map_or(now, |latest| latest.max(now))
    }

    /// An existing counter keeps the latest time.
    pub(crate) fn ask(&mut self, now: u64) {
        self.latest = self.latest.map(|latest| latest.max(now));
    }

    /// The count at `at`, as numerator and denominator.
    fn load(&self, terms: &Terms, at: u64) -> (i128, i128) {
        let (t, w) = (i128::from(at), i128::from(terms.window));
        let sum = |counts: &dyn Fn(i128) -> bool| -> i128 {
            self.events.iter().filter(|event| counts(i128::from(event.0))).map(|event| event.1).sum()
        };
        match terms.algorithm {
            Algorithm::SlidingLog | Algorithm::SlidingWindow => {
                (sum(&|s| Self::counts(terms, at, s as u64)), 1)
            }
            Algorithm::SlidingWindowWeighted => {
                let (current, previous) = (sum(&|s| s / w == t / w), sum(&|s| s / w == t / w - 1));
                (current * w + previous * (w - t % w), w)
            }
            Algorithm::FixedWindow | Algorithm::Calendar => {
                (sum(&|s| s / w == t / w).min(i128::from(u64::MAX)), 1)
            }
            Algorithm::TokenBucket | Algorithm::LeakyBucket => {
                // The level is the largest surplus of what came over what drained, from any moment on.
                let (mut surplus, mut level) = (0, 0);
                let drained = |s: u64| i128::from(at.saturating_sub(s)) * i128::from(terms.requests);
                for &(s, hits) in self.events.iter().rev() {
                    surplus += hits * w;
                    level = level.max(surplus - drained(s));
                }
                (level, w)
            }
            Algorithm::Concurrency | Algorithm::Ban | Algorithm::Holds => unreachable!("they count no hits"),
        }
    }

    fn fits(&self, terms: &Terms, at: u64, hits: u64) -> bool {
        let (load, unit) = self.load(terms, at);
        let bucket = matches!(terms.algorithm, Algorithm::TokenBucket | Algorithm::LeakyBucket);
        !(bucket && terms.requests == 0)
            && load + i128::from(hits) * unit <= i128::from(terms.capacity()) * unit
    }

    /// Over, hits that fit, the count rounded up.
    pub(crate) fn look(&self, terms: &Terms, at: u64, hits: u64) -> (bool, u64, u64) {
        let (load, unit) = self.load(terms, at);
        let left = (i128::from(terms.capacity()) * unit - load).max(0) / unit;
        let left = if self.fits(terms, at, 0) { left } else { 0 };
        let asked = if terms.algorithm == Algorithm::FixedWindow { hits } else { hits.max(1) };
        let before = (load + unit - 1) / unit;
        (!self.fits(terms, at, asked), left as u64, before as u64)
    }

    /// Whether a hit at `s` is in the window at `at`, by the strict algorithms.
    fn counts(terms: &Terms, at: u64, s: u64) -> bool {
        let (t, w, s) = (i128::from(at), i128::from(terms.window), i128::from(s));
        match (terms.algorithm, terms.granularity) {
            (Algorithm::SlidingLog, _) => s > t - w,
            // A hit counts while the end of its bucket, (⌊s/g⌋ + 1)·g, is greater than t − W.
            (_, Some(g)) => (s / i128::from(g) + 1) * i128::from(g) > t - w,
            (_, None) => (s * 60 / w + 1) * w > (t - w) * 60,
        }
    }

    /// The most hits that a reported cost adds.
    pub(crate) fn report_max(&self, terms: &Terms, at: u64) -> u64 {
        let counted = |count: i128| u64::from(u32::MAX) - count as u64;
        match terms.algorithm {
            Algorithm::SlidingLog | Algorithm::SlidingWindow => counted(self.load(terms, at).0),
            Algorithm::SlidingWindowWeighted => {
                let this = self.events.iter().filter(|event| event.0 / terms.window == at / terms.window);
                counted(this.map(|event| event.1).sum())
            }
            Algorithm::FixedWindow | Algorithm::Calendar => u64::MAX,
            Algorithm::TokenBucket | Algorithm::LeakyBucket if terms.requests == 0 => 0,
            // Above the burst, what drains in 16 windows.
            Algorithm::TokenBucket | Algorithm::LeakyBucket => {
                let most = i128::from(terms.burst) + 16 * i128::from(terms.requests);
                let (level, unit) = self.load(terms, at);
                ((most * unit - level).max(0) / unit) as u64
            }
            Algorithm::Concurrency | Algorithm::Ban | Algorithm::Holds => 0,
        }
    }

    pub(crate) fn charge(&mut self, terms: &Terms, at: u64, hits: u64) {
        if hits == 0 {
            return;
        }
        if terms.algorithm == Algorithm::SlidingLog {
            self.make_room_for_entry(terms, at);
        }
        self.events.push((at, i128::from(hits)));
        self.latest = Some(at);
    }

    /// A log of N entries: the newest becomes one of now.
    fn make_room_for_entry(&mut self, terms: &Terms, at: u64) {
        let alive = |event: &&(u64, i128)| Self::counts(terms, at, event.0);
        let entries: BTreeSet<u64> = self.events.iter().filter(alive).map(|event| event.0).collect();
        if entries.len() < terms.requests.max(1) as usize {
            return;
        }
        let newest = entries.last().copied();
        self.events.iter_mut().filter(|event| Some(event.0) == newest).for_each(|event| event.0 = at);
    }

    pub(crate) fn refund(&mut self, terms: &Terms, at: u64, hits: u64) {
        if self.latest.is_none() {
            return;
        }
        let mut left = i128::from(hits);
        match terms.algorithm {
            Algorithm::TokenBucket | Algorithm::LeakyBucket => self.events.push((at, -left)),
            Algorithm::FixedWindow | Algorithm::Calendar => {
                let (count, w) = (self.load(terms, at).0, terms.window);
                self.events.retain(|event| event.0 / w != at / w);
                self.events.push((at, (count - left).max(0)));
            }
            // The current window's, then the previous one's.
            Algorithm::SlidingWindowWeighted => {
                for event in self.events.iter_mut().rev() {
                    let back = left.min(event.1);
                    (event.1, left) = (event.1 - back, left - back);
                }
            }
            // The oldest that count.
            Algorithm::SlidingLog | Algorithm::SlidingWindow => {
                for event in self.events.iter_mut().filter(|event| Self::counts(terms, at, event.0)) {
                    let back = left.min(event.1);
                    (event.1, left) = (event.1 - back, left - back);
                }
            }
            Algorithm::Concurrency | Algorithm::Ban | Algorithm::Holds => {}
        }
        self.events.retain(|event| event.1 != 0);
    }

    /// The least wait after which the hits fit.
    fn wait(&self, terms: &Terms, at: u64, hits: u64) -> u64 {
        if hits > terms.capacity() || terms.requests == 0 {
            return terms.window;
        }
        let (mut low, mut high) = (0, u64::MAX - at);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.fits(terms, at + middle, hits) { high = middle } else { low = middle + 1 }
        }
        low
    }

    pub(crate) fn status(&self, terms: &Terms, at: u64, hits: u64, over: bool) -> (u64, u64) {
        let (_, left, before) = self.look(terms, at, 0);
        let reset_nanos = match (terms.algorithm, over, before) {
            (Algorithm::FixedWindow | Algorithm::Calendar, ..) => terms.window - at % terms.window,
            (_, true, _) => self.wait(terms, at, hits.max(1)),
            (_, false, 0) => 0,
            (_, false, _) => self.wait(terms, at, left + 1),
        };
        (left, reset_nanos)
    }

    /// The whole step for the only descriptor of a request.
    pub(crate) fn take(&mut self, terms: &Terms, now: u64, hits: u64, reported: bool) -> Answer {
        self.ask(now);
        let at = self.time(now);
        let (over, _, before) = self.look(terms, at, hits);
        if terms.algorithm == Algorithm::FixedWindow || !over {
            self.charge(terms, at, hits);
        } else if reported {
            self.charge(terms, at, hits.min(self.report_max(terms, at)));
        }
        // A client that reports a cost does not ask for it again.
        let (remaining, reset_nanos) = self.status(terms, at, if reported { 1 } else { hits }, over);
        Answer { over, before, after: before.saturating_add(hits), remaining, reset_nanos }
    }

    /// Like [`take`](Self::take), but gives hits back.
    pub(crate) fn give_back(&mut self, terms: &Terms, now: u64, hits: u64) -> Answer {
        self.ask(now);
        let at = self.time(now);
        self.refund(terms, at, hits);
        let (over, _, before) = self.look(terms, at, 0);
        let (remaining, reset_nanos) = self.status(terms, at, 0, over);
        Answer { over, before, after: before, remaining, reset_nanos }
    }
}

impl Terms {
    pub(crate) fn capacity(&self) -> u64 {
        match self.algorithm {
            Algorithm::TokenBucket | Algorithm::LeakyBucket => self.burst,
            _ => self.requests,
        }
    }

    pub(crate) fn limit(&self) -> tidegate_engine::limit::Limit {
        let limit = tidegate_engine::limit::Limit::new(self.algorithm, self.requests, self.window);
        match (self.algorithm, self.granularity) {
            (Algorithm::SlidingWindow, Some(granularity)) => limit.with_granularity(granularity),
            (Algorithm::TokenBucket | Algorithm::LeakyBucket, _) => limit.with_burst(self.burst),
            _ => limit,
        }
    }
}
