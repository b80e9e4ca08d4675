//! Exceptions with a real Redis: in force at all nodes, kept there, written back, and without it.

use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::admin::{TOKEN, call, exception, put};
use crate::harness::http::Client;
use crate::harness::lateness::Lateness;
use crate::harness::redis::{Failover, Redis, cluster};
use crate::harness::tidegate::{Setup, Tidegate, binary};
use crate::harness::{eventually_true, grpc};

const RULES: &str = "
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: day, requests_per_unit: 1000000}}
";

fn setup(url: &str) -> Setup {
    let setup = Setup::new().rules("shop.yaml", RULES).env("ADMIN_TOKEN", TOKEN);
    // A busy machine is not what is tested.
    setup.env("REDIS_URL", url).env("REDIS_TIMEOUT", "1s").env("REDIS_FAILURE_MODE", "allow")
}

fn passes(limiter: &Tidegate, user: &str) -> bool {
    limiter.client().ask(grpc::question("shop", &[&[("user", user)]])).overall_code == grpc::OK
}

fn end(limiter: &Tidegate, id: &str) -> Value {
    let answer = call(limiter, "DELETE", &format!("/admin/exceptions/{id}"), &json!({"who": "joe"}));
    assert_eq!(answer.status, 200, "{answer:?}");
    serde_json::from_str(&answer.body).expect("JSON")
}

fn deny(user: &str) -> Value {
    exception(Some(user), &json!({"deny": true}))
}

fn is_in_step(limiter: &Tidegate) -> bool {
    limiter.metric("tidegate_exceptions_up") == 1.0
}

#[test]
fn an_exception_is_in_force_at_all_nodes_within_a_second_and_at_those_that_start_later() {
    let redis = Redis::start(&[]);
    let keys = || redis.ask::<Vec<String>>(&["KEYS", "tidegate:exceptions*"]);
    let nodes = [(); 2].map(|()| setup(&redis.url()).start());
    eventually_true("both to read", || nodes.iter().all(is_in_step));
    assert_eq!(keys(), [""; 0], "who makes none has none in Redis");
    for round in 0..5 {
        let user = format!("user-{round}");
        let (asked, watched) = (Instant::now(), Lateness::watch());
        put(&nodes[round % 2], &user, &deny(&user));
        eventually_true("the other node to know it", || !passes(&nodes[(round + 1) % 2], &user));
        let (took, late) = (asked.elapsed(), watched.allowance());
        assert!(took < Duration::from_secs(1) + late, "{took:?}, {late:?} late");
    }
    let late = setup(&redis.url()).start();
    assert!(!passes(&late, "user-0"), "it is in force before anybody is served");
    assert!(passes(&late, "somebody"));
    let ended = end(&late, "user-0");
    assert_eq!((&ended["done"], &ended["holds_for"]), (&json!("ended"), &json!("all nodes with this Redis")));
    eventually_true("the end at all nodes", || nodes.iter().all(|node| passes(node, "user-0")));
    assert_eq!(end(&nodes[0], "user-0")["done"], "unchanged");

    // Who sends it to each node as well, as before, changes nothing.
    let to = [&nodes[0], &nodes[1]].map(|node| format!("127.0.0.1:{}", node.ports().debug)).join(",");
    let mut command = Command::new(binary());
    command.args(["exception", "end", "user-1", "--who", "joe", "--to", &to]).env("ADMIN_TOKEN", TOKEN);
    let output = command.output().expect("it runs");
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn what_redis_loses_is_written_back_and_an_end_stays_one() {
    let redis = Redis::start(&[]);
    let nodes = [(); 2].map(|()| setup(&redis.url()).start());
    put(&nodes[0], "a", &deny("alice"));
    put(&nodes[0], "b", &deny("bob"));
    eventually_true("both at the other node", || nodes[1].metric("tidegate_exceptions") == 2.0);
    end(&nodes[0], "b");
    eventually_true("the end at the other node", || nodes[1].metric("tidegate_exceptions") == 1.0);
    redis.ask::<()>(&["FLUSHALL"]);
    eventually_true("both to be back", || {
        redis.ask::<usize>(&["EXISTS", "tidegate:exceptions:k:a", "tidegate:exceptions:k:b"]) == 2
    });
    let late = setup(&redis.url()).start();
    assert!(!passes(&late, "alice") && passes(&late, "bob"));
    // A value of another program is left out, and the log says so.
    redis.ask::<()>(&["FLUSHALL"]);
    redis.ask::<()>(&["SET", "tidegate:exceptions:k:a", "[]"]);
    redis.ask::<()>(&["ZADD", "tidegate:exceptions:index", "0", "a"]);
    let started = setup(&redis.url()).start();
    eventually_true("the trouble", || started.lines_with("exceptions: \"a\" in Redis is ignored: ") == 1);
    assert!(passes(&started, "alice"));
    put(&nodes[0], "a", &exception(Some("alice"), &json!({"deny": true, "why": "again"})));
    eventually_true("the change at all nodes", || !passes(&started, "alice"));
}

#[test]
fn without_redis_what_is_known_holds_nothing_is_changed_and_a_file_is_a_copy_for_the_start() {
    let mut redis = Redis::start(&[]);
    let keeping = setup(&redis.url());
    let file = keeping.outside().join("exceptions").display().to_string();
    let keeping = keeping.env("EXCEPTIONS_FILE", &file).start();
    let other = setup(&redis.url()).start();
    put(&other, "a", &deny("alice"));
    eventually_true("the copy", || std::fs::read_to_string(&file).is_ok_and(|text| text.contains("alice")));
    redis.kill();
    let is_reported = |limiter: &Tidegate, text: &str| {
        let status = Client::new(limiter.ports().debug).send("GET", "/status", &[("host", "localhost")], "");
        status.expect("an answer").body.contains(text)
    };
    let away = "Exceptions of other nodes cannot be read";
    eventually_true("the trouble", || is_reported(&other, away));
    assert!(is_reported(&other, "those that this node knew hold"));
    assert!(!passes(&other, "alice"));
    let refused = call(&other, "PUT", "/admin/exceptions/b", &deny("bob"));
    assert_eq!(refused.status, 503, "{refused:?}");
    assert!(refused.body.contains("not done, because Redis does not take it"), "{refused:?}");

    let keeping = keeping.restart();
    assert!(!passes(&keeping, "alice"), "the copy");
    eventually_true("the trouble", || is_reported(&keeping, "those of EXCEPTIONS_FILE hold"));
    assert!(!is_in_step(&keeping));
    redis.restart();
    eventually_true("Redis to have it again", || {
        redis.ask::<usize>(&["EXISTS", "tidegate:exceptions:k:a"]) == 1
    });
    eventually_true("all to be well", || is_in_step(&keeping) && !is_reported(&keeping, away));
    put(&keeping, "b", &deny("bob"));
    eventually_true("the other node to know it", || !passes(&other, "bob"));
}

#[test]
fn in_a_cluster_and_with_a_primary_that_dies_exceptions_hold() {
    let servers = cluster();
    let url = servers.iter().map(Redis::url).collect::<Vec<_>>().join(",");
    let nodes = [(); 2].map(|()| setup(&url).env("REDIS_TYPE", "cluster").start());
    for user in ["a", "b", "c", "d", "e"] {
        put(&nodes[0], user, &deny(user));
        eventually_true("the other node to know it", || !passes(&nodes[1], user));
    }
    end(&nodes[1], "e");
    let late = setup(&url).env("REDIS_TYPE", "cluster").start();
    assert!(!passes(&late, "d") && passes(&late, "e"));

    let mut servers = Failover::of_sentinel();
    servers.wait_for_replicas();
    let url = servers.url();
    let of_sentinel = || setup(&url).env("REDIS_TYPE", "sentinel");
    let nodes = [(); 2].map(|()| of_sentinel().env("REDIS_WAIT_REPLICAS", "1").start());
    eventually_true("both to read", || nodes.iter().all(is_in_step));
    // Until a replica has it in time, the answer is that it has to be sent again.
    eventually_true("an exception that a replica has", || {
        [200, 201].contains(&call(&nodes[0], "PUT", "/admin/exceptions/a", &deny("alice")).status)
    });
    drop(nodes);
    servers.kill_a_master();
    servers.wait_for_takeover();
    let late = of_sentinel().start();
    eventually_true("the exception at a node that starts", || is_in_step(&late) && !passes(&late, "alice"));
}
