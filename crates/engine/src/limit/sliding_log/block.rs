//! A few hundred timestamps in order, eight bytes each, and the number of hits of each.
//!
//! Most stamps have one hit, so the place of a stamp is also the number of hits up to it. A stamp with more has an
//! *extra*: its place, and the running sum of all hits beyond the first of each stamp. The sum wraps and starts at any
//! number; only differences have a meaning. One block of words holds it all:
//!
//! ```text
//! [ head, end | dead stamps … | live stamps … | free … | extras, the newest first ]
//! ```
//!
//! A block grows by a sixteenth. When a sixteenth of it is dead, it is rebuilt without the dead instead.

use crate::limit::expiry::Expiry;
use crate::limit::search::search;

/// A block of more words than this is freed when its last stamp is dropped, and shrinks when three quarters of it are
/// unused.
const WORDS_KEPT: usize = 16;
/// Words that one push needs at most: a stamp and an extra.
pub(super) const PUSH_WORDS: usize = 2;

/// A block does not grow beyond this many words, but for the extra of its newest stamp.
pub(super) const WORDS_MAX: usize = 512;

/// A queue of (timestamp, hits).
#[derive(Debug, Default)]
pub(super) struct Block {
    words: Box<[u64]>,
    /// The number of extras, dead ones included.
    extras: u32,
    /// Set by the owner. It is here because these four bytes would be padding otherwise.
    pub(super) expiry: Expiry,
}

impl Block {
    /// An empty block of this size.
    pub(super) fn with_words(words: usize) -> Self {
        Self { words: vec![0; words].into_boxed_slice(), ..Self::default() }
    }

    /// A block of the first of these stamps, as many as one takes, without a word to spare. Returns how many they are.
    pub(super) fn packed(stamps: &[(u64, u32)]) -> (Self, usize) {
        let (mut words, mut count) = (1, 0);
        while let Some(&(_, hits)) = stamps.get(count).filter(|_| words < WORDS_MAX) {
            (words, count) = (words + 1 + usize::from(hits > 1), count + 1);
        }
        let mut block = Self::with_words(words);
        stamps[..count].iter().for_each(|&(stamp, hits)| _ = block.push(stamp, hits));
        (block, count)
    }

    fn head(&self) -> usize {
        self.words.first().map_or(0, |&range| range as u32 as usize)
    }

    fn end(&self) -> usize {
        self.words.first().map_or(0, |&range| (range >> 32) as usize)
    }

    fn set_range(&mut self, head: usize, end: usize) {
        if let Some(range) = self.words.first_mut() {
            *range = (end as u64) << 32 | head as u64;
        }
    }

    /// The stamps that count.
    fn live(&self) -> &[u64] {
        self.words.get(1 + self.head()..1 + self.end()).unwrap_or_default()
    }

    /// Extra `index`, from the oldest on: the place of its stamp, and the running sum.
    fn extra(&self, index: usize) -> (usize, u32) {
        let word = self.words[self.words.len() - 1 - index];
        (word as u32 as usize, (word >> 32) as u32)
    }

    fn put_extra(&mut self, index: usize, place: usize, sum: u32) {
        let at = self.words.len() - 1 - index;
        self.words[at] = u64::from(sum) << 32 | place as u64;
    }

    /// How many extras belong to stamps before `place`.
    fn extras_before(&self, place: usize) -> usize {
        search(self.extras as usize, |index| self.extra(index).0 < place)
    }

    /// The running sum of the extras before `place`.
    fn sum_before(&self, place: usize) -> u32 {
        self.extras_before(place).checked_sub(1).map_or(0, |index| self.extra(index).1)
    }

    /// The running sum of all extras.
    fn newest_sum(&self) -> u32 {
        (self.extras as usize).checked_sub(1).map_or(0, |index| self.extra(index).1)
    }

    /// The hits of the first `count` live stamps.
    fn hits_of_first(&self, count: usize) -> u64 {
        let head = self.head();
        count as u64 + u64::from(self.sum_before(head + count).wrapping_sub(self.sum_before(head)))
    }

    /// The index of the first live stamp such that it and those before it have at least `hits`.
    fn index_through(&self, hits: u64) -> usize {
        if self.extras == 0 {
            return (hits.max(1) - 1).min(self.len() as u64) as usize;
        }
        search(self.live().len(), |index| self.hits_of_first(index + 1) < hits)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.head() == self.end()
    }

    pub(super) fn len(&self) -> usize {
        self.end() - self.head()
    }

    /// The hits of all stamps.
    #[inline]
    pub(super) fn total(&self) -> u64 {
        if self.extras == 0 {
            return self.len() as u64;
        }
        let beyond_first = self.newest_sum().wrapping_sub(self.sum_before(self.head()));
        self.live().len() as u64 + u64::from(beyond_first)
    }

    pub(super) fn oldest(&self) -> Option<u64> {
        self.live().first().copied()
    }

    /// The newest stamp.
    pub(super) fn last(&self) -> Option<u64> {
        self.live().last().copied()
    }

    /// The oldest stamp such that it and those before it have at least `hits`.
    pub(super) fn stamp_through(&self, hits: u64) -> Option<u64> {
        self.live().get(self.index_through(hits)).copied()
    }

    /// Visits every stamp with its hits, the oldest first.
    pub(super) fn each(&self, mut visit: impl FnMut(u64, u32)) {
        let (mut extra, mut sum) = (self.extras_before(self.head()), self.sum_before(self.head()));
        for (index, &stamp) in self.live().iter().enumerate() {
            let mut hits = 1;
            if extra < self.extras as usize && self.extra(extra).0 == self.head() + index {
                let sum_through = self.extra(extra).1;
                hits += sum_through.wrapping_sub(sum);
                (extra, sum) = (extra + 1, sum_through);
            }
            visit(stamp, hits);
        }
    }

    /// Drops the stamps up to and including `stamp`.
    pub(super) fn drop_through(&mut self, stamp: u64) {
        // Usually one stamp is dropped for each that is added.
        if self.live().first().is_none_or(|&oldest| oldest > stamp) || self.drop_one_through(stamp).is_some()
        {
            return;
        }
        let dead = self.live().partition_point(|&live| live <= stamp);
        self.set_range(self.head() + dead, self.end());
        if self.is_empty() {
            self.clear();
        }
    }

    /// Drops the oldest stamp if it is not after `stamp` and the second one is. Returns its hits; `None`: this is not
    /// the usual case.
    #[inline]
    pub(super) fn drop_one_through(&mut self, stamp: u64) -> Option<u64> {
        let (head, end) = (self.head(), self.end());
        let &[oldest, second, ..] = self.words.get(1 + head..1 + end)? else { return None };
        if oldest > stamp || second <= stamp {
            return None;
        }
        let hits = if self.extras == 0 { 1 } else { self.hits_of_first(1) };
        self.set_range(head + 1, end);
        Some(hits)
    }

    /// Adds one hit at `stamp` if that is after all others, there is room, and the block may keep its size. Returns
    /// whether it did.
    #[inline]
    pub(super) fn push_one(&mut self, stamp: u64) -> bool {
        let (head, end) = (self.head(), self.end());
        let may_shrink = head > 0 && (end - head) * 4 < self.words.len();
        if !self.has_room() || may_shrink || end == head || self.words[end] >= stamp {
            return false;
        }
        self.words[1 + end] = stamp;
        self.set_range(head, end + 1);
        true
    }

    /// There is room for the next [`push`](Self::push).
    #[inline]
    pub(super) fn has_room(&self) -> bool {
        self.free() >= PUSH_WORDS
    }

    /// Adds hits at `stamp`, or at the newest one if that is later. Returns which.
    pub(super) fn push(&mut self, stamp: u64, hits: u32) -> u64 {
        let again = self.last() >= Some(stamp);
        let extra_hits = if again { hits } else { hits.saturating_sub(1) };
        self.make_room(usize::from(!again) + usize::from(extra_hits > 0));
        let end = self.end() + usize::from(!again);
        if !again {
            self.words[end] = stamp;
            self.set_range(self.head(), end);
        }
        if extra_hits > 0 {
            self.add_extra(end - 1, extra_hits);
        }
        self.words[end]
    }

    /// Adds hits beyond the first to the newest stamp, at `place`.
    fn add_extra(&mut self, place: usize, hits: u32) {
        let newest = (self.extras as usize).checked_sub(1).map(|index| self.extra(index));
        let sum = newest.map_or(0, |(_, sum)| sum).wrapping_add(hits);
        if newest.is_none_or(|(owner, _)| owner != place) {
            self.extras += 1;
        }
        self.put_extra(self.extras as usize - 1, place, sum);
    }

    /// Moves the newest stamp to `stamp`, unless it is later, and adds hits to it. There has to be one. Returns where it is.
    pub(super) fn move_newest(&mut self, stamp: u64, hits: u32) -> u64 {
        let end = self.end();
        let has_extra = (self.extras as usize).checked_sub(1).is_some_and(|it| self.extra(it).0 == end - 1);
        if !has_extra && self.free() == 0 {
            self.rebuild(self.words_after(1).min(WORDS_MAX + 1));
        }
        let end = self.end();
        self.words[end] = stamp.max(self.words[end]);
        self.add_extra(end - 1, hits);
        self.words[end]
    }

    /// Drops the oldest hits.
    pub(super) fn drop_hits(&mut self, hits: u64) {
        if hits >= self.total() {
            return self.clear();
        }
        let first = self.index_through(hits + 1);
        let of_first = (hits - self.hits_of_first(first)) as u32;
        self.set_range(self.head() + first, self.end());
        for index in self.extras_before(self.head())..self.extras as usize {
            let (place, sum) = self.extra(index);
            self.put_extra(index, place, sum.wrapping_sub(of_first));
        }
    }

    pub(super) fn heap_bytes(&self) -> usize {
        size_of_val(&*self.words)
    }

    /// Bytes by which the next [`push`](Self::push) grows the block at most.
    pub(super) fn growth_bytes(&self) -> usize {
        if self.has_room() {
            return 0;
        }
        let words = self.words_after(PUSH_WORDS).saturating_sub(self.words.len());
        words * size_of::<u64>()
    }

    /// The next [`push`](Self::push) would make the block too large.
    pub(super) fn is_full(&self) -> bool {
        !self.has_room() && self.words_after(PUSH_WORDS) > WORDS_MAX
    }

    /// Stamps that no longer count and still take room.
    pub(super) fn dead(&self) -> usize {
        self.head()
    }

    /// Frees the dead and the free words.
    pub(super) fn compact(&mut self) {
        let dead = self.head() + self.extras_before(self.head());
        self.rebuild(self.words.len() - self.free() - dead);
    }

    /// Words that hold neither a stamp nor an extra, dead or alive.
    fn free(&self) -> usize {
        (self.words.len() - self.extras as usize).saturating_sub(1 + self.end())
    }

    /// The size of the block after room was made for `more` words.
    fn words_after(&self, more: usize) -> usize {
        let (size, dead) = (self.words.len(), self.head() + self.extras_before(self.head()));
        let used = size - self.free() - dead;
        // If nothing was dropped from a block, it is new: its owner chose its size.
        if dead > 0 && size > WORDS_KEPT && (used + more) * 4 < size {
            return (used + more) * 2;
        }
        let rebuild_frees_enough = dead >= more.max(size / 16);
        if self.free() >= more || rebuild_frees_enough {
            return size;
        }
        (used.max(1) + more).max(size + size / 16)
    }

    fn make_room(&mut self, more: usize) {
        let size = self.words_after(more);
        if self.free() >= more && size == self.words.len() {
            return;
        }
        self.rebuild(size);
    }

    /// Moves the live part over the dead part.
    fn drop_dead(&mut self) {
        let (head, end) = (self.head(), self.end());
        let (dead_extras, base) = (self.extras_before(head), self.sum_before(head));
        self.words.copy_within(1 + head..1 + end, 1);
        self.set_range(0, end - head);
        for (index, from) in (dead_extras..self.extras as usize).enumerate() {
            let (place, sum) = self.extra(from);
            self.put_extra(index, place - head, sum.wrapping_sub(base));
        }
        self.extras -= dead_extras as u32;
    }

    /// Resizes the block to `size` words, which have to be enough, and drops the dead stamps.
    fn rebuild(&mut self, size: usize) {
        if size == self.words.len() {
            return self.drop_dead();
        }
        let mut rebuilt = Self { words: vec![0; size].into_boxed_slice(), extras: 0, expiry: self.expiry };
        let (head, base) = (self.head(), self.sum_before(self.head()));
        rebuilt.words[1..1 + self.live().len()].copy_from_slice(self.live());
        rebuilt.set_range(0, self.live().len());
        for index in self.extras_before(head)..self.extras as usize {
            let (place, sum) = self.extra(index);
            rebuilt.put_extra(rebuilt.extras as usize, place - head, sum.wrapping_sub(base));
            rebuilt.extras += 1;
        }
        *self = rebuilt;
    }

    fn clear(&mut self) {
        if self.words.len() > WORDS_KEPT {
            self.words = Box::default();
        }
        self.extras = 0;
        self.set_range(0, 0);
    }
}
