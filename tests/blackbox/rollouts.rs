//! Nodes that count by themselves behind a real Envoy, under load: replaced, killed, stopped, and joined by another one.
//! What passed is judged by the log of the clients alone.

use std::collections::{BTreeMap, BTreeSet};

use rustix::process::Signal;

use crate::harness::crowd::{Asked, CONNECTIONS, Crowd, admitted, ask_while, name};
use crate::harness::envoy::Envoy;
use crate::harness::ring::{self, Moving, POINTS};
use crate::harness::tidegate::{Setup, Tidegate, binary};
use crate::harness::{eventually_true, grpc};
use envoys_ring::Ring;

/// The ring of the simulation, held to the one of a real Envoy here.
#[path = "../simulation/src/ring/envoy.rs"]
mod envoys_ring;

/// Ten an hour.
const HOURLY: &str = include_str!("../../examples/sharded/rules/shop.yaml");
const LIMIT: usize = 10;
/// As short as it gets, so that a window passes while a test waits.
const SHORT: &str =
    "domain: shop\ndescriptors:\n  - {key: user, rate_limit: {unit: second, requests_per_unit: 4}}\n";
const SHORT_LIMIT: usize = 4;
const SECOND_MICROS: u64 = 1_000_000;

/// A node of a ring of so many. It begins with a window that is full, as every node without history.
fn node(rules: &str, members: usize) -> Setup {
    let setup = Setup::new().rules("shop.yaml", rules).keeping_counters();
    let setup = setup.env("SHARD_KEY", "user").env("SHARD_MEMBERS", &members.to_string());
    setup.env("COLD_START", "deny")
}

/// The first nodes of a ring: nobody has asked before.
fn first_nodes(rules: &str, members: usize) -> Vec<Tidegate> {
    (0..members).map(|_| without_history(node(rules, members))).collect()
}

fn without_history(setup: Setup) -> Tidegate {
    let folder = setup.variables()["STATE_DIR"].clone();
    let mut init = std::process::Command::new(binary());
    init.args([
        "state",
        "init",
        "--state-dir",
        &folder,
        "--shard-members",
        &setup.variables()["SHARD_MEMBERS"],
    ]);
    crate::harness::programs::succeed(init.env_clear());
    setup.start()
}

fn ports(nodes: &[Tidegate]) -> Vec<u16> {
    nodes.iter().map(|node| node.ports().grpc).collect()
}

/// The ring that Envoy should have.
fn expected(members: usize) -> Ring {
    Ring::of(&(0..members).map(|number| format!("tidegate-{number}")).collect::<Vec<_>>(), POINTS)
}

/// Where each user belongs.
fn places(users: usize, members: usize) -> Vec<usize> {
    let ring = expected(members);
    (0..users).map(|user| ring.node_of(&name(user))).collect()
}

fn end(node: &mut Tidegate) {
    node.signal(Signal::TERM);
    assert_eq!(node.exit_code(), 0, "{:#?}", node.output());
}

/// Waits until this many more answers have this status.
fn more(crowd: &Crowd, answers: usize, status: u16) {
    let before = crowd.count(status);
    eventually_true(&format!("{answers} more of {status}"), || crowd.count(status) >= before + answers);
}

/// No user has more than the short limit in any window.
fn assert_strict(users: usize, log: &[Vec<Asked>]) {
    for (user, admitted) in admitted(users, log).iter().enumerate() {
        let most = admitted.most_in_a_window(SECOND_MICROS);
        assert!(most <= SHORT_LIMIT, "{}: {most} in a window of {SHORT_LIMIT}", name(user));
    }
}

/// How often each node's users got the error that nobody answered.
fn errors(log: &[Vec<Asked>], places: &[usize]) -> BTreeMap<usize, usize> {
    let mut errors = BTreeMap::new();
    for entry in log.iter().flatten().filter(|entry| entry.status == 500) {
        *errors.entry(places[entry.user]).or_default() += 1;
    }
    errors
}

#[test]
fn a_thousand_users_have_the_node_that_the_ring_says() {
    const USERS: usize = 1_000;
    for members in [3, 4] {
        assert_eq!(expected(members).points_of_each(members), vec![POINTS as usize; members]);
        let nodes = first_nodes(HOURLY, members);
        let envoy = ring::start(&ports(&nodes));
        let mut client = envoy.client();
        for user in 0..USERS {
            let answer = client.send("GET", "/", &[("x-user", &name(user))], "").expect("an answer");
            assert_eq!(answer.status, 200);
        }
        let clients: Vec<_> = nodes.iter().map(Tidegate::client).collect();
        for (user, place) in places(USERS, members).into_iter().enumerate() {
            let left = clients.iter().map(|client| {
                let answer = client.ask(grpc::ask_only("shop", &[&[("user", &name(user))]]));
                answer.statuses[0].limit_remaining as usize
            });
            let hits: Vec<_> = left.map(|left| LIMIT - left).collect();
            let expected: Vec<_> = (0..members).map(|node| usize::from(node == place)).collect();
            assert_eq!(hits, expected, "{} of {members} nodes", name(user));
        }
    }
}

/// Three pods of ten an hour are replaced one after the other under load. Each begins on another port with the volume and
/// the name of the one before.
#[test]
fn a_rollout_under_load_admits_exactly_the_limit_and_denies_nobody_else() {
    const USERS: usize = 60;
    let places = places(USERS, 3);
    let mut nodes = first_nodes(HOURLY, 3);
    let moving = Moving::start(&ports(&nodes));
    let (log, gone_at) = ask_while(USERS, moving.envoy.port, |crowd| {
        let asked = |times: usize| {
            crowd.want(times);
            eventually_true("answers for everybody", || crowd.count(200) + crowd.count(429) >= times * USERS);
        };
        asked(2);
        let gone_at: Vec<_> = (0..3)
            .map(|place| {
                let gone_at = crowd.now();
                // Once while it ends, and once more that nobody can have asked before.
                crowd.want(2 * place + 3);
                end(&mut nodes[place]);
                crowd.want(2 * place + 4);
                more(crowd, 1, 500);
                let elsewhere = node(HOURLY, 3);
                let before = nodes.remove(place).into_setup();
                let elsewhere = elsewhere.env("STATE_DIR", &before.variables()["STATE_DIR"]);
                nodes.insert(place, elsewhere.start());
                moving.change(&ports(&nodes));
                asked(2 * place + 4);
                gone_at
            })
            .collect();
        asked(LIMIT + 3);
        gone_at
    });
    for (connection, log) in log.iter().enumerate() {
        let mut admitted = vec![0; USERS];
        for entry in log {
            admitted[entry.user] += usize::from(entry.status == 200);
            if entry.status == 429 {
                assert_eq!(admitted[entry.user], LIMIT, "{} had capacity left", name(entry.user));
            }
        }
        let own = (connection..USERS).step_by(CONNECTIONS);
        own.for_each(|user| assert_eq!(admitted[user], LIMIT, "{}", name(user)));
        for (place, gone_at) in gone_at.iter().enumerate() {
            errors_are_one_absence(log.iter().filter(|entry| places[entry.user] == place), *gone_at);
        }
    }
}

/// Users of a node get errors only from when it went until they found it again: never before, and once.
fn errors_are_one_absence<'a>(log: impl Iterator<Item = &'a Asked>, gone_at: u64) {
    let (mut absences, mut was_away) = (0, false);
    for entry in log {
        let is_away = entry.status == 500;
        assert!(!is_away || entry.answered >= gone_at, "{entry:?} before its pod went at {gone_at}");
        absences += usize::from(is_away && !was_away);
        was_away = is_away;
    }
    assert!(absences <= 1 && !was_away, "its users found no pod {absences} times");
}

/// A node dies, comes back cold, and is warm again a window later; the users of the others do not notice.
#[test]
fn a_node_that_is_killed_denies_its_users_for_a_window_and_admits_nobody_twice() {
    const USERS: usize = 30;
    let places = places(USERS, 3);
    let mut nodes = first_nodes(SHORT, 3);
    let envoy = ring::start(&ports(&nodes));
    let (log, ()) = ask_while(USERS, envoy.port, |crowd| {
        for place in [0, 1] {
            more(crowd, USERS * SHORT_LIMIT, 200);
            nodes[place].kill();
            more(crowd, USERS, 500);
            let setup = nodes.remove(place).into_setup();
            nodes.insert(place, setup.start());
            assert_eq!(nodes[place].lines_with("cold: counters were lost"), 1);
        }
        more(crowd, 3 * USERS * SHORT_LIMIT, 200);
    });
    assert_strict(USERS, &log);
    assert_eq!(errors(&log, &places).keys().copied().collect::<Vec<_>>(), [0, 1]);
    (0..USERS).for_each(|user| assert!(is_served_again(user, &log), "{}", name(user)));
}

/// Whether a user's errors have an end.
fn is_served_again(user: usize, log: &[Vec<Asked>]) -> bool {
    let own: Vec<_> = log.iter().flatten().filter(|entry| entry.user == user).collect();
    let last = |status| own.iter().rposition(|entry| entry.status == status);
    last(200) > last(500)
}

/// A node hangs, so that nobody knows what became of its calls, and goes on.
#[test]
fn a_node_that_is_stopped_admits_nobody_twice_when_it_goes_on() {
    const USERS: usize = 12;
    let nodes = first_nodes(SHORT, 3);
    let envoy = ring::start_impatient(&ports(&nodes), "0.5s");
    let (log, ()) = ask_while(USERS, envoy.port, |crowd| {
        for node in &nodes {
            more(crowd, USERS * SHORT_LIMIT, 200);
            node.signal(Signal::STOP);
            more(crowd, 1, 500);
            node.signal(Signal::CONT);
        }
        more(crowd, 2 * USERS * SHORT_LIMIT, 200);
    });
    assert_strict(USERS, &log);
}

/// The recipe of `examples/sharded`: first every Envoy has the new ring, then the new node begins, cold.
#[test]
fn a_node_joins_under_load_and_only_the_users_that_move_notice() {
    const USERS: usize = 60;
    let (before, after) = (places(USERS, 3), places(USERS, 4));
    let moved: Vec<_> = (0..USERS).filter(|&user| before[user] != after[user]).collect();
    assert!((5..30).contains(&moved.len()), "{moved:?}");
    assert!(moved.iter().all(|&user| after[user] == 3), "no user moves between the others");

    let mut nodes = first_nodes(SHORT, 3);
    let old = ring::start(&ports(&nodes));
    let (log, (_new, joined_at)) = ask_while(USERS, old.port, |crowd| {
        more(crowd, USERS * SHORT_LIMIT, 200);
        let joining = node(SHORT, 4);
        let wider = [&ports(&nodes)[..], &[joining.ports.grpc]].concat();
        let new = ring::start(&wider);
        crowd.move_to(new.port);
        eventually_true("each user who moves to wait", || crowd.unanswered() == moved.len());
        drop(old);
        nodes.push(joining.start());
        assert_eq!(nodes[3].lines_with("cold: counters were lost"), 1);
        more(crowd, 3 * USERS * SHORT_LIMIT, 200);
        let joined_at = crowd.now();
        nodes = nodes.drain(..).enumerate().map(|(place, node)| grown(place, node)).collect();
        more(crowd, 2 * USERS * SHORT_LIMIT, 200);
        (new, joined_at)
    });
    assert_strict(USERS, &log);
    let until_joined = log.iter().flatten().filter(|entry| entry.answered < joined_at);
    let waited: BTreeSet<_> =
        until_joined.filter(|entry| entry.status == 500).map(|entry| entry.user).collect();
    assert_eq!(waited.into_iter().collect::<Vec<_>>(), moved);
    (0..USERS).for_each(|user| assert!(is_served_again(user, &log), "{}", name(user)));
}

/// One of the nodes that were there before, restarted with the new number: it keeps its counters.
fn grown(place: usize, mut node: Tidegate) -> Tidegate {
    if place == 3 {
        return node;
    }
    end(&mut node);
    let node = node.into_setup().env("SHARD_MEMBERS", "4").env("SHARD_GREW_FROM", "3").start();
    assert_eq!(node.scrape().sum("tidegate_state_start_total", &[("outcome", "clean")]), 1.0);
    node
}

/// Why the new node begins cold: a user who has spent all would have all of it again.
#[test]
fn a_node_that_joins_without_deny_admits_twice_the_limit() {
    let user = (0..).find(|&user| expected(4).node_of(&name(user)) == 3).expect("some user moves");
    let spend = |envoy: &Envoy| {
        let mut client = envoy.client();
        let mut get = |path: usize| {
            client.send("GET", &format!("/{path}"), &[("x-user", &name(user))], "").expect("an answer").status
        };
        (0..LIMIT + 2).filter(|path| get(*path) == 200).count()
    };
    let mut nodes = first_nodes(HOURLY, 3);
    assert_eq!(spend(&ring::start(&ports(&nodes))), LIMIT);
    nodes.push(node(HOURLY, 4).env("COLD_START", "allow").start());
    assert_eq!(spend(&ring::start(&ports(&nodes))), LIMIT);
    nodes.pop();
    nodes.push(node(HOURLY, 4).start());
    assert_eq!(spend(&ring::start(&ports(&nodes))), 0, "it waits for a window");
}
