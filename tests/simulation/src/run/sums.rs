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

#[derive(Clone, Copy, Default)]
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

/// What a limit and its candidate say of hits, as metrics call it.
const SAID: [&str; 4] = [
    "limit=\"within\",candidate=\"within\"",
    "limit=\"within\",candidate=\"over\"",
    "limit=\"over\",candidate=\"within\"",
    "limit=\"over\",candidate=\"over\"",
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
        let stat = |stat, limit| sum_of(&text, &format!("ratelimit_service_rate_limit_{stat}{{"), "}", limit);
        (0..).zip(own).find_map(|(limit, Sum { hits, within, over, on_trial })| {
            let [hits_counted, within_counted, over_counted] =
                ["total_hits", "within_limit", "over_limit"].map(|name| stat(name, limit));
            let on_trial_counted =
                SAID.map(|said| sum_of(&text, "tidegate_candidate_hits_total{", &format!(",{said}}}"), limit));
            let is_right = (hits_counted, within_counted, on_trial_counted) == (hits, within, on_trial)
                && (over..=hits - within).contains(&over_counted);
            (!is_right).then(|| {
                format!(
                    "limit {limit}: metrics say {hits_counted} hits, {within_counted} within and {over_counted} over, and \
                     {on_trial_counted:?} on trial, though {hits} were asked for, {within} of them within, and {over} \
                     descriptors were over, and {on_trial:?} on trial"
                )
            })
        })
    }
}

/// The sum of the samples of a family whose labels end so, of the rules of a limit.
fn sum_of(text: &str, family: &str, end: &str, limit: usize) -> u64 {
    let samples = text.lines().filter_map(|line| line.strip_prefix(family)?.rsplit_once(' '));
    let values = samples.filter_map(|(labels, value)| {
        let (_, rule) = labels.strip_suffix(end)?.rsplit_once("=\"")?;
        (place_of(rule.get(..2)?)? == limit).then(|| value.parse::<u64>().ok()).flatten()
    });
    values.sum()
}

fn place_of(name: &str) -> Option<usize> {
    LIMITS.iter().position(|other| *other == name)
}
