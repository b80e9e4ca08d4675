//! A list that grows without moving its values, so that readers need no lock.
//!
//! A chunk of places is allocated when one of them is first used. Each place starts with the default value.

use std::sync::OnceLock;

/// Places in a chunk: few enough that allocating one does not stall a decision (8 KiB of counters).
const CHUNK: usize = 1024;

/// At most `capacity` places, rounded up to whole chunks.
pub(super) struct Chunked<T> {
    chunks: Box<[OnceLock<Box<[T]>>]>,
}

impl<T: Default> Chunked<T> {
    /// Room for `capacity` places. Allocates only the directory of chunks.
    pub(super) fn new(capacity: usize) -> Self {
        Self { chunks: (0..capacity.div_ceil(CHUNK)).map(|_| OnceLock::new()).collect() }
    }

    /// The value at `index`; `None` while its chunk is not allocated.
    pub(super) fn get(&self, index: usize) -> Option<&T> {
        self.chunks.get(index / CHUNK)?.get()?.get(index % CHUNK)
    }

    /// The value at `index`, whose chunk is allocated if need be; `None` beyond the capacity.
    pub(super) fn get_or_init(&self, index: usize) -> Option<&T> {
        self.rest_of_chunk(index)?.first()
    }

    /// The values from `index` on to the end of its chunk, which is allocated if need be; `None` beyond the capacity.
    #[inline]
    pub(super) fn rest_of_chunk(&self, index: usize) -> Option<&[T]> {
        let chunk = self.chunks.get(index / CHUNK)?;
        chunk.get_or_init(|| (0..CHUNK).map(|_| T::default()).collect()).get(index % CHUNK..)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn places_exist_once_touched_and_end_at_the_capacity() {
        let list = Chunked::<Cell<u32>>::new(CHUNK + 1);
        assert!(list.get(CHUNK).is_none());
        list.get_or_init(CHUNK).expect("within the capacity").set(7);
        assert_eq!(list.get(CHUNK).map(Cell::get), Some(7));
        assert_eq!(list.get(CHUNK + 1).map(Cell::get), Some(0));
        assert!(list.get(0).is_none(), "the other chunk was not touched");
        assert!(list.get_or_init(2 * CHUNK).is_none());
    }
}
