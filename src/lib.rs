//! Tidegate decides, for every request that a proxy is about to forward, whether it may pass.
//!
//! This is the program: it answers Envoy over gRPC and everybody else over HTTP. What it stands on are crates of their own:
//!
//! | crate | what it is |
//! | --- | --- |
//! | `tidegate-engine` | requests, rules, plans, limits, decisions, counters in memory. What other programs embed |
//! | `tidegate-redis` | counters that several nodes share, and what happens while Redis does not answer |
//! | `tidegate-grpc` | HTTP/2 and the words of gRPC, as a state machine that knows no service |
//! | `tidegate-yaml` | YAML with the place of every value, which files of rules and of mappings are read with |
//!
//! # One picture
//! A request crosses the program once, left to right, and becomes a different type at each step. No step edits an
//! earlier value, none calls back.
//!
//! ```text
//! socket ─▶ front ──Request──▶ rules ──Plan──▶ store ──Verdicts──▶ decision ──Decision──▶ front ─▶ socket
//!           parse              match           count               conclude      │        render
//!           (edge)             (pure)          (locks)             (pure)        └──▶ metrics.observe(&Decision)
//!
//! files ─▶ source ──texts──▶ rules::load ──RuleSet──▶ Service::install             (second, independent flow)
//! ```
//!
//! The whole way is one function, `service::Service::decide`, for every front and for however many requests came
//! together; where the shared store has to be asked, `Service::finish` goes on from there.
//!
//! # The modules, in reading order
//! The engine is pure (no async, I/O, logs, metrics or protocol types; of clocks it only has one to hand out). `source`
//! and `metrics` import it alone; `decisions` (what is logged of them) those; `service` imports all of these and the shared
//! store; `front` imports `service`. Beside the way of a request: `statsd` sends `metrics` on, `front` begins `spans`.
//! `settings` reads the command line and the environment into one value a row; `configuration` resolves these once into
//! the options of all other modules; `app` hands them on, and knows no settings. Only `cli` imports `app`. Cargo keeps
//! the walls between crates, `tests/tidy.rs` those within.
//!
//! | to … | touch |
//! | --- | --- |
//! | add an algorithm | `limit/<name>.rs` in `crates/engine/src`, a variant in `limit.rs`, one `.lua` in `crates/redis/src/lua`, a line in the property and contract tests |
//! | add a key of the rule files | `crates/engine/src/rules/fields.rs` → `check.rs` → `compile.rs` → `rule.rs`; the compiler leads |
//! | add an action of `rate_limits` | `crates/engine/src/rules/keys.rs` → `check/actions.rs` → `actions.rs`, a line in its tests |
//! | change what happens when Redis does not answer | `crates/redis/src/shared_store/fallback.rs` |
//! | add a setting | a row in `settings/table.rs`, a line in `configuration.rs` or a part of it, how it compares in `settings/switching.rs`; then `tidegate settings --markdown > docs/settings.md`, and a test in `tests/blackbox` of what it does |
//! | add a kind of value that settings take | a file of `settings/value`, by kind; an enumeration belongs to the module that acts by it |
//! | add a command | `cli/<command>.rs` |
//! | tell more of why an answer is what it is | `crates/engine/src/rules/walk.rs`, `explain.rs` |
//! | change shadow mode, quota mode, the overall code | `crates/engine/src/settle.rs`, `decision.rs` |
//! | change what is charged when a request is denied | `crates/engine/src/settle.rs` |
//! | add a counter that `envoyproxy/ratelimit` has | `metrics/stat_name.rs`, `metrics/named.rs`: StatsD and mappings follow |
//! | add a front or a source of rules | a file beside its siblings |
//! | serve a connection by other means than hyper | `front/connections.rs`: `serve_grpc`, `serve_http` |
//!
//! # Invariants
//! - In no window of a strict limit, wherever it starts, are more than N hits admitted; under any interleaving of
//!   threads, and across reloads.
//! - A request charges all of its counters or none (fixed windows and reported costs apart, as their rules say).
//! - A counter is kept until it equals an unused one, whatever else comes in.
//! - Everything that requests can cause to be held is bounded. No input makes the process panic.
//!
//! # Choices, with the reason
//! - **One clock reading a request**, and the wall clock is read once in the life of the process (`tidegate_engine::Clock`): its steps
//!   do not exist here.
//! - **Workers**: a thread a core, each with a runtime of its own; a connection belongs to the worker that had the
//!   fewest. A decision is made where its bytes were read, without a hop. Everything else (scrapes, expiry, reloads)
//!   runs on other threads at a lower priority.
//! - **The hot call stands on an HTTP/2 of our own** (`crates/grpc`, driven by `front/lane`), behind the handler of `front` (bytes in, bytes out): a
//!   state machine without I/O, written for small unary calls. `docs/lane.md` says why, what it leaves out, and how it is
//!   held to what hyper does. A generic server costs many times what the decision does.
//! - **Or on hyper directly** (GRPC_FRONT=tonic, and wherever traces are wanted); tonic serves health and reflection
//!   beside it.
//! - **What came in with one read is one batch** (`service::Batch`): the counters of eight requests come from memory side by
//!   side; waiting for each in turn is most of what a decision among a million keys takes. A request that came alone is a
//!   batch of one. No answer waits for another connection.
//! - **Counters answer in two steps** (`service::Counters`): `begin` is what this node knows now: everything with counters
//!   in memory, where nothing waits and nothing is boxed; with a shared store, what it holds a lease for or remembers as
//!   over. `finish` asks the shared store for the rest.
//! - **The Rust code is the specification**, the scripts in `crates/redis/src/lua` are its twins: one suite asks both the
//!   same and compares every field. Redis' clock cuts the windows; a call that comes too late does nothing.
//! - **A counter that is asked alone takes the shortest way** (`lua/alone` there): in a script, functions and tables
//!   are made anew for every call, and cost Redis three times what the call does. The same suite holds both ways.
//! - **A sliding window is one text in Redis** (`lua/window.lua`): what most calls read and write is at its
//!   front, in binary. As a list, each call took twice as many commands, and turning numbers into text took longest.
//! - **A lease counts as if it were spent when it ends** (`crates/redis/src/lease.rs`), by a node's clock that started before the
//!   question: so a node may decide alone and the limit stays strict. One that is asked for a lot is renewed before it is
//!   spent (`lease/counter.rs`): nobody waits for it. Renewals wait 2 ms at most for each other, and ask
//!   together.
//! - **Calls that come together go to Redis in one command** (`crates/redis/src/call_batches.rs`), and each is decided as if it had
//!   come by itself: a command costs both sides more than what it asks.
//! - **What waits for Redis is small** (`crates/redis/src/shared_store/question.rs`): a usual request is read and planned again when its
//!   answer is there, because that takes less than to copy both into whatever waits.
//! - **Connections to Redis belong to workers**, who route to the slots of a Cluster themselves: a server that hangs
//!   costs its own slots, and no request waits for a connection.
//! - **Rules own no counters and no metrics**, so a file of rules is checked without a server, and a reload is the swap
//!   of one pointer. Each thread reads it by a cache of its own: a shared reference count bounces between cores.
//! - **Keys are 128 bits, injective, under a secret of the process**: nobody can aim at a shard or a collision.

mod source;
mod metrics;
mod statsd;
mod spans;
mod decisions;
mod service;
mod front;
mod health;
mod clock;
mod logging;
mod settings;
mod configuration;
mod app;
#[doc(hidden)]
pub mod cli;

/// The handler behind the fronts, and the lane without sockets, for the benchmarks that measure them alone.
#[doc(hidden)]
pub use front::bare::{answerer, lane};
/// The protocol's messages and client, for the tests and benchmarks beside this crate.
#[doc(hidden)]
pub use front::proto;
