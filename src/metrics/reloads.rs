//! Counters and gauges of the rules in force and of loading them. They change a few times a day, so they are plain
//! atomics.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::text::{Kind, Samples};

/// How loading went, and what is in force.
#[derive(Default)]
pub(super) struct Reloads {
    successes: AtomicU64,
    errors: AtomicU64,
    last_success_unix_secs: AtomicU64,
    rules: AtomicU64,
    warnings: AtomicU64,
}

impl Reloads {
    /// A set was installed at this unix time.
    pub(super) fn succeeded(&self, rules: usize, warnings: usize, unix_secs: u64) {
        self.successes.fetch_add(1, Relaxed);
        self.last_success_unix_secs.store(unix_secs, Relaxed);
        self.rules.store(rules as u64, Relaxed);
        self.warnings.store(warnings as u64, Relaxed);
    }

    /// A set was refused, or could not be read.
    pub(super) fn failed(&self) {
        self.errors.fetch_add(1, Relaxed);
    }

    /// Writes all families.
    pub(super) fn write(&self, out: &mut String) {
        let families = [
            (
                "ratelimit_service_config_load_success",
                "Rule sets that were installed.",
                Kind::Counter,
                &self.successes,
            ),
            (
                "ratelimit_service_config_load_error",
                "Rule sets that were refused or could not be read.",
                Kind::Counter,
                &self.errors,
            ),
            (
                "tidegate_config_last_reload_success_timestamp_seconds",
                "Unix time at which the rules in force were installed; 0 before the first.",
                Kind::Gauge,
                &self.last_success_unix_secs,
            ),
            ("tidegate_rules", "Rules in force.", Kind::Gauge, &self.rules),
            ("tidegate_rules_warnings", "Warnings about the rules in force.", Kind::Gauge, &self.warnings),
        ];
        for (family, help, kind, value) in families {
            Samples::of(out, family, help, kind).push(&[], value.load(Relaxed));
        }
    }
}
