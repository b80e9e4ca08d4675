//! How often each series of limits is hit now, which series are most important, and their last five minutes.
//!
//! In: the counts of all series, read a part at a time. Out: rates, the first few series in each [`Order`], and a
//! plot of each of those. Reading 100,000 series takes a millisecond or more. So each call reads a bounded number of
//! them in turn, and in addition the most important ones, which are read in every call. Bounded: 32 bytes a series,
//! and [`FOLLOWED_MAX`] plots.

use std::collections::{BTreeMap, VecDeque};

use tidegate_serve::metrics::{LimitCounts, Metrics};

/// Series in each order.
pub(super) const TOP: usize = 15;

/// Series with a plot. More than all orders together have.
const FOLLOWED_MAX: usize = 128;

/// How long a series is still followed when nobody asks for it and it is in no order.
const FOLLOWED_MILLIS: u64 = 60_000;

/// The length of a step of a plot. Sixty steps are five minutes.
pub(super) const STEP_MILLIS: u64 = 5_000;
const STEPS_MAX: usize = 60;
const MINUTE_STEPS: usize = 60_000 / STEP_MILLIS as usize;

/// The time constant of the average: hits of this long ago count 1/e.
const AVERAGED_MILLIS: f32 = 10_000.0;

/// Smaller rates are 0: less than a hit in five minutes.
const RATE_MIN: f32 = 0.003;

tidegate_engine::named! {
    /// An order of series, the most important first. Names are those in requests for the page's data.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Order {
        /// Hits that are over the limit, then those near it.
        Denied = "denied",
        /// The share of hits that are near or over the limit.
        Tight = "tight",
        /// Hits that are near the limit.
        Near = "near",
        /// Hits.
        Busy = "busy",
    }
}

impl Order {
    /// The order with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|order| order.name() == name)
    }

    /// Compared part by part; greater comes first.
    fn score(self, Rate { hits, over, near }: Rate) -> [f32; 3] {
        match self {
            Self::Denied => [over, near, hits],
            Self::Tight if hits > 0.0 => [(over + near) / hits, over, hits],
            Self::Tight => [0.0; 3],
            Self::Near => [near, over, hits],
            Self::Busy => [hits, over, near],
        }
    }
}

/// Hits a second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Rate {
    pub(super) hits: f32,
    pub(super) over: f32,
    pub(super) near: f32,
}

/// The last reading of a series. Counts are kept modulo 2³²: only differences matter.
#[derive(Clone, Copy, Debug, Default)]
struct Last {
    hits: u32,
    over: u32,
    near: u32,
    shadow: u32,
    at_millis: u32,
    rate: Rate,
}

/// Hits of some time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Hits {
    pub(super) all: u32,
    /// Of these, those over the limit.
    pub(super) over: u32,
    /// Of these, those that were denied: shadow mode admits others.
    pub(super) denied: u32,
}

/// Hits of a series over time.
#[derive(Debug, Default)]
pub(super) struct Plot {
    /// The number of the current step, since the start of the process.
    step: u64,
    open: Hits,
    /// Those of each step, the oldest first.
    pub(super) steps: VecDeque<Hits>,
    /// When it was last wanted.
    wanted_millis: u64,
}

/// Rates of all series.
#[derive(Debug, Default)]
pub(super) struct Rates {
    series: Vec<Last>,
    /// The series that is read next.
    next: usize,
    top: [Vec<u32>; Order::ALL.len()],
    followed: BTreeMap<u32, Plot>,
}

impl Last {
    /// Takes a reading, and returns the hits since the one before.
    fn read(&mut self, counts: LimitCounts, now_millis: u64) -> Hits {
        let low = |count: u64| count as u32;
        let hits = low(counts.hits).wrapping_sub(self.hits);
        let over = low(counts.over).wrapping_sub(self.over);
        let near = low(counts.near).wrapping_sub(self.near);
        let shadow = low(counts.shadow).wrapping_sub(self.shadow);
        let millis = low(now_millis).wrapping_sub(self.at_millis);
        if millis == 0 {
            return Hits::default();
        }
        let old = (-(millis as f32) / AVERAGED_MILLIS).exp();
        let average = |rate: f32, count: u32| {
            let average = rate * old + count as f32 * 1_000.0 / millis as f32 * (1.0 - old);
            if average < RATE_MIN { 0.0 } else { average }
        };
        let rate = Rate {
            hits: average(self.rate.hits, hits),
            over: average(self.rate.over, over),
            near: average(self.rate.near, near),
        };
        *self = Self {
            hits: low(counts.hits),
            over: low(counts.over),
            near: low(counts.near),
            shadow: low(counts.shadow),
            at_millis: low(now_millis),
            rate,
        };
        Hits { all: hits, over, denied: over.saturating_sub(shadow) }
    }
}

impl Plot {
    fn from(now_millis: u64) -> Self {
        Self { step: now_millis / STEP_MILLIS, wanted_millis: now_millis, ..Self::default() }
    }

    fn add(&mut self, hits: Hits, now_millis: u64) {
        let step = now_millis / STEP_MILLIS;
        if step > self.step {
            self.steps.push_back(std::mem::take(&mut self.open));
            let empty = usize::try_from(step - self.step - 1).unwrap_or(usize::MAX).min(STEPS_MAX);
            self.steps.extend(std::iter::repeat_n(Hits::default(), empty));
            self.steps.drain(..self.steps.len().saturating_sub(STEPS_MAX));
            self.step = step;
        }
        self.open = Hits {
            all: self.open.all.saturating_add(hits.all),
            over: self.open.over.saturating_add(hits.over),
            denied: self.open.denied.saturating_add(hits.denied),
        };
    }

    /// Hits of the last minute, and those of them that were denied. `None`: it is not known for so long yet.
    fn last_minute(&self) -> Option<(u64, u64)> {
        let first = self.steps.len().checked_sub(MINUTE_STEPS)?;
        let sum = |of: fn(&Hits) -> u32| self.steps.range(first..).map(|hits| u64::from(of(hits))).sum();
        Some((sum(|hits| hits.all), sum(|hits| hits.denied)))
    }
}

impl Rates {
    /// Reads the most important series, and `most` of the others.
    pub(super) fn read(&mut self, metrics: &Metrics, now_millis: u64, most: usize) {
        let new = Last { at_millis: now_millis as u32, ..Last::default() };
        self.series.resize(metrics.limit_series(), new);
        for (&series, plot) in &mut self.followed {
            let hits = visit(&mut self.series, metrics, series, now_millis);
            plot.add(hits, now_millis);
        }
        let mut found: Vec<u32> = self.followed.keys().copied().collect();
        for _ in 0..most.min(self.series.len()) {
            let series = self.next as u32;
            self.next = (self.next + 1) % self.series.len();
            // A second reading in the same call changes nothing.
            visit(&mut self.series, metrics, series, now_millis);
            if self.series[series as usize].rate.hits > 0.0 && !self.followed.contains_key(&series) {
                found.push(series);
            }
        }
        self.put_in_order(found);
        let wanted: Vec<u32> = self.top.iter().flatten().copied().collect();
        self.follow(&wanted, now_millis);
        self.followed.retain(|_, plot| now_millis.saturating_sub(plot.wanted_millis) < FOLLOWED_MILLIS);
    }

    fn put_in_order(&mut self, mut found: Vec<u32>) {
        found.retain(|series| self.rate(*series).hits > 0.0);
        for (order, top) in Order::ALL.into_iter().zip(&mut self.top) {
            let score = |series: &u32| order.score(self.series[*series as usize].rate);
            let first = |one: &u32, other: &u32| {
                score(other).partial_cmp(&score(one)).expect("no rate is NaN").then(one.cmp(other))
            };
            if found.len() > TOP {
                found.select_nth_unstable_by(TOP, first);
            }
            top.clear();
            top.extend_from_slice(&found[..found.len().min(TOP)]);
            top.sort_unstable_by(first);
        }
    }

    /// Follows these series from now on, or for longer, as far as there is room.
    pub(super) fn follow(&mut self, series: &[u32], now_millis: u64) {
        for &series in series.iter().filter(|series| (**series as usize) < self.series.len()) {
            if let Some(plot) = self.followed.get_mut(&series) {
                plot.wanted_millis = now_millis;
            } else if self.followed.len() < FOLLOWED_MAX {
                self.followed.insert(series, Plot::from(now_millis));
            }
        }
    }

    /// The first series in this order.
    pub(super) fn top(&self, order: Order) -> &[u32] {
        &self.top[order as usize]
    }

    /// The series that denied at least this share of at least so many hits in the last minute, each with these
    /// numbers. Series that never admitted a hit are left out: their rules are meant to block.
    pub(super) fn denying(&self, percent: u64, least: u64) -> impl Iterator<Item = (u32, (u64, u64))> {
        let minutes = self.followed.iter().filter_map(|(series, plot)| Some((*series, plot.last_minute()?)));
        let passed = |series: u32| self.series.get(series as usize).is_some_and(|it| it.hits != it.over);
        minutes.filter(move |&(series, (hits, denied))| {
            hits >= least && denied * 100 >= hits * percent && passed(series)
        })
    }

    /// The rate of a series. 0 if it was never read.
    pub(super) fn rate(&self, series: u32) -> Rate {
        self.series.get(series as usize).map(|last| last.rate).unwrap_or_default()
    }

    /// The plot of a series, if it is followed.
    pub(super) fn plot(&self, series: u32) -> Option<&Plot> {
        self.followed.get(&series)
    }
}

/// Reads one series.
fn visit(all: &mut [Last], metrics: &Metrics, series: u32, now_millis: u64) -> Hits {
    let (Some(last), Some(counts)) = (all.get_mut(series as usize), metrics.limit_counts(series as usize))
    else {
        return Hits::default();
    };
    last.read(counts, now_millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(hits: u64, over: u64, near: u64) -> LimitCounts {
        LimitCounts { hits, over, near, shadow: 0 }
    }

    /// Hits of which so many were over the limit, and denied.
    fn hits(all: u32, over: u32) -> Hits {
        Hits { all, over, denied: over }
    }

    #[test]
    fn a_rate_comes_and_goes_within_a_minute() {
        let mut last = Last::default();
        for second in 1..=60 {
            last.read(counts(second * 50, second * 10, 0), second * 1_000);
        }
        let Rate { hits, over, near } = last.rate;
        assert!((hits - 50.0).abs() < 0.5 && (over - 10.0).abs() < 0.1 && near == 0.0, "{:?}", last.rate);
        for second in 61..=200 {
            last.read(counts(3_000, 600, 0), second * 1_000);
        }
        assert_eq!(last.rate, Rate::default());
    }

    #[test]
    fn a_rate_does_not_depend_on_how_often_it_is_read() {
        let rate = |every: u64| {
            let mut last = Last::default();
            for at in (every..=60).step_by(every as usize) {
                last.read(counts(at * 30, 0, 0), at * 1_000);
            }
            last.rate.hits
        };
        assert!((rate(1) - rate(12)).abs() < 0.1, "{} {}", rate(1), rate(12));
    }

    #[test]
    fn counts_that_pass_32_bits_are_differences() {
        let mut last = Last::default();
        last.read(counts(u64::from(u32::MAX), 0, 0), 1_000);
        assert_eq!(last.read(counts(u64::from(u32::MAX) + 5, 5, 0), 2_000), hits(5, 5));
    }

    #[test]
    fn each_order_puts_first_what_it_is_about() {
        let mut rates = Rates::default();
        let rate = |hits, over, near| Last { rate: Rate { hits, over, near }, ..Last::default() };
        rates.series =
            vec![rate(9.0, 0.0, 1.0), rate(5.0, 2.0, 0.0), rate(1.0, 1.0, 0.0), rate(0.0, 0.0, 0.0)];
        rates.put_in_order(vec![0, 1, 2, 3]);
        assert_eq!(rates.top(Order::Denied), [1, 2, 0]);
        assert_eq!(rates.top(Order::Tight), [2, 1, 0]);
        assert_eq!(rates.top(Order::Near), [0, 1, 2]);
        assert_eq!(rates.top(Order::Busy), [0, 1, 2]);
    }

    #[test]
    fn only_the_first_of_many_are_in_an_order() {
        let mut rates = Rates::default();
        let rate =
            |hits: u32| Last { rate: Rate { hits: hits as f32, ..Rate::default() }, ..Last::default() };
        rates.series = (0..1_000).map(rate).collect();
        rates.put_in_order((0..1_000).collect());
        assert_eq!(rates.top(Order::Busy), (1_000 - TOP as u32..1_000).rev().collect::<Vec<_>>());
    }

    #[test]
    fn a_plot_has_a_step_for_every_five_seconds_and_ends() {
        let mut plot = Plot::from(1_000);
        for second in 1..5 {
            plot.add(hits(10, 1), second * 1_000);
        }
        assert_eq!(plot.steps.len(), 0, "the first step is not over");
        plot.add(hits(10, 0), 5_000);
        plot.add(hits(7, 7), 21_000);
        assert_eq!(plot.steps, [hits(40, 4), hits(10, 0), hits(0, 0), hits(0, 0)]);
        plot.add(hits(1, 1), 10_000_000);
        assert_eq!((plot.steps.len(), plot.steps.iter().map(|step| step.all).sum::<u32>()), (STEPS_MAX, 0));
    }

    #[test]
    fn a_series_denies_nearly_all_when_it_did_so_for_a_minute() {
        let denying = |counts: fn(u64) -> LimitCounts, seconds: u64| {
            let (mut last, mut plot, mut rates) = (Last::default(), Plot::from(0), Rates::default());
            (1..=seconds).for_each(|at| plot.add(last.read(counts(at), at * 1_000), at * 1_000));
            rates.followed.insert(7, plot);
            rates.series.resize(8, last);
            rates.denying(95, 60).collect::<Vec<_>>()
        };
        let all = |at| counts(at * 100, at * 95, 0);
        assert_eq!(denying(all, 59), []);
        assert_eq!(denying(all, 65), [(7, (6_000, 5_700))]);
        assert_eq!(denying(|at| counts(at * 100, at * 94, 0), 65), [], "it admits some");
        let shadow = |at| LimitCounts { shadow: at * 50, ..counts(at * 100, at * 100, 0) };
        assert_eq!(denying(shadow, 65), [], "shadow mode lets half of it pass");
        assert_eq!(denying(|_| LimitCounts::default(), 65), [], "nobody asks");
        assert_eq!(denying(|at| counts(at, at - 1, 0), 65), [(7, (60, 60))]);
        assert_eq!(denying(|at| counts(at / 2, at / 2 - u32::from(at > 9) as u64, 0), 65), [], "few ask");
        assert_eq!(denying(|at| counts(at * 100, at * 100, 0), 65), [], "nothing may pass");
    }

    #[test]
    fn all_series_are_read_in_turn_and_those_that_matter_always() {
        use tidegate_serve::service::fixture::{metrics, service};
        let metrics = metrics();
        let rules = "
domain: shop
descriptors:
  - { key: a, rate_limit: { unit: day, requests_per_unit: 1 } }
  - { key: b, rate_limit: { unit: day, requests_per_unit: 1 } }
  - { key: c, rate_limit: { unit: day, requests_per_unit: 1 } }
";
        service(Some(rules), &metrics);
        let mut rates = Rates::default();
        let series = metrics.limit_series();
        (1..=series as u64).for_each(|second| rates.read(&metrics, second * 1_000, 1));
        assert_eq!(rates.next, 0, "once round");
        assert_eq!(rates.top(Order::Busy), [0; 0], "nothing was hit");
        rates.follow(&[0, 7_000], 9_000);
        assert!(rates.plot(0).is_some() && rates.plot(7_000).is_none());
        rates.read(&metrics, 9_000 + FOLLOWED_MILLIS, 1);
        assert!(rates.plot(0).is_none(), "nobody wants it any more");
    }
}
