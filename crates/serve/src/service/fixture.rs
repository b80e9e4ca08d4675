//! Services without settings: for the tests and benchmarks of the fronts.

use std::sync::Arc;
use std::time::Duration;

use super::{
    Counters, KnownRecords, NoAnswer, RecordAnswer, RecordSource, RecordsOptions, Service, StaleMode,
};
use crate::clock::Clock;
use crate::metrics::{Metrics, MetricsOptions, Names};
use tidegate_engine::key::KeySecret;
use tidegate_engine::memory::{MemoryOptions, MemoryStore};
use tidegate_engine::plan::Modes;
use tidegate_engine::rules::{LoadOptions, RuleSet, SourceFile, load};
use tidegate_records::{Record, RecordKey};

/// Metrics of a small process.
pub fn metrics() -> Arc<Metrics> {
    Arc::new(Metrics::new(&MetricsOptions {
        near_limit_ratio: 0.8,
        max_series: 100,
        stripes: 2,
        timer_readers: 0,
        constant_labels: Vec::new(),
        names: Names::BuiltIn { response_time_millis: false },
    }))
}

/// These rules.
pub fn rules(text: &str) -> RuleSet {
    let options = LoadOptions::new(KeySecret::new([7; 16])).strict(true);
    let file = SourceFile { name: "rules.yaml".to_owned(), bytes: text.as_bytes().to_vec(), presumed: false };
    load(&[file], &options).expect("good rules").rules
}

/// A service with these rules, or without any, and room for a few million counters.
pub fn service(text: Option<&str>, metrics: &Arc<Metrics>) -> Service {
    service_at(Clock::start(), text, metrics)
}

/// A service by this clock.
pub fn service_at(clock: Clock, text: Option<&str>, metrics: &Arc<Metrics>) -> Service {
    let store = Arc::new(MemoryStore::new(MemoryOptions::new(1 << 30)));
    let service = Service::new(Counters::Memory(store), Arc::clone(metrics), clock, Modes::default());
    if let Some(text) = text {
        service.install(rules(text));
    }
    service
}

/// The same service with these records, all of them known, and no store for others.
pub fn recorded(
    service: Service,
    known: impl ExactSizeIterator<Item = (RecordKey, Option<Record>)>,
) -> Service {
    let options =
        RecordsOptions { cache_entries: known.len(), timeout: Duration::ZERO, stale_mode: StaleMode::Rule };
    let records = KnownRecords::new(NoStore, KeySecret::new([7; 16]), options);
    known.for_each(|(key, record)| records.know(&key, record));
    service.recorded(Some(Arc::new(records)))
}

/// Answers nothing.
struct NoStore;

impl RecordSource for NoStore {
    fn get(&self, _: RecordKey) -> RecordAnswer<'_> {
        Box::pin(std::future::ready(Err(NoAnswer)))
    }
}
