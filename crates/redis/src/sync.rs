//! What the shared store locks and counts with what is carried to Redis. Here in one place, because `tests/models`
//! compiles that with a scheduler's own in their stead, and tries it in thousands of interleavings.

pub(crate) use std::sync::atomic::AtomicU64;

pub(crate) use parking_lot::Mutex;
