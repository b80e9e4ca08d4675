//! Slots in a run: the tokens that clients have, and what they send at the end of a call.
//!
//! In: the tokens in answers. Out: releases, for the oracle. Only a token says which call it ends: what is guessed, an id among it,
//! frees nothing.

use std::sync::Arc;

use super::batch::Asked;
use super::call::Call;
use super::decided::Decided;
use super::names::CALLS;
use super::{Kind, Run};
use crate::oracle::{self, Outcome};
use crate::scenario::{ADDRESSES, Item, LimitSpec, Release, Renewal};
use crate::world::{Time, lock};

/// Renewals have the number of their request, and this more.
const RENEWALS: usize = 1 << 32;

/// What releases a slot, or would.
#[derive(Clone)]
struct Ended {
    /// The place of the record of its call.
    of: usize,
    item: Item,
    text: String,
    is_token: bool,
}

impl Run {
    pub(super) fn has_slots(&self, limit: usize) -> bool {
        // Behind the limits are their candidates.
        self.scenario.limits.get(limit).is_some_and(LimitSpec::is_slots)
    }

    /// Judges which slots an answer has tokens of: those that were taken, and no others.
    pub(super) fn keep_tokens(&self, call: &Call<'_>, decided: &Decided) {
        let (first, items) = (call.first, &call.items);
        let mut taken = Vec::new();
        {
            let records = lock(&self.records);
            for (place, item) in items.iter().enumerate().filter(|(_, item)| self.has_slots(item.limit)) {
                let it = &records[first + place];
                // A call that is named twice takes one slot.
                let is_same =
                    |other: &Item| (other.limit, other.key, other.last) == (item.limit, item.key, item.last);
                let is_named_before = item.last.is_some()
                    && items[..place].iter().any(|other| is_same(other) && other.hits > 0);
                let takes = it.outcome == Outcome::Admitted && item.hits > 0 && !is_named_before;
                taken.extend(takes.then_some(place));
            }
        }
        let places: Vec<usize> = decided.tokens.iter().map(|(place, _)| *place).collect();
        if places != taken {
            let what = format!("an answer has tokens for {places:?}, though slots were taken for {taken:?}");
            self.wrong(Kind::WrongAnswer, what);
        }
        let mut known = lock(&self.tokens);
        if call
            .it
            .renews
            .is_some_and(|(of, _)| decided.tokens.iter().any(|(_, token)| known.get(&of) != Some(token)))
        {
            self.wrong(Kind::WrongAnswer, "a renewal has another token than its slot".to_owned());
        }
        known.extend(decided.tokens.iter().map(|(place, token)| (first + place, token.clone())));
    }

    /// The client of a request that was answered reports the end of its calls.
    pub(super) fn report_ends(
        self: &Arc<Self>,
        number: usize,
        Release { after, node, is_guessed, again }: Release,
    ) {
        let mut ended = Vec::new();
        {
            let (records, tokens) = (lock(&self.records), lock(&self.tokens));
            let places = self.places_of(number);
            let own = places.clone().zip(&records[places]).filter(|(_, it)| self.has_slots(it.limit));
            for (of, it) in own {
                let item = self.item_of(it);
                let id = it.id.map(|id| CALLS[usize::from(id)].to_owned());
                // A token of the same id, whose number is another one.
                let other =
                    tokens.get(&of).map(|token| format!("{}{:016x}", &token[..16], self.scenario.seed));
                let guessed = [id, other].into_iter().flatten().filter(|_| is_guessed);
                ended.extend(guessed.map(|text| Ended { of, item, text, is_token: false }));
                let token = tokens.get(&of).cloned();
                ended.extend(token.map(|text| Ended { of, item, text, is_token: true }));
            }
        }
        for after in [Some(after), again.map(|more| after + more)].into_iter().flatten() {
            for it in ended.clone() {
                let run = Arc::clone(self);
                self.world.at(self.world.now() + after, move |_| run.release(it, node));
            }
        }
    }

    /// The descriptor that was about a slot, without the entry that names its call.
    fn item_of(&self, it: &oracle::Record) -> Item {
        let limit = self.scenario.first_limit(it.limit);
        Item { address: (self.scenario.seed % ADDRESSES) as u8, ..Item::new(limit, it.key, 1) }
    }

    /// The client of a request that was answered renews the slots of its calls.
    pub(super) fn renew(self: &Arc<Self>, number: usize, renewal: Renewal) {
        let own: Vec<(usize, oracle::Record, String)> = {
            let (records, tokens) = (lock(&self.records), lock(&self.tokens));
            let places = self.places_of(number);
            let own = places.clone().zip(&records[places]);
            own.filter_map(|(of, it)| Some((of, *it, tokens.get(&of)?.clone()))).collect()
        };
        for time in 1..=renewal.times {
            for (of, it, token) in own.clone() {
                let run = Arc::clone(self);
                let at = self.world.now() + time * renewal.every;
                self.world.at(at, move |_| run.renew_slot((of, &it), token, renewal));
            }
        }
    }

    fn renew_slot(self: &Arc<Self>, (of, it): (usize, &oracle::Record), token: String, renewal: Renewal) {
        let slot = Item { last: it.id, ..Item::new(it.limit, it.key, 1) };
        let asked = Asked {
            token: Some(token),
            renews: Some((of, slot)),
            deadline: renewal.deadline,
            ..Asked::new(it.request + RENEWALS, vec![self.item_of(it)])
        };
        let Some(task) = self.call(renewal.node, asked) else { return };
        self.world.spawn(renewal.node, async move { _ = task.await });
    }

    fn release(self: &Arc<Self>, Ended { of, item, text, is_token }: Ended, node: usize) {
        let number = lock(&self.records)[of].request;
        let asked = Asked { gives: true, token: Some(text), ..Asked::new(number, vec![item]) };
        let Some(task) = self.call(node, asked) else { return };
        let epoch = lock(&self.nodes)[node].epoch_numbers[item.limit][item.key as usize];
        let place = {
            let mut releases = lock(&self.releases);
            let asked = self.world.now();
            releases.extend(is_token.then_some(oracle::Release { of, epoch, asked, done: Time::MAX }));
            releases.len()
        };
        let run = Arc::clone(self);
        self.world.spawn(node, async move {
            if task.await.is_some() && is_token {
                lock(&run.releases)[place - 1].done = run.world.now();
            }
        });
    }
}
