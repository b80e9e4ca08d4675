//! One limit of a scenario: what its rule says, and what follows from that for whoever judges it.

use tidegate_engine::limit::{Algorithm, BUCKETS_MAX, DEFAULT_BUCKETS};
use tidegate_engine::request::Override;
use tidegate_engine::rules::StoreFailure;
use tidegate_engine::unit::{Unit, Window};

use super::{FULL, Further, Shape};
use crate::world::{SECOND, Time};

/// One limit, under the key `l0`, `l1`, …
#[derive(Clone, Copy, Debug)]
pub struct LimitSpec {
    /// How it counts.
    pub algorithm: Algorithm,
    /// N, before and after a reload.
    pub requests: [u32; 2],
    /// W in seconds, before and after a reload: another W is another counter.
    pub window_secs: [u64; 2],
    /// Requests bring it along, and no rule has it.
    pub is_override: bool,
    /// `shadow_mode`.
    pub is_shadow: bool,
    /// `sync: leased`.
    pub is_leased: bool,
    /// `cost: reported`.
    pub is_reported: bool,
    /// `on_store_failure`.
    pub failure: StoreFailure,
    /// The size of a bucket, where it is not N.
    pub burst: Option<u32>,
    /// How many buckets a sliding window is cut into: W by the granularity.
    pub buckets: u64,
    /// The N of its candidate, which decides nothing.
    pub candidate: Option<u32>,
    /// The largest N that an exception gives it, 0 if they all do something else. `None`: it has no exceptions.
    pub excepted: Option<u32>,
    /// The largest N that a record gives it. `None`: no counter of it has a record.
    pub recorded: Option<u32>,
    /// The shape of its rule.
    pub shape: Shape,
    /// It is a further limit of the rule of this one.
    pub further: Option<(usize, Further)>,
}

impl LimitSpec {
    /// A limit with the defaults of a rule.
    pub fn new(algorithm: Algorithm, requests: u32, window_secs: u64) -> Self {
        Self {
            algorithm,
            requests: [requests; 2],
            window_secs: [window_secs; 2],
            is_override: false,
            is_shadow: false,
            is_leased: false,
            is_reported: false,
            failure: StoreFailure::Error,
            burst: None,
            buckets: DEFAULT_BUCKETS,
            candidate: None,
            excepted: None,
            recorded: None,
            shape: Shape::default(),
            further: None,
        }
    }

    /// The largest N that is ever in force.
    pub fn most(&self) -> u64 {
        let others = [self.excepted, self.recorded].map(Option::unwrap_or_default);
        u64::from(self.requests.into_iter().chain(others).max().unwrap_or(0))
    }

    /// How many hits fit at once where N is this.
    pub fn room(&self, requests: u32) -> u64 {
        self.own_burst().unwrap_or(requests).into()
    }

    /// The size of a bucket, where it stays when an exception changes N: one that equals N follows N, as where a rule has none.
    pub fn own_burst(&self) -> Option<u32> {
        self.burst.filter(|&burst| burst != self.requests[0])
    }

    /// How it counts under a record with this algorithm and `burst`, and how many hits fit at once then.
    pub fn under(&self, requests: u32, algorithm: Option<Algorithm>, burst: Option<u32>) -> (Algorithm, u64) {
        // By a fixed window, which counts hits that it denies, no class counts.
        let goes = |other: &Algorithm| self.shape.classes.is_none() || *other != Algorithm::FixedWindow;
        let algorithm = algorithm.filter(goes).unwrap_or(self.algorithm);
        let burst = burst.or(self.own_burst()).filter(|_| algorithm.is_bucket());
        (algorithm, burst.unwrap_or(requests).into())
    }

    /// The width of its buckets where it counts so, in this window. `said`: a record says it. Other algorithms have none.
    pub fn granularity(&self, rule_window: Time, counts: (Algorithm, Time), said: Option<Time>) -> Time {
        let (Algorithm::SlidingWindow, window) = counts else { return 0 };
        let has_own = self.algorithm == Algorithm::SlidingWindow && self.buckets != DEFAULT_BUCKETS;
        let own = has_own.then(|| rule_window / self.buckets);
        let fitting = |width: Time| width.clamp(window.div_ceil(BUCKETS_MAX), window);
        said.or(own).map_or(window.div_ceil(DEFAULT_BUCKETS), fitting)
    }

    /// The same as its rule says.
    pub fn own_granularity(&self, version: usize) -> Time {
        let window = self.window_secs[version] * SECOND;
        self.granularity(window, (self.algorithm, window), None)
    }

    /// How many of them fit for a class of this share: its threshold, rounded down.
    pub fn capacity(&self, requests: u32, share: u64) -> u64 {
        self.room(requests) * share / FULL
    }

    /// The share of a descriptor with this last entry, in millionths. A class that is not known, or not named, is the lowest.
    pub fn share(&self, last: Option<u8>) -> u64 {
        let Some(shares) = self.shape.classes else { return FULL };
        let known = last.and_then(|place| shares.get(usize::from(place)));
        known.or(shares.iter().min()).copied().unwrap_or(FULL)
    }

    /// How long a full counter of this window takes until it is empty. A bucket may be larger than what drains in a window.
    pub fn empties_in(&self, window: Time) -> Time {
        self.empties_by(window, self.requests[0])
    }

    /// The same where an operator has changed N, but not `burst`.
    pub fn empties_by(&self, window: Time, requests: u32) -> Time {
        empties_in(window, requests, self.room(requests))
    }

    /// The limit that requests bring along.
    pub fn brought(&self, version: usize) -> Override {
        let window = Window { unit: Unit::Second, multiplier: self.window_secs[version] as u32 };
        Override { requests_per_unit: self.requests[version], window }
    }

    /// Whether it stands for a candidate, which has another N than its limit.
    pub fn is_candidate(&self) -> bool {
        self.candidate == Some(self.requests[0])
    }

    /// Whether operators change it, by an exception or a record.
    pub fn is_operated(&self) -> bool {
        self.excepted.or(self.recorded).is_some()
    }

    /// Whether an exception, a record or a candidate has another N.
    pub fn has_another_n(&self) -> bool {
        self.is_operated() || self.candidate.is_some()
    }

    /// Whether it counts calls in flight.
    pub fn is_slots(&self) -> bool {
        self.algorithm == Algorithm::Concurrency
    }

    /// Whether it is a further limit of the rule of this one.
    pub fn is_further_of(&self, first: usize) -> bool {
        self.further.is_some_and(|(of, _)| of == first)
    }

    /// Whether N is always the same.
    pub fn is_steady(&self) -> bool {
        self.requests[0] == self.requests[1] && !self.is_operated()
    }
}

/// How long a counter of N hits a window, in which so many fit, takes from full to empty.
pub fn empties_in(window: Time, requests: u32, room: u64) -> Time {
    // A month times a large burst is more than fits.
    let empty = u128::from(window) * u128::from(room) / u128::from(requests.max(1));
    window.max(Time::try_from(empty).unwrap_or(Time::MAX / 2))
}
