//! Tidegate decides, for every request that a proxy is about to forward, whether it may pass.
//!
//! This is the program: it answers Envoy over gRPC and everybody else over HTTP. It uses crates of its own:
//!
//! | crate | what it is |
//! | --- | --- |
//! | `tidegate-engine` | requests, rules, plans, limits, decisions, counters in memory. Other programs embed it |
//! | `tidegate-redis` | the shared store: counters in Redis, and the fallback when Redis does not answer |
//! | `tidegate-records` | limits for single keys, millions of them in a folder |
//! | `tidegate-grpc` | HTTP/2 and gRPC as a state machine that knows no service |
//! | `tidegate-serve` | the path of a request without sockets: planned, counted, concluded, reported. A simulation runs it too |
//! | `tidegate-operate` | what operators change and see: exceptions, resets, records, their API, the debug pages |
//! | `tidegate-state` | counters in a file: what a process writes at its end, and which of it the next process accepts |
//! | `tidegate-trial` | rules tried offline: on access logs, in test cases, on the descriptors that Envoy would send |
//! | `tidegate-envoy` | this program without its sockets, as a module inside Envoy. It uses this crate |
//! | `tidegate-yaml` | a YAML parser that keeps the place of every value, for files of rules and of mappings |
//!
//! # One picture
//! A request crosses the program once, left to right, and becomes a different type at each step. No step edits an
//! earlier value or calls an earlier step.
//!
//! ```text
//! socket ─▶ front ──Request──▶ rules ──Plan──▶ store ──Verdicts──▶ decision ──Decision──▶ front ─▶ socket
//!           parse              match           count               conclude      │        render
//!           (edge)             (pure)          (locks)             (pure)        └──▶ metrics.observe(&Decision)
//!
//! files ─▶ source ──texts──▶ rules::load ──RuleSet──▶ Service::install             (second, independent flow)
//! ```
//!
//! One function does all of it, `service::Service::decide`, for every front and for any number of requests in a batch.
//! If the shared store has to be asked, `Service::finish` continues from there. `Service` takes clocks, timers and tasks from
//! the runtime that it is generic over, as the shared store does, so that `tests/simulation` runs the same code.
//!
//! # The modules, in reading order
//! The engine is pure: no async, I/O, logs, metrics or protocol types, and its only use of time is a clock for its
//! callers. `tidegate-serve` uses it and the stores; its own documentation lists its modules, of which `service` is the
//! central one. Here, `source` reads rules and `front` calls the service. Apart from the path of a request, `statsd` sends
//! metrics, `webhook` sends events, `front` begins `spans`, and `tidegate-state` writes and reads counters. The changes that
//! operators make, and the pages that they look at, are in `tidegate-operate`, which knows fronts only by a trait. `settings`
//! reads the command line and the environment, one value per row of its table. `configuration` resolves these once into the
//! options of all other modules. `app` passes the options on and knows no settings. Only `cli` imports `app`, and only `cli`
//! uses `tidegate-trial`. Cargo checks which crate uses which, `tests/tidy.rs` which module.
//!
//! [CONTRIBUTING.md](../CONTRIBUTING.md) says which files to touch to add a setting, a metric, an algorithm and more.
//!
//! # Invariants
//! - In no window of a strict limit, wherever it starts, are more than N hits admitted, under any interleaving of
//!   threads and across reloads.
//! - A request charges all of its counters or none (except fixed windows and reported costs, as their rules say).
//! - A counter is kept until it equals an unused one, however many others are needed.
//! - All memory that requests can make the process use is bounded. No input makes the process panic.
//!
//! # Choices, with the reason
//! - **One clock reading per request.** The clock of decisions read the wall clock once, when it started
//!   (`tidegate_engine::Clock`), so steps of the wall clock change no count. Times that people or other machines write
//!   are compared with the current wall clock (`clock::wall`): when exceptions begin and end, and the times in the audit,
//!   of resets and in files of counters.
//! - **Workers**: one thread per core, each with a runtime of its own. A connection belongs to the worker that had the
//!   fewest. A decision is made on the thread that read its bytes. Everything else (scrapes, expiry, reloads) runs on
//!   other threads at a lower priority.
//! - **The hot call runs on our own HTTP/2** (`crates/grpc`, driven by `front/lane`), before the handler of `front`
//!   (bytes in, bytes out). It is a state machine without I/O, written for small unary calls: a generic server costs
//!   many times what the decision does. `docs/lane.md` says why, what it leaves out, and how tests compare it with
//!   hyper.
//! - **Or on hyper** (GRPC_FRONT=tonic). tonic then serves health and reflection.
//! - **Requests that came with one read are one batch** (`service::Batch`). The counters of up to eight requests are
//!   fetched from memory at the same time; waiting for each in turn is most of the time of a decision among a million keys.
//!   A request that came alone is a batch of one. No answer waits for another connection.
//! - **Counters answer in two steps** (`service::Counters`). `begin` answers from what this node knows: with counters
//!   in memory that is everything, and nothing waits or is boxed. With a shared store, it is what this node has a lease
//!   for or has in the deny cache. `finish` asks the shared store for the rest.
//! - **The Rust code is the specification.** The scripts in `crates/redis/src/lua` do the same: one suite runs both and
//!   compares every field. The clock of Redis defines the windows there. A call that arrives too late does nothing.
//! - **A counter that is asked alone has a shorter script** (`lua/alone` there): a script creates its functions and
//!   tables again for every call, and that costs Redis three times as much as the call itself. The same suite covers both.
//! - **A sliding window is one string in Redis** (`lua/window.lua`), in binary, with the parts that most calls use at
//!   its front. As a list, each call took twice as many commands, and turning numbers into text took longest.
//! - **A lease counts as spent at its end** (`crates/redis/src/lease.rs`), by a node's clock that started before the
//!   call to Redis. So a node may decide alone and the limit stays strict. A lease that is used a lot is renewed before
//!   it is spent (`lease/counter.rs`), so that nobody waits. Renewals wait at most 2 ms for each other and go to Redis
//!   together.
//! - **Calls that come together go to Redis in one command** (`crates/redis/src/call_batches.rs`), because a command
//!   costs both sides more than its contents. Each call is decided as if it had come alone.
//! - **A request that waits for Redis keeps little** (`crates/redis/src/shared_store/question.rs`). A usual request is read
//!   and planned again when the answer is there: that is cheaper than copying both into the future that waits.
//! - **Connections to Redis belong to workers**, which route to the slots of a Cluster themselves. A server that hangs
//!   affects its own slots only, and no request waits for a connection.
//! - **Counts outlive the process** (`tidegate-state`, with STATE_DIR). After the last decision the counters are written to a
//!   file, and the next process restores them before its first answer. A counter is identified by its key alone, which is a
//!   hash, so the file contains the secret too (or a fingerprint of the one in KEY_SECRET_FILE). The file is written under a
//!   temporary name, synced and renamed; at the start it is renamed again, and synced, before the first answer. So a file
//!   with the name `counters` was always written after the last decision of a process and read by none since, unless
//!   somebody put a copy there: that is detected if starts are counted outside of the folder (STATE_SEQUENCE_FILE). A killed
//!   process leaves no such file. The next one uses the checkpoint, which lacks the hits that were admitted since, so the
//!   store is cold as well: COLD_START says what that means.
//! - **The clock of decisions continues where it was** when counters are restored. On the same boot of the same machine it
//!   continues exactly, by the time since the boot, whatever the wall clock did. On another machine it starts STATE_SKEW
//!   behind: then every hit counts longer, never shorter, by every algorithm. Shifting counters instead could not do that: a
//!   bucket or an aligned window cannot be moved without its limit, which a counter does not contain.
//! - **A cold store answers** (`memory/cold.rs` of the engine). While the process is younger than a limit's window, the
//!   verdict is over, whatever the counter contains. Hits that are charged anyway (reported costs) are counted meanwhile. A
//!   store that is not cold pays one comparison for this.
//! - **With Redis the scripts deny while cold** (`lost.rs` of `crates/redis` has a table of all signs of a loss and their
//!   consequences). They use a key that is named after the primary's process: a script sees when the key is gone, and a node
//!   sees on every new connection which process is primary. With COLD_START=allow there are other scripts, without this.
//! - **Exceptions change a plan, not a rule** (`overlay` of the engine, `service` of `crates/serve`). They change N and never
//!   the counter, so its hits stay when one begins or ends. While there are none, a decision pays one branch. A decision that
//!   waits for Redis plans twice, both times under the overlay that it began with, and reports that one.
//! - **A class of importance changes how many hits fit** (`classes` of the engine). The share is a part of the limit, so
//!   that exceptions and records change N below it, and every store decides by it. In Redis a check carries the capacity
//!   of its class. A bucket also gets its full `burst`, because the part of the level above it drains by another N.
//!   Leases, and denials in the deny cache, belong to a class.
//! - **What reservations hold is pending in the counter of their limit** (`limit/holds` of the engine, `rules/reservations`), as
//!   hits of an earlier descriptor of the request are. So no algorithm knows of holds. An expired hold that is paid stays among
//!   the holds until its hits would not count any more: no counter is charged at a past time.
//! - **A reset changes keys, not counters** (`rules/epochs` of the engine, `resets` of `crates/operate`). Counters are known by
//!   hashes alone, so those below a path cannot be found; the rules there get other seeds instead. For a single counter, a
//!   copy of its rule with other seeds is used in place of the rule, looked up by the key: rules without such resets pay
//!   nothing. Leases, the deny cache and hits that go back belong to keys that no request uses any more.
//! - **Records are in an embedded store** (`records` of `crates/operate`, with LIMITS_DIR; `folder.rs` of `crates/records`
//!   says which one, and what was measured). A few threads of its own, with bounded queues, wait for its disk, so no worker
//!   ever does. A folder that cannot be used is a store that is away, at the start too: a limiter that did not start could not
//!   even enforce the rules' limits.
//! - **A record changes a plan too** (`overlay` of the engine, `service/records` of `crates/serve`). The record of a key, or
//!   that it has none, is in a cache (`known` of the engine), which a batch prefetches as it does counters and reads without a
//!   lock. A request with a key that is not cached waits, as for Redis, and keeps the records that it found. The name of a
//!   record in the cache is made of the entries alone, so a reload of rules drops none. A record with another window has
//!   another counter: the check has other keys (`rule::Counting`), and the rule stays the same. Under rules without
//!   `limits_from` a decision pays one branch.
//! - **Limits of Limitador are rules, and requests are rewritten** (`rules/selectors` of the engine, RULES_FORMAT). There a
//!   descriptor meets every limit whose entries it has, in any order; here it meets one rule. So `service` replaces a request by
//!   one with a descriptor for each limit that it meets, before it is planned; everything after that knows rules alone. Under
//!   rules of ours a batch pays one branch.
//! - **Rules own no counters and no metrics**, so rules can be checked without a server, and a reload swaps one
//!   pointer. Each thread reads it through a cache of its own, because a shared reference count bounces between cores.
//! - **Keys are 128 bits, injective, under a secret of the process**: nobody can choose values that collide or share a shard.

mod source;
mod statsd;
mod webhook;
mod spans;
mod front;
mod clock;
mod url;
mod logging;
mod settings;
mod configuration;
mod app;
#[doc(hidden)]
pub mod cli;

/// The limiter without sockets, for the module inside Envoy.
#[doc(hidden)]
pub use app::inside;

/// The handler behind the fronts, and the lane without sockets, for the benchmarks that measure them alone.
#[doc(hidden)]
pub use front::bare::{BareConnection, answerer, lane};
/// The protocol's messages and client, for tests and benchmarks.
#[doc(hidden)]
pub use front::proto;
