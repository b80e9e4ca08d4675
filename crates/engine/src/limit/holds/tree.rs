//! The holds of one counter, found by their ids and by the time at which they change next.
//!
//! A binary tree that is in the order of ids from left to right, and in the order of changes from top to bottom. Ids are
//! hashes, which have nothing to do with times. So the tree is as deep as one that was built from ids in random order: the
//! hold that changes next is its root, and each operation takes O(log n) steps. Ids that somebody chose by their hashes can
//! make it as deep as a list; nothing here recurses.
//!
//! The nodes are in one list without gaps, and name each other by their places.

use std::num::NonZeroU64;

use crate::limit::Slot;
use crate::limit::counter::grown_capacity;
use crate::time::Timestamp;

/// A hold, or the id of one that has ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hold {
    pub(super) slot: Slot,
    /// When it expires. The beginning of time: it was ended.
    pub(super) expires: Timestamp,
    /// Until when its hits count.
    pub(super) until: Timestamp,
    /// When its id is forgotten.
    pub(super) forgotten: Timestamp,
    /// The next of the two. The tree is in this order.
    pub(super) next: Timestamp,
    pub(super) hits: u32,
    /// The most that the call may cost.
    pub(super) worst: u32,
}

impl Hold {
    /// Its order among the changes. Of one time, the ids decide from their other end: a period ends for many holds.
    fn change(&self) -> (Timestamp, u64) {
        (self.next, self.slot.id.get().swap_bytes())
    }
}

/// The place of a node in the list, counted from 1. 0: none.
type Link = u32;

/// Which link: that of a node to its lesser (0) or greater ids (1), or, without a node, that to the root.
type End = (Link, usize);

#[derive(Debug)]
struct Node {
    hold: Hold,
    /// The trees of lesser and of greater ids, which change later.
    under: [Link; 2],
}

#[derive(Debug, Default)]
pub(super) struct Tree {
    root: Link,
    nodes: Vec<Node>,
}

impl Tree {
    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    pub(super) fn find(&self, id: NonZeroU64) -> Option<&Hold> {
        Some(&self.node(self.locate(id).1)?.hold)
    }

    /// The hold that changes next.
    pub(super) fn first(&self) -> Option<&Hold> {
        Some(&self.node(self.root)?.hold)
    }

    /// Adds a hold whose id is not there.
    pub(super) fn insert(&mut self, hold: Hold) {
        let (id, change) = (hold.slot.id, hold.change());
        let (mut at, mut link) = ((0, 0), self.root);
        while let Some(node) = self.node(link).filter(|node| node.hold.change() < change) {
            let side = usize::from(node.hold.slot.id < id);
            (at, link) = ((link, side), node.under[side]);
        }
        self.nodes.reserve_exact(grown_capacity(&self.nodes, 1) - self.nodes.len());
        self.nodes.push(Node { hold, under: [0; 2] });
        let new = self.nodes.len() as Link;
        self.set(at, new);
        // What was in its place changes later: the lesser and the greater ids of it go to its two sides.
        let mut ends = [(new, 0), (new, 1)];
        while let Some(node) = self.node(link) {
            let (side, under) = (usize::from(node.hold.slot.id > id), node.under);
            self.set(ends[side], link);
            ends[side] = (link, 1 - side);
            link = under[1 - side];
        }
        ends.into_iter().for_each(|end| self.set(end, 0));
    }

    pub(super) fn remove(&mut self, id: NonZeroU64) {
        let (mut at, removed) = self.locate(id);
        let Some(node) = self.node(removed) else { return };
        let mut under = node.under;
        while let [Some(lesser), Some(greater)] = under.map(|link| self.node(link)) {
            let side = usize::from(greater.hold.change() < lesser.hold.change());
            let (top, rest) = (under[side], [lesser, greater][side].under[1 - side]);
            self.set(at, top);
            at = (top, 1 - side);
            under[side] = rest;
        }
        self.set(at, under[0].max(under[1]));
        self.nodes.swap_remove(removed as usize - 1);
        // The last node has taken its place in the list.
        if let Some(moved) = self.node(removed) {
            let (at, _) = self.locate(moved.hold.slot.id);
            self.set(at, removed);
        }
    }

    /// All holds, in the order of their ids.
    pub(super) fn in_order(&self) -> impl Iterator<Item = &Hold> {
        let (mut link, mut above) = (self.root, Vec::new());
        std::iter::from_fn(move || {
            while let Some(node) = self.node(link) {
                above.push(node);
                link = node.under[0];
            }
            let node = above.pop()?;
            link = node.under[1];
            Some(&node.hold)
        })
    }

    /// Whether both orders are right, and each node is linked.
    pub(super) fn is_right(&self) -> bool {
        let above =
            |node: &Node, link| self.node(link).is_none_or(|under| node.hold.change() < under.hold.change());
        self.in_order().map(|hold| hold.slot.id).is_sorted_by(|one, next| one < next)
            && self.in_order().count() == self.nodes.len()
            && self.nodes.iter().all(|node| node.under.into_iter().all(|link| above(node, link)))
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.nodes.capacity() * size_of::<Node>()
    }

    /// The bytes that it needs more to add so many holds.
    pub(super) fn growth_bytes(&self, more: usize) -> usize {
        grown_capacity(&self.nodes, more) * size_of::<Node>() - self.heap_bytes()
    }

    fn node(&self, link: Link) -> Option<&Node> {
        self.nodes.get((link as usize).wrapping_sub(1))
    }

    fn set(&mut self, (node, side): End, link: Link) {
        match node {
            0 => self.root = link,
            node => self.nodes[node as usize - 1].under[side] = link,
        }
    }

    /// The node of this id, and the link to it.
    fn locate(&self, id: NonZeroU64) -> (End, Link) {
        let (mut at, mut link) = ((0, 0), self.root);
        while let Some(node) = self.node(link).filter(|node| node.hold.slot.id != id) {
            let side = usize::from(node.hold.slot.id < id);
            (at, link) = ((link, side), node.under[side]);
        }
        (at, link)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Numbers that look random: a permutation, so that none comes twice.
    fn hashed(number: u64) -> NonZeroU64 {
        let mixed = number.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        NonZeroU64::new((mixed ^ mixed >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9)).expect("only 0 becomes 0")
    }

    fn hold(id: NonZeroU64, next: u64) -> Hold {
        let next = Timestamp::from_nanos(next);
        let slot = Slot { id, number: 0 };
        Hold { slot, expires: next, until: next, forgotten: next, next, hits: 1, worst: 1 }
    }

    fn depth(tree: &Tree) -> usize {
        let mut level = vec![tree.root];
        let mut depth = 0;
        while !level.is_empty() {
            level.retain(|&link| link != 0);
            depth += usize::from(!level.is_empty());
            level = level.iter().flat_map(|&link| tree.node(link).expect("a node").under).collect();
        }
        depth
    }

    #[test]
    fn it_finds_what_a_map_finds_and_the_first_change() {
        for times in [1, 3, 1_000] {
            let (mut tree, mut map) = (Tree::default(), BTreeMap::new());
            for step in 0..3_000 {
                let random = hashed(step + 5_000 * times).get();
                let id = hashed(random % 50);
                match map.remove(&id) {
                    Some(_) => tree.remove(id),
                    None => {
                        tree.insert(hold(id, random / 64 % times));
                        map.insert(id, random / 64 % times);
                    }
                }
                assert!(tree.is_right(), "step {step} of {times} times");
                assert_eq!(tree.find(id).map(|hold| hold.slot.id), map.get_key_value(&id).map(|(id, _)| *id));
                let first = map.values().min().map(|&nanos| Timestamp::from_nanos(nanos));
                assert_eq!(tree.first().map(|hold| hold.next), first);
                assert!(tree.in_order().map(|hold| hold.slot.id).eq(map.keys().copied()));
            }
        }
    }

    /// Holds come and go in the order of their times, or all change at one time.
    #[test]
    fn it_stays_shallow() {
        const OPEN: u64 = 10_000;
        for one_time in [false, true] {
            let (mut tree, mut deepest) = (Tree::default(), 0);
            for number in 0..3 * OPEN {
                tree.insert(hold(hashed(number), if one_time { 7 } else { number }));
                if let Some(oldest) = number.checked_sub(OPEN) {
                    tree.remove(hashed(oldest));
                }
                if number % 1_000 == 0 {
                    deepest = deepest.max(depth(&tree));
                }
            }
            assert!(tree.is_right() && tree.len() as u64 == OPEN);
            assert!(deepest < 50, "{deepest} deep: a balanced tree has 14");
        }
    }

    #[test]
    fn ids_in_the_order_of_their_times_make_a_list_and_nothing_worse() {
        let mut tree = Tree::default();
        let ids = || (1..=2_000).filter_map(NonZeroU64::new);
        ids().for_each(|id| tree.insert(hold(id, id.get())));
        assert_eq!((depth(&tree), tree.in_order().count()), (2_000, 2_000));
        ids().for_each(|id| tree.remove(id));
        assert!(tree.is_empty() && tree.root == 0);
    }
}
