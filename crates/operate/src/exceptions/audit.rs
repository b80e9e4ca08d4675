//! The audit: a line of JSON before a change, and a line with its outcome after it, under one id.
//!
//! Lines go to AUDIT_LOG and to memory, where the last ones stay for `GET /admin/audit`.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use serde_json::{Value, json};

use tidegate_engine::stamp;
use tidegate_engine::text::json_line;
use tidegate_engine::time::Timestamp;

/// The number of lines in memory.
const RECENT_MAX: usize = 1_000;

/// This name means standard output.
const STANDARD_OUTPUT: &str = "-";

/// Why a change cannot be audited.
#[derive(Debug, thiserror::Error)]
#[error("AUDIT_LOG: cannot write {}: {source}", path.display())]
pub struct AuditError {
    path: PathBuf,
    source: io::Error,
}

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
pub struct Audit(Mutex<Lines>);

struct Lines {
    log: Option<Log>,
    recent: VecDeque<String>,
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
pub struct Intended(String);

impl Audit {
    /// In memory alone. `began` distinguishes this process from earlier ones.
    pub fn in_memory(began: Timestamp) -> Self {
        let process = format!("{:x}", began.as_nanos());
        Self(Mutex::new(Lines { log: None, recent: VecDeque::new(), next: 0, process }))
    }

    /// To this file too; `-` is standard output.
    /// Fails when it cannot be written to.
    pub fn to(path: &Path, began: Timestamp) -> Result<Self, AuditError> {
        let file = match path.as_os_str() == STANDARD_OUTPUT {
            true => None,
            false => Some(open(path).map_err(|source| AuditError { path: path.to_owned(), source })?),
        };
        let audit = Self::in_memory(began);
        audit.0.lock().log = Some(Log { path: path.to_owned(), file, is_torn: false });
        Ok(audit)
    }

    /// Announces a change.
    /// Fails when the line cannot be written. Then the change must not be made.
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

    /// Writes the outcome. If that fails, the change stands all the same, and the log of the program says so.
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
        if let Some(log) = &mut self.log {
            log.write(&line).map_err(|source| AuditError { path: log.path.clone(), source })?;
        }
        if self.recent.len() == RECENT_MAX {
            self.recent.pop_front();
        }
        self.recent.push_back(line);
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
