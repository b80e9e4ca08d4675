//! `leaky_bucket`: a bucket that holds at most `burst` hits and leaks continuously at N per W. It starts empty.
//!
//! It is the meter form: it admits or denies, it does not queue. The same machine as the token bucket, told
//! differently.
//!
//! - **Invariant:** the level is that of the [`Gcra`] machine, exactly, at every nanosecond.
//! - **Error:** none against its own definition. It is no window: with `burst` = N up to 2N hits pass within W.
//! - **Source:** Turner, "New directions in communications", 1986 (as a meter); ITU-T I.371.

use crate::engine::limit::gcra::Gcra;

/// The state: the level.
pub(crate) type LeakyBucket = Gcra;
