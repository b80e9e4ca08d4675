//! Exceptions that nodes share, in a run: each node reads and follows them by the program's own `Book`, and puts what changes in
//! force. Operators change them through nodes (`exception_changes`). They are in the server of records, or in the same place alone.
//!
//! In: what operators changed (`ledger`), and what happens to the server. Out: by which exceptions a node may decide. What was
//! acknowledged to an operator is in force at once at the process that made it, and at all others within a second. Where the
//! server or the way to it failed, for as long as a node takes to find it again, it may decide by what it knew when that
//! began. What the server lost is written back by any node that has it: it is gone only if a process ended meanwhile.

use std::sync::Arc;
use std::time::Duration;

use smallvec::{SmallVec, smallvec};
use tidegate_engine::overlay::Effect;
use tidegate_operate::audit::Audit;
use tidegate_operate::exceptions::{Authored, Book};
use tidegate_redis::runtime::Runtime as _;
use tidegate_redis::{RedisOptions, RedisStore};
use tidegate_serve::service::Service;

use super::decider::Made;
use super::ledger::{Ledger, Process};
use super::{Kind, Run};
use crate::node::{Node, world_time};
use crate::oracle::{Record, Troubles};
use crate::scenario::{Fault, Outage, Scenario, What, Whom};
use crate::world::{Handle, MILLI, SECOND, Time, lock};

/// What is acknowledged is in force at all nodes after so long. While messages are slow: after twice as long.
const IN_FORCE_AFTER: Time = SECOND;
/// An exception begins or ends by itself so much later at most.
const TICK: Time = 251 * MILLI;
/// After a failure a node reads again after so long at most, in addition to the time in which it finds the server.
const PAUSE_MAX: Time = 2 * SECOND;

/// Whose exception it is: of a limit, these counters. It has one id.
pub(super) type Whose = (usize, Whom);

/// The id of an exception.
pub(super) fn id((limit, whom): Whose) -> String {
    format!("l{limit}-{whom:?}").replace(['(', ')'], ".")
}

/// The exceptions that a descriptor may meet.
type MayMeet = SmallVec<[Option<Made>; 1]>;

/// What operators did with exceptions that nodes share.
pub(super) struct SharedExceptions {
    pub(super) ledger: Ledger<Whose, Option<Made>>,
    gaps: Vec<Gap>,
}

/// A time in which the server had lost changes, and nodes may not have written them back.
struct Gap {
    from: Time,
    until: Time,
    /// A process ended meanwhile: it may have been the only one that knew them.
    forgets: bool,
}

impl SharedExceptions {
    /// `troubles`: when nodes may not reach the server.
    pub(super) fn of(scenario: &Scenario, troubles: &Troubles) -> Self {
        let lost = |fault: &Fault| match fault.what {
            What::OfRecords { what: Outage::Flush | Outage::RestartEmpty, .. } => Some((fault.at, fault.at)),
            What::OfRecords { what: Outage::FailOver, lasts } => Some((fault.at, fault.at + lasts)),
            _ => None,
        };
        let gap = |(from, until): (Time, Time)| {
            let troubles = (0..scenario.clocks.len()).filter_map(|node| troubles.of(node, from, until));
            let (from, until) =
                troubles.fold((from, until), |(from, until), it| (from.min(it.from), until.max(it.until)));
            let (from, until) = (from.saturating_sub(2 * IN_FORCE_AFTER), until + PAUSE_MAX);
            let ends = |fault: &Fault| {
                let ends =
                    matches!(fault.what, What::Crash { .. } | What::StopNode { .. } | What::Upgrade { .. });
                ends && (from..=until).contains(&fault.at)
            };
            Gap { from, until, forgets: scenario.faults.iter().any(ends) }
        };
        Self { ledger: Ledger::default(), gaps: scenario.faults.iter().filter_map(lost).map(gap).collect() }
    }

    /// Whether what was changed last may be gone for good, of which this was sent last that is known.
    fn may_be_gone(&self, sent: Time, now: Time) -> bool {
        self.gaps.iter().any(|gap| gap.forgets && gap.from <= now && gap.until >= sent)
    }
}

impl Run {
    /// Has a node that starts share exceptions, if nodes do: it reads them, puts them in force, and follows them.
    pub(super) fn share_exceptions(
        self: &Arc<Self>,
        node: usize,
        runtime: Node,
        service: &Arc<Service<Node>>,
    ) -> Option<Handle> {
        if !self.scenario.shares_exceptions() {
            return None;
        }
        let redis = RedisOptions {
            workers: 1,
            pool_size: 1,
            timeout: Duration::from_nanos(self.scenario.timeout),
            wait_replicas: self.scenario.wait_replicas,
            ..self.options_of_records()
        };
        let store = RedisStore::on(runtime.clone().without_resets(), redis);
        let audit = Audit::in_memory(runtime.wall());
        let book = Arc::new(Book::on(runtime, audit).shared_in(store));
        let (run, service) = (Arc::clone(self), Arc::clone(service));
        let process = (node, lock(&self.nodes)[node].starts);
        Some(self.world.spawn_on((node, 0), async move {
            book.read_first().await;
            book.install(&service);
            run.open_shared(process, &book);
            tokio::join!(Arc::clone(&book).keep_in_force(service), book.follow());
        }))
    }

    /// A process has read the exceptions of others: operators may use it.
    fn open_shared(&self, (node, starts): Process, book: &Arc<Book<Node>>) {
        if let Some(state) = lock(&self.nodes).get_mut(node)
            && state.starts == starts
            && state.service.is_some()
        {
            state.shared_book = Some(Arc::clone(book));
        }
    }

    /// The exceptions that a counter may meet that was asked at a node and is decided now. `brings_limit`: the request brings
    /// its own limit, which can only be denied.
    pub(super) fn shared_met(
        &self,
        noted: &Record,
        (limit, key): (usize, u64),
        brings_limit: bool,
    ) -> MayMeet {
        let own = self.shared_exceptions.ledger.counters().into_iter();
        let own = own.filter(|(of, whom)| *of == limit && whom.is_for(key));
        let mut together: Vec<Vec<Made>> = vec![Vec::new()];
        for of in own {
            let due = self.due_shared(noted, of);
            let with = |all: &Vec<Made>, made: Option<Made>| all.iter().copied().chain(made).collect();
            together = together.iter().flat_map(|all| due.iter().map(move |&made| with(all, made))).collect();
        }
        let mut may = MayMeet::new();
        for met in together.iter().flat_map(|all| met(all, brings_limit)) {
            if !may.contains(&met) {
                may.push(met);
            }
        }
        may
    }

    /// What may be in force of an id where a request was asked that is answered now.
    fn due_shared(&self, noted: &Record, of: Whose) -> MayMeet {
        let (node, asked, now) = (noted.node, noted.asked, self.world.now());
        let SharedExceptions { ledger, gaps } = &self.shared_exceptions;
        let trouble = self.record_troubles.of(node, asked.saturating_sub(PAUSE_MAX), now);
        let gaps = gaps.iter().filter(|gap| gap.from <= now && asked <= gap.until);
        let since = trouble.map(|it| it.from).into_iter().chain(gaps.map(|gap| gap.from));
        let since = since.chain([asked]).min().unwrap_or(asked);
        let slow_since = since.saturating_sub(2 * IN_FORCE_AFTER);
        let slow = &lock(&self.network.slow)[self.of_records()];
        let is_slow = slow.iter().any(|span| span.touches(node, slow_since, now));
        let heard = since.saturating_sub(if is_slow { 2 * IN_FORCE_AFTER } else { IN_FORCE_AFTER });
        // A process that was started since is not the one that was asked.
        let process = {
            let state = &lock(&self.nodes)[node];
            (state.started <= asked).then_some((node, state.starts))
        };
        let last = ledger.last_heard(of, (process, asked, heard));
        // Who starts knows nothing at first.
        let forgets = trouble.is_some_and(|it| it.forgets) || self.shared_exceptions.may_be_gone(last, now);
        let heard = if forgets { 0 } else { heard };
        let (first, last) = (world_time(since.saturating_sub(TICK)), world_time(now));
        let mut may = MayMeet::new();
        for made in ledger.heard(of, (process, asked, heard), now) {
            let Some(Made { from, until, .. }) = made else {
                may.push(None);
                continue;
            };
            if from.is_none_or(|from| from <= last) && until.is_none_or(|until| until > first) {
                may.push(made);
            }
            if from.is_some_and(|from| from > first) || until.is_some_and(|until| until <= last) {
                may.push(None);
            }
        }
        may
    }

    /// Nodes agree about exceptions when nothing has failed for a while, what operators did last is there, and Redis has it.
    pub(super) fn check_exceptions(&self) {
        if !self.scenario.shares_exceptions() {
            return;
        }
        let books: Vec<_> = lock(&self.nodes).iter().filter_map(|state| state.shared_book.clone()).collect();
        let all: Vec<Vec<Arc<Authored>>> = books.iter().map(|book| book.all()).collect();
        let Some(first) = all.first() else { return };
        if let Some(other) = all.iter().find(|other| *other != first) {
            self.wrong(Kind::WrongLimit, format!("nodes have other exceptions: {first:?} and {other:?}"));
        }
        let (now, SharedExceptions { ledger, .. }) = (self.world.now(), &self.shared_exceptions);
        for (of, stored) in ledger.all(now) {
            let last = ledger.last_heard(of, (None, now, now));
            let may_be_gone = self.shared_exceptions.may_be_gone(last, now);
            let found = first.iter().find(|record| record.id == id(of));
            if !may_be_gone && !stored.iter().any(|&made| is_it(made, found)) {
                let what = format!("nodes have {found:?} as exception {}, and not one of {stored:?}", id(of));
                self.wrong(Kind::WrongLimit, what);
            }
            let is_ended = last > 0 && stored.iter().all(Option::is_none) && !may_be_gone;
            self.check_kept(of, found, is_ended);
        }
    }

    /// Redis has what nodes have, and remembers an end.
    fn check_kept(&self, of: Whose, found: Option<&Arc<Authored>>, is_ended: bool) {
        let name = format!("tidegate:exceptions:k:{}", id(of));
        let kept = self.network.server(self.of_records(), |it| it.text(name.as_bytes()));
        let kept = kept.map(|kept| String::from_utf8_lossy(&kept).into_owned());
        let has = |text: &str| kept.as_ref().map(|kept| kept.contains(text));
        let has_ended = has(r#""ended":true"#);
        let is_right = match found {
            Some(record) => {
                has_ended == Some(false) && has(&format!(r#""number":{}"#, record.number)) == Some(true)
            }
            None => has_ended.unwrap_or(!is_ended),
        };
        if !is_right {
            let what = format!("Redis has {kept:?} as exception {}, and nodes have {found:?}", id(of));
            self.wrong(Kind::WrongLimit, what);
        }
    }

    /// Operators end what is left, and all nodes know that.
    pub(super) fn end_shared_exceptions(self: &Arc<Self>) {
        let book = lock(&self.nodes).iter().find_map(|state| state.shared_book.clone());
        let Some(book) = book.filter(|book| !book.all().is_empty()) else { return };
        let left = |of: &Whose| book.all().iter().any(|record| record.id == id(*of));
        let all = self.shared_exceptions.ledger.counters();
        all.into_iter().filter(left).for_each(|of| self.end_shared(0, of));
        self.world.run_until(self.world.now() + 2 * IN_FORCE_AFTER);
    }
}

/// Whether this is what a book has.
fn is_it(made: Option<Made>, found: Option<&Arc<Authored>>) -> bool {
    match (made, found) {
        (None, None) => true,
        (Some(made), Some(found)) => {
            (made.effect, made.from, made.until) == (found.exception.effect, found.from, found.until)
        }
        _ => false,
    }
}

/// Which of these exceptions, which are all in force, a descriptor meets. Which of several is the newest is not looked at.
fn met(all: &[Made], brings_limit: bool) -> MayMeet {
    let denies = |made: &&Made| made.effect == Effect::Deny;
    // One for a counter comes before one for all of them.
    let is_one = all.iter().filter(denies).any(|made| made.whom.is_one());
    let deny: MayMeet =
        all.iter().filter(denies).filter(|made| made.whom.is_one() == is_one).copied().map(Some).collect();
    let others = all.iter().filter(|made| !denies(made) && !brings_limit);
    match deny.is_empty() {
        false => deny,
        true if all.iter().all(|made| denies(&made)) || brings_limit => smallvec![None],
        true => others.copied().map(Some).collect(),
    }
}
