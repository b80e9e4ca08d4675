//! The token that the chart makes on consent: where helm can look into a cluster. The cluster is played (`cluster.py`).

use std::fs;

use serde_json::{Value, json};

use super::chart::{chart, with_rules};
use super::{documents, of_kind};
use crate::harness::http;
use crate::harness::process::Process;
use crate::harness::programs::{installed, python, succeed};
use crate::harness::{eventually_true, free_port};

/// The token that helm would install, in base64, into a cluster with this Secret or none.
fn token(secret: &[&str]) -> String {
    let port = free_port();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/blackbox/kubernetes/cluster.py");
    let _cluster = Process::spawn(python().arg(script).arg(port.to_string()).args(secret));
    eventually_true("the cluster", || http::get(port, "/version").is_ok_and(|answer| answer.status == 200));
    let folder = tempfile::tempdir().expect("a folder can be made");
    let [values, made] = ["values.yaml", "made.yaml"].map(|name| folder.path().join(name));
    let mut with: Value = with_rules();
    with["operators"] = json!({"createSecret": true});
    fs::write(&values, with.to_string()).expect("ours");
    let mut helm = installed("helm");
    helm.args([
        "template",
        "tidegate",
        "--namespace",
        "limits",
        "--kube-version",
        "1.31.0",
        "--dry-run=server",
    ]);
    helm.args(["--kube-apiserver", &format!("http://127.0.0.1:{port}"), "--values"])
        .arg(&values)
        .arg(chart());
    // Of the machine that runs the tests, no cluster is asked.
    helm.env("KUBECONFIG", folder.path().join("none")).env("HOME", folder.path());
    // Its warnings are on the other stream.
    fs::write(&made, helm.output().expect("it starts").stdout).expect("ours");
    let made = documents(&made);
    let secret = *of_kind(&made, "Secret").first().unwrap_or_else(|| panic!("{}", succeed(&mut helm)));
    assert_eq!(secret["metadata"]["name"], "tidegate-admin");
    assert_eq!(secret["metadata"]["annotations"]["helm.sh/resource-policy"], "keep");
    secret["data"]["token"].as_str().expect("a token").to_owned()
}

#[test]
fn a_token_is_made_once_and_stays() {
    let [first, second] = [token(&[]), token(&[])];
    assert_ne!(first, second, "it can be guessed");
    // 64 characters.
    assert_eq!(first.len(), 88);
    assert_eq!(token(&["limits", "tidegate-admin", &first]), first);
    assert_ne!(token(&["other", "tidegate-admin", &first]), first, "of another namespace");
}
