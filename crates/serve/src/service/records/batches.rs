//! Batches of several requests beside a naive oracle: whatever else is in its batch, a request is decided under its own
//! records and exceptions, on its own counters.

use std::collections::HashMap;

use proptest::prelude::*;

use super::tests::{Shop, key};
use super::*;
use crate::service::{Batch, Service, ServiceError};
use tidegate_engine::decision::{Code, Decision, Status};
use tidegate_engine::overlay::{Effect, Exception, Exceptions};
use tidegate_engine::path::{Path, PathEntry};
use tidegate_engine::request::DescriptorOptions;

/// Each with the N of its record, or without one: then it has that of its rule.
const USERS: [(&str, Option<u32>); 6] = [
    ("none", None),
    ("two", Some(2)),
    ("five", Some(5)),
    ("nine", Some(9)),
    ("zero", Some(0)),
    ("more", Some(40)),
];
const RULE: u32 = 3;
/// It has an exception too.
const EXCEPTED: (usize, u32) = (2, 7);

/// What is in one place of a batch.
#[derive(Clone, Debug)]
enum BatchItem {
    /// So many hits of each of these users.
    Asks(u32, Vec<usize>),
    /// The same, refused after it was read.
    Refused(u32, Vec<usize>),
    Nothing,
}

fn place() -> impl Strategy<Value = BatchItem> {
    let asks = || (1_u32..3, prop::collection::vec(0..USERS.len(), 1..4));
    prop_oneof![6 => asks().prop_map(|(hits, users)| BatchItem::Asks(hits, users)), 1 => asks().prop_map(|(hits, users)| BatchItem::Refused(hits, users)), 1 => Just(BatchItem::Nothing)]
}

/// What a request was answered: whether it passes, and the N of each descriptor.
type Answer = (bool, Vec<u32>);

fn answer(decision: &Decision<'_>) -> Answer {
    let limits = decision.statuses.iter().map(|status| match status {
        Status::Limited(limited) => limited.limit.requests() as u32,
        other => panic!("{other:?} is no limit"),
    });
    (decision.code == Code::Ok, limits.collect())
}

/// The naive oracle: hits of each user at a time that stands still, and which records are known.
struct Model {
    hits: HashMap<usize, u32>,
    known: HashMap<usize, bool>,
    has_exception: bool,
}

impl Model {
    fn limit(&self, user: usize) -> u32 {
        let excepted = self.has_exception && user == EXCEPTED.0;
        if excepted { EXCEPTED.1 } else { USERS[user].1.unwrap_or(RULE) }
    }

    fn knows(&self, users: &[usize]) -> bool {
        users.iter().all(|user| self.known.get(user).is_some_and(|known| *known))
    }

    /// All hits of a request fit, or none counts.
    fn decide(&mut self, hits: u32, users: &[usize]) -> Answer {
        let mut after = self.hits.clone();
        let fit = users.iter().fold(true, |fit, &user| {
            let sum = after.entry(user).or_default();
            *sum += hits;
            fit & (*sum <= self.limit(user))
        });
        if fit {
            self.hits = after;
        }
        (fit, users.iter().map(|&user| self.limit(user)).collect())
    }
}

fn fill(request: &mut Request<'_>, hits: u32, users: &[usize]) {
    request.begin("shop", hits);
    let entry = |user: usize| [Entry { key: "user", value: USERS[user].0 }];
    users.iter().for_each(|&user| request.push(entry(user), DescriptorOptions::default()));
}

/// Decides a batch as the fronts do: first what can be decided at once, then the rest in its order.
async fn decided(service: &Service, places: &[BatchItem]) -> [Vec<(usize, Answer)>; 2] {
    let (mut batch, mut later) = (Batch::default(), Vec::new());
    for place in places {
        match place {
            BatchItem::Nothing => batch.pass(),
            BatchItem::Asks(hits, users) | BatchItem::Refused(hits, users) => {
                _ = batch.read(|request| {
                    fill(request, *hits, users);
                    if matches!(place, BatchItem::Asks(..)) { Ok(()) } else { Err(()) }
                });
            }
        }
    }
    let (live, mut now, mut then) = (service.snapshot().expect("rules"), Vec::new(), Vec::new());
    service.decide(live.in_force(), &batch, |place, _, decision| match decision {
        Some(decision) => now.push((place, answer(decision))),
        None => later.push(place),
    });
    for place in later {
        let BatchItem::Asks(hits, users) = &places[place] else { panic!("place {place} has no request") };
        let read = |request: &mut Request<'_>| {
            fill(request, *hits, users);
            Ok::<_, ServiceError>(())
        };
        let answered = service.finish(live.in_force(), read, None, |_, decision| answer(decision)).await;
        then.push((place, answered.expect("memory answers")));
    }
    [now, then]
}

async fn judged(batches: Vec<Vec<BatchItem>>, has_exception: bool) -> Result<(), TestCaseError> {
    let shop = Shop::with(StaleMode::Deny, 100);
    USERS.iter().for_each(|(user, n)| shop.source.set(user, n.map(|n| Record::of(n.into()))));
    let service = shop.service(1_000);
    if has_exception {
        let level = PathEntry { key: "user".to_owned(), value: Some(USERS[EXCEPTED.0].0.to_owned()) };
        let effect = Effect::Limit { requests: Some(EXCEPTED.1.into()), burst: None };
        service.except(Exceptions::new(&[Exception {
            path: Path { domain: "shop".into(), entries: vec![level] },
            effect,
        }]));
    }
    let (hits, known) = Default::default();
    let mut model = Model { hits, known, has_exception };
    for (number, places) in batches.iter().enumerate() {
        let asks = places.iter().enumerate().filter_map(|(place, it)| match it {
            BatchItem::Asks(hits, users) => Some((place, *hits, users)),
            _ => None,
        });
        let due: (Vec<_>, Vec<_>) = asks.partition(|(_, _, users)| model.knows(users));
        let mut decide = |(place, hits, users): (usize, u32, &Vec<usize>)| {
            users.iter().for_each(|&user| _ = model.known.insert(user, true));
            (place, model.decide(hits, users))
        };
        let now: Vec<_> = due.0.into_iter().map(&mut decide).collect();
        let expected = [now, due.1.into_iter().map(&mut decide).collect()];
        prop_assert_eq!(decided(&service, places).await, expected, "{:?}", places);
        // A key that has changed is not known again.
        let user = number % USERS.len();
        shop.records.forget(&key(USERS[user].0));
        model.known.insert(user, false);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn each_request_of_a_batch_has_its_own_records(
        batches in prop::collection::vec(prop::collection::vec(place(), 1..=crate::service::BATCH_MAX), 1..12),
        has_exception in any::<bool>(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        runtime.block_on(judged(batches, has_exception))?;
    }
}
