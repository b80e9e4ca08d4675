//! `leaky_bucket`: a bucket that holds at most `burst` hits and leaks continuously at N per W. It starts empty.
//!
//! This is the meter form: it admits or denies, it does not queue. It is the same algorithm as the token bucket,
//! described by what is in the bucket.
//!
//! - **Invariant:** the level is that of [`Gcra`], exactly, at every nanosecond.
//! - **Error:** none against its own definition. It is no window: with `burst` = N up to 2N hits pass within W.
//! - **Source:** Turner, "New directions in communications", 1986 (as a meter); ITU-T I.371.
//!
//! ```
//! # use tidegate_engine::key::Key;
//! # use tidegate_engine::limit::{Algorithm, Limit};
//! # use tidegate_engine::time::{SECOND_NANOS, Timestamp};
//! # use tidegate_engine::memory::{MemoryOptions, MemoryStore};
//! # let store = MemoryStore::new(MemoryOptions::new(1 << 20));
//! # let nanos = |second: f64| Timestamp::from_nanos((second * 1e9).round() as u64);
//! # let passed = |limit, hits, second| (0..hits).filter(|_| !store.take(&limit, Key(1), 1, nanos(second)).over).count();
//! // Two a second leak out of a bucket of ten.
//! let limit = Limit::new(Algorithm::LeakyBucket, 2, SECOND_NANOS).with_burst(10);
//! assert_eq!([0.0, 0.49, 0.5, 0.99, 1.0].map(|second| passed(limit, 20, second)), [10, 0, 1, 0, 1]);
//! ```

use crate::limit::gcra::Gcra;

/// The state: the level.
pub(crate) type LeakyBucket = Gcra;
