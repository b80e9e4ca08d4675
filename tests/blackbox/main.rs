//! Black-box tests: the program as people run it, asked by real peers over loopback.
//!
//! Every test starts its own limiter (and its own Envoy, where one is asked) on ports of its own and ends both. Nothing
//! of the library is imported: what is asserted is what a peer can see (answers, headers, metrics, logs, exit codes).
//! Nothing sleeps for a fixed time to be "surely done": tests poll, with a deadline far beyond what a busy machine
//! needs. Windows are far longer than a test, so no window can end while it is counted.

// The harness waits for real processes, with real deadlines; and in a test binary nothing is public.
#![allow(clippy::disallowed_methods, unreachable_pub)]

mod harness;

mod admin;
mod admin_in_force;
mod admin_load;
mod admin_mistakes;
mod admin_resets;
mod admin_strangers;
mod admin_tls;
mod admin_token;
mod answers;
mod attacks;
mod bans;
mod browser;
mod calendars;
mod candidates;
mod check_descriptors;
mod check_fronts;
mod classes;
mod client_answers;
mod clients;
mod commands;
mod connections;
mod debug_port;
mod denied_by;
mod documented;
mod envoy;
mod envoy_answers;
mod envoy_descriptors;
mod events;
mod exceptions_shared;
mod explained;
mod fingerprints;
mod footprint;
mod fronts;
mod gates;
mod h2spec;
mod hooks;
mod hostile_logs;
mod hostile_text;
mod inside;
mod kubernetes;
mod lane;
mod lifecycle;
mod listeners;
mod logins;
mod logs;
mod looked_up;
mod mapping;
mod metered;
mod metrics;
mod nginx;
mod observability;
mod operators;
mod package;
mod paths;
mod prefixes;
mod promtool;
mod proxies;
mod readme;
mod records;
mod records_away;
mod redis_cold;
mod redis_examples;
mod redis_failover;
mod redis_failures;
mod redis_leased;
mod redis_outages;
mod redis_recovery;
mod redis_settings;
mod redis_shared;
mod redis_strict;
mod reload;
mod reload_under_load;
mod reservations;
mod resets_redis;
mod rollouts;
mod settings;
mod schema;
mod slots;
mod slots_killed;
mod sharded;
mod starvation;
mod status_exceptions;
mod status_page;
mod state;
mod state_kills;
mod statsd;
mod stderr;
mod switching;
mod tls;
mod tokens;
mod tracing;
mod traffic;
mod tried;
mod uds;
mod upgrades;
mod xds;
