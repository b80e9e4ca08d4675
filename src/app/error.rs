//! Why the program ends with a failure, for the user who started it.

use std::io;

use crate::app::no_socket::NoSocket;
use crate::source::file::SourceError;
use crate::spans::ExportError;
use tidegate_engine::rules::Diagnostic;
use tidegate_operate::FileError;
use tidegate_operate::audit::AuditError;
use tidegate_operate::records::StoreError;
use tidegate_serve::reload::counted;
use tidegate_state::{FolderError, SecretError, StartError};

/// Why the program ends with a failure.
#[derive(Debug, thiserror::Error)]
pub enum AppError {
    /// Every socket that cannot be bound, one per line.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Listen(Vec<NoSocket>),
    /// A file that cannot be used.
    #[error("{setting}: {problem}")]
    BadFile {
        /// The setting that names it.
        setting: &'static str,
        /// The file, and what is wrong with it.
        problem: String,
    },
    /// Redis options that cannot be used.
    #[error("redis: {problem}")]
    Redis {
        /// What is wrong.
        problem: String,
    },
    /// Rules that cannot be read.
    #[error("cannot read the rules: {error} ({remedy})")]
    Source {
        /// Why.
        error: SourceError,
        /// The setting that names the place of the rules.
        remedy: &'static str,
    },
    /// Rules that were refused, with the number of problems. Each problem was logged.
    #[error("the rules were refused for {}", counted(*.0, "problem"))]
    Rules(usize),
    /// A file that a setting names and that cannot be read.
    #[error("cannot read {path}: {source}")]
    File {
        /// Which one.
        path: String,
        /// What the system says.
        source: io::Error,
    },
    /// Another limiter of this process has counters with other bounds.
    #[error(
        "MAX_COUNTER_BYTES and STORE_FULL_MODE differ from those of the counters that this process has already (expected the \
         same in all filters, and a restart of the process after a change)"
    )]
    OtherBounds,
    /// The file of events cannot be written.
    #[error("EVENTS_LOG: cannot write {path}: {source}")]
    EventsLog {
        /// Which one.
        path: String,
        /// What the system says.
        source: io::Error,
    },
    /// The folder of counters cannot be used.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The counters of the previous process cannot be handled.
    #[error(transparent)]
    State(#[from] StartError),
    /// The file of the secret of keys cannot be used.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// The file of exceptions or of resets cannot be used.
    #[error(transparent)]
    Changes(#[from] FileError),
    /// The store of records has no threads.
    #[error(transparent)]
    Records(#[from] StoreError),
    /// Changes cannot be audited.
    #[error(transparent)]
    Audit(#[from] AuditError),
    /// A metric mapping that was refused, with every problem.
    #[error("the mapping of metrics was refused:{}", .0.iter().map(|problem| format!("\n{problem}")).collect::<String>())]
    Mapping(Vec<Diagnostic>),
    /// Spans could never be sent.
    #[error("tracing: {0}")]
    Tracing(#[from] ExportError),
    /// Something that the system refused.
    #[error("cannot start: {0}")]
    System(#[from] io::Error),
    /// A task ended that must not end.
    #[error("{task} ended: {reason}")]
    Task {
        /// Which one.
        task: &'static str,
        /// Why.
        reason: String,
    },
}
