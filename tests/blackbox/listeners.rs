//! Where it listens, as the settings say, and with how many threads it answers.

use std::net::TcpStream;

use crate::harness::eventually_true;
use crate::harness::grpc::question;
use crate::harness::tidegate::Setup;

fn listens(host: &str, port: u16) -> bool {
    TcpStream::connect((host, port)).is_ok()
}

#[test]
fn each_port_listens_on_its_host_alone() {
    let setup = Setup::new()
        .env("GRPC_HOST", "127.0.0.2")
        .env("HOST", "127.0.0.3")
        .env("DEBUG_HOST", "127.0.0.4")
        .env("PROMETHEUS_ADDR", "127.0.0.5:0");
    let _process = setup.spawn();
    let ports = setup.ports;
    let hosts = ["127.0.0.2", "127.0.0.3", "127.0.0.4"];
    let places = || hosts.into_iter().zip([ports.grpc, ports.http, ports.debug]);
    eventually_true("the ports to open", || places().all(|(own, port)| listens(own, port)));
    for (own, port) in places() {
        for host in hosts.into_iter().chain(["127.0.0.1"]) {
            assert_eq!(listens(host, port), host == own, "{port} on {host}");
        }
    }
}

#[test]
fn two_colons_are_both_families() {
    let limiter = Setup::new().env("GRPC_HOST", "::").env("HOST", "::").env("DEBUG_HOST", "::").start();
    let ports = limiter.ports();
    // Without IPv6 a machine has all addresses of the other family.
    let has_ipv6 = std::net::TcpListener::bind("[::1]:0").is_ok();
    for port in [ports.grpc, ports.http, ports.debug] {
        assert!(listens("127.0.0.1", port), "{port}");
        assert_eq!(listens("::1", port), has_ipv6, "{port}");
    }
}

/// It answers as ever, and sleeps when nobody asks.
#[test]
fn a_worker_that_spins_answers_and_sleeps() {
    let limiter = Setup::new().env("SPIN_TIME", "100us").env("WORKER_THREADS", "1").start();
    assert_eq!(limiter.lines_with("workers spin for up to 100µs"), 1);
    let client = limiter.client();
    for _ in 0..2_000 {
        client.ask(question("shop", &[&[("user", "alice")]]));
    }
    let (mut spent, mut looks) = (limiter.cpu_time(), 0);
    eventually_true("a while without CPU time", || {
        let before = std::mem::replace(&mut spent, limiter.cpu_time());
        looks = if spent == before { looks + 1 } else { 0 };
        looks == 20
    });
    let mut refused = Setup::new().env("SPIN_TIME", "2ms").spawn();
    assert_eq!(refused.exit_code(), 64);
    assert_eq!(refused.lines_with("SPIN_TIME"), 1);
}

#[test]
fn as_many_threads_answer_as_there_should() {
    let limiter = Setup::new().env("WORKER_THREADS", "3").start();
    // A thread takes its name itself, once it runs.
    eventually_true("three workers", || limiter.threads("worker-") == 3);
}
