//! The shared store: counters in Redis, or whatever speaks its protocol, under one clock, in one script.

pub mod script;
pub mod key;
