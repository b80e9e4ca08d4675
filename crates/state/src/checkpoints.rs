//! Writes the counters of the process: checkpoints while it runs, by a thread of their own, and all counters at its
//! end.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::Mutex;

use crate::folder::{File, Folder, FolderError};
use crate::outcome::Outcome;
use crate::start::{Author, header, write_nothing};
use crate::writer::Writing;
use tidegate_engine::clock::Clock;
use tidegate_engine::memory::MemoryStore;

/// After so many bytes of a checkpoint the thread sleeps, so that decisions on its core go first.
const PAUSE_BYTES: usize = 1 << 20;
const PAUSE: Duration = Duration::from_millis(1);

/// The writer of one process.
#[derive(Debug)]
pub struct Checkpoints {
    state: Arc<Saved>,
    running: Mutex<Option<Running>>,
}

/// The data, and the folder.
#[derive(Debug)]
struct Saved {
    folder: Folder,
    store: Arc<MemoryStore>,
    clock: Clock,
    author: Author,
    totals: Mutex<CheckpointTotals>,
}

#[derive(Debug)]
struct Running {
    /// The thread ends when this is dropped.
    stop: SyncSender<()>,
    thread: JoinHandle<()>,
}

/// How often checkpoints were written, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckpointTotals {
    /// Complete ones.
    pub written: u64,
    /// Failures.
    pub failed: u64,
}

impl Checkpoints {
    /// Writes nothing yet.
    pub fn new(folder: Folder, author: Author, store: Arc<MemoryStore>, clock: Clock) -> Self {
        let state = Saved { folder, store, clock, author, totals: Mutex::default() };
        Self { state: Arc::new(state), running: Mutex::default() }
    }

    /// Marks the folder as that of a running process, which began with this outcome: if the process is killed, the
    /// next one sees that. The start is counted first: if that fails, counters that were not used stay where they
    /// are.
    pub fn mark(&self, outcome: Outcome) -> Result<(), FolderError> {
        let Saved { folder, clock, author, .. } = &*self.state;
        folder.note_start(author.sequence)?;
        match outcome {
            Outcome::Clean => folder.consume(),
            // The checkpoint of the killed process. After any other outcome a checkpoint is older than the file that
            // was refused.
            Outcome::Unclean if folder.has(File::Checkpoint) => folder.keep_names(),
            _ => write_nothing(folder, File::Checkpoint, author, clock),
        }
    }

    /// Writes checkpoints for ever, each `interval` after the last one was written. `prepare` is called first, on the
    /// thread that writes.
    /// Fails when the system gives no thread.
    pub fn start(&self, interval: Duration, prepare: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let (stop, stopped) = sync_channel(0);
        let state = Arc::clone(&self.state);
        let thread = thread::Builder::new().name("checkpoints".to_owned()).spawn(move || {
            prepare();
            while stopped.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                state.write_checkpoint(&stopped);
            }
        })?;
        *self.running.lock() = Some(Running { stop, thread });
        Ok(())
    }

    /// Writes a complete checkpoint now. Returns its number of counters.
    pub fn write(&self) -> Result<u64, FolderError> {
        self.state.write(File::Checkpoint, |_| Ok(()))
    }

    /// How often checkpoints were written.
    pub fn totals(&self) -> CheckpointTotals {
        *self.state.totals.lock()
    }

    /// Where checkpoints are written.
    pub fn folder(&self) -> &Folder {
        &self.state.folder
    }

    /// Ends the thread. A checkpoint that it had begun is given up.
    pub fn stop(&self) {
        if let Some(Running { stop, thread }) = self.running.lock().take() {
            drop(stop);
            // A thread that panicked writes no more either.
            let _ = thread.join();
        }
    }

    /// Ends the thread, and writes all counters. No decision may be made any more. Returns the number of counters.
    /// Fails when they cannot be written: then they are lost.
    pub fn finish(&self) -> Result<u64, FolderError> {
        self.stop();
        self.state.write(File::Counters, |_| Ok(()))
    }
}

impl Saved {
    fn write(&self, file: File, pause: impl FnMut(usize) -> io::Result<()>) -> Result<u64, FolderError> {
        let Self { folder, store, clock, author, .. } = self;
        let header = header(author, clock, file == File::Counters);
        let writing = Writing { header: &header, store, clock, machine: &*author.machine };
        folder.write(file, &writing, pause)
    }

    /// Writes a checkpoint in small steps, until `stopped`.
    fn write_checkpoint(&self, stopped: &Receiver<()>) {
        let mut since_pause = 0;
        let mut is_stopped = false;
        let written = self.write(File::Checkpoint, |bytes| {
            since_pause += bytes;
            if since_pause >= PAUSE_BYTES {
                since_pause = 0;
                thread::sleep(PAUSE);
            }
            is_stopped = stopped.try_recv() != Err(TryRecvError::Empty);
            if is_stopped { Err(io::ErrorKind::Interrupted.into()) } else { Ok(()) }
        });
        let mut totals = self.totals.lock();
        match written {
            Ok(counters) => {
                totals.written += 1;
                tracing::debug!("state: a checkpoint of {counters} counters was written");
            }
            Err(_) if is_stopped => {}
            Err(error) => {
                totals.failed += 1;
                tracing::error!("state: no checkpoint: {error}");
            }
        }
    }
}
