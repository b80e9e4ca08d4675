//! One call of a node: what a client asks is noted for the oracle, the node decides, and the answer is judged.
//!
//! In: a request of a batch. Out: whether it was admitted, and a record of each counter that it asked.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use smallvec::SmallVec;
use tidegate_serve::service::ServiceError;

use super::batch::{Asked, Together};
use super::decided::Decided;
use super::front::Front;
use super::names::ban_of;
use super::{Kind, LATE_MAX, Run};
use crate::oracle::{Bans, Outcome, Record, Reserving};
use crate::scenario::Item;
use crate::world::{MICRO, SECOND, Span, Time, lock};

/// A call that waits for its answer.
pub(super) struct Call<'t> {
    pub(super) it: &'t Asked,
    node: usize,
    /// When the client asked.
    asked: Time,
    /// What is asked of each counter.
    pub(super) items: SmallVec<[Item; 4]>,
    /// The place of its first record. One that gives hits back has none.
    pub(super) first: usize,
}

/// A request that waits for its answer, until this is dropped.
pub(super) struct Asking(Arc<AtomicU64>);

impl Asking {
    pub(super) fn begin(asking: &Arc<AtomicU64>) -> Self {
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
    /// Asks a node alone, unless it is away. The future says whether the request was admitted; `None`: it had no answer.
    pub(super) fn call(
        self: &Arc<Self>,
        node: usize,
        asked: Asked,
    ) -> Option<Pin<Box<impl Future<Output = Option<bool>> + Send + use<>>>> {
        Some(self.answer(Together::new(Front::of(self, node)?, vec![asked]), 0))
    }

    /// The same of a request of a batch, by its place there.
    pub(super) fn answer(
        self: &Arc<Self>,
        together: Arc<Together>,
        place: usize,
    ) -> Pin<Box<impl Future<Output = Option<bool>> + Send + use<>>> {
        let run = Arc::clone(self);
        // Boxed, because it is large and handed on.
        Box::pin(async move {
            let (front, it) = (&together.front, together.asked(place));
            let (asked, _asking) = (run.world.now(), Asking::begin(&front.asking));
            let (node, items) = (front.node, it.asking(&run));
            let first = if it.gives { usize::MAX } else { run.note(front, it, &items) };
            let call = Call { it, node, asked, items, first };
            let answered = match together.take(&run, place) {
                Some(decided) => Ok(decided),
                None => {
                    let read = |request: &mut _| together.read(&run, place, request);
                    front.finish(read, it.deadline.map(Duration::from_nanos)).await
                }
            };
            run.answered(&call, answered)
        })
    }

    /// What a client was answered: whether its request was admitted.
    fn answered(&self, call: &Call<'_>, answered: Result<Decided, ServiceError>) -> Option<bool> {
        let (Call { it, node, asked, items, .. }, now) = (call, self.world.now());
        let Asked { number, gives, deadline, .. } = it;
        let budget = self.timeout_of(items).min(deadline.unwrap_or(Time::MAX)) + LATE_MAX;
        if now - asked > budget && !self.stood_still(*node, *asked) {
            let (waited, budget) = ((now - asked) / MICRO, budget / MICRO);
            let what = format!("request {number} waited for {waited} us, its budget was {budget} us");
            self.wrong(Kind::TooLate, what);
        }
        let story = |answer: &str| {
            let what = if *gives { "gives back" } else { "asks for" };
            let under =
                it.reserves.as_ref().map(|(_, reserves)| format!(" under {reserves:?}")).unwrap_or_default();
            format!("node {node}: request {number} {what} {items:?}{under}: {answer}")
        };
        let decided = match answered {
            Ok(decided) => decided,
            Err(error) => {
                if !gives {
                    self.keep_reported(*number, call.first);
                }
                lock(&self.codes)[2] += 1;
                if deadline.is_none() {
                    self.note_error((*node, *asked), format!("request {number}: {error}"));
                }
                self.world.note(|| story(&error.to_string()));
                return None;
            }
        };
        let due = it.due(self);
        if decided.met != due {
            let what = format!("request {number} has an answer of {:?}, not of {due:?}", decided.met);
            self.wrong(Kind::WrongAnswer, what);
            return None;
        }
        let is_ok = decided.is_ok;
        lock(&self.codes)[usize::from(!is_ok)] += 1;
        self.world.note(|| {
            let answer = if is_ok { "OK" } else { "over" };
            story(&format!("{answer} after {} us", (now - asked) / MICRO))
        });
        if *gives {
            return Some(is_ok);
        }
        let passes = self.judge_answer(call, &decided);
        self.keep_tokens(call, &decided);
        Some(passes)
    }

    /// Notes an error for an answer, to who asked then.
    pub(super) fn note_error(&self, (node, from): (usize, Time), what: String) {
        lock(&self.errors).push((Span { node, from, until: self.world.now() }, what));
    }

    /// How long a request for these may wait.
    fn timeout_of(&self, items: &[Item]) -> Time {
        self.scenario.timeout + self.waits_for_records(items)
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
    fn note(&self, front: &Front, it: &Asked, items: &[Item]) -> usize {
        let mut records = lock(&self.records);
        let first = records.len();
        records.extend(self.asked_of(front, it, items));
        lock(&self.places).get_mut(it.number).into_iter().for_each(|places| *places = first..records.len());
        first
    }

    /// What is asked of each counter, and then of each candidate.
    pub(super) fn asked_of(&self, front: &Front, it: &Asked, items: &[Item]) -> impl Iterator<Item = Record> {
        let (asked, timeout) = (self.world.now(), self.timeout_of(items));
        let limits = &self.scenario.limits;
        let record = move |item: &Item, candidate: Option<u32>| {
            let limit = &limits[item.limit];
            let ban = ban_of(limits, &self.rule_ids, item.limit, item.key);
            // In a Cluster a ban and its limit have two slots.
            let has_slots = limit.shape.ban.is_some();
            Record {
                request: it.number,
                node: front.node,
                process: front.process,
                limit: item.limit + candidate.map_or(0, |_| limits.len()),
                key: item.key,
                epoch: front.epochs[item.limit][item.key as usize],
                hits: item.hits,
                asked,
                // A server does nothing after the deadline of a call.
                answered: asked + timeout + LATE_MAX,
                requests: candidate.unwrap_or(limit.requests[front.version]),
                share: limit.share(item.last),
                id: item.last.filter(|_| limit.is_slots()),
                renews: it.renews.map(|(of, _)| of),
                reserving: it.reserves.as_ref().map(|(_, reserves)| Reserving {
                    id: reserves.id,
                    rule: self.rule_ids[item.limit][item.key as usize],
                    is_commit: reserves.is_commit,
                    found: None,
                }),
                window: limit.window_secs[front.version] * SECOND,
                rule_window: limit.window_secs[front.version] * SECOND,
                algorithm: None,
                granularity: limit.own_granularity(front.version),
                room: None,
                is_reported: limit.is_reported,
                is_kept: false,
                is_refunded: false,
                is_full: false,
                remaining: 0,
                reset_nanos: 0,
                is_single: items.len() == 1,
                is_plain: items.len() == 1 && !has_slots,
                deadline: it.deadline,
                outcome: Outcome::Unknown,
                bans: Bans {
                    of: ban.filter(|_| candidate.is_none() && !self.scenario.modes.shadow),
                    ..Bans::default()
                },
            }
        };
        let candidates =
            items.iter().filter_map(move |item| Some(record(item, Some(self.candidate_of(item)?))));
        items.iter().map(move |item| record(item, None)).chain(candidates)
    }
}
