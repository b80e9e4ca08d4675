//! Tidegate inside Envoy: an HTTP filter that decides whether a request may pass without asking another process.
//!
//! Envoy loads the library and calls its hooks on its own worker threads. A request is described by the `rate_limits`
//! of its domain, as for `/check`, and decided by the program's own service: the same rules, the same stores, the
//! same exceptions. If this node can answer by itself, the answer is given at once, on the worker. If Redis has to be
//! asked, the request waits in Envoy, and the limiter's own thread asks.
//!
//! - `hooks`, `abi`: the functions that Envoy calls, and those of Envoy that are called. All `unsafe` code of the
//!   project is in these two
//! - `configuration`: the configuration of the filter and of its routes
//! - `doorbell`: calls a configuration or a stream back, from the limiter's thread
//! - `stats`: the limiter's metrics in Envoy's statistics
//! - `filter`: one request
//! - `client`: a request of Envoy, as `rate_limits` read it
//! - `log`: the limiter's log, in Envoy's
//!
//! Supported are Envoy 1.39 and 1.40.

mod abi;
mod log;
mod client;
mod doorbell;
mod stats;
mod configuration;
mod filter;
mod hooks;
