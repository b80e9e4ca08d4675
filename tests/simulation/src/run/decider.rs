//! The limits that were in force at each node: by rules, reloads, exceptions and records.
//!
//! In: what was put in force at each node, and when. Out: every limit by which a node may decide a descriptor. The
//! judge takes N from here: the N of an answer has to be one of these.

use std::sync::{Arc, Mutex};

use smallvec::SmallVec;
use tidegate_engine::limit::Algorithm;
use tidegate_engine::overlay::{Effect, Exception, Exceptions, Label};
use tidegate_engine::time::Timestamp;

use super::decided::{Counter, Decided};
use super::names::path;
use super::{Kind, Run, State};
use crate::node::world_time;
use crate::oracle::Record;
use crate::scenario::{Further, LimitSpec, Whom};
use crate::world::{MICRO, SECOND, Time, lock};

/// Whom an exception denies is asked to wait for so long at most.
const WAIT_MAX: Time = 3_600 * SECOND;

/// By which limit a descriptor is decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Decider {
    pub(super) requests: u32,
    /// How many hits fit at once.
    pub(super) room: u64,
    pub(super) window: Time,
    pub(super) algorithm: Algorithm,
    /// The width of its buckets, if it counts in buckets of time.
    pub(super) granularity: Time,
    /// It denies nothing.
    pub(super) is_shadow: bool,
    /// It denies only with all others of its kind.
    pub(super) is_quota: bool,
}

impl Decider {
    /// Where N is 0 nothing fits, whatever `burst` is.
    fn settled(self) -> Self {
        Self { room: if self.requests == 0 { 0 } else { self.room }, ..self }
    }
}

/// One exception of a node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Made {
    pub(super) limit: usize,
    pub(super) whom: Whom,
    pub(super) effect: Effect,
    /// When it begins, by the wall clock. `None`: at once.
    pub(super) from: Option<Timestamp>,
    /// When it ends, by the wall clock. `None`: when somebody ends it.
    pub(super) until: Option<Timestamp>,
}

impl Made {
    /// Whether it is in force at this time.
    pub(super) fn is_due(&self, wall: Timestamp) -> bool {
        self.from.is_none_or(|from| from <= wall) && self.until.is_none_or(|until| until > wall)
    }

    /// How long whoever it denies at this time is asked to wait.
    fn waits(&self, wall: Timestamp) -> Time {
        self.until.map_or(Time::MAX, |until| until.nanos_since(wall)).min(WAIT_MAX)
    }
}

/// The exceptions of one node, in the order in which they were made: all that were ever in force together, since when.
#[derive(Default)]
pub(super) struct Excepted(Mutex<Vec<(Time, Vec<Made>)>>);

impl Excepted {
    /// Those in force.
    pub(super) fn all(&self, limits: &[LimitSpec]) -> Exceptions {
        let exception =
            |made: &Made| Exception { path: path(limits, made.limit, made.whom), effect: made.effect };
        let label = |made: &Made| Arc::new(Label { id: String::new(), made: None, until: made.until });
        let made = self.now();
        let all: Vec<_> = made.iter().map(exception).collect();
        Exceptions::new(&all).labelled(made.iter().map(label).collect())
    }

    fn now(&self) -> Vec<Made> {
        lock(&self.0).last().map(|(_, all)| all.clone()).unwrap_or_default()
    }

    /// Makes an exception, instead of the one before for the same counters.
    pub(super) fn make(&self, now: Time, made: Made) {
        self.change(now, (made.limit, made.whom), Some(made));
    }

    /// Ends the exception for these counters.
    pub(super) fn end(&self, now: Time, of: (usize, Whom)) {
        self.change(now, of, None);
    }

    fn change(&self, now: Time, of: (usize, Whom), made: Option<Made>) {
        let mut all = self.now();
        all.retain(|other| (other.limit, other.whom) != of);
        all.extend(made);
        self.put(now, all);
    }

    /// These are in force from now on, and no others.
    pub(super) fn put(&self, now: Time, all: Vec<Made>) {
        lock(&self.0).push((now, all));
    }

    /// The exceptions that a counter met at any time since then. `brings_limit`: the request brings its own limit, which can
    /// only be denied.
    fn met(
        &self,
        since: Time,
        (limit, key): (usize, u64),
        brings_limit: bool,
    ) -> SmallVec<[Option<Made>; 1]> {
        let history = lock(&self.0);
        let first = history.iter().rposition(|&(at, _)| at < since);
        let before = first.is_none().then_some(None);
        let met = |(_, all): &(Time, Vec<Made>)| {
            let mut own = all.iter().filter(|made| made.limit == limit && made.whom.is_for(key));
            // One for a counter comes before one for all of them.
            let denies = own.clone().filter(|made| made.effect == Effect::Deny);
            let deny = denies.max_by_key(|made| made.whom.is_one());
            let other = own.rfind(|made| made.effect != Effect::Deny).filter(|_| !brings_limit);
            deny.or(other).copied()
        };
        before.into_iter().chain(history[first.unwrap_or(0)..].iter().map(met)).collect()
    }
}

impl Run {
    /// Judges by which limit a descriptor was decided, and whether the exception that the decision names is the one that
    /// it was made under; and how long whoever it denies is asked to wait: as long as its key is banned, at least. `noted`: what its
    /// rule says. `is_patient`: the client waited. `is_named`: whether this is the exception that the decision names.
    pub(super) fn check_limit(
        &self,
        noted: &Record,
        (counter, answer): (&Counter, &Decided),
        is_patient: bool,
        is_named: impl Fn(Option<Effect>) -> bool,
    ) {
        let decided = counter.by;
        let limit = &self.scenario.limits[noted.limit];
        // Who asks a further limit meets the exceptions of the first one.
        let of = (self.scenario.first_limit(noted.limit), noted.key);
        let (met, wall) = {
            let State { excepted, home, .. } = &lock(&self.nodes)[noted.node];
            let now = self.world.now();
            let wall = home.as_ref().map_or_else(|| world_time(now), |home| home.wall_at(now));
            (excepted.met(noted.asked, of, limit.is_override), wall)
        };
        let met = match self.scenario.shares_exceptions() {
            true => self.shared_met(noted, of, limit.is_override),
            false => met,
        };
        let all = self.recorded_limits(noted, is_patient);
        let under = |made: &Option<Made>, own: Decider| match (made.map(|made| made.effect), limit.further) {
            (None, _) => own,
            (Some(Effect::Unlimited), _) => Decider { is_shadow: true, ..own },
            // The first limit denies for all, and N of slots has nothing to do with that of a rate.
            (Some(Effect::Deny), Some(_)) | (Some(Effect::Limit { .. }), Some((_, Further::Slots))) => own,
            (Some(Effect::Limit { requests, .. }), further) => {
                let times = further.map_or(1, |(_, further)| further.factor());
                let requests = requests.map_or(own.requests, |requests| requests as u32 * times);
                // A `burst` that equals N follows N.
                let follows = own.room == u64::from(own.requests);
                let room = if follows { requests.into() } else { own.room };
                Decider { requests, room, is_shadow: limit.is_shadow, ..own }
            }
            (Some(Effect::Deny), None) => {
                let is_quota = self.scenario.modes.quota;
                Decider { requests: 0, room: 0, is_shadow: false, is_quota, ..own }
            }
        };
        // An explanation names an exception, and its waits are those of the counter.
        let bans = answer.bans.iter().filter(|ban| ban.at == counter.at);
        let banned = bans.map(|ban| ban.left).max().unwrap_or(0);
        let waits = |made: &Made| {
            let says_end = counter.excepted == Some(Effect::Deny) && limit.further.is_none();
            !says_end || made.waits(wall).max(banned) == counter.reset_nanos
        };
        let may = met.iter().flat_map(|made| all.iter().map(move |&own| (under(made, own), made)));
        let is_due = |(decider, made): (Decider, &Option<Made>)| {
            decider.settled() == decided.settled()
                && is_named(made.map(|made| made.effect))
                && made.as_ref().is_none_or(waits)
        };
        if !may.clone().any(is_due) {
            let may: Vec<_> = may.collect();
            let what = format!(
                "request {} was decided by {decided:?}, and names {:?} and {} us to wait at {wall:?}, though one of \
                 {may:?} was in force",
                noted.request,
                counter.excepted,
                counter.reset_nanos / MICRO,
            );
            self.wrong(Kind::WrongLimit, what);
        }
    }
}
