//! Counters that several programs share, in Redis or whatever speaks its protocol.
//!
//! In: requests and their [`Plan`](tidegate_engine::plan::Plan)s. Out, later:
//! [`Verdicts`](tidegate_engine::decision::Verdicts), the same that the memory store of `tidegate-engine` answers. All
//! counters of a request are looked at, settled and charged as one step that no other request can come between, by one
//! script under the clock of Redis. It knows nothing of codes, modes' meaning, headers or metrics.
//!
//! A [`SharedStore`] asks a [`RedisStore`], and says what happens when that does not answer. It needs a tokio runtime.
//!
//! - `store`: Redis, as it is asked; `failure`: why there is no answer
//! - [`address`], `connect`, `topology`, [`tls`]: where Redis is, and how it is reached
//! - `link`, `routes`, `lane`: a connection, the way to each slot, and all of one worker's; `joined`: calls that share a command
//! - `peer`, `breaker`: a server, as all connections to it know it, and when it counts as gone
//! - [`script`], [`key`]: what is asked, and of which key
//! - `generation`: whether it still remembers; `server_clock`: what time it is there
//! - `lease`: hits that a node holds and spends alone; `failover`: what becomes of requests, with an answer or without

mod clock;
mod failure;
pub mod address;
mod breaker;
mod connect;
mod generation;
mod joined;
pub mod key;
mod lane;
mod link;
mod peer;
mod routes;
pub mod script;
mod server_clock;
mod state;
mod store;
pub mod tls;
mod topology;
mod lease;
mod failover;
mod sync;

pub use connect::Access;
pub use failover::{Applied, FailoverOptions, LeaseTotals, Moment, Question, SharedStore};
pub use failure::{Failure, StoreError};
pub use state::{Contact, RedisOptions, RoundTrips, SettingNames, Stats};
pub use store::RedisStore;
