//! Exceptions in force: a service decides by those of its book.
//!
//! In: changes of the book, and the wall clock. Out: the exceptions that are due, put in force in the service.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use super::Book;
use tidegate_engine::time::Timestamp;
use tidegate_redis::runtime::Runtime;
use tidegate_serve::service::Service;

/// An exception that begins or ends by itself does so no later than this. The wall clock may be set meanwhile.
const TICK: Duration = Duration::from_millis(250);

impl<R: Runtime> Book<R> {
    /// Puts the exceptions in force that are due now. Returns when one begins or ends by itself.
    pub fn install(&self, service: &Service<R>) -> Option<Timestamp> {
        let compiled = self.compile(self.runtime.wall());
        service.except(compiled.exceptions);
        compiled.until
    }

    /// Puts every change in force, and every exception that begins or ends by itself, for ever.
    pub async fn keep_in_force(self: Arc<Self>, service: Arc<Service<R>>) -> Infallible {
        let mut changes = self.changes();
        loop {
            let (book, service) = (Arc::clone(&self), Arc::clone(&service));
            // 100,000 take a while to compile, and a change holds the lock while it waits for its disk.
            let until = self.runtime.unblock(move || book.install(&service)).await.flatten();
            let changed = async {
                if changes.changed().await.is_err() {
                    // The process is going down.
                    std::future::pending::<()>().await;
                }
            };
            match until {
                None => changed.await,
                Some(until) => tokio::select! {
                    biased;
                    () = changed => {}
                    () = self.passed(until) => {}
                },
            }
        }
    }

    /// Waits until the wall clock has reached this time.
    async fn passed(&self, until: Timestamp) {
        while self.runtime.wall() < until {
            self.runtime.sleep(TICK).await;
        }
    }
}
