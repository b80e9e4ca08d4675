//! The shared store's own code under a scheduler that switches between any two steps of its locks and counters. It
//! tries the same test in thousands of interleavings, and a deadlock is a failure.
//!
//! The module is compiled a second time here, with `shuttle`'s locks and atomics instead of `src/sync.rs`. A
//! failure prints the schedule that leads to it, for `shuttle::replay`.

#[path = "../../src"]
#[allow(dead_code)]
mod src {
    pub mod shared_store {
        pub mod unsynced;

        #[path = "../../tests/models/unsynced.rs"]
        mod model;
    }
}

mod sync {
    pub(crate) use shuttle::sync::atomic::AtomicU64;
    pub(crate) use shuttle_parking_lot_impl::Mutex;
}

#[path = "../../../engine/tests/models/explore.rs"]
mod explore;
