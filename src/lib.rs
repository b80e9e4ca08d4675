//! Tidegate decides, for every request that a proxy is about to forward, whether it may pass.
//!
//! The program (`tidegate`) answers Envoy over gRPC and everybody else over HTTP. Its engine and its stores are also a
//! library. The engine and the memory store need no server, no runtime, no clock of their own; the
//! [shared one](store::SharedStore) needs a tokio runtime (`examples/embed_redis.rs`).
//!
//! ```
//! use tidegate_engine::decision::{Code, conclude};
//! use tidegate_engine::key::KeySecret;
//! use tidegate_engine::limit::Algorithm;
//! use tidegate_engine::plan::Modes;
//! use tidegate_engine::request::Request;
//! use tidegate_engine::rules::{Cost, LoadOptions, SourceFile, load};
//! use tidegate_engine::time::Timestamp;
//! use tidegate_engine::memory::{MemoryOptions, MemoryStore, StoreFull};
//!
//! let text = "
//! domain: shop
//! descriptors:
//!   - key: user
//!     rate_limit: {unit: minute, requests_per_unit: 2}
//! ";
//! let file = SourceFile { name: "shop.yaml".into(), bytes: text.into(), presumed: false };
//! let options = LoadOptions {
//!     default_algorithm: Algorithm::SlidingWindow,
//!     default_cost: Cost::default(),
//!     merge_domains: false,
//!     strict: true,
//!     max_file_bytes: 1 << 20,
//!     secret: KeySecret::new([7; 16]), // random bytes, where requests come from strangers
//! };
//! let rules = load(&[file], &options).expect("good rules").rules;
//! let store = MemoryStore::new(MemoryOptions { max_bytes: 1 << 20, full: StoreFull::Deny });
//!
//! let request = Request::new("shop", 1).descriptor(&[("user", "alice")]);
//! let plan = rules.plan(&request, Modes::default());
//! let mut ask = |now| conclude(&plan, &store.apply(&plan, now)).code;
//! let began = Timestamp::from_secs(1_000_000);
//! assert_eq!([ask(began), ask(began), ask(began)], [Code::Ok, Code::Ok, Code::OverLimit]);
//! ```
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
//! The whole way is one function, `service::Service::decide`.
//!
//! # The modules, in reading order
//! [`engine`] is pure (no async, clock, I/O, logs, metrics or protocol types) and imports nothing else of ours;
//! [`store`], `source` and `metrics` import `engine`; `decisions` (what is logged of them) those; `service` imports all of these; `front` imports `service`; `app` imports
//! all; only `cli` imports `app`. Beside the way of a request: `statsd` sends `metrics` on, `spans` is told by `front`. `tests/tidy.rs` checks this law.
//!
//! | to … | touch |
//! | --- | --- |
//! | add an algorithm | `engine/limit/<name>.rs`, a variant in `engine/limit.rs`, one `.lua` in `store/redis`, a line in the property and contract tests |
//! | add a key of the rule files | `engine/rules/fields.rs` → `check.rs` → `compile.rs` → `rule.rs`; the compiler leads |
//! | add an action of `rate_limits` | `engine/rules/keys.rs` → `check/actions.rs` → `actions.rs`, a line in its tests |
//! | change what happens when Redis does not answer | `store/failover/alone.rs` |
//! | add a setting | a row in `settings/table.rs`, how it compares in `settings/switching.rs`; then `tidegate settings --markdown > docs/settings.md`, and a test in `tests/blackbox` of what it does |
//! | add a command | `cli/<command>.rs` |
//! | tell more of why an answer is what it is | `engine/rules/walk.rs`, `engine/explain.rs` |
//! | change shadow mode, quota mode, the overall code | `engine/settle.rs`, `engine/decision.rs` |
//! | change what is charged when a request is denied | `engine/settle.rs` |
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
//! - **One clock reading a request**, and the wall clock is read once in the life of the process (`clock`): its steps
//!   do not exist here.
//! - **Workers**: a thread a core, each with a runtime of its own; a connection belongs to the worker that had the
//!   fewest. A decision is made where its bytes were read, without a hop. Everything else (scrapes, expiry, reloads)
//!   runs on other threads at a lower priority.
//! - **The hot call stands on an HTTP/2 of our own** (`front/lane`), behind the seam of `front` (bytes in, bytes out): a
//!   state machine without I/O, written for small unary calls. `docs/lane.md` says why, what it leaves out, and how it is
//!   held to what hyper does. A generic server costs many times what the decision does.
//! - **Or on hyper directly** (GRPC_FRONT=tonic, and wherever traces are wanted); tonic serves health and reflection
//!   beside it.
//! - **What came in with one read is decided together** (`Service::decide_together`): the counters of eight requests come
//!   from memory side by side; waiting for each in turn is most of what a decision among a million keys takes. No answer
//!   waits for another connection.
//! - **Memory answers now, Redis later**: with counters in memory nothing waits and nothing is boxed
//!   (`Service::decide`); with a shared store the same stages stand around one `await` (`Service::decide_later`), unless
//!   this node knows the answer, by a lease or because the counter is over (`Service::decide_known`).
//! - **The Rust code is the specification**, the scripts in `store/redis/lua` are its twins: one suite asks both the
//!   same and compares every field. Redis' clock cuts the windows; a call that comes too late does nothing.
//! - **A counter that is asked alone takes the shortest way** (`store/redis/lua/alone`): in a script, functions and tables
//!   are made anew for every call, and cost Redis three times what the call does. The same suite holds both ways.
//! - **A sliding window is one text in Redis** (`store/redis/lua/window.lua`): what most calls read and write is at its
//!   front, in binary. As a list, each call took twice as many commands, and turning numbers into text took longest.
//! - **A lease counts as if it were spent when it ends** (`store/lease.rs`), by a node's clock that started before the
//!   question: so a node may decide alone and the limit stays strict. One that is asked for a lot is renewed before it is
//!   spent (`store/lease/counter.rs`): nobody waits for it. Renewals wait 2 ms at most for each other, and ask
//!   together.
//! - **Calls that come together go to Redis in one command** (`store/redis/joined.rs`), and each is decided as if it had
//!   come by itself: a command costs both sides more than what it asks.
//! - **What waits for Redis is small** (`store/failover/question.rs`): a usual request is read and planned again when its
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
mod settings;
mod logging;
mod app;
#[doc(hidden)]
pub mod cli;

/// The seam behind the fronts, and the lane without sockets, for the benchmarks that measure them alone.
#[doc(hidden)]
pub use front::bare::{answerer, lane};
/// The protocol's messages and client, for the tests and benchmarks beside this crate.
#[doc(hidden)]
pub use front::proto;
