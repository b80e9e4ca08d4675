//! Pods of the chart, started: the program with exactly the environment of the rendered container, with the files that are
//! mounted into it, as its user, with a read-only root. Only its addresses are other ones.

use std::fs;
use std::os::unix::fs::chown;
use std::process::Command;

use serde_json::{Value, json};

use super::chart::{chart, render, rendered};
use super::{container, documents, list, of_kind, workload};
use crate::harness::eventually_true;
use crate::harness::grpc::question;
use crate::harness::pki::{Authority, write};
use crate::harness::redis::Redis;
use crate::harness::tidegate::{Setup, Tidegate, binary};
use crate::harness::tls::Connection;
use crate::package::start_as_nobody;

const RULES: &str =
    "domain: shop\ndescriptors:\n  - key: user\n    rate_limit: {unit: day, requests_per_unit: 7}\n";
const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// The container of these documents, with folders for its mounts, of which those of ConfigMaps have their files.
pub struct Pod {
    setup: Setup,
    folders: Vec<String>,
    /// The commands that mount them.
    mounts: String,
}

impl Pod {
    pub fn of(made: &[Value]) -> Self {
        let workload = workload(made);
        let mut setup = Setup::new().default_of("CONFIG_PATH").default_of("RULES_MAY_BE_EMPTY");
        let items = list(&container(workload)["env"]).iter();
        for item in
            items.filter(|item| !["DRAIN_GRACE", "PROMETHEUS_ADDR"].iter().any(|own| item["name"] == *own))
        {
            let name = item["name"].as_str().expect("a name");
            setup = setup.env(name, item["value"].as_str().unwrap_or("tidegate-0"));
        }
        let mut pod = Self { setup, folders: Vec::new(), mounts: String::new() };
        for mount in list(&container(workload)["volumeMounts"]) {
            pod.mount(mount["mountPath"].as_str().expect("a path"), mount["readOnly"] == true);
        }
        let volumes = list(&workload["spec"]["template"]["spec"]["volumes"]);
        let mounted =
            |map: &Value| volumes.iter().any(|it| it["configMap"]["name"] == map["metadata"]["name"]);
        for map in of_kind(made, "ConfigMap").into_iter().filter(|map| mounted(map)) {
            for (name, text) in map["data"].as_object().expect("files") {
                pod.file("rules", name, text.as_str().expect("text"));
            }
        }
        pod
    }

    fn mount(&mut self, path: &str, read_only: bool) {
        let folder = self.setup.outside().join(&path[1..]);
        fs::create_dir_all(&folder).expect("the folder is ours");
        chown(&folder, Some(65534), Some(65534)).expect("tests run as root");
        self.folders.push(path[1..].to_owned());
        let options = if read_only { "ro" } else { "rw" };
        self.mounts += &format!(
            "mkdir -p root{path}; mount --bind '{}' root{path}; mount -o remount,bind,{options} root{path}\n",
            folder.display()
        );
    }

    /// A file of what is mounted at a folder.
    fn file(&self, folder: &str, name: &str, text: &str) {
        write(&self.setup.outside().join(folder), name, text);
    }

    /// What a cluster has in Secrets and in a ConfigMap that the chart does not make, in each folder where something is
    /// mounted and nothing is yet.
    pub fn secrets(&self, authority: &Authority, rules: &str) {
        for folder in &self.folders {
            let is_empty =
                fs::read_dir(self.setup.outside().join(folder)).expect("it is ours").next().is_none();
            match folder.as_str() {
                "rules" if is_empty => self.file(folder, "shop.yaml", rules),
                "tls" => drop(authority.issue("localhost").write(&self.setup.outside().join(folder))),
                "tls-clients" | "operators" => self.file(folder, "ca.crt", &authority.pem()),
                "admin" => self.file(folder, "token", TOKEN),
                _ => {}
            }
        }
    }

    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.setup = self.setup.env(name, value);
        self
    }

    pub fn start(self) -> Tidegate {
        start_as_nobody(self.setup, &self.mounts, binary())
    }
}

/// `tidegate` with these words, for the admin API of a limiter.
fn operator(limiter: &Tidegate, words: &[&str]) -> bool {
    let mut command = Command::new(binary());
    command.args(words).env_clear().env("ADMIN_TOKEN", TOKEN);
    command.arg("--to").arg(format!("127.0.0.1:{}", limiter.ports().debug));
    command.output().expect("it starts").status.success()
}

#[test]
fn one_pod_with_tls_takes_the_token_of_operators_when_it_is_made() {
    let made = rendered(&json!({
        "rules": {"files": {"shop.yaml": RULES}},
        "tls": {"ports": ["grpc"], "existingSecret": "limiter", "clients": {"caSecret": "clients", "name": "envoy"}},
        "operators": {"existingSecret": "tidegate-admin"},
    }));
    let pod = Pod::of(&made);
    let (servers, clients) = (Authority::new("servers"), Authority::new("clients"));
    servers.issue("localhost").write(&pod.setup.outside().join("tls"));
    pod.file("tls-clients", "ca.crt", &clients.pem());
    let limiter = pod.start();
    assert_eq!(limiter.lines_with("has no effect"), 0, "{:#?}", limiter.output());

    let port = limiter.ports().grpc;
    assert!(Connection::open(port, &servers, Some(&clients.issue("envoy")), &[]).is_ok());
    let list = ["exception", "list"];
    assert!(!operator(&limiter, &list), "nobody has a token yet");
    write(&limiter.setup.outside().join("admin"), "token", TOKEN);
    eventually_true("the token to be read", || operator(&limiter, &list));
}

#[test]
fn two_pods_count_in_one_redis_whose_url_is_in_a_secret() {
    let redis = Redis::start(&[]);
    let made = rendered(&json!({
        "rules": {"files": {"shop.yaml": RULES}},
        "store": {"type": "redis", "redis": {"existingSecret": {"name": "redis", "urlKey": "url"}}},
        "records": {"redis": {"existingSecret": {"name": "redis", "urlKey": "url"}}},
    }));
    assert_eq!(workload(&made)["spec"]["replicas"], 2);
    let start = || {
        let pod = Pod::of(&made).env("REDIS_URL", &redis.url()).env("LIMITS_URL", &redis.url());
        // A busy machine is not what is tested.
        pod.env("REDIS_TIMEOUT", "10s").start()
    };
    let (one, other) = (start(), start());
    let alice: &[&[(&str, &str)]] = &[&[("user", "alice")]];
    assert_eq!(one.client().ask(question("shop", alice)).statuses[0].limit_remaining, 6);
    assert_eq!(other.client().ask(question("shop", alice)).statuses[0].limit_remaining, 5);
}

#[test]
fn a_pod_of_a_stateful_set_keeps_counters_records_and_exceptions_on_its_volume() {
    let made = rendered(&json!({
        "rules": {"files": {"shop.yaml": RULES}},
        "store": {"type": "sharded", "sharded": {"coldStart": "allow"}},
        "operators": {"existingSecret": "tidegate-admin"},
        "records": {"onVolume": true},
    }));
    let pod = Pod::of(&made);
    pod.file("admin", "token", TOKEN);
    let mut limiter = pod.start();
    let asked = question("shop", &[&[("user", "alice")]]);
    assert_eq!(limiter.client().ask(asked).statuses[0].limit_remaining, 6);
    assert!(operator(
        &limiter,
        &["exception", "put", "a", "shop", "user=bob", "--deny", "--who", "w", "--why", "y"]
    ));
    limiter.signal(rustix::process::Signal::TERM);
    assert_eq!(limiter.exit_code(), 0, "{:#?}", limiter.output());
    let state = limiter.setup.outside().join("state");
    for name in ["counters", "exceptions", "audit", "records"] {
        assert!(state.join(name).exists(), "{name}");
    }
}

/// The file is valid for the chart, its rules have no problem, and each limit is the one that its comment says.
#[test]
fn the_first_values_are_ready_to_install() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let path = folder.path().display().to_string();
    let (code, said, _) = crate::commands::tidegate(&["init", "helm", &path], &[]);
    let values = folder.path().join("values.yaml");
    assert!(code == 0 && said.contains(&format!("wrote {}\n", values.display())), "{said}");
    for line in ["helm upgrade --install tidegate $CHART ", "# The 11th within an hour gets 429.\n"] {
        assert!(said.contains(line), "{said}");
    }
    let made = render(&chart(), &[&values]).expect("good values");
    let made = documents(&write(folder.path(), "made.yaml", &made));
    let limiter = Pod::of(&made).env("STRICT_RULES", "true").start();
    // The request that it says to type.
    let body = said.split('\'').nth(1).expect("a body");
    let mut answers = (0..11).map(|_| {
        let mut client = crate::harness::http::Client::new(limiter.ports().http);
        client.send("POST", "/json", &[], body).expect("an answer").status
    });
    assert!(answers.by_ref().take(10).all(|status| status == 200));
    assert_eq!(answers.next(), Some(429));
    // What it proposes for several pods.
    let commented = fs::read_to_string(&values).expect("it is there");
    let several = commented.replace("\n#store:", "\nstore:").replace("\n#  type", "\n  type");
    let several = several.replace("\n#  redis:", "\n  redis:").replace("\n#replicas", "\nreplicas");
    let made = render(&chart(), &[&write(folder.path(), "several.yaml", &several)]).expect("good values");
    assert!(
        made.contains("replicas: 2\n") && made.contains("name: REDIS_URL, value: \"redis.limits.svc"),
        "{made}"
    );
}
