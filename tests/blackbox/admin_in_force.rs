//! How soon a change through the admin API is in force while every node is busy: on each node within a second after the
//! change was answered, and no call fails meanwhile. On three nodes that share Redis, strict and leased, and on one
//! alone.
//!
//! Each caller asks three questions in turn: one meets an exception now and then, one a record, and one has a counter that
//! is full, so that nothing but a reset lets it pass. No node but its own asks for that counter.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::admin::{TOKEN, call, exception, put as put_exception};
use crate::admin_resets::reset;
use crate::harness::grpc::{OK, OVER_LIMIT, question};
use crate::harness::lateness::Lateness;
use crate::harness::redis::Redis;
use crate::harness::tidegate::{Setup, Tidegate};
use crate::harness::{StopOnDrop, eventually, eventually_true};
use crate::looked_up::delete;
use crate::records;

/// What is promised.
const BOUND: Duration = Duration::from_secs(1);
/// How often each kind of change is made.
const ROUNDS: u32 = 3;
const CALLERS: usize = 2;
/// Nobody reaches this limit: the N in an answer shows which limit decided.
const MANY: u32 = 1_000_000_000;
/// The counter that is reset.
const N: usize = 5;
const RULES: &str = "
domain: shop
descriptors:
  - {key: user, rate_limit: &many {unit: day, requests_per_unit: 1000000000}}
  - {key: tenant, limits_from: store, rate_limit: *many}
  - {key: node, rate_limit: {unit: day, requests_per_unit: 5}}
";

/// What is asked about, and changed.
#[derive(Clone, Copy, Debug)]
enum Topic {
    Exception,
    Record,
    Reset,
}

/// One answer.
struct Answer {
    asked: Instant,
    answered: Instant,
    code: i32,
    /// N, as the answer says.
    limit: u32,
}

/// A node, and what it answered so far, by topic.
struct Node {
    limiter: Tidegate,
    name: String,
    answers: [Mutex<Vec<Answer>>; 3],
}

impl Node {
    fn of(place: usize, setup: Setup) -> Self {
        Self { limiter: setup.start(), name: format!("node-{place}"), answers: Default::default() }
    }

    /// Asks until it has to stop. An error of a call ends the test.
    fn ask(&self, stop: &AtomicBool) {
        let _stops = StopOnDrop(stop);
        let client = self.limiter.client();
        while !stop.load(Relaxed) {
            for topic in [Topic::Exception, Topic::Record, Topic::Reset] {
                let entry = match topic {
                    Topic::Exception => ("user", "a"),
                    Topic::Record => ("tenant", "a"),
                    Topic::Reset => ("node", self.name.as_str()),
                };
                let asked = Instant::now();
                let said = client.ask(question("shop", &[&[entry]]));
                let (answered, code) = (Instant::now(), said.overall_code);
                assert!([OK, OVER_LIMIT].contains(&code), "{said:?}");
                let limit = said.statuses[0].current_limit.as_ref();
                let limit = limit.map_or(0, |limit| limit.requests_per_unit);
                let answer = Answer { asked, answered, code, limit };
                self.with(topic, |answers| answers.push(answer));
            }
        }
    }

    fn with<T>(&self, topic: Topic, use_them: impl FnOnce(&mut Vec<Answer>) -> T) -> T {
        use_them(&mut self.answers[topic as usize].lock().expect("no panic"))
    }

    fn passed(&self) -> usize {
        self.with(Topic::Reset, |answers| answers.iter().filter(|answer| answer.code == OK).count())
    }
}

/// Nodes whose callers ask all the while.
struct Busy<'b> {
    nodes: &'b [Node],
    stop: &'b AtomicBool,
}

impl Busy<'_> {
    /// Makes a change, and waits until every node decides by it. `change` returns since when it is owed at each node.
    fn in_time(
        &self,
        (topic, what): (Topic, &str),
        change: impl FnOnce() -> Vec<Instant>,
        is_new: impl Fn(&Answer) -> bool,
    ) {
        let before: Vec<_> =
            self.nodes.iter().map(|node| node.with(topic, |answers| answers.len())).collect();
        let watched = Lateness::watch();
        let owed = change();
        for ((node, before), owed) in self.nodes.iter().zip(before).zip(owed) {
            let first = self.eventually(what, || {
                node.with(topic, |answers| {
                    answers[before..].iter().filter(|it| is_new(it)).map(|it| it.answered).min()
                })
            });
            let (took, late) = (first.saturating_duration_since(owed), watched.allowance());
            let name = &node.name;
            assert!(
                took <= BOUND + late,
                "{what}: {name} decided by it after {took:?}, the machine is {late:?} late"
            );
            // A reset is seen by what passes, which ends when the counter is full again.
            if !matches!(topic, Topic::Reset) {
                self.stays(node, (topic, what), first, &is_new);
            }
        }
    }

    /// Once a node decides by a change, it decides by nothing else.
    fn stays(
        &self,
        node: &Node,
        (topic, what): (Topic, &str),
        since: Instant,
        is_new: impl Fn(&Answer) -> bool,
    ) {
        let more = self.eventually("more answers", || {
            node.with(topic, |answers| {
                let later = answers.iter().rev().take_while(|it| it.answered > since);
                let later: Vec<_> = later.filter(|it| it.asked > since).map(&is_new).collect();
                (later.len() >= 20).then_some(later)
            })
        });
        assert!(
            more.iter().all(|&is_new| is_new),
            "{what}: {} decides by it and by what was before",
            node.name
        );
    }

    /// All of these counters are full, for so many times.
    fn are_full(&self, times: usize) {
        for node in self.nodes {
            self.eventually("the counter to be full", || (node.passed() >= N * times).then_some(()));
        }
    }

    /// As the function of this name, unless a caller has failed.
    fn eventually<T>(&self, what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
        eventually(what, || {
            assert!(!self.stop.load(Relaxed), "a call failed while waiting for {what}");
            probe()
        })
    }

    /// Changes every node; it is owed at each since its own answer.
    fn at_each(&self, change: impl Fn(usize, &Tidegate)) -> Vec<Instant> {
        let changed = |(place, node): (usize, &Node)| {
            change(place, &node.limiter);
            Instant::now()
        };
        self.nodes.iter().enumerate().map(changed).collect()
    }

    /// Changes one node, another one each time, for all.
    fn at_one(&self, round: u32, change: impl FnOnce(&Tidegate)) -> Vec<Instant> {
        change(&self.nodes[round as usize % self.nodes.len()].limiter);
        vec![Instant::now(); self.nodes.len()]
    }

    fn exceptions(&self, round: u32) {
        let requests = MANY + 100 + round;
        let put = |id: &str, more: Value| {
            self.at_each(|_, limiter| put_exception(limiter, id, &exception(Some("a"), &more)))
        };
        let topic = |what| (Topic::Exception, what);
        let is_limit = |requests| move |it: &Answer| (it.code, it.limit) == (OK, requests);
        self.in_time(
            topic("an exception"),
            || put("a", json!({"requests_per_unit": requests})),
            is_limit(requests),
        );
        self.in_time(topic("a denial"), || put("b", json!({"deny": true})), |it| it.code == OVER_LIMIT);
        for (id, left) in [("b", requests), ("a", MANY)] {
            let end = |_, limiter: &Tidegate| {
                let path = format!("/admin/exceptions/{id}");
                assert_eq!(call(limiter, "DELETE", &path, &json!({"who": "jane"})).status, 200);
            };
            self.in_time(topic("the end of an exception"), || self.at_each(end), is_limit(left));
        }
    }

    fn records(&self, round: u32) {
        let requests = MANY + 200 + round;
        let put = |limiter: &Tidegate| {
            let status = records::put(limiter, &records::record("a", requests.into())).status;
            assert_eq!(status, 201);
        };
        let is_limit = |requests| move |it: &Answer| it.limit == requests;
        self.in_time((Topic::Record, "a record"), || self.at_one(round, put), is_limit(requests));
        let gone = (Topic::Record, "the end of a record");
        self.in_time(gone, || self.at_one(round + 1, |limiter| delete(limiter, "a")), is_limit(MANY));
    }

    /// All of the counters at once, and then each by a call of its own, to another node.
    fn resets(&self, round: u32) {
        let before = 1 + 2 * round as usize;
        self.are_full(before);
        let all = |limiter: &Tidegate| {
            assert_eq!(reset(limiter, &json!([{"key": "node"}]), &json!({})).0, 200);
        };
        let passes = |it: &Answer| it.code == OK;
        self.in_time((Topic::Reset, "a reset of all"), || self.at_one(round, all), passes);
        self.are_full(before + 1);
        let each = |place: usize, _: &Tidegate| {
            let entries = json!([{"key": "node", "value": self.nodes[place].name}]);
            let body = json!({"domain": "shop", "entries": entries, "who": "jane", "why": "a mistake"});
            let other = &self.nodes[(place + 1) % self.nodes.len()].limiter;
            assert_eq!(call(other, "POST", "/admin/counters/reset", &body).status, 200);
        };
        self.in_time((Topic::Reset, "a reset of one"), || self.at_each(each), passes);
        self.are_full(before + 2);
    }
}

/// Changes everything at these nodes, again and again.
fn changed_under_load(nodes: &[Node]) {
    let up = |node: &Node| node.limiter.metric("tidegate_limits_up") == 1.0;
    eventually_true("records", || nodes.iter().all(up));
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let _stop = StopOnDrop(&stop);
        for node in nodes.iter().flat_map(|node| [node; CALLERS]) {
            scope.spawn(|| node.ask(&stop));
        }
        let busy = Busy { nodes, stop: &stop };
        for round in 0..ROUNDS {
            busy.exceptions(round);
            busy.records(round);
            busy.resets(round);
        }
    });
    for node in nodes {
        assert_eq!(node.passed(), N * (1 + 2 * ROUNDS as usize), "{}: each epoch admits N", node.name);
        assert_eq!(node.limiter.metric("ratelimit_service_should_rate_limit_error"), 0.0);
    }
}

fn setup() -> Setup {
    // A request that waits for a busy machine is not what is tested.
    Setup::new().rules("shop.yaml", RULES).env("ADMIN_TOKEN", TOKEN).env("LIMITS_TIMEOUT", "10s")
}

#[test]
fn a_change_is_in_force_within_a_second_at_three_busy_nodes_that_share_redis() {
    for sync in ["strict", "leased"] {
        let redis = Redis::start(&[]);
        let node = |place| {
            let setup = setup().env("REDIS_URL", &redis.url()).env("REDIS_TIMEOUT", "10s");
            let setup = setup.env("REDIS_SYNC", sync).env("LOCAL_CACHE_SIZE_IN_BYTES", "1000000");
            Node::of(place, setup.env("LIMITS_URL", &redis.url()))
        };
        changed_under_load(&[0, 1, 2].map(node));
    }
}

#[test]
fn a_change_is_in_force_within_a_second_at_a_busy_node_alone_that_keeps_all_on_its_disk() {
    let mut setup = setup().keeping_counters();
    for (name, file) in [("LIMITS_DIR", "limits"), ("EXCEPTIONS_FILE", "exceptions"), ("AUDIT_LOG", "audit")]
    {
        let path = setup.outside().join(file).display().to_string();
        setup = setup.env(name, &path);
    }
    changed_under_load(&[Node::of(0, setup)]);
}
