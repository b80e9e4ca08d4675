//! The kinds of descriptors that were seen before: a small set that only grows and is read without a lock.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// The most kinds that are logged.
const KINDS_MAX: usize = 100;

/// Places in the table: enough that a look-up takes few steps.
const PLACES: usize = 256;

/// The kinds, by their hashes.
#[derive(Debug)]
pub(super) struct Kinds {
    /// A hash, or 0.
    places: Box<[AtomicU64]>,
    known: AtomicUsize,
}

impl Default for Kinds {
    fn default() -> Self {
        Self { places: (0..PLACES).map(|_| AtomicU64::new(0)).collect(), known: AtomicUsize::new(0) }
    }
}

impl Kinds {
    /// Whether the set can still take a new kind.
    pub(super) fn have_room(&self) -> bool {
        self.known.load(Relaxed) < KINDS_MAX
    }

    /// Adds the kind to the set. `true` for the first call with it, `false` for later calls and when the set is full.
    pub(super) fn is_new(&self, kind: u64) -> bool {
        let kind = kind.max(1);
        for step in 0..PLACES {
            let place = &self.places[(kind as usize).wrapping_add(step) % PLACES];
            match place.load(Relaxed) {
                0 if !self.have_room() => return false,
                0 => match place.compare_exchange(0, kind, Relaxed, Relaxed) {
                    Ok(_) => return self.known.fetch_add(1, Relaxed) < KINDS_MAX,
                    Err(other) if other == kind => return false,
                    Err(_) => {}
                },
                known if known == kind => return false,
                _ => {}
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_new_once_and_there_are_a_hundred() {
        let kinds = Kinds::default();
        // The look-ups of all of them start at the same place.
        let new = |kinds: &Kinds| (0..300).filter(|kind| kinds.is_new(kind * PLACES as u64)).count();
        assert_eq!((new(&kinds), new(&kinds), kinds.have_room()), (KINDS_MAX, 0, false));
    }

    #[test]
    fn of_several_threads_one_is_the_first() {
        let kinds = Kinds::default();
        let new: usize = std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..4).map(|_| scope.spawn(|| (0..50).filter(|&kind| kinds.is_new(kind)).count())).collect();
            threads.into_iter().map(|thread| thread.join().expect("it does not panic")).sum()
        });
        // 0 and 1 are one kind.
        assert_eq!(new, 49);
    }
}
