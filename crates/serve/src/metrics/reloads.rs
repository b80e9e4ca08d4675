//! Counters and gauges of the rules in force and of loading them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;

use super::striped::{Slot, Striped, Writer};
use super::text::{MetricType, Page, Samples};

/// Counts of loads that succeeded and failed, and figures of the rules in force.
pub(super) struct Reloads {
    successes: Slot,
    errors: Slot,
    last_success_unix_secs: AtomicU64,
    /// Whether the last load succeeded.
    succeeded: AtomicBool,
    rules: AtomicU64,
    /// The hash of the rules in force; `None` before the first.
    hash: Mutex<Option<Arc<str>>>,
    warnings: AtomicU64,
}

impl Reloads {
    /// All at 0; `None` when there is no room for the counters.
    pub(super) fn new(striped: &Striped) -> Option<Self> {
        let (successes, errors) = (striped.reserve(1)?, striped.reserve(1)?);
        let [last_success_unix_secs, rules, warnings] = Default::default();
        let succeeded = AtomicBool::new(false);
        let hash = Mutex::default();
        Some(Self { successes, errors, last_success_unix_secs, succeeded, rules, hash, warnings })
    }

    /// The counters of rule sets that were installed, and of those that were not.
    pub(super) fn counters(&self) -> (Slot, Slot) {
        (self.successes, self.errors)
    }

    /// A rule set with this hash was installed at this Unix time.
    pub(super) fn succeeded(
        &self,
        writer: &Writer<'_>,
        hash: Arc<str>,
        rules: usize,
        warnings: usize,
        unix_secs: u64,
    ) {
        *self.hash.lock() = Some(hash);
        writer.add(self.successes, 1);
        self.succeeded.store(true, Relaxed);
        self.last_success_unix_secs.store(unix_secs, Relaxed);
        self.rules.store(rules as u64, Relaxed);
        self.warnings.store(warnings as u64, Relaxed);
    }

    /// A rule set was refused or could not be read.
    pub(super) fn failed(&self, writer: &Writer<'_>) {
        writer.add(self.errors, 1);
        self.succeeded.store(false, Relaxed);
    }

    /// Writes the families that `envoyproxy/ratelimit` does not have.
    pub(super) fn write(&self, page: &mut Page) {
        let (family, help) = (
            "tidegate_config_last_reload_successful",
            "1 when the last load of rules succeeded; 0 when it failed, or there was none yet.",
        );
        Samples::of(page, family, help, MetricType::Gauge).push(&[], u64::from(self.succeeded.load(Relaxed)));
        let families = [
            (
                "tidegate_config_last_reload_success_timestamp_seconds",
                "Unix time at which the rules in force were installed; 0 before the first.",
                &self.last_success_unix_secs,
            ),
            ("tidegate_rules", "Rules in force.", &self.rules),
            ("tidegate_rules_warnings", "Warnings about the rules in force.", &self.warnings),
        ];
        for (family, help, value) in families {
            Samples::of(page, family, help, MetricType::Gauge).push(&[], value.load(Relaxed));
        }
        if let Some(hash) = &*self.hash.lock() {
            let help = "The hash of the rules in force: the same on all nodes that have the same rules.";
            Samples::of(page, "tidegate_rules_info", help, MetricType::Gauge).push(&[("hash", hash)], 1);
        }
    }

    /// Writes the families that `envoyproxy/ratelimit` has too.
    pub(super) fn write_common(&self, page: &mut Page, striped: &Striped) {
        let families = [
            ("ratelimit_service_config_load_success", "Rule sets that were installed.", self.successes),
            (
                "ratelimit_service_config_load_error",
                "Rule sets that were refused or could not be read.",
                self.errors,
            ),
        ];
        for (family, help, count) in families {
            Samples::of(page, family, help, MetricType::Counter).push(&[], striped.sum(count));
        }
    }
}
