//! Counters that several programs share, in Redis or whatever speaks its protocol.
//!
//! In: requests and their [`Plan`](tidegate_engine::plan::Plan)s. Out, later:
//! [`Verdicts`](tidegate_engine::decision::Verdicts), the same that the memory store of `tidegate-engine` answers. All
//! counters of a request are looked at, settled and charged as one step that no other request can come between, by one
//! script under the clock of Redis. It knows nothing of codes, modes' meaning, headers or metrics.
//!
//! A [`SharedStore`] asks a [`RedisStore`], and says what happens when that does not answer.
//!
//! - `store`: Redis, as it is asked; `failure`: why there is no answer
//! - [`runtime`]: clocks, timers, tasks and connections, of tokio or of a simulation
//! - [`address`], `options`, `topology`, [`tls`]: where Redis is, and how it is reached
//! - `wire`, `link`, `routes`, `lane`: a connection, the way to each slot, and all of one worker's; `joined`: calls that share a command
//! - `peer`, `breaker`: a server, as all connections to it know it, and when it counts as gone
//! - [`script`], [`key`]: what is asked, and of which key
//! - `generation`: whether it still remembers; `server_clock`: what time it is there
//! - `lease`: hits that a node holds and spends alone; `failover`: what becomes of requests, with an answer or without

mod clock;
mod connect_error;
mod failure;
pub mod address;
mod breaker;
mod generation;
mod joined;
pub mod key;
mod lane;
mod link;
mod options;
mod peer;
mod routes;
pub mod runtime;
pub mod script;
mod server_clock;
mod state;
mod store;
pub mod tls;
mod topology;
mod wire;
mod lease;
mod failover;
mod sync;

pub use address::Access;
pub use connect_error::ConnectError;
pub use failover::{Applied, FailoverOptions, LeaseTotals, Moment, Question, SharedStore};
pub use failure::{Failure, StoreError};
pub use options::RedisOptions;
pub use state::{Contact, RoundTrips, Stats};
pub use store::RedisStore;
