//! `token_bucket`: a bucket of `burst` tokens, refilled continuously at N per W. It starts full; a hit takes a token.
//!
//! - **Invariant:** tokens = `burst` − the level of [`Gcra`], exactly, at every nanosecond.
//! - **Error:** none against its own definition. It is no window: with `burst` = N up to 2N hits pass within W (a full
//!   bucket and what is refilled meanwhile).
//! - **Source:** RFC 2697 and related RFCs; as a virtual scheduler, the generic cell rate algorithm.
//!
//! ```
//! # use tidegate_engine::key::Key;
//! # use tidegate_engine::limit::{Algorithm, Limit};
//! # use tidegate_engine::time::{SECOND_NANOS, Timestamp};
//! # use tidegate_engine::memory::{MemoryOptions, MemoryStore};
//! # let store = MemoryStore::new(MemoryOptions::new(1 << 20));
//! # let nanos = |second: f64| Timestamp::from_nanos((second * 1e9).round() as u64);
//! # let passed = |limit, hits, second| (0..hits).filter(|_| !store.take(&limit, Key(1), 1, nanos(second)).over).count();
//! // Two a second, at most ten at once.
//! let limit = Limit::new(Algorithm::TokenBucket, 2, SECOND_NANOS).with_burst(10);
//! assert_eq!([passed(limit, 11, 0.0), passed(limit, 1, 0.49), passed(limit, 1, 0.5)], [10, 0, 1]);
//! ```

use crate::limit::gcra::Gcra;

/// The state: the tokens that were taken out and are not refilled yet.
pub(crate) type TokenBucket = Gcra;
