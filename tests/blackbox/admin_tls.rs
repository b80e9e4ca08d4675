//! The debug port with TLS: who may use the admin API by a certificate, and by which name; the commands; certificates
//! that change.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::admin::{TOKEN, exception};
use crate::harness::pki::{Authority, Identity, write};
use crate::harness::tidegate::{Setup, Tidegate, binary};
use crate::harness::tls::Connection;
use crate::harness::traffic::RULES;
use crate::harness::{eventually_true, http};

/// The names that ADMIN_TLS_SAN lets in.
const NAME: &str = "ops.example.com";
const URI: &str = "spiffe://example.com/ops";

/// Those who sign, and a folder for files.
struct World {
    folder: TempDir,
    servers: Authority,
    clients: Authority,
}

impl World {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let world = Self { folder, servers: Authority::new("servers"), clients: Authority::new("clients") };
        world.server().write(world.folder.path());
        write(world.folder.path(), "clients.crt", &world.clients.pem());
        write(world.folder.path(), "servers.crt", &world.servers.pem());
        world
    }

    fn server(&self) -> Identity {
        self.servers.issue("localhost")
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// A limiter whose debug port speaks TLS with the clients whose certificates `clients` signed.
    fn setup(&self) -> Setup {
        Setup::new()
            .rules("edge.yaml", RULES)
            .env("DEBUG_SERVER_TLS_CERT", &self.path("tls.crt"))
            .env("DEBUG_SERVER_TLS_KEY", &self.path("tls.key"))
            .env("DEBUG_SERVER_TLS_CLIENT_CACERT", &self.path("clients.crt"))
            .env("ADMIN_TLS_SAN", &format!("{NAME}, {URI}"))
    }

    fn open(&self, limiter: &Tidegate, identity: &Identity) -> Connection {
        let port = limiter.ports().debug;
        Connection::open(port, &self.servers, Some(identity), &[]).expect("a handshake")
    }

    fn status(&self, limiter: &Tidegate, identity: &Identity, headers: &[(&str, &str)]) -> u16 {
        let sent = self.open(limiter, identity).send("GET", "/admin/audit", headers, "");
        sent.expect("an answer").status
    }

    /// `tidegate` with this certificate.
    fn command(&self, identity: &Identity, limiter: &Tidegate, words: &[&str]) -> Output {
        let files = identity.write(&self.folder.path().join("client"));
        Command::new(binary())
            .env_clear()
            .args(words)
            .args(["--to", &format!("https://localhost:{}", limiter.ports().debug)])
            .args(["--cacert", &self.path("servers.crt")])
            .args([Path::new("--cert"), &files.chain, Path::new("--key"), &files.key])
            .output()
            .expect("it runs")
    }
}

#[test]
fn a_certificate_with_the_right_name_is_as_good_as_the_token_and_the_audit_names_it() {
    let world = World::new();
    let audit = world.path("audit");
    let limiter = world.setup().env("AUDIT_LOG", &audit).env("ADMIN_TOKEN", TOKEN).start();
    let body = exception(Some("alice"), &json!({"deny": true})).to_string();
    for (identity, name) in [(world.clients.issue(NAME), NAME), (world.clients.issue_uri(URI), URI)] {
        let mut connection = world.open(&limiter, &identity);
        let path = format!("/admin/exceptions/{}", name.len());
        let answer = connection.send("PUT", &path, &[], &body).expect("an answer");
        assert_eq!(answer.status, 201, "{answer:?}");
        let shown = fs::read_to_string(&audit).expect("an audit");
        let line: Value = serde_json::from_str(shown.lines().rev().nth(1).expect("two")).expect("JSON");
        assert_eq!((line["certificate"].as_str(), line["who"].as_str()), (Some(name), Some("jane")));
    }
    let other = world.clients.issue("other.example.com");
    let denied = |identity| {
        let answer = world.open(&limiter, identity).get("/status").expect("an answer");
        serde_json::from_str::<Value>(&answer.body).expect("JSON")["denied"]["keys"].clone()
    };
    let own = world.clients.issue(NAME);
    assert_eq!((denied(&own), denied(&other)), (json!([]), Value::Null), "who is denied");
    assert_eq!(world.status(&limiter, &other, &[]), 403, "a good certificate with another name");
    let bearer = format!("Bearer {TOKEN}");
    assert_eq!(world.status(&limiter, &other, &[("authorization", &bearer)]), 200, "the token is enough");
    let longer = world.clients.issue_uri(&format!("{URI}/more"));
    assert_eq!(world.status(&limiter, &longer, &[]), 403, "another URI");
    assert_eq!(world.open(&limiter, &other).get("/metrics").expect("an answer").status, 200, "it only reads");
    assert_eq!(limiter.metric("tidegate_admin_refused_total"), 2.0);
}

#[test]
fn a_page_of_another_origin_may_not_use_the_certificate_of_a_browser() {
    let world = World::new();
    let limiter = world.setup().start();
    let own = world.clients.issue(NAME);
    for headers in [
        [("origin", "https://evil.example")].as_slice(),
        &[("origin", "null")],
        &[("sec-fetch-site", "cross-site")],
        &[("sec-fetch-site", "same-site")],
    ] {
        assert_eq!(world.status(&limiter, &own, headers), 403, "{headers:?}");
    }
    let ours = [("origin", "https://localhost"), ("sec-fetch-site", "same-origin")];
    assert_eq!(world.status(&limiter, &own, &ours), 200);
    let wrong = [("authorization", "Bearer wrong")];
    assert_eq!(world.status(&limiter, &own, &wrong), 200, "there is no token that could be wrong");
}

#[test]
fn who_has_no_certificate_of_the_authority_is_not_spoken_to() {
    let world = World::new();
    let limiter = world.setup().start();
    let port = limiter.ports().debug;
    assert!(http::get(port, "/").is_err(), "never in plain");
    for identity in [None, Some(world.servers.issue(NAME)), Some(world.clients.issue_expired(NAME))] {
        let opened = Connection::open(port, &world.servers, identity.as_ref(), &[]);
        assert!(opened.and_then(|mut connection| connection.get("/admin/audit")).is_err());
    }
    let failed = limiter.scrape().sum("tidegate_tls_handshakes_failed_total", &[("port", "debug")]);
    assert_eq!(failed, 4.0);
}

#[test]
fn certificates_of_the_debug_port_are_read_again() {
    let world = World::new();
    let limiter = world.setup().start();
    let client = world.clients.issue(NAME);
    let next = world.server();
    next.write(world.folder.path());
    eventually_true("the new certificate", || world.open(&limiter, &client).shows(&next));
    let reloads = world.open(&limiter, &client).get("/status").expect("an answer").body;
    assert!(reloads.contains("DEBUG_SERVER_TLS_CERT: the new TLS files are in force"), "{reloads}");
}

#[test]
fn commands_speak_tls_and_name_the_file_that_is_no_good() {
    let world = World::new();
    let limiter = world.setup().start();
    let own = world.clients.issue(NAME);
    let put = ["exception", "put", "a", "edge", "user=x", "--deny", "--who", "jane", "--why", "a test"];
    let done = world.command(&own, &limiter, &put);
    assert!(done.status.success(), "{done:?}");
    let listed = world.command(&own, &limiter, &["exception", "list"]);
    assert!(String::from_utf8_lossy(&listed.stdout).contains("a test"), "{listed:?}");
    let refused = world.command(&world.clients.issue("other.example.com"), &limiter, &["exception", "list"]);
    let problem = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(1) && problem.contains("403"), "{refused:?}");
    let asked = world.command(&own, &limiter, &["ask", "edge", "user=x"]);
    assert!(String::from_utf8_lossy(&asked.stdout).starts_with("edge: 1 hit would get "), "{asked:?}");
    // In plain it says what is wrong; by the settings of the limiter it speaks TLS without an option.
    let port = limiter.ports().debug.to_string();
    let bare = |more: &[&str]| {
        let mut command = Command::new(binary());
        command.env_clear().args([
            "ask",
            "edge",
            "user=x",
            "--debug-host",
            "localhost",
            "--debug-port",
            &port,
        ]);
        command.args(more).output().expect("it runs")
    };
    let plain = bare(&[]);
    let problem = String::from_utf8_lossy(&plain.stderr).into_owned();
    assert!(
        plain.status.code() == Some(1) && problem.contains(&format!("https://localhost:{port}")),
        "{plain:?}"
    );
    let [chain, key, cacert] = ["tls.crt", "tls.key", "servers.crt"].map(|name| world.path(name));
    let [shown, secret] = ["client/tls.crt", "client/tls.key"].map(|name| world.path(name));
    let own_settings = ["--debug-server-tls-cert", &chain, "--debug-server-tls-key", &key];
    let trusted = ["--cacert", &cacert, "--cert", &shown, "--key", &secret];
    let asked = bare(&[&own_settings[..], &trusted].concat());
    assert!(String::from_utf8_lossy(&asked.stdout).starts_with("edge: 1 hit would get "), "{asked:?}");
    write(world.folder.path(), "servers.crt", "no certificate");
    let unread = world.command(&own, &limiter, &["exception", "list"]);
    let problem = String::from_utf8_lossy(&unread.stderr).into_owned();
    assert!(unread.status.code() == Some(64) && problem.contains("--cacert: "), "{unread:?}");
}
