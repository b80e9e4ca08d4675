//! The shared store's own code under a scheduler that decides who runs between any two steps of its locks and
//! counters: the same question in thousands of interleavings, and a deadlock is a failure.
//!
//! The module is compiled here a second time, with `shuttle`'s locks and atomics in the place of `src/sync.rs`.
//! A failure prints the schedule that leads to it, for `shuttle::replay`.

#[path = "../../src"]
#[allow(dead_code)]
mod src {
    pub mod failover {
        pub mod carried;

        #[path = "../../tests/models/carried.rs"]
        mod model;
    }
}

mod sync {
    pub(crate) use shuttle::sync::atomic::AtomicU64;
    pub(crate) use shuttle_parking_lot_impl::Mutex;
}

#[path = "../../../engine/tests/models/explore.rs"]
mod explore;
