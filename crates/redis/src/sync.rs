//! The locks and atomics of `unsynced`. They have a module of their own because `tests/models` compiles `unsynced`
//! with a scheduler's locks and atomics instead, and tries thousands of interleavings.

pub(crate) use std::sync::atomic::AtomicU64;

pub(crate) use parking_lot::Mutex;
