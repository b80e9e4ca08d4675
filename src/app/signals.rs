//! Signals: those that end the process, and SIGHUP, which makes it read files again.

use std::convert::Infallible;
use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::source::file::Reread;

/// The signals that the process handles. They are registered first, so that they work at every moment: one that comes
/// before anybody waits for it is received later.
pub(super) struct Signals {
    pub(super) end: EndSignals,
    /// Once registered, SIGHUP never ends the process, whether or not anybody waits for it.
    pub(super) hangup: Signal,
}

/// The signals that end the process.
pub(super) struct EndSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    pub(super) fn register() -> io::Result<Self> {
        let hangup = signal(SignalKind::hangup())?;
        let terminate = signal(SignalKind::terminate())?;
        let interrupt = signal(SignalKind::interrupt())?;
        Ok(Self { end: EndSignals { terminate, interrupt }, hangup })
    }
}

impl EndSignals {
    /// Waits for one of them.
    pub(super) async fn received(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    /// The result of `work`; `None` if a signal comes first.
    pub(super) async fn unless_received<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            done = work => Some(done),
            () = self.received() => None,
        }
    }
}

/// Reads the files of rules and of TLS again at each SIGHUP.
pub(super) async fn reread_on_hangup(files: Vec<Reread>, mut hangup: Signal) -> Infallible {
    while hangup.recv().await.is_some() {
        tracing::info!("SIGHUP: reading the files of rules and certificates again");
        files.iter().for_each(Reread::now);
    }
    // No more signals can come: the runtime is going down.
    std::future::pending().await
}
