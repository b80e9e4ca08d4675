//! The ring: no user is admitted too often by what the recipes say, and only users that the recipes name are denied
//! wrongly.

use tidegate_simulation::ring::Crowd;
use tidegate_simulation::ring::envoy::{Ring, hash};
use tidegate_simulation::ring::event::{ColdStart, Event};
use tidegate_simulation::ring::run::{Outcome, Scenario, Size, run};

/// Small, so that it takes a second: some users ask too often, and most do not.
const SIZE: Size =
    Size { nodes: 20, proxies: 4, users: 2_000, requests_per_second: 100, limit: 4, window_secs: 60 };

fn outcome(event: Event, cold: ColdStart, crowd: Crowd, seed: u64) -> Outcome {
    run(Scenario { event, cold, crowd, seed }, &SIZE)
}

#[test]
fn nothing_is_admitted_too_often_with_deny() {
    for event in Event::ALL.into_iter().filter(|event| *event != Event::GrowTooEarly) {
        for (crowd, seed) in [(Crowd::Zipf, 1), (Crowd::Uniform, 2), (Crowd::Uniform, 3)] {
            let total = outcome(event, ColdStart::Deny, crowd, seed).total();
            assert_eq!(total.over, 0, "{event:?} {crowd:?} {seed}: {total:?}");
            assert!(total.requests / 5 < total.admitted, "{event:?}: {total:?}");
        }
    }
}

#[test]
fn without_deny_or_the_order_of_the_recipe_the_oracle_finds_too_many() {
    for event in [Event::Death, Event::Zone, Event::Grow, Event::Shrink] {
        assert!(outcome(event, ColdStart::Allow, Crowd::Uniform, 1).total().over > 0, "{event:?}");
    }
    assert!(outcome(Event::GrowTooEarly, ColdStart::Deny, Crowd::Uniform, 1).total().over > 0);
}

#[test]
fn whoever_is_denied_wrongly_had_no_node_or_a_cold_one() {
    let nothing = outcome(Event::Nothing, ColdStart::Deny, Crowd::Uniform, 1);
    assert_eq!((nothing.total().wrong(), nothing.users_wronged), (0, 0));

    let death = outcome(Event::Death, ColdStart::Deny, Crowd::Uniform, 1);
    let total = death.total();
    assert!(total.away > 0 && total.cold > 0 && total.late == 0, "{total:?}");
    assert!(
        (70..=75).contains(&death.wrong_secs()),
        "15 s away and a window of 60 s: {}",
        death.wrong_secs()
    );
    let share = death.users_wronged as f64 / SIZE.users as f64;
    assert!((0.02..0.08).contains(&share), "of 20 nodes one: {share}");

    let rollout = outcome(Event::Rollout, ColdStart::Deny, Crowd::Uniform, 1).total();
    assert!(rollout.away > 0 && rollout.cold == 0, "{rollout:?}");

    let grow = outcome(Event::Grow, ColdStart::Deny, Crowd::Uniform, 1);
    let share = grow.users_wronged as f64 / SIZE.users as f64;
    assert!((0.02..0.08).contains(&share), "of 21 nodes one: {share}");
}

#[test]
fn a_seed_means_the_same_run_each_time() {
    let again = || outcome(Event::Death, ColdStart::Deny, Crowd::Zipf, 7);
    assert_eq!(again(), again());
}

/// The reference values of xxHash64, and of Envoy's ring: black-box tests compare with a real one.
#[test]
fn the_ring_is_envoys() {
    assert_eq!([hash(""), hash("a")], [0xEF46_DB37_51D8_E999, 0xD24E_C4F1_A98C_6E5B]);
    let names = |nodes: usize| (0..nodes).map(|node| format!("tidegate-{node}")).collect::<Vec<_>>();
    for nodes in 1..=64 {
        assert_eq!(Ring::of(&names(nodes), 1024).points_of_each(nodes), vec![1024; nodes]);
    }
    let (before, after) = (Ring::of(&names(20), 1024), Ring::of(&names(21), 1024));
    let moved = (0..10_000).map(|user| format!("user-{user}"));
    let moved: Vec<_> = moved.filter(|user| before.node_of(user) != after.node_of(user)).collect();
    assert!((300..700).contains(&moved.len()), "a twenty-first: {}", moved.len());
    assert!(moved.iter().all(|user| after.node_of(user) == 20), "only to the new node");
    let same_size =
        Ring::weighted(&names(21).iter().map(|name| (name.as_str(), 1)).collect::<Vec<_>>(), 20 * 1024);
    let elsewhere = |user: &String| !matches!(same_size.node_of(user), node if node == 20 || node == before.node_of(user));
    assert!(
        (0..10_000).map(|user| format!("user-{user}")).any(|user| elsewhere(&user)),
        "why the size grows with the nodes"
    );
    let heavy = Ring::weighted(&[("a", 1), ("b", 3)], 1024);
    assert_eq!(heavy.points_of_each(2), [256, 768]);
}
