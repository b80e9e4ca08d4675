//! A node with COLD_START=deny whose primary changes: what it writes into the mark of the next one.

use super::*;
use tidegate_redis::DenyCold;

/// A node that is connected to these servers.
async fn denying(node: &Node, kind: Servers) -> Arc<SharedStore<Node>> {
    let deny_cold = DenyCold { window_max: Duration::from_secs(60), lease_time: Duration::from_millis(100) };
    let options = RedisOptions { deny_cold: Some(deny_cold), ..RedisOptions::new(kind) };
    let store = store_over(node, RedisStore::on(node.clone(), options), 1_000_000, None, local_options());
    store.attach();
    until_up(&store).await;
    store
}

fn server(host: &str) -> Address {
    Address::Tcp(host.to_owned(), 1)
}

/// Whether a node writes into marks that it has used another primary, when its server is restarted so long after the first
/// look, and the next so many marks cannot be written.
fn knows_another(used_for: Duration, marks_to_refuse: usize) -> Vec<bool> {
    let world = Arc::new(World::default());
    let (node, clock) = (Node::new(&world, 7, Duration::ZERO), Arc::clone(&world));
    world.run(async move {
        let (store, rules) = (denying(&node, Servers::Single(server("redis"))).await, rules());
        node.sleep(used_for).await;
        clock.refuse_decisions(true);
        clock.primaries(|primaries| {
            primaries.restarts += 1;
            primaries.marks_to_refuse = marks_to_refuse;
        });
        ask(&store, &rules, "a", 1).await;
        node.sleep(Duration::from_secs(5)).await;
        clock.primaries(|primaries| primaries.marks.iter().map(|mark| mark.used_other.is_some()).collect())
    })
}

#[test]
fn a_primary_that_breaks_before_the_next_look_was_used() {
    assert_eq!(knows_another(Duration::ZERO, 0), [false, true]);
}

#[test]
fn a_primary_whose_mark_was_not_written_was_not_used() {
    assert_eq!(knows_another(Duration::from_secs(3), 2), [false, true, true, true]);
}

/// A node whose sentinels name the server `one`. No server decides.
async fn behind_sentinels(node: &Node, world: &World) -> Arc<SharedStore<Node>> {
    world.primaries(|primaries| primaries.master = ("one".to_owned(), Duration::ZERO));
    let store = denying(node, Servers::Sentinel("shop".to_owned(), vec![server("sentinel")])).await;
    world.refuse_decisions(true);
    store
}

/// Where replicas accept writes, the next data of their master replaces them.
#[test]
fn a_master_that_has_become_a_replica_is_asked_no_more() {
    let world = Arc::new(World::default());
    let (node, clock) = (Node::new(&world, 7, Duration::ZERO), Arc::clone(&world));
    let is_asked = world.run(async move {
        let (store, rules) = (behind_sentinels(&node, &clock).await, rules());
        let mut is_asked = Vec::new();
        for is_replica in [false, true, false] {
            clock.primaries(|primaries| primaries.is_replica = is_replica);
            node.sleep(Duration::from_secs(3)).await;
            let since = clock.now();
            ask(&store, &rules, "a", 1).await;
            is_asked.push(clock.now() > since);
        }
        is_asked
    });
    assert_eq!(is_asked, [true, false, true]);
}

/// What it charges until then, the next one does not have.
#[test]
fn a_master_that_is_left_is_asked_no_more_while_the_next_one_is_connected() {
    let world = Arc::new(World::default());
    let (node, clock) = (Node::new(&world, 7, Duration::ZERO), Arc::clone(&world));
    let (mark, asked) = world.run(async move {
        let (store, rules) = (behind_sentinels(&node, &clock).await, rules());
        clock.primaries(|primaries| primaries.master = ("two".to_owned(), Duration::from_millis(500)));
        for _ in 0..150 {
            ask(&store, &rules, "a", 1).await;
            node.sleep(Duration::from_millis(20)).await;
        }
        clock.primaries(|primaries| (primaries.marks[1].clone(), primaries.asked.clone()))
    });
    assert_eq!((&*mark.host, &*asked[1].0), ("two", "two"), "it is asked in the end");
    assert!(mark.used_other >= Some(asked[0].1), "{mark:?} {asked:?}");
}
