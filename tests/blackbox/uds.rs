//! Unix sockets: a real Envoy over a pipe, HTTP, and what happens to the socket's file.

use std::fs;
use std::io::{BufReader, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rustix::process::Signal;

use crate::harness::envoy::{EXAMPLE_RULES, Envoy, Upstream};
use crate::harness::eventually_true;
use crate::harness::http::{self, Answer};
use crate::harness::process::Process;
use crate::harness::tidegate::Setup;

const QUESTION: &str = r#"{"domain":"edge","descriptors":[{"entries":[{"key":"route","value":"beta"}]}]}"#;

/// A limiter with both ports on sockets, and where these are.
fn setup() -> (Setup, PathBuf, PathBuf) {
    let setup = Setup::new().rules("edge.yaml", EXAMPLE_RULES);
    let (grpc, http) = (setup.outside().join("grpc.sock"), setup.outside().join("http.sock"));
    let setup = setup.env("GRPC_UDS", &grpc.display().to_string());
    (setup.env("HTTP_UDS", &http.display().to_string()), grpc, http)
}

/// One request over HTTP/1.1.
fn send(socket: &Path, line: &str, body: &str) -> std::io::Result<Answer> {
    let mut stream = UnixStream::connect(socket)?;
    write!(stream, "{line} HTTP/1.1\r\nhost: t\r\ncontent-length: {}\r\n\r\n{body}", body.len())?;
    http::read_answer(&mut BufReader::new(stream), false)
}

fn ready(socket: &Path) {
    eventually_true("the limiter to be ready", || {
        send(socket, "GET /readyz", "").is_ok_and(|answer| answer.status == 200)
    });
}

/// Ends it in order: its sockets are gone.
fn ends(mut process: Process, sockets: [&Path; 2]) {
    process.signal(Signal::TERM);
    assert_eq!(process.exit_code(), 0, "{:#?}", process.output());
    for socket in sockets {
        assert!(!socket.exists(), "{} is removed", socket.display());
    }
}

#[test]
fn an_envoy_asks_over_a_unix_socket_and_no_port_is_open() {
    let (setup, grpc, http) = setup();
    let process = setup.spawn();
    ready(&http);
    let envoy = Envoy::start_with(&Upstream::at_socket(&grpc));
    let statuses: Vec<_> = (0..6).map(|_| envoy.client().get("/api/x").status).collect();
    assert_eq!(statuses, [200, 200, 200, 200, 200, 429]);
    assert_eq!(envoy.stat("cluster.application.ratelimit.error"), 0);

    let answer = send(&http, "POST /json", QUESTION).expect("an answer");
    assert_eq!(answer.status, 200, "{answer:?}");
    assert!(answer.body.contains("\"limitRemaining\":1"), "{answer:?}");
    for port in [setup.ports.grpc, setup.ports.http] {
        assert!(http::connect(port).is_err(), "sockets replace ports");
    }
    for socket in [&grpc, &http] {
        assert_eq!(process.lines_with(&format!("listening on unix:{}", socket.display())), 1);
    }
    let curl = format!("curl -s --unix-socket '{}' localhost/json", http.display());
    assert_eq!(process.lines_with(&curl), 1, "{:#?}", process.output());
    drop(envoy);
    ends(process, [&grpc, &http]);
}

#[test]
fn permissions_are_what_the_umask_leaves() {
    let (setup, grpc, http) = setup();
    let process = setup.spawn();
    ready(&http);
    let status = fs::read_to_string("/proc/self/status").expect("Linux reports it");
    let umask = status.lines().find_map(|line| line.strip_prefix("Umask:")).expect("Linux reports it");
    let umask = u32::from_str_radix(umask.trim(), 8).expect("octal");
    for socket in [&grpc, &http] {
        assert_eq!(fs::metadata(socket).expect("it is there").mode() & 0o777, 0o777 & !umask);
    }
    ends(process, [&grpc, &http]);
}

#[test]
fn a_socket_that_a_crash_left_is_taken_over() {
    let (setup, grpc, http) = setup();
    let mut crashed = setup.spawn();
    ready(&http);
    crashed.kill();
    assert!(fs::metadata(&grpc).expect("it was left").file_type().is_socket());

    let process = setup.spawn();
    ready(&http);
    ends(process, [&grpc, &http]);
}

#[test]
fn a_socket_that_somebody_listens_on_ends_the_start_and_is_left_alone() {
    let (setup, grpc, http) = setup();
    let first = setup.spawn();
    ready(&http);
    let mut second = setup.spawn();
    assert_eq!(second.exit_code(), 1);
    let shown = format!("gRPC: cannot listen on {}: ", grpc.display());
    assert_eq!(second.lines_with(&shown), 1, "{:#?}", second.output());
    assert_eq!(send(&http, "GET /readyz", "").expect("it still serves").status, 200);
    ends(first, [&grpc, &http]);
}

#[test]
fn a_file_that_is_no_socket_ends_the_start_and_is_left_alone() {
    let (setup, grpc, _) = setup();
    fs::write(&grpc, "mine").expect("the folder is ours");
    let mut process = setup.spawn();
    assert_eq!(process.exit_code(), 1);
    assert_eq!(process.lines_with(&format!("cannot listen on {}", grpc.display())), 1);
    assert_eq!(fs::read_to_string(&grpc).expect("it is there"), "mine");
}

#[test]
fn one_that_starts_in_place_of_another_keeps_its_socket() {
    let (setup, grpc, http) = setup();
    let mut old = setup.spawn();
    ready(&http);
    // Somebody moves the socket away, as a rolling start by hand does, and starts another limiter.
    for socket in [&grpc, &http] {
        fs::rename(socket, socket.with_extension("old")).expect("the folder is ours");
    }
    let new = setup.spawn();
    ready(&http);
    old.signal(Signal::TERM);
    assert_eq!(old.exit_code(), 0);
    assert_eq!(send(&http, "GET /readyz", "").expect("the other's socket stays").status, 200);
    ends(new, [&grpc, &http]);
}
