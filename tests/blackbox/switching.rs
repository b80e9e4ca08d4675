//! Deployments that were written for `envoyproxy/ratelimit`, with nothing changed but the program: the container that
//! Envoy Gateway makes, and Istio's sample. Each is here as its manifest has it; only ports are other ones, hosts are
//! loopback's, and absolute paths lie in a folder of the test. And the step before the switch: a second limiter, in
//! shadow mode, next to the one that decides.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;
use serde_json::json;
use tempfile::TempDir;
use tonic::Code;

use crate::harness::control_plane::ControlPlane;
use crate::harness::envoy::{Envoy, Upstream};
use crate::harness::grpc::{Client, OK, OVER_LIMIT, ask_only, question};
use crate::harness::metrics::Scrape;
use crate::harness::mount::Mount;
use crate::harness::pki::Authority;
use crate::harness::process::Process;
use crate::harness::redis::Redis;
use crate::harness::tidegate::{Ports, Setup, binary};
use crate::harness::{eventually_true, free_port, http};
use crate::mapping::LIKE_ENVOY_GATEWAY;

/// What Envoy Gateway sets.
pub const ENVOY_GATEWAY: &str = "
    RUNTIME_ROOT=/data
    RUNTIME_SUBDIRECTORY=ratelimit
    RUNTIME_IGNOREDOTFILES=true
    RUNTIME_WATCH_ROOT=false
    LOG_LEVEL=info
    USE_STATSD=false
    CONFIG_TYPE=GRPC_XDS_SOTW
    CONFIG_GRPC_XDS_SERVER_URL=envoy-gateway:18001
    CONFIG_GRPC_XDS_NODE_ID=envoy-ratelimit
    GRPC_SERVER_USE_TLS=true
    GRPC_SERVER_TLS_CERT=/certs/tls.crt
    GRPC_SERVER_TLS_KEY=/certs/tls.key
    GRPC_SERVER_TLS_CA_CERT=/certs/ca.crt
    CONFIG_GRPC_XDS_SERVER_USE_TLS=true
    CONFIG_GRPC_XDS_CLIENT_TLS_CERT=/certs/tls.crt
    CONFIG_GRPC_XDS_CLIENT_TLS_KEY=/certs/tls.key
    CONFIG_GRPC_XDS_SERVER_TLS_CACERT=/certs/ca.crt
    FORCE_START_WITHOUT_INITIAL_CONFIG=true
    REDIS_SOCKET_TYPE=tcp
    REDIS_URL=redis.redis-system.svc.cluster.local:6379
    USE_PROMETHEUS=true
    PROMETHEUS_ADDR=:19001
    PROMETHEUS_MAPPER_YAML=/etc/statsd-exporter/conf.yaml";

/// What Istio's sample sets.
const ISTIO: &str = "
    LOG_LEVEL=debug
    REDIS_SOCKET_TYPE=tcp
    REDIS_URL=redis:6379
    USE_STATSD=false
    RUNTIME_ROOT=/data
    RUNTIME_SUBDIRECTORY=ratelimit
    RUNTIME_WATCH_ROOT=false
    RUNTIME_IGNOREDOTFILES=true
    HOST=::
    GRPC_HOST=::";

/// A container: `/bin/ratelimit`, the variables of a manifest and no others, and the files that are mounted.
struct Container {
    process: Process,
    ports: Ports,
    redis: Redis,
    _root: TempDir,
}

impl Container {
    /// Starts it with its files below `root`, with these arguments, and with these variables moved.
    fn start(root: TempDir, words: &[&str], manifest: &str, moved: &[(&str, String)]) -> Self {
        let program = at(root.path(), "/bin/ratelimit");
        fs::create_dir(at(root.path(), "/bin")).expect("the folder is ours");
        symlink(binary(), &program).expect("the folder is ours");
        let ports = Ports { grpc: free_port(), http: free_port(), debug: free_port(), metrics: free_port() };
        let said = manifest.lines().filter_map(|line| line.trim().split_once('='));
        let said = said.map(|(name, value)| match value.starts_with('/') {
            true => (name, at(root.path(), value)),
            false => (name, value.to_owned()),
        });
        let mut variables: BTreeMap<_, _> = said.collect();
        let redis = Redis::start(&[]);
        variables.extend([
            ("REDIS_URL", redis.url()),
            // A busy machine is not what is tested.
            ("REDIS_TIMEOUT", "10s".to_owned()),
            ("GRPC_PORT", ports.grpc.to_string()),
            ("PORT", ports.http.to_string()),
            ("DRAIN_GRACE", "0s".to_owned()),
            ("DEBUG_HOST", "127.0.0.1".to_owned()),
            ("DEBUG_PORT", ports.debug.to_string()),
            ("PROMETHEUS_ADDR", format!("127.0.0.1:{}", ports.metrics)),
        ]);
        variables.extend(moved.iter().cloned());
        let mut command = Command::new(program);
        let process =
            Process::spawn(command.args(words).env_clear().envs(variables).current_dir(root.path()));
        let container = Self { process, ports, redis, _root: root };
        eventually_true("the probe of its health", || {
            http::get(ports.http, "/healthcheck").is_ok_and(|answer| answer.status == 200)
        });
        container
    }

    /// How many counters its Redis holds for a domain.
    fn counters(&self, domain: &str) -> usize {
        self.redis.ask::<Vec<String>>(&["KEYS", &format!("{domain}*")]).len()
    }

    /// What Kubernetes does to end it.
    fn end(mut self) {
        self.process.signal(Signal::TERM);
        assert_eq!(self.process.exit_code(), 0);
    }
}

/// Where a path of the container's is.
fn at(root: &Path, path: &str) -> String {
    format!("{}{path}", root.display())
}

/// A limit as Envoy Gateway hands it out: 2 a day for each value of a header, on one route.
fn route(name: &str) -> serde_json::Value {
    let each_value = json!({"key": "rule-0-match-0", "rate_limit": {"unit": "DAY", "requests_per_unit": 2}});
    json!([{"name": name, "domain": name,
            "descriptors": [{"key": "route/0", "value": "route/0", "descriptors": [each_value]}]}])
}

#[test]
fn envoy_gateway_finds_what_it_expects_of_its_limiter() {
    let authority = Authority::new("envoy-gateway");
    let root = tempfile::tempdir().expect("a folder can be made");
    let identity = authority.issue("127.0.0.1");
    let secret = [("tls.crt", identity.chain), ("tls.key", identity.key), ("ca.crt", authority.pem())];
    let _secret = Mount::new(&root.path().join("certs"), &secret);
    let mapping = ("conf.yaml", LIKE_ENVOY_GATEWAY.to_owned());
    let _mapping = Mount::new(&root.path().join("etc/statsd-exporter"), &[mapping]);
    let files = ["/certs/tls.crt", "/certs/tls.key", "/certs/ca.crt"].map(|file| at(root.path(), file));
    let mut plane = ControlPlane::on(free_port(), &files.each_ref().map(Path::new));

    // It is healthy before it has rules, or a slow control plane would have it killed.
    let moved = [
        ("CONFIG_GRPC_XDS_SERVER_URL", format!("127.0.0.1:{}", plane.port)),
        ("GRPC_HOST", "127.0.0.1".to_owned()),
        ("HOST", "127.0.0.1".to_owned()),
    ];
    let container = Container::start(root, &["--quotaRateLimitServiceAddr=ai:1063"], ENVOY_GATEWAY, &moved);
    // Envoy shows no certificate: GRPC_SERVER_TLS_CA_CERT demands none.
    let client = Client::with_tls(container.ports.grpc, &authority);
    let domain = "default/eg/http";
    let descriptor: &[&[_]] = &[&[("route/0", "route/0"), ("rule-0-match-0", "alice")]];
    let refused = client.call(question(domain, descriptor)).expect_err("there are no rules");
    assert_eq!(
        (refused.code(), refused.message()),
        (Code::Unavailable, "no rate limit configuration loaded")
    );

    plane.event(0, "stream");
    assert_eq!(plane.event(0, "request").pointer("/node/id"), Some(&json!("envoy-ratelimit")));
    // AI Gateway's manifest passes it to the same image.
    assert_eq!(
        container.process.lines_with("quotaRateLimitServiceAddr"),
        1,
        "{:?}",
        container.process.output()
    );
    plane.send("1", "n1", &route(domain));
    plane.event(1, "request");
    let codes = [(); 3].map(|()| client.ask(question(domain, descriptor)).overall_code);
    assert_eq!(codes, [OK, OK, OVER_LIMIT]);
    assert_eq!(container.counters(domain), 1);

    let page = http::Client::new(container.ports.metrics).get("/metrics").body;
    let shown = Scrape::parse(&page);
    let labels = [("domain", domain), ("key1", "route/0_route/0"), ("key2", "rule-0-match-0")];
    assert_eq!(shown.sum("ratelimit_service_rate_limit_total_hits", &labels), 3.0, "{page}");
    let calls = [("grpc_method", "ShouldRateLimit")];
    assert_eq!(shown.sum("ratelimit_service_total_requests", &calls), 4.0);
    assert_eq!(shown.sum("ratelimit_service_response_time_seconds_count", &calls), 4.0);
    assert_eq!(shown.sum("ratelimit_service_config_load_success", &[]), 1.0);
    assert!(!page.contains("within_limit"), "what the mapping drops is not shown:\n{page}");
    container.end();
}

/// `command: /bin/ratelimit`, as the compose files of `envoyproxy/ratelimit` have it, is an argument of our entry point.
#[test]
fn a_manifest_that_names_the_command_starts_the_image() {
    let bin = tempfile::tempdir().expect("a folder can be made");
    let [entry, command] = ["tidegate", "ratelimit"].map(|name| bin.path().join(name));
    [&entry, &command].into_iter().for_each(|name| symlink(binary(), name).expect("the folder is ours"));
    for word in [&entry, &command] {
        let setup = Setup::new().rules("edge.yaml", RULES).arg(&word.display().to_string());
        let limiter = setup.program(&entry).start();
        assert_eq!(limiter.lines_with("WARN"), 0, "{:?}", limiter.output());
    }
    let more =
        Setup::new().rules("edge.yaml", RULES).arg(&command.display().to_string()).arg("--grpc-port=1");
    let limiter = more.program(&entry).start();
    assert_eq!(limiter.lines_with("arguments are ignored"), 1, "{:?}", limiter.output());
}

/// Istio's rules, with so many requests a minute for the product page.
fn product_page(requests: u32) -> [(&'static str, String); 1] {
    let text = format!(
        "domain: ratelimit\ndescriptors:\n\
         \x20 - key: PATH\n    value: \"/productpage\"\n    rate_limit:\n      unit: minute\n      requests_per_unit: {requests}\n\
         \x20 - key: PATH\n    rate_limit:\n      unit: minute\n      requests_per_unit: 100\n"
    );
    [("config.yaml", text)]
}

#[test]
fn istios_sample_runs_with_its_mounted_rules() {
    let root = tempfile::tempdir().expect("a folder can be made");
    let mut rules = Mount::new(&root.path().join("data/ratelimit/config"), &product_page(1));
    let container = Container::start(root, &[], ISTIO, &[]);
    let client = Client::new(container.ports.grpc);
    let ask = |path| client.ask(question("ratelimit", &[&[("PATH", path)]]));
    assert_eq!([ask("/productpage"), ask("/productpage")].map(|shown| shown.overall_code), [OK, OVER_LIMIT]);
    assert_eq!(ask("/login").statuses[0].limit_remaining, 99);
    assert_eq!(container.counters("ratelimit"), 2);

    let page = http::Client::new(container.ports.debug).get("/rlconfig").body;
    assert!(page.contains("ratelimit.PATH_/productpage: unit=MINUTE requests_per_unit=1"), "{page}");
    assert_eq!(container.process.lines_with("WARN"), 0, "{:?}", container.process.output());

    rules.swap(&product_page(50));
    let looking = ask_only("ratelimit", &[&[("PATH", "/productpage")]]);
    eventually_true("the new version of the ConfigMap", || {
        client.ask(looking.clone()).statuses[0].limit_remaining == 49
    });
    container.end();
}

const RULES: &str = "
domain: edge
descriptors:
  - key: route
    value: api
    descriptors:
      - key: remote_address
        rate_limit: {unit: day, requests_per_unit: 1}
";

/// The first lines of the filter that decides, in the example; the one in the shadow comes before it.
const DECIDES: &str = "                  # Stage 0: what most routes use.";

/// A filter that asks another limiter about the same requests.
const IN_THE_SHADOW: &str = r#"
                  - name: limiter-in-the-shadow
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit
                      domain: edge
                      stage: 0
                      timeout: 10s
                      failure_mode_deny: false
                      stat_prefix: shadow
                      rate_limit_service:
                        transport_api_version: V3
                        grpc_service: { envoy_grpc: { cluster_name: shadow } }
"#;

#[test]
fn one_in_the_shadow_counts_what_the_other_decides() {
    let start = |shadow: &str| Setup::new().rules("edge.yaml", RULES).env("SHADOW_MODE", shadow).start();
    let (deciding, shadow) = (start("false"), start("true"));
    let cluster = format!(
        "  clusters:
    - name: shadow
      connect_timeout: 10s
      typed_extension_protocol_options:
        envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
          \"@type\": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
          explicit_http_config: {{ http2_protocol_options: {{}} }}
      load_assignment:
        cluster_name: shadow
        endpoints:
          - lb_endpoints:
              - endpoint: {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: {} }} }} }}
",
        shadow.ports().grpc
    );
    let filters = format!("{IN_THE_SHADOW}{DECIDES}");
    let changes = [(DECIDES, filters.as_str()), ("  clusters:\n", cluster.as_str())];
    let envoy = Envoy::start_changed(&Upstream::at(&deciding), &changes);
    let statuses = [(); 3].map(|()| envoy.client().get("/api/x").status);
    assert_eq!(statuses, [200, 429, 429]);
    for limiter in [&deciding, &shadow] {
        let shown = |name: &str| limiter.metric(&format!("ratelimit_service_rate_limit_{name}"));
        assert_eq!((shown("total_hits"), shown("over_limit")), (3.0, 2.0));
    }
    drop(shadow);
    assert_eq!(envoy.client().get("/archive/a").status, 200, "the shadow's end is nobody's");
}
