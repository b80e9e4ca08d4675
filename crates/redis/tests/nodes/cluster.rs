//! A node and the servers of a Cluster: when it looks them up, and whom it asks then.

use super::*;

/// A node that was given the address of one of two servers.
async fn in_cluster(node: &Node) -> Arc<SharedStore<Node>> {
    let kind = Servers::Cluster(vec![Address::Tcp("redis".to_owned(), 1)]);
    let main = RedisStore::on(node.clone(), RedisOptions::new(kind));
    let store = store_over(node, main, 1_000_000, None, local_options());
    store.attach();
    until_up(&store).await;
    store
}

/// Asks for counters of both servers.
async fn ask_both(store: &SharedStore<Node>, rules: &RuleSet) {
    for user in ["a", "b", "c", "d"] {
        ask(store, rules, user, 0).await;
    }
}

/// Whether the servers are looked up soon after a redirect by this word.
fn looks_after(word: &'static str) -> bool {
    let world = Arc::new(World::default());
    let (node, clock) = (Node::new(&world, 7, Duration::ZERO), Arc::clone(&world));
    world.run(async move {
        let (store, rules) = (in_cluster(&node).await, rules());
        clock.primaries(|primaries| primaries.redirects = Some(("redis".to_owned(), word)));
        let before = clock.primaries(|primaries| primaries.looks);
        ask_both(&store, &rules).await;
        node.sleep(Duration::from_millis(200)).await;
        clock.primaries(|primaries| primaries.looks) > before
    })
}

/// One that is being moved is still that of its server.
#[test]
fn a_slot_that_has_moved_has_the_servers_looked_up_at_once() {
    assert_eq!(["ASK", "MOVED"].map(looks_after), [false, true]);
}

/// It may be gone for good.
#[test]
fn where_the_configured_server_is_gone_those_that_were_known_are_asked_for_all() {
    let world = Arc::new(World::default());
    let (node, clock) = (Node::new(&world, 7, Duration::ZERO), Arc::clone(&world));
    world.run(async move {
        let (store, rules) = (in_cluster(&node).await, rules());
        clock.primaries(|primaries| {
            primaries.restarts += 1;
            primaries.master = ("redis".to_owned(), Duration::from_secs(3_600));
        });
        ask_both(&store, &rules).await;
        node.sleep(Duration::from_secs(10)).await;
        let since = clock.now();
        ask_both(&store, &rules).await;
        let asked: Vec<String> = clock.primaries(|primaries| {
            primaries.asked.iter().filter(|(_, at)| *at > since).map(|(host, _)| host.clone()).collect()
        });
        assert_eq!(asked, ["second"]);
    });
}

/// As where a firewall forgets all connections at once.
#[test]
fn connections_that_were_lost_without_a_sign_are_found_out_together() {
    let world = Arc::new(World::default());
    let (node, clock) = (Node::new(&world, 7, Duration::ZERO), Arc::clone(&world));
    world.run(async move {
        clock.primaries(|primaries| primaries.further = 8);
        let store = in_cluster(&node).await;
        let (_, main) = store.stores().next().expect("the main store");
        let opened = || main.stats().connections_opened.load(Relaxed);
        assert_eq!(opened(), 10);
        clock.primaries(|primaries| (primaries.restarts, primaries.is_silent) = (1, true));
        // A second until they are probed, and twice a second until it is clear that they hang.
        node.sleep(Duration::from_millis(3_500)).await;
        assert_eq!(opened(), 20);
    });
}
