//! Counters that several nodes share, in Redis or in a server that speaks its protocol.
//!
//! In: requests and their [`Plan`](tidegate_engine::plan::Plan)s. Out, later:
//! [`Verdicts`](tidegate_engine::decision::Verdicts), equal to those of the memory store of `tidegate-engine`. One
//! script checks, settles and charges all counters of a request in one step, under the clock of Redis. No other
//! request can come in between. The crate knows nothing of codes, headers or metrics.
//!
//! A [`SharedStore`] asks a [`RedisStore`], and decides what requests get while Redis does not answer.
//!
//! - `store`: asks Redis; `failure`: why there is no answer
//! - [`runtime`]: clocks, timers, tasks and connections, of tokio or of a simulation
//! - [`address`], `options`, `topology`, [`tls`]: where the servers are, and how to reach them
//! - `wire`, `connection`, `routes`, `worker_connections`: one connection, the connection for each slot, and all
//!   connections of one worker
//! - `call_batches`: several calls in one command
//! - `server`, `breaker`: what all connections to one server share, and when the circuit breaker opens
//! - [`script`], [`key`]: the scripts, their arguments and replies, and the keys of counters
//! - `lost`: what a server has lost, and what a node may assume about its data; `inspect` asks; `complete`: an operator
//!   declares that nothing is missing; `server_clock`: a server's time
//! - [`values`]: values that are no counters, and which of them changed
//! - `lease`: hits that a node spends alone; `shared_store`: a request's verdicts, with Redis or without
//! - `shared_store/epochs`: which counters nodes agree were reset

mod store;
mod failure;
pub mod runtime;
mod clock;
pub mod address;
mod options;
mod connect_error;
mod topology;
pub mod tls;
mod wire;
mod connection;
mod call_batches;
mod routes;
mod worker_connections;
mod server;
mod breaker;
mod state;
pub mod script;
pub mod key;
mod lost;
mod inspect;
mod complete;
mod server_clock;
mod lease;
mod shared_store;
pub mod values;
mod sync;

pub use address::Access;
pub use complete::{Declared, declare_complete};
pub use connect_error::ConnectError;
pub use failure::{Failure, StoreError};
pub use options::{DenyCold, RedisOptions};
pub use shared_store::{
    Agreed, Applied, LeaseTotals, Moment, Numbers, Question, Raised, SharedStore, SharedStoreOptions,
};
pub use state::{Contact, RoundTrips, Stats};
pub use store::RedisStore;
