//! What stores lock and count with. Here in one place, because `tests/models` compiles the memory store with a
//! scheduler's own in their stead, and tries it in thousands of interleavings.

pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64};

pub(crate) use parking_lot::{MappedMutexGuard, Mutex, MutexGuard};
