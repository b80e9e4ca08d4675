//! Listeners and rules that change under load, and an Envoy that takes over from another one: no count is lost, and none
//! is too many.

use std::time::Duration;

use crate::harness::envoy::{Envoy, Launch, listeners_apart};
use crate::harness::http::Client;
use crate::harness::inside::{Inside, rules};
use crate::harness::redis::Redis;
use crate::harness::users::{ask_while, busy};
use crate::harness::whole_machine;

const N: usize = 3_000;
const ROUNDS: usize = 8;

/// Far longer than a test.
fn limit(requests: usize) -> String {
    rules(&format!("{{unit: day, requests_per_unit: {requests}}}"))
}

/// The listener changes, and with it the settings of the filter; so do rules. What is in memory is counted on.
#[test]
fn new_listeners_and_rules_go_on_with_the_counts_in_memory() {
    let _machine = whole_machine();
    let inside = Inside::new(&limit(N)).setting("MAX_REQUEST_BYTES", "60000");
    let envoy = Envoy::start_config(&listeners_apart(&inside.config()));
    let mut users = busy(&[envoy.port], 4);
    // The changes should happen while requests are still admitted.
    users.iter_mut().for_each(|user| user.every = Duration::from_millis(2));
    let log = ask_while(&users, |asking| {
        let mut bounds = ["60000", "50000"].map(|bound| format!("MAX_REQUEST_BYTES: \"{bound}\""));
        for round in 1..=ROUNDS {
            envoy.change_listeners((&bounds[0], &bounds[1]));
            bounds.reverse();
            inside.write(&(limit(N) + &"# changed\n".repeat(round)));
            // However slow a change is: the limit may be used up by then.
            asking.until_decided(N / 2 / ROUNDS);
        }
        println!("{} admitted at the last change", asking.admitted());
        asking.until_denied(20);
    });
    let (admitted, lost) = (log.admitted.len(), log.lost);
    println!("{admitted} admitted, {} denied, {lost} lost", log.denied);
    assert_eq!(log.failed, 0);
    // One whose answer was lost may have been admitted.
    assert!(admitted <= N && admitted + lost >= N, "{admitted} admitted, {lost} lost");
    assert_eq!(envoy.stat("listener_manager.lds.update_rejected"), 0);
}

/// A listener, or one of its routes, that the module refuses.
#[test]
fn an_envoy_keeps_the_listeners_before_those_that_it_refuses() {
    let inside = Inside::new(&limit(2));
    let envoy = Envoy::start_config(&listeners_apart(&inside.config()));
    let status = || envoy.client().send("GET", "/", &[("x-user", "ann")], "").expect("Envoy answers").status;
    assert_eq!(status(), 200);
    for (good, bad, why) in [
        ("headers: always", "headers: sometimes", "tidegate: headers: unknown variant `sometimes`"),
        ("domain: login", "domian: login", "tidegate: the filter_config of a route: unknown field `domian`"),
        ("domain: login", "disabled: maybe", "tidegate: the filter_config of a route: disabled: "),
    ] {
        envoy.refuses_listeners((good, bad));
        assert_eq!(envoy.lines_with(why), 1, "{}", envoy.output());
        envoy.change_listeners((bad, good));
    }
    assert_eq!([status(), status()], [200, 429]);
}

/// A process that can be taken over from.
fn hot() -> Launch {
    Launch { epoch: Some(0), ..Launch::default() }
}

/// Both processes serve for a while, each with leases of its own.
#[test]
fn an_envoy_that_takes_over_admits_no_request_too_many() {
    let _machine = whole_machine();
    let redis = Redis::start(&[]);
    let inside = Inside::new(&limit(N)).setting("REDIS_URL", &redis.url()).setting("REDIS_TIMEOUT", "10s");
    let mut envoy = Envoy::launch(hot(), &inside.config());
    let mut users = busy(&[envoy.port], 4);
    // So that both have something to do.
    users.iter_mut().for_each(|user| user.every = Duration::from_millis(8));
    let log = ask_while(&users, |asking| {
        asking.until_admitted(N / 8);
        envoy.hot_restart();
        asking.until_denied(20);
    });
    println!("{} admitted, {} denied, {} lost", log.admitted.len(), log.denied, log.lost);
    assert!(log.admitted.len() <= N, "{} admitted", log.admitted.len());
    assert_eq!(log.failed, 0);
    assert!(envoy.stat("dynamicmodulescustom.tidegate_over_limit") > 0, "the next process decides");
}

#[test]
fn an_envoy_that_takes_over_starts_from_zero_in_memory() {
    let inside = Inside::new(&limit(2));
    let mut envoy = Envoy::launch(hot(), &inside.config());
    let three = |envoy: &Envoy| {
        let mut client = Client::new(envoy.port);
        let mut get = || client.send("GET", "/", &[("x-user", "ann")], "").expect("Envoy answers").status;
        [get(), get(), get()]
    };
    assert_eq!(three(&envoy), [200, 200, 429]);
    envoy.hot_restart();
    assert_eq!(three(&envoy), [200, 200, 429]);
}
