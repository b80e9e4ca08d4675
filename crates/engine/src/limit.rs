//! A limit (N hits per window W, by an algorithm) and the verdict of a counter.
//!
//! Each algorithm is a small state with pure functions, in a file of its own. A check always takes the same steps:
//!
//! 1. `advance` moves the counter to the time of the request, never backwards.
//! 2. `look` says whether these hits would pass, and what the counter holds.
//! 3. [`settle`](crate::settle) decides for the whole request.
//! 4. `charge` or `refund` changes the counter, and `status` says what is left and when capacity comes back.
//!
//! `Counter` is the trait with these functions. A counter does not hold its limit: N and `burst` may change under it.

mod algorithm;
mod bytes;
mod counter;
mod debt;
mod divisor;
mod expiry;
mod indexed_heap;
mod periods;
mod search;

pub(crate) mod ban;
pub(crate) mod calendar;
pub(crate) mod concurrency;
pub(crate) mod fixed_window;
mod gcra;
pub(crate) mod holds;
pub(crate) mod leaky_bucket;
pub(crate) mod sliding_log;
pub(crate) mod sliding_window;
pub(crate) mod sliding_window_weighted;
pub(crate) mod token_bucket;
mod remote;
mod share;

pub use algorithm::Algorithm;
pub(crate) use algorithm::with_algorithms;
pub use ban::{BanTerms, STRIKES_MAX};
pub(crate) use bytes::{Append, Damage, Reader};
pub(crate) use concurrency::RETRY_NANOS;
pub use concurrency::Slot;
pub use counter::Preview;
pub(crate) use counter::{Counter, Pending};
pub use holds::{AMOUNT_MAX, Found, HOLDS_MAX, HoldTerms};
pub use periods::{CALENDARS_MAX, Periods};
pub use remote::{RemoteCounter, RemoteState};
pub use share::Share;

use std::fmt;
use std::num::NonZeroU64;

use crate::time::{SECOND_NANOS, Timestamp};
use divisor::Divisor;

/// N hits per window W, by an algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    algorithm: Algorithm,
    /// N. `holds`: the seconds after an expiry, and what a call may cost at most, 32 bits each.
    requests: u64,
    /// The share of a class of importance. `holds`: that of the limit which the worst cases may take.
    share: Share,
    window: Divisor,
    /// Buckets of `sliding_window` in `buckets_nanos`, as a reduced fraction: bucket = ⌊t · `buckets` / `buckets_nanos`⌋.
    /// At most [`DEFAULT_BUCKETS`]. And the bit [`CARRIES`]: a field more would make limits a sixth larger.
    buckets: u8,
    /// Buckets: `burst`. `concurrency` and `holds`: the slot or hold that a check is about, or zeros. `ban`: its terms. Else
    /// the divisor `buckets_nanos`. Limits are copied several times a request: with both, a request of four descriptors took 4 % more
    /// instructions.
    detail: [u64; 2],
    /// The periods of `calendar`, or those by which expired `holds` count.
    periods: Option<Periods>,
}

/// The verdict of a counter on the hits of one descriptor, after the request was settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// These hits do not fit. In some modes the request passes all the same.
    pub over: bool,
    /// Hits that counted before, rounded up where the algorithm estimates.
    pub before: u64,
    /// The count with these hits, whether they were charged or not.
    pub after: u64,
    /// Hits that would still pass now, after what was charged.
    pub remaining: u64,
    /// Over: the shortest wait after which the same hits would pass. Otherwise: the time until capacity comes back.
    /// Not rounded: the answer rounds it to whole seconds.
    pub reset_nanos: u64,
    /// It follows from the hits that count. Otherwise it stands for a counter that may have lost hits, has no room or did
    /// not answer.
    pub is_counted: bool,
}

/// The default number of buckets that `sliding_window` cuts a window into.
pub const DEFAULT_BUCKETS: u64 = 60;

/// The largest number of buckets that `sliding_window` cuts a window into.
pub const BUCKETS_MAX: u64 = 3_600;

/// The longest window, in nanoseconds: 366 days.
pub const WINDOW_NANOS_MAX: u64 = 366 * 86_400 * SECOND_NANOS;

/// The longest window that carries debts, in nanoseconds: 31 days. Longer budgets have calendar periods.
pub const CARRYING_NANOS_MAX: u64 = 31 * 86_400 * SECOND_NANOS;

/// The bit of `buckets` of a limit that carries its debts.
const CARRIES: u8 = 1 << 7;

/// The largest N of limits whose counters are one number. It and the next number are exact in Redis and in JSON.
pub const COUNT_REQUESTS_MAX: u64 = (1 << 53) - 1;

/// The largest N of `sliding_log`: a counter keeps a time for each hit.
pub const LOG_REQUESTS_MAX: u64 = 100_000;

/// The most slots of `concurrency`: a counter keeps each, in order.
pub const SLOTS_MAX: u32 = 10_000;

/// The longest time in which a bucket may fill, in nanoseconds: 500 years, so that times do not overflow.
pub const FILL_NANOS_MAX: u128 = 500 * 365 * 86_400 * SECOND_NANOS as u128;

impl Limit {
    /// N = `requests` hits per `window_nanos`, clamped to [`Algorithm::requests_max`] and 1..=[`WINDOW_NANOS_MAX`], with the
    /// algorithm's defaults: `burst` = N, and buckets of a sixtieth of the window.
    pub fn new(algorithm: Algorithm, requests: u64, window_nanos: u64) -> Self {
        let requests = requests.min(algorithm.requests_max());
        let window_nanos = window_nanos.clamp(1, WINDOW_NANOS_MAX);
        // Times are whole nanoseconds, so buckets shorter than one mean the same as buckets of one.
        let buckets = DEFAULT_BUCKETS.min(window_nanos);
        let divisor = gcd(buckets, window_nanos);
        Self {
            algorithm,
            requests,
            share: Share::FULL,
            window: Divisor::new(window_nanos),
            buckets: (buckets / divisor) as u8,
            detail: match algorithm.is_bucket() {
                true => [requests, 0],
                false => Divisor::new(window_nanos / divisor).words(),
            },
            periods: None,
        }
    }

    /// N = `requests` hits in each of these periods of a calendar. W is the length of a long one.
    pub fn calendar(requests: u64, window_nanos: u64, periods: Periods) -> Self {
        Self { periods: Some(periods), ..Self::new(Algorithm::Calendar, requests, window_nanos) }
    }

    /// At most this many calls in flight, each for `ttl_nanos` at most.
    pub fn concurrency(slots: u32, ttl_nanos: u64) -> Self {
        Self { detail: [0; 2], ..Self::new(Algorithm::Concurrency, slots.into(), ttl_nanos) }
    }

    /// A ban by these terms.
    pub fn ban(terms: &BanTerms) -> Self {
        let lengths = u64::from(terms.first_secs) << 32 | u64::from(terms.longest_secs);
        let detail = [terms.every_nanos, lengths];
        Self { detail, ..Self::new(Algorithm::Ban, terms.strikes.into(), terms.within_nanos) }
    }

    /// The terms of a `ban`.
    pub fn ban_terms(&self) -> Option<BanTerms> {
        let [every_nanos, lengths] = self.detail;
        let terms = BanTerms {
            strikes: self.requests as u32,
            within_nanos: self.window_nanos(),
            every_nanos,
            first_secs: (lengths >> 32) as u32,
            longest_secs: lengths as u32,
        };
        Some(terms).filter(|_| self.algorithm == Algorithm::Ban)
    }

    /// Hits that are held by these terms.
    pub fn holds(terms: &HoldTerms) -> Self {
        let HoldTerms { ttl_nanos, after_secs, periods, worst, share } = *terms;
        let requests = u64::from(after_secs) << 32 | u64::from(worst);
        let limit = Self::new(Algorithm::Holds, 0, ttl_nanos);
        Self { requests, detail: [0; 2], buckets: 0, share, periods, ..limit }
    }

    /// The terms of `holds`.
    pub fn hold_terms(&self) -> Option<HoldTerms> {
        let &Self { requests, share, periods, .. } = self;
        let (after_secs, worst) = ((requests >> 32) as u32, requests as u32);
        let terms = HoldTerms { ttl_nanos: self.window_nanos(), after_secs, periods, worst, share };
        Some(terms).filter(|_| self.algorithm == Algorithm::Holds)
    }

    /// If expired holds count, makes them count for as long as hits of this limit do.
    pub(crate) fn expire_with(&mut self, limit: &Self) {
        if self.algorithm == Algorithm::Holds && self.requests >> 32 > 0 {
            let worst = self.requests & u64::from(u32::MAX);
            self.requests = u64::from(limit.remembered_secs()) << 32 | worst;
        }
    }

    /// Makes a check of `holds` end the hold that it is about.
    #[must_use]
    pub fn ending_hold(self) -> Self {
        Self { buckets: u8::from(self.algorithm == Algorithm::Holds).max(self.buckets), ..self }
    }

    /// Whether a check of `holds` ends the hold that it is about.
    #[inline]
    pub fn ends_hold(&self) -> bool {
        self.algorithm == Algorithm::Holds && self.buckets == 1
    }

    /// Sets the slot that a check of `concurrency` takes or releases, or the hold that one of `holds` is about. Other limits
    /// have none.
    #[must_use]
    pub fn for_slot(mut self, slot: Slot) -> Self {
        if self.has_slots() {
            self.detail = [slot.id.get(), slot.number];
        }
        self
    }

    fn has_slots(&self) -> bool {
        matches!(self.algorithm, Algorithm::Concurrency | Algorithm::Holds)
    }

    /// Sets the width of the buckets of `sliding_window`, clamped to W / [`BUCKETS_MAX`]..=W.
    #[must_use]
    pub fn with_granularity(mut self, granularity_nanos: u64) -> Self {
        let finest = self.window_nanos().div_ceil(BUCKETS_MAX);
        self.buckets = self.buckets & CARRIES | 1;
        self.detail = Divisor::new(granularity_nanos.clamp(finest, self.window_nanos())).words();
        self
    }

    /// Carries its debts, which are what reported costs charge beyond N, to later windows or periods. A limit that
    /// [cannot](Self::can_carry_debt) stays as it is.
    #[must_use]
    pub fn carrying_debt(mut self) -> Self {
        if self.can_carry_debt() {
            self.buckets |= CARRIES;
        }
        self
    }

    /// Its counters can hold hits of later windows or periods. A bucket carries its debts anyway, and the other algorithms
    /// count in aligned windows.
    pub fn can_carry_debt(&self) -> bool {
        match self.algorithm {
            Algorithm::Calendar => true,
            algorithm => algorithm.is_strict() && self.window_nanos() <= CARRYING_NANOS_MAX,
        }
    }

    /// Whether it carries its debts.
    #[inline]
    pub fn carries_debt(&self) -> bool {
        self.buckets & CARRIES != 0
    }

    /// Whether what its counters owe depends on N: costs that are reported beyond that are dropped.
    #[inline]
    pub(crate) fn owes_by_requests(&self) -> bool {
        self.algorithm.is_bucket() || self.carries_debt()
    }

    /// Sets the capacity of `token_bucket` and `leaky_bucket`. Other limits have none.
    #[must_use]
    pub fn with_burst(mut self, burst: u64) -> Self {
        if self.algorithm.is_bucket() {
            self.detail = [burst.min(self.algorithm.requests_max()), 0];
        }
        self
    }

    /// The same limit with another algorithm and window, and with all else that these can have: its share, its debts, and a
    /// `burst` or granularity other than the default.
    #[must_use]
    pub(crate) fn counting_by(&self, algorithm: Algorithm, window_nanos: u64) -> Self {
        let limit = Self::new(algorithm, self.requests, window_nanos).with_share(self.share);
        let limit = if self.carries_debt() { limit.carrying_debt() } else { limit };
        let has_granularity =
            self.buckets() != Self::new(self.algorithm, self.requests, self.window_nanos()).buckets();
        match (self.algorithm, algorithm) {
            (Algorithm::SlidingWindow, Algorithm::SlidingWindow) if has_granularity => {
                let (_, granularity_nanos) = self.buckets();
                limit.with_granularity(granularity_nanos)
            }
            (own, _) if own.is_bucket() => limit.with_burst(self.burst()),
            _ => limit,
        }
    }

    /// Other numbers, at most [`Algorithm::requests_max`]; `None`: its own. A `burst` that equals N follows N, and only
    /// buckets have another one.
    #[must_use]
    pub fn with_numbers(mut self, requests: Option<u64>, burst: Option<u64>) -> Self {
        self.set_numbers(requests, burst);
        self
    }

    /// [`with_numbers`](Self::with_numbers) in place.
    #[inline]
    pub(crate) fn set_numbers(&mut self, requests: Option<u64>, burst: Option<u64>) {
        let most = self.algorithm.requests_max();
        let requests = requests.unwrap_or(self.requests).min(most);
        if self.algorithm.is_bucket() {
            let own_burst = Some(self.burst()).filter(|&burst| burst != self.requests);
            self.detail = [burst.or(own_burst).unwrap_or(requests).min(most), 0];
        }
        self.requests = requests;
    }

    /// Sets N, and leaves the `burst` of a bucket as it is.
    #[must_use]
    pub fn with_requests(mut self, requests: u64) -> Self {
        self.requests = requests.min(self.algorithm.requests_max());
        self
    }

    /// The same limit for a class of importance that may use this share of it.
    #[must_use]
    pub fn with_share(mut self, share: Share) -> Self {
        self.share = share;
        self
    }

    /// The same limit where nothing may pass. What was spent already is charged by its N and `burst`.
    #[must_use]
    pub(crate) fn passing_nothing(self) -> Self {
        self.with_share(Share::NONE)
    }

    /// Whether it is one where nothing may pass, for what was spent already.
    pub fn passes_nothing(&self) -> bool {
        self.share == Share::NONE
    }

    /// As answers show it: N is 0 where nothing may pass.
    #[inline]
    pub(crate) fn shown(self) -> Self {
        if self.passes_nothing() { self.with_requests(0).with_burst(0).with_share(Share::FULL) } else { self }
    }

    /// What distinguishes its counters from those of other limits of the same path, for the constant part of their
    /// keys: algorithm, window, and the buckets of a `sliding_window`. N and `burst` do not, nor do the zone and the
    /// anchor of a calendar, nor the `ttl` of slots and holds, nor the terms of a ban: slots that are held, holds and bans
    /// stay when they change.
    pub(crate) fn counter_parts(&self) -> (&'static str, [[u8; 8]; 3]) {
        let (window, (numerator, denominator)) = match self.algorithm {
            Algorithm::SlidingWindow => (self.window_nanos(), self.buckets()),
            Algorithm::Concurrency | Algorithm::Ban | Algorithm::Holds => (0, (0, 0)),
            _ => (self.window_nanos(), (0, 0)),
        };
        (self.algorithm.name(), [window, numerator, denominator].map(u64::to_le_bytes))
    }

    /// How it counts.
    #[inline]
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// N.
    #[inline]
    pub fn requests(&self) -> u64 {
        self.requests
    }

    /// The capacity of a bucket; N for every other algorithm. Classes of importance share it.
    #[inline]
    pub fn burst(&self) -> u64 {
        if self.algorithm.is_bucket() { self.detail[0] } else { self.requests }
    }

    /// The share of a class of importance. Without classes it is full.
    #[inline]
    pub fn share(&self) -> Share {
        self.share
    }

    /// How many hits fit: the share of `burst`, rounded down. For every algorithm but buckets `burst` is N. Where N is 0 none
    /// fits, whatever `burst` is.
    #[inline]
    pub fn capacity(&self) -> u64 {
        let burst = if self.requests == 0 { 0 } else { self.burst() };
        if self.share == Share::FULL {
            burst
        } else {
            self.share.of(burst).min(self.algorithm.requests_max())
        }
    }

    /// W, in nanoseconds.
    #[inline]
    pub fn window_nanos(&self) -> u64 {
        self.window.get()
    }

    /// How long a hit counts: W. A bucket of more than N takes longer to drain.
    pub fn remembered_nanos(&self) -> u64 {
        let window = self.window_nanos();
        if !self.algorithm.is_bucket() || self.requests == 0 {
            return window;
        }
        let drained = (u128::from(self.burst()) * u128::from(window)).div_ceil(u128::from(self.requests));
        u64::try_from(drained).unwrap_or(u64::MAX).max(window)
    }

    /// The same in seconds, rounded up.
    pub(crate) fn remembered_secs(&self) -> u32 {
        u32::try_from(self.remembered_nanos().div_ceil(SECOND_NANOS)).unwrap_or(u32::MAX)
    }

    /// The periods of a `calendar` budget.
    #[inline]
    pub fn periods(&self) -> Option<Periods> {
        self.periods
    }

    /// Sets where the periods of a calendar begin, if its calendar has this anchor.
    #[inline]
    pub(crate) fn set_anchor(&mut self, anchor: u16) {
        self.periods = self.periods.map(|periods| periods.with_anchor(anchor).unwrap_or(periods));
    }

    /// The slot that a check of `concurrency` takes or releases, or the hold that one of `holds` is about.
    #[inline]
    pub fn slot(&self) -> Option<Slot> {
        let [id, number] = self.detail;
        NonZeroU64::new(id).filter(|_| self.has_slots()).map(|id| Slot { id, number })
    }

    /// N, and what it is for, given the window of its answers: `100 per 5 minutes`, `20 in flight, ttl 3600 s`,
    /// `9 per hour, carry_debt`.
    pub fn counts<W: fmt::Display>(&self, window: W) -> impl fmt::Display + use<W> {
        let (requests, per, is_slots) =
            (self.requests, self.per(window), self.algorithm == Algorithm::Concurrency);
        let debts = if self.carries_debt() { ", carry_debt" } else { "" };
        fmt::from_fn(move |out| match is_slots {
            true => write!(out, "{requests} in flight, ttl {per}"),
            false => write!(out, "{requests} per {per}{debts}"),
        })
    }

    /// What its N hits are for, given the window of its answers: `5 minutes`, or `calendar month (Europe/Berlin)`.
    pub fn per<W: fmt::Display>(&self, window: W) -> impl fmt::Display + use<W> {
        let (periods, ttl) = (self.periods, self.window_nanos());
        let is_slots = self.algorithm == Algorithm::Concurrency;
        fmt::from_fn(move |out| match periods {
            Some(periods) => write!(out, "calendar {periods}"),
            None if is_slots => write!(out, "{} s", ttl / SECOND_NANOS),
            None => write!(out, "{window}"),
        })
    }

    /// The period of `calendar` that holds `at`: its begin, and that of the next one.
    #[inline]
    pub fn period_around(&self, at: Timestamp) -> (Timestamp, Timestamp) {
        match self.periods {
            Some(periods) => periods.around(at),
            None => {
                let elapsed = self.elapsed_nanos(at);
                (Timestamp::from_nanos(at.as_nanos() - elapsed), at.plus(self.window_nanos() - elapsed))
            }
        }
    }

    /// The time since the aligned window that holds `at` began, in nanoseconds.
    #[inline]
    pub(crate) fn elapsed_nanos(&self, at: Timestamp) -> u64 {
        self.window.divide(at.as_nanos()).1
    }

    /// ⌊nanos / W⌋.
    #[inline]
    pub(crate) fn windows_in(&self, nanos: u64) -> u64 {
        self.window.divide(nanos).0
    }

    /// The bucket of `sliding_window` that `at` falls into: ⌊t · numerator / denominator⌋ of unix time.
    #[inline]
    pub fn bucket_of(&self, at: Timestamp) -> u64 {
        let (numerator, denominator) = self.buckets();
        match at.as_nanos().checked_mul(numerator) {
            Some(product) => Divisor::of_words(self.detail).divide(product).0,
            None => (u128::from(at.as_nanos()) * u128::from(numerator) / u128::from(denominator)) as u64,
        }
    }

    /// The first nanosecond after `bucket`: the least t whose bucket is greater.
    #[inline]
    pub fn bucket_end(&self, bucket: u64) -> Timestamp {
        let (numerator, denominator) = self.buckets();
        match bucket.checked_add(1).and_then(|next| next.checked_mul(denominator)) {
            Some(product) if numerator == 1 => Timestamp::from_nanos(product),
            Some(product) => Timestamp::from_nanos(product.div_ceil(numerator)),
            None => {
                let end =
                    ((u128::from(bucket) + 1) * u128::from(denominator)).div_ceil(u128::from(numerator));
                Timestamp::from_nanos(u64::try_from(end).unwrap_or(u64::MAX))
            }
        }
    }

    /// Whether `bucket` of `sliding_window` ends after `at`. Like comparing [`bucket_of`](Self::bucket_of), without a
    /// division.
    #[inline]
    pub(crate) fn bucket_ends_after(&self, bucket: u64, at: Timestamp) -> bool {
        let (numerator, denominator) = self.buckets();
        match (bucket.wrapping_add(1).checked_mul(denominator), at.as_nanos().checked_mul(numerator)) {
            (Some(end), Some(at)) => end > at,
            _ => bucket >= self.bucket_of(at),
        }
    }

    /// The buckets of `sliding_window` per nanosecond, as a reduced fraction.
    #[inline]
    pub fn buckets(&self) -> (u64, u64) {
        (u64::from(self.buckets & !CARRIES), Divisor::of_words(self.detail).get())
    }
}

/// The greatest common divisor of two numbers.
#[doc(hidden)]
pub const fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
