//! What clients do in a run: they ask, go away, and give hits back; and what they were answered.

use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::task::Poll;
use std::time::Duration;

use smallvec::SmallVec;
use tidegate_engine::limit::Algorithm;
use tidegate_serve::service::ServiceError;

use super::batch::{Asked, Together};
use super::names::{ban_of, has_calls};
use super::resets::EpochNumbers;
use super::way::{Decided, Met, Way};
use super::{Kind, LATE_MAX, Run};
use crate::oracle::{Bans, Outcome, Record, Refund, Reserving};
use crate::scenario::{Ask, Cancelled, Form, Item, Limitless, Reservation};
use crate::world::{MICRO, MILLI, SECOND, Span, Time, lock};

/// A request that waits for its answer, until this is dropped.
struct Asking(Arc<AtomicU64>);

impl Asking {
    fn begin(asking: &Arc<AtomicU64>) -> Self {
        asking.fetch_add(1, Relaxed);
        Self(Arc::clone(asking))
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

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
        let Some(way) = Way::through(self, asks[0].node) else { return };
        let asked = |(number, ask): (usize, &Ask)| Asked {
            number,
            items: ask.items.clone(),
            limitless: ask.limitless,
            gives: false,
            token: None,
            renews: None,
            reserves: ask.reserves.map(|reserves| (format!("r{}", reserves.id), reserves)),
            form: ask.form,
            is_gone: AtomicBool::new(false),
        };
        let together = Together::new(way, numbers.clone().zip(asks).map(asked).collect());
        for (place, (number, ask)) in numbers.zip(asks).enumerate() {
            if matches!(ask.form, Form::Usual | Form::Elsewhere) {
                self.ask(number, ask, (Arc::clone(&together), place));
            }
        }
    }

    /// A client asks.
    fn ask(self: &Arc<Self>, number: usize, ask: &Ask, (together, place): (Arc<Together>, usize)) {
        let task = self.answer(Arc::clone(&together), place, ask.node, ask.deadline);
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
                let limits = &run.scenario.limits;
                let is_bucket = |it: &Record| limits[it.limit % limits.len()].algorithm.is_bucket();
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
        let Some(task) = self.request(number, node, (items, ask.limitless), -1) else { return };
        let run = Arc::clone(self);
        self.world.spawn(node, async move {
            // The node may have stood still meanwhile.
            let asked = run.world.now();
            if run.still_counts(&run.scenario.asks[number], asked) {
                let done = task.await.map_or(Time::MAX, |_| run.world.now());
                let limits = &run.scenario.limits;
                let refund = |it: &Record| {
                    // Nobody asks a candidate where an exception or a record holds.
                    let limit = &limits[it.limit % limits.len()];
                    let is_left = it.limit >= limits.len() && limit.excepted.or(limit.recorded).is_some();
                    let done = if is_left { Time::MAX } else { done };
                    Refund { of: (it.limit, it.key), epoch: it.epoch, hits: it.hits, node, asked, done }
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

    /// A request to a node: whether it was admitted, or `None` without an answer. `sign`: -1 gives hits back.
    pub(super) fn request(
        self: &Arc<Self>,
        number: usize,
        node: usize,
        (items, limitless): (Vec<Item>, Option<Limitless>),
        sign: i8,
    ) -> Option<Pin<Box<impl Future<Output = Option<bool>> + Send + use<>>>> {
        let (form, is_gone) = (Form::Usual, AtomicBool::new(false));
        let (gives, token, renews, reserves) = (sign < 0, None, None, None);
        let asked = Asked { number, items, limitless, gives, token, renews, reserves, form, is_gone };
        Some(self.answer(Together::new(Way::through(self, node)?, vec![asked]), 0, node, None))
    }

    /// The answer to a request of a batch, as of [`request`](Self::request).
    pub(super) fn answer(
        self: &Arc<Self>,
        together: Arc<Together>,
        place: usize,
        node: usize,
        deadline: Option<Time>,
    ) -> Pin<Box<impl Future<Output = Option<bool>> + Send + use<>>> {
        let run = Arc::clone(self);
        // Boxed, because it is large and handed on.
        Box::pin(async move {
            let (way, it) = (&together.way, together.asked(place));
            let (asked, _asking) = (run.world.now(), Asking::begin(&way.asking));
            let items = it.asking(&run);
            let (number, sign) = (it.number, if it.gives { -1 } else { 1 });
            let first = if sign > 0 {
                let renews = it.renews.map(|(of, _)| of);
                let reserves = it.reserves.as_ref().map(|(_, reserves)| *reserves);
                let all = (&items[..], renews, reserves);
                run.note((number, node), (asked, deadline), all, (way.version, &way.epochs))
            } else {
                usize::MAX
            };
            let answered = match together.take(&run, place) {
                Some(decided) => Ok(decided),
                None => {
                    let read = |request: &mut _| together.read(&run, place, request);
                    way.finish(read, deadline.map(Duration::from_nanos)).await
                }
            };
            let answered = answered.map(|it_is| (it.due(&run), it_is));
            run.answered((number, first), node, (asked, deadline), &items, sign, answered)
        })
    }

    /// What a client was answered.
    #[allow(clippy::too_many_arguments, reason = "all of it is one answer")]
    fn answered(
        &self,
        (number, first): (usize, usize),
        node: usize,
        (asked, deadline): (Time, Option<Time>),
        items: &[Item],
        sign: i8,
        answered: Result<(SmallVec<[Met; 4]>, Decided), ServiceError>,
    ) -> Option<bool> {
        let now = self.world.now();
        let what = if sign < 0 { "gives back" } else { "asks for" };
        let timeout = self.scenario.timeout + self.waits_for_records(items.iter().map(|item| item.limit));
        let budget = timeout.min(deadline.unwrap_or(Time::MAX)) + LATE_MAX;
        if now - asked > budget && !self.stood_still(node, asked) {
            self.wrong(
                Kind::TooLate,
                format!(
                    "request {number} waited for {} us, its budget was {} us",
                    (now - asked) / MICRO,
                    budget / MICRO
                ),
            );
        }
        let decided = match answered {
            Ok((due, answered)) if answered.met == due => answered,
            Ok((due, answered)) => {
                let what = format!("request {number} has an answer of {:?}, not of {due:?}", answered.met);
                self.wrong(Kind::WrongAnswer, what);
                return None;
            }
            Err(error) => {
                if sign > 0 {
                    self.keep_reported(number, first);
                }
                lock(&self.codes)[2] += 1;
                if deadline.is_none() {
                    let waited = Span { node, from: asked, until: now };
                    lock(&self.errors).push((waited, format!("request {number}: {error}")));
                }
                self.world.note(|| format!("node {node}: request {number} {what} {items:?}: {error}"));
                return None;
            }
        };
        let is_ok = decided.is_ok;
        lock(&self.codes)[usize::from(!is_ok)] += 1;
        self.world.note(|| {
            let lasted = (now - asked) / MICRO;
            format!(
                "node {node}: request {number} {what} {items:?}: {} after {lasted} us",
                if is_ok { "OK" } else { "over" }
            )
        });
        if sign < 0 {
            return Some(is_ok);
        }
        let passes = self.judge_answer((number, first), items, &decided, deadline.is_none());
        self.keep_tokens(first, items, &decided);
        Some(passes)
    }

    /// Notes that a request had an error for an answer: its node sends later what it reported.
    fn keep_reported(&self, number: usize, first: usize) {
        let mut records = lock(&self.records);
        for it in records[first..].iter_mut().take_while(|it| it.request == number) {
            // Nobody knows by which record it was decided, and nobody keeps what a candidate was asked.
            let is_known = self.scenario.limits.get(it.limit).is_some_and(|limit| limit.recorded.is_none());
            it.is_kept = it.is_reported && is_known;
        }
    }

    /// Notes what a request asks, and what it asks of candidates. Returns the place of its first record.
    fn note(
        &self,
        (number, node): (usize, usize),
        (asked, deadline): (Time, Option<Time>),
        (items, renews, reserves): (&[Item], Option<usize>, Option<Reservation>),
        (version, epochs): (usize, &EpochNumbers),
    ) -> usize {
        let timeout = self.scenario.timeout + self.waits_for_records(items.iter().map(|item| item.limit));
        let mut records = lock(&self.records);
        let first = records.len();
        let limits = &self.scenario.limits;
        let record = |item: &Item, candidate: Option<u32>| {
            let limit = &limits[item.limit];
            let ban = ban_of(limits, &self.rule_ids, item.limit, item.key);
            // In a Cluster a ban and its limit have two slots.
            let has_slots = limit.shape.ban.is_some();
            Record {
                request: number,
                node,
                limit: item.limit + candidate.map_or(0, |_| limits.len()),
                key: item.key,
                epoch: epochs[item.limit][item.key as usize],
                hits: item.hits,
                asked,
                // A server does nothing after the deadline of a call.
                answered: asked + timeout + LATE_MAX,
                requests: candidate.unwrap_or(limit.requests[version]),
                share: limit.share(item.last),
                id: item.last.filter(|_| limit.algorithm == Algorithm::Concurrency),
                renews,
                reserving: reserves.map(|Reservation { id, is_commit, .. }| Reserving {
                    id,
                    is_commit,
                    found: None,
                }),
                window: limit.window_secs[version] * SECOND,
                rule_window: limit.window_secs[version] * SECOND,
                is_reported: limit.is_reported,
                is_kept: false,
                is_refunded: false,
                is_full: false,
                remaining: 0,
                reset_nanos: 0,
                is_single: items.len() == 1,
                is_plain: items.len() == 1 && !has_slots,
                deadline,
                outcome: Outcome::Unknown,
                bans: Bans {
                    of: ban.filter(|_| candidate.is_none() && !self.scenario.modes.shadow),
                    ..Bans::default()
                },
            }
        };
        records.extend(items.iter().map(|item| record(item, None)));
        let candidates = items.iter().filter_map(|item| Some(record(item, Some(self.candidate_of(item)?))));
        records.extend(candidates);
        lock(&self.places).get_mut(number).into_iter().for_each(|places| *places = first..records.len());
        first
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
