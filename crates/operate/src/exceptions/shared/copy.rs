//! The copy in EXCEPTIONS_FILE of what nodes share, for a start without Redis.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use super::super::Book;
use tidegate_redis::runtime::Runtime;

/// The least time between two copies.
const COPY_INTERVAL: Duration = Duration::from_secs(1);

impl<R: Runtime> Book<R> {
    /// Keeps the file a copy of the shared exceptions, for a start without Redis. Runs for ever.
    pub async fn keep_copy(self: Arc<Self>) -> Infallible {
        let mut changes = self.changes();
        loop {
            let is_copied = self.copy().await;
            self.runtime.sleep(COPY_INTERVAL).await;
            if is_copied && changes.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    /// Copies the shared exceptions to the file, if there is one. Returns whether that succeeded.
    pub async fn copy(self: &Arc<Self>) -> bool {
        if self.shared.is_none() || self.file.is_none() {
            return true;
        }
        let book = Arc::clone(self);
        let write = move || {
            // The last copy is the newest, and only copies wait for this lock.
            let _copying = book.shared.as_ref().map(|shared| shared.copying.lock());
            let lines = book.pages.lock().lines();
            book.write(&lines)
        };
        self.runtime.unblock(write).await.is_some_and(|written| written.is_ok())
    }
}
