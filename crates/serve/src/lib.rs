//! The path of a request through a limiter, without sockets and settings: planned under the rules in force and their
//! overlay, counted, concluded, reported.
//!
//! [`service`] runs it: it calls every stage and has no logic of its own. It takes times, timers and tasks from the
//! runtime that it is generic over, as the shared store does, so that a simulation runs the same code. The rules in
//! force are in [`live`]; reports go to [`metrics`], [`decisions`] (the decision log), [`denied`],
//! [`bans`] and [`watches`] (keys by name, bounded) and [`events`].
//!
//! ```text
//! Request ─▶ rules (live) ─▶ Plan under records and exceptions ─▶ counters ─▶ Decision ─▶ metrics, log, events, keys ─▶ front
//! ```
//!
//! The items are for the program `tidegate` and its simulation, and change with them.

pub mod clock;
pub mod live;
pub mod metrics;
pub mod report;
pub mod decisions;
pub mod events;
pub mod bans;
pub mod denied;
pub mod watches;
pub mod service;
pub mod refusal;
pub mod health;
pub mod reload;
