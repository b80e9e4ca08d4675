//! Events as lines of JSON, in a file or on standard output.
//!
//! A file is opened for each write and closed again, so it can be moved away or truncated at any time. Writing blocks
//! a thread of its own: a full pipe that nobody reads stops these lines, and nothing else.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use super::outlet::Queue;

/// Events in one write.
const EVENTS_MAX: usize = 256;
/// Only the owner reads a file that may hold names of keys.
const MODE: u32 = 0o600;

/// Where lines go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinesTo {
    /// Standard output.
    Stdout,
    /// The end of this file, which is created if it does not exist.
    File(PathBuf),
}

/// Writes lines.
pub struct Lines {
    to: LinesTo,
    is_failing: bool,
}

impl Lines {
    /// Writes to this place, and tries it at once.
    /// Fails when the file cannot be opened.
    pub fn new(to: LinesTo) -> io::Result<Self> {
        to.append("")?;
        Ok(Self { to, is_failing: false })
    }

    /// Writes events until the process ends.
    pub async fn run(mut self, mut queue: Queue) {
        loop {
            let lines = queue.take(EVENTS_MAX).await;
            if lines.is_empty() {
                return;
            }
            let (to, text) = (self.to.clone(), lines.join("\n") + "\n");
            let written = tokio::task::spawn_blocking(move || to.append(&text)).await;
            let written = written.map_err(io::Error::other).and_then(|written| written);
            queue.settle(lines.len(), written.is_ok());
            self.report(written, &queue);
        }
    }

    /// Logs the first of several failures in a row, and their end.
    fn report(&mut self, written: io::Result<()>, queue: &Queue) {
        match written {
            Ok(()) if std::mem::take(&mut self.is_failing) => {
                tracing::info!("events: {} can be written again (EVENTS_LOG)", self.to.name());
            }
            Ok(()) => {}
            Err(error) => {
                queue.failed();
                if !std::mem::replace(&mut self.is_failing, true) {
                    tracing::error!(
                        "events: {} cannot be written, events are dropped: {error} (EVENTS_LOG)",
                        self.to.name()
                    );
                }
            }
        }
    }
}

impl LinesTo {
    /// Reads what EVENTS_LOG says.
    pub fn parse(text: &str) -> Self {
        match text {
            "-" | "stdout" => Self::Stdout,
            path => Self::File(path.into()),
        }
    }

    /// What it is called in the log.
    pub fn name(&self) -> String {
        match self {
            Self::Stdout => "standard output".to_owned(),
            Self::File(path) => path.display().to_string(),
        }
    }

    fn append(&self, text: &str) -> io::Result<()> {
        match self {
            Self::Stdout => {
                let mut out = io::stdout().lock();
                out.write_all(text.as_bytes())?;
                out.flush()
            }
            Self::File(path) => {
                let mut options = OpenOptions::new();
                options.append(true).create(true).mode(MODE).open(path)?.write_all(text.as_bytes())
            }
        }
    }
}
