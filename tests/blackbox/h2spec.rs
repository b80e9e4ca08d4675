//! h2spec, the conformance tests of HTTP/2, against both ports and against a bare hyper server: what Tidegate puts
//! around hyper breaks nothing.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use http::{Request, Response};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use crate::harness::tidegate::Setup;

/// What hyper itself does not pass: it closes such a connection without a GOAWAY.
const FAILED: &[&str] = &["http2/3.5 Sends invalid connection preface"];
/// Some cases race: a server that answers, or closes, before it has read all that h2spec sends passes them or does not,
/// as it happens. What passes in one of so many rounds passes.
const ROUNDS: usize = 6;

const CALL: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// What became of a case (one is skipped where the answer came too fast to look at it), the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    Passed,
    Skipped,
    Failed,
}

type Outcomes = BTreeMap<String, Outcome>;

/// Runs all cases.
fn h2spec(port: u16, path: &str) -> Outcomes {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let report = folder.path().join("report.xml");
    let mut command = Command::new(binary());
    command
        .args(["--port", &port.to_string(), "--path", path, "--timeout", "2", "--junit-report"])
        .arg(&report);
    let output = command.output().expect("h2spec starts");
    let report = std::fs::read_to_string(&report);
    let outcomes = report.map(|report| outcomes(&report)).unwrap_or_default();
    assert!(outcomes.len() > 140, "{} cases\n{}", outcomes.len(), String::from_utf8_lossy(&output.stdout));
    outcomes
}

/// What `tests/run` has put on the PATH, or where it installs it.
fn binary() -> String {
    let installed = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/.work/bin/h2spec");
    if Path::new(installed).exists() { installed.to_owned() } else { "h2spec".to_owned() }
}

/// The cases of a JUnit report: one element a case, and what went wrong inside it.
fn outcomes(report: &str) -> Outcomes {
    let attribute = |case: &str, name: &str| {
        let value = case.split_once(&format!("{name}=\""));
        value.and_then(|(_, rest)| rest.split_once('"')).expect("a case has a name").0.replace("&#34;", "\"")
    };
    let outcome = |case: &str| match case {
        _ if case.contains("<skipped") => Outcome::Skipped,
        _ if case.contains("<error") || case.contains("<failure") => Outcome::Failed,
        _ => Outcome::Passed,
    };
    let cases = report.split("<testcase ").skip(1);
    cases
        .map(|case| {
            (format!("{} {}", attribute(case, "package"), attribute(case, "classname")), outcome(case))
        })
        .collect()
}

/// The cases that pass, and those that do not, in any round.
struct Verdict {
    passed: Vec<String>,
    failed: Vec<String>,
}

/// Runs all cases until those that fail are the expected ones.
fn judge(port: u16, path: &str) -> Verdict {
    let mut best = h2spec(port, path);
    for _ in 1..ROUNDS {
        if which(&best, |outcome| outcome == Outcome::Failed) == FAILED {
            break;
        }
        for (case, outcome) in h2spec(port, path) {
            let known = best.entry(case).or_insert(outcome);
            *known = (*known).min(outcome);
        }
    }
    Verdict {
        passed: which(&best, |outcome| outcome != Outcome::Failed),
        failed: which(&best, |outcome| outcome == Outcome::Failed),
    }
}

fn which(outcomes: &Outcomes, wanted: impl Fn(Outcome) -> bool) -> Vec<String> {
    outcomes.iter().filter(|(_, outcome)| wanted(**outcome)).map(|(case, _)| case.clone()).collect()
}

/// hyper's own server, as it is, which answers every request with a text.
fn bare_hyper() -> (Runtime, u16) {
    let runtime = Runtime::new().expect("threads");
    let address = SocketAddr::from(([127, 0, 0, 1], 0));
    let listener = runtime.block_on(TcpListener::bind(address)).expect("a free port");
    let port = listener.local_addr().expect("it is bound").port();
    runtime.spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let answer = service_fn(|_: Request<Incoming>| async {
                Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(b"hello\n"))))
            });
            let builder = http2::Builder::new(TokioExecutor::new());
            tokio::spawn(builder.serve_connection(TokioIo::new(stream), answer));
        }
    });
    (runtime, port)
}

#[test]
fn as_many_cases_pass_as_with_bare_hyper() {
    let (_runtime, port) = bare_hyper();
    let hyper = judge(port, "/");
    // The lane passes more than hyper: its own tests say so.
    let limiter = Setup::new().env("GRPC_FRONT", "tonic").rules("shop.yaml", "domain: shop\n").start();
    let (grpc, http) = (judge(limiter.ports().grpc, CALL), judge(limiter.ports().http, "/livez"));
    for (name, verdict) in [("hyper", &hyper), ("gRPC", &grpc), ("HTTP", &http)] {
        println!("{name}: {} cases pass", verdict.passed.len());
        assert_eq!(verdict.failed, FAILED, "{name}");
    }
    assert_eq!(grpc.passed, hyper.passed);
    assert_eq!(http.passed, hyper.passed);
}
