//! What clients do in a run: they ask, go away, and give hits back.

use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Poll;

use tidegate_engine::limit::Algorithm;

use super::Run;
use super::batch::{Asked, Together};
use super::front::Front;
use super::names::has_calls;
use crate::oracle::{Outcome, Record, Refund};
use crate::scenario::{Ask, Cancelled, Form, Item};
use crate::world::{MILLI, SECOND, Time, lock};

impl Run {
    /// Clients ask one after the other, from this request on.
    pub(super) fn ask_from(self: &Arc<Self>, number: usize) {
        let asks = &self.scenario.asks[number..];
        let Some(ask) = asks.first() else { return };
        let (run, more) = (Arc::clone(self), asks[1..].iter().take_while(|it| it.is_read_with(ask)).count());
        self.world.at(ask.at, move |_| {
            run.ask_together(number..number + 1 + more);
            run.ask_from(number + 1 + more);
        });
    }

    /// Clients ask, and a worker reads all of it at once.
    fn ask_together(self: &Arc<Self>, numbers: Range<usize>) {
        let asks = &self.scenario.asks[numbers.clone()];
        let Some(front) = Front::of(self, asks[0].node) else { return };
        let asked = |(number, ask): (usize, &Ask)| Asked {
            limitless: ask.limitless,
            deadline: ask.deadline,
            reserves: ask.reserves.map(|reserves| (format!("r{}", reserves.id), reserves)),
            form: ask.form,
            ..Asked::new(number, ask.items.clone())
        };
        let together = Together::new(front, numbers.clone().zip(asks).map(asked).collect());
        for (place, (number, ask)) in numbers.zip(asks).enumerate() {
            if matches!(ask.form, Form::Usual | Form::Elsewhere) {
                self.ask(number, ask, (Arc::clone(&together), place));
            }
        }
    }

    /// A client asks.
    fn ask(self: &Arc<Self>, number: usize, ask: &Ask, (together, place): (Arc<Together>, usize)) {
        let task = self.answer(Arc::clone(&together), place);
        let (run, node, cancelled) = (Arc::clone(self), ask.node, ask.cancelled);
        let waits_max = match cancelled {
            Some(Cancelled::Waiting(times)) => times,
            _ => u32::MAX,
        };
        let asking = self.world.spawn_on((node, ask.worker), async move {
            let admitted = waiting_at_most(waits_max, task).await.flatten();
            let ask = &run.scenario.asks[number];
            if admitted.is_some() {
                ask.renewed.into_iter().for_each(|renewal| run.renew(number, renewal));
                ask.released.into_iter().for_each(|release| run.report_ends(number, release));
            }
            let refunded = ask.refunded.filter(|&(after, _)| run.still_counts(ask, run.world.now() + after));
            let refunded = refunded.filter(|_| run.was_charged(number));
            if let (Some(true), Some((after, at))) = (admitted, refunded) {
                // Taken out before: whatever becomes of it, the client counts on none of these hits any more.
                let places = run.places_of(number);
                let is_bucket = |it: &Record| run.limit_of(it).algorithm.is_bucket();
                // A bucket gets back a level, of whosoever hits.
                let own = &mut lock(&run.records)[places];
                own.iter_mut().for_each(|it| it.is_refunded = !is_bucket(it));
                let again = Arc::clone(&run);
                run.world.at(run.world.now() + after, move |_| again.refund(number, at));
            }
        });
        if let Some(Cancelled::After(after)) = cancelled {
            self.world.at(self.world.now() + after, move |_| {
                together.asked(place).is_gone.store(true, Relaxed);
                asking.abort();
            });
        }
    }

    /// Whether all hits of a request were counted: by a shadow they may pass without.
    fn was_charged(&self, number: usize) -> bool {
        let own = &lock(&self.records)[self.places_of(number)];
        own.iter().all(|it| it.outcome == Outcome::Admitted && !it.is_full)
    }

    /// The places of the records of a request.
    pub(super) fn places_of(&self, number: usize) -> Range<usize> {
        lock(&self.places)[number].clone()
    }

    /// Whether what was admitted surely counts when it goes back at this time: only such hits may be given back.
    fn still_counts(&self, ask: &Ask, at: Time) -> bool {
        let latest = at + self.scenario.timeout + 10 * MILLI + self.scenario.lead();
        if lock(&self.losses).iter().any(|loss| loss.until >= ask.at) {
            return false;
        }
        ask.items.iter().all(|item| {
            let limit = &self.scenario.limits[item.limit];
            let window = limit.window_secs[0] * SECOND;
            if limit.window_secs[1] != limit.window_secs[0] || limit.recorded.is_some() {
                // They may go back to another counter.
                return false;
            }
            match limit.algorithm {
                Algorithm::TokenBucket | Algorithm::LeakyBucket => true,
                Algorithm::FixedWindow | Algorithm::SlidingWindowWeighted | Algorithm::Calendar => {
                    latest < limit.window_around(window, ask.at)[1]
                }
                // Slots have releases.
                Algorithm::Concurrency => false,
                _ => latest < ask.at + window,
            }
        })
    }

    /// A client gives back what it was admitted.
    fn refund(self: &Arc<Self>, number: usize, node: usize) {
        let ask = &self.scenario.asks[number];
        if !self.is_in_epochs_of(number, node) {
            return;
        }
        // Without the last entry hits go back and slots stay.
        let without_call = |item: &Item| Item {
            last: item.last.filter(|_| !has_calls(&self.scenario.limits, item.limit)),
            ..*item
        };
        let items = ask.items.iter().map(without_call).collect();
        let asked = Asked { limitless: ask.limitless, gives: true, ..Asked::new(number, items) };
        let Some(task) = self.call(node, asked) else { return };
        let run = Arc::clone(self);
        self.world.spawn(node, async move {
            // The node may have stood still meanwhile.
            let asked = run.world.now();
            if run.still_counts(&run.scenario.asks[number], asked) {
                let done = task.await.map_or(Time::MAX, |_| run.world.now());
                let refund = |it: &Record| {
                    // Nobody asks a candidate where an exception or a record holds.
                    let is_left = it.limit >= run.scenario.limits.len() && run.limit_of(it).is_operated();
                    let done = if is_left { Time::MAX } else { done };
                    Refund { taken: *it, node, asked, done }
                };
                let own: Vec<_> = lock(&run.records)[run.places_of(number)].iter().map(refund).collect();
                lock(&run.refunds).extend(own);
            }
        });
    }

    /// Whether a node asks the counters that a request was charged to. After a reset hits go back to others.
    fn is_in_epochs_of(&self, number: usize, node: usize) -> bool {
        let epochs = lock(&self.nodes)[node].epoch_numbers;
        let own = &lock(&self.records)[self.places_of(number)];
        own.iter().all(|it| epochs[it.limit % self.scenario.limits.len()][it.key as usize] == it.epoch)
    }
}

/// Runs a future until it has waited so many times, and drops it then.
async fn waiting_at_most<T>(times: u32, future: impl Future<Output = T> + Unpin) -> Option<T> {
    let (mut future, mut left) = (Some(future), times);
    std::future::poll_fn(move |context| {
        let Some(running) = &mut future else { return Poll::Ready(None) };
        if let Poll::Ready(output) = Pin::new(running).poll(context) {
            return Poll::Ready(Some(output));
        }
        left -= 1;
        if left > 0 {
            return Poll::Pending;
        }
        future = None;
        Poll::Ready(None)
    })
    .await
}
