//! The stores' own code under a scheduler that decides who runs between any two steps of its locks and
//! counters: the same question in thousands of interleavings, and a deadlock is a failure.
//!
//! The modules are compiled here a second time, with `shuttle`'s locks and atomics in the place of `src/store/sync.rs`.
//! A failure prints the schedule that leads to it, for `shuttle::replay`.

#[path = "../../src"]
mod src {
    #[allow(dead_code, unused_imports)]
    pub mod engine;
}

#[path = "../../src/store"]
#[allow(dead_code)]
mod store {
    pub mod memory;
    pub mod reported;

    pub mod failover {
        pub mod carried;

        #[path = "../../../tests/models/carried.rs"]
        mod model;
    }

    mod sync {
        pub(super) use shuttle::sync::atomic::{AtomicU32, AtomicU64};
        pub(super) use shuttle_parking_lot_impl::{MappedMutexGuard, Mutex, MutexGuard};
    }
}

mod models;

use src::engine;
