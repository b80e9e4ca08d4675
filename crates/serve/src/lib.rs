//! The way of a request through a limiter, without sockets and settings: planned under the rules in force and what lies over
//! them, counted, concluded, reported.
//!
//! [`service`] is the spine: it calls every stage and holds no logic of its own. It takes times, timers and tasks from the
//! runtime that it is generic over, as the shared store does, so that a simulation drives the very same code. What it knows
//! of the rules in force is in [`live`]; what it reports goes to [`metrics`], [`decisions`] (the decision log), [`denied`] and
//! [`watches`] (keys by name, bounded) and [`events`].
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
pub mod denied;
pub mod watches;
pub mod service;
pub mod refusal;
pub mod health;
pub mod reload;
