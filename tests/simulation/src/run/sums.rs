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
}

impl Sums {
    /// Adds a decision.
    pub(super) fn add(&self, request: &Request<'_>, decision: &Decision<'_>) {
        for (status, descriptor) in decision.statuses.iter().zip(request.descriptors()) {
            let Status::Limited(limited) = status else { continue };
            let limit = descriptor.entries.last().and_then(|entry| place_of(entry.key));
            if let (Hits::Take(hits @ 1..), Some(limit)) = (limited.hits, limit) {
                let sum = &mut lock(&self.0)[limit];
                sum.hits += hits;
                match limited.verdict.over {
                    true => sum.over += 1,
                    false => sum.within += hits,
                }
            }
        }
    }

    /// The first sum that these metrics say otherwise.
    pub(super) fn check(&self, metrics: &Arc<Metrics>) -> Option<String> {
        let (text, own): (String, _) = (metrics.scrape().collect(), *lock(&self.0));
        let sum_of = |stat: &str, limit: usize| -> u64 {
            let family = format!("ratelimit_service_rate_limit_{stat}{{");
            let samples = text.lines().filter(|line| line.starts_with(&family));
            let values = samples.filter_map(|line| {
                let (labels, value) = line.rsplit_once(' ')?;
                let (_, last) = labels.rsplit_once("=\"")?;
                (place_of(last.get(..2)?)? == limit).then(|| value.parse::<u64>().ok()).flatten()
            });
            values.sum()
        };
        (0..).zip(own).find_map(|(limit, Sum { hits, within, over })| {
            let [hits_told, within_told, over_told] =
                ["total_hits", "within_limit", "over_limit"].map(|stat| sum_of(stat, limit));
            let is_right = (hits_told, within_told) == (hits, within) && (over..=hits - within).contains(&over_told);
            (!is_right).then(|| {
                format!(
                    "limit {limit}: metrics say {hits_told} hits, {within_told} within and {over_told} over, though {hits} \
                     were asked for, {within} of them within, and {over} descriptors were over"
                )
            })
        })
    }
}

fn place_of(name: &str) -> Option<usize> {
    LIMITS.iter().position(|other| *other == name)
}
