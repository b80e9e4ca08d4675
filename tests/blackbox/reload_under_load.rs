//! Reload under load: 1,000 rules change while a real Envoy asks as fast as it can.
//!
//! Every generation of the rules has its number in the limits of both descriptors that Envoy sends, one at the start of
//! the file and one at its end: an answer with two different numbers, or with one limit only, would come from a
//! half-loaded set. The counts are asserted by what remains at the end, to the hit.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::harness::envoy::Envoy;
use crate::harness::grpc::{self, ask_only};
use crate::harness::tidegate::{Setup, Tidegate};
use crate::harness::{StopOnDrop, eventually_true, http, whole_machine};

const ROUNDS: u32 = 20;
const RULES: u32 = 1000;
const CLIENTS: u32 = 4;
/// Far beyond what is sent, so that nothing is denied.
const MANY: u32 = 1_000_000_000;

/// The rules of one generation.
fn edge(generation: u32) -> String {
    let limit = |requests: u32| format!("rate_limit: {{unit: day, requests_per_unit: {requests}}}");
    let mut text = "domain: edge\ndescriptors:\n".to_owned();
    text += &format!("  - key: remote_address\n    {}\n    descriptors:\n", limit(MANY + generation));
    for filler in 0..RULES - 2 {
        text += &format!("      - {{key: segment, value: /unused{filler}, {}}}\n", limit(filler));
    }
    text + &format!("      - {{key: segment, {}}}\n", limit(2 * MANY + generation))
}

/// A second file of the same generation.
fn probe(generation: u32) -> String {
    format!(
        "domain: edge\ndescriptors:\n  - {{key: probe, rate_limit: {{unit: day, requests_per_unit: {generation}}}}}\n"
    )
}

/// The limits of both descriptors in Envoy's header: `8, 8;w=60, 9;w=60` holds 8 and 9.
fn told_limits(header: &str) -> Vec<u32> {
    let policies = header.split(", ").skip(1);
    policies
        .map(|policy| policy.split(';').next().and_then(|limit| limit.parse().ok()).expect("a number"))
        .collect()
}

fn address(client: u32) -> String {
    format!("203.0.113.{client}")
}

/// Sends until told to stop. Returns how many were sent; each passed, under one whole generation.
fn send(port: u16, client: u32, stop: &AtomicBool) -> u32 {
    let mut connection = http::Client::new(port);
    let address = address(client);
    let mut sent = 0;
    while !stop.load(Ordering::Relaxed) {
        let answer =
            connection.send("GET", "/load", &[("x-forwarded-for", &address)], "").expect("Envoy answers");
        sent += 1;
        assert_eq!(answer.status, 200, "{answer:?}");
        let header =
            answer.header("x-ratelimit-limit").unwrap_or_else(|| panic!("no limit applied: {answer:?}"));
        let limits = told_limits(header);
        assert!(matches!(limits[..], [one, two] if one + MANY == two), "half a generation: {header}");
    }
    sent
}

/// Runs the reloads while Envoy sends, then checks what is true whatever they were.
fn under_load(limiter: &Tidegate, last_generation: u32, reloads: impl FnOnce(&grpc::Client)) {
    let envoy = Envoy::start(limiter);
    let stop = AtomicBool::new(false);
    let sent: Vec<u32> = std::thread::scope(|scope| {
        let senders: Vec<_> = (0..CLIENTS)
            .map(|client| {
                scope.spawn({
                    let (stop, port) = (&stop, envoy.port);
                    move || send(port, client, stop)
                })
            })
            .collect();
        // Set on every way out, a failed assertion included: else the senders would never end.
        let _stop = StopOnDrop(&stop);
        reloads(&limiter.client());
        drop(_stop);
        senders.into_iter().map(|sender| sender.join().expect("every call is answered")).collect()
    });

    let total: u32 = sent.iter().sum();
    println!("{total} requests were decided while the rules were reloaded");
    assert!(total > 50 * ROUNDS, "a load: {total}");
    for (client, sent) in (0..).zip(&sent) {
        let address = address(client);
        let one: &[(&str, &str)] = &[("remote_address", &address)];
        let two: &[(&str, &str)] = &[("remote_address", &address), ("segment", "/load")];
        let answer = limiter.client().ask(ask_only("edge", &[one, two]));
        let remaining: Vec<u32> = answer.statuses.iter().map(|status| status.limit_remaining).collect();
        assert_eq!(remaining, [MANY + last_generation - sent, 2 * MANY + last_generation - sent]);
    }
    assert_eq!(envoy.stat("cluster.application.ratelimit.ok"), u64::from(total));
    assert_eq!(envoy.stat("cluster.application.ratelimit.error"), 0);
    assert_eq!(limiter.metric("ratelimit_service_should_rate_limit_error"), 0.0);
    assert_eq!(limiter.metric("ratelimit_service_config_load_error"), 0.0);
}

/// The limit that a key of a domain has now.
fn limit_of(client: &grpc::Client, domain: &str, key: &str) -> Option<u32> {
    let answer = client.ask(ask_only(domain, &[&[(key, "x")]]));
    answer.statuses[0].current_limit.as_ref().map(|limit| limit.requests_per_unit)
}

#[test]
fn files_that_are_written_renamed_created_and_removed_under_load() {
    let _machine = whole_machine();
    let limiter = Setup::new().rules("edge.yaml", &edge(0)).start();
    let folder = limiter.setup.folder();
    let aside = limiter.setup.outside().join("aside");
    let extra = folder.join("extra.yaml");

    under_load(&limiter, 2 * ROUNDS, |client| {
        for round in 1..=ROUNDS {
            let generation = 2 * round - 1;
            limiter.setup.write("edge.yaml", &edge(generation));
            eventually_true("a write", || {
                limit_of(client, "edge", "remote_address") == Some(MANY + generation)
            });

            fs::write(&extra, format!("domain: extra\ndescriptors: [{{key: k, rate_limit: {{unit: day, requests_per_unit: {round}}}}}]\n")).expect("the folder is ours");
            eventually_true("a created file", || limit_of(client, "extra", "k") == Some(round));

            let generation = 2 * round;
            fs::write(&aside, edge(generation)).expect("the folder is ours");
            fs::rename(&aside, folder.join("edge.yaml")).expect("the folder is ours");
            eventually_true("a rename", || {
                limit_of(client, "edge", "remote_address") == Some(MANY + generation)
            });

            fs::remove_file(&extra).expect("the folder is ours");
            eventually_true("a removed file", || limit_of(client, "extra", "k").is_none());
        }
    });
    assert!(limiter.metric("ratelimit_service_config_load_success") >= f64::from(4 * ROUNDS + 1));
}

/// What Kubernetes does with a mounted ConfigMap: a new folder, then `..data` is pointed to it in one step.
fn swap_data(mount: &Path, generation: u32) {
    let folder = format!("..2026_11_21_{generation}");
    fs::create_dir(mount.join(&folder)).expect("the folder is ours");
    fs::write(mount.join(&folder).join("edge.yaml"), edge(generation)).expect("the folder is ours");
    fs::write(mount.join(&folder).join("probe.yaml"), probe(generation)).expect("the folder is ours");
    symlink(&folder, mount.join("..data_tmp")).expect("the folder is ours");
    fs::rename(mount.join("..data_tmp"), mount.join("..data")).expect("the folder is ours");
    if generation > 0 {
        let old = format!("..2026_11_21_{}", generation - 1);
        fs::remove_dir_all(mount.join(old)).expect("the folder is ours");
    }
}

#[test]
fn a_config_map_that_is_swapped_under_load() {
    let _machine = whole_machine();
    let setup = Setup::new().env("MERGE_DOMAIN_CONFIG", "true");
    let mount = setup.folder();
    swap_data(&mount, 0);
    for file in ["edge.yaml", "probe.yaml"] {
        symlink(format!("..data/{file}"), mount.join(file)).expect("the folder is ours");
    }
    let limiter = setup.start();

    under_load(&limiter, ROUNDS, |client| {
        for generation in 1..=ROUNDS {
            swap_data(&mount, generation);
            // Both files change in one step; no answer may mix them.
            eventually_true("a swap", || {
                let both = ask_only("edge", &[&[("remote_address", "x")], &[("probe", "x")]]);
                let limits: Vec<u32> = client
                    .ask(both)
                    .statuses
                    .iter()
                    .map(|status| {
                        status.current_limit.as_ref().expect("both rules are always there").requests_per_unit
                    })
                    .collect();
                assert_eq!(limits[0], MANY + limits[1], "two generations in one answer");
                limits[1] == generation
            });
        }
    });
}
