//! The sums of metrics: what nodes count of each limit has to be what they decided.
//!
//! In: every decision, as it is rendered; then the metrics of all nodes, as a scrape reads them. Out: the first sum that differs.

use std::sync::{Arc, Mutex};

use tidegate_engine::decision::{Decision, Status};
use tidegate_engine::plan::Hits;
use tidegate_engine::request::Request;
use tidegate_serve::metrics::Metrics;

use super::names::LIMITS;
use crate::world::lock;

/// What was decided of each limit.
#[derive(Default)]
pub(super) struct Sums(Mutex<[Sum; LIMITS.len()]>);

#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    /// Hits that were asked for.
    hits: u64,
    /// Those of descriptors that were not over.
    within: u64,
    /// How many descriptors were over that asked for hits.
    over: u64,
    /// Hits that its candidate was asked for too, by what both said, as in [`SAID`].
    on_trial: [u64; SAID.len()],
}

/// What a limit and its candidate say of hits, as the labels of metrics end.
const SAID: [&str; 4] = [
    ",limit=\"within\",candidate=\"within\"",
    ",limit=\"within\",candidate=\"over\"",
    ",limit=\"over\",candidate=\"within\"",
    ",limit=\"over\",candidate=\"over\"",
];

impl Sums {
    /// Adds a decision.
    pub(super) fn add(&self, request: &Request<'_>, decision: &Decision<'_>) {
        for (at, (status, descriptor)) in decision.statuses.iter().zip(request.descriptors()).enumerate() {
            let Status::Limited(limited) = status else { continue };
            let limit = descriptor.entries.iter().rev().find_map(|entry| place_of(entry.key));
            let Some(limit) = limit else { continue };
            let sum = &mut lock(&self.0)[limit];
            if let Hits::Take(hits @ 1..) = limited.hits {
                sum.hits += hits;
                match limited.verdict.over {
                    true => sum.over += 1,
                    false => sum.within += hits,
                }
            }
            // The first limit of the rule is on trial, whichever is shown.
            let all = std::iter::once(limited).chain(decision.not_shown(at));
            let first = all.min_by_key(|limited| limited.origin.rule().map(|rule| rule.id));
            for trial in decision.trials().iter().filter(|trial| trial.descriptor == at) {
                if let (Hits::Take(hits), Some(first)) = (trial.limited.hits, first) {
                    let said = 2 * usize::from(first.verdict.over) + usize::from(trial.limited.verdict.over);
                    sum.on_trial[said] += hits;
                }
            }
        }
    }

    /// The first sum that these metrics say otherwise.
    pub(super) fn check(&self, metrics: &Arc<Metrics>) -> Option<String> {
        let (text, own): (String, _) = (metrics.scrape().collect(), *lock(&self.0));
        let mut counted = [Sum::default(); LIMITS.len()];
        text.lines().for_each(|line| _ = add_sample(&mut counted, line));
        (0..).zip(own.iter().zip(&counted)).find_map(|(limit, (own, counted))| {
            let is_right = (counted.hits, counted.within, counted.on_trial)
                == (own.hits, own.within, own.on_trial)
                && (own.over..=own.hits - own.within).contains(&counted.over);
            (!is_right)
                .then(|| format!("limit {limit}: metrics say {counted:?}, though {own:?} were decided"))
        })
    }
}

/// Adds a line of metrics to the sum of its limit, if it is a sample of one of these.
fn add_sample(sums: &mut [Sum; LIMITS.len()], line: &str) -> Option<()> {
    let (labels, value) = line.rsplit_once("} ")?;
    let (family, labels) = labels.split_once('{')?;
    let said = SAID.iter().position(|end| labels.ends_with(end));
    let labels = said.map_or(labels, |said| &labels[..labels.len() - SAID[said].len()]);
    let place = |labels: &str| place_of(labels.rsplit_once("=\"")?.1.get(..2)?);
    let sum = &mut sums[place(labels)?];
    *match family {
        "ratelimit_service_rate_limit_total_hits" => &mut sum.hits,
        "ratelimit_service_rate_limit_within_limit" => &mut sum.within,
        "ratelimit_service_rate_limit_over_limit" => &mut sum.over,
        "tidegate_candidate_hits_total" => &mut sum.on_trial[said?],
        _ => return None,
    } += value.parse::<u64>().ok()?;
    Some(())
}

fn place_of(name: &str) -> Option<usize> {
    LIMITS.iter().position(|other| *other == name)
}
