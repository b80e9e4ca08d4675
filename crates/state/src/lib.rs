//! Counts that survive a restart: the counters of the memory store in a file, and their use at the next start.
//!
//! In: a folder, and the store of a process that ends. Out: the store, the clock and the secret of keys with which
//! the next process continues, and an [`Outcome`] that says whether it could. It reads and writes files and starts
//! one thread. It has no settings and no sockets: the program calls it at the right moments. Clocks and the disk are
//! those of a [`Machine`] and of `tidegate-disk`: a simulation passes its own.
//!
//! The folder of a running process has `lock`, which it has locked, and `checkpoint`: the counters at some moment of
//! its life, at first those that it started with. A process that ends writes `counters` after its last decision. The
//! next one reads that, and renames it to `checkpoint` before its first answer. So `counters` is always complete, and
//! `checkpoint` without `counters` means that a process was killed. Every file is written under a temporary name,
//! synced and renamed.
//!
//! - `clock`: the clocks of a machine
//! - `format`: the bytes of a file; `writer` and `reader` stream them
//! - `folder`: the names, the lock, and the order of renaming and syncing
//! - `moment`: how the clock of decisions continues
//! - `secret`: the secret of keys
//! - `sequence`: the number of the last start, outside of the folder
//! - `start`: what a process starts with
//! - `checkpoints`: the thread that writes while the process serves

mod clock;
mod format;
mod writer;
mod reader;
mod folder;
mod moment;
mod outcome;
mod secret;
mod sequence;
mod start;
mod checkpoints;

pub use self::checkpoints::{CheckpointTotals, Checkpoints};
pub use self::clock::{Machine, ThisMachine};
pub use self::folder::{File, Folder, FolderError};
pub use self::format::{Header, ShardName};
pub use self::moment::Moment;
pub use self::outcome::{Distrust, Outcome};
pub use self::reader::{StateReader, Totals};
pub use self::secret::{KeySource, SecretError};
pub use self::sequence::{Sequence, SequenceError};
pub use self::start::{Author, Begun, StartError, StartOptions, begin, init};

#[cfg(test)]
mod tests;
