//! Processes that die at every step of writing, renaming and consuming, one after the other, and machines with them.
//!
//! An oracle knows what was admitted. It judges every start: what counts as clean holds every hit since the last loss; a
//! clean end that was written is found, once; a checkpoint is at least as new as the last that was written.

use super::*;
use tidegate_disk::mortal::{Left, MortalFolder};

/// A process died: what it would have done next did not happen.
struct Died;

impl<E: std::error::Error> From<E> for Died {
    fn from(_: E) -> Self {
        Self
    }
}

/// What the oracle knows.
#[derive(Clone, Copy, Debug)]
struct Truth {
    /// Hits that were admitted since the last loss.
    admitted: u64,
    /// Of these, hits that a checkpoint surely has.
    saved: u64,
    /// Something was lost before.
    has_lost: bool,
    clean: Belief,
}

/// Whether a start may find a clean end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Belief {
    Must,
    May,
    MustNot,
}

/// A folder, and what the oracle knows of it.
struct World {
    folder: MortalFolder,
    truth: Truth,
    options: StartOptions,
}

/// More than all lives of a world admit.
const N: u32 = 1_000;

fn ask(store: &MemoryStore, clock: &Clock, hits: u64) -> u64 {
    store.take(&Limit::new(Algorithm::SlidingWindow, N.into(), HOUR), Key(1), hits, clock.now()).remaining
}

/// Hits that count.
fn counted(store: &MemoryStore, clock: &Clock) -> u64 {
    u64::from(N) - ask(store, clock, 0)
}

impl Truth {
    /// Judges a start. Returns what is true once the start is marked: until then, nothing has changed.
    fn judge(&self, begun: &Begun) -> Self {
        let counted = counted(&begun.store, &begun.clock);
        let is_clean = begun.outcome == Outcome::Clean;
        let has_lost = begun.author.lost_since.is_some();
        match self.clean {
            Belief::Must => assert!(is_clean, "a clean end is lost: {:?}, {self:?}", begun.outcome),
            Belief::MustNot => assert!(!is_clean, "a folder of a killed process is clean: {self:?}"),
            Belief::May => {}
        }
        assert!(matches!(begun.outcome, Outcome::Clean | Outcome::Unclean | Outcome::None), "{begun:?}");
        if is_clean {
            assert_eq!((counted, has_lost), (self.admitted, self.has_lost), "{self:?}");
        } else {
            assert!(has_lost, "a loss is not known as one: {self:?}");
            let believable = if begun.taken.is_some() { self.saved..=self.admitted } else { 0..=0 };
            assert!(believable.contains(&counted), "{counted}, {self:?}");
        }
        Self { admitted: counted, saved: counted, has_lost, clean: Belief::MustNot }
    }
}

impl World {
    fn new() -> Self {
        let truth = Truth { admitted: 0, saved: 0, has_lost: false, clean: Belief::MustNot };
        let memory = MemoryOptions::new(1 << 20);
        let options = StartOptions { memory, ..options() };
        Self { folder: MortalFolder::new(&Left::new()), truth, options }
    }

    fn copy(&self) -> Self {
        self.with(self.folder.copy())
    }

    fn with(&self, folder: MortalFolder) -> Self {
        Self { folder, truth: self.truth, options: self.options.clone() }
    }

    /// Every world that may be if the machine dies now.
    fn after_a_crash(&self) -> impl Iterator<Item = Self> {
        let lefts = self.folder.after_a_crash().into_iter();
        lefts.map(|left| self.with(MortalFolder::new(&left)))
    }

    /// A process begins, admits, writes a checkpoint, admits and ends; or it dies after so many steps.
    fn live(&mut self, steps: usize) -> Result<(), Died> {
        let folder = Folder::lock_on(self.folder.path(), self.folder.disk(steps))?;
        let begun = begin(Some(&folder), &self.options)?;
        let marked = self.truth.judge(&begun);
        if self.truth.clean == Belief::Must {
            self.truth.clean = Belief::May;
        }
        let (author, clock, store) = (begun.author, begun.clock, Arc::new(begun.store));
        let checkpoints = Checkpoints::new(folder, author, Arc::clone(&store), clock);
        checkpoints.mark(begun.outcome)?;
        self.truth = marked;
        self.admit(&store, &clock, 3);
        checkpoints.write()?;
        self.truth.saved = self.truth.admitted;
        self.admit(&store, &clock, 2);
        self.truth.clean = Belief::May;
        checkpoints.finish()?;
        self.truth.clean = Belief::Must;
        Ok(())
    }

    fn admit(&mut self, store: &MemoryStore, clock: &Clock, hits: u64) {
        ask(store, clock, hits);
        self.truth.admitted += hits;
    }

    /// Two lives that nothing disturbs. The oracle judges them.
    fn end_well(mut self) {
        for _ in 0..2 {
            assert!(self.live(usize::MAX).is_ok(), "a disk without faults");
        }
    }

    /// Every death of the next process, and of the machine with it. Returns the worlds without the latter.
    fn die_everywhere(&self) -> Vec<Self> {
        let mut worlds = Vec::new();
        loop {
            let mut world = self.copy();
            let died = world.live(worlds.len()).is_err();
            world.after_a_crash().for_each(Self::end_well);
            world.copy().end_well();
            worlds.push(world);
            if !died {
                return worlds;
            }
        }
    }
}

fn die_everywhere_after(clean_ends: usize) {
    let mut world = World::new();
    assert!((0..clean_ends).all(|_| world.live(usize::MAX).is_ok()));
    let worlds = world.die_everywhere();
    assert!(worlds.len() > 15, "only {} steps", worlds.len());
    // Twice in a row, before anything was synced by the second.
    worlds.iter().for_each(|world| drop(world.die_everywhere()));
}

#[test]
fn no_death_in_the_first_life_leaves_a_wrong_state() {
    die_everywhere_after(0);
}

#[test]
fn no_death_after_a_clean_end_leaves_a_wrong_state_or_less_than_the_last_checkpoint() {
    die_everywhere_after(1);
}
