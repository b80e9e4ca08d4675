//! Where counters live: a store executes a [`Plan`](crate::engine::plan::Plan) at a time and answers with
//! [`Verdicts`](crate::engine::decision::Verdicts).
//!
//! Every store looks at all counters of a request, settles the request with
//! [`settle`](crate::engine::settle::settle) and charges, as one step that no other request can come between. It
//! knows nothing of codes, modes' meaning, headers or metrics.

mod memory;
mod sync;

pub use memory::{FullTotal, MemoryOptions, MemoryStore, StoreFull, Swept};
