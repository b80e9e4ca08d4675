//! Two nodes of the shared store in one thread, without tokio's runtime: each has its own clock, and both share a toy
//! network and a toy Redis. The same seed gives the same run.

mod cluster;
mod epochs;
mod primaries;
mod world;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tidegate_engine::clock::Clock;
use tidegate_engine::decision::{Code, conclude};
use tidegate_engine::key::KeySecret;
use tidegate_engine::memory::{MemoryOptions, MemoryStore};
use tidegate_engine::plan::Modes;
use tidegate_engine::request::{DescriptorOptions, Entry, Request};
use tidegate_engine::rules::{LoadOptions, RuleSet, SourceFile, StoreFailure, load};
use tidegate_engine::time::Timestamp;
use tidegate_redis::address::{Address, Servers};
use tidegate_redis::runtime::Runtime;
use tidegate_redis::{
    ConnectError, Contact, Failure, RedisOptions, RedisStore, SharedStore, SharedStoreOptions,
};

use world::{Node, World};

const RULES: &str = "
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: day, requests_per_unit: 3, algorithm: fixed_window}}
";

/// Limits per second are in a second Redis.
const RULES_OF_TWO: &str = "
domain: shop
descriptors:
  - {key: call, concurrency: {slots: 9, ttl: 1m, id: id}}
  - {key: day, rate_limit: {unit: day, requests_per_unit: 9}}
  - {key: second, rate_limit: {unit: second, requests_per_unit: 1, algorithm: fixed_window}}
";

/// Hits are taken from Redis some at a time.
const LEASED_RULES: &str = "
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: day, requests_per_unit: 1000, sync: leased, cost: asked}}
";

fn rules() -> RuleSet {
    rules_of(RULES)
}

fn rules_of(text: &str) -> RuleSet {
    let file = SourceFile { name: "shop.yaml".into(), bytes: text.into(), presumed: false };
    let options = LoadOptions::new(KeySecret::new([7; 16])).strict(true);
    load(&[file], &options).expect("good rules").rules
}

/// A node whose wall clock differs from the other's.
fn store(node: &Node, wall_secs: u64) -> Arc<SharedStore<Node>> {
    store_of(node, wall_secs, None)
}

fn redis(node: &Node, host: &str) -> RedisStore<Node> {
    let kind = Servers::Single(Address::Tcp(host.to_owned(), 1));
    RedisStore::on(node.clone(), RedisOptions::new(kind))
}

fn local_options() -> SharedStoreOptions {
    SharedStoreOptions { mode: StoreFailure::Local, ..SharedStoreOptions::default() }
}

fn store_of(node: &Node, wall_secs: u64, per_second: Option<RedisStore<Node>>) -> Arc<SharedStore<Node>> {
    store_over(node, redis(node, "redis"), wall_secs, per_second, local_options())
}

fn store_over(
    node: &Node,
    main: RedisStore<Node>,
    wall_secs: u64,
    per_second: Option<RedisStore<Node>>,
    options: SharedStoreOptions,
) -> Arc<SharedStore<Node>> {
    let local = MemoryStore::new(MemoryOptions::new(1 << 20));
    let clock = Clock::new(node.monotonic(), Timestamp::from_secs(wall_secs));
    Arc::new(SharedStore::new(main, per_second, Arc::new(local), clock, options))
}

/// The code of a request for so many hits, and the remaining hits.
async fn ask(store: &SharedStore<Node>, rules: &RuleSet, user: &str, hits: u64) -> (Code, u64) {
    let mut request = Request::new("shop", 1);
    let options = DescriptorOptions { hits_addend: Some(hits), ..DescriptorOptions::default() };
    request.push([Entry { key: "user", value: user }], options);
    let plan = rules.plan(&request, Modes::default());
    let applied = match store.question(&request, &plan, None) {
        Some(question) => {
            let reply = question.ask().await;
            store.answered(&plan, question, reply)
        }
        None => store.apply(&request, &plan, None).await,
    };
    let verdicts = applied.expect("it decides alone without Redis").verdicts;
    let remaining = verdicts[0].expect("a verdict").remaining;
    (conclude(&plan, &verdicts).code, remaining)
}

async fn until_up(store: &SharedStore<Node>) {
    let (_, main) = store.stores().next().expect("the main store");
    main.contact().wait_for(|contact| *contact == Contact::Up).await.expect("the store lives");
}

/// What the nodes answered, and when.
type Run = Vec<(Duration, Code, u64)>;

fn run(seed: u64) -> Run {
    let world = Arc::new(World::default());
    let nodes =
        [Node::new(&world, seed, Duration::ZERO), Node::new(&world, !seed, Duration::from_secs(3_600))];
    let clock = Arc::clone(&world);
    world.run(async move {
        let (stores, rules) = ([store(&nodes[0], 1_000_000), store(&nodes[1], 2_000_000)], rules());
        stores.iter().for_each(SharedStore::attach);
        until_up(&stores[0]).await;
        until_up(&stores[1]).await;
        let mut run = Run::new();
        let note = |run: &mut Run, (code, remaining)| run.push((clock.now(), code, remaining));
        for (node, user, hits) in [(0, "a", 2), (1, "a", 1), (0, "a", 1)] {
            note(&mut run, ask(&stores[node], &rules, user, hits).await);
        }
        nodes[1].set_online(false);
        note(&mut run, ask(&stores[1], &rules, "b", 1).await);
        nodes[1].set_online(true);
        nodes[1].sleep(Duration::from_secs(5)).await;
        note(&mut run, ask(&stores[0], &rules, "b", 0).await);
        run
    })
}

#[test]
fn two_nodes_share_a_limit_and_a_seed_gives_the_same_run() {
    let first = run(7);
    let answers: Vec<_> = first.iter().map(|&(_, code, remaining)| (code, remaining)).collect();
    let expected = [
        (Code::Ok, 1),
        (Code::Ok, 0),
        (Code::OverLimit, 0),
        // Decided alone, and reported to Redis afterwards.
        (Code::Ok, 2),
        (Code::Ok, 2),
    ];
    assert_eq!(answers, expected);
    assert!(
        first[3].0 - first[2].0 >= Duration::from_millis(100),
        "a whole budget was waited for: {first:?}"
    );
    assert_eq!(run(7), first);
}

/// A node serves from its first connection on. What fails then is tried again as by a running node, not after the pauses of
/// the start, which grow to half a minute.
#[test]
fn a_node_that_serves_waits_no_longer_than_a_second_between_looks() {
    let world = Arc::new(World::default());
    let (node, clock) = (Node::new(&world, 7, Duration::ZERO), Arc::clone(&world));
    let (answer, waited) = world.run(async move {
        let (store, rules) = (store(&node, 1_000_000), rules());
        clock.refuse_reads(true);
        store.attach();
        node.sleep(Duration::from_secs(60)).await;
        let answer = ask(&store, &rules, "a", 1).await;
        clock.refuse_reads(false);
        let since = clock.now();
        until_up(&store).await;
        (answer, clock.now() - since)
    });
    assert_eq!(answer, (Code::Ok, 2));
    assert!(waited <= Duration::from_millis(1_100), "{waited:?}");
}

/// A call that fails for what it asks about says nothing of the server: its connection stays.
#[test]
fn a_refused_call_leaves_its_connection_open() {
    let world = Arc::new(World::default());
    let (node, clock) = (Node::new(&world, 7, Duration::ZERO), Arc::clone(&world));
    world.run(async move {
        let (store, rules) = (store(&node, 1_000_000), rules());
        store.attach();
        until_up(&store).await;
        clock.refuse_decisions(true);
        assert_eq!(ask(&store, &rules, "a", 1).await, (Code::Ok, 2), "it decides alone");
        assert_eq!(*store.main().contact().borrow(), Contact::Up);
        clock.refuse_decisions(false);
        let since = clock.now();
        ask(&store, &rules, "b", 1).await;
        assert!(clock.now() > since, "Redis was asked");
    });
}

/// Who waits has gone when such an answer comes.
#[test]
fn a_server_that_always_answers_too_late_is_connected_to_again() {
    let world = Arc::new(World::default());
    let (node, clock) = (Node::new(&world, 7, Duration::ZERO), Arc::clone(&world));
    let [opened, closed, open] = world.run(async move {
        let (store, rules) = (store(&node, 1_000_000), rules());
        store.attach();
        until_up(&store).await;
        clock.delay_decisions(Duration::from_millis(150));
        for _ in 0..5 {
            ask(&store, &rules, "a", 0).await;
        }
        clock.delay_decisions(Duration::ZERO);
        node.sleep(Duration::from_secs(5)).await;
        let stats = store.main().stats();
        let counts = [&stats.connections_opened, &stats.connections_closed].map(|count| count.load(Relaxed));
        [counts[0], counts[1], stats.connections.load(Relaxed) as u64]
    });
    assert_eq!([opened, closed, open], [2, 1, 1]);
}

/// Who waits for a script that Redis does not know has gone when it says so, or not.
#[test]
fn a_script_is_sent_as_text_only_for_who_still_waits() {
    let world = Arc::new(World::default());
    world.forget_scripts();
    let (node, clock) = (Node::new(&world, 7, Duration::ZERO), Arc::clone(&world));
    let sent = world.run(async move {
        let (store, rules) = (store(&node, 1_000_000), rules());
        store.attach();
        until_up(&store).await;
        ask(&store, &rules, "a", 1).await;
        let for_who_waits = clock.texts_sent();
        clock.delay_decisions(Duration::from_millis(150));
        ask(&store, &rules, "a", 1).await;
        node.sleep(Duration::from_secs(1)).await;
        [for_who_waits, clock.texts_sent()]
    });
    assert_eq!(sent, [1, 1]);
}

/// A node whose charges replicas have to have. They have none.
async fn unreplicated(node: &Node, world: &World) -> Arc<SharedStore<Node>> {
    let kind = Servers::Single(Address::Tcp("redis".to_owned(), 1));
    let main = RedisStore::on(node.clone(), RedisOptions { wait_replicas: 1, ..RedisOptions::new(kind) });
    let store = store_over(node, main, 1_000_000, None, local_options());
    world.set_replicas(0);
    store.attach();
    until_up(&store).await;
    store
}

#[test]
fn a_request_waits_for_replicas() {
    let world = Arc::new(World::default());
    let (node, clock) = (Node::new(&world, 7, Duration::ZERO), Arc::clone(&world));
    let failures = world.run(async move {
        let (store, rules) = (unreplicated(&node, &clock).await, rules());
        let failures = || store.main().stats().failures(Failure::Unreplicated);
        ask(&store, &rules, "a", 1).await;
        let without = failures();
        clock.set_replicas(1);
        ask(&store, &rules, "a", 1).await;
        [without, failures()]
    });
    assert_eq!(failures, [1, 1]);
}

/// Redis has them, whatever its replicas have.
#[test]
fn hits_of_an_outage_are_sent_once_though_no_replica_has_them() {
    let world = Arc::new(World::default());
    let (node, clock) = (Node::new(&world, 7, Duration::ZERO), Arc::clone(&world));
    let answers = world.run(async move {
        let rules = rules_of(
            "domain: shop\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 100, cost: asked}}]",
        );
        let store = unreplicated(&node, &clock).await;
        clock.refuse_decisions(true);
        let alone = ask(&store, &rules, "a", 2).await;
        clock.refuse_decisions(false);
        let unreplicated = ask(&store, &rules, "a", 1).await;
        clock.set_replicas(1);
        [alone, unreplicated, ask(&store, &rules, "a", 1).await]
    });
    // What replicas did not have in time the node admitted alone, and sends it once more.
    assert_eq!(answers, [98, 97, 95].map(|left| (Code::Ok, left)));
}

#[test]
fn a_lease_that_no_replica_has_is_not_spent() {
    let taken = |replicas| {
        let world = Arc::new(World::default());
        let (node, clock) = (Node::new(&world, 7, Duration::ZERO), Arc::clone(&world));
        world.run(async move {
            let (store, rules) = (unreplicated(&node, &clock).await, rules_of(LEASED_RULES));
            clock.set_replicas(replicas);
            for _ in 0..4 {
                ask(&store, &rules, "a", 1).await;
            }
            store.leases().taken
        })
    };
    assert_eq!([0, 1].map(taken), [0, 1]);
}

/// Until the end of its window Redis would count what is left of a lease that nobody spends any more.
#[test]
fn what_is_left_of_a_lease_goes_back_when_the_limit_changes() {
    let world = Arc::new(World::default());
    let (node, clock) = (Node::new(&world, 7, Duration::ZERO), Arc::clone(&world));
    let give_backs = world.run(async move {
        let rules = [LEASED_RULES, &LEASED_RULES.replace("1000", "900")].map(rules_of);
        let store = store(&node, 1_000_000);
        store.attach();
        until_up(&store).await;
        let mut give_backs = Vec::new();
        for rules in &rules {
            for _ in 0..3 {
                ask(&store, rules, "a", 1).await;
            }
            node.sleep(Duration::from_millis(5)).await;
            give_backs.push(clock.give_backs());
        }
        assert_eq!(store.leases().taken, 2);
        give_backs
    });
    assert_eq!(give_backs, [0, 1]);
}

/// Hits of several counters are reported in one call, which fails if one of them is no counter.
#[test]
fn a_key_that_is_no_counter_keeps_no_other_from_being_reported() {
    const USERS: [&str; 4] = ["a", "b", "c", "d"];
    let world = Arc::new(World::default());
    let nodes = [7, 8].map(|seed| Node::new(&world, seed, Duration::ZERO));
    let clock = Arc::clone(&world);
    let remaining = world.run(async move {
        let (stores, rules) = ([store(&nodes[0], 1_000_000), store(&nodes[1], 1_000_000)], rules());
        stores.iter().for_each(SharedStore::attach);
        until_up(&stores[0]).await;
        until_up(&stores[1]).await;
        nodes[0].set_online(false);
        for user in USERS {
            ask(&stores[0], &rules, user, 2).await;
        }
        clock.refuse_user(USERS[1]);
        nodes[0].set_online(true);
        nodes[0].sleep(Duration::from_secs(10)).await;
        let mut remaining = Vec::new();
        for user in USERS {
            remaining.push(ask(&stores[1], &rules, user, 0).await.1);
        }
        remaining.remove(1);
        remaining
    });
    assert_eq!(remaining, [1, 1, 1]);
}

/// How many counters the deny cache of a node has, which has so many bytes, after a denial.
fn remembered(deny_cache_bytes: usize) -> u64 {
    let world = Arc::new(World::default());
    let node = Node::new(&world, 7, Duration::ZERO);
    world.run(async move {
        let options = SharedStoreOptions { deny_cache_bytes, ..SharedStoreOptions::default() };
        let (store, rules) = (store_over(&node, redis(&node, "redis"), 1_000_000, None, options), rules());
        store.attach();
        until_up(&store).await;
        assert_eq!(ask(&store, &rules, "a", 3).await.0, Code::Ok);
        assert_eq!(store.deny_cache_totals().1, 0);
        assert_eq!(ask(&store, &rules, "a", 1).await.0, Code::OverLimit);
        store.deny_cache_totals().1
    })
}

#[test]
fn a_denial_is_remembered_where_there_is_a_cache() {
    assert_eq!([0, 1 << 20].map(remembered), [0, 1]);
}

/// The node answers for the limit by itself and does not ask for the ban, so the reply to its strikes has to show it.
#[test]
fn a_ban_that_reported_strikes_begin_is_remembered() {
    let world = Arc::new(World::default());
    let (node, clock) = (Node::new(&world, 7, Duration::ZERO), Arc::clone(&world));
    let is_banned = world.run(async move {
        let options = SharedStoreOptions { deny_cache_bytes: 1 << 20, ..SharedStoreOptions::default() };
        let store = store_over(&node, redis(&node, "redis"), 1_000_000, None, options);
        store.attach();
        until_up(&store).await;
        let rules = rules_of(&RULES.replace("}}", "}, ban: {after: 3, within: 60s, for: 100s}}"));
        let request = Request::new("shop", 4).descriptor(&[("user", "a")]);
        let mut is_banned = Vec::new();
        for _ in 0..5 {
            let (plan, since) = (rules.plan(&request, Modes::default()), clock.now());
            let applied = store.apply(&request, &plan, None).await.expect("Redis answers");
            let over: Vec<_> = applied.verdicts.iter().flatten().map(|verdict| verdict.over).collect();
            is_banned.push((over[1], clock.now() > since));
            node.sleep(Duration::from_millis(300)).await;
        }
        is_banned
    });
    let (asked, known) = ((false, true), (false, false));
    assert_eq!(is_banned, [asked, known, known, (true, false), (true, false)]);
}

#[test]
fn a_server_that_is_too_old_is_never_of_use() {
    let world = Arc::new(World::default());
    world.make_old();
    let node = Node::new(&world, 7, Duration::ZERO);
    world.run(async move {
        let store = store(&node, 1_000_000);
        store.attach();
        let (_, main) = store.stores().next().expect("the main store");
        let tried = |contact: &Contact| *contact != Contact::Never(None);
        let contact = main.contact().wait_for(tried).await.expect("the store lives").clone();
        assert_eq!(contact, Contact::Unusable(ConnectError::TooOld("4.0.14".to_owned())));
    });
}

/// A node whose request for these entries was charged by one Redis and denied by the other. So many times it cannot be given
/// back.
async fn denied_by_one_of_two(
    node: &Node,
    world: &World,
    entries: &'static [(&'static str, &'static str)],
    failures: usize,
) -> Arc<SharedStore<Node>> {
    let per_second = Some(redis(node, "second"));
    let (store, rules) = (store_of(node, 1_000_000, per_second), rules_of(RULES_OF_TWO));
    store.attach();
    for (_, redis) in store.stores() {
        redis.contact().wait_for(|contact| *contact == Contact::Up).await.expect("the store lives");
    }
    world.refuse_give_backs(failures);
    let request = Request::new("shop", 1).descriptor(entries).descriptor(&[("second", "x")]);
    let mut codes = Vec::new();
    for _ in 0..2 {
        let plan = rules.plan(&request, Modes::default());
        let applied = store.apply(&request, &plan, None).await.expect("Redis answers");
        codes.push(conclude(&plan, &applied.verdicts).code);
    }
    assert_eq!(codes, [Code::Ok, Code::OverLimit]);
    store
}

/// How often a node gives back what one Redis charged for a request that the other denies, when so many times fail.
fn give_backs(entries: &'static [(&'static str, &'static str)], failures: usize) -> usize {
    give_backs_to(Arc::default(), entries, failures)
}

/// The same in this world.
fn give_backs_to(
    world: Arc<World>,
    entries: &'static [(&'static str, &'static str)],
    failures: usize,
) -> usize {
    let (node, clock) = (Node::new(&world, 7, Duration::ZERO), Arc::clone(&world));
    world.run(async move {
        let _store = denied_by_one_of_two(&node, &clock, entries, failures).await;
        node.sleep(Duration::from_secs(50)).await;
        clock.give_backs()
    })
}

/// Hits that are given back twice may be those of others. A slot has a name.
#[test]
fn what_has_a_name_is_given_back_until_redis_has_done_it() {
    assert_eq!(give_backs(&[("call", "x"), ("id", "one")], 2), 3);
    assert_eq!(give_backs(&[("day", "x")], 2), 1);
}

#[test]
fn a_give_back_that_comes_too_late_is_not_done() {
    let world = Arc::new(World::default());
    world.let_give_backs_be_late();
    assert_eq!(give_backs_to(world, &[("call", "x"), ("id", "one")], 2), 3);
}

/// The slot ends by itself within a minute. Pauses grow to ten seconds.
#[test]
fn what_cannot_be_given_back_is_tried_less_and_less() {
    let times = give_backs(&[("call", "x"), ("id", "one")], usize::MAX);
    assert!((6..15).contains(&times), "{times}");
}

#[test]
fn the_end_of_a_node_does_not_wait_for_what_is_repeated() {
    let world = Arc::new(World::default());
    let (node, clock) = (Node::new(&world, 7, Duration::ZERO), Arc::clone(&world));
    let took = world.run(async move {
        let store = denied_by_one_of_two(&node, &clock, &[("call", "x"), ("id", "one")], usize::MAX).await;
        let since = clock.now();
        store.detach().await;
        clock.now() - since
    });
    assert!(took < Duration::from_secs(1), "{took:?}");
}
