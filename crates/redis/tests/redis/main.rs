//! The shared store against real Redis and Valkey servers, started here on loopback: single, and a Cluster of three
//! masters.

#![allow(clippy::unwrap_used, reason = "a test that fails shows where")]
#![allow(dead_code, reason = "shared with the tests of the memory store")]

#[path = "../../../engine/tests/engine/asking.rs"]
mod asking;
#[path = "../../../engine/tests/engine/random.rs"]
mod random;

mod calendars;
mod contract;
mod examples;
mod holds;
mod kinds;
mod leases;
mod looks;
mod lost;
mod script;
mod server;
mod values;
