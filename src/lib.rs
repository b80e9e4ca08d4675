//! Tidegate decides, for every request that a proxy is about to forward, whether it may pass.
//!
//! # One picture
//! A request crosses the program once, left to right, and becomes a different type at each step. No step edits an
//! earlier value, none calls back.
//!
//! ```text
//! socket ─▶ front ──Request──▶ rules ──Plan──▶ store ──Verdicts──▶ decision ──Decision──▶ front ─▶ socket
//!           parse              match           count               conclude      │        render
//!           (edge)             (pure)          (locks)             (pure)        └──▶ metrics.observe(&Decision)
//!
//! files ─▶ source ──texts──▶ rules::load ──RuleSet──▶ Service::install             (second, independent flow)
//! ```
//!
//! # The modules, in reading order
//! `engine` is pure (no async, clock, I/O, logs, metrics or protocol types) and imports nothing else of ours;
//! `store`, `source` and `metrics` import `engine`; `service` imports those; `front` imports `service`; `app` imports
//! all; only `cli` imports `app`. `tests/tidy.rs` checks this law.

pub mod engine;
pub mod store;
pub mod source;
pub mod metrics;
pub mod service;
pub mod front;
pub mod health;
pub mod clock;
pub mod settings;
pub mod logging;
pub mod app;
pub mod cli;
