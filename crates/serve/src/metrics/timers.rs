//! Single durations, from the threads that measure them to a reader that sends each of them on (StatsD).
//!
//! A thread puts its durations into a ring of its own with two plain stores. When the ring is full, the duration is
//! dropped and the thread counts it as dropped. So a reader that stalls does not slow down the writers.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::grpc_method::GrpcMethod;
use super::statsd_name::{StatKind, StatsdName};

/// Durations in a thread's ring: about 100 ms of calls, at the rate that a core reaches in half of its time.
const RING: u64 = 4_096;

/// One ring per thread.
pub(super) struct Timers {
    rings: Box<[Ring]>,
    /// Held while reading: a ring has one reader at a time.
    reading: Mutex<()>,
}

/// One writer, one reader.
struct Ring {
    durations: Box<[AtomicU64]>,
    written: AtomicU64,
    read: AtomicU64,
}

/// The duration of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timed {
    /// The name of the timer.
    pub name: StatsdName<'static>,
    /// Nanoseconds.
    pub nanos: u64,
}

impl Timers {
    /// Empty rings for this many threads.
    pub(super) fn new(threads: usize) -> Self {
        Self { rings: (0..threads).map(|_| Ring::new()).collect(), reading: Mutex::new(()) }
    }

    /// Puts a duration into the ring of the calling thread, which has this index. `false`: dropped.
    pub(super) fn put(&self, thread: Option<usize>, method: GrpcMethod, nanos: u64) -> bool {
        let ring = thread.and_then(|thread| self.rings.get(thread));
        ring.is_some_and(|ring| ring.put(nanos << 1 | method as u64))
    }

    /// Takes all durations in the rings.
    pub(super) fn take(&self, mut each: impl FnMut(Timed)) {
        let _only = self.reading.lock();
        for ring in &self.rings {
            ring.take(|entry| {
                let method = GrpcMethod::ALL[(entry & 1) as usize];
                each(Timed { name: StatsdName(StatKind::ResponseTime(method)), nanos: entry >> 1 });
            });
        }
    }
}

impl Ring {
    fn new() -> Self {
        let durations = (0..RING).map(|_| AtomicU64::new(0)).collect();
        Self { durations, written: AtomicU64::new(0), read: AtomicU64::new(0) }
    }

    fn put(&self, entry: u64) -> bool {
        let written = self.written.load(Ordering::Relaxed);
        let room = written - self.read.load(Ordering::Acquire) < RING;
        if room {
            self.durations[(written % RING) as usize].store(entry, Ordering::Relaxed);
            self.written.store(written + 1, Ordering::Release);
        }
        room
    }

    fn take(&self, mut each: impl FnMut(u64)) {
        let (read, written) = (self.read.load(Ordering::Relaxed), self.written.load(Ordering::Acquire));
        (read..written).for_each(|at| each(self.durations[(at % RING) as usize].load(Ordering::Relaxed)));
        self.read.store(written, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_thread_puts_in_comes_out_in_order_and_what_has_no_room_is_left_out() {
        let timers = Timers::new(2);
        let mut put = 0;
        let mut taken = Vec::new();
        for _ in 0..3 {
            while timers.put(Some(1), GrpcMethod::Check, put) {
                put += 1;
            }
            timers.take(|timed| taken.push(timed.nanos));
            assert_eq!(taken.len() as u64, put);
        }
        assert_eq!((put, taken), (3 * RING, (0..3 * RING).collect()));
        assert!(!timers.put(Some(2), GrpcMethod::Check, 0) && !timers.put(None, GrpcMethod::Check, 0));
    }

    #[test]
    fn nothing_is_torn_or_lost_while_a_reader_reads() {
        let timers = Timers::new(1);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for nanos in 0..200_000 {
                    while !timers.put(Some(0), GrpcMethod::ShouldRateLimit, nanos) {
                        std::thread::yield_now();
                    }
                }
            });
            let mut next = 0;
            while next < 200_000 {
                timers.take(|timed| {
                    assert_eq!(timed.nanos, next);
                    next += 1;
                });
                std::thread::yield_now();
            }
        });
    }
}
