//! The exceptions of a node without Redis: the program's own book, by the wall clock, in a file next to its counters or in none.
//!
//! In: exceptions that operators make and end. Out: those in force, put there when something changes and when one ends by
//! itself. A list of our own says what they have to be.

use std::sync::Arc;

use tidegate_engine::overlay::Effect;
use tidegate_engine::time::Timestamp;
use tidegate_operate::audit::Audit;
use tidegate_operate::exceptions::Book;

use super::alone::Home;
use super::decider::Made;
use super::exception_changes::operator;
use super::shared_exceptions::Whose;
use super::{Kind, Run, STARTED_AGAIN};
use crate::scenario::Whom;
use crate::world::{MILLI, Time, lock};

/// How often a node looks whether the wall clock is where an exception begins or ends.
const TICK: Time = 250 * MILLI;
/// The file of exceptions in STATE_DIR.
const EXCEPTIONS: &str = "exceptions";

/// What a machine has of exceptions.
#[derive(Default)]
pub(super) struct Kept {
    book: Option<Arc<Book>>,
    /// Those that were acknowledged and not ended, in the order in which they were made.
    made: Vec<Made>,
    /// How often they were put in force: a task that waits for an older end has nothing to do.
    puts: u64,
}

impl Run {
    /// A process begins with the exceptions that are kept.
    pub(super) fn open_book(&self, home: &mut Home) {
        let wall = home.wall_at(self.world.now());
        let Kept { book, made, .. } = &mut home.excepted;
        let audit = Audit::in_memory(wall);
        *book = Some(Arc::new(match home.alone.is_kept {
            true => {
                let book = Book::open(home.folder.path().join(EXCEPTIONS), audit).expect("a file of ours");
                book.on_disk(home.folder.disk(usize::MAX))
            }
            false => {
                made.clear();
                Book::new(audit)
            }
        }));
        let kept = book.iter().flat_map(|book| book.all()).count();
        if kept != made.len() {
            let what = format!("a process begins with {kept} exceptions of {}", made.len());
            self.wrong(Kind::WrongStart, what);
        }
    }

    /// An operator makes an exception that lasts so long, or ends one. Where no process is, somebody tries again.
    pub(super) fn change_book(self: &Arc<Self>, node: usize, which: Whose, made: Option<(Effect, Time)>) {
        let is_done = lock(&self.nodes)[node].service.is_some();
        if is_done {
            self.change_kept(node, which, made);
            self.put_in_force(node);
        } else if made.is_none() {
            self.after(STARTED_AGAIN, move |run| run.change_book(node, which, None));
        }
    }

    fn change_kept(&self, node: usize, (limit, whom): Whose, made: Option<(Effect, Time)>) {
        let mut nodes = lock(&self.nodes);
        let Some(home) = &mut nodes[node].home else { return };
        let wall = home.wall_at(self.world.now());
        home.folder.disk(usize::MAX);
        let Kept { book, made: all, .. } = &mut home.excepted;
        let was_there = all.iter().any(|made| (made.limit, made.whom) == (limit, whom));
        // Some begin later and end by themselves, the others end when somebody ends them.
        let after = |part: Time| made.filter(|_| whom.is_one()).map(|(_, lasts)| wall.plus(lasts / part));
        let (from, until) = (after(2).filter(|_| whom == Whom::One(1)), after(1));
        let new = made.map(|(effect, _)| Made { limit, whom, effect, from, until });
        // Who makes one that is there changes nothing: it is no newer then.
        if !new.is_some_and(|new| all.contains(&new)) {
            all.retain(|made| (made.limit, made.whom) != (limit, whom));
            all.extend(new);
        }
        if new.is_none() && !was_there {
            return;
        }
        let wanted = self.wanted((limit, whom), new);
        let changed = book.as_ref().map(|book| book.change_here(&wanted, &operator(), wall));
        if let Some(Err(error)) = changed {
            self.wrong(Kind::WrongStart, format!("an exception was refused: {error}"));
        }
    }

    /// Puts the exceptions in force that are due, and waits for the next one that ends.
    pub(super) fn put_in_force(self: &Arc<Self>, node: usize) {
        let now = self.world.now();
        let mut nodes = lock(&self.nodes);
        let state = &mut nodes[node];
        let (Some(home), Some(service)) = (&mut state.home, &state.service) else { return };
        let wall = home.wall_at(now);
        let Kept { book: Some(book), made, puts } = &mut home.excepted else { return };
        *puts += 1;
        state.excepted.put(now, made.iter().filter(|made| made.is_due(wall)).copied().collect());
        let compiled = book.compile(wall);
        service.except(compiled.exceptions);
        let puts = *puts;
        let times = made.iter().flat_map(|made| [made.from, made.until]).flatten();
        let changes = times.filter(|&time| time > wall).min();
        drop(nodes);
        if changes != compiled.until {
            let what = format!("exceptions change at {:?} next, though that is {changes:?}", compiled.until);
            self.wrong(Kind::WrongStart, what);
        }
        if let Some(until) = compiled.until {
            self.after(look_after(wall, until), move |run| run.pass(node, puts, until));
        }
    }

    fn pass(self: &Arc<Self>, node: usize, puts: u64, until: Timestamp) {
        let wall = match lock(&self.nodes).get(node).and_then(|state| state.home.as_ref()) {
            Some(home) if home.excepted.puts == puts => home.wall_at(self.world.now()),
            _ => return,
        };
        match wall < until {
            true => self.after(look_after(wall, until), move |run| run.pass(node, puts, until)),
            false => self.put_in_force(node),
        }
    }

    /// Operators end what is left, whatever the wall clock says.
    pub(super) fn end_exceptions(self: &Arc<Self>) {
        self.end_shared_exceptions();
        let left = |node: usize| -> Vec<Whose> {
            let nodes = lock(&self.nodes);
            let made = nodes[node].home.iter().flat_map(|home| &home.excepted.made);
            made.map(|made| (made.limit, made.whom)).collect()
        };
        for node in 0..self.scenario.clocks.len() {
            left(node).into_iter().for_each(|which| self.change_book(node, which, None));
        }
    }
}

/// How long a node waits before it looks again: until that very time, unless the wall clock is stepped meanwhile.
fn look_after(wall: Timestamp, until: Timestamp) -> Time {
    until.nanos_since(wall).min(TICK)
}
