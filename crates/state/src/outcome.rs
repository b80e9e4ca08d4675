//! The outcome of a start, one word each, and why a file is refused.

use std::io;
use std::time::Duration;

tidegate_engine::named! {
    /// What a start found in the folder. Names are those of metrics.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Outcome {
        /// The counters of a process that ended cleanly: all of them count.
        Clean = "clean",
        /// Nothing: no process ever wrote here.
        None = "none",
        /// The previous process was killed.
        Unclean = "unclean",
        /// The file ends too early.
        Truncated = "truncated",
        /// The file was changed.
        Corrupt = "corrupt",
        /// The file was written by a newer version.
        NewerVersion = "newer_version",
        /// The counters have keys under another secret.
        OtherSecret = "other_secret",
        /// The system cannot read the file.
        Unreadable = "unreadable",
        /// The file was written later than now.
        Ahead = "ahead",
        /// The file was written under another SHARD_MEMBERS.
        OtherMembers = "other_members",
        /// The file was written under another SHARD_NAME.
        OtherName = "other_name",
        /// The file is from an earlier start than the last one.
        Restored = "restored",
        /// The counters do not fit MAX_COUNTER_BYTES.
        TooLarge = "too_large",
    }
}

/// Why a file is refused.
#[derive(Debug, thiserror::Error)]
pub enum Distrust {
    /// It ends too early.
    #[error("it ends at byte {at}, too early")]
    Truncated {
        /// Its length.
        at: u64,
    },
    /// It is damaged.
    #[error("it is damaged at byte {at}: {what}")]
    Damaged {
        /// Where the damage was noticed.
        at: u64,
        /// What is wrong.
        what: &'static str,
    },
    /// A newer program wrote it.
    #[error("it has version {version} (expected {known} at most)")]
    NewerVersion {
        /// Its version.
        version: u32,
        /// The newest that this program reads.
        known: u32,
    },
    /// Its keys were made under another secret.
    #[error("its keys were made under another secret (expected the one in KEY_SECRET_FILE)")]
    OtherSecret,
    /// Its secret is in another file.
    #[error("the secret of its keys is not in it (expected KEY_SECRET_FILE, as when it was written)")]
    NoSecret,
    /// It was written later than now.
    #[error("it was written {0:?} ahead of this machine's clock (expected STATE_SKEW at most)")]
    Ahead(Duration),
    /// The number of nodes was another one.
    #[error("it was written with SHARD_MEMBERS={written} (expected {now})")]
    OtherMembers {
        /// The number then.
        written: u32,
        /// The number now.
        now: u32,
    },
    /// Another node wrote it.
    #[error("it was written under another SHARD_NAME, or without one (expected the name of this node)")]
    OtherName,
    /// Later starts have written since.
    #[error("start {written} wrote it (expected {last}, by STATE_SEQUENCE_FILE): it is from a backup")]
    Restored {
        /// The start that wrote it.
        written: u64,
        /// The last start.
        last: u64,
    },
    /// There is no room for its counters.
    #[error("its counters do not fit MAX_COUNTER_BYTES")]
    TooLarge,
    /// The system refuses.
    #[error("it cannot be read: {0}")]
    Unreadable(#[from] io::Error),
}

impl Distrust {
    /// The outcome of a start that found such a file.
    pub fn outcome(&self) -> Outcome {
        match self {
            Self::Truncated { .. } => Outcome::Truncated,
            Self::Damaged { .. } => Outcome::Corrupt,
            Self::NewerVersion { .. } => Outcome::NewerVersion,
            Self::OtherSecret | Self::NoSecret => Outcome::OtherSecret,
            Self::Ahead(_) => Outcome::Ahead,
            Self::OtherMembers { .. } => Outcome::OtherMembers,
            Self::OtherName => Outcome::OtherName,
            Self::Restored { .. } => Outcome::Restored,
            Self::TooLarge => Outcome::TooLarge,
            Self::Unreadable(_) => Outcome::Unreadable,
        }
    }
}
