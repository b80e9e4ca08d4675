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
    told: watch::Sender<Status>,
    reasons: Mutex<Reasons>,
}

/// What the status comes from.
#[derive(Debug)]
struct Reasons {
    process: Status,
    /// What is wrong with the shared store, and whether requests are unwelcome because of it.
    store: Option<(String, bool)>,
}

impl Health {
    /// Not serving yet, because the process is starting.
    #[must_use]
    pub fn starting() -> Self {
        let process = Status::NotServing("starting".into());
        Self {
            told: watch::Sender::new(process.clone()),
            reasons: Mutex::new(Reasons { process, store: None }),
        }
    }

    /// The status now.
    pub fn status(&self) -> Status {
        self.told.borrow().clone()
    }

    /// What is wrong although requests are welcome.
    pub fn degraded(&self) -> Option<String> {
        self.reasons.lock().store.as_ref().map(|(why, _)| why.clone())
    }

    /// The status now and every change of it. A watcher that is slow sees the latest one.
    pub fn watch(&self) -> watch::Receiver<Status> {
        self.told.subscribe()
    }

    /// Requests are welcome, unless draining has begun or the shared store stands against it.
    pub fn serve(&self) {
        self.turn(Status::Serving);
    }

    /// Requests are not welcome, because of `reason`.
    #[cfg(test)]
    pub fn refuse(&self, reason: impl Into<Cow<'static, str>>) {
        self.turn(Status::NotServing(reason.into()));
    }

    /// What is wrong with the shared store, if anything; `refuses`: requests are not welcome because of it.
    pub fn store(&self, trouble: Option<String>, refuses: bool) {
        let mut reasons = self.reasons.lock();
        reasons.store = trouble.map(|why| (why, refuses));
        self.tell(&reasons);
    }

    /// The process is going down: final.
    pub fn drain(&self) {
        self.turn(Status::Draining);
    }

    fn turn(&self, to: Status) {
        let mut reasons = self.reasons.lock();
        if reasons.process != Status::Draining {
            reasons.process = to;
        }
        self.tell(&reasons);
    }

    fn tell(&self, reasons: &Reasons) {
        let to = match (&reasons.process, &reasons.store) {
            (Status::Serving, Some((why, true))) => Status::NotServing(why.clone().into()),
            (process, _) => process.clone(),
        };
        self.told.send_if_modified(|now| {
            let changes = *now != to;
            *now = to;
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
    fn the_shared_store_can_stand_against_it() {
        let health = Health::starting();
        health.store(Some("gone".to_owned()), true);
        health.serve();
        assert_eq!(health.status(), Status::NotServing("gone".into()));
        health.store(Some("gone".to_owned()), false);
        assert_eq!((health.status(), health.degraded()), (Status::Serving, Some("gone".to_owned())));
        health.store(None, false);
        assert_eq!((health.status(), health.degraded()), (Status::Serving, None));
    }

    #[test]
    fn watchers_are_told_of_changes_only() {
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
