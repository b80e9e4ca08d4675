//! Health: whether this process should get requests. One shared state, read by the probes and by `grpc.health.v1`.
//!
//! In: reasons not to serve, set and withdrawn by other modules. Out: the current status, and a watch on its changes.
//! This module does not decide which reasons there are. Draining is final.

use std::borrow::Cow;

use parking_lot::Mutex;
use tokio::sync::watch;

/// Whether this process should get requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Status {
    /// Yes.
    Serving,
    /// Not now, for this reason.
    NotServing(Cow<'static, str>),
    /// Never again: the process is stopping.
    Draining,
}

/// The shared state.
#[derive(Debug)]
pub struct Health {
    status: watch::Sender<Status>,
    /// The reasons not to serve, the oldest first.
    reasons: Mutex<Vec<&'static str>>,
    trouble: Mutex<Option<String>>,
}

/// The reason until the first rules are loaded and everything listens.
const STARTING: &str = "starting";

impl Health {
    /// Not serving, because the process is starting.
    #[must_use]
    pub fn starting() -> Self {
        let status = watch::Sender::new(Status::NotServing(STARTING.into()));
        Self { status, reasons: Mutex::new(vec![STARTING]), trouble: Mutex::default() }
    }

    /// The current status.
    pub fn status(&self) -> Status {
        self.status.borrow().clone()
    }

    /// The current status and its changes. A slow watcher sees only the latest.
    pub fn watch(&self) -> watch::Receiver<Status> {
        self.status.subscribe()
    }

    /// The process has started. It serves, unless there is another reason not to.
    pub fn serve(&self) {
        self.withdraw(STARTING);
    }

    /// Adds a reason not to serve, which stays until it is withdrawn.
    pub fn refuse(&self, reason: &'static str) {
        let mut reasons = self.reasons.lock();
        if !reasons.contains(&reason) {
            reasons.push(reason);
        }
        self.turn(&reasons);
    }

    /// Withdraws a reason.
    pub fn withdraw(&self, reason: &'static str) {
        let mut reasons = self.reasons.lock();
        reasons.retain(|known| *known != reason);
        self.turn(&reasons);
    }

    /// Sets what is wrong while the process still serves; `None`: nothing.
    pub fn note(&self, trouble: Option<String>) {
        *self.trouble.lock() = trouble;
    }

    /// What is wrong while the process still serves.
    pub fn degraded(&self) -> Option<String> {
        self.trouble.lock().clone()
    }

    /// The process is stopping. This is final.
    pub fn drain(&self) {
        self.status.send_replace(Status::Draining);
    }

    fn turn(&self, reasons: &[&'static str]) {
        let to = reasons.first().map_or(Status::Serving, |reason| Status::NotServing((*reason).into()));
        self.status.send_if_modified(|now| {
            let changes = *now != Status::Draining && *now != to;
            if changes {
                *now = to;
            }
            changes
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draining_is_final() {
        let health = Health::starting();
        assert_eq!(health.status(), Status::NotServing("starting".into()));
        health.serve();
        assert_eq!(health.status(), Status::Serving);
        health.refuse("no rules");
        assert_eq!(health.status(), Status::NotServing("no rules".into()));
        health.drain();
        health.serve();
        health.refuse("no rules");
        assert_eq!(health.status(), Status::Draining);
    }

    #[test]
    fn every_reason_has_to_be_withdrawn() {
        let health = Health::starting();
        health.refuse("no rules");
        health.refuse("no rules");
        health.serve();
        assert_eq!(health.status(), Status::NotServing("no rules".into()));
        health.refuse("no store");
        health.withdraw("no rules");
        assert_eq!(health.status(), Status::NotServing("no store".into()));
        health.withdraw("no store");
        assert_eq!(health.status(), Status::Serving);
    }

    #[test]
    fn watchers_see_changes_only() {
        let health = Health::starting();
        health.serve();
        let mut watcher = health.watch();
        health.serve();
        assert!(!watcher.has_changed().expect("the state lives"));
        health.drain();
        assert!(watcher.has_changed().expect("the state lives"));
        assert_eq!(*watcher.borrow_and_update(), Status::Draining);
    }
}
