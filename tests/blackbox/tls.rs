//! TLS: a real Envoy that shows a certificate, or not, or a wrong one; certificates that change under load; files that
//! are no good.

use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;
use tempfile::TempDir;

use crate::harness::envoy::{Envoy, Upstream};
use crate::harness::h2::{ACK, PREFACE, frame, kind, number, settings};
use crate::harness::mount::Mount;
use crate::harness::pki::{Authority, Identity, write};
use crate::harness::tidegate::{Ports, Setup, Tidegate};
use crate::harness::tls::Connection;
use crate::harness::traffic::{RULES, Traffic};
use crate::harness::{eventually_true, http};
use crate::status_page;

/// The name that clients have to carry.
const NAME: &str = "envoy.example.com";

/// For how long frames come that should end the connection: it takes far less, and a busy machine more.
const FLOOD: Duration = Duration::from_secs(20);

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder can be made")
}

fn setup() -> Setup {
    Setup::new().rules("edge.yaml", RULES)
}

fn with(setup: Setup, files: &[(&str, &Path)]) -> Setup {
    files.iter().fold(setup, |setup, (name, path)| setup.env(name, &path.display().to_string()))
}

/// A limiter that lets in whom `clients` say to be `NAME`.
fn mutual(folder: &Path, servers: &Authority, clients: &Authority) -> Tidegate {
    let server = servers.issue("localhost");
    // Certificate and key need not lie together.
    let certificate = server.write(&folder.join("certificate")).chain;
    let key = server.write(&folder.join("key")).key;
    let authority = write(folder, "clients.crt", &clients.pem());
    let files = [
        ("GRPC_SERVER_TLS_CERT", certificate.as_path()),
        ("GRPC_SERVER_TLS_KEY", &key),
        ("GRPC_CLIENT_TLS_CACERT", &authority),
    ];
    with(setup(), &files).env("GRPC_SERVER_USE_TLS", "true").env("GRPC_CLIENT_TLS_SAN", NAME).start()
}

fn handshakes_failed(limiter: &Tidegate, port: &str) -> f64 {
    limiter.scrape().sum("tidegate_tls_handshakes_failed_total", &[("port", port)])
}

#[test]
fn an_envoy_is_answered_if_its_certificate_says_who_it_is() {
    let folder = folder();
    let (servers, clients) = (Authority::new("servers"), Authority::new("clients"));
    let limiter = mutual(folder.path(), &servers, &clients);
    let trusted = write(folder.path(), "servers.crt", &servers.pem());
    let asks = |identity: Option<Identity>| {
        let identity = identity.map(|identity| identity.write(&folder.path().join("envoy")));
        let envoy = Envoy::start_with(&Upstream::at(&limiter).tls(&trusted, identity.as_ref()));
        let answer = envoy.client().get("/");
        assert_eq!(answer.status, 200, "failure_mode_deny: false");
        (envoy.stat("cluster.application.ratelimit.ok"), envoy.stat("cluster.application.ratelimit.error"))
    };

    assert_eq!(asks(Some(clients.issue(NAME))), (1, 0));
    assert_eq!(asks(Some(clients.issue("*.example.com"))), (1, 0), "a wildcard carries the name");
    assert_eq!(handshakes_failed(&limiter, "grpc"), 0.0);
    let others = [
        ("another name", Some(clients.issue("other.example.com"))),
        ("expired", Some(clients.issue_expired(NAME))),
        ("from another authority", Some(servers.issue(NAME))),
        ("no certificate", None),
    ];
    for (counted, (what, identity)) in (1..).zip(others) {
        assert_eq!(asks(identity), (0, 1), "{what}");
        assert!(handshakes_failed(&limiter, "grpc") >= f64::from(counted), "{what}");
    }
    let plain = Envoy::start(&limiter);
    plain.client().get("/");
    assert_eq!(plain.stat("cluster.application.ratelimit.error"), 1, "never in plain");
    assert_eq!(limiter.scrape().sum("tidegate_requests_total", &[("front", "grpc")]), 2.0);
}

/// What a secret holds: who the server is, and whose clients it lets in.
fn secret(server: &Identity, clients: &str) -> [(&'static str, String); 3] {
    [("tls.crt", server.chain.clone()), ("tls.key", server.key.clone()), ("ca.crt", clients.to_owned())]
}

#[test]
fn certificates_change_under_load_and_no_call_fails() {
    let folder = folder();
    let (old, new) = (Authority::new("old"), Authority::new("new"));
    let both = old.pem() + &new.pem();
    let path = folder.path().join("secret");
    let mut mount = Mount::new(&path, &secret(&old.issue("localhost"), &old.pem()));
    let files = [
        ("GRPC_SERVER_TLS_CERT", path.join("tls.crt")),
        ("GRPC_SERVER_TLS_KEY", path.join("tls.key")),
        ("GRPC_CLIENT_TLS_CACERT", path.join("ca.crt")),
    ];
    let files = files.each_ref().map(|(name, path)| (*name, path.as_path()));
    // Connections that last a moment, so that handshakes happen all the time.
    let setup =
        with(setup(), &files).env("GRPC_SERVER_USE_TLS", "true").env("GRPC_MAX_CONNECTION_AGE", "200ms");
    let limiter = setup.start();
    let trusted = write(folder.path(), "trusted.crt", &both);
    let client = old.issue("envoy").write(&folder.path().join("envoy"));
    let envoy = Envoy::start_with(&Upstream::at(&limiter).tls(&trusted, Some(&client)));
    let shows = |server: &Identity, authority: &Authority, client: &Identity| {
        let connection = Connection::open(limiter.ports().grpc, authority, Some(client), &["h2"]);
        connection.is_ok_and(|connection| connection.shows(server))
    };

    let traffic = Traffic::begin(&envoy, |_| {});
    let old_client = old.issue("a test");
    let mut server = old.issue("localhost");
    for authority in [&new, &old, &new, &old] {
        server = authority.issue("localhost");
        mount.swap(&secret(&server, &both));
        eventually_true("the new certificate", || shows(&server, authority, &old_client));
    }
    let torn = Identity { chain: new.issue("localhost").chain, ..new.issue("localhost") };
    mount.swap(&secret(&torn, &both));
    eventually_true("the bad key to be logged", || limiter.lines_with("not the key of the certificate") == 1);
    assert!(shows(&server, &old, &old_client), "what is in force stays");
    assert_eq!(limiter.scrape().sum("tidegate_tls_reloads_failed_total", &[("port", "grpc")]), 1.0);
    let expired = old.issue_expired("localhost");
    mount.swap(&secret(&expired, &both));
    eventually_true("the expired one to be refused", || limiter.lines_with("that is expired") == 1);
    assert!(shows(&server, &old, &old_client), "what is in force stays");
    mount.swap(&secret(&torn, &both));
    eventually_true("the bad key again", || limiter.lines_with("not the key of the certificate") == 2);
    let shown = "The last change of the TLS files of the gRPC port was refused. GRPC_SERVER_TLS_KEY: ";
    let troubles = status_page::troubles(&limiter);
    assert!(troubles.contains(shown), "{troubles}");
    let reloads = status_page::state(&limiter)["reloads"].to_string();
    assert!(reloads.contains("GRPC_SERVER_TLS_CERT: the new TLS files are in force"), "{reloads}");
    traffic.end(&envoy);
    assert!(envoy.stat("cluster.tidegate.ssl.handshake") > 5, "many connections");

    // Whose clients are let in is read again too.
    let server = new.issue("localhost");
    mount.swap(&secret(&server, &new.pem()));
    eventually_true("the new authority", || shows(&server, &new, &new.issue("a test")));
    eventually_true("the trouble to be over", || !status_page::troubles(&limiter).contains(shown));
    let failed = handshakes_failed(&limiter, "grpc");
    // With TLS 1.3 a client is done before it is refused.
    assert!(shows(&server, &new, &old_client));
    eventually_true("the old client to be refused", || handshakes_failed(&limiter, "grpc") > failed);
}

#[test]
fn http_speaks_tls_with_both_versions_and_no_plain() {
    let folder = folder();
    let servers = Authority::new("servers");
    let identity = servers.issue("localhost");
    let files = identity.write(folder.path());
    let files = [("HTTP_SERVER_TLS_CERT", files.chain.as_path()), ("HTTP_SERVER_TLS_KEY", &files.key)];
    let setup = with(setup(), &files);
    let process = setup.spawn();
    let port = setup.ports.http;
    let open = |protocols: &[&str]| Connection::open(port, &servers, None, protocols);
    eventually_true("the port to open", || open(&[]).is_ok());

    for (protocols, left) in [(&["http/1.1"][..], 999_999_999), (&[], 999_999_998)] {
        let mut connection = open(protocols).expect("it is open");
        assert!(connection.shows(&identity));
        assert_eq!(connection.get("/livez").expect("an answer").status, 200);
        let checked = connection.get("/check/edge?remote_address=10.1.2.3").expect("an answer");
        assert_eq!((checked.status, checked.number("ratelimit-remaining")), (200, left));
    }
    assert_eq!(open(&["h2", "http/1.1"]).expect("it is open").protocol(), Some("h2"));
    assert_eq!(open(&["http/1.1"]).expect("it is open").protocol(), Some("http/1.1"));
    assert!(open(&["spdy/1"]).is_err());
    assert!(http::get(port, "/livez").is_err(), "never in plain");
    // The gRPC port stays as it was.
    let client = crate::harness::grpc::Client::new(setup.ports.grpc);
    assert_eq!(client.health("").expect("in plain"), 1);
    let try_line = format!("curl -s -k https://127.0.0.1:{port}/json");
    eventually_true("the line to try", || process.lines_with(&try_line) == 1);
    process.signal(Signal::HUP);
    let taken = "HTTP_SERVER_TLS_CERT: the new TLS files are in force";
    eventually_true("the files to be taken again", || process.lines_with(taken) == 1);
    assert!(open(&[]).expect("it is still open").shows(&identity));
}

#[test]
fn files_that_are_no_good_end_the_start_and_are_named_with_their_setting() {
    let folder = folder();
    let servers = Authority::new("servers");
    let good = servers.issue("localhost").write(&folder.path().join("good"));
    let other = servers.issue("localhost").write(&folder.path().join("other"));
    let garbage = write(folder.path(), "garbage", "no certificate\n");
    let missing = folder.path().join("missing");
    let cases = [
        ("GRPC_SERVER_TLS_CERT", &missing, "No such file"),
        ("GRPC_SERVER_TLS_CERT", &garbage, "no certificate"),
        ("GRPC_SERVER_TLS_KEY", &missing, "No such file"),
        ("GRPC_SERVER_TLS_KEY", &garbage, "no private key"),
        ("GRPC_SERVER_TLS_KEY", &other.key, "not the key of the certificate"),
        ("GRPC_CLIENT_TLS_CACERT", &missing, "No such file"),
        ("GRPC_CLIENT_TLS_CACERT", &garbage, "no certificate"),
        ("HTTP_SERVER_TLS_CERT", &missing, "No such file"),
        ("HTTP_SERVER_TLS_KEY", &garbage, "no private key"),
    ];
    for (setting, path, problem) in cases {
        let files = [
            ("GRPC_SERVER_TLS_CERT", good.chain.as_path()),
            ("GRPC_SERVER_TLS_KEY", &good.key),
            ("HTTP_SERVER_TLS_CERT", &good.chain),
            ("HTTP_SERVER_TLS_KEY", &good.key),
        ];
        let setup = with(setup(), &files).env("GRPC_SERVER_USE_TLS", "true");
        let mut process = with(setup, &[(setting, path)]).spawn();
        assert_eq!(process.exit_code(), 1, "{setting}");
        let output = process.output().join("\n");
        let named = format!("{setting}: {}: ", path.display());
        assert!(output.contains(&named) && output.contains(problem), "{named}{problem}:\n{output}");
    }
}

#[test]
fn settings_that_would_check_nobody_are_refused_together() {
    let setup = Setup::new()
        .env("GRPC_SERVER_USE_TLS", "true")
        .env("GRPC_CLIENT_TLS_SAN", NAME)
        .env("HTTP_SERVER_TLS_KEY", "/key");
    let mut process = setup.spawn();
    assert_eq!(process.exit_code(), 64);
    let output = process.output();
    for (setting, needed) in [
        ("GRPC_SERVER_USE_TLS", "GRPC_SERVER_TLS_CERT"),
        ("GRPC_SERVER_USE_TLS", "GRPC_SERVER_TLS_KEY"),
        ("GRPC_CLIENT_TLS_SAN", "GRPC_CLIENT_TLS_CACERT"),
        ("HTTP_SERVER_TLS_KEY", "HTTP_SERVER_TLS_CERT"),
    ] {
        let shown = |line: &&String| line.contains(&format!("{setting}: ")) && line.contains(needed);
        assert_eq!(output.iter().filter(shown).count(), 1, "{setting} without {needed}: {output:#?}");
    }
}

/// The bytes of a connection are counted behind TLS. The lane counts its own.
#[test]
fn frames_that_ask_for_nothing_end_the_connection_on_every_port_with_tls() {
    let (folder, authority) = (folder(), Authority::new("servers"));
    let server = authority.issue("localhost").write(folder.path());
    let mut files = Vec::new();
    for port in ["GRPC", "HTTP", "DEBUG"] {
        files.push((format!("{port}_SERVER_TLS_CERT"), &*server.chain));
        files.push((format!("{port}_SERVER_TLS_KEY"), &*server.key));
    }
    let files: Vec<_> = files.iter().map(|(name, path)| (name.as_str(), *path)).collect();
    let floods = [
        frame(kind::PING, ACK, 0, b"12345678"),
        number(kind::WINDOW_UPDATE, 0, 1),
        frame(kind::PRIORITY, 0, 1, &[0, 0, 0, 0, 16]),
        frame(99, 0, 0, &[0; 100]),
    ];
    for front in ["tonic", "lane"] {
        let setup = with(setup(), &files).env("GRPC_SERVER_USE_TLS", "true").env("GRPC_FRONT", front);
        let (_process, Ports { grpc, http, debug, .. }) = (setup.spawn(), setup.ports);
        for port in [grpc, http, debug] {
            eventually_true("the port to open", || Connection::open(port, &authority, None, &["h2"]).is_ok());
            for flood in &floods {
                let mut connection = Connection::open(port, &authority, None, &["h2"]).expect("a handshake");
                assert_eq!(connection.protocol(), Some("h2"));
                connection.say(&[PREFACE, &settings(&[])].concat());
                assert!(connection.is_ended_by(flood, FLOOD), "{front}, port {port}: {:?}", &flood[..9]);
            }
        }
    }
}
