//! The locks and atomics of stores and caches. They are in one place because `tests/models` and
//! `tests/weak_memory.rs` compile them with a scheduler's locks and atomics instead, and try thousands of
//! interleavings.

pub(crate) use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64};

pub(crate) use parking_lot::{MappedMutexGuard, Mutex, MutexGuard};
