//! The engine and the memory store from outside: what rule files mean, which limit a request meets, what counters say.

#![allow(clippy::unwrap_used, reason = "a test that fails shows where")]

mod exceptions;
mod held_costs;
mod explain;
mod explain_agrees;
mod limitador;
mod rules;
mod rules_actions;
mod rules_epochs;
mod rules_fuzz;
mod rules_load;
mod rules_match;
mod rules_patterns;
mod rules_prefix;
mod rules_ranges;
mod rules_refused;
mod rules_warned;

mod asking;
mod bans;
mod calendars;
mod classes;
mod concurrency;
mod debts;
mod known;
mod limits_changed;
mod limits_examples;
mod limits_oracle;
mod limits_reload;
mod limits_sequences;
mod limits_strict;
mod overdraft;
mod random;
mod records;
mod reservations;
mod seeds;
mod store_candidates;
mod store_cold;
mod store_memory;
mod store_requests;
mod store_state;
mod store_threads;
