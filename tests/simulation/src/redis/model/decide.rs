//! One request, or the part of it whose counters live in one slot: look at all counters, settle, charge.

use std::collections::BTreeMap;

use smallvec::SmallVec;
use tidegate_engine::limit::Algorithm;

use super::Moment;
use super::check::{Check, MOST, Reader, doubles};
use super::counter::{Ahead, Counter, Kind, Look};
use super::holds::Holds;
use crate::redis::database::Database;

/// A lease is at most this part of the rest.
const LEASE_PART: i64 = 8;

/// What the call knows of descriptors that are not in it.
struct Whole {
    stop: bool,
    banned: bool,
    any_over: bool,
    denied: bool,
    quotas: i64,
    quotas_over: i64,
}

/// A counter that a call works on.
struct Open {
    counter: Counter,
    exists: bool,
    /// When it expires from now on.
    kept: Option<i64>,
    ahead: Ahead,
    charged: i64,
    /// What reservations hold of its limit.
    reserved: i64,
}

/// A check, and what its counter said.
struct Looked<'a> {
    check: Check<'a>,
    over: bool,
    /// What is left, or what holds found.
    left: i64,
    before: i64,
    is_cold: bool,
    /// Hits that earlier checks of the request take.
    ahead: i64,
    /// Hits that they give back.
    given: i64,
}

/// Whether the request passes, and whether fixed windows that are not over are not charged.
#[derive(Clone, Copy)]
struct Settled {
    passes: bool,
    stopping: bool,
    /// Nothing is charged but reported costs.
    banned: bool,
}

type Counters = SmallVec<[Option<Open>; 4]>;

/// The reply to a call, in bytes.
pub(super) fn decide(
    moment: &Moment,
    keys: &[&[u8]],
    arguments: &[&[u8]],
    database: &mut Database,
) -> Vec<u8> {
    let [first, checks @ ..] = arguments else { return Vec::new() };
    let mut from = Reader::new(first);
    if moment.now > from.double() {
        return doubles([moment.now]);
    }
    let stop = from.byte();
    let whole = Whole {
        stop: stop == 1,
        banned: stop == 2,
        any_over: from.byte() == 1,
        denied: from.byte() == 1,
        quotas: from.four(),
        quotas_over: from.four(),
    };
    let mut checks: SmallVec<[Check<'_>; 4]> = checks.iter().map(|packed| Check::read(packed)).collect();
    let mut counters = open(moment, keys, &checks, database);
    let looked = look_at_all(moment, &mut checks, &mut counters);
    counters.iter_mut().flatten().for_each(|open| open.ahead = Ahead::default());
    let reply = charge(moment, &whole, &looked, &mut counters);
    for (key, open) in keys.iter().zip(counters) {
        if let Some(open) = open.filter(|open| open.exists) {
            let expiry = open.kept.map(|micros| moment.expiry(micros));
            database.put_counter(key, open.counter, expiry, moment.now);
        }
    }
    reply
}

fn open(moment: &Moment, keys: &[&[u8]], checks: &[Check<'_>], database: &mut Database) -> Counters {
    let mut counters: Counters = keys.iter().map(|_| None).collect();
    for check in checks {
        counters[check.place].get_or_insert_with(|| {
            let known = database.take_counter(keys[check.place], moment.now);
            Open {
                exists: known.is_some(),
                counter: known.unwrap_or_else(|| Counter::unused(check.algorithm)),
                kept: None,
                ahead: Ahead::default(),
                charged: 0,
                reserved: 0,
            }
        });
    }
    counters
}

fn opened(counters: &mut Counters, place: usize) -> &mut Open {
    counters[place].as_mut().expect("a check opens its counter")
}

impl Open {
    fn kind(&mut self) -> &mut dyn Kind {
        self.counter.kind()
    }

    /// Notes what a charge did.
    fn charged(&mut self, kept: Option<i64>) {
        self.kept = kept.or(self.kept);
        self.exists |= !self.kind().is_empty();
    }
}

/// Holds first: what they hold is taken from the limits already.
fn look_at_all<'a>(
    moment: &Moment,
    checks: &mut [Check<'a>],
    counters: &mut Counters,
) -> SmallVec<[Looked<'a>; 4]> {
    let mut holds = BTreeMap::new();
    for number in 0..checks.len() {
        let check = checks[number];
        if check.algorithm == Algorithm::Holds {
            let (looked, held, worst) = look_at_holds(moment, check, opened(counters, check.place));
            if let Some(limited) = (check.requests as usize).checked_sub(1).and_then(|of| checks.get_mut(of))
            {
                let of = opened(counters, limited.place);
                (of.reserved, of.ahead.taken) = (held, held);
                if check.is_reported() {
                    limited.hits = Holds::owes(looked.left, limited.hits);
                }
                limited.repeats = limited.reserves() && Holds::is_open(looked.left);
                let (limited, place) = (*limited, check.requests as usize - 1);
                if let Some(bound) = (check.capacity as usize).checked_sub(1) {
                    checks[bound].bound(&limited, place, worst);
                }
            }
            holds.insert(number, looked);
        }
    }
    let mut all: SmallVec<[Looked<'a>; 4]> = SmallVec::new();
    for (number, check) in checks.iter().enumerate() {
        let before = check.bounds.map(|(of, worst)| all[of].before_bound(worst));
        let own = holds.remove(&number);
        all.push(own.unwrap_or_else(|| look(moment, *check, before, opened(counters, check.place))));
    }
    all
}

/// Returns what others hold too, and what that may cost at most.
fn look_at_holds<'a>(moment: &Moment, check: Check<'a>, open: &mut Open) -> (Looked<'a>, i64, i64) {
    let kept = open.kind().advance(&check, moment.now);
    open.kept = kept.or(open.kept);
    let look = open.kind().look(&check, check.hits, Ahead::default());
    let (held, worst) = (look.before, open.kind().worst(&check));
    // Whoever ends a hold needs no room.
    let is_cold = !check.is_reported() && moment.is_cold(&check);
    (Looked::of(check, look, is_cold), held, worst)
}

/// What comes before a bound is another thing than what comes before other checks.
fn look<'a>(moment: &Moment, check: Check<'a>, bound: Option<(i64, Ahead)>, open: &mut Open) -> Looked<'a> {
    let kept = open.kind().advance(&check, moment.now);
    open.kept = kept.or(open.kept);
    for (age, hits) in check.unsynced() {
        let ahead = open.ahead;
        let kept = open.kind().charge_at(&check, moment.now - age, hits, ahead);
        open.charged(kept);
    }
    let ahead = open.ahead.taken - open.reserved;
    if check.gives() {
        let newest = check.hits.min(ahead);
        let given = (open.ahead.given + check.hits - newest).min(MOST);
        open.ahead = Ahead { taken: open.ahead.taken - newest, given };
    }
    let (ahead, before) = bound.unwrap_or((ahead, open.ahead));
    let hits = if check.gives() { 0 } else { check.hits };
    let look = open.kind().look(&check, hits, before);
    let looked = Looked { ahead, given: before.given, ..Looked::of(check, look, moment.is_cold(&check)) };
    // A reservation that is made again is answered as the first time.
    let looked = Looked { over: looked.over && !check.repeats, ..looked };
    let takes = match looked.holds(true) {
        _ if check.bounds.is_some() => 0,
        0 => looked.charges(open, Settled { passes: true, stopping: false, banned: false }),
        holds => holds,
    };
    open.ahead.taken = (open.ahead.taken + takes).min(MOST);
    looked
}

impl<'a> Looked<'a> {
    fn of(check: Check<'a>, look: Look, is_cold: bool) -> Self {
        let Look { over, left, before } = look;
        let looked = Self { check, over, left, before, is_cold, ahead: 0, given: 0 };
        if !is_cold {
            return looked;
        }
        let over = !check.gives() && (check.hits > 0 || check.algorithm != Algorithm::FixedWindow);
        Self { over, left: 0, before: check.capacity, ..looked }
    }

    /// What comes before the bound on its worst cases: what comes before itself, with the worst cases in place of the holds.
    fn before_bound(&self, worst: i64) -> (i64, Ahead) {
        (self.ahead, Ahead { taken: self.ahead + worst, given: self.given })
    }

    /// The hits that a reservation holds of it.
    fn holds(&self, passes: bool) -> i64 {
        if self.check.reserves() && passes && !self.over { self.check.hits } else { 0 }
    }

    /// The hits that are charged.
    fn charges(&self, open: &mut Open, settled: Settled) -> i64 {
        let (check, ahead) = (&self.check, open.ahead);
        if check.gives() || check.reserves() || check.bounds.is_some() {
            return 0;
        }
        if check.algorithm == Algorithm::FixedWindow {
            let stops = settled.stopping && !self.over || settled.banned;
            return if stops && !check.is_reported() { 0 } else { check.hits };
        }
        if check.is_reported() {
            return check.hits.min(open.kind().report_max(check, ahead));
        }
        if settled.passes && !self.over { check.hits } else { 0 }
    }
}

/// Charges what passes, and then what leases take. Returns the reply.
fn charge(moment: &Moment, whole: &Whole, looked: &[Looked<'_>], counters: &mut Counters) -> Vec<u8> {
    let settled = settle(whole, looked, None);
    let trials = trials(whole, looked);
    let mut reply: SmallVec<[i64; 32]> = SmallVec::from_slice(&[moment.now]);
    for it in looked {
        let own = it.check.stands_in.map_or(settled, |(_, trial)| trials[&trial]);
        charge_one(it, own, settled.passes, opened(counters, it.check.place), &mut reply);
    }
    // So they take no room from the request itself.
    for it in looked {
        if let Some(lease) = it.check.lease {
            take_lease(it, lease, opened(counters, it.check.place), &mut reply);
        }
    }
    doubles(reply)
}

fn charge_one(
    it: &Looked<'_>,
    settled: Settled,
    passes: bool,
    open: &mut Open,
    reply: &mut SmallVec<[i64; 32]>,
) {
    let check = &it.check;
    let charge = it.charges(open, settled);
    let asked = if check.gives() { 0 } else { check.hits };
    let mut wanted = asked.max(1) + (it.ahead - open.charged).max(0);
    // A client that reports a cost does not ask for it again.
    if check.is_reported() && it.over {
        wanted = 1;
    }
    let renews = charge > 0 && open.kind().renews(check);
    if charge > 0 {
        let kept = open.kind().charge(check, charge);
        open.charged(kept);
        open.charged += charge;
    }
    if check.gives() && open.exists && !it.is_cold {
        let kept = open.kind().refund(check, check.hits);
        open.kept = kept.or(open.kept);
    }
    let left = match check.algorithm {
        _ if it.is_cold => 0,
        Algorithm::Holds => it.left,
        _ => open.kind().look(check, 0, Ahead::default()).left,
    };
    let held = check.bounds.map_or(open.reserved, |(_, worst)| worst);
    let may_be_held = it.over && held > 0 && !it.is_cold;
    let only_held = may_be_held && !open.kind().look(check, wanted, Ahead::default()).over;
    let over = i64::from(it.over) + if it.is_cold { 2 } else { 0 } + if only_held { 4 } else { 0 };
    let free = (left - held - it.holds(passes)).max(0);
    reply.extend([over, it.before, free, charge, open.kind().latest(), wanted]);
    let waits = it.over && !only_held;
    let room_for = if waits { wanted } else { left + 1 };
    let [first, second, third] = open.kind().state(check, room_for, waits);
    reply.extend([if renews { Some(1) } else { first }, second, third].into_iter().flatten());
}

fn take_lease(it: &Looked<'_>, (hits, lasts): (i64, i64), open: &mut Open, reply: &mut SmallVec<[i64; 32]>) {
    let left = open.kind().look(&it.check, 0, Ahead::default()).left;
    let most = if it.over || it.is_cold { 0 } else { hits.min(left / LEASE_PART) };
    if most < 2 {
        reply.extend([0, 0]);
        return;
    }
    let ends = open.kind().latest() + lasts;
    let kept = open.kind().charge_at(&it.check, ends, most, Ahead::default());
    open.charged(kept);
    reply.extend([most, open.kind().newest()]);
}

/// With the checks as they are, or with candidates that stand in for some.
fn settle(whole: &Whole, looked: &[Looked<'_>], stands_in: Option<&BTreeMap<usize, &Looked<'_>>>) -> Settled {
    let Whole { stop, mut banned, mut any_over, mut denied, mut quotas, mut quotas_over } = *whole;
    for (place, it) in looked.iter().enumerate().filter(|(_, it)| it.check.stands_in.is_none()) {
        let judged = stands_in.and_then(|stands_in| stands_in.get(&place).copied()).unwrap_or(it);
        let over = judged.over && !it.check.is_shadow();
        let is_ban = it.check.algorithm == Algorithm::Ban;
        any_over |= judged.over && (over || !is_ban);
        banned |= over && is_ban;
        if it.check.is_quota() {
            quotas += 1;
            quotas_over += i64::from(over);
        } else {
            denied |= over;
        }
    }
    let passes = !denied && (quotas == 0 || quotas_over < quotas);
    Settled { passes, stopping: stop && any_over, banned }
}

/// What would become of the request on each trial.
fn trials(whole: &Whole, looked: &[Looked<'_>]) -> BTreeMap<i64, Settled> {
    let mut trials: BTreeMap<i64, BTreeMap<usize, &Looked<'_>>> = BTreeMap::new();
    for it in looked {
        if let Some((place, trial)) = it.check.stands_in {
            trials.entry(trial).or_default().insert(place, it);
        }
    }
    let settled = |(trial, stands_in)| (trial, settle(whole, looked, Some(&stands_in)));
    trials.into_iter().map(settled).collect()
}
