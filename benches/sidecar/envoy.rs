//! A real Envoy with one worker, in front of an upstream that is a listener of its own: an answer that the first listener
//! gave by itself would ask no limiter.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use super::RATE_LIMIT;
use super::request::{DOMAIN, KEY};
use super::server::{free_port, pinned};

const START_MAX: Duration = Duration::from_secs(30);

/// The limiter of an Envoy.
pub(crate) enum Limiter {
    None,
    /// Asked at this port of loopback.
    Port(u16),
    /// Asked at this unix socket.
    Socket(PathBuf),
    /// Tidegate's module from this folder, with these settings.
    Module(PathBuf, String),
    /// Envoy's own, which has one bucket for all.
    Local,
}

/// A running Envoy.
pub(crate) struct Envoy {
    pub(crate) port: u16,
    admin: u16,
    process: Child,
}

impl Envoy {
    /// Starts it on `core` and waits until it serves.
    pub(crate) fn start(core: &str, limiter: &Limiter, folder: &Path) -> Result<Envoy, String> {
        let [port, upstream, admin] = [free_port()?, free_port()?, free_port()?];
        let path = folder.join(format!("envoy-{port}.yaml"));
        fs::write(&path, config([port, upstream, admin], limiter)).map_err(|error| error.to_string())?;
        let binary = std::env::var_os("TIDEGATE_ENVOY").unwrap_or_else(|| "tests/.work/envoy".into());
        let mut command = pinned(core);
        if let Limiter::Module(folder, _) = limiter {
            command.env("ENVOY_DYNAMIC_MODULES_SEARCH_PATH", folder);
        }
        command.arg(binary).args(["--concurrency", "1", "--log-level", "error", "--disable-hot-restart"]);
        command.arg("-c").arg(path).stdin(Stdio::null()).stdout(Stdio::null());
        let process = command.spawn().map_err(|error| format!("setpriv, taskset: {error}"))?;
        let mut envoy = Envoy { port, admin, process };
        let start = Instant::now();
        while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
            let ended = envoy.process.try_wait().map_err(|error| error.to_string())?;
            if ended.is_some() || start.elapsed() > START_MAX {
                return Err("Envoy (TIDEGATE_ENVOY) does not listen".into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(envoy)
    }

    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// How many requests its limiter has admitted.
    pub(crate) fn asked(&self) -> Result<u64, String> {
        self.sum("[._]ok$")
    }

    /// How many requests have waited for the module's Redis.
    pub(crate) fn waited(&self) -> Result<u64, String> {
        self.sum("tidegate_waited$")
    }

    /// The sum of the counters whose names match.
    fn sum(&self, names: &str) -> Result<u64, String> {
        let page = self.page(&format!("/stats?filter={names}")).map_err(|error| format!("Envoy: {error}"))?;
        let counts = page.lines().filter_map(|line| line.rsplit_once(": ")?.1.trim().parse::<u64>().ok());
        Ok(counts.sum())
    }

    fn page(&self, path: &str) -> std::io::Result<String> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.admin))?;
        write!(stream, "GET {path} HTTP/1.1\r\nhost: envoy\r\nconnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer.split_once("\r\n\r\n").map_or(String::new(), |(_, page)| page.to_owned()))
    }
}

impl Drop for Envoy {
    fn drop(&mut self) {
        // neither can fail for a child that was not waited for yet
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn config([port, upstream, admin]: [u16; 3], limiter: &Limiter) -> String {
    let local = |port: u16| format!("{{ socket_address: {{ address: 127.0.0.1, port_value: {port} }} }}");
    let pipe = |path: &Path| format!("{{ pipe: {{ path: \"{}\" }} }}", path.display());
    let (filter, cluster) = match limiter {
        Limiter::None => Default::default(),
        Limiter::Port(port) => (FILTER.to_owned(), limiter_at(&local(*port))),
        Limiter::Socket(path) => (FILTER.to_owned(), limiter_at(&pipe(path))),
        Limiter::Module(_, settings) => (module(settings), String::new()),
        Limiter::Local => (LOCAL.to_owned(), String::new()),
    };
    format!(
        r#"
admin: {{ address: {admin} }}
static_resources:
  listeners:
    - name: edge
      address: {edge}
      filter_chains:
        - filters:
            - name: envoy.filters.network.http_connection_manager
              typed_config:
                "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: edge
                http_filters:
{filter}                  - name: envoy.filters.http.router
                    typed_config: {{ "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router }}
                route_config:
                  virtual_hosts:
                    - name: all
                      domains: ["*"]
                      routes:
                        - match: {{ prefix: / }}
                          route:
                            cluster: application
                            rate_limits: [{{ actions: [{{ request_headers: {{ header_name: ":path", descriptor_key: {KEY} }} }}] }}]
    - name: application
      address: {application}
      filter_chains:
        - filters:
            - name: envoy.filters.network.http_connection_manager
              typed_config:
                "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: application
                http_filters:
                  - name: envoy.filters.http.router
                    typed_config: {{ "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router }}
                route_config:
                  virtual_hosts:
                    - name: all
                      domains: ["*"]
                      routes: [{{ match: {{ prefix: / }}, direct_response: {{ status: 200, body: {{ inline_string: hello }} }} }}]
  clusters:
    - name: application
      connect_timeout: 1s
      load_assignment: {{ cluster_name: application, endpoints: [{{ lb_endpoints: [{{ endpoint: {{ address: {application} }} }}] }}] }}
{cluster}"#,
        admin = local(admin),
        edge = local(port),
        application = local(upstream),
    )
    .replace("@DOMAIN@", DOMAIN)
}

/// The filter that asks. A limiter that fails shows, because its requests do.
const FILTER: &str = r#"                  - name: envoy.filters.http.ratelimit
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit
                      domain: @DOMAIN@
                      timeout: 1s
                      failure_mode_deny: true
                      rate_limit_service:
                        transport_api_version: V3
                        grpc_service: { envoy_grpc: { cluster_name: limiter } }
"#;

/// Envoy's own limiter.
const LOCAL: &str = r#"                  - name: envoy.filters.http.local_ratelimit
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit
                      stat_prefix: local
                      token_bucket: { max_tokens: 1000000000, tokens_per_fill: 1000000000, fill_interval: 1s }
                      filter_enabled: { default_value: { numerator: 100, denominator: HUNDRED } }
                      filter_enforced: { default_value: { numerator: 100, denominator: HUNDRED } }
"#;

/// The module. A request that it cannot decide shows.
fn module(settings: &str) -> String {
    format!(
        r#"                  - name: tidegate
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.dynamic_modules.v3.DynamicModuleFilter
                      dynamic_module_config: {{ name: tidegate, do_not_close: true }}
                      filter_name: tidegate
                      filter_config:
                        "@type": type.googleapis.com/google.protobuf.Struct
                        value:
                          domain: @DOMAIN@
                          failure_mode_deny: true
                          settings: {{ {settings} }}
                          rules_inline: |
                            domain: @DOMAIN@
                            rate_limits: [{{actions: [{{request_headers: {{header_name: ":path", descriptor_key: {KEY}}}}}]}}]
                            descriptors: [{{key: {KEY}, rate_limit: {RATE_LIMIT}}}]
"#
    )
}

fn limiter_at(address: &str) -> String {
    format!(
        r#"    - name: limiter
      connect_timeout: 1s
      typed_extension_protocol_options:
        envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
          "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
          explicit_http_config: {{ http2_protocol_options: {{}} }}
      load_assignment: {{ cluster_name: limiter, endpoints: [{{ lb_endpoints: [{{ endpoint: {{ address: {address} }} }}] }}] }}
"#
    )
}
