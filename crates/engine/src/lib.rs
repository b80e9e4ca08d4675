//! The pure core: what a request asks, what the rules say, what a counter answers, what the answer is.
//!
//! In: texts of rules, requests, times. Out: [`RuleSet`](rules::RuleSet)s, [`Plan`](plan::Plan)s,
//! [`Verdict`](limit::Verdict)s, [`Decision`](decision::Decision)s. Nothing here reads a clock, does I/O, logs,
//! counts a metric or knows a protocol type; time and randomness are arguments.

pub mod time;
pub mod clock;
pub mod unit;
pub mod request;
pub mod limit;
pub mod key;
mod sip;
pub mod text;
pub mod metric_name;
pub mod rule;
pub mod rules;
pub mod plan;
pub mod settle;
pub mod decision;
pub mod explain;
pub mod keyed;
pub mod memory;
pub mod reported;
mod sync;
