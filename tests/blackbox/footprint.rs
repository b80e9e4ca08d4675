//! What a limiter takes while little happens: memory at its start and after reloads, processor time when nobody asks.

use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::harness::eventually_true;
use crate::harness::grpc;
use crate::harness::tidegate::{Setup, Tidegate};

const MIB: u64 = 1 << 20;
/// How long processor time is measured.
const WATCHED: Duration = Duration::from_secs(4);
/// Of it, on one core of a fast machine.
const IDLE_CPU: Duration = Duration::from_millis(8);
/// How often threads may wake in that time. Processor time grows with other work on the machine, this does not.
const IDLE_WAKEUPS: u32 = 10 * WATCHED.as_secs() as u32;
/// On a slow or busy machine it may be this many times what a thread takes that wakes so often and does nothing: waking by
/// itself then takes most of it.
const IDLE_WORK: u32 = 8;
/// Spans of time that are tried.
const TRIES: usize = 8;

const RULES: &str = "
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: day, requests_per_unit: 10}}
";

/// As on a large machine: what is made ahead for so many counters would be seen.
fn setup() -> Setup {
    Setup::in_a_quiet_place().env("MAX_COUNTER_BYTES", "16000000000").env("WORKER_THREADS", "2")
}

/// Processor time of the thread with this folder; 0 when it has ended.
fn nanos_of(thread: &Path) -> u64 {
    let schedstat = fs::read_to_string(thread.join("schedstat")).unwrap_or_default();
    schedstat.split(' ').next().and_then(|field| field.parse().ok()).unwrap_or(0)
}

/// Waits for [`WATCHED`], and wakes as often as a limiter may. The processor time that this took.
fn wake_meanwhile() -> Duration {
    let own = || nanos_of(Path::new("/proc/thread-self"));
    let before = own();
    (0..IDLE_WAKEUPS).for_each(|_| std::thread::sleep(WATCHED / IDLE_WAKEUPS));
    Duration::from_nanos(own() - before)
}

/// Processor time of all threads, and how often one of them went to sleep. The one that watches folders is left out: it
/// watches all above the rules, so all wake it who write to /dev/null meanwhile.
fn cost(limiter: &Tidegate) -> (Duration, u64) {
    let tasks = fs::read_dir(format!("/proc/{}/task", limiter.id())).expect("it is ours");
    let each = tasks.map(|task| {
        let path = task.expect("it is ours").path();
        let nanos = nanos_of(&path);
        let status = fs::read_to_string(path.join("status")).unwrap_or_default();
        if status.starts_with("Name:\tnotify-rs") {
            return (0, 0);
        }
        let switches = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        (nanos, switches.and_then(|count| count.trim().parse::<u64>().ok()).unwrap_or(0))
    });
    let (nanos, switches) = each.fold((0, 0), |(nanos, sum), (more, count)| (nanos + more, sum + count));
    (Duration::from_nanos(nanos), switches)
}

/// In one of a few spans of time: what is left to do of what was asked before may fall into the first.
fn assert_idle(limiter: &Tidegate, counters: f64) {
    assert_eq!(limiter.metric("tidegate_counters"), counters);
    let costs = (0..TRIES).map(|_| {
        let (cpu, switches) = cost(limiter);
        let waking = wake_meanwhile();
        let (cpu_after, switches_after) = cost(limiter);
        (cpu_after - cpu, switches_after - switches, waking)
    });
    let mut busy = Vec::new();
    for (cpu, switches, waking) in costs {
        if cpu <= IDLE_CPU.max(waking * IDLE_WORK) && switches <= u64::from(IDLE_WAKEUPS) {
            return;
        }
        busy.push((cpu, switches, waking));
    }
    panic!("{counters} counters: processor time, times awake, and time for waking in {WATCHED:?}: {busy:?}");
}

#[test]
fn a_limiter_that_nobody_asks_takes_next_to_nothing() {
    let limiter = setup().rules("shop.yaml", RULES).start();
    assert_idle(&limiter, 0.0);
    let client = limiter.client();
    for user in 0..1_000 {
        client.ask(grpc::question("shop", &[&[("user", &user.to_string())]]));
    }
    drop(client);
    assert_idle(&limiter, 1_000.0);
}

#[test]
fn a_limiter_starts_small() {
    let limiter = setup().rules("shop.yaml", RULES).start();
    let bytes = limiter.anonymous_bytes();
    assert!(bytes <= 8 * MIB, "{bytes} bytes");
}

/// Both workers have seen the first set, and only one of them is asked again.
#[test]
fn the_memory_of_rules_that_were_replaced_is_given_back() {
    let rules = |requests: u32| {
        let mut text = "domain: many\ndescriptors:\n".to_owned();
        for tenant in 0..100_000 {
            text += &format!(
                "  - {{key: tenant, value: t{tenant}, rate_limit: {{unit: day, requests_per_unit: {requests}}}}}\n"
            );
        }
        text
    };
    let limiter = setup().rules("many.yaml", &rules(1)).start();
    let clients = [limiter.client(), limiter.client()];
    let limit = |client: &grpc::Client| {
        let answer = client.ask(grpc::question("many", &[&[("tenant", "t1")]]));
        answer.statuses[0].current_limit.as_ref().expect("a rule").requests_per_unit
    };
    assert_eq!(clients.each_ref().map(limit), [1, 1]);
    let at_start = limiter.anonymous_bytes();
    for requests in 2..5 {
        limiter.setup.write("many.yaml", &rules(requests));
        eventually_true("the new rules", || limit(&clients[0]) == requests);
    }
    let mut bytes = 0;
    eventually_true("memory to be given back", || {
        bytes = limiter.anonymous_bytes();
        bytes <= at_start + at_start / 4
    });
}
