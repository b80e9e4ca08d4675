//! The audit: a line of JSON before a change, and a line with its outcome after it, under one id.
//!
//! In: who changes what, and a future that makes the change. Out: lines in AUDIT_LOG and in memory, where the last ones
//! stay for `GET /admin/audit`. A change that cannot be audited is not made. It reads no clock.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use serde::Serialize;
use serde_json::{Value, json};

use tidegate_engine::stamp;
use tidegate_engine::text::json_line;
use tidegate_engine::time::Timestamp;
use tidegate_redis::runtime::Runtime;

/// The number of lines in memory.
const RECENT_MAX: usize = 1_000;

/// This name means standard output.
const STANDARD_OUTPUT: &str = "-";

/// Why a change cannot be audited.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// The log cannot be written.
    #[error("AUDIT_LOG: cannot write {}: {source}", path.display())]
    Log {
        /// Its path.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The thread that writes it has died.
    #[error("the thread that writes it has died")]
    Died,
}

/// What a change does, as its lines say it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(inline))]
#[allow(missing_docs)]
pub(crate) enum Does {
    ExceptionPut,
    ExceptionEnd,
    CounterReset,
    ResetBelow,
    Ban,
    LiftBan,
    RecordPut,
    RecordDelete,
    RecordsLoad,
}

/// The outcome of a change in words, or why it failed.
pub type Outcome = Result<String, String>;

/// The outcome of a change that needs no further words.
pub const DONE: &str = "done";

/// The author of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Author {
    /// The name that they gave.
    pub who: String,
    /// Where the request came from.
    pub caller: Caller,
}

/// Where a request comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The address; empty on a unix socket.
    pub peer: String,
    /// The name in the client's certificate, if the certificate is what admits the request.
    pub certificate: Option<String>,
}

/// Where lines go.
pub struct Audit {
    /// Locked while a line is written, which may wait for a disk.
    lines: Mutex<Lines>,
    /// The last lines. Who reads them does not wait for a disk.
    recent: Mutex<VecDeque<String>>,
}

struct Lines {
    log: Option<Log>,
    /// Distinguishes the changes of a process.
    next: u64,
    /// Distinguishes processes.
    process: String,
}

struct Log {
    path: PathBuf,
    /// `None`: standard output.
    file: Option<File>,
    /// The last line was not written completely: the next one must not continue it.
    is_torn: bool,
}

/// A change that was announced, and has no outcome yet.
#[must_use]
pub(crate) struct Intended(String);

impl Audit {
    /// In memory alone. `began` distinguishes this process from earlier ones.
    pub fn in_memory(began: Timestamp) -> Self {
        let process = format!("{:x}", began.as_nanos());
        Self { lines: Mutex::new(Lines { log: None, next: 0, process }), recent: Mutex::default() }
    }

    /// To this file too; `-` is standard output.
    /// Fails when it cannot be written to.
    pub fn to(path: &Path, began: Timestamp) -> Result<Self, AuditError> {
        let file = match path.as_os_str() == STANDARD_OUTPUT {
            true => None,
            false => Some(open(path).map_err(|source| AuditError::Log { path: path.to_owned(), source })?),
        };
        let audit = Self::in_memory(began);
        audit.lines.lock().log = Some(Log { path: path.to_owned(), file, is_torn: false });
        Ok(audit)
    }

    /// Makes a change between its two lines, which are written on threads that may wait for a disk. If the second one
    /// cannot be written, the change stands all the same.
    /// Fails when the change cannot be announced. Then it is not made.
    pub(crate) async fn around<T>(
        self: &Arc<Self>,
        runtime: &impl Runtime,
        author: Author,
        now: impl Fn() -> Timestamp,
        does: Does,
        what: Value,
        change: impl Future<Output = (T, Outcome)>,
    ) -> Result<T, AuditError> {
        let (audit, began) = (Arc::clone(self), now());
        let intend = move || audit.intend(&author, began, does, what);
        let intended = runtime.unblock(intend).await.ok_or(AuditError::Died)??;
        let (made, outcome) = change.await;
        let (audit, ended) = (Arc::clone(self), now());
        let end = move || audit.ended(intended, ended, outcome);
        if runtime.unblock(end).await.is_none() {
            tracing::error!("the outcome of a change is not in the audit: {}", AuditError::Died);
        }
        Ok(made)
    }

    /// Announces a change.
    /// Fails when the line cannot be written. Then the change must not be made.
    pub(crate) fn intend(
        &self,
        author: &Author,
        now: Timestamp,
        does: Does,
        what: Value,
    ) -> Result<Intended, AuditError> {
        let mut lines = self.lines.lock();
        let id = format!("{}-{}", lines.process, lines.next);
        lines.next += 1;
        let Author { who, caller: Caller { peer, certificate } } = author;
        let mut line = json!({
            "id": id, "at": stamp::show(now), "does": does, "who": who, "peer": peer, "what": what,
        });
        if let Some(certificate) = certificate {
            line["certificate"] = certificate.as_str().into();
        }
        self.write(&mut lines, &line)?;
        Ok(Intended(id))
    }

    /// Writes the outcome. If that fails, the change stands all the same, and the log of the program says so.
    pub(crate) fn ended(&self, Intended(id): Intended, now: Timestamp, outcome: Outcome) {
        let mut line = json!({"id": id, "at": stamp::show(now)});
        match outcome {
            Ok(outcome) => line["outcome"] = outcome.into(),
            Err(why) => (line["outcome"], line["why"]) = ("failed".into(), why.into()),
        }
        if let Err(error) = self.write(&mut self.lines.lock(), &line) {
            tracing::error!("the outcome of {id} is not in the audit: {error}");
        }
    }

    /// The last lines, the oldest first.
    pub fn recent(&self) -> Vec<String> {
        self.recent.lock().iter().cloned().collect()
    }

    fn write(&self, lines: &mut Lines, line: &Value) -> Result<(), AuditError> {
        let line = json_line(&line.to_string()).into_owned();
        if let Some(log) = &mut lines.log {
            log.write(&line).map_err(|source| AuditError::Log { path: log.path.clone(), source })?;
        }
        let mut recent = self.recent.lock();
        if recent.len() == RECENT_MAX {
            recent.pop_front();
        }
        recent.push_back(line);
        Ok(())
    }
}

impl Log {
    fn write(&mut self, line: &str) -> io::Result<()> {
        if let Some(file) = &mut self.file
            && !is_at(file, &self.path)?
        {
            (*file, self.is_torn) = (open(&self.path)?, false);
        }
        let bytes = format!("{}{line}\n", if self.is_torn { "\n" } else { "" });
        // Until all of it is there.
        self.is_torn = true;
        match &mut self.file {
            Some(file) => file.write_all(bytes.as_bytes()).and_then(|()| synced(file))?,
            None => io::stdout().write_all(bytes.as_bytes()).and_then(|()| io::stdout().flush())?,
        }
        self.is_torn = false;
        Ok(())
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}

/// Whether this is still the file of that path. It may have been removed, or renamed to rotate the log: then nobody
/// would find the line.
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let own = file.metadata()?;
    match fs::metadata(path) {
        Ok(there) => Ok((own.dev(), own.ino()) == (there.dev(), there.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Waits until the line is on the disk. A pipe or a terminal has none.
fn synced(file: &File) -> io::Result<()> {
    match file.sync_data() {
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
        synced => synced,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;
    use std::thread;
    use std::time::Duration;

    use super::*;

    /// A disk that was full may have taken a part of a line.
    #[test]
    fn a_line_after_one_that_failed_does_not_continue_it() {
        let folder = tempfile::tempdir().expect("a folder for the test");
        let path = folder.path().join("audit");
        drop(open(&path).expect("it can be made"));
        let file = Some(File::open(&path).expect("to read only"));
        let mut log = Log { path: path.clone(), file, is_torn: false };
        assert!(log.write("1").is_err());
        log.file = Some(open(&path).expect("to write"));
        assert!(["2", "3"].iter().all(|line| log.write(line).is_ok()));
        assert_eq!(fs::read_to_string(&path).expect("it is there"), "\n2\n3\n");
    }

    /// The thread that shows the audit serves scrapes.
    #[test]
    fn the_last_lines_are_shown_while_another_one_is_being_written() {
        let audit = Audit::in_memory(Timestamp::from_secs(1_700_000_000));
        let is_written = audit.lines.lock();
        thread::scope(|scope| {
            let (show, shown) = sync_channel(1);
            let audit = &audit;
            scope.spawn(move || show.send(audit.recent()));
            let shown = shown.recv_timeout(Duration::from_secs(10));
            drop(is_written);
            assert_eq!(shown, Ok(Vec::new()));
        });
    }
}
