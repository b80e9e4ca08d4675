//! What a service does apart from deciding: what it counts, shows, forgets and frees. Counters are in memory, but for two tests.

use std::cell::Cell;

use super::fixture::{metrics, rules, service_at};
use super::*;
use crate::clock::monotonic;
use crate::events::{EventOptions, KeyNames, Kinds, Outlet};
use tidegate_engine::decision::{Banned, Code, Status};
use tidegate_engine::key::{Key, KeySecret};
use tidegate_engine::limit::Algorithm;
use tidegate_engine::memory::{Cold, MemoryOptions, MemoryStore};
use tidegate_engine::overlay::{Effect, Exception, Label};
use tidegate_engine::path::{Path, PathEntry};
use tidegate_engine::plan::{Hits, Step};
use tidegate_engine::request::{DescriptorOptions, Entry};
use tidegate_engine::rules::{LoadOptions, Reach, ResetPath, RulesFormat, SourceFile, StoreFailure, load};
use tidegate_engine::time::SECOND_NANOS;
use tidegate_redis::address::{Address, Servers};
use tidegate_redis::{RedisOptions, RedisStore, SharedStore, SharedStoreOptions};

const RULES: &str = "
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: minute, requests_per_unit: 1}}
  - {key: path, rate_limit: {unit: minute, requests_per_unit: 1}}
  - {key: host, rate_limit: {unit: minute, requests_per_unit: 1}}
  - {key: tenant, rate_limit: {unit: hour, requests_per_unit: 1, algorithm: token_bucket}}
";

/// A clock that stands still.
fn clock() -> Clock {
    Clock::new(monotonic() + Duration::from_secs(86_400), Timestamp::from_secs(1_000))
}

/// The result of `show` for the decision of one hit of this user.
fn decided<T>(service: &Service, user: &str, show: impl Fn(&Decision<'_>) -> T) -> T {
    let mut batch = Batch::default();
    batch.put(Request::new("shop", 1).descriptor(&[("user", user)]));
    let (live, mut shown) = (service.snapshot().expect("rules"), None);
    service.decide(live.in_force(), &batch, |_, _, decision| shown = decision.map(&show));
    shown.expect("memory answers at once")
}

/// A request with a cost of its own.
fn of_cost<'r>(hits: u64) -> Request<'r> {
    let mut request = Request::new("shop", 0);
    let own = DescriptorOptions { hits_addend: Some(hits), ..DescriptorOptions::default() };
    request.push([Entry { key: "user", value: "a" }], own);
    request
}

#[test]
fn rules_are_shown_in_the_order_of_their_paths() {
    let service = service_at(clock(), Some(RULES), &metrics());
    let live = service.snapshot().expect("rules");
    let keys = live.by_path().iter().map(|&id| live.rules().rules()[id].path());
    assert_eq!(keys.collect::<Vec<_>>(), ["shop.host", "shop.path", "shop.tenant", "shop.user"]);
}

#[test]
fn what_was_learnt_of_costs_stays_when_rules_are_reloaded() {
    let service = service_at(clock(), Some(RULES), &metrics());
    let request = of_cost(1);
    let is_reported = || {
        let live = service.snapshot().expect("rules");
        live.rules().plan(&request, Modes::default()).has_reports()
    };
    assert!(is_reported(), "at first an own cost is one that was spent");
    for _ in 0..100 {
        let mut batch = Batch::default();
        batch.put(request.clone());
        service.decide(service.snapshot().expect("rules").in_force(), &batch, |_, _, _| {});
    }
    assert!(!is_reported(), "nobody asks before");
    service.install(rules(&RULES.replace("requests_per_unit: 1", "requests_per_unit: 2")));
    assert!(!is_reported(), "after the reload too");
}

/// A node with counters in a Redis that was never connected. It decides alone.
fn sharing() -> (Service, Arc<SharedStore>) {
    let main = RedisStore::new(RedisOptions::new(Servers::Single(Address::Tcp("127.0.0.1".to_owned(), 1))));
    let local = Arc::new(MemoryStore::new(MemoryOptions::new(1 << 20)));
    let options = SharedStoreOptions {
        mode: StoreFailure::Local,
        deny_cache_bytes: 1 << 20,
        ..SharedStoreOptions::default()
    };
    let shared = Arc::new(SharedStore::new(main, None, local, clock(), options));
    let service = Service::new(Counters::Shared(Arc::clone(&shared)), metrics(), clock(), Modes::default());
    service.install(rules(RULES));
    (service, shared)
}

/// The second plan of a request has to be the first, though costs mean something else by then.
#[tokio::test]
async fn a_cost_that_was_reported_stays_reported_while_redis_is_asked() {
    let (service, _) = sharing();
    let live = service.snapshot().expect("rules");
    let live = live.in_force();
    let reads = Cell::new(0);
    let read = |request: &mut Request<'_>| {
        *request = of_cost(5);
        if reads.replace(reads.get() + 1) == 1 {
            let plan = live.rules().plan(request, Modes::default());
            (0..100).for_each(|_| live.rules().observe_costs(request, &plan));
        }
        Ok::<_, ServiceError>(())
    };
    service.finish(live, read, None, |_, _| ()).await.expect("it decides alone");
    assert!(!live.rules().plan(&of_cost(1), Modes::default()).has_reports(), "the next is asked for");
    let asks = |request: &mut Request<'_>| {
        *request = of_cost(1);
        Ok::<_, ServiceError>(())
    };
    let code = service.finish(live, asks, None, |_, decision| decision.code).await;
    assert_eq!(code, Ok(Code::OverLimit), "what was spent is charged, though it is more than N");
}

/// Nobody has to be asked whether an exception denies.
#[tokio::test]
async fn who_is_denied_by_an_exception_is_denied_before_the_work_though_redis_does_not_answer() {
    let (service, _) = sharing();
    service.install(rules(&RULES.replace("{unit: minute,", "{unit: minute, algorithm: fixed_window,")));
    let ends = Timestamp::from_secs(1);
    let label = Arc::new(Label { id: "a".to_owned(), made: None, until: Some(ends) });
    service.except(Exceptions::new(&[exception("user", "a", Effect::Deny)]).labelled(vec![label]));
    let live = service.snapshot().expect("rules");
    for of_both in [false, true] {
        let asks = |request: &mut Request<'_>| {
            *request = of_cost(0);
            if of_both {
                request.push([Entry { key: "path", value: "a" }], DescriptorOptions::default());
            }
            Ok::<_, ServiceError>(())
        };
        let code = service.finish(live.in_force(), asks, None, |_, decision| decision.code).await;
        assert_eq!(code, Ok(Code::OverLimit));
    }
}

/// A bucket drains faster under a larger N, so a denial by the numbers of before may be wrong afterwards.
#[test]
fn a_node_forgets_denials_when_its_rules_or_its_exceptions_change() {
    let (service, shared) = sharing();
    let request = Request::new("shop", 1).descriptor(&[("tenant", "a")]);
    let learn = || {
        let live = service.snapshot().expect("rules");
        let plan = live.rules().plan(&request, Modes::default());
        let question = shared.question(&request, &plan, None).expect("one counter");
        // The bucket is full: `Answered` says which number is which.
        let now = 1_000_000_000;
        let reply = vec![now, 1, 1, 0, 0, now, 1, 1, 0, 0];
        shared.answered(&plan, question, Ok(reply)).expect("an answer");
    };
    let is_denied = || {
        let mut batch = Batch::default();
        batch.put(request.clone());
        let (live, mut code) = (service.snapshot().expect("rules"), None);
        service.decide(live.in_force(), &batch, |_, _, decision| code = decision.map(|it| it.code));
        code.map(|code| code == Code::OverLimit)
    };
    let changes: [&dyn Fn(); 2] =
        [&|| service.except(Exceptions::default()), &|| _ = service.install(rules(RULES))];
    for change in changes {
        learn();
        assert_eq!(is_denied(), Some(true));
        change();
        assert_eq!(is_denied(), None, "Redis has to be asked");
    }
}

#[test]
fn a_service_says_how_long_lost_counters_count_as_full() {
    let cold = Cold::since(Timestamp::from_secs(990), 3_600 * SECOND_NANOS);
    let store = Arc::new(MemoryStore::new(MemoryOptions::new(1 << 20)).cold(cold));
    let service = Service::new(Counters::Memory(store), metrics(), clock(), Modes::default());
    assert_eq!(service.cold_nanos_left(60 * SECOND_NANOS), 50 * SECOND_NANOS);
    assert_eq!(service.cold_nanos_left(7_200 * SECOND_NANOS), 0, "long windows are exempt");
}

#[test]
fn rules_without_room_for_series_of_their_own_are_counted() {
    let service = service_at(clock(), None, &metrics());
    let text = |count: usize| {
        let rule = |at| format!("\n  - {{key: k{at}, rate_limit: {{unit: day, requests_per_unit: 1}}}}");
        format!("domain: shop\ndescriptors:{}", (0..count).map(rule).collect::<String>())
    };
    assert_eq!(service.install(rules(&text(50))), 0);
    let (some, more) = (service.install(rules(&text(150))), service.install(rules(&text(157))));
    assert!((50..60).contains(&some), "100 series are all there are: {some}");
    assert_eq!(more, some + 7);
}

#[test]
fn a_ban_is_shown_with_its_key_and_its_length() {
    let limit = "rate_limit: {unit: day, requests_per_unit: 1}";
    let ban = "ban: {after: 1 denial, within: 1m, for: 1h, doubling_to: 1h}";
    let text = format!("domain: shop\ndescriptors: [{{key: user, {limit}, {ban}}}]");
    let service = service_at(clock(), Some(&text), &metrics());
    let codes = [(); 3].map(|()| decided(&service, "alice", |decision| decision.code));
    assert_eq!(codes, [Code::Ok, Code::OverLimit, Code::OverLimit], "the last one by the ban");
    let bans = service.known_bans();
    let shown = bans.iter().map(|ban| (&*ban.domain, &*ban.rule, ban.until.nanos_since(ban.since)));
    assert_eq!(shown.collect::<Vec<_>>(), [("shop", "shop.user", 3_600 * SECOND_NANOS)]);
}

/// A node whose counters are in this store, with a ban that longer ones follow.
fn with_bans(store: &Arc<MemoryStore>) -> Service {
    let limit = "rate_limit: {unit: day, requests_per_unit: 1}";
    let ban = "ban: {after: 1 denial, within: 1m, for: 1h, doubling_to: 8h}";
    let text = format!("domain: shop\ndescriptors: [{{key: user, {limit}, {ban}}}]");
    let service = Service::new(Counters::Memory(Arc::clone(store)), metrics(), clock(), Modes::default());
    service.install(rules(&text));
    service
}

/// For how many seconds the key is banned, as a decision says it.
fn banned_secs(service: &Service, user: &str) -> Option<u64> {
    decided(service, user, |decision| decision.bans().first().map(|ban| ban.nanos_left / SECOND_NANOS))
}

#[tokio::test]
async fn a_ban_by_an_operator_lasts_as_long_as_they_said_whatever_was_there_before() {
    let service = with_bans(&Arc::new(MemoryStore::new(MemoryOptions::new(1 << 20))));
    let request = Request::new("shop", 1).descriptor(&[("user", "alice")]);
    (0..2).for_each(|_| decided(&service, "alice", |_| ()));
    assert_eq!(banned_secs(&service, "alice"), Some(3_600), "by its denial");
    // Shorter than that, and longer than a ban by denials may be.
    for secs in [60, 36_000, 30] {
        service.ban(&request, secs).await.expect("there is a rule with a ban");
        assert_eq!(banned_secs(&service, "alice"), Some(secs.into()));
    }
}

#[tokio::test]
async fn a_ban_that_was_lifted_is_known_no_longer() {
    let service = with_bans(&Arc::new(MemoryStore::new(MemoryOptions::new(1 << 20))));
    (0..2).for_each(|_| decided(&service, "alice", |_| ()));
    assert_eq!(service.known_bans().len(), 1);
    let request = Request::new("shop", 1).descriptor(&[("user", "alice")]);
    assert_eq!([service.lift(&request).await, service.lift(&request).await], [Ok(true), Ok(false)]);
    assert_eq!(service.known_bans(), []);
}

/// What could not be changed is as it was.
#[tokio::test]
async fn a_known_ban_stays_if_there_is_no_memory_to_change_it() {
    let service = with_bans(&Arc::new(MemoryStore::new(MemoryOptions::new(0))));
    let (live, request) =
        (service.snapshot().expect("rules"), Request::new("shop", 1).descriptor(&[("user", "a")]));
    let plan = live.rules().plan(&request, Modes::default());
    let Some(Step::Check(ban)) = plan.steps.last() else { panic!("a ban is the last step") };
    let (descriptor, rule, has_begun) = (0, ban.origin.rule().expect("of a rule"), true);
    let banned = Banned { descriptor, rule, key: ban.key, nanos_left: 60 * SECOND_NANOS, has_begun };
    service.bans().observe(&request, &banned, service.now());
    assert_eq!(service.ban(&request, 5).await, Err(BanError::NoRoom));
    assert_eq!(service.known_bans().len(), 1);
}

/// A process that has memory for one counter, and not for two.
#[tokio::test]
async fn a_ban_of_several_keys_is_only_done_if_there_is_room_for_all() {
    let with_room = |bytes| with_bans(&Arc::new(MemoryStore::new(MemoryOptions::new(bytes))));
    let one = Request::new("shop", 1).descriptor(&[("user", "alice")]);
    let mut bytes = 0;
    while with_room(bytes).ban(&one, 60).await.is_err() {
        bytes += 1;
    }
    let both = one.descriptor(&[("user", "bob")]);
    let service = with_room(bytes);
    assert_eq!(service.ban(&both, 60).await, Err(BanError::NoRoom));
    assert_eq!(with_room(1 << 20).ban(&both, 60).await, Ok(()));
}

#[test]
fn bans_that_are_over_are_forgotten_though_nobody_asks_for_their_keys() {
    let service = with_bans(&Arc::new(MemoryStore::new(MemoryOptions::new(1 << 20))));
    let (live, request) =
        (service.snapshot().expect("rules"), Request::new("shop", 1).descriptor(&[("user", "alice")]));
    let rule = &live.rules().rules()[0];
    for (key, nanos_left) in [(Key(1), 0), (Key(2), 1)] {
        let banned = Banned { descriptor: 0, rule, key, nanos_left, has_begun: true };
        service.bans().observe(&request, &banned, service.now());
    }
    service.reclaim();
    assert_eq!(service.bans().totals().known, 1, "the one that is in force");
}

#[tokio::test]
async fn lifting_a_ban_gives_no_hits_back() {
    let service = with_bans(&Arc::new(MemoryStore::new(MemoryOptions::new(1 << 20))));
    let request = Request::new("shop", 1).descriptor(&[("user", "alice")]);
    let code = || decided(&service, "alice", |decision| decision.code);
    assert_eq!(code(), Code::Ok);
    assert_eq!(service.lift(&request).await, Ok(false));
    assert_eq!(code(), Code::OverLimit, "the one hit of the day is spent");
}

/// What is tried in place of the limit counts hits: a ban has none.
#[tokio::test]
async fn a_ban_by_an_operator_leaves_the_candidate_of_the_limit_alone() {
    let limit = "rate_limit: {unit: day, requests_per_unit: 9, candidate: {requests_per_unit: 5}}";
    let ban = "ban: {after: 1 denial, within: 1m, for: 1h}";
    let text = format!("domain: shop\ndescriptors: [{{key: user, {limit}, {ban}}}]");
    let service = service_at(clock(), Some(&text), &metrics());
    let request = Request::new("shop", 1).descriptor(&[("user", "alice")]);
    assert_eq!(service.ban(&request, 60).await, Ok(()));
    assert_eq!(service.lift(&request).await, Ok(true));
    let before = decided(&service, "alice", |decision| decision.trials()[0].limited.verdict.before);
    assert_eq!(before, 0);
}

/// Requests ask for no ban then, but the next process may enforce its rules.
#[tokio::test]
async fn an_operator_bans_and_lifts_under_shadow_mode_too() {
    let store = Arc::new(MemoryStore::new(MemoryOptions::new(1 << 20)));
    let modes = Modes { shadow: true, ..Modes::default() };
    let service = Service::new(Counters::Memory(store), metrics(), clock(), modes);
    service.install(rules(
        "domain: shop\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 9}, \
         ban: {after: 1 denial, within: 1m, for: 1h}}]",
    ));
    let request = Request::new("shop", 1).descriptor(&[("user", "alice")]);
    assert_eq!(service.ban(&request, 60).await, Ok(()));
    assert_eq!(service.lift(&request).await, Ok(true));
}

#[test]
fn of_a_batch_each_limit_of_limitador_decides_that_it_meets() {
    let text = r#"
- {namespace: shop, name: one, max_value: 1, seconds: 60, variables: [], conditions: ['descriptors[0]["user"] == "alice"']}
- {namespace: shop, name: nine, max_value: 9, seconds: 60, variables: [], conditions: []}
"#;
    let options = LoadOptions::new(KeySecret::new([7; 16])).format(RulesFormat::Limitador);
    let file = SourceFile { name: "limits.yaml".to_owned(), bytes: text.into(), presumed: false };
    let service = service_at(clock(), None, &metrics());
    service.install(load(&[file], &options).expect("good limits").rules);
    let mut batch = Batch::default();
    for user in ["alice", "bob", "alice"] {
        batch.put(Request::new("shop", 1).descriptor(&[("user", user)]));
    }
    let mut shown = Vec::new();
    service.decide(service.snapshot().expect("rules").in_force(), &batch, |place, _, decision| {
        let decision = decision.expect("memory answers at once");
        shown.push((place, decision.code, decision.statuses.len()));
    });
    assert_eq!(shown, [(0, Code::Ok, 2), (1, Code::Ok, 1), (2, Code::OverLimit, 2)]);
}

/// `finish` refuses it, and says why.
#[test]
fn of_a_batch_only_a_request_that_names_a_call_by_no_id_is_left_out() {
    let text = "domain: shop\ndescriptors: [{key: user, concurrency: {slots: 9, ttl: 60s, id: call}}]";
    // A place without an id has no request.
    let decided = |ids: &[Option<&str>]| {
        let (service, mut batch) = (service_at(clock(), Some(text), &metrics()), Batch::default());
        for id in ids {
            match id {
                Some(id) => batch.put(Request::new("shop", 1).descriptor(&[("user", "alice"), ("call", id)])),
                None => batch.pass(),
            }
        }
        let mut decided = Vec::new();
        let live = service.snapshot().expect("rules");
        service.decide(live.in_force(), &batch, |_, _, decision| decided.push(decision.is_some()));
        decided
    };
    assert_eq!(decided(&[Some("one"), Some("a\nb"), Some("two")]), [true, false, true]);
    assert_eq!(decided(&[Some("a\nb"), Some("one"), Some("two")]), [false, true, true]);
    assert_eq!(decided(&[None, Some("one"), Some("a\nb")]), [true, false]);
}

#[tokio::test]
async fn a_known_ban_ends_when_the_last_answer_says() {
    let store = Arc::new(MemoryStore::new(MemoryOptions::new(1 << 20)));
    let [here, there] = [(); 2].map(|()| with_bans(&store));
    (0..2).for_each(|_| decided(&here, "alice", |_| ()));
    let known_secs = || {
        let [ban] = &here.known_bans()[..] else { panic!("one ban is known") };
        ban.until.nanos_since(ban.since) / SECOND_NANOS
    };
    assert_eq!(known_secs(), 3_600);
    let request = Request::new("shop", 1).descriptor(&[("user", "alice")]);
    there.ban(&request, 60).await.expect("there is a rule with a ban");
    assert_eq!((banned_secs(&here, "alice"), known_secs()), (Some(60), 60));
}

#[test]
fn the_reset_of_one_counter_leaves_that_of_another_in_force() {
    let service = service_at(clock(), Some(RULES), &metrics());
    let passes = || decided(&service, "alice", |decision| decision.code == Code::Ok);
    assert_eq!([passes(), passes()], [true, false]);
    for user in ["alice", "bob"] {
        let entries = vec![PathEntry { key: "user".to_owned(), value: Some(user.to_owned()) }];
        let path = Path { domain: "shop".into(), entries };
        let mut one = Epochs::default();
        one.raise(ResetPath { path, reach: Reach::Counter }, 7);
        service.begin_epochs(&one);
    }
    assert_eq!([passes(), passes()], [true, false], "the counter of alice begins again, once");
}

/// One exception of each kind. The wait of a request that one denies is an hour at most: somebody may end it earlier.
#[test]
fn exceptions_that_are_met_are_counted_by_what_they_do() {
    let service = service_at(clock(), Some(RULES), &metrics());
    let exception = |user: &str, effect| {
        let entries = vec![PathEntry { key: "user".to_owned(), value: Some(user.to_owned()) }];
        Exception { path: Path { domain: "shop".into(), entries }, effect }
    };
    let all = [
        exception("more", Effect::Limit { requests: Some(2), burst: None }),
        exception("free", Effect::Unlimited),
        exception("none", Effect::Deny),
    ];
    let label = |id: &str| Arc::new(Label { id: id.to_owned(), made: None, until: None });
    service.except(Exceptions::new(&all).labelled(["a", "b", "c"].map(label).to_vec()));
    let passing = |user: &str, hits: usize| {
        (0..hits).filter(|_| decided(&service, user, |decision| decision.code == Code::Ok)).count()
    };
    assert_eq!([passing("more", 3), passing("free", 5), passing("none", 7)], [2, 5, 0]);
    assert_eq!(passing("other", 2), 1);
    assert_eq!(service.exceptions_met(), [3, 5, 7]);
    let (met, wait) = decided(&service, "none", |decision| match &decision.statuses[0] {
        Status::Limited(limited) => (decision.exceptions().len(), limited.verdict.reset_nanos),
        other => panic!("{other:?} is no limit"),
    });
    assert_eq!((met, wait), (1, 3_600 * SECOND_NANOS));
}

/// An exception for this value, and what it does.
fn exception(key: &str, value: &str, effect: Effect) -> Exception {
    let entries = vec![PathEntry { key: key.to_owned(), value: Some(value.to_owned()) }];
    Exception { path: Path { domain: "shop".into(), entries }, effect }
}

/// A request of two descriptors, each of which has a hit left.
fn of_both<'r>() -> Request<'r> {
    Request::new("shop", 1).descriptor(&[("user", "a")]).descriptor(&[("path", "a")])
}

/// Of two descriptors the exception of the first has ended a moment ago.
#[test]
fn each_descriptor_that_an_exception_denies_waits_for_the_end_of_its_own() {
    let service = service_at(clock(), Some(RULES), &metrics());
    let label = |until| Arc::new(Label { id: "a".to_owned(), made: None, until });
    let labels = vec![label(Some(Timestamp::from_secs(1))), label(None)];
    let all = ["user", "path"].map(|key| exception(key, "a", Effect::Deny));
    service.except(Exceptions::new(&all).labelled(labels));
    let mut batch = Batch::default();
    batch.put(of_both());
    let (live, mut waits) = (service.snapshot().expect("rules"), Vec::new());
    service.decide(live.in_force(), &batch, |_, _, decision| {
        for status in &decision.expect("memory answers at once").statuses {
            let Status::Limited(limited) = status else { panic!("{status:?} is no limit") };
            waits.push(limited.verdict.reset_nanos / SECOND_NANOS);
        }
    });
    assert_eq!(waits, [0, 3_600]);
}

/// The exception ends in ten seconds, and the ban in an hour.
#[tokio::test]
async fn who_is_banned_waits_for_the_ban_though_an_exception_that_denies_ends_before() {
    let service = with_bans(&Arc::new(MemoryStore::new(MemoryOptions::new(1 << 20))));
    let request = Request::new("shop", 1).descriptor(&[("user", "alice")]);
    service.ban(&request, 3_600).await.expect("there is a rule with a ban");
    let until = service.runtime.wall().plus(10 * SECOND_NANOS);
    let label = Label { id: "a".to_owned(), made: None, until: Some(until) };
    let none = exception("user", "alice", Effect::Deny);
    service.except(Exceptions::new(&[none]).labelled(vec![Arc::new(label)]));
    let waits = |user| decided(&service, user, |decision| decision.retry_after_secs());
    assert_eq!(waits("alice"), Some(3_600));
}

/// A period of a calendar ends long after the ban.
#[tokio::test]
async fn who_is_banned_waits_for_the_ban_and_not_until_all_that_is_spent_is_back() {
    const BUDGET: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {requests_per_unit: 2, period: {calendar: month}}
    ban: {after: 1 denial, within: 1m, for: 1h}
  - {key: path, rate_limit: {unit: minute, requests_per_unit: 9}}
";
    let service = service_at(clock(), Some(BUDGET), &metrics());
    let waits = || {
        let mut batch = Batch::default();
        batch.put(of_both());
        let (live, mut wait) = (service.snapshot().expect("rules"), None);
        service.decide(live.in_force(), &batch, |_, _, decision| {
            wait = decision.and_then(|decision| decision.retry_after_secs());
        });
        wait
    };
    let ban = async || {
        let request = Request::new("shop", 1).descriptor(&[("user", "a")]);
        service.ban(&request, 60).await.expect("there is a rule with a ban");
    };
    assert_eq!(waits(), None);
    ban().await;
    assert_eq!(waits(), Some(60), "a hit is left");
    assert_eq!(service.lift(&Request::new("shop", 1).descriptor(&[("user", "a")])).await, Ok(true));
    assert_eq!(waits(), None);
    ban().await;
    assert!(waits() > Some(86_400), "none is left");
}

/// Of two descriptors that are denied, an exception has changed the limit of one.
#[tokio::test]
async fn an_event_shows_the_exception_of_its_own_descriptor() {
    let (names, (_ends, end)) = (KeyNames::new(b"secret", false), tokio::sync::watch::channel(()));
    let (outlet, mut queue) = Outlet::new("lines", 9, names.clone(), end);
    let kinds = Kinds::parse("denied").expect("a kind");
    let options = EventOptions { kinds, near: 0.8, per_second_max: 9, queue_max: 9 };
    let events = Events::new(options, &names, (monotonic(), clock()), vec![outlet]);
    let service = service_at(clock(), None, &metrics()).emitting(Some(Arc::new(events)));
    service.install(rules(RULES));
    let none = exception("path", "a", Effect::Limit { requests: Some(0), burst: None });
    let label = Label { id: "a".to_owned(), made: None, until: None };
    service.except(Exceptions::new(&[none]).labelled(vec![Arc::new(label)]));
    decided(&service, "a", |_| ());
    let mut batch = Batch::default();
    batch.put(of_both());
    service.decide(service.snapshot().expect("rules").in_force(), &batch, |_, _, _| ());
    let lines = queue.take(9).await;
    let excepted = lines.iter().filter(|line| line.contains("exception"));
    let rules: Vec<_> = excepted.filter(|line| line.contains("shop.path")).collect();
    assert_eq!((lines.len(), rules.len()), (2, 1), "{lines:?}");
    assert!(lines.iter().all(|line| line.contains("exception") == line.contains("shop.path")), "{lines:?}");
}

/// An exception that ends soon denies one limit of a rule, and calls in flight deny for longer: these are shown.
#[test]
fn metrics_count_the_limit_that_is_shown_under_an_exception() {
    const BOTH: &str = "
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: minute, requests_per_unit: 9}, concurrency: {slots: 1, ttl: 60s, id: call}}
";
    let metrics = metrics();
    let service = service_at(clock(), Some(BOTH), &metrics);
    let shown_to = |call: &str| {
        let mut batch = Batch::default();
        batch.put(Request::new("shop", 5).descriptor(&[("user", "alice"), ("call", call)]));
        let (live, mut shown) = (service.snapshot().expect("rules"), None);
        service.decide(live.in_force(), &batch, |_, _, decision| {
            if let Some(Status::Limited(limited)) = decision.map(|decision| decision.statuses[0]) {
                shown = Some((limited.limit.algorithm(), limited.hits));
            }
        });
        shown
    };
    assert_eq!(shown_to("1"), Some((Algorithm::SlidingWindow, Hits::Take(5))));
    let entries = vec![PathEntry { key: "user".to_owned(), value: Some("alice".to_owned()) }];
    let deny = Exception { path: Path { domain: "shop".into(), entries }, effect: Effect::Deny };
    let ends = Label { id: "a".to_owned(), made: None, until: Some(Timestamp::from_secs(1)) };
    service.except(Exceptions::new(&[deny]).labelled(vec![Arc::new(ends)]));
    assert_eq!(shown_to("2"), Some((Algorithm::Concurrency, Hits::Take(1))));
    let text: String = metrics.scrape().collect();
    let samples = text.lines().filter(|line| line.starts_with("ratelimit_service_rate_limit_total_hits{"));
    let counts = samples.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
    assert_eq!(counts.sum::<u64>(), 6, "{text}");
}

/// The clock stands still: 60 s are left, and up to half as much more.
#[test]
fn waits_of_denials_are_lengthened_by_at_most_their_share() {
    let service = service_at(clock(), Some(RULES), &metrics()).spreading_retries(0.5);
    decided(&service, "alice", |_| ());
    let wait = || {
        decided(&service, "alice", |decision| match decision.statuses[0] {
            Status::Limited(limited) => limited.verdict.reset_nanos,
            other => panic!("{other:?}"),
        })
    };
    let waits: Vec<u64> = (0..100).map(|_| wait()).collect();
    // A bucket of the window more, at most.
    let (least, most) = (60 * SECOND_NANOS, 92 * SECOND_NANOS);
    assert!(waits.iter().all(|wait| (least..most).contains(wait)), "{waits:?}");
    let (shortest, longest) = (waits.iter().min(), waits.iter().max());
    assert!(shortest < longest, "each client waits as long: {waits:?}");
}

#[test]
fn keys_that_are_denied_are_counted() {
    let denied = Arc::new(DeniedKeys::default());
    let service =
        service_at(clock(), Some(RULES), &metrics()).counting_denied_keys(Some(Arc::clone(&denied)));
    (0..4).for_each(|_| decided(&service, "alice", |_| ()));
    let top = denied.top(9);
    assert_eq!(top.len(), 1, "{top:?}");
    assert_eq!((&*top[0].name.entries, top[0].denials.count), ("user=alice", 3));
}

/// With SHADOW_MODE every request passes.
#[test]
fn keys_of_requests_that_pass_are_not_counted_as_denied() {
    let denied = Arc::new(DeniedKeys::default());
    let store = Arc::new(MemoryStore::new(MemoryOptions::new(1 << 20)));
    let modes = Modes { shadow: true, ..Modes::default() };
    let service = Service::new(Counters::Memory(store), metrics(), clock(), modes);
    let service = service.counting_denied_keys(Some(Arc::clone(&denied)));
    service.install(rules(RULES));
    let shadowed = (0..4).filter(|_| decided(&service, "alice", |decision| decision.shadowed)).count();
    assert_eq!((shadowed, denied.top(9).len()), (3, 0));
}

/// The thread that reclaims is a reader itself: it must not be what keeps them.
#[test]
fn rules_that_nobody_reads_any_more_are_freed() {
    let service = service_at(clock(), Some(RULES), &metrics());
    decided(&service, "alice", |_| ());
    assert!(service.under_rules(|_| Ok::<_, ServiceError>(())).is_ok());
    let old = Arc::downgrade(&service.snapshot().expect("rules").0);
    service.install(rules(RULES));
    service.reclaim();
    assert!(old.upgrade().is_none());
}
