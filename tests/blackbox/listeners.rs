//! Where it listens, as the settings say, and with how many threads it answers.

use std::net::TcpStream;

use crate::harness::eventually_true;
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
    eventually_true("the ports to open", || listens("127.0.0.4", ports.debug));
    for (own, port) in hosts.into_iter().zip([ports.grpc, ports.http, ports.debug]) {
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

#[test]
fn as_many_threads_answer_as_there_should() {
    let limiter = Setup::new().env("WORKER_THREADS", "3").start();
    // A thread takes its name itself, once it runs.
    eventually_true("three workers", || limiter.threads("worker-") == 3);
}
