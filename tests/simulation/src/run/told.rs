//! The limits that were in force at each node: by rules, reloads, exceptions and records.
//!
//! In: what was put in force at each node, and when. Out: every limit by which a node may decide a descriptor. The
//! judge takes N from here: the N of an answer has to be one of these.

use std::sync::Mutex;

use tidegate_engine::overlay::Effect;

use super::names::path;
use super::way::Counter;
use super::{Kind, Run};
use crate::oracle::Record;
use crate::scenario::LimitSpec;
use crate::world::{MILLI, Time, lock};
use tidegate_engine::overlay::{Exception, Exceptions};

/// By which limit a descriptor is decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) requests: u32,
    pub(super) window: Time,
    /// It denies nothing.
    pub(super) is_shadow: bool,
    /// It denies only with all others of its kind.
    pub(super) is_quota: bool,
}

/// One exception of a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Made {
    pub(super) limit: usize,
    /// For one counter of it, or for all.
    pub(super) key: Option<u64>,
    pub(super) effect: Effect,
}

/// The exceptions of one node, in the order in which they were made: all that were ever in force together, since when.
#[derive(Default)]
pub(super) struct Excepted(Mutex<Vec<(Time, Vec<Made>)>>);

impl Excepted {
    /// Those in force.
    pub(super) fn all(&self, limits: &[LimitSpec]) -> Exceptions {
        let exception =
            |made: &Made| Exception { path: path(limits, made.limit, made.key), effect: made.effect };
        let all: Vec<_> = self.now().iter().map(exception).collect();
        Exceptions::new(&all)
    }

    fn now(&self) -> Vec<Made> {
        lock(&self.0).last().map(|(_, all)| all.clone()).unwrap_or_default()
    }

    /// Makes an exception, instead of the one before for the same counters.
    pub(super) fn make(&self, now: Time, (limit, key): (usize, Option<u64>), effect: Effect) {
        self.change(now, (limit, key), Some(Made { limit, key, effect }));
    }

    /// Ends the exception for these counters.
    pub(super) fn end(&self, now: Time, of: (usize, Option<u64>)) {
        self.change(now, of, None);
    }

    fn change(&self, now: Time, of: (usize, Option<u64>), made: Option<Made>) {
        let mut all = self.now();
        all.retain(|other| (other.limit, other.key) != of);
        all.extend(made);
        self.put(now, all);
    }

    /// These are in force from now on, and no others.
    pub(super) fn put(&self, now: Time, all: Vec<Made>) {
        lock(&self.0).push((now, all));
    }

    /// What any exception did to a counter at some time since then. `brings_limit`: the request brings its own limit, which
    /// can only be denied.
    fn effects(&self, since: Time, (limit, key): (usize, u64), brings_limit: bool) -> Vec<Option<Effect>> {
        let history = lock(&self.0);
        let first = history.iter().rposition(|&(at, _)| at < since);
        let before = if first.is_none() { vec![None] } else { Vec::new() };
        let effect = |(_, all): &(Time, Vec<Made>)| {
            let mut own =
                all.iter().filter(|made| made.limit == limit && made.key.is_none_or(|it| it == key));
            let deny = own.clone().find(|made| made.effect == Effect::Deny);
            let other = own.rfind(|made| made.effect != Effect::Deny).filter(|_| !brings_limit);
            deny.or(other).map(|made| made.effect)
        };
        before.into_iter().chain(history[first.unwrap_or(0)..].iter().map(effect)).collect()
    }
}

impl Run {
    /// Judges by which limit a descriptor was decided, and whether the exception that the decision tells of is the one that
    /// it was made under. `noted`: what its rule says. `is_patient`: the client waited.
    pub(super) fn check_limit(&self, noted: &Record, counter: &Counter, is_patient: bool) {
        let decided = counter.by;
        let limit = &self.scenario.limits[noted.limit];
        let of = (noted.limit, noted.key);
        let effects = lock(&self.nodes)[noted.node].excepted.effects(noted.asked, of, limit.is_override);
        let all = self.recorded_limits(noted, is_patient);
        let under = |effect: Option<Effect>, own: Told| match effect {
            None => own,
            Some(Effect::Limit { requests, .. }) => {
                Told { requests: requests.unwrap_or(own.requests), is_shadow: limit.is_shadow, ..own }
            }
            Some(Effect::Unlimited) => Told { is_shadow: true, ..own },
            Some(Effect::Deny) => {
                Told { requests: 0, is_shadow: false, is_quota: self.scenario.modes.quota, ..own }
            }
        };
        let may = effects.iter().flat_map(|&effect| all.iter().map(move |&own| (under(effect, own), effect)));
        if !may.clone().any(|told| told == (decided, counter.excepted)) {
            let may: Vec<_> = may.collect();
            let what = format!(
                "request {} was decided by {} in {} ms (shadow: {}), and tells of {:?}, though one of {may:?} was in force",
                noted.request,
                decided.requests,
                decided.window / MILLI,
                decided.is_shadow,
                counter.excepted,
            );
            self.wrong(Kind::WrongLimit, what);
        }
    }
}
