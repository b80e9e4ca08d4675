//! The audit: a line of JSON before a change, and a line with its outcome after it, under one id.
//!
//! Lines go to AUDIT_LOG and to memory, where the last ones stay for `GET /admin/audit`.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::stamp;
use tidegate_engine::text::json_line;
use tidegate_engine::time::Timestamp;

/// How many lines stay in memory.
const RECENT_MAX: usize = 1_000;

/// Where standard output is meant instead of a file.
const STANDARD_OUTPUT: &str = "-";

/// Why something cannot be audited.
#[derive(Debug, thiserror::Error)]
#[error("AUDIT_LOG: cannot write {}: {source}", path.display())]
pub struct AuditError {
    path: PathBuf,
    source: io::Error,
}

/// Who asks for a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Author {
    /// As they say.
    pub who: String,
    /// As we know.
    pub caller: Caller,
}

/// Where a request comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The address; empty on a unix socket.
    pub peer: String,
    /// The name in the client's certificate, if it is that which allows the request.
    pub certificate: Option<String>,
}

/// Where lines go.
pub struct Audit(Mutex<Lines>);

struct Lines {
    log: Option<Log>,
    recent: VecDeque<String>,
    /// Tells the changes of a process apart.
    next: u64,
    /// Tells processes apart.
    process: String,
}

struct Log {
    path: PathBuf,
    /// `None`: standard output.
    file: Option<File>,
}

/// A change that was announced, and has no outcome yet.
#[must_use]
pub struct Intended(String);

impl Audit {
    /// In memory alone. `began` tells this process from those before.
    pub fn in_memory(began: Timestamp) -> Self {
        let process = format!("{:x}", began.as_nanos());
        Self(Mutex::new(Lines { log: None, recent: VecDeque::new(), next: 0, process }))
    }

    /// To this file too; `-` is standard output.
    ///
    /// # Errors
    /// When it cannot be written to.
    pub fn to(path: &Path, began: Timestamp) -> Result<Self, AuditError> {
        let open = || OpenOptions::new().append(true).create(true).mode(0o600).open(path);
        let file = match path.as_os_str() == STANDARD_OUTPUT {
            true => None,
            false => Some(open().map_err(|source| AuditError { path: path.to_owned(), source })?),
        };
        let audit = Self::in_memory(began);
        audit.0.lock().log = Some(Log { path: path.to_owned(), file });
        Ok(audit)
    }

    /// Announces a change.
    ///
    /// # Errors
    /// When the line cannot be written. Then the change must not be done.
    pub fn intend(
        &self,
        author: &Author,
        now: Timestamp,
        does: &str,
        what: Value,
    ) -> Result<Intended, AuditError> {
        let mut lines = self.0.lock();
        let id = format!("{}-{}", lines.process, lines.next);
        lines.next += 1;
        let Author { who, caller: Caller { peer, certificate } } = author;
        let mut line = json!({
            "id": id, "at": stamp::show(now), "does": does, "who": who, "peer": peer, "what": what,
        });
        if let Some(certificate) = certificate {
            line["certificate"] = certificate.as_str().into();
        }
        lines.write(&line)?;
        Ok(Intended(id))
    }

    /// Writes what became of it. If that fails, the change stands nevertheless; the log of the program says so.
    pub fn ended(&self, Intended(id): Intended, now: Timestamp, outcome: Result<&str, String>) {
        let mut line = json!({"id": id, "at": stamp::show(now)});
        match outcome {
            Ok(outcome) => line["outcome"] = outcome.into(),
            Err(why) => (line["outcome"], line["why"]) = ("failed".into(), why.into()),
        }
        if let Err(error) = self.0.lock().write(&line) {
            tracing::error!("the outcome of {id} is not in the audit: {error}");
        }
    }

    /// The last lines, the oldest first.
    pub fn recent(&self) -> Vec<String> {
        self.0.lock().recent.iter().cloned().collect()
    }
}

impl Lines {
    fn write(&mut self, line: &Value) -> Result<(), AuditError> {
        let line = json_line(&line.to_string()).into_owned();
        if let Some(Log { path, file }) = &mut self.log {
            let bytes = format!("{line}\n");
            let written = match file {
                Some(file) => file.write_all(bytes.as_bytes()).and_then(|()| synced(file)),
                None => io::stdout().write_all(bytes.as_bytes()).and_then(|()| io::stdout().flush()),
            };
            written.map_err(|source| AuditError { path: path.clone(), source })?;
        }
        if self.recent.len() == RECENT_MAX {
            self.recent.pop_front();
        }
        self.recent.push_back(line);
        Ok(())
    }
}

/// Waits until the disk has it. A pipe or a terminal has none.
fn synced(file: &File) -> io::Result<()> {
    match file.sync_data() {
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
        synced => synced,
    }
}
