//! What a node has decided about a request: what an answer says, and by which limits it was decided.
//!
//! In: a decision of the program. Out: a copy of all that is judged, which lives on when the request does not.

use smallvec::SmallVec;
use tidegate_engine::decision::{Code, Decision, Limited, Status};
use tidegate_engine::limit::{Algorithm, Found, Limit, Slot};
use tidegate_engine::overlay::Effect;
use tidegate_engine::rules::Rule;

use super::decider::Decider;

/// What was decided.
pub(super) struct Decided {
    pub(super) is_ok: bool,
    /// A counter in memory had no room, of this request or of another one of its batch.
    pub(super) is_full: bool,
    /// N and the hits left of the limit that headers show.
    pub(super) shown: Option<(u32, u64)>,
    /// After so long a client may ask again.
    pub(super) retry_after_secs: Option<u64>,
    /// The tokens of the slots that it took, each with the place of its counter.
    pub(super) tokens: Vec<(usize, String)>,
    /// What candidates say.
    pub(super) trials: Vec<Trial>,
    /// The bans that deny it.
    pub(super) bans: SmallVec<[Banned; 1]>,
    /// What became of each descriptor.
    pub(super) met: SmallVec<[Met; 4]>,
    /// Of each descriptor that meets a limit, in the order of the limits of its rule.
    pub(super) counters: SmallVec<[Counter; 1]>,
}

/// What became of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Met {
    NoLimit,
    Replaced,
    Unlimited,
    Limited,
}

/// A ban that denies a descriptor.
#[derive(Clone, Copy, Debug)]
pub(super) struct Banned {
    /// The place of the descriptor.
    pub(super) at: usize,
    /// For how long.
    pub(super) left: u64,
    /// This denial has begun it: its limit has denied it.
    pub(super) has_begun: bool,
}

/// What was decided about one counter, and by which limit.
pub(super) struct Counter {
    /// The rule that was met. `None`: the request brought its own limit.
    pub(super) rule: Option<usize>,
    /// The place of the descriptor.
    pub(super) at: usize,
    /// It is the one that the status of the descriptor shows.
    pub(super) is_shown: bool,
    /// It counts calls in flight.
    pub(super) is_slots: bool,
    /// The hits do not fit.
    pub(super) over: bool,
    /// How many hits are left, as the answer says.
    pub(super) remaining: u64,
    /// The time until capacity comes back, as the answer says.
    pub(super) reset_nanos: u64,
    /// By which limit. A shadow denies nothing, by its rule or by an exception.
    pub(super) by: Decider,
    /// What the exception did that the decision reports to metrics and in metadata.
    pub(super) excepted: Option<Effect>,
    /// What was found under the id of a reservation.
    pub(super) found: Option<Found>,
}

/// What a candidate says.
pub(super) struct Trial {
    /// Beside which of the counters.
    pub(super) place: usize,
    /// The request would pass.
    pub(super) passes: bool,
    pub(super) counter: Counter,
}

/// The width of the buckets of a sliding window, in nanoseconds.
fn granularity(limit: &Limit) -> u64 {
    let (buckets, nanos) = limit.buckets();
    if limit.algorithm() == Algorithm::SlidingWindow { nanos.div_ceil(buckets) } else { 0 }
}

impl Counter {
    fn of((at, limited): (usize, &Limited<'_>), is_shown: bool, excepted: Option<Effect>) -> Self {
        Self {
            rule: limited.origin.rule().map(|rule| rule.id),
            at,
            is_shown,
            is_slots: limited.limit.algorithm() == Algorithm::Concurrency,
            excepted,
            found: None,
            over: limited.verdict.over,
            remaining: limited.verdict.remaining,
            reset_nanos: limited.verdict.reset_nanos,
            by: Decider {
                requests: limited.limit.requests() as u32,
                room: limited.limit.burst(),
                algorithm: limited.limit.algorithm(),
                window: limited.limit.window_nanos(),
                granularity: granularity(&limited.limit),
                is_shadow: limited.shadow,
                is_quota: limited.quota,
            },
        }
    }
}

impl Decided {
    pub(super) fn of(decision: &Decision<'_>) -> Self {
        let met = |at: usize| decision.exceptions().iter().find(|met| met.descriptor == at);
        let of = |at: usize, limited: &Limited<'_>, is_shown: bool| {
            let held = decision.held().iter().find(|held| held.descriptor == at);
            let found = held.and_then(|held| held.found);
            Counter { found, ..Counter::of((at, limited), is_shown, met(at).map(|met| met.effect)) }
        };
        let of_status = |(at, status): (usize, &Status<'_>)| -> SmallVec<[Counter; 1]> {
            let Status::Limited(limited) = status else { return SmallVec::new() };
            let not_shown = decision.not_shown(at).map(|limited| of(at, limited, false));
            let mut all: SmallVec<[Counter; 1]> =
                std::iter::once(of(at, limited, true)).chain(not_shown).collect();
            all.sort_by_key(|counter| counter.rule);
            all
        };
        let counters: SmallVec<[Counter; 1]> =
            decision.statuses.iter().enumerate().flat_map(of_status).collect();
        let place = |at: usize, rule: Option<usize>| {
            let is_it = |counter: &Counter| counter.at == at && (rule.is_none() || counter.rule == rule);
            counters.iter().position(is_it).unwrap_or(usize::MAX)
        };
        let became = |status: &Status<'_>| match status {
            Status::NoLimit => Met::NoLimit,
            Status::Replaced(_) => Met::Replaced,
            Status::Unlimited(_) => Met::Unlimited,
            Status::Limited(_) => Met::Limited,
        };
        let met_all: SmallVec<[Met; 4]> = decision.statuses.iter().map(became).collect();
        let trial = |trial: &tidegate_engine::decision::Trial<'_>| Trial {
            place: place(trial.descriptor, None),
            passes: trial.passes,
            counter: Counter::of((trial.descriptor, &trial.limited), false, None),
        };
        let token = |(at, rule, slot): (usize, &Rule, Slot)| (place(at, Some(rule.id)), slot.to_string());
        let mut tokens: Vec<_> = decision.slots().map(token).collect();
        tokens.sort();
        let trials = decision.trials().iter().map(trial).collect();
        let ban = |ban: &tidegate_engine::decision::Banned<'_>| Banned {
            at: ban.descriptor,
            left: ban.nanos_left,
            has_begun: ban.has_begun,
        };
        Self {
            is_ok: decision.code == Code::Ok,
            is_full: false,
            shown: decision.tightest().map(|it| (it.limit.requests() as u32, it.verdict.remaining)),
            retry_after_secs: decision.retry_after_secs(),
            trials,
            tokens,
            bans: decision.bans().iter().map(ban).collect(),
            met: met_all,
            counters,
        }
    }
}
