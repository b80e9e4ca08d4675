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

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::FutureExt as _;
    use serde_json::{Value, json};
    use tokio::task::yield_now;

    use super::*;
    use crate::audit::{Audit, Author, Caller};
    use crate::exceptions::{Authored, WantedChange};
    use tidegate_engine::decision::Code;
    use tidegate_engine::request::Request;
    use tidegate_serve::clock::wall;
    use tidegate_serve::service::{Batch, fixture};

    const RULES: &str = "
domain: shop
descriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 1000000000}}]
";

    /// Denies this user for an hour.
    fn deny(book: &Book, user: &str) {
        let until = Some(in_an_hour());
        let own = json!({"entries": [{"key": "user", "value": user}], "deny": true});
        put(book, Authored { until, ..record(user, own) });
    }

    fn in_an_hour() -> Timestamp {
        wall().plus(3_600_000_000_000)
    }

    fn record(id: &str, mut own: Value) -> Authored {
        (own["domain"], own["who"], own["why"]) = ("shop".into(), "jane".into(), "a test".into());
        Authored::of_client(id, &own).expect("good")
    }

    fn put(book: &Book, record: Authored) {
        let wanted = WantedChange::Put { record, may_replace: false };
        let caller = Caller { peer: String::new(), certificate: None };
        let author = Author { who: "jane".to_owned(), caller };
        book.change_here(&wanted, &author, wall()).expect("done");
    }

    async fn denied(service: &Service, user: &str) {
        let is_denied = || {
            let mut batch = Batch::default();
            batch.put(Request::new("shop", 1).descriptor(&[("user", user)]));
            let (live, mut code) = (service.snapshot().expect("rules"), None);
            service.decide(live.in_force(), &batch, |_, _, decision| code = decision.map(|it| it.code));
            code == Some(Code::OverLimit)
        };
        while !is_denied() {
            yield_now().await;
        }
    }

    /// The second one is made right after the first was put in force, and before anybody waits for changes or for its end.
    #[tokio::test]
    async fn a_change_is_in_force_though_others_were_being_put_in_force() {
        let book = Arc::new(Book::new(Audit::in_memory(wall())));
        let service = Arc::new(fixture::service(Some(RULES), &fixture::metrics()));
        deny(&book, "alice");
        let mut keeps = pin!(Arc::clone(&book).keep_in_force(Arc::clone(&service)));
        assert!(keeps.as_mut().now_or_never().is_none());
        denied(&service, "alice").await;
        deny(&book, "bob");
        let in_force = tokio::time::timeout(Duration::from_secs(10), async {
            tokio::select! {
                never = keeps => match never {},
                () = denied(&service, "bob") => {}
            }
        });
        in_force.await.expect("it does not wait for the end of the first");
    }

    /// Their ids are in another order than their times.
    #[tokio::test]
    async fn the_latest_of_those_that_are_due_decides_and_is_named() {
        let book = Book::new(Audit::in_memory(wall()));
        let service = fixture::service(Some(RULES), &fixture::metrics());
        let of = |requests: u64| json!({"entries": [{"key": "user", "value": "alice"}], "requests_per_unit": requests});
        put(&book, Authored { from: Some(in_an_hour()), ..record("c-not-due", of(1)) });
        put(&book, record("b-earlier", of(2)));
        put(&book, record("a-latest", of(3)));
        book.install(&service);
        let live = service.snapshot().expect("rules");
        let entries = [("user", "alice")];
        let request = Request::new("shop", 1).descriptor(&entries);
        let shown = service.explain(live.in_force(), &request, |shown| shown.to_string()).await;
        let shown = shown.expect("memory answers");
        let named = ["a-latest", "b-earlier", "c-not-due"].map(|id| shown.contains(id));
        assert_eq!(named, [true, false, false], "{shown}");
        assert!(shown.contains("3 instead of 1000000000"), "{shown}");
    }
}
