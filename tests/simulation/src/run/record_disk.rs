//! The disk of records on the machine of a node without Redis: the program's own embedded store in a real folder, with a disk
//! that is slow, that fails for a while, and that dies in the middle of a change.
//!
//! In: calls of `RecordStore`, which wait here as for the threads of the program, and deaths. Out: what the store says. A change
//! that the disk refuses is stored when the folder is opened the next time, or not, or was torn and is not. A death in the middle of
//! a change leaves all of its bytes, none, or the first ones, before zeros if the file had room for more.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};

use tempfile::TempDir;
use tidegate_operate::records::{Job, PoolError, Queue};
use tidegate_records::{
    Change, EmbeddedTrees, Folder, FolderError, KeyPrefix, Record, RecordKey, Tree, Trees,
};

use super::Run;
use crate::random::Random;
use crate::scenario::DiskTrouble;
use crate::world::{MICRO, MILLI, Time, World, lock};

/// A read or a change takes as long to be begun, and then to be answered.
const DELAY_MAX: Time = 300 * MICRO;
/// A slow disk takes so much longer.
pub(super) const SLOW: Time = 130 * MILLI;
/// A block of a file, as the system counts them.
const BLOCK_BYTES: u64 = 512;

/// The disk, and what its process does with it.
pub(super) struct RecordDisk {
    folder: TempDir,
    state: Mutex<State>,
}

struct State {
    random: Random,
    /// The process that may use it.
    life: u64,
    /// It begins: calls do not wait.
    begins: bool,
    /// What it has open, and the number of that opening.
    tree: Option<Box<dyn Tree>>,
    opened: u64,
    /// The change that the disk has refused. Until the tree is closed no other is taken.
    refused: Option<Refused>,
    /// Changes that wait for the disk, the first of them perhaps half done.
    waiting: VecDeque<(u64, Job)>,
    numbered: u64,
    /// When the thread that writes is free.
    free_at: Time,
    /// What is the matter, until when.
    troubles: Vec<(DiskTrouble, Time)>,
    /// Since when and until when nothing was open.
    closed: Vec<(Time, Time)>,
}

/// A change that the disk has refused.
struct Refused {
    changes: Vec<(RecordKey, Option<Record>)>,
    fate: Fate,
}

/// What a change has left on the disk that no one has waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Nothing,
    Torn,
    All,
}

const FATES: [Fate; 3] = [Fate::Nothing, Fate::Torn, Fate::All];

impl RecordDisk {
    pub(super) fn new(seed: u64) -> Arc<Self> {
        // In memory where the system has a folder for that, as the other disk.
        let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a folder");
        let state = State {
            random: Random::new(!seed),
            life: 0,
            begins: false,
            tree: None,
            opened: 0,
            refused: None,
            waiting: VecDeque::new(),
            numbered: 0,
            free_at: 0,
            troubles: Vec::new(),
            closed: Vec::new(),
        };
        Arc::new(Self { folder, state: Mutex::new(state) })
    }

    /// Something is the matter from now on.
    pub(super) fn fails(&self, what: DiskTrouble, until: Time) {
        lock(&self.state).troubles.push((what, until));
    }

    /// A process begins. The folder as it may use it, and the number of its life.
    pub(super) fn begin(self: &Arc<Self>, run: &Arc<Run>) -> (Folder, u64) {
        let life = {
            let mut state = lock(&self.state);
            (state.life, state.begins) = (state.life + 1, true);
            state.is_closed(run.world.now());
            state.life
        };
        let trees = Opener { disk: Arc::clone(self), run: Arc::downgrade(run), life };
        (Folder::closed_on(&self.folder.path().join("records"), Arc::new(trees)), life)
    }

    /// The process has tried to open it.
    pub(super) fn has_begun(&self) {
        lock(&self.state).begins = false;
    }

    /// The process ends where it is. What it has begun to change is stored completely, in part, or not at all.
    pub(super) fn die(&self, now: Time) {
        let (job, fate) = {
            let mut state = lock(&self.state);
            state.life += 1;
            state.is_closed(now);
            let job = state.waiting.pop_front();
            state.waiting.clear();
            state.free_at = 0;
            let fate = state.random.pick(&FATES);
            (job, fate)
        };
        let before = journal(self.folder.path());
        if let Some((_, job)) = job.filter(|_| fate != Fate::Nothing) {
            // Nobody is there to whom the result could be handed over.
            drop(job());
        }
        self.close(fate == Fate::Torn, before);
        lock(&self.state).life += 1;
    }

    /// Closes what is open, and stores or tears what the disk has refused.
    fn close(&self, tears: bool, before: Option<(PathBuf, u64)>) {
        let (tree, refused) = {
            let mut state = lock(&self.state);
            (state.tree.take(), state.refused.take())
        };
        let (mut tears, mut before) = (tears, before);
        if let (Some(tree), Some(Refused { changes, fate })) = (&tree, refused)
            && fate != Fate::Nothing
        {
            if !tears {
                before = journal(self.folder.path());
            }
            let mut changes = changes.iter().map(|(key, record)| (key, record.as_ref()));
            tree.write(&mut changes).expect("the disk of the test takes it");
            tears |= fate == Fate::Torn;
        }
        drop(tree);
        if let Some((path, before)) = before.filter(|_| tears) {
            self.tear(&path, before);
        }
    }

    /// Of what the journal has got since then only the first bytes are there.
    fn tear(&self, path: &Path, before: u64) {
        let end = written(path);
        let mut state = lock(&self.state);
        if end <= before {
            return;
        }
        let kept = state.random.between(before, end - 1);
        let file = OpenOptions::new().write(true).open(path).expect("it is there");
        let has_room = file.metadata().expect("it is there").len() > end;
        if has_room || state.random.one_in(2) {
            let mut file = file;
            file.seek(SeekFrom::Start(kept)).expect("a file");
            file.write_all(&vec![0; (end - kept) as usize]).expect("there is room");
        } else {
            file.set_len(kept).expect("a file");
        }
    }

    /// What it has for a key, if it is open.
    pub(super) fn stored(&self, key: &RecordKey) -> Option<Option<Record>> {
        lock(&self.state).tree.as_ref().map(|tree| tree.get(key).expect("the disk of the test answers"))
    }

    /// Since when nothing is open, if that is so.
    pub(super) fn closed_since(&self) -> Option<Time> {
        let state = lock(&self.state);
        state.closed.last().filter(|(_, until)| *until == Time::MAX).map(|(since, _)| *since)
    }

    /// When nothing was open, at some time from then on.
    pub(super) fn was_closed(&self, from: Time) -> Vec<(Time, Time)> {
        lock(&self.state).closed.iter().copied().filter(|(_, until)| *until >= from).collect()
    }
}

impl State {
    /// Nothing is open from now on.
    fn is_closed(&mut self, now: Time) {
        if self.closed.last().is_none_or(|(_, until)| *until != Time::MAX) {
            self.closed.push((now, Time::MAX));
        }
    }

    fn is(&self, what: &[DiskTrouble], now: Time) -> bool {
        self.troubles.iter().any(|(trouble, until)| what.contains(trouble) && now < *until)
    }
}

/// Opens the folder for one process.
struct Opener {
    disk: Arc<RecordDisk>,
    run: Weak<Run>,
    life: u64,
}

/// What a process has open.
struct Opened {
    disk: Arc<RecordDisk>,
    run: Weak<Run>,
    opened: u64,
}

fn refuses() -> FolderError {
    let source = io::Error::other("the disk refuses");
    FolderError::Io { what: "use", path: PathBuf::from("records"), source }
}

impl Trees for Opener {
    fn open(&self, folder: &Path) -> Result<Box<dyn Tree>, FolderError> {
        let run = self.run.upgrade().ok_or_else(refuses)?;
        let now = run.world.now();
        {
            let state = lock(&self.disk.state);
            if state.life != self.life || state.is(&[DiskTrouble::Full, DiskTrouble::Broken], now) {
                return Err(refuses());
            }
        }
        let tree = EmbeddedTrees.open(folder)?;
        run.check_opened(&*tree);
        let mut state = lock(&self.disk.state);
        state.tree = Some(tree);
        state.opened += 1;
        state.closed.last_mut().expect("it was closed").1 = now;
        Ok(Box::new(Opened { disk: Arc::clone(&self.disk), run: self.run.clone(), opened: state.opened }))
    }

    fn probe(&self, _: &Path) -> Result<(), FolderError> {
        let now = self.run.upgrade().map_or(0, |run| run.world.now());
        let fails = lock(&self.disk.state).is(&[DiskTrouble::Full, DiskTrouble::Broken], now);
        if fails { Err(refuses()) } else { Ok(()) }
    }
}

impl Opened {
    fn with<T>(
        &self,
        troubles: &[DiskTrouble],
        call: impl FnOnce(&dyn Tree) -> Result<T, FolderError>,
    ) -> Result<T, FolderError> {
        let now = self.run.upgrade().map_or(0, |run| run.world.now());
        let state = lock(&self.disk.state);
        match &state.tree {
            Some(tree) if state.opened == self.opened && !state.is(troubles, now) => call(&**tree),
            _ => Err(refuses()),
        }
    }
}

impl Tree for Opened {
    fn get(&self, key: &RecordKey) -> Result<Option<Record>, FolderError> {
        self.with(&[DiskTrouble::Broken], |tree| tree.get(key))
    }

    fn has(&self, key: &RecordKey) -> Result<bool, FolderError> {
        self.with(&[DiskTrouble::Broken], |tree| tree.has(key))
    }

    fn page(
        &self,
        prefix: &KeyPrefix,
        after: Option<&RecordKey>,
        most: usize,
    ) -> Result<Vec<(RecordKey, Record)>, FolderError> {
        self.with(&[DiskTrouble::Broken], |tree| tree.page(prefix, after, most))
    }

    fn count(&self) -> u64 {
        self.with(&[], |tree| Ok(tree.count())).unwrap_or(0)
    }

    fn write(&self, changes: &mut dyn Iterator<Item = Change<'_>>) -> Result<(), FolderError> {
        if lock(&self.disk.state).refused.is_some() {
            return Err(FolderError::Closed("the disk refused a change".to_owned()));
        }
        let changes: Vec<_> = changes.map(|(key, record)| (key.clone(), record.copied())).collect();
        let done = self.with(&[DiskTrouble::Full, DiskTrouble::Broken], |tree| {
            tree.write(&mut changes.iter().map(|(key, record)| (key, record.as_ref())))
        });
        if done.is_err() {
            let mut state = lock(&self.disk.state);
            if state.opened == self.opened {
                let fate = state.random.pick(&FATES);
                state.refused = Some(Refused { changes, fate });
            }
        }
        done
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        let is_open = {
            let mut state = lock(&self.disk.state);
            let is_open = state.tree.is_some() && state.opened == self.opened;
            if let (true, Some(run)) = (is_open, self.run.upgrade()) {
                state.is_closed(run.world.now());
            }
            is_open
        };
        if is_open {
            self.disk.close(false, None);
        }
    }
}

/// Where calls wait for the disk, as for a thread of the program.
pub(super) struct DiskQueue {
    pub(super) world: Arc<World>,
    pub(super) disk: Arc<RecordDisk>,
    pub(super) node: usize,
    /// Of which process.
    pub(super) life: u64,
    /// One call waits for the other.
    pub(super) writes: bool,
}

impl Queue for DiskQueue {
    fn add(&self, job: Job) -> Result<(), PoolError> {
        let now = self.world.now();
        let mut state = lock(&self.disk.state);
        if state.life != self.life {
            return Err(PoolError::Lost);
        }
        if state.begins {
            drop(state);
            job()();
            return Ok(());
        }
        let slow = if state.is(&[DiskTrouble::Slow], now) { SLOW } else { 0 };
        let begins =
            now.max(if self.writes { state.free_at } else { 0 }) + state.random.below(DELAY_MAX) + slow;
        let ends = begins + state.random.below(DELAY_MAX);
        let (number, mut job) = (state.numbered, Some(job));
        if self.writes {
            state.numbered += 1;
            state.free_at = ends + 1;
            state.waiting.extend(job.take().map(|job| (number, job)));
        }
        drop(state);
        let (world, disk) = (Arc::clone(&self.world), Arc::clone(&self.disk));
        self.world.spawn(self.node, async move {
            world.until(begins).await;
            let job = job.or_else(|| disk.take(number));
            let Some(hand_over) = job.map(|job| job()) else { return };
            world.until(ends).await;
            hand_over();
        });
        Ok(())
    }
}

impl RecordDisk {
    fn take(&self, number: u64) -> Option<Job> {
        let mut state = lock(&self.state);
        let is_next = state.waiting.front().is_some_and(|(first, _)| *first == number);
        if is_next { state.waiting.pop_front().map(|(_, job)| job) } else { None }
    }
}

/// The journal, if there is one, and how many bytes were written to it.
fn journal(folder: &Path) -> Option<(PathBuf, u64)> {
    let all = fs::read_dir(folder.join("records")).ok()?;
    let paths = all.filter_map(|entry| Some(entry.ok()?.path()));
    let path = paths.filter(|path| path.extension().is_some_and(|it| it == "jnl")).max()?;
    let written = written(&path);
    Some((path, written))
}

/// How many bytes were written to a file that has room for more, which is zeros.
fn written(path: &Path) -> u64 {
    let mut bytes = Vec::new();
    let file = File::open(path).expect("it is there");
    let most = file.metadata().expect("it is there").blocks() * BLOCK_BYTES;
    file.take(most).read_to_end(&mut bytes).expect("a file");
    bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last as u64 + 1)
}
