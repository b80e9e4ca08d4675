//! The engine from outside: what files of rules mean, and which limit a request meets.

#![allow(clippy::unwrap_used, reason = "a test that fails tells where")]

mod rules;
mod rules_fuzz;
mod rules_load;
mod rules_match;
mod rules_refused;
