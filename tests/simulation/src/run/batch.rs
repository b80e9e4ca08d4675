//! Requests that a worker of a node reads together: they are decided as one batch, as by the program's fronts.
//!
//! In: requests of one batch, at one node. Out: what was decided about each at once. Whoever asks first has all of them
//! decided.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use smallvec::{SmallVec, smallvec};
use tidegate_engine::request::Request;
use tidegate_serve::service::Batch;

use super::ask::{KEYS, LIMITS};
use super::way::{Decided, Way};
use super::{Kind, Run};
use crate::scenario::{Form, Item};
use crate::world::lock;

/// A request of a batch.
pub(super) struct Asked {
    /// Its number.
    pub(super) number: usize,
    pub(super) items: Vec<Item>,
    /// It gives its hits back.
    pub(super) gives: bool,
    pub(super) form: Form,
    /// Its client went away. If it was not read yet, it never is.
    pub(super) is_gone: AtomicBool,
}

impl Asked {
    fn domain(&self) -> &'static str {
        if self.form == Form::Elsewhere { "elsewhere" } else { "sim" }
    }

    /// Whether this is the request, as it was read.
    fn is(&self, request: &Request<'_>) -> bool {
        let entries = request.descriptors().map(|it| (it.entries[0].key, it.entries[0].value));
        let items = self.items.iter().map(|item| (LIMITS[item.limit], KEYS[item.key as usize]));
        request.domain() == self.domain() && entries.eq(items)
    }
}

/// A batch.
pub(super) struct Together {
    pub(super) way: Way,
    asked: Vec<Asked>,
    decided: Mutex<Option<SmallVec<[Option<Decided>; 1]>>>,
}

impl Together {
    pub(super) fn new(way: Way, asked: Vec<Asked>) -> Arc<Self> {
        Arc::new(Self { way, asked, decided: Mutex::default() })
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
        let (mut is_wrong, full) = (false, self.way.full());
        self.way.decide(&batch, |place, request, decision| {
            is_wrong |= !std::mem::take(&mut due[place]) || !self.asked[place].is(request);
            all[place] = decision.map(Decided::of);
        });
        let is_full = self.way.full() != full;
        all.iter_mut().flatten().for_each(|decided| decided.is_full = is_full);
        if is_wrong || due.contains(&true) {
            let numbers: Vec<_> = self.asked.iter().map(|it| it.number).collect();
            run.wrong(Kind::WrongAnswer, format!("of requests {numbers:?} not each has its own answer"));
        }
        all
    }

    /// Reads the request at a place.
    pub(super) fn read(&self, run: &Run, place: usize, request: &mut Request<'static>) {
        let it = &self.asked[place];
        request.begin(it.domain(), 1);
        it.items.iter().for_each(|item| run.push(request, item, self.way.version, it.gives));
    }
}
