//! One request: checked, held while the shared store is asked, answered.

use std::cell::{Cell, OnceCell};
use std::sync::Arc;

use http::header::CONTENT_TYPE;
use http::{HeaderName, HeaderValue};
use parking_lot::Mutex;
use program::inside::{Answer, Costs, PROBLEM_JSON, Refusal, Reply, Slots};

use crate::abi::{Flow, Headers, Stream, Waker};
use crate::client::Client;
use crate::configuration::{Configured, Route};
use crate::doorbell::Doorbell;

/// Keeps another Envoy, in front of this one, from retrying a denied request: Envoy's own filter sets it too.
const RATE_LIMITED: HeaderName = HeaderName::from_static("x-envoy-ratelimited");

/// The filter of one stream.
#[derive(Default)]
pub struct Filter {
    /// The state of a request that waits.
    waiting: OnceCell<Arc<Waiting>>,
    /// The decision, if the response should have its headers.
    decided: Cell<Option<Answer>>,
    /// The slots that are free again at its end.
    slots: Cell<Option<Slots>>,
    /// The costs that are charged at its end.
    costs: Cell<Option<Costs>>,
    /// The check of its domain has answered, or failed.
    is_answered: Cell<bool>,
}

/// A request that waits.
struct Waiting {
    /// Removed when it was woken, or its stream has ended. No other thread can end the stream while it is woken.
    waker: Doorbell<Waker>,
    /// Set before it is woken. It has a lock of its own, because the stream may run before the waker's is free.
    answer: Mutex<Option<Result<Answer, Refusal>>>,
}

impl Filter {
    /// Checks whether the request may pass.
    pub fn on_request(
        &self,
        configured: &Configured,
        route: Option<&Route>,
        stream: &mut Stream<'_>,
    ) -> Flow {
        let Some((domain, own)) = configured.limits(route) else { return Flow::GoOn };
        match configured.inside.costs(domain, own, &Client(stream)) {
            Ok(costs) => self.costs.set(costs),
            Err(refusal) => return self.answered(configured, stream, Err(refusal)),
        }
        match configured.inside.check(domain, own, &Client(stream)) {
            Reply::Now(decided) => {
                self.answered(configured, stream, decided.map(|decided| configured.inside.hold(decided)))
            }
            Reply::Later(decided) => {
                stream.count(configured.counters.waited);
                let waiting = Waiting { waker: Doorbell::new(stream.waker()), answer: Mutex::default() };
                let asked = Checking(Arc::clone(self.waiting.get_or_init(|| Arc::new(waiting))));
                let inside = Arc::clone(&configured.inside);
                configured.inside.spawn(async move {
                    // Held even if nobody waits any more: then its slots are free again.
                    let answer = decided.await.map(|decided| inside.hold(decided));
                    asked.0.answer(answer);
                });
                Flow::Wait
            }
        }
    }

    /// Continues a request that waited. `None`: there is no answer yet.
    pub fn on_wake(&self, configured: &Configured, stream: &mut Stream<'_>) -> Option<Flow> {
        let answer = self.waiting.get()?.answer.lock().take()?;
        Some(self.answered(configured, stream, answer))
    }

    /// Adds the headers to a response of the upstream, if they are always sent.
    pub fn on_response(&self, _: &Configured, stream: &mut Stream<'_>) {
        if let Some(answer) = self.decided.take() {
            let set =
                |name: HeaderName, value| stream.set_header(Headers::Response, name.as_str(), &text(&value));
            answer.client.headers(set);
        }
    }

    /// Releases the slots of a request that has ended, and charges its costs, also when it was denied. Like Envoy's own
    /// filter, it charges nothing if the client left while the request waited.
    pub fn on_end(&self, configured: &Configured, stream: &mut Stream<'_>) {
        drop(self.slots.take());
        let Some(costs) = self.costs.take().filter(|_| self.is_answered.get()) else { return };
        for _ in 0..configured.inside.charge(&costs, &Client(stream)) {
            stream.count(configured.counters.cost_unknown);
        }
    }

    /// The stream is gone. From now on it is not woken.
    pub fn on_destroy(&self) {
        if let Some(waiting) = self.waiting.get() {
            waiting.waker.remove();
        }
    }

    fn answered(
        &self,
        configured: &Configured,
        stream: &mut Stream<'_>,
        answer: Result<Answer, Refusal>,
    ) -> Flow {
        self.is_answered.set(true);
        let mut answer = match answer {
            Ok(answer) => answer,
            Err(refusal) => return configured.refused(stream, &refusal),
        };
        let passes = answer.client.numbers.passes();
        if configured.metadata.has(passes) {
            set_metadata(stream, &answer);
        }
        if passes {
            stream.count(configured.counters.ok);
            self.slots.set(answer.slots.take());
            self.decided.set(configured.headers.has(passes).then_some(answer));
            return Flow::GoOn;
        }
        stream.count(configured.counters.over_limit);
        stream.add_flag("RL");
        let (mut headers, mut body) = (vec![(RATE_LIMITED, "true".to_owned())], "rate limited");
        if configured.headers.has(passes) {
            answer.client.headers(|name, value| headers.push((name, text(&value))));
            if let Some(problem) = answer.client.problem() {
                headers.push((CONTENT_TYPE, PROBLEM_JSON.to_owned()));
                body = problem;
            }
        }
        stream.respond(configured.deny_status, &headers, body, "tidegate_over_limit");
        Flow::Answered
    }
}

/// A request that is being checked. If its task panics, or is dropped with its runtime, the request is still
/// answered.
struct Checking(Arc<Waiting>);

impl Drop for Checking {
    fn drop(&mut self) {
        self.0.answer(Err(Refusal::late("the limiter has ended")));
    }
}

impl Waiting {
    /// Keeps the answer and wakes the stream, if it is still there.
    fn answer(&self, answer: Result<Answer, Refusal>) {
        self.waker.ring(|waker| {
            // It is woken once.
            self.waker.remove();
            *self.answer.lock() = Some(answer);
            waker.wake();
        });
    }
}

/// The text of a field, which is ASCII.
fn text(value: &HeaderValue) -> String {
    value.to_str().unwrap_or_default().to_owned()
}

fn set_metadata(stream: &mut Stream<'_>, answer: &Answer) {
    for (key, number) in numbers(answer) {
        stream.set_number(key, number as f64);
    }
    if let Some(rule) = &answer.rule {
        stream.set_text("rule", rule);
    }
}

/// The numbers of the tightest limit, if there is one.
fn numbers(Answer { client, .. }: &Answer) -> impl Iterator<Item = (&'static str, u64)> + use<> {
    let numbers = client.numbers;
    [
        ("limit", numbers.limit),
        ("remaining", numbers.remaining),
        ("reset", numbers.reset_secs),
        ("retry_after", numbers.retry_after_secs),
    ]
    .into_iter()
    .filter_map(|(name, number)| Some((name, number?)))
}
