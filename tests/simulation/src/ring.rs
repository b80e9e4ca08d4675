//! Nodes that count by themselves behind a ring as Envoy's, in one process: a million users, deaths, rollouts, resizes.
//!
//! In: an [`Event`](event::Event), a size and a seed. Out: what was admitted too much and what was denied wrongly, second by
//! second. The counters are the engine's own; the ring, the proxies, the machines and their clocks are simulated. There
//! is no network: a request is decided when it is sent, or gets an error when its node is away.

pub mod envoy;
pub mod event;
mod node;
mod oracle;
pub mod plot;
pub mod run;
mod users;

pub use users::Crowd;
