//! More connections than there may be.

use std::net::TcpStream;

use crate::harness::h2::Attacker;
use crate::harness::siege::{MIB, ONE_CONNECTION, attack, attack_with, question};
use crate::harness::tidegate::Setup;
use crate::harness::{eventually_true, http};

/// More connections than file descriptors: those that were there are served, the rules are read, metrics are scraped;
/// and when the crowd has gone, everybody is served again.
#[test]
fn more_connections_than_file_descriptors() {
    attack_with(
        || Setup::new().open_files(256),
        ONE_CONNECTION,
        24 * MIB,
        |siege| {
            let port = siege.grpc_port();
            let crowd: Vec<_> =
                (0..600).map(|_| TcpStream::connect(("127.0.0.1", port)).expect("it listens")).collect();
            siege.client_is_served();
            let page = http::get(siege.limiter.ports().metrics, "/metrics").expect("it is scraped");
            assert_eq!(page.status, 200);
            siege.limiter.setup.write("more.yaml", "domain: more\n");
            eventually_true("the new rules", || siege.limiter.lines_with("2 domains") > 0);
            assert!(siege.limiter.client().call(question()).is_err(), "the crowd has taken every place");
            drop(crowd);
            eventually_true("a new client to be served", || siege.limiter.client().call(question()).is_ok());
        },
    );
}

/// Connections that come and go as fast as they can, some with a greeting and some without.
#[test]
fn connections_that_come_and_go() {
    attack(8 * MIB, |siege| {
        for _ in 0..20 {
            for at in 0..100 {
                match at % 2 {
                    0 => drop(TcpStream::connect(("127.0.0.1", siege.grpc_port())).expect("it listens")),
                    _ => drop(Attacker::greeted(siege.grpc_port())),
                }
            }
            // By then the client has opened another connection, after all of these. Otherwise a limiter that gets no
            // core for a while would take memory for all that wait, and the test would measure the machine.
            siege.client_is_served();
        }
    });
}
