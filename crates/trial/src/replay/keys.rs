//! Numbers of each key, exact up to a bound on keys; beyond it, of a sample of the keys.
//!
//! In: keys as requests meet them, and what becomes of these requests. Out: numbers per key. Keys are hashes under a
//! secret, so those whose low bits are zero are a fair sample. When there are too many keys, one more bit has to be
//! zero, and the others are forgotten. Totals stay exact; counts of keys are then estimates. Which keys are denied most
//! is known from a sketch (`heavy`), whatever the sample.

use std::mem::offset_of;

use prefetch_index::prefetch_index;
use tidegate_engine::Timestamp;
use tidegate_engine::heavy::HeavyKeys;
use tidegate_engine::key::Key;
use tidegate_engine::keyed::KeyMap;
use tidegate_engine::time::SECOND_NANOS;

/// Most keys with numbers of their own.
const KEYS_MAX: usize = 100_000;

/// Keys in the sketch of those denied most.
const HEAVY_MAX: usize = 1_000;

/// Classes of the histogram of bursts: 1, 2–3, 4–7, … requests in a second.
pub(super) const BURST_CLASSES: usize = 24;

/// The counts of the requests that met a rule, or a key of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[repr(C)] // What every request changes stands first: see `KeyNumbers`.
pub struct Numbers {
    /// Requests that met it.
    pub requests: u64,
    /// Of these, those that passed.
    pub admitted: u64,
    /// Admitted ones after which more than 80 % of the limit was used.
    pub near: u64,
    /// Those that it denied. The rest was denied by other limits.
    pub denied: u64,
    /// Those that it would have denied without its shadow mode.
    pub shadowed: u64,
    /// Denied only by these rules and not by the others (for rules that are compared with: admitted only by these).
    pub changed: u64,
    /// The first denial.
    pub first_denied: Option<Timestamp>,
    /// The denial after which the wait was longest, and that wait in nanoseconds.
    pub worst: Option<(Timestamp, u64)>,
    /// The most denials of one key in a row.
    pub longest_streak: u64,
}

/// One request, as a key sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outcome {
    pub(super) at: Timestamp,
    pub(super) passes: bool,
    pub(super) is_denied: bool,
    pub(super) is_near: bool,
    pub(super) is_shadowed: bool,
    /// The other rules decide otherwise.
    pub(super) is_changed: bool,
    pub(super) wait_nanos: u64,
}

/// A key and its numbers. Everything that a request without a denial changes is in one cache line: waiting for the
/// memory of keys is a large part of the time of a replay.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(super) struct KeyNumbers {
    key: Key,
    /// The second of the last request, and how many came in it.
    second: u64,
    in_second: u32,
    streak: u64,
    pub(super) numbers: Numbers,
    pub(super) rule: usize,
    pub(super) name: Box<str>,
}

const _: () = assert!(offset_of!(KeyNumbers, numbers) + offset_of!(Numbers, denied) <= 64, "one cache line");

/// What the sketch knows of a key.
#[derive(Debug)]
pub(super) struct DeniedKey {
    pub(super) rule: usize,
    pub(super) name: Box<str>,
}

/// The place of a key's numbers. It is a hint: the place may have become that of another key.
pub(super) type KeyIndex = u32;

/// A key that was met.
pub(super) enum Met {
    /// It has numbers of its own, here.
    At(KeyIndex),
    /// It has none. This is its name.
    Without(Box<str>),
}

#[derive(Debug)]
pub(super) struct Keys {
    max: usize,
    numbers: Vec<KeyNumbers>,
    /// The place of each key in `numbers`.
    places: KeyMap<KeyIndex>,
    /// How many low bits of a key have to be zero.
    sampled_bits: u32,
    /// The names of the keys that were forgotten last: waiting lines may still refer to them.
    forgotten: KeyMap<Box<str>>,
    heavy: Option<HeavyKeys<DeniedKey>>,
    /// For each class, how often a key sent so many requests in a second.
    bursts: [u64; BURST_CLASSES],
}

impl Numbers {
    /// Adds a request. `streak`: how many of its key were denied in a row, this one included.
    #[inline]
    pub(super) fn add(&mut self, outcome: &Outcome, streak: u64) {
        self.requests += 1;
        self.admitted += u64::from(outcome.passes);
        self.near += u64::from(outcome.is_near);
        if outcome.is_shadowed {
            self.shadowed += 1;
        }
        if outcome.is_denied {
            self.denied += 1;
            self.changed += u64::from(outcome.is_changed);
            self.first_denied.get_or_insert(outcome.at);
            if self.worst.is_none_or(|(_, wait)| wait < outcome.wait_nanos) {
                self.worst = Some((outcome.at, outcome.wait_nanos));
            }
            self.longest_streak = self.longest_streak.max(streak);
        }
    }
}

impl Keys {
    pub(super) fn new() -> Self {
        Self {
            max: KEYS_MAX,
            numbers: Vec::new(),
            places: KeyMap::default(),
            sampled_bits: 0,
            forgotten: KeyMap::default(),
            heavy: None,
            bursts: [0; BURST_CLASSES],
        }
    }

    /// Notes a key. If it returns a name, the caller passes that back with the outcome.
    #[inline]
    pub(super) fn meet(&mut self, rule: usize, key: Key, name: impl FnOnce() -> Box<str>) -> Met {
        match self.places.get(&key) {
            Some(place) => Met::At(*place),
            None => self.meet_new(rule, key, name()),
        }
    }

    #[cold]
    fn meet_new(&mut self, rule: usize, key: Key, name: Box<str>) -> Met {
        if self.samples(key) && self.numbers.len() >= self.max {
            self.thin_out();
        }
        if !self.samples(key) {
            return Met::Without(name);
        }
        let place = self.numbers.len() as KeyIndex;
        self.places.insert(key, place);
        let numbers = Numbers::default();
        self.numbers.push(KeyNumbers { key, rule, name, numbers, streak: 0, second: 0, in_second: 0 });
        Met::At(place)
    }

    /// Prefetches the numbers at this place, while something else is done.
    #[inline]
    pub(super) fn fetch(&self, place: KeyIndex) {
        prefetch_index(&self.numbers, place as usize);
    }

    /// The place of a key's numbers, if it has some.
    #[inline]
    fn place(&self, hint: Option<KeyIndex>, key: Key) -> Option<usize> {
        let hint = hint.map(|place| place as usize);
        let is_there = |place: &usize| self.numbers.get(*place).is_some_and(|it| it.key == key);
        hint.filter(is_there).or_else(|| Some(*self.places.get(&key)? as usize))
    }

    /// Adds a request to its key. Returns the number of the key's denials in a row.
    #[inline]
    pub(super) fn add(
        &mut self,
        (key, hint): (Key, Option<KeyIndex>),
        rule: usize,
        outcome: &Outcome,
        name: Option<&str>,
    ) -> u64 {
        let Some(place) = self.place(hint, key) else {
            if outcome.is_denied {
                self.add_denied(key, rule, name);
            }
            return u64::from(outcome.is_denied);
        };
        let found = &mut self.numbers[place];
        if let (true, Some(heavy)) = (outcome.is_denied, &mut self.heavy) {
            heavy.add(key, 1, || DeniedKey { rule, name: found.name.clone() });
        }
        found.streak = if outcome.is_denied { found.streak + 1 } else { 0 };
        found.numbers.add(outcome, found.streak);
        let second = outcome.at.as_nanos() / SECOND_NANOS;
        if found.second != second {
            found.end_burst(&mut self.bursts, self.sampled_bits);
            found.second = second;
        }
        found.in_second += 1;
        found.streak
    }

    /// Adds a denial of a key without numbers of its own.
    fn add_denied(&mut self, key: Key, rule: usize, name: Option<&str>) {
        let Some(heavy) = &mut self.heavy else { return };
        let forgotten = &self.forgotten;
        let name = || name.or_else(|| forgotten.get(&key).map(|name| &**name)).unwrap_or_default().into();
        heavy.add(key, 1, || DeniedKey { rule, name: name() });
    }

    /// Ends the last bursts, when no request follows.
    pub(super) fn end(&mut self) {
        for key in &mut self.numbers {
            key.end_burst(&mut self.bursts, self.sampled_bits);
        }
    }

    /// The keys with numbers.
    pub(super) fn iter(&self) -> impl Iterator<Item = &KeyNumbers> {
        self.numbers.iter()
    }

    /// How many keys each key here stands for.
    pub(super) fn weight(&self) -> u64 {
        1 << self.sampled_bits
    }

    /// The keys denied most, if there were too many keys for exact numbers.
    pub(super) fn heavy(&self) -> Option<&HeavyKeys<DeniedKey>> {
        self.heavy.as_ref()
    }

    pub(super) fn bursts(&self) -> [u64; BURST_CLASSES] {
        self.bursts
    }

    #[inline]
    fn samples(&self, key: Key) -> bool {
        key.0.trailing_zeros() >= self.sampled_bits
    }

    /// Halves the sample until there is room.
    fn thin_out(&mut self) {
        let numbers = &self.numbers;
        self.heavy.get_or_insert_with(|| {
            let mut heavy = HeavyKeys::new(HEAVY_MAX);
            for it in numbers.iter().filter(|it| it.numbers.denied > 0) {
                let about = || DeniedKey { rule: it.rule, name: it.name.clone() };
                heavy.add(it.key, it.numbers.denied, about);
            }
            heavy
        });
        self.forgotten.clear();
        while self.numbers.len() >= self.max && self.sampled_bits < 64 {
            self.sampled_bits += 1;
            let bits = self.sampled_bits;
            let gone = self.numbers.extract_if(.., |it| it.key.0.trailing_zeros() < bits);
            self.forgotten.extend(gone.map(|it| (it.key, it.name)));
        }
        self.places.clear();
        self.places.extend(self.numbers.iter().zip(0..).map(|(it, place)| (it.key, place)));
    }
}

impl KeyNumbers {
    #[inline]
    fn end_burst(&mut self, bursts: &mut [u64; BURST_CLASSES], sampled_bits: u32) {
        if self.in_second > 0 {
            let class = self.in_second.ilog2() as usize;
            bursts[class.min(BURST_CLASSES - 1)] += 1 << sampled_bits;
        }
        self.in_second = 0;
    }
}

#[cfg(test)]
mod tests {
    use std::hash::{BuildHasher, RandomState};

    use super::*;

    fn outcome(second: u64, is_denied: bool) -> Outcome {
        Outcome {
            at: Timestamp::from_secs(second),
            passes: !is_denied,
            is_denied,
            is_near: false,
            is_shadowed: false,
            is_changed: false,
            wait_nanos: second,
        }
    }

    fn add(keys: &mut Keys, key: Key, second: u64, is_denied: bool) {
        match keys.meet(0, key, || format!("{key:?}").into()) {
            Met::At(place) => keys.add((key, Some(place)), 0, &outcome(second, is_denied), None),
            Met::Without(name) => keys.add((key, None), 0, &outcome(second, is_denied), Some(&name)),
        };
    }

    #[test]
    fn streaks_worst_denials_and_bursts_are_those_of_each_key() {
        let mut keys = Keys::new();
        let (one, two) = (Key(1), Key(2));
        for (key, second, denied) in
            [(one, 1, true), (two, 1, true), (one, 1, true), (one, 2, false), (one, 9, true), (two, 9, false)]
        {
            add(&mut keys, key, second, denied);
        }
        keys.end();
        let numbers = &keys.numbers[0].numbers;
        assert_eq!((numbers.requests, numbers.admitted, numbers.denied), (4, 1, 3));
        assert_eq!((numbers.longest_streak, numbers.first_denied), (2, Some(Timestamp::from_secs(1))));
        assert_eq!(numbers.worst, Some((Timestamp::from_secs(9), 9)));
        assert_eq!(keys.bursts()[..3], [4, 1, 0], "one: 2, 1, 1; two: 1, 1");
    }

    #[test]
    fn beyond_the_bound_a_sample_stands_for_all_and_the_denied_most_are_known() {
        let mut keys = Keys { max: 1_000, ..Keys::new() };
        let state = RandomState::new();
        let total = 40_000_u64;
        let key = |number: u64| Key(u128::from(state.hash_one(number)));
        for number in 0..total {
            add(&mut keys, key(number), 1, number.is_multiple_of(4));
            add(&mut keys, key(7), 1, true);
        }
        assert!(keys.numbers.len() <= 1_000, "{}", keys.numbers.len());
        let estimate = keys.numbers.len() as u64 * keys.weight();
        assert!(estimate.abs_diff(total) < total / 4, "six standard deviations: {estimate}");
        let denied = keys.iter().filter(|key| key.numbers.denied > 0).count() as u64 * keys.weight();
        assert!(denied.abs_diff(total / 4) < total / 8, "{denied}");
        let top = keys.heavy().expect("too many").top().next().expect("one");
        assert!(top.count >= total && top.count - top.error <= total, "{top:?}");
        assert_eq!(*top.about.name, format!("{:?}", key(7)));
    }
    #[test]
    fn a_line_that_waited_while_its_key_was_forgotten_is_counted_under_its_name() {
        let mut keys = Keys { max: 4, ..Keys::new() };
        let name = |key: Key| move || format!("{key:?}").into();
        // Every second one is forgotten when the fifth comes, and all later keys move.
        let places: Vec<_> = (1..=5)
            .map(|number| match keys.meet(0, Key(number), name(Key(number))) {
                Met::At(place) => (Key(number), Some(place)),
                Met::Without(_) => (Key(number), None),
            })
            .collect();
        for met in &places[..4] {
            keys.add(*met, 0, &outcome(1, true), None);
        }
        let kept: Vec<_> = keys.iter().map(|it| (&*it.name, it.numbers.denied)).collect();
        assert_eq!(kept, [("Key(2)", 1), ("Key(4)", 1)]);
        let heavy: Vec<_> =
            keys.heavy().expect("too many").top().map(|it| it.about.name.to_string()).collect();
        assert!((1..=4).all(|number| heavy.contains(&format!("Key({number})"))), "{heavy:?}");
    }
}
