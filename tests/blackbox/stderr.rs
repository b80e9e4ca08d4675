//! Where logs go may fail: that ends no more than the logs.

use std::process::{Command, Stdio};

use crate::harness::{eventually, free_port, http};

#[test]
fn a_reader_of_the_logs_that_is_gone_ends_nothing() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let (http, metrics) = (free_port(), free_port());
    let mut child = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .env_clear()
        .env("CONFIG_PATH", folder.path())
        .env("RULES_MAY_BE_EMPTY", "true")
        .envs([("HOST", "127.0.0.1"), ("GRPC_HOST", "127.0.0.1"), ("DEBUG_HOST", "127.0.0.1")])
        .envs([("GRPC_PORT", "0"), ("DEBUG_PORT", "0"), ("PORT", &http.to_string())])
        .env("PROMETHEUS_ADDR", format!("127.0.0.1:{metrics}"))
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    drop(child.stderr.take());
    eventually("the limiter to be ready", || {
        http::get(http, "/readyz").ok().filter(|page| page.status == 200)
    });
    // A bad set is told, on the thread that watches, and counted after that.
    std::fs::write(folder.path().join("shop.yaml"), "domain: \"\"\n").expect("the folder is ours");
    eventually("the bad set to be counted", || {
        let page = http::get(metrics, "/metrics").ok()?;
        page.body.contains("\nratelimit_service_config_load_error 1\n").then_some(())
    });
    assert_eq!(http::get(http, "/readyz").expect("it still runs").status, 200);
    assert!(child.try_wait().expect("it is ours").is_none(), "it still runs");
    child.kill().expect("it is ours");
    child.wait().expect("it is ours");
}
