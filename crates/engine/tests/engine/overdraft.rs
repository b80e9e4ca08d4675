//! What an overdraft costs and gives: calls of heavy-tailed costs under reservations of several kinds, on a virtual clock.
//!
//! `TIDEGATE_WRITE_OVERDRAFT=1 cargo test -p tidegate-engine --test engine overdraft` writes `docs/overdraft.md` and its plot from
//! all calls. Otherwise a part of the tenants is played, and compared with their line in the page.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use tidegate_engine::decision::{Code, conclude};
use tidegate_engine::memory::{MemoryOptions, MemoryStore};
use tidegate_engine::plan::Modes;
use tidegate_engine::request::{Request, Reservation};
use tidegate_engine::rules::RuleSet;
use tidegate_engine::time::Timestamp;

use crate::random::Random;
use crate::rules::loaded;

const TENANTS: usize = 50;
const CALLS_OF_TENANT: usize = 2_000;
/// Tenants that the test plays each time.
const TENANTS_OF_TEST: usize = 3;
/// Hits in any hour.
const N: u64 = 50_000;
const HOUR_MILLIS: u64 = 3_600_000;
/// The most that a call is said to cost.
const MAX: u64 = 8_000;
/// How long calls last, in milliseconds: all lengths from the first to the second are equally frequent.
const LENGTHS: (u64, u64) = (60_000, 540_000);
/// What all calls of a tenant would cost in an hour, if they were admitted, as a share of N.
const OFFERED: f64 = 1.5;

/// What is held for a call.
#[derive(Clone, Copy)]
enum Policy {
    WorstCase,
    /// A learnt percentile, with this overdraft.
    Learnt(&'static str),
    /// What it will cost.
    Known,
}

const POLICIES: [Policy; 5] =
    [Policy::WorstCase, Policy::Learnt("0.05"), Policy::Learnt("0.5"), Policy::Learnt("1"), Policy::Known];

impl Policy {
    fn name(self) -> String {
        match self {
            Self::WorstCase => "worst case".to_owned(),
            Self::Learnt(overdraft) => format!("o = {overdraft}"),
            Self::Known => "costs known beforehand".to_owned(),
        }
    }

    fn rules(self) -> RuleSet {
        let hold = match self {
            Self::Learnt(overdraft) => format!(
                ", overdraft: {overdraft}, hold: {{percentile: 90, of: counter, initial: 1000, max: {MAX}}}"
            ),
            Self::WorstCase | Self::Known => String::new(),
        };
        loaded(&format!(
            "domain: d\ndescriptors: [{{key: tenant, rate_limit: {{unit: hour, requests_per_unit: {N}}}, \
             reserve: {{ttl: 10m{hold}}}}}]"
        ))
        .rules
    }

    /// The amount that a call of this cost reserves.
    fn amount(self, cost: u64) -> u64 {
        if matches!(self, Self::Known) { cost } else { MAX }
    }

    /// What a tenant may spend in an hour, apart from debts.
    fn bound(self) -> u64 {
        match self {
            Self::Learnt(overdraft) => {
                (N as f64 * (1.0 + overdraft.parse::<f64>().expect("a number"))) as u64
            }
            Self::WorstCase | Self::Known => N,
        }
    }
}

/// A call that a tenant would like to make. Times in milliseconds.
#[derive(Clone, Copy)]
struct Call {
    begins: u64,
    lasts: u64,
    cost: u64,
}

/// Above 0, up to 1.
fn unit(random: &mut Random) -> f64 {
    ((random.next() >> 11) + 1) as f64 / (1_u64 << 53) as f64
}

/// Half of the calls cost less than 400, and the mean is 822.
fn log_normal(random: &mut Random) -> f64 {
    let normal = (-2.0 * unit(random).ln()).sqrt() * (std::f64::consts::TAU * unit(random)).cos();
    400.0 * (1.2 * normal).exp()
}

/// No call costs less than 250, and the mean is 750.
fn pareto(random: &mut Random) -> f64 {
    250.0 / unit(random).powf(1.0 / 1.5)
}

type Costs = (&'static str, fn(&mut Random) -> f64, f64);
const COSTS: [Costs; 2] = [("log-normal", log_normal, 821.8), ("Pareto", pareto, 750.0)];

fn calls_of((_, cost, mean): Costs, tenant: usize) -> Vec<Call> {
    let mut random = Random(tenant as u64);
    let every = HOUR_MILLIS as f64 * mean / (OFFERED * N as f64);
    let mut begins = 0;
    let call = |_| {
        begins += (-unit(&mut random).ln() * every) as u64;
        let lasts = LENGTHS.0 + random.below(LENGTHS.1 - LENGTHS.0);
        Call { begins, lasts, cost: cost(&mut random).max(1.0) as u64 }
    };
    (0..CALLS_OF_TENANT).map(call).collect()
}

/// What became of the calls of some tenants.
#[derive(Clone, Copy, Default)]
struct Outcome {
    admitted: usize,
    spent: u64,
    /// Tenants' time together, in milliseconds.
    millis: u64,
    /// The most that a tenant spent in an hour, apart from debts.
    highest: u64,
    /// What calls cost beyond `MAX`.
    debts: u64,
    /// The time of all admitted calls together, in milliseconds.
    in_flight_millis: u64,
}

impl Outcome {
    fn add(&mut self, other: &Self) {
        self.admitted += other.admitted;
        self.spent += other.spent;
        self.millis += other.millis;
        self.highest = self.highest.max(other.highest);
        self.debts += other.debts;
        self.in_flight_millis += other.in_flight_millis;
    }

    /// The share of N that is used.
    fn used(&self) -> f64 {
        self.spent as f64 * HOUR_MILLIS as f64 / (self.millis as f64 * N as f64)
    }

    fn row(&self, policy: Policy) -> String {
        format!(
            "| {} | {} | {:.1} % | {:.1} | {:.2} N | {:.2} N | {} |\n",
            policy.name(),
            self.admitted,
            self.used() * 100.0,
            self.in_flight_millis as f64 / self.millis as f64,
            self.highest as f64 / N as f64,
            policy.bound() as f64 / N as f64,
            self.debts,
        )
    }
}

fn reserves(
    (rules, store): (&RuleSet, &MemoryStore),
    reservation: Reservation<'_>,
    tenant: &str,
    millis: u64,
) -> bool {
    let request = Request::new("d", 1).descriptor(&[("tenant", tenant)]).with_reservation(reservation);
    let plan = rules.plan(&request, Modes::default());
    let now = Timestamp::from_nanos((HOUR_MILLIS * 24 + millis) * 1_000_000);
    let decision = conclude(&plan, &store.apply(&plan, now));
    rules.observe_commit(&request, &plan, decision.found());
    decision.code == Code::Ok
}

/// What a tenant spent in the last hour, apart from debts.
#[derive(Default)]
struct LastHour {
    costs: VecDeque<(u64, u64)>,
    sum: u64,
}

impl LastHour {
    fn spend(&mut self, at: u64, cost: u64) -> u64 {
        while let Some(&(before, gone)) = self.costs.front().filter(|(before, _)| before + HOUR_MILLIS <= at)
        {
            debug_assert!(before <= at);
            self.sum -= gone;
            self.costs.pop_front();
        }
        self.costs.push_back((at, cost));
        self.sum += cost;
        self.sum
    }
}

/// Plays the calls of a tenant, each at its time. Who is denied does not come again.
fn play(policy: Policy, rules: &RuleSet, calls: &[Call], tenant: usize) -> Outcome {
    let store = MemoryStore::new(MemoryOptions::new(1 << 20));
    let (of, name) = ((rules, &store), tenant.to_string());
    let (mut outcome, mut last_hour) = (Outcome::default(), LastHour::default());
    let mut open: BinaryHeap<Reverse<(u64, usize, u64)>> = BinaryHeap::new();
    let end = Call { begins: u64::MAX, lasts: 0, cost: 0 };
    for (number, call) in calls.iter().chain([&end]).enumerate() {
        while let Some(&Reverse((ends, id, cost))) =
            open.peek().filter(|Reverse((ends, ..))| *ends <= call.begins)
        {
            open.pop();
            let id = usize::to_string(&id);
            let commit = Reservation { id: &id, hits: cost, ttl_nanos: None, is_commit: true };
            reserves(of, commit, &name, ends);
            outcome.spent += cost;
            // Whoever knows all costs has no debts.
            let worst = policy.amount(cost);
            outcome.debts += cost.saturating_sub(worst);
            outcome.highest = outcome.highest.max(last_hour.spend(ends, cost.min(worst)));
        }
        if number == calls.len() {
            break;
        }
        let (id, hits) = (number.to_string(), policy.amount(call.cost));
        let reservation = Reservation { id: &id, hits, ttl_nanos: None, is_commit: false };
        if reserves(of, reservation, &name, call.begins) {
            open.push(Reverse((call.begins + call.lasts, number, call.cost)));
            outcome.admitted += 1;
            outcome.in_flight_millis += call.lasts;
        }
        outcome.millis = call.begins;
    }
    assert!(
        outcome.highest <= policy.bound(),
        "tenant {tenant}, {}: {} of {}",
        policy.name(),
        outcome.highest,
        policy.bound()
    );
    outcome
}

fn play_all(costs: Costs, policy: Policy, tenants: usize) -> Outcome {
    let rules = policy.rules();
    let mut all = Outcome::default();
    (0..tenants).for_each(|tenant| all.add(&play(policy, &rules, &calls_of(costs, tenant), tenant)));
    all
}

const HEAD: &str = "| what is held | calls admitted | use of N | calls in flight | most in an hour | bound | debts |\n\
                    | --- | --- | --- | --- | --- | --- | --- |\n";

/// A table for each kind of costs, and the shares of N that are used.
fn tables(tenants: usize) -> (String, Vec<Vec<f64>>) {
    let (mut text, mut used) = (String::new(), Vec::new());
    for costs in COSTS {
        let outcomes: Vec<Outcome> =
            POLICIES.iter().map(|policy| play_all(costs, *policy, tenants)).collect();
        let _ = write!(
            text,
            "\n{} costs, {} calls of {tenants} tenants:\n\n{HEAD}",
            costs.0,
            tenants * CALLS_OF_TENANT
        );
        for (policy, outcome) in POLICIES.iter().zip(&outcomes) {
            text += &outcome.row(*policy);
        }
        used.push(outcomes.iter().map(Outcome::used).collect());
    }
    (text, used)
}

fn plot(used: &[Vec<f64>]) -> String {
    let mut svg =
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 640 300\" font-family=\"sans-serif\" \
                   font-size=\"12\">\n<rect width=\"640\" height=\"300\" fill=\"#fff\"/>\n"
            .to_owned();
    for (group, ((name, ..), shares)) in COSTS.iter().zip(used).enumerate() {
        let top = 24 + 138 * group;
        let _ = writeln!(
            svg,
            "<text x=\"8\" y=\"{}\" font-weight=\"bold\">{name} costs: use of N</text>",
            top - 8
        );
        for (row, (policy, share)) in POLICIES.iter().zip(shares).enumerate() {
            let (y, width) = (top + 22 * row, share * 420.0);
            let fill = if matches!(policy, Policy::Learnt(_)) { "#2f6f9f" } else { "#9aa5ad" };
            let _ = writeln!(
                svg,
                "<text x=\"150\" y=\"{}\" text-anchor=\"end\">{}</text><rect x=\"158\" y=\"{y}\" width=\"{width:.1}\" \
                 height=\"16\" fill=\"{fill}\"/><text x=\"{:.1}\" y=\"{}\">{:.1} %</text>",
                y + 12,
                policy.name(),
                164.0 + width,
                y + 12,
                share * 100.0
            );
        }
    }
    svg + "</svg>\n"
}

fn page((all, used): &(String, Vec<Vec<f64>>), part: &str) -> (String, String) {
    let text = format!(
        "# What an overdraft gives\n\n\
         [Holds below the worst case](rules.md#holds-below-the-worst-case) let more calls run at one time. How much of a limit is used \
         then, and what\nis spent at most, on a virtual clock:\n\n\
         - Each tenant has N = {N} in any hour, and {CALLS_OF_TENANT} calls that would cost {OFFERED} N an hour together. They come at random \
         (Poisson).\n\
         - A call lasts {} to {} minutes, all lengths equally often. A denied call does not come again.\n\
         - Log-normal costs have the median 400 and the mean 822 (σ = 1.2); Pareto costs begin at 250 and have the mean 750 (α = 1.5). \
         Both have\n  calls above `max`, {MAX}.\n\
         - *Worst case* holds {MAX} for each call. *o* is `overdraft`, with `hold: {{percentile: 90, of: counter, initial: 1000, max: {MAX}}}`. \
         *Costs\n  known beforehand* holds exactly what a call will cost: nobody can do better by holding.\n\
         - *Most in an hour* is that of the tenant that spent most, without its debts. *Debts* are what calls cost beyond {MAX}; the use of N includes them.\n\
         {all}\n\
         ![use of N](overdraft.svg)\n\n\
         The table is made by `crates/engine/tests/engine/overdraft.rs`. Its test plays some of the tenants each time:\n\
         {part}",
        LENGTHS.0 / 60_000,
        LENGTHS.1 / 60_000,
    );
    (text, plot(used))
}

#[test]
fn nobody_exceeds_the_overdraft_and_the_page_says_what_it_gives() {
    let docs = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let (part, _) = tables(TENANTS_OF_TEST);
    if std::env::var_os("TIDEGATE_WRITE_OVERDRAFT").is_some() {
        let (text, plot) = page(&tables(TENANTS), &part);
        fs::write(docs.join("overdraft.md"), text).expect("the page can be written");
        fs::write(docs.join("overdraft.svg"), plot).expect("the plot can be written");
    }
    let written = fs::read_to_string(docs.join("overdraft.md")).expect("the page");
    assert!(
        written.ends_with(&part),
        "docs/overdraft.md is not what comes out: write it again (see above)\n{part}"
    );
}
