//! One run: requests at a steady rate, the steps of an event among them, and the oracle's verdict on each answer.

use crate::random::Random;
use crate::ring::envoy::Ring;
use crate::ring::event::{BEGINS_SECS, ColdStart, Event, Step};
use crate::ring::node::{Answer, Begin, Node};
use crate::ring::oracle::Oracle;
use crate::ring::users::{Crowd, Users};
use tidegate_engine::limit::{Algorithm, Limit};
use tidegate_engine::time::SECOND_NANOS;

/// Points of each node on the ring.
const POINTS: u64 = 1024;

/// Wall clocks are off by at most this: two of them by STATE_SKEW at most.
const OFF_NANOS: u64 = SECOND_NANOS;

/// How large a run is.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Nodes before the event.
    pub nodes: usize,
    /// Proxies, which change their rings one after the other.
    pub proxies: usize,
    /// Users who ask.
    pub users: usize,
    /// Requests of all of them.
    pub requests_per_second: u64,
    /// The limit of each user.
    pub limit: u32,
    /// Its window.
    pub window_secs: u64,
}

/// What a run is about.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// What happens.
    pub event: Event,
    /// What nodes do without their counters.
    pub cold: ColdStart,
    /// Who asks.
    pub crowd: Crowd,
    /// Of all that is random.
    pub seed: u64,
}

/// What became of the requests of a second, or of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// All.
    pub requests: u64,
    /// Those that passed.
    pub admitted: u64,
    /// Admissions beyond N in some window.
    pub over: u64,
    /// Denied with capacity left: nobody answered.
    pub away: u64,
    /// The same: the counter was lost.
    pub cold: u64,
    /// The same: hits counted longer than their window, after a move to another clock.
    pub late: u64,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Each second of the run.
    pub seconds: Vec<Tally>,
    /// How many users were denied with capacity left.
    pub users_wronged: usize,
}

impl Tally {
    /// Requests that were denied although their user had capacity left.
    pub fn wrong(&self) -> u64 {
        self.away + self.cold + self.late
    }

    fn add(&mut self, more: &Self) {
        self.requests += more.requests;
        self.admitted += more.admitted;
        self.over += more.over;
        self.away += more.away;
        self.cold += more.cold;
        self.late += more.late;
    }
}

impl Outcome {
    /// Of the whole run.
    pub fn total(&self) -> Tally {
        self.seconds.iter().fold(Tally::default(), |mut sum, second| {
            sum.add(second);
            sum
        })
    }

    /// For how many seconds after the event began somebody was denied wrongly.
    pub fn wrong_secs(&self) -> u64 {
        let last = self.seconds.iter().rposition(|second| second.wrong() > 0);
        last.map_or(0, |last| (last as u64 + 1).saturating_sub(BEGINS_SECS))
    }
}

/// Everything that requests meet.
struct World<'a> {
    limit: Limit,
    users: &'a Users,
    /// Where each user belongs, on the first ring and on the second.
    places: [Vec<u8>; 2],
    /// Which ring each proxy has.
    rings: Vec<usize>,
    nodes: Vec<Node>,
    oracle: Oracle,
    random: Random,
}

/// Runs it.
pub fn run(scenario: Scenario, size: &Size) -> Outcome {
    let users = Users::new(size.users, scenario.crowd);
    let mut world = World::new(scenario, size, &users);
    let steps = scenario.event.steps((size.nodes, size.proxies), scenario.cold, &mut world.random);
    let last = steps.last().map_or(BEGINS_SECS, |(at, _)| at / SECOND_NANOS);
    let seconds = last + size.window_secs + 10;
    let gap = SECOND_NANOS / size.requests_per_second;
    let mut steps = steps.into_iter().peekable();
    let mut wronged = vec![false; size.users];
    let mut outcome = Outcome { seconds: Vec::new(), users_wronged: 0 };
    for second in 0..seconds {
        let mut tally = Tally::default();
        for request in 0..size.requests_per_second {
            let at = second * SECOND_NANOS + request * gap + world.random.below(gap);
            while let Some((at, step)) = steps.next_if(|(then, _)| *then <= at) {
                world.step(step, at);
            }
            world.request(at, &mut tally, &mut wronged);
        }
        world.nodes.iter().for_each(|node| node.sweep((second + 1) * SECOND_NANOS));
        outcome.seconds.push(tally);
    }
    outcome.users_wronged = wronged.into_iter().filter(|wronged| *wronged).count();
    outcome
}

impl<'a> World<'a> {
    fn new(scenario: Scenario, size: &Size, users: &'a Users) -> Self {
        let after = scenario.event.nodes_after(size.nodes);
        let ring = |nodes: usize| {
            let names: Vec<_> = (0..nodes).map(|node| format!("tidegate-{node}")).collect();
            users.places(&Ring::of(&names, POINTS))
        };
        let limit = Limit::new(Algorithm::SlidingWindow, size.limit.into(), size.window_secs * SECOND_NANOS);
        let bucket_nanos = limit.window_nanos() / tidegate_engine::limit::DEFAULT_BUCKETS;
        let mut world = Self {
            limit,
            users,
            places: [ring(size.nodes), ring(after)],
            rings: vec![0; size.proxies],
            nodes: (0..size.nodes.max(after)).map(|_| Node::away()).collect(),
            oracle: Oracle::new(size.users, &limit, bucket_nanos),
            random: Random::new(scenario.seed),
        };
        (0..size.nodes).for_each(|node| world.step(Step::Begin(node, Begin::Empty), 0));
        world
    }

    fn step(&mut self, step: Step, at: u64) {
        match step {
            Step::Kill(node) => self.nodes[node].kill(),
            Step::Stop(node) => self.nodes[node].stop(at),
            Step::Turn(proxy) => self.rings[proxy] = 1,
            Step::Begin(node, begin) => {
                let wall_nanos = self.random.below(OFF_NANOS + 1) as i64 - OFF_NANOS as i64 / 2;
                self.nodes[node].begin(begin, &self.limit, at, wall_nanos);
            }
        }
    }

    /// Somebody asks one of the proxies.
    fn request(&mut self, at: u64, tally: &mut Tally, wronged: &mut [bool]) {
        let user = self.users.draw(&mut self.random);
        let proxy = self.random.below(self.rings.len() as u64) as usize;
        let node = usize::from(self.places[self.rings[proxy]][user]);
        tally.requests += 1;
        let answer = self.nodes[node].decide(self.users, user, &self.limit, at);
        let wrong = match answer {
            Answer::Admitted => {
                tally.admitted += 1;
                tally.over += u64::from(self.oracle.admit(user, at));
                return;
            }
            Answer::Away => &mut tally.away,
            Answer::Denied { is_cold: true } => &mut tally.cold,
            Answer::Denied { is_cold: false } => &mut tally.late,
        };
        if self.oracle.has_capacity(user, at) {
            *wrong += 1;
            wronged[user] = true;
        }
    }
}
