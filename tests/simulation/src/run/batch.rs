//! Requests that a worker of a node reads together: they are decided as one batch, as by the program's fronts.
//!
//! In: requests of one batch, at one node. Out: what was decided about each at once. Whoever asks first has all of them
//! decided.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use smallvec::{SmallVec, smallvec};
use tidegate_engine::request::{Descriptor, DescriptorOptions, Entry, Request, Reservation};
use tidegate_serve::service::Batch;

use super::decided::{Decided, Met};
use super::front::Front;
use super::names::{Entries, entries_of, entries_of_item, further};
use super::{Kind, Run};
use crate::scenario::{self, Form, Item, Limitless};
use crate::world::{Time, lock};

/// A request of a batch.
pub(super) struct Asked {
    /// Its number.
    pub(super) number: usize,
    pub(super) items: Vec<Item>,
    /// A descriptor before them.
    pub(super) limitless: Option<Limitless>,
    /// It gives its hits back.
    pub(super) gives: bool,
    /// What names the call that it ends or renews.
    pub(super) token: Option<String>,
    /// The record of the call whose slot it renews, and the slot that it asks for.
    pub(super) renews: Option<(usize, Item)>,
    /// How long its client waits.
    pub(super) deadline: Option<Time>,
    /// The reservation that it makes or ends, and its id.
    pub(super) reserves: Option<(String, scenario::Reservation)>,
    pub(super) form: Form,
    /// Its client went away. If it was not read yet, it never is.
    pub(super) is_gone: AtomicBool,
}

impl Asked {
    /// A usual request for these.
    pub(super) fn new(number: usize, items: Vec<Item>) -> Self {
        let (limitless, token, renews, deadline, reserves, is_gone) = Default::default();
        let (gives, form) = (false, Form::Usual);
        Self { number, items, limitless, gives, token, renews, deadline, reserves, form, is_gone }
    }

    fn domain(&self) -> &'static str {
        if self.form == Form::Elsewhere { "elsewhere" } else { "sim" }
    }

    /// Whether this is the request, as it was read.
    fn is(&self, run: &Run, request: &Request<'_>) -> bool {
        let mut own = self.descriptors(run);
        let is_next = |it: Descriptor<'_, '_>| {
            let is_same = |(entries, _): (Entries, _)| {
                it.entries.iter().zip(&entries).all(|(own, other)| (own.key, own.value) == *other)
                    && it.entries.len() == entries.len() + usize::from(self.token.is_some())
            };
            own.next().is_some_and(is_same)
        };
        request.domain() == self.domain() && request.descriptors().all(is_next) && own.next().is_none()
    }

    /// The entries of each descriptor, and what it asks of a limit.
    fn descriptors<'a>(&'a self, run: &'a Run) -> impl Iterator<Item = (Entries, Option<&'a Item>)> {
        let own = |item: &'a Item| (entries_of_item(&run.scenario.limits, item), Some(item));
        let limitless = self.limitless.map(|it| (entries_of(it), None));
        limitless.into_iter().chain(self.items.iter().map(own))
    }

    /// What has to become of each descriptor.
    pub(super) fn due(&self, run: &Run) -> SmallVec<[Met; 4]> {
        let is_elsewhere = self.form == Form::Elsewhere;
        let limitless = self.limitless.map(|it| match it {
            Limitless::Unlimited if !is_elsewhere => Met::Unlimited,
            _ => Met::NoLimit,
        });
        let item = |item: &Item| match () {
            () if is_elsewhere => Met::NoLimit,
            () if self.replaces(run, item.limit) => Met::Replaced,
            () => Met::Limited,
        };
        limitless.into_iter().chain(self.items.iter().map(item)).collect()
    }

    /// What is asked of each counter: for each item that asks any, first that of the first limit of its rule.
    pub(super) fn asking(&self, run: &Run) -> SmallVec<[Item; 4]> {
        if let Some((_, slot)) = self.renews {
            return smallvec![slot];
        }
        let asks = |item: &&Item| self.form != Form::Elsewhere && !self.replaces(run, item.limit);
        let all = |item: &Item| {
            let is_reported = run.scenario.limits[item.limit].is_reported;
            // What is reported takes no slot.
            let takes = |it: Item| if is_reported && run.has_slots(it.limit) { 0 } else { it.hits };
            let more = further(&run.scenario.limits, *item).map(|it| Item { hits: takes(it), ..it });
            std::iter::once(*item).chain(more).collect::<SmallVec<[Item; 4]>>()
        };
        self.items.iter().filter(asks).flat_map(all).collect()
    }

    /// Whether any descriptor of the request meets a rule that replaces this limit.
    fn replaces(&self, run: &Run, limit: usize) -> bool {
        let by_unlimited = self.limitless == Some(Limitless::Unlimited);
        by_unlimited && run.scenario.unlimited_replaces == Some(limit)
            || self.items.iter().any(|item| run.scenario.limits[item.limit].shape.replaces == Some(limit))
    }
}

/// A batch.
pub(super) struct Together {
    pub(super) front: Front,
    asked: Vec<Asked>,
    decided: Mutex<Option<SmallVec<[Option<Decided>; 1]>>>,
}

impl Together {
    pub(super) fn new(front: Front, asked: Vec<Asked>) -> Arc<Self> {
        Arc::new(Self { front, asked, decided: Mutex::default() })
    }

    pub(super) fn asked(&self, place: usize) -> &Asked {
        &self.asked[place]
    }

    /// What was decided about the request at a place. `None`: Redis has to be asked.
    pub(super) fn take(&self, run: &Run, place: usize) -> Option<Decided> {
        lock(&self.decided).get_or_insert_with(|| self.decide(run))[place].take()
    }

    fn decide(&self, run: &Run) -> SmallVec<[Option<Decided>; 1]> {
        let mut batch = Batch::default();
        let mut due: SmallVec<[bool; 8]> = smallvec![false; self.asked.len()];
        for (place, it) in self.asked.iter().enumerate() {
            if it.form == Form::Nothing || it.is_gone.load(Relaxed) {
                batch.pass();
                continue;
            }
            // What was read of a request may be there already when it is refused.
            let read = batch.read(|request| {
                self.read(run, place, request);
                if it.form == Form::Refused { Err(()) } else { Ok(()) }
            });
            due[place] = read.is_ok();
        }
        let mut all: SmallVec<[Option<Decided>; 1]> = self.asked.iter().map(|_| None).collect();
        let (mut is_wrong, full) = (false, self.front.full());
        self.front.decide(&batch, |place, request, decision| {
            is_wrong |= !std::mem::take(&mut due[place]) || !self.asked[place].is(run, request);
            all[place] = decision.map(|decision| self.front.decided(request, decision));
        });
        let is_full = self.front.full() != full;
        all.iter_mut().flatten().for_each(|decided| decided.is_full = is_full);
        if self.front.full().0 != full.0 && !run.may_lack_room() {
            run.wrong(
                Kind::WrongAnswer,
                "a counter found no room in memory, though there is room".to_owned(),
            );
        }
        if is_wrong || due.contains(&true) {
            let numbers: Vec<_> = self.asked.iter().map(|it| it.number).collect();
            run.wrong(Kind::WrongAnswer, format!("of requests {numbers:?} not each has its own answer"));
        }
        all
    }

    /// Reads the request at a place.
    pub(super) fn read<'a>(&'a self, run: &Run, place: usize, request: &mut Request<'a>) {
        let it = &self.asked[place];
        request.begin(it.domain(), 1);
        for (entries, item) in it.descriptors(run) {
            let limit = item.map(|item| run.scenario.limits[item.limit]).filter(|limit| limit.is_override);
            let options = DescriptorOptions {
                hits_addend: Some(if it.renews.is_some() { 0 } else { item.map_or(1, |item| item.hits) }),
                is_negative_hits: it.gives,
                renews: it.renews.is_some(),
                limit: limit.map(|limit| limit.brought(self.front.version)),
                ..DescriptorOptions::default()
            };
            let token = it.token.as_deref().map(|value| Entry { key: "call", value });
            let entry = |(key, value): (&'static str, &'static str)| Entry::<'a> { key, value };
            request.push(entries.into_iter().map(entry).chain(token), options);
        }
        if let Some((id, scenario::Reservation { hits, is_commit, .. })) = &it.reserves {
            let reservation = Reservation { id, hits: *hits, ttl_nanos: None, is_commit: *is_commit };
            let own = std::mem::replace(request, Request::new("", 0));
            *request = own.with_reservation(reservation);
        }
    }
}
