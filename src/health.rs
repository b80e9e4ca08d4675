//! Whether this process should be sent requests: one shared state, read by the probes and by `grpc.health.v1`.
//!
//! In: whoever knows of a reason turns it. Out: the status now, and a watch on its changes. It decides nothing: what
//! makes the process unhealthy is its owner's business. Once draining has begun, nothing turns it back.

use std::borrow::Cow;

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
pub struct Health(watch::Sender<Status>);

impl Health {
    /// Not serving yet, because the process is starting.
    #[must_use]
    pub fn starting() -> Self {
        Self(watch::Sender::new(Status::NotServing("starting".into())))
    }

    /// The status now.
    pub fn status(&self) -> Status {
        self.0.borrow().clone()
    }

    /// The status now and every change of it. A watcher that is slow sees the latest one.
    pub fn watch(&self) -> watch::Receiver<Status> {
        self.0.subscribe()
    }

    /// Requests are welcome, unless draining has begun.
    pub fn serve(&self) {
        self.turn(Status::Serving);
    }

    /// Requests are not welcome, because of `reason`. (While counters live in memory there is no such reason.)
    #[cfg(test)]
    pub fn refuse(&self, reason: impl Into<Cow<'static, str>>) {
        self.turn(Status::NotServing(reason.into()));
    }

    /// The process is going down: final.
    pub fn drain(&self) {
        self.turn(Status::Draining);
    }

    fn turn(&self, to: Status) {
        self.0.send_if_modified(|now| {
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
