//! A disk whose process or machine dies at any step, to test that no death leaves half a file under its name.
//!
//! When a process dies, its completed steps stay. When a machine dies, unsynced changes may be lost too: all bytes of
//! a file, or the second half, or all but their number; and any of the names.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;
use tempfile::TempDir;

use super::*;

/// The names in a folder, and what the files hold.
pub type Left = BTreeMap<String, Vec<u8>>;

/// A folder of a machine that can die.
#[derive(Debug)]
pub struct MortalFolder {
    folder: TempDir,
    disk: Arc<MortalDisk>,
}

/// The underlying disk: it does every step, and remembers what is not synced.
#[derive(Debug)]
pub struct MortalDisk(Arc<Mutex<Journal>>);

#[derive(Clone, Debug, Default)]
struct Journal {
    /// Steps until the process dies.
    steps_left: usize,
    /// Every file that ever was.
    files: Vec<Bytes>,
    /// The files as the process finds them.
    names: BTreeMap<String, usize>,
    /// The names that outlive the machine, and the changes of names since.
    synced_names: BTreeMap<String, usize>,
    unsynced: Vec<Change>,
}

#[derive(Clone, Debug, Default)]
struct Bytes {
    written: Vec<u8>,
    synced: usize,
}

#[derive(Clone, Debug)]
enum Change {
    Made(String, usize),
    Renamed(String, String),
    Removed(String),
}

/// One of its files.
struct MortalFile {
    file: File,
    number: usize,
    journal: Arc<Mutex<Journal>>,
}

/// Bytes of a file that one step writes at most.
const STEP_BYTES: usize = 150;

/// In memory where the system has a folder for that: a rename on a real disk takes as long as hundreds of simulated requests.
fn folder() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a folder")
}

impl MortalFolder {
    /// A folder of a machine that has just started.
    pub fn new(left: &Left) -> Self {
        let folder = folder();
        let mut journal = Journal::default();
        for (name, bytes) in left {
            fs::write(folder.path().join(name), bytes).expect("ours");
            journal.names.insert(name.clone(), journal.files.len());
            journal.files.push(Bytes { written: bytes.clone(), synced: bytes.len() });
        }
        journal.synced_names = journal.names.clone();
        Self { folder, disk: Arc::new(MortalDisk(Arc::new(Mutex::new(journal)))) }
    }

    /// The same once more, as the next process finds it.
    pub fn copy(&self) -> Self {
        let journal = self.disk.0.lock().clone();
        let folder = folder();
        for (name, number) in &journal.names {
            fs::write(folder.path().join(name), &journal.files[*number].written).expect("ours");
        }
        Self { folder, disk: Arc::new(MortalDisk(Arc::new(Mutex::new(journal)))) }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The disk of a process that dies after so many steps.
    pub fn disk(&self, steps: usize) -> Arc<MortalDisk> {
        self.disk.0.lock().steps_left = steps;
        Arc::clone(&self.disk)
    }

    /// Steps that were left when the last process ended.
    pub fn steps_left(&self) -> usize {
        self.disk.0.lock().steps_left
    }

    /// Everything that the machine may find if it dies now.
    pub fn after_a_crash(&self) -> BTreeSet<Left> {
        self.disk.0.lock().after_a_crash()
    }
}

impl Journal {
    fn step(&mut self) -> io::Result<()> {
        let died = || io::Error::other("the process has died");
        self.steps_left = self.steps_left.checked_sub(1).ok_or_else(died)?;
        Ok(())
    }

    fn change(&mut self, change: Change) {
        change.apply(&mut self.names);
        self.unsynced.push(change);
    }

    fn after_a_crash(&self) -> BTreeSet<Left> {
        let chosen = 0..1_u32 << self.unsynced.len();
        chosen.flat_map(|chosen| self.with_names(&self.names_after(chosen))).collect()
    }

    /// The names if only these changes were written.
    fn names_after(&self, chosen: u32) -> BTreeMap<String, usize> {
        let mut names = self.synced_names.clone();
        let written = self.unsynced.iter().enumerate().filter(|(at, _)| chosen >> at & 1 == 1);
        written.for_each(|(_, change)| change.apply(&mut names));
        names
    }

    /// All possible contents of these files.
    fn with_names(&self, names: &BTreeMap<String, usize>) -> Vec<Left> {
        let mut all = vec![Left::new()];
        for (name, &number) in names {
            let contents = self.files[number].after_a_crash();
            let with = |left: &Left, bytes: &Vec<u8>| {
                let mut left = left.clone();
                left.insert(name.clone(), bytes.clone());
                left
            };
            all = all.iter().flat_map(|left| contents.iter().map(|bytes| with(left, bytes))).collect();
        }
        all
    }
}

impl Bytes {
    fn after_a_crash(&self) -> BTreeSet<Vec<u8>> {
        let (synced, lost) = self.written.split_at(self.synced);
        let zeros = vec![0; lost.len()];
        [&lost[..0], &lost[..lost.len() / 2], lost, &zeros].map(|tail| [synced, tail].concat()).into()
    }
}

impl Change {
    /// A change of a name that is not there changes nothing.
    fn apply(&self, names: &mut BTreeMap<String, usize>) {
        match self {
            Self::Made(name, number) => {
                names.insert(name.clone(), *number);
            }
            Self::Removed(name) => {
                names.remove(name);
            }
            Self::Renamed(from, to) => {
                if let Some(number) = names.remove(from) {
                    names.insert(to.clone(), number);
                }
            }
        }
    }
}

fn name(path: &Path) -> String {
    path.file_name().expect("a file has a name").to_string_lossy().into_owned()
}

impl Disk for MortalDisk {
    fn create(&self, path: &Path) -> io::Result<Box<dyn NewFile>> {
        let mut journal = self.0.lock();
        journal.step()?;
        let number = journal.files.len();
        journal.files.push(Bytes::default());
        journal.change(Change::Made(name(path), number));
        Ok(Box::new(MortalFile { file: File::create(path)?, number, journal: Arc::clone(&self.0) }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut journal = self.0.lock();
        journal.step()?;
        journal.change(Change::Renamed(name(from), name(to)));
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut journal = self.0.lock();
        journal.step()?;
        fs::remove_file(path)?;
        journal.change(Change::Removed(name(path)));
        Ok(())
    }

    fn sync_folder(&self, _: &Path) -> io::Result<()> {
        let mut journal = self.0.lock();
        journal.step()?;
        journal.synced_names = journal.names.clone();
        journal.unsynced.clear();
        Ok(())
    }
}

impl Write for MortalFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut journal = self.journal.lock();
        journal.step()?;
        let bytes = &bytes[..bytes.len().min(STEP_BYTES)];
        journal.files[self.number].written.extend_from_slice(bytes);
        self.file.write_all(bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl NewFile for MortalFile {
    fn sync(&mut self) -> io::Result<()> {
        let mut journal = self.journal.lock();
        journal.step()?;
        let bytes = &mut journal.files[self.number];
        bytes.synced = bytes.written.len();
        Ok(())
    }
}
