//! Reservations: hits are held for calls whose cost is known later, and the cost is committed, once or more often, late or never.
//!
//! In: a scenario that was drawn. Out: the same with `reserve` for one or two of its limits. Some of the requests that ask these reserve
//! now, and others commit what they have reserved, whatever they were answered: who had no answer does so too.

use tidegate_engine::limit::Algorithm;

use super::{ASKED, Ask, Cancelled, Form, Item, Layout, LimitSpec, Scenario, debts};
use crate::random::Random;
use crate::world::{MILLI, SECOND, Time};

/// Few counters of memory fill less.
const ROOMY: u64 = 1 << 20;

/// The `reserve` of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reserve {
    /// How long a hold lasts that nobody ends.
    pub ttl: Time,
    /// `expired: charge`.
    pub charges: bool,
    /// A hold may be less than the worst case.
    pub hold: Option<Hold>,
}

/// The `hold` of a limit, and its `overdraft`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    /// So many of a hundred calls cost no more.
    pub percentile: u64,
    /// Each counter learns by itself.
    pub is_of_counter: bool,
    /// What is held until enough was learnt.
    pub initial: u64,
    /// The most that a call may cost.
    pub max: u64,
    /// How far the worst cases may exceed N, in thousandths of it.
    pub overdraft: u64,
}

/// What a request does about a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// Its id.
    pub id: u32,
    /// The hits to hold, or the cost.
    pub hits: u64,
    /// It ends the reservation.
    pub is_commit: bool,
}

/// A third of all scenarios have reservations.
pub(super) fn add(random: &mut Random, scenario: &mut Scenario) {
    if !random.one_in(3) || !may_have_some(scenario) {
        return;
    }
    let may = |&number: &usize| may_reserve(scenario, number) && !scenario.limits[number].is_operated();
    let mut limits: Vec<usize> = (0..scenario.limits.len()).filter(may).collect();
    limits.truncate(random.pick(&[1, 2]));
    add_to(random, scenario, &limits);
}

/// A third of those in which operators change limits have reservations of one of these.
pub(super) fn add_operated(random: &mut Random, scenario: &mut Scenario) {
    let may = |&number: &usize| may_reserve(scenario, number) && scenario.limits[number].is_operated();
    let limit = (0..scenario.limits.len()).find(may);
    let has_some = scenario.limits.iter().any(|limit| limit.shape.reserve.is_some());
    let is_wanted = random.one_in(3) && !has_some && may_have_some(scenario);
    if let Some(number) = limit.filter(|_| is_wanted) {
        add_to(random, scenario, &[number]);
        debts::learn(random, &mut scenario.limits[number]);
    }
}

fn add_to(random: &mut Random, scenario: &mut Scenario, limits: &[usize]) {
    for &number in limits {
        let limit = &mut scenario.limits[number];
        (limit.is_leased, limit.is_shadow, limit.is_reported, limit.candidate) = (false, false, false, None);
        (limit.requests[1], limit.window_secs[1]) = (limit.requests[0], limit.window_secs[0]);
        limit.shape.reserve =
            Some(Reserve { ttl: (1 + random.below(4)) * SECOND, charges: random.one_in(2), hold: None });
    }
    if !limits.is_empty() {
        let mut asks = asks(random, scenario, limits);
        asks.sort_by_key(|ask| ask.at);
        scenario.asks = asks;
    }
}

/// An id that no reservation has.
pub(super) fn next_id(scenario: &Scenario) -> u32 {
    let ids = scenario.asks.iter().filter_map(|ask| Some(ask.reserves?.id));
    1 + ids.max().unwrap_or(0)
}

fn may_have_some(scenario: &Scenario) -> bool {
    let is_roomy = !matches!(scenario.layout, Layout::Alone(alone) if alone.max_bytes < ROOMY);
    is_roomy && !scenario.modes.quota
}

/// Whether a limit is of those that go with `reserve`, and it is the only one of its rule.
fn may_reserve(scenario: &Scenario, number: usize) -> bool {
    let limit = &scenario.limits[number];
    let LimitSpec { algorithm, shape, .. } = limit;
    let has_further = scenario.limits.iter().any(|other| other.is_further_of(number));
    !limit.is_override
        && !matches!(algorithm, Algorithm::Concurrency | Algorithm::SlidingWindowWeighted)
        && limit.further.is_none()
        && !shape.is_quota
        && !shape.has_prefix
        && shape.classes.is_none()
        && shape.ban.is_none()
        && shape.replaces.is_none()
        && !scenario.is_replaced(number)
        && !has_further
}

/// The requests, of which some reserve, with those that commit.
fn asks(random: &mut Random, scenario: &mut Scenario, limits: &[usize]) -> Vec<Ask> {
    let (keeps, reserves) = (random.pick(&[1, 2, 5]), random.pick(&[1, 2, 4]));
    let mut asks = Vec::with_capacity(2 * scenario.asks.len());
    let mut id = 0;
    for ask in std::mem::take(&mut scenario.asks) {
        let is_own = ask.items.iter().all(|item| limits.contains(&item.limit));
        if !is_own || ask.batch.is_some() || ask.form != Form::Usual {
            asks.push(ask);
        } else if random.one_in(reserves) {
            id += 1;
            if random.one_in(keeps) {
                asks.extend(reservation(random, scenario, &ask, id, limits));
            }
        } else if random.one_in(keeps) {
            asks.push(ask);
        }
    }
    asks
}

/// A reservation, its repetitions and its commits.
fn reservation(random: &mut Random, scenario: &Scenario, ask: &Ask, id: u32, limits: &[usize]) -> Vec<Ask> {
    let (node, first) = (ask.node, ask.items[0]);
    let most = u64::from(scenario.limits[first.limit].requests[0]).max(1);
    let hits = random.pick(&[1, 1, 2, most / 5 + 1, most / 3 + 1, most]);
    let mut counters = vec![(first.limit, first.key)];
    if random.one_in(3) {
        let other = (random.pick(limits), random.below(3));
        counters.extend((other != counters[0]).then_some(other));
    }
    let asks_for = |at, node, hits, is_commit| {
        let items = counters.iter().map(|&(limit, key)| Item::new(limit, key, hits)).collect();
        let reserves = Some(Reservation { id, hits, is_commit });
        Ask { reserves, worker: ask.worker, ..Ask::new(at, node, items) }
    };
    let any_node = |random: &mut Random| random.index(scenario.clocks.len());
    let mut all = vec![asks_for(ask.at, node, hits, false)];
    if random.one_in(6) {
        let within = random.pick(&[5 * MILLI, 100 * MILLI, SECOND, 5 * SECOND]);
        let at = ask.at + random.below(within);
        let other = if random.one_in(4) { hits + 1 } else { hits };
        all.push(asks_for(at, any_node(random), other, false));
    }
    if !random.one_in(5) {
        let lasts = random.pick(&[MILLI, 20 * MILLI, 200 * MILLI, SECOND]);
        let mut at = ask.at + random.below(2 * lasts) * random.pick(&[1, 1, 1, 10]);
        let cost = random.pick(&[0, hits / 2, hits, hits, hits, hits + 1, 2 * hits]);
        all.push(asks_for(at, any_node(random), cost, true));
        while random.one_in(5) {
            let within = random.pick(&[5 * MILLI, 100 * MILLI, 2 * SECOND]);
            at += random.below(within);
            all.push(asks_for(at, any_node(random), cost, true));
        }
    }
    // Whoever commits later would be there when everything has to have ended.
    all.retain(|ask| ask.at < ASKED + 4 * SECOND);
    for ask in &mut all {
        ask.deadline = random.one_in(6).then(|| random.pick(&[1, 5, 20]) * MILLI);
        ask.cancelled = random.one_in(20).then(|| Cancelled::After(random.below(3 * MILLI)));
    }
    all
}
