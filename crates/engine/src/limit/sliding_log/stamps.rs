//! Any number of timestamps in order, eight bytes each, and the number of hits of each: one block, or a queue of them.
//!
//! No step touches more than a few blocks of stamps, except that dropping them goes block by block. So the cost of a
//! decision does not depend on how many there are.

use std::collections::VecDeque;

use crate::limit::expiry::Expiry;
use crate::limit::search::search;
use crate::limit::sliding_log::block::{Block, PUSH_WORDS, WORDS_MAX};

/// A queue of (timestamp, hits), and the expiry that its owner sets.
#[derive(Debug)]
pub(super) enum Stamps {
    Few(Block),
    Many(Box<Many>, Expiry),
}

/// Two blocks or more. Only the first has dead stamps, only the last takes new ones, and none is empty.
#[derive(Debug, Default)]
pub(super) struct Many {
    parts: VecDeque<Part>,
    len: usize,
    /// The hits of all stamps.
    total: u64,
    /// Bytes of all blocks.
    block_bytes: usize,
    oldest: u64,
}

#[derive(Debug)]
struct Part {
    block: Block,
    /// The running sum of hits before this block. It starts at any number, and the first block's is unused.
    sum: u64,
}

/// The least number of places by which the queue of blocks grows.
const PARTS_MORE: usize = 4;

impl Default for Stamps {
    fn default() -> Self {
        Self::Few(Block::default())
    }
}

impl Stamps {
    /// These stamps with their hits. They take no more bytes than any other queue of them: counters from a file need no more
    /// room than before.
    pub(super) fn packed(stamps: &[(u64, u32)]) -> Self {
        let (first, mut taken) = Block::packed(stamps);
        if taken == stamps.len() {
            return Self::Few(first);
        }
        let mut many = Box::new(Many { oldest: first.oldest().unwrap_or_default(), ..Many::default() });
        many.add_last(first);
        while taken < stamps.len() {
            let (block, count) = Block::packed(&stamps[taken..]);
            many.add_last(block);
            taken += count;
        }
        Self::Many(many, Expiry::default())
    }

    /// The owner's expiry. It is here because these four bytes would be padding otherwise.
    pub(super) fn expiry(&self) -> Expiry {
        match self {
            Self::Few(block) => block.expiry,
            Self::Many(_, expiry) => *expiry,
        }
    }

    pub(super) fn set_expiry(&mut self, until: Expiry) {
        match self {
            Self::Few(block) => block.expiry = until,
            Self::Many(_, expiry) => *expiry = until,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        matches!(self, Self::Few(block) if block.is_empty())
    }

    /// The number of stamps. A stamp whose hits lie in two blocks counts twice.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Few(block) => block.len(),
            Self::Many(many, _) => many.len,
        }
    }

    /// The hits of all stamps.
    pub(super) fn total(&self) -> u64 {
        match self {
            Self::Few(block) => block.total(),
            Self::Many(many, _) => many.total,
        }
    }

    /// Visits every stamp with its hits, the oldest first: [`len`](Self::len) of them.
    pub(super) fn each(&self, mut visit: impl FnMut(u64, u32)) {
        match self {
            Self::Few(block) => block.each(visit),
            Self::Many(many, _) => many.parts.iter().for_each(|part| part.block.each(&mut visit)),
        }
    }

    /// The oldest stamp such that it and those before it have at least `hits`.
    pub(super) fn stamp_through(&self, hits: u64) -> Option<u64> {
        match self {
            Self::Few(block) => block.stamp_through(hits),
            Self::Many(many, _) => many.stamp_through(hits),
        }
    }

    /// Drops the stamps up to and including `stamp`.
    pub(super) fn drop_through(&mut self, stamp: u64) {
        match self {
            Self::Few(block) => block.drop_through(stamp),
            Self::Many(many, _) => {
                many.drop_through(stamp);
                self.collapse_if_one();
            }
        }
    }

    /// Adds hits at `stamp`, or at the newest one if that is later: carried debts are. Returns which.
    pub(super) fn push(&mut self, stamp: u64, hits: u32) -> u64 {
        match self {
            Self::Few(block) if !block.is_full() => {
                if hits == 1 && block.push_one(stamp) {
                    stamp
                } else {
                    block.push(stamp, hits)
                }
            }
            Self::Few(block) => {
                let (block, expiry) = (std::mem::take(block), self.expiry());
                let mut many = Box::new(Many::default());
                many.oldest = block.oldest().unwrap_or(stamp);
                many.add_last(block);
                let stamp = many.push(stamp, hits);
                *self = Self::Many(many, expiry);
                stamp
            }
            Self::Many(many, _) => many.push(stamp, hits),
        }
    }

    /// Moves the newest stamp to `stamp`, unless it is later, and adds hits to it. There has to be one. Its hits in the
    /// block before, if any, keep their time. Returns where it is.
    pub(super) fn move_newest(&mut self, stamp: u64, hits: u32) -> u64 {
        match self {
            Self::Few(block) => block.move_newest(stamp, hits),
            Self::Many(many, _) => {
                let mut newest = stamp;
                many.change(many.parts.len() - 1, |block| newest = block.move_newest(stamp, hits));
                newest
            }
        }
    }

    /// Drops the oldest hits.
    pub(super) fn drop_hits(&mut self, hits: u64) {
        match self {
            Self::Few(block) => block.drop_hits(hits),
            Self::Many(many, _) => {
                many.drop_hits(hits);
                self.collapse_if_one();
            }
        }
    }

    fn collapse_if_one(&mut self) {
        if let Self::Many(many, expiry) = self
            && many.parts.len() < 2
        {
            let mut block = many.parts.pop_front().map_or_else(Block::default, |part| part.block);
            block.expiry = *expiry;
            *self = Self::Few(block);
        }
    }

    pub(super) fn heap_bytes(&self) -> usize {
        match self {
            Self::Few(block) => block.heap_bytes(),
            Self::Many(many, _) => {
                size_of::<Many>() + many.parts.capacity() * size_of::<Part>() + many.block_bytes
            }
        }
    }

    /// Bytes by which the next [`push`](Self::push) grows the heap at most.
    pub(super) fn growth_bytes(&self) -> usize {
        match self {
            Self::Few(block) if !block.is_full() => block.growth_bytes(),
            Self::Few(_) => self.growth_bytes_max(),
            Self::Many(many, _) => match many.parts.back() {
                Some(last) if last.block.has_room() => 0,
                Some(last) if !last.block.is_full() => last.block.growth_bytes(),
                _ => part_bytes(many.places_more(), many.words_at_once()),
            },
        }
    }

    /// The same for so many pushes: at most one of them needs a new block.
    pub(super) fn growth_bytes_of(&self, pushes: usize) -> usize {
        self.growth_bytes_max() + pushes * (WORDS_MAX / 16 + PUSH_WORDS) * size_of::<u64>()
    }

    /// The same for one of the next pushes, after the others: the growth by a new block, which is more than that of a
    /// block.
    pub(super) fn growth_bytes_max(&self) -> usize {
        match self {
            Self::Few(_) => size_of::<Many>() + part_bytes(PARTS_MORE, WORDS_MAX / 16),
            Self::Many(many, _) => part_bytes(many.places_at_once(), many.words_at_once() + WORDS_MAX / 16),
        }
    }
}

impl Many {
    /// The hits before part `index`.
    fn hits_before(&self, index: usize) -> u64 {
        match (self.parts.front(), self.parts.get(1)) {
            (Some(first), Some(second)) if index > 0 => {
                first.block.total() + self.parts[index].sum.wrapping_sub(second.sum)
            }
            _ => 0,
        }
    }

    /// The last part before which there are less than `hits`.
    fn index_through(&self, hits: u64) -> usize {
        let (Some(first), Some(second)) = (self.parts.front(), self.parts.get(1)) else { return 0 };
        match hits.saturating_sub(first.block.total()) {
            0 => 0,
            further => search(self.parts.len() - 1, |index| {
                self.parts[1 + index].sum.wrapping_sub(second.sum) < further
            }),
        }
    }

    fn stamp_through(&self, hits: u64) -> Option<u64> {
        if hits <= 1 {
            return Some(self.oldest); // The usual question.
        }
        let index = self.index_through(hits);
        self.parts.get(index)?.block.stamp_through(hits - self.hits_before(index).min(hits))
    }

    fn drop_through(&mut self, stamp: u64) {
        if self.oldest > stamp {
            return;
        }
        // Usually one stamp is dropped for each that is added.
        let dead_max = self.dead_max();
        if let Some(Part { block, .. }) = self.parts.front_mut()
            && block.dead() < dead_max
            && let Some(hits) = block.drop_one_through(stamp)
        {
            self.len -= 1;
            self.total -= hits;
            self.oldest = block.oldest().unwrap_or(u64::MAX);
            return;
        }
        while self.parts.front().is_some_and(|part| part.block.last().is_none_or(|last| last <= stamp)) {
            let dropped = self.parts.pop_front();
            self.forget(dropped);
        }
        self.change_first(|block| block.drop_through(stamp));
    }

    fn drop_hits(&mut self, mut hits: u64) {
        while let Some(first) = self.parts.front().map(|part| part.block.total()).filter(|&it| it <= hits) {
            hits -= first;
            let dropped = self.parts.pop_front();
            self.forget(dropped);
        }
        self.change_first(|block| block.drop_hits(hits));
    }

    /// Drops stamps of the first block, but not all.
    fn change_first(&mut self, drop: impl FnOnce(&mut Block)) {
        let dead_max = self.dead_max();
        self.change(0, |block| {
            drop(block);
            if block.dead() > dead_max {
                block.compact();
            }
        });
        self.oldest = self.parts.front().and_then(|part| part.block.oldest()).unwrap_or(u64::MAX);
    }

    /// Dead stamps may take a sixteenth of the bytes of all blocks.
    fn dead_max(&self) -> usize {
        self.block_bytes / (16 * size_of::<u64>())
    }

    fn push(&mut self, mut stamp: u64, hits: u32) -> u64 {
        if hits == 1 && self.parts.back_mut().is_some_and(|last| last.block.push_one(stamp)) {
            self.len += 1;
            self.total += 1;
            return stamp;
        }
        if self.parts.back().is_none_or(|last| last.block.is_full()) {
            let newest = self.parts.back().and_then(|last| last.block.last());
            stamp = newest.map_or(stamp, |newest| newest.max(stamp));
            self.add_last(Block::with_words(self.words_at_once()));
        }
        if let Some(Part { block, .. }) = self.parts.back_mut() {
            self.len -= block.len();
            self.block_bytes -= block.heap_bytes();
            stamp = block.push(stamp, hits);
            self.len += block.len();
            self.block_bytes += block.heap_bytes();
            self.total += u64::from(hits);
        }
        stamp
    }

    /// Changes a block, and updates the totals of stamps, hits and bytes.
    fn change(&mut self, index: usize, change: impl FnOnce(&mut Block)) {
        if let Some(Part { block, .. }) = self.parts.get_mut(index) {
            self.len -= block.len();
            self.total -= block.total();
            self.block_bytes -= block.heap_bytes();
            change(block);
            self.len += block.len();
            self.total += block.total();
            self.block_bytes += block.heap_bytes();
        }
    }

    fn forget(&mut self, dropped: Option<Part>) {
        if let Some(Part { block, .. }) = dropped {
            self.len -= block.len();
            self.total -= block.total();
            self.block_bytes -= block.heap_bytes();
        }
    }

    fn add_last(&mut self, block: Block) {
        let sum = self.parts.back().map_or(0, |last| last.sum.wrapping_add(last.block.total()));
        self.len += block.len();
        self.total += block.total();
        self.block_bytes += block.heap_bytes();
        self.parts.reserve_exact(self.places_more());
        self.parts.push_back(Part { block, sum });
    }

    /// The size of the next block in words: a sixteenth of all words.
    fn words_at_once(&self) -> usize {
        (self.block_bytes / size_of::<u64>() / 16).min(WORDS_MAX)
    }

    /// The places by which the queue of blocks grows for one block more.
    fn places_more(&self) -> usize {
        let (places, used) = (self.parts.capacity(), self.parts.len());
        if used < places { 0 } else { self.places_at_once() }
    }

    /// The places by which it grows when it does.
    fn places_at_once(&self) -> usize {
        (self.parts.capacity() / 8).max(PARTS_MORE)
    }
}

/// The bytes of a block that begins with so many words, and of so many places for blocks.
fn part_bytes(places: usize, words: usize) -> usize {
    places * size_of::<Part>() + (1 + PUSH_WORDS).max(words) * size_of::<u64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_of_many_stamps_is_no_larger_than_one_of_few() {
        assert_eq!(size_of::<Stamps>(), size_of::<Block>());
    }

    /// Thousands of stamps against a list: pushed, moved, dropped, taken back.
    #[test]
    fn it_is_a_queue_of_any_length() {
        let (mut stamps, mut model, mut random) = (Stamps::default(), VecDeque::new(), 1_u64);
        let (mut now, mut most, mut pushed_at_newest) = (0, 0, 0);
        for step in 0..60_000_u64 {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(step);
            let dice = random >> 40;
            now += dice % 3;
            let hits = if dice.is_multiple_of(7) { 1 + dice % 40 } else { 1 };
            let bytes_most = stamps.heap_bytes() + stamps.growth_bytes();
            // Hits that came one after the other may lie in two blocks.
            let came_at_once = pushed_at_newest == 1;
            if dice.is_multiple_of(13) && came_at_once && !stamps.is_empty() {
                stamps.move_newest(now, hits as u32);
                let moved = model.back().copied();
                model
                    .iter_mut()
                    .rev()
                    .take_while(|&&mut stamp| Some(stamp) == moved)
                    .for_each(|it| *it = now);
            } else {
                pushed_at_newest = if model.back() == Some(&now) { pushed_at_newest + 1 } else { 1 };
                stamps.push(now, hits as u32);
            }
            assert!(stamps.heap_bytes() <= bytes_most, "step {step}");
            model.extend((0..hits).map(|_| now));
            let distinct = || model.iter().collect::<std::collections::BTreeSet<_>>().len();
            let blocks = if let Stamps::Many(many, _) = &stamps { many.parts.len() } else { 1 };
            let is_right = || (0..blocks).contains(&(stamps.len() - distinct()));
            assert!(!dice.is_multiple_of(101) || is_right(), "step {step}");
            if dice.is_multiple_of(211) {
                let back =
                    if dice.is_multiple_of(4_001) { model.len() as u64 * (dice % 5) / 4 } else { dice % 90 };
                stamps.drop_hits(back);
                model.drain(..model.len().min(back as usize));
            }
            if dice.is_multiple_of(11) || dice.is_multiple_of(8_009) {
                let gone = now.saturating_sub(if dice.is_multiple_of(8_009) { dice % 90 } else { 6_000 });
                stamps.drop_through(gone);
                model.retain(|&stamp| stamp > gone);
            }
            most = most.max(model.len());
            let wanted = 1 + dice % (model.len() as u64 + 2);
            assert_eq!(stamps.total(), model.len() as u64, "step {step}");
            assert_eq!(stamps.stamp_through(stamps.total()), model.back().copied());
            assert_eq!(stamps.stamp_through(wanted), model.get(wanted as usize - 1).copied(), "step {step}");
            assert!(stamps.heap_bytes() <= 4_200 + 9 * model.len(), "step {step}");
        }
        assert!(most > 20_000, "{most}");
    }
}
