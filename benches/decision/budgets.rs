//! What budgets cost beyond a plain limit: a reservation and its commit, a call in flight, a period of the calendar.
//!
//! A decision is from the parts of a request to the answer, as in `kinds`.

use std::collections::VecDeque;
use std::hint::black_box;

use tidegate_engine::decision::conclude;
use tidegate_engine::limit::Slot;
use tidegate_engine::memory::{MemoryOptions, MemoryStore};
use tidegate_engine::plan::Modes;
use tidegate_engine::request::{DescriptorOptions, Entry, Request, Reservation};
use tidegate_engine::rules::RuleSet;
use tidegate_engine::time::{SECOND_NANOS, Timestamp};

use crate::{START, nanos, print_pair, rules_of};

/// How many calls are open at one time.
const OPEN: usize = 100;
/// The time between two calls: so the log has 100 hits, and 6,000 ids of reservations that ended are remembered.
const BETWEEN_NANOS: u64 = SECOND_NANOS / 100;
/// So many ids come in turn: each is forgotten when it comes again.
const IDS: usize = 10_000;

/// A rule set of one key, its counters, and what is asked.
struct Asked {
    name: &'static str,
    rules: RuleSet,
    store: MemoryStore,
    calls: Calls,
    ids: Vec<String>,
}

/// What is asked for one call.
enum Calls {
    /// Whether a request passes.
    Ask,
    /// Whether a call may begin; and the oldest open one ends.
    Slots(VecDeque<Slot>),
    /// To reserve, and to commit the oldest open reservation.
    Reservations,
}

/// The pairs, and how many times the first one the second may take.
pub(crate) fn budgets() {
    println!("\na request of one descriptor, from its parts to the answer: budgets");
    let with = |name, node: &str, calls| Asked {
        name,
        rules: rules_of(format!("domain: d\ndescriptors:\n  - {{key: user, {node}}}\n")),
        store: MemoryStore::new(MemoryOptions::new(1 << 30)),
        calls,
        ids: (0..IDS).map(|number| format!("c0ffee00-0000-4000-8000-{number:012}")).collect(),
    };
    let limit = |more: &str| format!("rate_limit: {{requests_per_unit: 100000000, {more}}}");
    let log = "rate_limit: {requests_per_unit: 1000, unit: second, algorithm: sliding_log}";
    let slots = format!("concurrency: {{slots: {}, ttl: 1h, id: call}}", 2 * OPEN);
    let reserve = format!("{}, reserve: {{ttl: 1m}}", limit("unit: minute"));
    let pairs = [
        (
            with("a fixed window", &limit("unit: day, algorithm: fixed_window"), Calls::Ask),
            with("a day of the calendar", &limit("period: {calendar: day}"), Calls::Ask),
            1.1,
        ),
        (
            with("a log", log, Calls::Ask),
            with("a call in flight, and its end", &slots, Calls::Slots(VecDeque::new())),
            2.6,
        ),
        (
            with("a window", &limit("unit: minute"), Calls::Ask),
            with("a reservation, and a commit", &reserve, Calls::Reservations),
            2.6,
        ),
    ];
    for (first, second, most) in pairs {
        let mut pair = [first, second];
        print_pair([pair[0].name, pair[1].name], most, |which, turn| pair[which].nanos(turn));
    }
}

impl Asked {
    /// Processor time of what is asked for one call.
    fn nanos(&mut self, turn: usize) -> f64 {
        const CALLS: usize = 100_000;
        let Self { rules, store, calls, ids, .. } = self;
        nanos(CALLS, |call| {
            let call = turn * CALLS + call;
            let at = START.plus(call as u64 * BETWEEN_NANOS);
            let ask = |request: &Request<'_>| ask(rules, store, at, request);
            let id = |call: usize| &*ids[call % IDS];
            match calls {
                Calls::Ask => _ = ask(&user(None)),
                Calls::Slots(open) => {
                    let slot = ask(&user(Some(id(call)))).expect("a free slot");
                    open.push_back(slot);
                    if open.len() == OPEN
                        && let Some(slot) = open.pop_front()
                    {
                        ask(&release(&slot.to_string()));
                    }
                }
                Calls::Reservations => {
                    ask(&reservation(id(call), false));
                    ask(&reservation(id(call + IDS - OPEN), true));
                }
            }
        })
    }
}

/// Decides, and returns the slot that was taken.
fn ask(rules: &RuleSet, store: &MemoryStore, at: Timestamp, request: &Request<'_>) -> Option<Slot> {
    let plan = rules.plan(request, Modes::default());
    let decision = black_box(conclude(&plan, &store.apply(&plan, at)));
    decision.slots().next().map(|(.., slot)| slot)
}

fn reservation(id: &str, is_commit: bool) -> Request<'_> {
    user(None).with_reservation(Reservation { id, hits: 3, ttl_nanos: None, is_commit })
}

fn release(token: &str) -> Request<'_> {
    with_call(
        Some(token),
        DescriptorOptions { hits_addend: Some(1), is_negative_hits: true, ..Default::default() },
    )
}

/// The request of a user, for the call of this id.
fn user(call: Option<&str>) -> Request<'_> {
    with_call(call, DescriptorOptions::default())
}

fn with_call(call: Option<&str>, options: DescriptorOptions) -> Request<'_> {
    let mut request = Request::new(black_box("d"), 1);
    let entries = [("user", "alice")].into_iter().chain(call.map(|call| ("call", call)));
    request.push(entries.map(|(key, value)| Entry { key, value }), options);
    request
}
