//! `token_bucket`: a bucket of `burst` tokens, refilled continuously at N per W. It starts full; a hit takes a token.
//!
//! - **Invariant:** tokens = `burst` − the level of the [`Gcra`] machine, exactly, at every nanosecond.
//! - **Error:** none against its own definition. It is no window: with `burst` = N up to 2N hits pass within W (a full
//!   bucket and what is refilled meanwhile).
//! - **Source:** RFC 2697 and its kin; as a virtual scheduler, the generic cell rate algorithm.

use crate::engine::limit::gcra::Gcra;

/// The state: what was taken out and is not refilled yet.
pub(crate) type TokenBucket = Gcra;
