//! What operators do with exceptions that nodes share, by the program's own `Book`.
//!
//! In: exceptions that operators want, or want ended. Out: writes in the ledger, with what the operator was answered.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use tidegate_engine::overlay::{Effect, Exception};
use tidegate_engine::time::Timestamp;
use tidegate_operate::audit::{Author, Caller};
use tidegate_operate::exceptions::{Authored, Book, Change, ChangeError, WantedChange};

use super::decider::Made;
use super::ledger::{Done, Process};
use super::names::path;
use super::shared_exceptions::{Whose, id};
use super::{Run, SENT_AGAIN, SENT_FOR};
use crate::node::{Node, world_time};
use crate::scenario::Whom;
use crate::world::{SECOND, Time, lock};

/// A change waits for so long at most for those before it.
const TURN_MAX: Time = 10 * SECOND;

/// A change that an operator wants.
#[derive(Clone, Copy)]
struct Wanted {
    of: Whose,
    /// `None`: the exception is ended.
    made: Option<Made>,
    /// Nobody sends it again from then on.
    until: Time,
}

impl Run {
    /// An operator sends an exception to a node, and its end after so long. Those of one counter end by themselves too.
    pub(super) fn make_shared(self: &Arc<Self>, node: usize, of: Whose, effect: Effect, lasts: Time) {
        let (now, whom) = (self.world.now(), of.1);
        let after = |part: Time| whom.is_one().then(|| world_time(now + lasts / part));
        let (from, until) = (after(2).filter(|_| whom == Whom::One(1)), after(1));
        let made = Some(Made { limit: of.0, whom, effect, from, until });
        self.send_exception(Some(node), Wanted { of, made, until: now + lasts });
    }

    /// An operator ends an exception.
    pub(super) fn end_shared(self: &Arc<Self>, node: usize, of: Whose) {
        let until = self.scenario.asked_until() + SENT_FOR;
        self.send_exception(Some(node), Wanted { of, made: None, until: until.max(self.world.now() + 1) });
    }

    /// An operator has a node do a change that does not stand still, and another one if it fails, until it is done.
    fn send_exception(self: &Arc<Self>, node: Option<usize>, wanted: Wanted) {
        let now = self.world.now();
        if now >= wanted.until {
            return;
        }
        let book = |node: usize| {
            let nodes = lock(&self.nodes);
            let state = nodes.get(node)?;
            Some(((node, state.starts), state.shared_book.clone()?))
        };
        let first = node.filter(|&node| !self.world.is_frozen(node)).and_then(book);
        let done = Arc::new(AtomicBool::new(false));
        if let Some((process, book)) = first.or_else(|| self.serving(now, book)) {
            let (run, done) = (Arc::clone(self), Arc::clone(&done));
            self.world.spawn(process.0, async move {
                let is_done = run.change_shared(process, &book, wanted).await;
                done.store(is_done, Relaxed);
            });
        }
        self.after(SENT_AGAIN, move |run| {
            if !done.load(Relaxed) {
                run.send_exception(None, wanted);
            }
        });
    }

    /// A node is sent a change. Returns whether nobody has to send it again.
    async fn change_shared(&self, process: Process, book: &Arc<Book<Node>>, wanted: Wanted) -> bool {
        let Wanted { of, made, .. } = wanted;
        let (ledger, (sent, ends)) = (&self.shared_exceptions.ledger, self.under_way());
        let write = ledger.begin(&[of], process, made, (sent, ends + TURN_MAX));
        let changed = book.change(self.wanted(of, made), operator(), world_time(sent)).await;
        self.world.note(|| format!("node {}: the exception {} is {made:?}: {changed:?}", process.0, id(of)));
        let done = match &changed {
            Ok(Change::Unchanged) => Done::Already,
            Ok(_) => Done::Yes,
            Err(ChangeError::NotKnown(_)) => Done::Perhaps,
            Err(_) => Done::No,
        };
        ledger.end(write, done, self.world.now());
        if done == Done::Perhaps {
            ledger.may_be_done_until(write, self.under_way().1);
        }
        match changed {
            Ok(_) | Err(ChangeError::Past) => true,
            // One that somebody has sent may be made later.
            Err(ChangeError::Unknown(_)) => ledger.under_way_until(of) < self.world.now(),
            Err(_) => false,
        }
    }

    /// What a book is asked for: an exception, or its end.
    pub(super) fn wanted(&self, of: Whose, made: Option<Made>) -> WantedChange {
        let Some(Made { limit, whom, effect, from, until }) = made else {
            return WantedChange::End { id: id(of), why: String::new() };
        };
        let exception = Exception { path: path(&self.scenario.limits, limit, whom), effect };
        let (who, why) = ("an operator".to_owned(), "a test".to_owned());
        let made = Timestamp::from_nanos(0);
        let record = Authored { id: id(of), exception, who, why, from, until, made, number: 0 };
        WantedChange::Put { record, may_replace: true }
    }
}

/// Who asks for changes.
pub(super) fn operator() -> Author {
    Author { who: "an operator".to_owned(), caller: Caller { peer: String::new(), certificate: None } }
}
