//! Counters that many threads add to without contention: one stripe per thread, summed when a counter is read.
//!
//! In: "add n to slot s", from any thread. Out: the sum of a slot over all stripes. A thread with a stripe of its own
//! adds with a plain load and store. Threads beyond the number of stripes share one more stripe, with atomic additions.
//! This module does not know what a slot counts. Slots are never freed, so callers bound how many they reserve.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;

use super::chunked::Chunked;

/// The position of a counter in every stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot(u32);

/// All counters, in stripes by thread.
pub(super) struct Striped {
    own: Box<[Stripe]>,
    /// For threads that started when all stripes had an owner.
    shared: Stripe,
    reserved: AtomicU32,
    capacity: u32,
}

type Stripe = Chunked<AtomicU64>;

/// Adds for one thread. It must stay on that thread: only the stripe's owner may use plain stores.
pub(super) struct Writer<'a> {
    stripe: &'a Stripe,
    own: bool,
    not_send: PhantomData<*const ()>,
}

impl Slot {
    /// The slot this many places further on, within slots that were reserved together.
    pub(super) const fn plus(self, places: usize) -> Self {
        Self(self.0 + places as u32)
    }

    /// Its number among all reserved slots.
    pub(super) const fn index(self) -> usize {
        self.0 as usize
    }
}

impl Striped {
    /// Room for `capacity` slots. Memory is allocated when a thread first uses a part of its stripe.
    pub(super) fn new(stripes: usize, capacity: u32) -> Self {
        let stripe = || Stripe::new(capacity as usize);
        let own = (0..stripes).map(|_| stripe()).collect();
        Self { own, shared: stripe(), reserved: AtomicU32::new(0), capacity }
    }

    /// `count` neighbouring slots, all 0; `None` when there is no room left.
    pub(super) fn reserve(&self, count: u32) -> Option<Slot> {
        let grown = |reserved: u32| reserved.checked_add(count).filter(|&end| end <= self.capacity);
        self.reserved.fetch_update(Relaxed, Relaxed, grown).ok().map(Slot)
    }

    /// The writer of the calling thread.
    pub(super) fn writer(&self) -> Writer<'_> {
        let own = thread_index().and_then(|index| self.own.get(index));
        Writer { stripe: own.unwrap_or(&self.shared), own: own.is_some(), not_send: PhantomData }
    }

    /// The sum of all additions to `slot` up to about now.
    pub(super) fn sum(&self, slot: Slot) -> u64 {
        let in_stripe = |stripe: &Stripe| stripe.get(slot.0 as usize).map_or(0, |cell| cell.load(Relaxed));
        self.own.iter().map(in_stripe).fold(in_stripe(&self.shared), u64::wrapping_add)
    }
}

impl Writer<'_> {
    /// Adds `n` to `slot`.
    pub(super) fn add(&self, slot: Slot, n: u64) {
        if let Some(cell) = self.stripe.get_or_init(slot.0 as usize) {
            self.add_to(cell, n);
        }
    }

    /// Adds to neighbouring slots, which were reserved together.
    #[inline]
    pub(super) fn add_each<const N: usize>(&self, first: Slot, amounts: [u64; N]) {
        match self.stripe.rest_of_chunk(first.0 as usize).and_then(|cells| cells.first_chunk::<N>()) {
            Some(cells) => {
                for (cell, &n) in cells.iter().zip(&amounts).filter(|(_, n)| **n > 0) {
                    self.add_to(cell, n);
                }
            }
            // They are in two chunks.
            None => (0..).zip(amounts).for_each(|(place, n)| self.add(first.plus(place), n)),
        }
    }

    #[inline]
    fn add_to(&self, cell: &AtomicU64, n: u64) {
        if self.own {
            // No other thread writes here, so nothing can change the value between load and store.
            cell.store(cell.load(Relaxed).wrapping_add(n), Relaxed);
        } else {
            cell.fetch_add(n, Relaxed);
        }
    }
}

/// The number of the calling thread: unique among living threads, and the smallest free one. `None` while the thread
/// ends.
pub(super) fn thread_index() -> Option<usize> {
    thread_local!(static INDEX: ThreadIndex = ThreadIndex::take());
    INDEX.try_with(|index| index.0).ok()
}

struct ThreadIndex(usize);

/// The numbers of threads that ended, and the first number that was never used. The lock also orders the last stores
/// of a number's old owner before the first stores of its new owner.
static INDICES: Mutex<(Vec<usize>, usize)> = Mutex::new((Vec::new(), 0));

impl ThreadIndex {
    fn take() -> Self {
        let (free, next) = &mut *INDICES.lock();
        let least = (0..free.len()).min_by_key(|&place| free[place]);
        Self(least.map(|place| free.swap_remove(place)).unwrap_or_else(|| {
            *next += 1;
            *next - 1
        }))
    }
}

impl Drop for ThreadIndex {
    fn drop(&mut self) {
        INDICES.lock().0.push(self.0);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    /// Adds from more threads than there are stripes, in several generations, so that stripes change owners.
    fn hammer(stripes: usize) {
        // Long enough that threads overlap even where a few cores are busy with something else.
        let (threads, rounds, generations) = (4, 300_000_u64, 3);
        let striped = Striped::new(stripes, 4096);
        let slots = [0; 3].map(|_| striped.reserve(1200).expect("3 × 1200 fit"));
        for _ in 0..generations {
            let start = Barrier::new(threads);
            std::thread::scope(|scope| {
                for _ in 0..threads {
                    scope.spawn(|| {
                        start.wait();
                        for round in 0..rounds {
                            striped.writer().add(slots[(round % 3) as usize], round % 7);
                        }
                    });
                }
            });
        }
        let expected = |slot: u64| (0..rounds).filter(|r| r % 3 == slot).map(|r| r % 7).sum::<u64>();
        for slot in 0..3 {
            assert_eq!(
                striped.sum(slots[slot as usize]),
                expected(slot) * threads as u64 * generations as u64
            );
        }
    }

    #[test]
    fn no_addition_is_lost_whether_threads_own_or_share_stripes() {
        hammer(0);
        hammer(2);
        hammer(256);
    }

    #[test]
    fn a_thread_that_owns_a_stripe_does_not_touch_another() {
        let striped = Striped::new(1 << 10, 8);
        let slot = striped.reserve(1).expect("room");
        let add = || striped.writer().add(slot, 1);
        let both = Barrier::new(2);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    add();
                    both.wait();
                });
            }
        });
        let touched = striped.own.iter().filter(|stripe| stripe.get(0).is_some()).count();
        assert_eq!((touched, striped.shared.get(0).is_some()), (2, false));
        assert_eq!(striped.sum(slot), 2);
    }

    #[test]
    fn neighbours_are_added_to_wherever_their_chunks_end() {
        let striped = Striped::new(1, 4096);
        for _ in 0..500 {
            let first = striped.reserve(6).expect("500 × 6 fit");
            striped.writer().add_each(first, [1, 0, 2, 0, 0, 3]);
            assert_eq!([0, 1, 2, 3, 4, 5].map(|place| striped.sum(first.plus(place))), [1, 0, 2, 0, 0, 3]);
        }
    }

    #[test]
    fn slots_are_bounded_and_apart() {
        let striped = Striped::new(1, 10);
        let first = striped.reserve(6).expect("6 of 10");
        let second = striped.reserve(4).expect("10 of 10");
        assert_eq!(striped.reserve(1), None);
        striped.writer().add(first.plus(5), 1);
        striped.writer().add(second, 2);
        assert_eq!((striped.sum(first.plus(5)), striped.sum(second), striped.sum(second.plus(3))), (1, 2, 0));
    }
}
