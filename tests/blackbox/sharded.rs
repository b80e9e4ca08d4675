//! `examples/sharded`: three nodes that count by themselves behind a real Envoy, which sends every user to one of them.

use std::collections::HashSet;

use crate::harness::envoy::Envoy;
use crate::harness::eventually_true;
use crate::harness::grpc::{OK, ask_only, question};
use crate::harness::http::{Answer, Client};
use crate::harness::proxy::Proxy;
use crate::harness::tidegate::{Setup, Tidegate};

const RULES: &str = include_str!("../../examples/sharded/rules/shop.yaml");
const NODES: usize = 3;
/// Requests an hour and user, by the rules.
const LIMIT: u32 = 10;
/// What a request costs that the application meters, and how much a user may spend.
const COST: u32 = 28;
const METERED: u32 = 100;

/// A node that keeps its counters.
fn node() -> Setup {
    let setup = Setup::new().rules("shop.yaml", RULES).keeping_counters();
    setup.env("SHARD_KEY", "user").env("SHARD_MEMBERS", "3")
}

fn nodes() -> Vec<Tidegate> {
    (0..NODES).map(|_| node().start()).collect()
}

/// Envoy with the example's configuration, in front of these nodes.
fn envoy(nodes: &[Tidegate], changes: &[(&str, &str)]) -> Envoy {
    let ports = std::array::from_fn(|place: usize| nodes[place].ports().grpc);
    Envoy::start_sharded(ports, changes)
}

fn get(client: &mut Client, user: &str, path: &str) -> Answer {
    client.send("GET", path, &[("x-user", user)], "").expect("an answer")
}

fn users(count: usize) -> impl Iterator<Item = String> {
    (0..count).map(|number| format!("user-{number}"))
}

/// How many hits of this user a node has counted.
fn counted(node: &Tidegate, entries: &[(&str, &str)], limit: u32) -> u32 {
    limit - node.client().ask(ask_only("shop", &[entries])).statuses[0].limit_remaining
}

/// The one node that counts for this user, if any has.
fn node_of(nodes: &[Tidegate], user: &str) -> Option<usize> {
    let by: Vec<u32> = nodes.iter().map(|node| counted(node, &[("user", user)], LIMIT)).collect();
    let places: Vec<usize> = (0..by.len()).filter(|&place| by[place] > 0).collect();
    assert!(places.len() <= 1, "{user} is counted by several nodes: {by:?}");
    places.first().copied()
}

#[test]
fn every_user_has_one_node_and_gets_exactly_its_limit() {
    for changes in [&[][..], &[("lb_policy: RING_HASH", "lb_policy: MAGLEV")]] {
        let nodes = nodes();
        let envoy = envoy(&nodes, changes);
        let mut client = envoy.client();
        let mut used = HashSet::new();
        for user in users(200) {
            // Each path has a limit of its own, which none of these reaches.
            let passed = (0..LIMIT + 2).filter(|number| {
                let answer = get(&mut client, &user, &format!("/{number}"));
                assert!([200, 429].contains(&answer.status), "{answer:?}");
                answer.status == 200
            });
            assert_eq!(passed.count(), LIMIT as usize, "{user}");
            used.extend(node_of(&nodes, &user));
        }
        assert_eq!(used.len(), NODES, "every node has users");
    }
}

#[test]
fn behind_nginx_every_user_has_one_node_too() {
    let mut nodes = nodes();
    let proxy = Proxy::start_sharded(std::array::from_fn(|place: usize| nodes[place].ports().http));
    let mut client = Client::new(proxy.port);
    let all: Vec<String> = users(60).collect();
    for user in &all {
        let statuses = [(); LIMIT as usize + 1].map(|()| get(&mut client, user, "/").status);
        assert_eq!(statuses.iter().filter(|status| **status == 200).count(), LIMIT as usize, "{statuses:?}");
        assert_eq!(statuses.last(), Some(&429), "{user}");
    }
    let places: Vec<_> = all.iter().map(|user| node_of(&nodes, user).expect("it was asked")).collect();
    assert_eq!(places.iter().collect::<HashSet<_>>().len(), NODES, "every node has users");
    drop(nodes.remove(places[0]));
    for (user, place) in all.iter().zip(&places) {
        let answer = get(&mut client, user, "/");
        assert_eq!(answer.status, if *place == places[0] { 500 } else { 429 }, "{user}: {answer:?}");
    }
    for user in ["", "a&user=b", "a b"] {
        assert_eq!(get(&mut client, user, "/").status, 401, "{user}");
    }
}

#[test]
fn what_a_stream_has_cost_is_reported_to_the_users_node() {
    let nodes = nodes();
    let envoy = envoy(&nodes, &[]);
    let mut client = envoy.client();
    for user in users(20) {
        let entries = [("metered", "yes"), ("user", &*user)];
        let spent = || -> Vec<u32> { nodes.iter().map(|node| counted(node, &entries, METERED)).collect() };
        assert_eq!(get(&mut client, &user, "/download/a").status, 200);
        eventually_true("the report", || spent().iter().sum::<u32>() == COST);
        assert_eq!(get(&mut client, &user, "/download/b").status, 200);
        eventually_true("the second report", || spent().contains(&(2 * COST)));
    }
}

#[test]
fn without_a_user_nothing_passes() {
    let nodes = nodes();
    let envoy = envoy(&nodes, &[]);
    let mut client = envoy.client();
    assert_eq!(client.send("GET", "/", &[], "").expect("an answer").status, 401);
    assert_eq!(get(&mut client, "", "/").status, 401);
    assert_eq!(get(&mut client, "alice", "/").status, 200);
}

/// The users of a node that is down are denied; nobody else decides for them, and nobody else is denied.
#[test]
fn the_users_of_a_node_that_is_down_wait_for_it() {
    let mut nodes = nodes();
    let envoy = envoy(&nodes, &[]);
    let mut client = envoy.client();
    let all: Vec<String> = users(30).collect();
    all.iter().for_each(|user| assert_eq!(get(&mut client, user, "/first").status, 200));
    let places: Vec<usize> = all.iter().map(|user| node_of(&nodes, user).expect("it was asked")).collect();
    let gone = places[0];
    drop(nodes.remove(gone));
    for (user, place) in all.iter().zip(&places) {
        let answer = get(&mut client, user, "/second");
        assert_eq!(answer.status, if *place == gone { 500 } else { 200 }, "{user}: {answer:?}");
    }
    let elsewhere =
        |user: &String| nodes.iter().map(|node| counted(node, &[("user", user)], LIMIT)).sum::<u32>();
    let lost = all.iter().zip(&places).filter(|(_, place)| **place == gone);
    assert_eq!(lost.map(|(user, _)| elsewhere(user)).sum::<u32>(), 0, "nobody else counts for them");
}

/// All nodes are replaced one after the other while users go on asking: each gets N in all, neither more nor less.
#[test]
fn a_rollout_admits_exactly_what_one_node_would() {
    let mut nodes = nodes();
    let envoy = envoy(&nodes, &[]);
    let mut client = envoy.client();
    let all: Vec<String> = users(30).collect();
    let mut admitted = vec![0; all.len()];
    let mut paths = (0..).map(|number| format!("/{number}"));
    let mut everybody_asks = |unanswered_max: usize| {
        let path = paths.next().expect("it has no end");
        let statuses = all.iter().map(|user| get(&mut client, user, &path).status).collect::<Vec<_>>();
        statuses
            .iter()
            .zip(&mut admitted)
            .for_each(|(status, admitted)| *admitted += u32::from(*status == 200));
        let unanswered = statuses.iter().filter(|status| **status == 500).count();
        assert!(unanswered <= unanswered_max, "{statuses:?}");
    };
    (0..4).for_each(|_| everybody_asks(0));
    for place in 0..NODES {
        let mut node = nodes.remove(place);
        node.signal(rustix::process::Signal::TERM);
        assert_eq!(node.exit_code(), 0);
        // Only its users have to wait for it.
        everybody_asks(all.len() * 2 / 3);
        nodes.insert(place, node.restart());
        everybody_asks(0);
    }
    (0..4).for_each(|_| everybody_asks(0));
    assert_eq!(admitted, vec![LIMIT; all.len()]);
}

#[test]
fn a_limit_that_several_nodes_would_count_is_warned_of() {
    let spread =
        "domain: shop\ndescriptors:\n- {key: path, rate_limit: {unit: hour, requests_per_unit: 5}}\n";
    let node = Setup::new().rules("shop.yaml", spread).env("SHARD_KEY", "user").start();
    assert_eq!(node.lines_with("shop.yaml:3:9: requests with different values of `user`"), 1);
    let code = node.client().ask(question("shop", &[&[("path", "/")]])).overall_code;
    assert_eq!(code, OK, "the server only warns");
}
