//! What a seed means: all of a scenario is drawn from it.
//!
//! Faults are drawn as a swarm (Groce et al. 2012): each seed has only some kinds of them, few or many. Where all kinds
//! take turns, each undoes what another has prepared. Many come together, and close to what a client asks: what goes wrong
//! needs two of them within a millisecond.

use tidegate_engine::limit::Algorithm;
use tidegate_engine::plan::Modes;
use tidegate_engine::rules::StoreFailure;
use tidegate_serve::service::StaleMode;

use super::{
    ASKED, Ask, Cancelled, Fault, Item, Layout, LimitSpec, Scenario, Settings, StoredIn, What, alone, bans,
    batches, calendars, classes, debts, exceptions, explained, extremes, fleet, folder_records, further,
    learning, long_logs, mixed, operators, plots, prefixes, records, reservations, resets, shapes,
    shared_exceptions, shared_records, slots, stage, widened,
};
use crate::node::NodeClock;
use crate::random::Random;
use crate::redis::scripts::RunBy;
use crate::redis::server::Refusal;
use crate::world::{MICRO, MILLI, SECOND, Time};

/// Kinds of faults.
const KINDS: u64 = 13;

impl Scenario {
    /// What this seed means, with so many nodes if that is said.
    pub fn new(seed: u64, nodes: Option<usize>) -> Self {
        let mut random = Random::new(seed);
        let may_be_alone = nodes.is_none_or(|nodes| nodes == 1);
        let nodes = nodes.unwrap_or(1 + random.index(4));
        let layout = random.pick(&[
            Layout::Single,
            Layout::PerSecond,
            Layout::Sentinel,
            Layout::Cluster(1),
            Layout::Cluster(2),
            Layout::Cluster(3),
        ]);
        let clocks = (0..nodes).map(|_| NodeClock {
            offset: random.below(1_000) * SECOND,
            drift_ppm: random.between(0, 100) as i64 - 50,
        });
        let clocks = clocks.collect();
        let limits: Vec<_> = (0..1 + random.below(3)).map(|_| limit(&mut random, layout)).collect();
        let timeout = random.pick(&[20, 100, 100]) * MILLI;
        let (own, lease_time) = (random.bits(), random.pick(&[50, 100, 100, 200]) * MILLI);
        let mut scenario = Self {
            seed: own,
            later: 0,
            clocks,
            layout,
            scripts_run_by: RunBy::Model,
            limits,
            timeout,
            wait_replicas: random.pick(&[0, 0, 0, 1]),
            replicas_ahead: 0,
            deny_cache_bytes: random.pick(&[0, 0, 1 << 20]),
            settings: Settings { lease_time, denies_cold: random.one_in(3), local_share_percent: 100 },
            other: None,
            modes: Modes::default(),
            unlimited_replaces: None,
            workers: 1,
            pool_size: 10,
            slow_one_in: random.pick(&[Some(50), Some(500), None, None]),
            far: (0..nodes).map(|_| far(&mut random, timeout)).collect(),
            stale_mode: StaleMode::Rule,
            record_cache: 100,
            follows_resets: false,
            records_in: StoredIn::List,
            exceptions_in: StoredIn::List,
            asks: Vec::new(),
            faults: Vec::new(),
        };
        // Some have no Redis at all.
        let mut own = own_draws(seed, b"alone001");
        if own.one_in(4) && may_be_alone {
            alone::make(&mut own, &mut scenario);
            add_parts(seed, &mut scenario);
            return scenario;
        }
        let staged = stage::stage(&mut random.fork(), &mut scenario);
        scenario.asks = asks(&mut random.fork(), &scenario);
        if staged.is_none() {
            scenario.faults = faults(&mut random.fork(), &scenario);
            operators::add(&mut random.fork(), &mut scenario);
        }
        plots::add(&mut random.fork(), &mut scenario, staged);
        if staged.is_none() {
            records::add(&mut random.fork(), &mut scenario);
        }
        batches::add(&mut own_draws(seed, b"batches6"), &mut scenario, staged.is_some());
        if staged.is_none() {
            widened::add(&mut own_draws(seed, b"widened1"), &mut scenario);
            add_parts(seed, &mut scenario);
        }
        scenario
    }
}

/// What a part adds to a scenario that was drawn.
type Part = fn(&mut Random, &mut Scenario);

/// The parts of scenarios that are not staged, in the order in which they are added. Each draws from a generator of its own,
/// by its name: so older seeds mean the same runs where a part adds nothing.
const PARTS: [(&[u8; 8], Part); 31] = [
    (b"trial001", widened::again),
    (b"shapes00", shapes::add),
    (b"fleet000", fleet::add),
    (b"record01", records::interrupt),
    (b"mixed001", mixed::add),
    (b"calendar", calendars::add),
    (b"classes0", classes::add),
    (b"slots001", slots::add),
    (b"prefix01", prefixes::add),
    (b"bans0001", bans::add),
    (b"further1", further::add),
    (b"renewed1", slots::renew),
    (b"except01", exceptions::add),
    (b"reserve1", reservations::add),
    (b"debts_00", debts::add),
    (b"long_log", long_logs::add),
    (b"ending00", calendars::end),
    (b"resets00", resets::add),
    (b"bans0002", bans::operate),
    (b"shared\x0f\xf4", shared_records::add),
    (b"exca5bcw", shared_exceptions::add),
    (b"folder01", folder_records::add),
    (b"reserve2", reservations::add_operated),
    (b"learning", learning::add),
    (b"explain1", explained::add),
    (b"recmodes", records::add_modes),
    (b"recways1", records::add_algorithms),
    (b"extremes", extremes::add),
    (b"recways2", records::add_granularities),
    (b"explain2", explained::add_larger),
    (b"debts_01", debts::deny),
];

fn add_parts(seed: u64, scenario: &mut Scenario) {
    PARTS.iter().for_each(|(name, add)| add(&mut own_draws(seed, name), scenario));
}

/// A generator whose draws are others than those of the rest.
fn own_draws(seed: u64, name: &[u8; 8]) -> Random {
    Random::new(seed ^ u64::from_be_bytes(*name))
}

/// How much longer messages of a node take: some are far away, but near enough to be answered in time.
fn far(random: &mut Random, timeout: Time) -> [Time; 2] {
    match random.one_in(4) {
        true => [random.below(timeout / 10), random.below(timeout / 10 * 6)],
        false => [0, 0],
    }
}

fn limit(random: &mut Random, layout: Layout) -> LimitSpec {
    let is_override = random.one_in(8);
    let algorithm = match is_override {
        // Requests bring no algorithm along: they get the usual one.
        true => Algorithm::default(),
        false => random.pick(&[
            Algorithm::SlidingWindow,
            Algorithm::SlidingWindow,
            Algorithm::SlidingWindow,
            Algorithm::SlidingLog,
            Algorithm::SlidingLog,
            Algorithm::TokenBucket,
            Algorithm::LeakyBucket,
            Algorithm::FixedWindow,
        ]),
    };
    let is_leased = !is_override && algorithm.is_strict() && random.one_in(2);
    // Of less than sixteen hits none are leased.
    let requests = if is_leased { &[5, 20, 40, 40, 100, 200][..] } else { &[1, 2, 3, 5, 10, 40, 200] };
    let requests = random.pick(requests);
    let other = if random.one_in(3) { random.pick(&[1, 2, 5, 20, 100]) } else { requests };
    // A minute is of the main store: where there is a second one, some limits have to be there.
    let window = if layout == Layout::PerSecond && random.one_in(2) { 60 } else { 1 + random.below(5) };
    let other_window = if random.one_in(8) { 1 + random.below(5) } else { window };
    LimitSpec {
        requests: [requests, other],
        window_secs: [window, other_window],
        is_override,
        is_shadow: !is_override && random.one_in(10),
        is_leased,
        is_reported: !is_override && algorithm != Algorithm::FixedWindow && random.one_in(6),
        failure: match is_override {
            true => StoreFailure::Error,
            false => random.pick(&[
                StoreFailure::Error,
                StoreFailure::Error,
                StoreFailure::Deny,
                StoreFailure::Local,
            ]),
        },
        ..LimitSpec::new(algorithm, requests, window)
    }
}

pub(super) fn asks(random: &mut Random, scenario: &Scenario) -> Vec<Ask> {
    let (mut asks, mut now) = (Vec::with_capacity(4_096), 500 * MILLI);
    let usual = random.pick(&[2 * MILLI, 10 * MILLI, 30 * MILLI]);
    let keys = random.pick(&[1, 2, 6]);
    let several = random.pick(&[2, 5, 1_000]);
    let refunds = random.pick(&[3, 20, 1 << 40]);
    let mut burst = 0;
    while now < ASKED {
        // Quiet and busy by turns; several at the very same time.
        if random.one_in(200) {
            burst = random.below(60);
        }
        now += match burst {
            0 if random.one_in(100) => random.below(1_500 * MILLI),
            0 => random.below(2 * usual),
            _ => random.pick(&[0, 0, 20 * MICRO, 300 * MICRO]),
        };
        burst = burst.saturating_sub(1);
        let count = if random.one_in(several) { 1 + random.below(3) } else { 1 };
        let items = (0..count).map(|_| item(random, &scenario.limits, keys)).collect();
        let node = random.index(scenario.clocks.len());
        asks.push(Ask {
            deadline: random.one_in(4).then(|| random.pick(&[1, 5, 20, 50]) * MILLI),
            cancelled: random.one_in(20).then(|| match random.one_in(2) {
                true => Cancelled::After(random.below(3 * MILLI)),
                false => Cancelled::Waiting(1 + random.below(6) as u32),
            }),
            refunded: random
                .one_in(refunds)
                .then(|| (random.below(SECOND), random.index(scenario.clocks.len()))),
            ..Ask::new(now, node, items)
        });
    }
    asks
}

pub(super) fn item(random: &mut Random, limits: &[LimitSpec], keys: u64) -> Item {
    let limit = random.index(limits.len());
    let most = u64::from(limits[limit].requests[0]);
    let hits = random.pick(&[0, 1, 1, 1, 1, 1, 2, most / 3 + 1, most]);
    // Most ask for the hot one.
    let key = if random.one_in(3) { random.below(keys) } else { 0 };
    Item::new(limit, key, hits)
}

fn faults(random: &mut Random, scenario: &Scenario) -> Vec<Fault> {
    // Where nothing fails, denials without a reason are seen best.
    let count = random.pick(&[0, 0, 0, 1, 2, 4, 8, 16]);
    let kinds: Vec<u64> = (0..random.pick(&[1, 2, 3, 20])).map(|_| random.below(KINDS)).collect();
    let moments = [(); 3].map(|()| random.pick(&scenario.asks).at);
    let spread = random.pick(&[500 * MICRO, 5 * MILLI, 150 * MILLI]);
    let mut faults: Vec<Fault> = (0..count)
        .map(|_| {
            let at = match random.one_in(2) {
                true => SECOND + random.below(ASKED - SECOND),
                false => random.pick(&moments) + random.below(spread),
            };
            let kind = random.pick(&kinds);
            Fault { at, what: what(random, scenario, kind) }
        })
        .collect();
    if random.one_in(3) {
        // A reload reaches all nodes, one after the other.
        let (at, version) = (SECOND + random.below(ASKED - SECOND), 1);
        let all = (0..scenario.clocks.len())
            .map(|node| Fault { at: at + random.below(SECOND), what: What::Reload { node, version } });
        faults.extend(all);
    }
    if count > 0 && random.one_in(2) {
        (0..1 + random.below(6)).for_each(|_| faults.extend(plot(random, scenario)));
    }
    faults.sort_by_key(|fault| fault.at);
    faults
}

/// While one server is slow to answer a request of several descriptors, something happens to another, which has answered:
/// what goes back then may find another memory.
fn plot(random: &mut Random, scenario: &Scenario) -> Vec<Fault> {
    let ask = [(); 8].map(|()| random.pick(&scenario.asks)).into_iter().max_by_key(|ask| ask.items.len());
    let (Some(Ask { at, node, .. }), servers) = (ask, scenario.layout.servers()) else {
        return Vec::new();
    };
    let (slow, other) = (random.index(servers), random.index(servers));
    let lasts = random.pick(&[5, 30, 60, 90]) * MILLI;
    let what = match random.below(4) {
        0 | 1 => What::Flush { server: other },
        2 => What::Restart { server: other, lasts: 5 * MILLI },
        _ => What::FailOver { server: other, lacks: 5 * MILLI },
    };
    let happens = (at + random.below(2 * MILLI)).saturating_sub(MILLI);
    let fault = |at, what| Fault { at, what };
    vec![fault(at - MICRO, What::Cut { node, server: slow, lasts }), fault(happens, what)]
}

fn what(random: &mut Random, scenario: &Scenario, kind: u64) -> What {
    let (nodes, servers) = (scenario.clocks.len(), scenario.layout.servers());
    let (node, server) = (random.index(nodes), random.index(servers));
    let lasts = random.pick(&[5 * MILLI, 50 * MILLI, 150 * MILLI, 400 * MILLI, SECOND, 3 * SECOND]);
    match kind {
        0 => What::Cut { node, server, lasts },
        1 => What::Break { node, server },
        2 => What::Lose { node, server },
        3 => What::Stop { server, lasts },
        4 => {
            let why = random.pick(&[Refusal::Loading, Refusal::ReadOnly, Refusal::Full]);
            What::Refuse { server, lasts, why }
        }
        5 => What::Flush { server },
        6 => What::Restart { server, lasts },
        7 => What::FailOver { server, lacks: lasts },
        8 => What::Pause { node, lasts },
        9 => What::Crash { node, lasts },
        10 => What::StopNode { node, lasts },
        11 => What::MoveSlots { server, to: random.index(servers), lasts },
        _ => What::Reload { node, version: random.index(2) },
    }
}
