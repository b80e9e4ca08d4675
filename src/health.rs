//! Whether this process should be sent requests: one shared state, read by the probes and by `grpc.health.v1`.
//!
//! In: whoever knows of a reason turns it. Out: the status now, and a watch on its changes. It decides nothing: what
//! makes the process unhealthy is its owner's business. Once draining has begun, nothing turns it back.

use std::borrow::Cow;

use parking_lot::Mutex;
use tokio::sync::watch;

/// Whether requests should be sent here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Status {
    /// Send them.
    Serving,
    /// Not now, because of this.
    NotServing(Cow<'static, str>),
    /// Never again: the process is going down.
    Draining,
}

/// The shared state; cheap to share behind an `Arc`.
#[derive(Debug)]
pub struct Health {
    status: watch::Sender<Status>,
    /// Why requests are not welcome, the oldest reason first.
    reasons: Mutex<Vec<&'static str>>,
    trouble: Mutex<Option<String>>,
}

/// The reason that there is until the first rules are there and everything listens.
const STARTING: &str = "starting";

impl Health {
    /// Not serving yet, because the process is starting.
    #[must_use]
    pub fn starting() -> Self {
        let status = watch::Sender::new(Status::NotServing(STARTING.into()));
        Self { status, reasons: Mutex::new(vec![STARTING]), trouble: Mutex::default() }
    }

    /// The status now.
    pub fn status(&self) -> Status {
        self.status.borrow().clone()
    }

    /// The status now and every change of it. A watcher that is slow sees the latest one.
    pub fn watch(&self) -> watch::Receiver<Status> {
        self.status.subscribe()
    }

    /// The process has started: requests are welcome, unless there is another reason.
    pub fn serve(&self) {
        self.withdraw(STARTING);
    }

    /// Requests are not welcome, because of `reason`, until it is withdrawn.
    pub fn refuse(&self, reason: &'static str) {
        let mut reasons = self.reasons.lock();
        if !reasons.contains(&reason) {
            reasons.push(reason);
        }
        self.turn(&reasons);
    }

    /// `reason` is none any more.
    pub fn withdraw(&self, reason: &'static str) {
        let mut reasons = self.reasons.lock();
        reasons.retain(|known| *known != reason);
        self.turn(&reasons);
    }

    /// What is wrong although requests are welcome, if anything.
    pub fn note(&self, trouble: Option<String>) {
        *self.trouble.lock() = trouble;
    }

    /// What is wrong although requests are welcome.
    pub fn degraded(&self) -> Option<String> {
        self.trouble.lock().clone()
    }

    /// The process is going down: final.
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
