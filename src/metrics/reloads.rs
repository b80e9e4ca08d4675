//! Counters and gauges of the rules in force and of loading them.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::striped::{Slot, Striped, Writer};
use super::text::{Kind, Samples};

/// How loading went, and what is in force.
pub(super) struct Reloads {
    successes: Slot,
    errors: Slot,
    last_success_unix_secs: AtomicU64,
    rules: AtomicU64,
    warnings: AtomicU64,
}

impl Reloads {
    /// Nothing was loaded yet; `None` when there is no room for the counters.
    pub(super) fn new(striped: &Striped) -> Option<Self> {
        let (successes, errors) = (striped.reserve(1)?, striped.reserve(1)?);
        let [last_success_unix_secs, rules, warnings] = Default::default();
        Some(Self { successes, errors, last_success_unix_secs, rules, warnings })
    }

    /// The counters of sets that were installed, and of those that were not.
    pub(super) fn counters(&self) -> (Slot, Slot) {
        (self.successes, self.errors)
    }

    /// A set was installed at this unix time.
    pub(super) fn succeeded(&self, writer: &Writer<'_>, rules: usize, warnings: usize, unix_secs: u64) {
        writer.add(self.successes, 1);
        self.last_success_unix_secs.store(unix_secs, Relaxed);
        self.rules.store(rules as u64, Relaxed);
        self.warnings.store(warnings as u64, Relaxed);
    }

    /// A set was refused, or could not be read.
    pub(super) fn failed(&self, writer: &Writer<'_>) {
        writer.add(self.errors, 1);
    }

    /// Writes all families.
    pub(super) fn write(&self, out: &mut String, striped: &Striped) {
        let families = [
            (
                "ratelimit_service_config_load_success",
                "Rule sets that were installed.",
                Kind::Counter,
                striped.sum(self.successes),
            ),
            (
                "ratelimit_service_config_load_error",
                "Rule sets that were refused or could not be read.",
                Kind::Counter,
                striped.sum(self.errors),
            ),
            (
                "tidegate_config_last_reload_success_timestamp_seconds",
                "Unix time at which the rules in force were installed; 0 before the first.",
                Kind::Gauge,
                self.last_success_unix_secs.load(Relaxed),
            ),
            ("tidegate_rules", "Rules in force.", Kind::Gauge, self.rules.load(Relaxed)),
            (
                "tidegate_rules_warnings",
                "Warnings about the rules in force.",
                Kind::Gauge,
                self.warnings.load(Relaxed),
            ),
        ];
        for (family, help, kind, value) in families {
            Samples::of(out, family, help, kind).push(&[], value);
        }
    }
}
