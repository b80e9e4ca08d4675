//! The code of the memory store, and of the cache of records, under a scheduler that decides which thread runs between any
//! two steps of its locks and atomics: the same requests in thousands of interleavings. A deadlock is a failure.
//!
//! The modules are compiled here a second time, with `shuttle`'s locks and atomics in the place of `src/sync.rs`.
//! A failure prints the schedule that leads to it, for `shuttle::replay`.

#[path = "../../src"]
#[allow(dead_code, unused_imports, reason = "the models ask less than the crate has")]
mod src {
    pub mod classes;
    pub mod cost;
    pub mod decision;
    pub mod held_costs;
    pub mod key;
    pub mod known;
    pub mod limit;
    pub mod look;
    pub mod memory;
    pub mod metric_name;
    mod named;
    pub mod overlay;
    pub mod path;
    pub mod pattern;
    pub mod plan;
    pub mod prefix;
    pub mod reported;
    pub mod request;
    pub mod rule;
    pub mod rules;
    pub mod settle;
    pub mod strikes;
    pub mod sip;
    pub mod text;
    pub mod time;
    pub mod unit;
}

mod sync {
    pub(crate) use shuttle::sync::atomic::{AtomicU16, AtomicU32, AtomicU64};
    pub(crate) use shuttle_parking_lot_impl::{MappedMutexGuard, Mutex, MutexGuard};
}

mod explore;
mod models;

use src::{
    classes, cost, decision, held_costs, key, known, limit, look, memory, metric_name, overlay, path,
    pattern, plan, prefix, reported, request, rule, rules, settle, sip, strikes, text, time, unit,
};
