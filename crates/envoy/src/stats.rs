//! The limiter's metrics in Envoy's statistics, under the names and labels that the server's `/metrics` has.
//!
//! Envoy requires that all of them are defined before it accepts a configuration. Its counters can only be added to,
//! and outlive configurations. Several configurations may share a limiter: the first one that asks adds the growth,
//! once.

use program::inside::Inside;

use crate::abi::{Counter, Gauge, Host};

const OF_LIMIT: &[&str] = &["domain", "key1", "key2", "rule"];

/// Counters, and the labels of each.
const COUNTERS: [(&str, &[&str]); 22] = [
    ("ratelimit_service_rate_limit_total_hits", OF_LIMIT),
    ("ratelimit_service_rate_limit_over_limit", OF_LIMIT),
    ("ratelimit_service_rate_limit_near_limit", OF_LIMIT),
    ("ratelimit_service_rate_limit_within_limit", OF_LIMIT),
    ("ratelimit_service_rate_limit_shadow_mode", OF_LIMIT),
    ("ratelimit_service_rate_limit_over_limit_with_local_cache", OF_LIMIT),
    ("ratelimit_service_rate_limit_domain_not_found", &["domain"]),
    ("ratelimit_service_config_load_success", &[]),
    ("ratelimit_service_config_load_error", &[]),
    ("tidegate_unmatched_total", &["domain"]),
    ("tidegate_candidate_hits_total", &["domain", "key1", "key2", "rule", "limit", "candidate"]),
    ("tidegate_exceptions_met_total", &["effect"]),
    ("tidegate_bans_seen_total", &[]),
    ("tidegate_banned_total", &[]),
    ("tidegate_redis_round_trips_total", &["store"]),
    ("tidegate_redis_failures_total", &["store", "kind"]),
    ("tidegate_redis_memory_lost_total", &["store"]),
    ("tidegate_redis_leases_total", &[]),
    ("tidegate_redis_lease_hits_spent_total", &[]),
    ("tidegate_redis_lease_hits_given_back_total", &[]),
    ("tidegate_redis_reported_beyond_limit_hits_total", &[]),
    ("tidegate_redis_reported_dropped_hits_total", &[]),
];

/// Counters about the memory for counters, which all limiters of the process share.
const COUNTERS_OF_PROCESS: [(&str, &[&str]); 3] = [
    ("tidegate_reported_beyond_limit_hits_total", &[]),
    ("tidegate_reported_dropped_hits_total", &[]),
    ("tidegate_store_full_total", &["answer"]),
];

/// Gauges, and the labels of each.
const GAUGES: [(&str, &[&str]); 8] = [
    ("tidegate_counters_shared", &[]),
    ("tidegate_counters", &[]),
    ("tidegate_counters_bytes", &[]),
    ("tidegate_rules", &[]),
    ("tidegate_exceptions", &[]),
    ("tidegate_bans", &[]),
    ("tidegate_redis_breaker_open", &["store"]),
    ("tidegate_redis_in_flight", &["store"]),
];

/// The limiter's metrics, as a configuration has defined them.
pub struct Stats(Vec<(&'static str, &'static [&'static str], Shown)>);

/// What shows a family.
#[derive(Clone, Copy)]
enum Shown {
    Counter { counter: Counter, of_process: bool },
    Gauge(Gauge),
}

impl Stats {
    /// Defines all of them.
    /// Fails when Envoy refuses one.
    pub fn new(host: &Host) -> Result<Self, String> {
        let mut all = Vec::new();
        for (counters, of_process) in [(&COUNTERS[..], false), (&COUNTERS_OF_PROCESS[..], true)] {
            for &(name, labels) in counters {
                let counter = host.counter(name, labels)?;
                all.push((name, labels, Shown::Counter { counter, of_process }));
            }
        }
        for (name, labels) in GAUGES {
            all.push((name, labels, Shown::Gauge(host.gauge(name, labels)?)));
        }
        Ok(Self(all))
    }

    /// Shows them as they are now.
    pub fn show(&self, host: &Host, inside: &Inside) {
        inside.samples(|sample| {
            let Some((_, labels, shown)) = self.0.iter().find(|(name, ..)| *name == sample.family) else {
                return;
            };
            let values = || labels.iter().map(|label| sample.label(label));
            match *shown {
                Shown::Counter { counter, of_process } => match inside.growth(sample, of_process) {
                    0 => {}
                    grown => host.add(counter, values(), grown),
                },
                Shown::Gauge(gauge) => host.set(gauge, values(), sample.value),
            }
        });
    }
}
