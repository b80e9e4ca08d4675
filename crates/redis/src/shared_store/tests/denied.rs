//! What a node remembers of denials, under the test's own time.

use futures_util::future::poll_immediate;

use super::*;

const DAY: Duration = Duration::from_secs(86_400);

fn store() -> SharedStore {
    store_with(SharedStoreOptions { deny_cache_bytes: 1 << 20, ..SharedStoreOptions::default() })
}

/// Lets the node know that Redis denied this check for a day. After `lasts` it asks again.
fn learn(store: &SharedStore, check: &Check<'_>, asked: Instant, lasts: Duration) {
    let reset_nanos = DAY.as_nanos() as u64;
    let over = Verdict { over: true, before: 1, after: 2, remaining: 0, reset_nanos, is_counted: true };
    store.deny_cache.learn(check, &over, asked, lasts);
}

#[tokio::test]
async fn hits_that_go_back_make_a_node_forget_its_denials_of_each_counter() {
    let (store, rules) = (store(), rules());
    let [request, refund] = [1, -1].map(|hits| request(&["one", "three"], hits));
    let plan = rules.plan(&request, Modes::default());
    checks(&plan).for_each(|(_, check)| learn(&store, check, monotonic(), DAY));
    assert_eq!(store.deny_cache.totals().1, 2);
    drop(store.begin_refunds(&rules.plan(&refund, Modes::default())));
    assert_eq!(store.deny_cache.totals().1, 0);
}

/// Until Redis has given the hits back, it may deny others.
#[tokio::test]
async fn a_denial_that_comes_while_hits_go_back_is_forgotten() {
    let (store, rules) = (store(), rules());
    assert_eq!(ask(&store, &rules, &["three"], 1, Modes::default()).await.0, Code::Ok);
    let [request, refund] = [1, -1].map(|hits| request(&["three"], hits));
    let [plan, refund_plan] = [&request, &refund].map(|it| rules.plan(it, Modes::default()));
    let check = check_at(&plan, 0).expect("a rule");
    let under_way = store.unsynced.take(std::iter::once((check.key, &check.limit)), monotonic());
    let mut refunded = Box::pin(store.apply(&refund, &refund_plan, None));
    assert!(poll_immediate(&mut refunded).await.is_none(), "it waits for the call that has the hits");
    learn(&store, check, monotonic() + DAY / 2, DAY);
    assert_eq!(store.deny_cache.totals().1, 1);
    drop(under_way);
    refunded.await.expect("it decides alone");
    assert_eq!(store.deny_cache.totals().1, 0);
}

/// What goes back makes room: also for who was denied because of the hits of this node's own lease.
#[tokio::test]
async fn the_end_of_a_lease_makes_a_node_forget_the_denial_of_its_counter() {
    let (store, rules) = (store(), rules());
    let request = request(&["leased"], 1);
    let plan = rules.plan(&request, Modes::default());
    let check = check_at(&plan, 0).expect("a rule");
    let demand = demand(&store, check).expect("it is asked often enough");
    grant(&demand, check, 2);
    drop(demand);
    learn(&store, check, monotonic(), DAY);
    assert_eq!(store.deny_cache.totals().1, 1);
    assert_eq!(store.end_leases(Duration::MAX), 2);
    assert_eq!(store.deny_cache.totals().1, 0);
}

/// A request that still held some of them was given up after the end of their lease.
#[tokio::test]
async fn hits_of_a_lease_that_come_back_after_its_end_make_a_node_forget_the_denial_of_its_counter() {
    let (store, rules) = (store(), rules());
    let request = request(&["leased"], 1);
    let plan = rules.plan(&request, Modes::default());
    let check = check_at(&plan, 0).expect("a rule");
    grant(&demand(&store, check).expect("it is asked often enough"), check, 2);
    let held = store.hold(&plan, since_boot(), &mut smallvec![None]);
    assert_eq!(store.end_leases(Duration::MAX), 1);
    learn(&store, check, monotonic(), DAY);
    assert_eq!(store.deny_cache.totals().1, 1);
    drop(held);
    assert_eq!(store.deny_cache.totals().1, 0);
}

/// Of two hits and two, three fit: one descriptor is over because of the other, and the counter has room for one.
#[tokio::test]
async fn a_request_that_asks_for_a_counter_twice_proves_no_denial_of_one() {
    let (store, rules) = (store(), rules());
    let learnt = |keys: &[&str], over: &[bool]| {
        let request = request(keys, 2);
        let plan = rules.plan(&request, Modes::default());
        let reset_nanos = DAY.as_nanos() as u64;
        let counter = |&over: &bool| CounterAnswered {
            verdict: Verdict { over, before: 2, after: 4, remaining: 1, reset_nanos, is_counted: true },
            charged: 0,
            stamp: ChargeId::default(),
            quiet_nanos: reset_nanos,
        };
        let outcomes: Outcomes = over.iter().map(|over| Some(Ok(counter(over)))).collect();
        store.learn(&plan, &outcomes, monotonic());
        store.deny_cache.totals().1
    };
    assert_eq!(learnt(&["three", "three"], &[false, true]), 0);
    assert_eq!(learnt(&["one", "three"], &[false, true]), 1);
}

/// Nobody knows when a call ends whose hits are held.
#[tokio::test]
async fn a_denial_by_a_limit_with_reservations_is_not_remembered() {
    let learnt = |reserve: &str| {
        let rules = rules_of(&format!(
            "domain: shop\ndescriptors: [{{key: user, rate_limit: {{unit: day, requests_per_unit: 3}}{reserve}}}]"
        ));
        let (store, request) = (store(), request(&["user"], 1));
        let plan = rules.plan(&request, Modes::default());
        let reset_nanos = DAY.as_nanos() as u64;
        let verdict =
            Verdict { over: true, before: 3, after: 4, remaining: 0, reset_nanos, is_counted: true };
        let stamp = ChargeId::default();
        let over = CounterAnswered { verdict, charged: 0, stamp, quiet_nanos: reset_nanos };
        store.learn(&plan, &[Some(Ok(over)), None], monotonic());
        store.deny_cache.totals().1
    };
    assert_eq!(["", ", reserve: {ttl: 60s}"].map(learnt), [1, 0]);
}

/// A fixed window keeps the hits of a request that another slot denies, but for those that
/// STOP_CACHE_KEY_INCREMENT_WHEN_OVER_LIMIT has go back.
#[tokio::test]
async fn a_denial_is_remembered_for_a_moment_where_the_hits_that_filled_its_counter_may_go_back() {
    let rules = rules_of(
        "domain: shop\ndescriptors: [{key: window, rate_limit: {unit: day, requests_per_unit: 3, algorithm: fixed_window}}, \
         {key: log, rate_limit: {unit: day, requests_per_unit: 3, algorithm: sliding_log}}]",
    );
    let servers = Servers::Cluster(vec![Address::Tcp("127.0.0.1".to_owned(), 1)]);
    let cluster = RedisStore::new(RedisOptions::new(servers));
    let store = SharedStore { main: cluster, ..store() };
    let is_provisional = |key, stop_increment_when_over, quiet_nanos| {
        let request = request(&[key], 1);
        let plan = rules.plan(&request, Modes { stop_increment_when_over, ..Modes::default() });
        let check = check_at(&plan, 0).expect("a rule");
        let verdict =
            Verdict { over: true, before: 3, after: 4, remaining: 0, reset_nanos: 9, is_counted: true };
        let counter = CounterAnswered { verdict, charged: 0, stamp: ChargeId::default(), quiet_nanos };
        store.may_be_provisional(&plan, check, &counter)
    };
    let all = |quiet_nanos| {
        [("log", false), ("window", false), ("window", true)]
            .map(|(key, stops)| is_provisional(key, stops, quiet_nanos))
    };
    assert_eq!([all(0), all(DAY.as_nanos() as u64)], [[true, false, true], [false; 3]]);
}

/// A node that knows only of the denial of a limit need not ask for the ban: unless the key may be banned, which an operator
/// may have lifted meanwhile.
#[tokio::test]
async fn a_ban_that_may_go_on_is_asked_for_again() {
    let rules = rules_of(
        "domain: shop\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 1}, \
         ban: {after: 3 denials, within: 60s, every: 1s, for: 100s}}]",
    );
    let (store, now) = (store(), monotonic());
    let request = request(&["user"], 1);
    let plan = rules.plan(&request, Modes::default());
    let [limited, ban] = [0, 1].map(|place| check_at(&plan, place).expect("both"));
    assert!(ban.is_ban());
    let answers = |second: u64| {
        let mut verdicts = smallvec![None; plan.places()];
        store.remember(&plan, now + Duration::from_secs(second), &mut verdicts);
        verdicts.iter().map(|verdict: &Option<Verdict>| verdict.map(|it| it.over)).collect::<Vec<_>>()
    };
    learn(&store, limited, now, DAY);
    assert_eq!(answers(0), [Some(true), Some(false)]);
    learn(&store, ban, now, BAN_REMEMBERED);
    assert_eq!([answers(0), answers(1)], [[Some(true); 2], [Some(true), None]]);
}

#[tokio::test]
async fn bans_are_remembered_only_where_denials_are() {
    let rules = rules_of(
        "domain: shop\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 1}, \
         ban: {after: 3 denials, within: 60s, for: 100s}}]",
    );
    let request = request(&["user"], 1);
    let plan = rules.plan(&request, Modes::default());
    let ban = check_at(&plan, 1).expect("it follows its limit");
    let remembered = |store: SharedStore| {
        let banned =
            Verdict { over: true, before: 0, after: 0, remaining: 0, reset_nanos: 5_000, is_counted: true };
        store.learn_ban(ban, &banned, monotonic());
        store.deny_cache.totals().1
    };
    assert_eq!([store(), super::store()].map(remembered), [1, 0]);
}
