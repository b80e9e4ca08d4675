//! Exact rate limits inside a program: rules come from text, counters stay in memory. There is no server, no runtime,
//! no thread, and no clock but the caller's.
//!
//! ```
//! use tidegate_engine::{Limiter, Request, Timestamp};
//!
//! let rules = "
//! domain: shop
//! descriptors:
//!   - key: user
//!     rate_limit: {unit: minute, requests_per_unit: 2}
//! ";
//! let limiter = Limiter::builder().file("shop.yaml", rules).build().expect("good rules");
//!
//! let request = Request::new("shop", 1).descriptor(&[("user", "alice")]);
//! let ask = |now| limiter.decide(&request, now).passes();
//! let now = Timestamp::from_secs(1_000_000);
//! assert_eq!([ask(now), ask(now), ask(now)], [true, true, false]);
//! ```
//!
//! A [`Limiter`] is built from rule files, the same as those of the program `tidegate` (its README describes them). It
//! [decides](Limiter::decide) requests, each at one time that the caller passes. [`Clock`] gives times that no step of
//! the system's clock disturbs. Counters take a bounded amount of memory; [`sweep`](Limiter::sweep) frees those that
//! have expired.
//!
//! # Inside
//! A request passes through these steps, each a type of its own: [`Request`] → `rules` → `plan` → `memory` →
//! [`Decision`]. All modules but `clock` are pure: no I/O, no logs, no metrics, no protocol types; time and randomness
//! are arguments. Items without documentation here are for the program `tidegate` and its shared store, and change
//! with them.
//!
//! | to … | read |
//! | --- | --- |
//! | see how a rule file is loaded | `rules`: text → `tidegate-yaml` → `fields`, `check` → `compile` |
//! | add an algorithm | `limit` |
//! | see what is charged when a request is denied | `settle` |
//! | see which denials count towards a ban | `strikes` |
//! | see where counters are | `memory` |
//! | see what records and exceptions change | `overlay` |
//! | see where records are cached | `known` |

mod named;
#[doc(hidden)]
pub mod time;
#[doc(hidden)]
pub mod stamp;
#[doc(hidden)]
pub mod clock;
#[doc(hidden)]
pub mod unit;
#[doc(hidden)]
pub mod request;
#[doc(hidden)]
pub mod limit;
#[doc(hidden)]
pub mod key;
mod pattern;
#[doc(hidden)]
pub mod prefix;
#[doc(hidden)]
pub mod classes;
#[doc(hidden)]
pub mod path;
mod sip;
#[doc(hidden)]
pub mod text;
#[doc(hidden)]
pub mod metric_name;
#[doc(hidden)]
pub mod cost;
#[doc(hidden)]
pub mod held_costs;
#[doc(hidden)]
pub mod rule;
#[doc(hidden)]
pub mod rules;
#[doc(hidden)]
pub mod plan;
#[doc(hidden)]
pub mod overlay;
#[doc(hidden)]
pub mod known;
#[doc(hidden)]
pub mod settle;
#[doc(hidden)]
pub mod decision;
#[doc(hidden)]
pub mod strikes;
#[doc(hidden)]
pub mod look;
#[doc(hidden)]
pub mod explain;
#[doc(hidden)]
pub mod keyed;
#[doc(hidden)]
pub mod heavy;
#[doc(hidden)]
pub mod memory;
#[doc(hidden)]
pub mod reported;
mod sync;
mod limiter;

#[doc(inline)]
pub use crate::clock::Clock;
#[doc(inline)]
pub use crate::decision::{Code, Decision, Limited, Status};
#[doc(inline)]
pub use crate::limit::Algorithm;
pub use crate::limiter::{Limiter, LimiterBuilder, Outcome};
#[doc(inline)]
pub use crate::memory::StoreFull;
#[doc(inline)]
pub use crate::request::Request;
#[doc(inline)]
pub use crate::rules::Diagnostic;
#[doc(inline)]
pub use crate::time::Timestamp;

/// The examples of the README, as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
