//! Explanations: what a node says to people who ask how a request would be answered, and why.
//!
//! In: a descriptor. Out: what the explanation says of each counter, for the oracle: it has to be what an answer might say, and it
//! charges nothing.

use std::sync::Arc;

use super::answers::is_hidden;
use super::batch::{Asked, Together};
use super::call::Asking;
use super::decided::Decided;
use super::front::Front;
use super::{Kind, Run};
use crate::oracle::{Outcome, Record};
use crate::scenario::Item;
use crate::world::lock;

/// What is explained is no request of a client.
const NUMBER: usize = usize::MAX;

/// What an explanation says.
pub(super) struct Explained {
    pub(super) decided: Decided,
    /// What the exception does under which each descriptor would be decided.
    pub(super) exceptions: Vec<Option<String>>,
}

impl Run {
    /// Somebody asks a node how a request of these would be answered.
    pub(super) fn explain(self: &Arc<Self>, node: usize, items: Vec<Item>) {
        let Some(front) = Front::of(self, node) else { return };
        let together = Together::new(front, vec![Asked::new(NUMBER, items)]);
        let run = Arc::clone(self);
        self.world.spawn(node, async move {
            let (front, it) = (&together.front, together.asked(0));
            let (asked, _asking) = (run.world.now(), Asking::begin(&front.asking));
            let noted = run.asked_of(front, it, &it.asking(&run)).collect();
            match front.explain(|request| together.read(&run, 0, request)).await {
                Ok(explained) => run.judge_explained(it, noted, explained),
                Err(error) => run.note_error((node, asked), format!("an explanation: {error}")),
            }
        });
    }

    /// Judges an explanation as an answer, and notes what it says of each counter. `noted`: what it is about.
    fn judge_explained(&self, it: &Asked, mut noted: Vec<Record>, explained: Explained) {
        let Explained { decided, exceptions } = explained;
        let is_wrong = |what: String| self.wrong(Kind::WrongAnswer, format!("an explanation {what}"));
        let due = it.due(self);
        if decided.met != due {
            return is_wrong(format!("is one of {:?}, not of {due:?}", decided.met));
        }
        let passes = self.check_passes(&decided, is_wrong);
        // Whom an exception denies waits for its end, which an explanation says by itself.
        let is_denied = exceptions.iter().any(|exception| exception.as_deref() == Some("deny"));
        if !is_denied {
            self.check_shown(&decided).into_iter().for_each(is_wrong);
        }
        let items = it.asking(self);
        let any_over = decided.counters.iter().any(|counter| counter.over);
        for (record, counter) in noted.iter_mut().zip(&decided.counters) {
            self.check_rule(record, counter, &decided);
            self.check_limit(record, (counter, &decided), true, |effect| {
                effect.map(|it| it.name()) == exceptions[counter.at].as_deref()
            });
            let over = counter.over && !is_hidden(counter, &decided);
            let outcome = self.outcome(counter.by, over, passes, any_over);
            self.settle(record, counter, outcome, self.may_lack_room());
        }
        let own = items.len();
        self.judge_trials(&items, &decided, &mut noted[own..]);
        // It says how many are left before they are charged.
        for record in noted.iter_mut().filter(|it| it.outcome == Outcome::Admitted) {
            let taken = if self.limit_of(record).is_slots() { record.hits.min(1) } else { record.hits };
            record.remaining = record.remaining.saturating_sub(taken);
        }
        self.world.note(|| format!("an explanation: {noted:?}"));
        lock(&self.explained).extend(noted);
    }
}
