//! What a process starts with: the counters, the clock and the secret of the previous process, or new ones.
//!
//! After a kill these are the counters of the last checkpoint, which lack the hits that were admitted since. If that
//! could admit too much, the store is also made cold: then counters count as full, whatever they contain.
//!
//! In: the folder. Out: a [`Begun`]. Until then nothing in the folder has changed except that refused files were
//! renamed, so a start that fails later loses nothing. [`mark`](crate::Checkpoints::mark) follows, right before the
//! first answer.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Machine;
use crate::folder::{File, Folder, FolderError};
use crate::format::{Header, ShardName};
use crate::moment::Moment;
use crate::outcome::{Distrust, Outcome};
use crate::reader::{StateReader, Totals};
use crate::secret::KeySource;
use crate::writer::Writing;
use tidegate_engine::clock::Clock;
use tidegate_engine::memory::{Cold, MemoryOptions, MemoryStore};
use tidegate_engine::time::Timestamp;

/// How a process starts.
#[derive(Clone, Debug)]
pub struct StartOptions {
    /// The secret in KEY_SECRET_FILE.
    pub own_secret: Option<KeySource>,
    /// By how much clocks of two machines may differ.
    pub skew: Duration,
    /// SHARD_MEMBERS; 0: not set.
    pub members: u32,
    /// SHARD_GREW_FROM; 0: not set.
    pub grew_from: u32,
    /// SHARD_NAME.
    pub name: ShardName,
    /// Bounds of the store.
    pub memory: MemoryOptions,
    /// Lost counters of windows up to this count as full. `None`: they start at zero.
    pub deny_cold: Option<Duration>,
    /// The machine that runs the process.
    pub machine: Arc<dyn Machine>,
}

impl StartOptions {
    /// Whether counters written under this SHARD_MEMBERS may be used. A ring that grew has only taken keys away, so
    /// this node has seen every hit of the keys that it still has.
    fn takes_members(&self, written: u32) -> bool {
        written == self.members || (self.grew_from > 0 && written == self.grew_from)
    }
}

/// What a process starts with.
#[derive(Debug)]
#[must_use]
pub struct Begun {
    /// The counters.
    pub store: MemoryStore,
    /// The clock of decisions under which they count.
    pub clock: Clock,
    /// The secret of their keys, and what else the files of this process contain.
    pub author: Author,
    /// What was found.
    pub outcome: Outcome,
    /// The number of counters that were used, and when they were written.
    pub taken: Option<(Totals, Moment)>,
    /// The refused file: why, and its new path.
    pub refused: Option<(Distrust, PathBuf)>,
}

/// What all files of a process contain about it.
#[derive(Clone, Debug)]
pub struct Author {
    /// The secret of its keys.
    pub secret: KeySource,
    /// SHARD_MEMBERS; 0: not set.
    pub members: u32,
    /// SHARD_NAME.
    pub name: ShardName,
    /// When counters were last lost, by the clock of decisions. A clean end in between does not bring them back.
    pub lost_since: Option<Timestamp>,
    /// The number of this start.
    pub sequence: u64,
    /// The machine that runs the process.
    pub machine: Arc<dyn Machine>,
}

/// Why a process cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The folder cannot be written to.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// There are counters of an earlier process, so `state init` is refused.
    #[error("STATE_DIR: {} exists, written by an earlier process (expected a folder without it)", .0.display())]
    History(PathBuf),
    /// There are no random bytes.
    #[error("cannot draw a secret for keys: {0}")]
    Random(#[from] std::io::Error),
}

/// A state that is complete.
struct Taken {
    store: MemoryStore,
    clock: Clock,
    secret: KeySource,
    totals: Totals,
    header: Header,
}

/// Looks into the folder and uses what can be trusted.
/// Fails when a refused file cannot be renamed, or there are no random bytes.
pub fn begin(folder: Option<&Folder>, options: &StartOptions) -> Result<Begun, StartError> {
    let found = folder.and_then(|folder| Some((folder, found_in(folder)?)));
    let (mut taken, mut refused, mut outcome) = (None, None, Outcome::None);
    if let Some((folder, file)) = found {
        outcome = if file == File::Counters { Outcome::Clean } else { Outcome::Unclean };
        match take(folder, file, options) {
            Ok(it) => taken = Some(it),
            Err(distrust) => {
                outcome = if file == File::Counters { distrust.outcome() } else { outcome };
                refused = Some((distrust, folder.put_aside(file)?));
            }
        }
    }
    let mut last_start = folder.map_or(0, Folder::last_start);
    let (store, clock, secret, before, taken) = match taken {
        Some(Taken { store, clock, secret, totals, header }) => {
            last_start = last_start.max(header.sequence);
            (store, clock, secret, header.lost_since, Some((totals, header.moment)))
        }
        None => {
            let secret = options.own_secret.map_or_else(KeySource::random, Ok)?;
            (MemoryStore::new(options.memory), options.machine.start_clock(), secret, None, None)
        }
    };
    let machine = Arc::clone(&options.machine);
    let lost_since = if outcome == Outcome::Clean { before } else { Some(clock.at(machine.monotonic())) };
    let sequence = last_start.saturating_add(1);
    let store = match (options.deny_cold, lost_since) {
        (Some(window_max), Some(since)) => {
            let nanos = u64::try_from(window_max.as_nanos()).unwrap_or(u64::MAX);
            store.cold(Cold::since(since, nanos))
        }
        _ => store,
    };
    let author =
        Author { secret, members: options.members, name: options.name, lost_since, sequence, machine };
    Ok(Begun { store, clock, author, outcome, taken, refused })
}

/// Declares that there is no history: the next start is like one after a clean end without counters. `members`:
/// SHARD_MEMBERS; 0: not set. `name`: SHARD_NAME.
/// Fails when there is a history, or the folder cannot be written to.
pub fn init(
    folder: &Folder,
    own_secret: Option<KeySource>,
    members: u32,
    name: ShardName,
    machine: Arc<dyn Machine>,
) -> Result<(), StartError> {
    if let Some(file) = found_in(folder) {
        return Err(StartError::History(folder.file(file)));
    }
    let secret = own_secret.map_or_else(KeySource::random, Ok)?;
    let clock = machine.start_clock();
    let author = Author { secret, members, name, lost_since: None, sequence: folder.last_start(), machine };
    write_nothing(folder, File::Counters, &author, &clock)?;
    Ok(())
}

/// The file that says how the previous process ended.
fn found_in(folder: &Folder) -> Option<File> {
    File::ALL.into_iter().find(|&file| folder.has(file))
}

fn take(folder: &Folder, file: File, options: &StartOptions) -> Result<Taken, Distrust> {
    let reader = StateReader::open(&folder.file(file))?;
    let header = reader.header.clone();
    if file == File::Counters && !header.is_clean {
        return Err(Distrust::Damaged { at: 0, what: "it is a checkpoint" });
    }
    // A checkpoint may be older than the last start. It lacks later hits in any case.
    if file == File::Counters && header.sequence < folder.last_start() {
        return Err(Distrust::Restored { written: header.sequence, last: folder.last_start() });
    }
    if !options.takes_members(header.members) {
        return Err(Distrust::OtherMembers { written: header.members, now: options.members });
    }
    if header.name != options.name {
        return Err(Distrust::OtherName);
    }
    let secret = KeySource::of_state(&header, options.own_secret)?;
    let machine = &*options.machine;
    let started = machine.start_clock();
    header.moment.check_past(&Moment::now(machine, &started), options.skew)?;
    let store = MemoryStore::new(options.memory);
    let totals = reader.read(|counters| store.import(counters))?;
    // Without counters there is nothing that another clock could count wrongly.
    let clock = if totals.all() == 0 && header.lost_since.is_none() {
        started
    } else {
        let (now, reading) = (Moment::now(machine, &started), machine.monotonic());
        Clock::new(reading, header.moment.goes_on(&now, totals.newest, options.skew))
    };
    Ok(Taken { store, clock, secret, totals, header })
}

/// Writes a file without counters.
pub(super) fn write_nothing(
    folder: &Folder,
    file: File,
    author: &Author,
    clock: &Clock,
) -> Result<(), FolderError> {
    let (header, machine) = (header(author, clock, file == File::Counters), &*author.machine);
    let store = MemoryStore::new(MemoryOptions::new(0));
    folder.write(file, &Writing { header: &header, store: &store, clock, machine }, |_| Ok(())).map(drop)
}

/// The header of a file that is written now.
pub(super) fn header(author: &Author, clock: &Clock, is_clean: bool) -> Header {
    Header {
        is_clean,
        secret: author.secret.written(),
        fingerprint: author.secret.fingerprint(),
        moment: Moment::now(&*author.machine, clock),
        members: author.members,
        name: author.name,
        lost_since: author.lost_since,
        sequence: author.sequence,
    }
}
