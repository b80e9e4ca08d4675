//! Buckets in order, six bytes each: the low 16 bits of the bucket's number, and the running sum of hits up to it.
//!
//! The sums wrap and start at any number; only differences have a meaning. The oldest cells are dropped by moving
//! `head`. The cell before `head`, if there is one, still says where the sums start. One block of memory holds head,
//! length and cells. It grows by an eighth; when an eighth of it is dead, its cells move down instead.

use crate::limit::bytes::{Append as _, Damage, Reader};
use crate::limit::search::search;

/// Words in front of the cells: head and length.
const HEADER: usize = 2;
/// Words of a cell.
const CELL: usize = 3;
/// A block of more cells than this is freed when its last cell goes.
const CELLS_KEPT: usize = 6;

/// After a change this many cells are checked, so that the cost of checking does not depend on how many there are.
const CELLS_CHECKED: usize = 16;

/// A queue of (low bits of the bucket's number, hits).
#[derive(Debug, Default)]
pub(crate) struct Cells {
    words: Box<[u16]>,
}

impl Cells {
    #[inline]
    fn head(&self) -> usize {
        self.words.first().map_or(0, |&head| usize::from(head))
    }

    #[inline]
    fn end(&self) -> usize {
        self.words.get(1).map_or(0, |&end| usize::from(end))
    }

    fn set_range(&mut self, head: usize, end: usize) {
        if let [first, second, ..] = &mut *self.words {
            (*first, *second) = (head as u16, end as u16);
        }
    }

    fn capacity(&self) -> usize {
        self.words.len().saturating_sub(HEADER) / CELL
    }

    /// The cell at this place of the block: low bits and running sum.
    #[inline]
    fn at(&self, place: usize) -> (u16, u32) {
        let start = HEADER + place * CELL;
        match self.words.get(start..start + CELL) {
            Some(&[low, sum_low, sum_high]) => (low, u32::from(sum_high) << 16 | u32::from(sum_low)),
            _ => (0, 0),
        }
    }

    fn put(&mut self, place: usize, low: u16, sum: u32) {
        let start = HEADER + place * CELL;
        if let Some(cell) = self.words.get_mut(start..start + CELL) {
            cell.copy_from_slice(&[low, sum as u16, (sum >> 16) as u16]);
        }
    }

    /// The running sum before the first cell.
    #[inline]
    fn base(&self) -> u32 {
        self.head().checked_sub(1).map_or(0, |before| self.at(before).1)
    }

    /// The hits of cell `index` and all before it.
    #[inline]
    fn sum_through(&self, index: usize) -> u32 {
        self.at(self.head() + index).1.wrapping_sub(self.base())
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.end() - self.head()
    }

    /// The hits of all cells.
    #[inline]
    pub(crate) fn total(&self) -> u32 {
        if self.len() == 0 { 0 } else { self.at(self.end() - 1).1.wrapping_sub(self.base()) }
    }

    /// The low bits of cell `index`'s number.
    #[inline]
    pub(crate) fn get(&self, index: usize) -> Option<u16> {
        (index < self.len()).then(|| self.at(self.head() + index).0)
    }

    /// The low bits of the newest cell's number.
    #[inline]
    pub(crate) fn last(&self) -> Option<u16> {
        (self.len() > 0).then(|| self.at(self.end() - 1).0)
    }

    /// How many cells, from the oldest on, satisfy `dead`; no later one may.
    pub(crate) fn partition_point(&self, dead: impl Fn(u16) -> bool) -> usize {
        search(self.len(), |index| dead(self.at(self.head() + index).0))
    }

    /// The index of the first cell such that it and those before it have at least `hits`.
    pub(crate) fn index_through(&self, hits: u32) -> usize {
        search(self.len(), |index| self.sum_through(index) < hits)
    }

    /// Drops `before` cells, then removes the next one and returns its low bits and hits.
    pub(crate) fn take_front(&mut self, before: usize) -> Option<(u16, u32)> {
        if before >= self.len() {
            self.clear();
            return None;
        }
        let earlier = before.checked_sub(1).map_or(0, |index| self.sum_through(index));
        let (low, count) = (self.at(self.head() + before).0, self.sum_through(before) - earlier);
        self.set_range(self.head() + before + 1, self.end());
        if self.len() == 0 {
            self.clear();
        }
        Some((low, count))
    }

    /// Drops the oldest `hits`, then removes the next cell and returns its low bits, and the hits that it has left.
    pub(crate) fn take_hits(&mut self, hits: u32) -> Option<(u16, u32)> {
        if hits >= self.total() {
            self.clear();
            return None;
        }
        let index = self.index_through(hits + 1);
        let left = self.sum_through(index) - hits;
        self.take_front(index).map(|(low, _)| (low, left))
    }

    pub(crate) fn add_to_last(&mut self, hits: u32) {
        if let Some(last) = self.end().checked_sub(1) {
            let (low, sum) = self.at(last);
            self.put(last, low, sum.wrapping_add(hits));
        }
    }

    pub(crate) fn push(&mut self, low: u16, hits: u32) {
        if self.end() == self.capacity() {
            self.make_room();
        }
        let sum = self.base().wrapping_add(self.total()).wrapping_add(hits);
        self.put(self.end(), low, sum);
        self.set_range(self.head(), self.end() + 1);
    }

    /// Appends the number of cells, and of each cell its low bits and its hits.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.u16(self.len() as u16);
        let mut sum = 0;
        for index in 0..self.len() {
            let sum_through = self.sum_through(index);
            out.u16(self.at(self.head() + index).0);
            out.u32(sum_through.wrapping_sub(sum));
            sum = sum_through;
        }
    }

    /// Reads the cells after bucket `first`, which has `first_count` hits. They span at most `span_max` buckets.
    pub(crate) fn decode(
        bytes: &mut Reader<'_>,
        first: u16,
        (first_count, span_max): (u32, u64),
    ) -> Result<Self, Damage> {
        let mut cells = Self::default();
        let (mut total, mut before) = (first_count, 0);
        for _ in 0..bytes.u16()? {
            let (low, hits) = (bytes.u16()?, bytes.u32()?);
            let after_first = low.wrapping_sub(first);
            if hits == 0 {
                return Err("a bucket has no hits");
            }
            if after_first <= before || u64::from(after_first) > span_max {
                return Err("buckets are not in order, or span more than a window");
            }
            total = total.checked_add(hits).ok_or("more hits than a counter holds")?;
            before = after_first;
            cells.push(low, hits);
        }
        Ok(cells)
    }

    /// What is wrong with the cells after bucket `first`, if anything is. Of many cells only the newest are looked at.
    pub(crate) fn invariants(&self, first: u16) -> Result<(), &'static str> {
        if self.end() > self.capacity() || self.head() > self.end() {
            return Err("the cells are outside of their block");
        }
        let looked_at = self.len().saturating_sub(CELLS_CHECKED)..self.len();
        let mut before = match looked_at.start.checked_sub(1) {
            Some(index) => (self.at(self.head() + index).0.wrapping_sub(first), self.sum_through(index)),
            None => (0, 0),
        };
        for index in looked_at {
            let cell = (self.at(self.head() + index).0.wrapping_sub(first), self.sum_through(index));
            if cell.0 <= before.0 {
                return Err("buckets are not in order");
            }
            if cell.1 <= before.1 {
                return Err("a bucket has no hits");
            }
            before = cell;
        }
        Ok(())
    }

    #[inline]
    pub(crate) fn heap_bytes(&self) -> usize {
        size_of_val(&*self.words)
    }

    /// Bytes by which the next [`push`](Self::push) grows the block.
    pub(crate) fn growth_bytes(&self) -> usize {
        if self.end() < self.capacity() || self.moves_down() {
            return 0;
        }
        size_of::<u16>() * (grown(self.capacity()) * CELL + HEADER) - self.heap_bytes()
    }

    /// The same for so many pushes: the last of them may grow it by more than it needs.
    pub(crate) fn growth_bytes_of(&self, pushes: usize) -> usize {
        let capacity = self.capacity() + pushes;
        size_of::<u16>() * (pushes + grown(capacity) - capacity) * CELL + HEADER * size_of::<u16>()
    }

    /// An eighth of the full block is dead: move down rather than grow. The cell before `head` moves too.
    fn moves_down(&self) -> bool {
        self.head() > (self.capacity() / 8).max(1)
    }

    fn make_room(&mut self) {
        if !self.moves_down() {
            let mut words = std::mem::take(&mut self.words).into_vec();
            let words_grown = HEADER + grown(words.len().saturating_sub(HEADER) / CELL) * CELL;
            words.reserve_exact(words_grown - words.len());
            words.resize(words_grown, 0);
            self.words = words.into_boxed_slice();
            return;
        }
        let (head, end) = (self.head(), self.end());
        self.words.copy_within(HEADER + (head - 1) * CELL..HEADER + end * CELL, HEADER);
        self.set_range(1, end - head + 1);
    }

    fn clear(&mut self) {
        if self.capacity() > CELLS_KEPT {
            self.words = Box::default();
        }
        self.set_range(0, 0);
    }
}

/// The next capacity after this one.
fn grown(capacity: usize) -> usize {
    capacity + (capacity / 8).max(3)
}
