//! Plots: a few requests and faults that together prepare what goes wrong seldom by chance.
//!
//! In: a scenario that was drawn. Out: more requests and faults in it. Plots have counters that others do not ask, so
//! that these begin empty, and end with requests for all that is left: what was counted too low is admitted then.
//! Some scenarios are made for one plot, by `stage`: few that are drawn have all that it needs.

use super::{ASKED, Ask, Fault, Item, Layout, LimitSpec, Scenario, What};
use crate::random::Random;
use crate::world::{MICRO, MILLI, SECOND, Time};

/// The counter of plots, of each limit: other clients have fewer.
const KEY: u64 = 6;
/// Longer windows take too long to come round.
const WINDOW_SECS_MAX: u64 = 5;
/// Of fewer hits too few are leased, and too few drain while an answer is late.
const REQUESTS_MIN: u32 = 40;
/// Makes the draws of close requests others than those of the rest.
const CLOSE: u64 = 0x636c_6f73_6530_3031;

/// A few requests and faults that together prepare what goes wrong seldom by chance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plot {
    /// A lease that is spent as late as it may.
    LateSpender,
    /// A request that one server charged and another denies late.
    LateDenial,
    /// A call that reaches its server when nobody waits for it any more.
    LateCall,
    /// Requests that one server charges and another denies, again and again.
    Denials,
    /// A lease that outlives the memory of its server.
    LostLease,
    /// A master that does not know yet that it is none any more.
    TwoMasters,
}

impl Plot {
    /// All of them.
    pub(super) const ALL: [Self; 6] = [
        Self::LateSpender,
        Self::LateDenial,
        Self::LateCall,
        Self::Denials,
        Self::LostLease,
        Self::TwoMasters,
    ];

    /// Whether it goes wrong by a denial for which there is no reason.
    pub(super) fn is_of_denials(self) -> bool {
        matches!(self, Self::LateCall | Self::Denials)
    }
}

/// Some scenarios have plots; one that was staged for a plot has that.
pub(super) fn add(random: &mut Random, scenario: &mut Scenario, staged: Option<Plot>) {
    let has_some = staged.is_some() || random.one_in(2);
    let Some(nodes) = two_nodes(random, scenario).filter(|_| has_some) else { return };
    for _ in 0..1 + random.below(3) {
        let plot = staged.unwrap_or_else(|| random.pick(&Plot::ALL));
        match plot {
            Plot::LateSpender => late_spender(random, scenario, nodes),
            Plot::LateDenial => late_denial(random, scenario, nodes),
            Plot::LateCall => late_call(random, scenario, nodes),
            Plot::Denials => denials(random, scenario, nodes),
            Plot::LostLease => lost_lease(random, scenario, nodes),
            Plot::TwoMasters => two_masters(random, scenario, nodes),
        };
    }
    scenario.asks.sort_by_key(|ask| ask.at);
    scenario.faults.sort_by_key(|fault| fault.at);
}

/// A node that hears late from Redis takes a lease, and spends it as late as it may. Then others take all that is left, and
/// come back when the lease leaves the window.
fn late_spender(random: &mut Random, scenario: &mut Scenario, (node, other): (usize, usize)) -> Option<()> {
    let limit = a_limit(random, scenario, |limit| limit.is_leased && comes_round(limit))?;
    let back = random.between(scenario.timeout / 10, scenario.timeout / 10 * 6);
    (scenario.far[node], scenario.far[other]) = ([0, back], [0, 0]);
    let (hits, window) = of_limit(scenario, limit);
    let begins = moment(random, window);
    for at in [begins, begins + MILLI] {
        ask(scenario, at, node, &[(limit, hits / 16)]);
    }
    let ends = begins + MILLI + scenario.settings.lease_time;
    ask(scenario, ends + random.below(back), node, &[(limit, hits / 10)]);
    take_all(scenario, ends + back + MILLI, other, (limit, hits));
    let comes_back = ends + window;
    for place in 0..60 {
        ask(scenario, comes_back + place * (back + window / 60) / 60, other, &[(limit, hits / 20)]);
    }
    Some(())
}

/// Two requests ask a counter, and another one that denies them: one at once, and the other late. Meanwhile something happens
/// to the server that charged them, or the counter drains; others ask too. Then the hits of the late one go back.
fn late_denial(random: &mut Random, scenario: &mut Scenario, (node, other): (usize, usize)) -> Option<()> {
    let denies_cold = scenario.settings.denies_cold;
    let limit = a_limit(random, scenario, |limit| !denies_cold || comes_round(limit))?;
    let denies = another(random, scenario, limit)?;
    let (slow, server) = (server_of(random, scenario, denies)?, server_of(random, scenario, limit)?);
    let (hits, window) = of_limit(scenario, limit);
    let (begins, lasts) = (moment(random, window.min(SECOND)), scenario.timeout / 10 * random.between(6, 9));
    let mut happens = |at, what| scenario.faults.push(Fault { at, what });
    happens(begins - MICRO, What::Cut { node, server: slow, lasts });
    match random.below(8) {
        0 => happens(begins + random.below(2 * MILLI), What::Flush { server }),
        1 => happens(begins + random.below(MILLI), What::Restart { server, lasts: 2 * MILLI }),
        2..5 => happens(begins - random.below(MILLI), What::FailOver { server, lacks: 3 * MILLI }),
        _ => {}
    }
    let too_many = scenario.limits[denies].most() + 1;
    let late = begins + random.below(200 * MICRO);
    ask(scenario, begins, other, &[(limit, hits / 4), (denies, too_many)]);
    ask(scenario, late, node, &[(limit, hits / 4), (denies, too_many)]);
    for at in [lasts / 4, lasts / 2, lasts / 4 * 3, lasts - MILLI] {
        ask(scenario, begins + at, random.pick(&[node, other]), &[(limit, hits / 6)]);
    }
    take_all(scenario, begins + lasts + 3 * MILLI, other, (limit, hits));
    Some(())
}

/// Calls of a node wait on their way for longer than its clients do. A window after the last that they may have been done,
/// there is room again.
fn late_call(random: &mut Random, scenario: &mut Scenario, (node, other): (usize, usize)) -> Option<()> {
    let limit = a_limit(random, scenario, comes_round)?;
    let ((hits, window), lasts) = (of_limit(scenario, limit), scenario.timeout * random.between(4, 10));
    let begins = moment(random, window);
    let cut = (0..scenario.layout.servers()).map(|server| What::Cut { node, server, lasts });
    scenario.faults.extend(cut.map(|what| Fault { at: begins, what }));
    for _ in 0..random.between(1, 3) {
        ask(scenario, begins + 1 + random.below(MILLI), node, &[(limit, 1 + random.below(hits / 4))]);
    }
    ask(scenario, begins + lasts + window - random.below(lasts / 2), other, &[(limit, hits)]);
    Some(())
}

/// Requests ask a counter, and another one that denies them. When the hits of all of them have gone back, there is room again.
/// In half of these scenarios they are so close and so large that another node is denied by hits that go back; it may remember
/// that for a moment only.
fn denials(random: &mut Random, scenario: &mut Scenario, (node, other): (usize, usize)) -> Option<()> {
    let limit = a_limit(random, scenario, |limit| !limit.is_leased)?;
    let denies = another(random, scenario, limit)?;
    let (too_many, (hits, window)) = (scenario.limits[denies].most() + 1, of_limit(scenario, limit));
    let (mut asked, mut at) = (1 + random.below(hits / 4), moment(random, window.min(SECOND)));
    let mut close = Random::new(scenario.seed ^ CLOSE);
    let is_close = close.one_in(2);
    if is_close {
        (asked, scenario.deny_cache_bytes) = (hits / 4 * 3, 1 << 20);
    }
    for place in 0..random.between(2, 5) {
        let (mut by, mut apart) = (random.pick(&[node, other]), random.between(1, 200) * MILLI);
        if is_close {
            (by, apart) = (if place == 0 { node } else { other }, close.between(50, 250) * MICRO);
        }
        ask(scenario, at, by, &[(limit, asked), (denies, too_many)]);
        at += apart;
    }
    // What is left of a bucket is rounded down.
    let all = hits - u64::from(scenario.limits[limit].algorithm.is_bucket());
    ask(scenario, at + SECOND + random.below(50 * MILLI), other, &[(limit, all)]);
    Some(())
}

/// A node takes a lease, servers lose their memory, and the lease is spent as late as it may. When counters are no longer cold,
/// others take all that is left.
fn lost_lease(random: &mut Random, scenario: &mut Scenario, (node, other): (usize, usize)) -> Option<()> {
    let is_known = scenario.settings.denies_cold;
    let limit = a_limit(random, scenario, |limit| is_known && limit.is_leased && comes_round(limit))?;
    let (hits, window) = of_limit(scenario, limit);
    let begins = moment(random, window);
    for at in [begins, begins + MILLI] {
        ask(scenario, at, node, &[(limit, hits / 16)]);
    }
    let lost = begins + 3 * MILLI;
    let flushes =
        (0..scenario.layout.servers()).map(|server| Fault { at: lost, what: What::Flush { server } });
    scenario.faults.extend(flushes);
    ask(scenario, lost + 100 * MICRO, other, &[(limit, 1)]);
    ask(
        scenario,
        begins + scenario.settings.lease_time - random.below(5 * MILLI),
        node,
        &[(limit, hits / 10)],
    );
    take_all(scenario, lost + MILLI + window, other, (limit, hits));
    Some(())
}

/// A replica takes over, and a node uses it at once, while another still uses the old master and takes all that is left there.
/// Others take all from the new one when it is no longer cold.
fn two_masters(random: &mut Random, scenario: &mut Scenario, (node, other): (usize, usize)) -> Option<()> {
    let is_known = scenario.settings.denies_cold && scenario.layout == Layout::Sentinel;
    let limit = a_limit(random, scenario, |limit| is_known && comes_round(limit))?;
    let (hits, window) = of_limit(scenario, limit);
    let (begins, lasts) = (moment(random, window), random.between(250, 500) * MILLI);
    let mut happens = |what| scenario.faults.push(Fault { at: begins, what });
    happens(What::FailOver { server: random.index(2), lacks: lasts });
    (0..2).for_each(|server| happens(What::Break { node: other, server }));
    take_all(scenario, begins + lasts - 20 * MILLI, node, (limit, hits));
    take_all(scenario, begins + lasts + window - 30 * MILLI, other, (limit, hits));
    Some(())
}

/// A limit with room for a plot.
fn a_limit(random: &mut Random, scenario: &Scenario, is_meant: impl Fn(&LimitSpec) -> bool) -> Option<usize> {
    let has_room = |&number: &usize| {
        let limit = &scenario.limits[number];
        let is_judged = !limit.is_shadow && !limit.is_reported;
        is_judged && limit.requests[0] >= REQUESTS_MIN && is_meant(limit)
    };
    let numbers: Vec<usize> = (0..scenario.limits.len()).filter(has_room).collect();
    (!numbers.is_empty()).then(|| random.pick(&numbers))
}

/// Another limit than this one.
fn another(random: &mut Random, scenario: &Scenario, limit: usize) -> Option<usize> {
    let limits = scenario.limits.len();
    let after = 1 + random.below(limits.checked_sub(1).filter(|&more| more > 0)? as u64) as usize;
    Some((limit + after) % limits)
}

/// Whether its windows are short enough to come round.
fn comes_round(limit: &LimitSpec) -> bool {
    limit.window_secs[0] <= WINDOW_SECS_MAX
}

/// The server of a limit's counter, perhaps. `None`: all counters are in one place.
fn server_of(random: &mut Random, scenario: &Scenario, limit: usize) -> Option<usize> {
    match scenario.layout {
        Layout::PerSecond => Some(usize::from(comes_round(&scenario.limits[limit]))),
        Layout::Cluster(masters @ 2..) => Some(random.index(masters)),
        Layout::Cluster(_) | Layout::Single | Layout::Sentinel | Layout::Alone(_) => None,
    }
}

/// Two different nodes.
fn two_nodes(random: &mut Random, scenario: &Scenario) -> Option<(usize, usize)> {
    let nodes = scenario.clocks.len() as u64;
    let (node, after) =
        (random.below(nodes), 1 + random.below(nodes.checked_sub(1).filter(|&more| more > 0)?));
    Some((node as usize, ((node + after) % nodes) as usize))
}

/// N and W.
fn of_limit(scenario: &Scenario, limit: usize) -> (u64, Time) {
    let limit = &scenario.limits[limit];
    (limit.requests[0].into(), limit.window_secs[0] * SECOND)
}

/// When a plot begins: when no server is cold any more that has just started, and so that it is over before clients have asked.
fn moment(random: &mut Random, window: Time) -> Time {
    random.between(2 * SECOND + window, ASKED - 2 * window)
}

/// Requests for half of the hits, a quarter of them, and so on, and then single ones.
fn take_all(scenario: &mut Scenario, from: Time, node: usize, (limit, hits): (usize, u64)) {
    let halves = (1..8).map(|power| hits >> power).filter(|&hits| hits > 0);
    for (place, hits) in (0..).zip(halves.flat_map(|hits| [hits; 2]).chain([1; 8])) {
        ask(scenario, from + place * 200 * MICRO, node, &[(limit, hits)]);
    }
}

/// A request for so many hits of each of these limits.
fn ask(scenario: &mut Scenario, at: Time, node: usize, items: &[(usize, u64)]) {
    let item = |&(limit, hits): &(usize, u64)| Item::new(limit, KEY, hits);
    let items = items.iter().map(item).collect();
    scenario.asks.push(Ask::new(at, node, items));
}
