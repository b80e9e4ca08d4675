//! Strict across nodes: four nodes, 64 connections, one counter, far more hits than its limit; whatever the nodes'
//! clocks say, and while nodes are killed and started again.
//!
//! Two logs say what was admitted. Without leases the wire to Redis writes down what the script charged, with the time
//! of Redis at which it did: in that log no window holds more than N, exactly. With leases a node decides alone, so the
//! log is the callers': a hit was admitted between the moment at which it was asked for and that at which it was answered.
//!
//! TIDEGATE_STRICT_HITS says how many hits each run sends (`tests/soak/run strict`: a million).

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::harness::grpc::{Client, RateLimitRequest, ask_only, question};
use crate::harness::load::{Answers, drive};
use crate::harness::recorder::{Recorded, Recorder};
use crate::harness::redis::{Redis, cluster_behind};
use crate::harness::tidegate::{Setup, Tidegate};
use crate::harness::{StopOnDrop, eventually_true, free_port, http, whole_machine};

/// Hits of a run, unless set otherwise, and of one that is too long for every day.
const HITS: u64 = 50_000;
const HITS_LONG: u64 = 200_000;
/// By how many seconds the clocks of the nodes are off.
const CLOCKS_OFF: [i64; 4] = [30, -30, 15, 0];
/// Of which all of these are multiples.
const CLOCKS_APART: i64 = 15;
/// Redis and the wire to it show the time of one machine; a node's clock is no less off than this.
const APART_MICROS_MAX: u64 = 5_000_000;
/// Far longer than a run.
const DAY_LIMIT: u64 = 10_000;

/// How limits are kept, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Where {
    Single,
    Cluster,
}

fn hits() -> u64 {
    std::env::var("TIDEGATE_STRICT_HITS").map_or(HITS, |hits| hits.parse().expect("a number of hits"))
}

/// N, and the window in seconds: some of them go by in a run, and many more hits are asked than pass.
fn limit() -> (usize, u64) {
    if hits() < HITS_LONG { (1_000, 1) } else { (10_000, 5) }
}

fn rules() -> String {
    let (requests, window) = limit();
    let limit = |algorithm: &str| {
        format!(
            "{{unit: second, unit_multiplier: {window}, requests_per_unit: {requests}, algorithm: {algorithm}}}"
        )
    };
    format!(
        "
domain: shop
descriptors:
  - {{key: window, rate_limit: {}}}
  - {{key: log, rate_limit: {}}}
  - {{key: window_day, rate_limit: {{unit: day, requests_per_unit: {DAY_LIMIT}}}}}
  - {{key: log_day, rate_limit: {{unit: day, requests_per_unit: {DAY_LIMIT}, algorithm: sliding_log}}}}
  - {{key: few, rate_limit: {{unit: day, requests_per_unit: 100}}}}
",
        limit("sliding_window"),
        limit("sliding_log"),
    )
}

/// Servers behind wires that write down what they decide, and four nodes.
struct Rig {
    recorder: Recorder,
    nodes: Vec<Tidegate>,
    _servers: Vec<Redis>,
}

impl Rig {
    fn start(place: Where, sync: &str) -> Self {
        let recorder = Recorder::default();
        let (servers, kind, port) = match place {
            Where::Single => {
                let port = free_port();
                (vec![Redis::start_on(port, &[])], "single", recorder.to(port))
            }
            Where::Cluster => {
                let servers = cluster_behind(|port| recorder.to(port));
                let seed = servers[0].port;
                (servers, "cluster", seed)
            }
        };
        let node = |off: &i64| {
            Setup::new()
                .rules("shop.yaml", &rules())
                .env("REDIS_TYPE", kind)
                .env("REDIS_URL", &format!("127.0.0.1:{port}"))
                // A busy machine is not what is tested.
                .env("REDIS_TIMEOUT", "10s")
                .env("REDIS_SYNC", sync)
                .clock_off(*off)
                .start()
        };
        let nodes: Vec<Tidegate> = CLOCKS_OFF.iter().map(node).collect();
        assert_eq!(nodes.iter().map(clock_off).collect::<Vec<_>>(), CLOCKS_OFF);
        Self { recorder, nodes, _servers: servers }
    }

    fn ports(&self) -> Vec<u16> {
        self.nodes.iter().map(|node| node.ports().grpc).collect()
    }

    /// All hits at once, nobody dies.
    fn drive(&self, question: &RateLimitRequest) -> (Answers, Recorded) {
        self.recorder.take();
        let answers = drive(&self.ports(), question, hits());
        (answers, self.recorder.take())
    }

    /// The same while nodes are killed and started again, at random.
    fn drive_and_kill(&mut self, question: &RateLimitRequest, hits: u64) -> (Answers, Recorded, usize) {
        self.recorder.take();
        let (ports, done) = (self.ports(), AtomicBool::new(false));
        let (answers, kills) = std::thread::scope(|scope| {
            let done = &done;
            let asking = scope.spawn(move || {
                let _done = StopOnDrop(done);
                drive(&ports, question, hits)
            });
            let kills = self.kill_until(done);
            (asking.join().expect("no panic"), kills)
        });
        (answers, self.recorder.take(), kills)
    }

    fn kill_until(&mut self, done: &AtomicBool) -> usize {
        let random = || getrandom::u32().expect("the system has random bytes");
        let mut kills = 0;
        while !done.load(Relaxed) {
            std::thread::sleep(Duration::from_millis(u64::from(random() % 400)));
            let mut node = self.nodes.swap_remove(random() as usize % self.nodes.len());
            node.kill();
            self.nodes.push(node.restart());
            kills += 1;
        }
        kills
    }
}

/// By how many seconds the clock of a node is off, by its answers' dates.
fn clock_off(node: &Tidegate) -> i64 {
    let seconds_of_day =
        |now: SystemTime| now.duration_since(UNIX_EPOCH).expect("past 1970").as_secs() as i64;
    let answer = http::get(node.ports().http, "/livez").expect("it answers");
    let date = answer.header("date").expect("answers are dated");
    let parts: Vec<i64> = date.split([' ', ':']).filter_map(|part| part.parse().ok()).collect();
    let [_, _, hours, minutes, seconds] = parts[..] else { panic!("a date: {date}") };
    let off = (hours * 3_600 + minutes * 60 + seconds - seconds_of_day(SystemTime::now())).rem_euclid(86_400);
    // To the nearest of what they are set to: seconds are whole, and on a busy machine answers take seconds.
    let off = if off > 43_200 { off - 86_400 } else { off };
    (off + CLOCKS_APART / 2).div_euclid(CLOCKS_APART) * CLOCKS_APART
}

fn ask_of(key: &str) -> RateLimitRequest {
    question("shop", &[&[(key, "x")]])
}

fn no_window_holds_more(place: Where, sync: &str) {
    let _machine = whole_machine();
    let (mut rig, (most_allowed, window)) = (Rig::start(place, sync), limit());
    let window_micros = window * 1_000_000;
    // Nodes that decide alone are faster, and several windows should go by.
    let hits = if sync == "leased" { hits().max(3 * HITS) } else { hits() };
    for key in ["window", "log"] {
        let (answers, recorded, kills) = rig.drive_and_kill(&ask_of(key), hits);
        let (charged, leased, admitted) = (&recorded.charged, recorded.leased, &answers.admitted);
        let most = [charged, admitted].map(|log| log.most_in_a_window(window_micros));
        println!(
            "{place:?} {sync} {key}: {} calls, {} answered OK, {} charged, {leased} leased, {kills} kills, {} lost; \
             in a window {most:?} of {most_allowed}",
            hits,
            admitted.len(),
            charged.len(),
            answers.lost,
        );
        assert!(most.iter().all(|&most| most <= most_allowed), "{key}: {most:?} in a window");
        assert!(admitted.len() as u64 <= charged.len() as u64 + leased, "none passes uncharged");
        assert!(most.iter().any(|most| most * 2 > most_allowed), "the limit must be reached: {most:?}");
        assert_eq!(leased > 0, sync == "leased");
        assert!(answers.denied > 0 && kills > 0, "{} denied, {kills} kills", answers.denied);
        assert!(recorded.apart_micros < APART_MICROS_MAX, "by Redis' clock: {} µs", recorded.apart_micros);
    }
}

#[test]
fn on_a_single_server_asked_each_time() {
    no_window_holds_more(Where::Single, "strict");
}

#[test]
fn on_a_single_server_with_leases() {
    no_window_holds_more(Where::Single, "leased");
}

#[test]
fn in_a_cluster_asked_each_time() {
    no_window_holds_more(Where::Cluster, "strict");
}

#[test]
fn in_a_cluster_with_leases() {
    no_window_holds_more(Where::Cluster, "leased");
}

/// Nobody dies and no window ends: every hit that may pass does.
fn exactly_all_pass(place: Where) {
    let _machine = whole_machine();
    let rig = Rig::start(place, "strict");
    for key in ["window_day", "log_day"] {
        let (answers, recorded) = rig.drive(&ask_of(key));
        println!(
            "{place:?} {key}: {} calls, {} answered OK, {} lost, the slowest {:?}",
            hits(),
            answers.admitted.len(),
            answers.lost,
            answers.slowest
        );
        assert_eq!((answers.admitted.len() as u64, answers.lost), (DAY_LIMIT, 0), "{key}");
        assert_eq!(recorded.charged.len() as u64, DAY_LIMIT, "{key}");
    }
}

#[test]
fn exactly_the_limit_passes_a_single_server() {
    exactly_all_pass(Where::Single);
}

#[test]
fn exactly_the_limit_passes_a_cluster() {
    exactly_all_pass(Where::Cluster);
}

/// Half of the callers ask for one counter, the other half for that and one in another slot, which denies nearly all of
/// them: what those are charged goes back, and in between nobody sees too much room.
#[test]
fn a_slot_that_denies_beside_winners_of_the_first() {
    let _machine = whole_machine();
    let rig = Rig::start(Where::Cluster, "strict");
    let client = rig.nodes[0].client();
    for (key, few) in [("window_day", "w"), ("log_day", "l")] {
        let both = question("shop", &[&[(key, "x")], &[("few", few)]]);
        let (one, two) = std::thread::scope(|scope| {
            let two = scope.spawn(|| drive(&rig.ports(), &both, hits() / 2));
            (drive(&rig.ports(), &ask_of(key), hits() / 2), two.join().expect("no panic"))
        });
        let passed = one.admitted.len() + two.admitted.len();
        println!("{key}: {passed} passed, {} of them of two slots", two.admitted.len());
        assert!(passed as u64 <= DAY_LIMIT, "{key}: {passed} passed");
        assert!((1..=100).contains(&two.admitted.len()) && one.admitted.len() > 1_000);
        let owed = DAY_LIMIT - passed as u64;
        match key {
            // A log gives back among its latest hits only: later it would keep Redis too long.
            "log_day" => assert!(left(&client, key) <= owed, "{} left of {owed}", left(&client, key)),
            _ => eventually_true("what was denied to be given back", || left(&client, key) == owed),
        }
    }
}

fn left(client: &Client, key: &str) -> u64 {
    client.ask(ask_only("shop", &[&[(key, "x")]])).statuses[0].limit_remaining.into()
}
