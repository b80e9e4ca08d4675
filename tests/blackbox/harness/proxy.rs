//! A real NGINX, Caddy or HAProxy with its recipe of `examples/`, on ports of its own.
//!
//! Recipes run as they are. Changed are addresses, and the patience with the limiter, because these tests are not about
//! a machine that is too busy to answer in 100 ms.

use std::fs;
use std::process::Command;

use tempfile::TempDir;

use super::process::Process;
use super::{eventually_true, free_port, http};

/// The rules that belong to the recipes.
pub const EXAMPLE_RULES: &str = include_str!("../../../examples/nginx/rules/edge.yaml");

/// The proxies for which there is a recipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Nginx,
    Caddy,
    Haproxy,
    /// NGINX in front of several limiters, each with users of its own.
    ShardedNginx,
}

/// A running proxy.
pub struct Proxy {
    process: Process,
    /// Where its clients connect.
    pub port: u16,
    _folder: TempDir,
}

impl Kind {
    /// What CHECK_PROXY has to be for this one.
    pub fn check_proxy(self) -> &'static str {
        match self {
            Self::Nginx | Self::Haproxy | Self::ShardedNginx => "nginx",
            Self::Caddy => "forwarded",
        }
    }

    /// How it spells the address of a unix socket.
    pub fn unix(self, socket: &str) -> String {
        match self {
            Self::Nginx | Self::ShardedNginx => format!("unix:{socket}"),
            Self::Caddy => format!("unix/{socket}"),
            Self::Haproxy => format!("unix@{socket}"),
        }
    }

    /// How its recipe names the application.
    fn application(self) -> &'static str {
        match self {
            Self::Nginx => "server 127.0.0.1:10080;",
            Self::ShardedNginx => "proxy_pass http://127.0.0.1:10080;",
            Self::Caddy => "reverse_proxy 127.0.0.1:10080",
            Self::Haproxy => "server application 127.0.0.1:10080",
        }
    }

    /// The files of its recipe: their names and texts, the configuration first.
    fn files(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Nginx => &[("nginx.conf", include_str!("../../../examples/nginx/nginx.conf"))],
            Self::ShardedNginx => &[("nginx.conf", include_str!("../../../examples/sharded/nginx.conf"))],
            Self::Caddy => &[("Caddyfile", include_str!("../../../examples/caddy/Caddyfile"))],
            Self::Haproxy => &[
                ("haproxy.cfg", include_str!("../../../examples/haproxy/haproxy.cfg")),
                ("tidegate.lua", include_str!("../../../examples/haproxy/tidegate.lua")),
            ],
        }
    }

    fn command(self) -> Command {
        let words: &[&str] = match self {
            // One process, so that none is left when it is killed.
            Self::Nginx | Self::ShardedNginx => &[
                "nginx",
                "-p",
                ".",
                "-g",
                "daemon off; master_process off; pid nginx.pid;",
                "-c",
                "nginx.conf",
            ],
            Self::Caddy => &["caddy", "run", "--adapter", "caddyfile", "--config", "Caddyfile"],
            Self::Haproxy => &["haproxy", "-db", "-f", "haproxy.cfg"],
        };
        let mut command = Command::new(words[0]);
        command.args(&words[1..]);
        command
    }
}

impl Proxy {
    /// Starts the recipe in front of a limiter at this address and waits until it serves.
    pub fn start(kind: Kind, limiter: &str) -> Self {
        Self::start_before(kind, limiter, None)
    }

    /// Starts NGINX in front of three limiters, each of which counts for its own users.
    pub fn start_sharded(limiters: [u16; 3]) -> Self {
        let theirs = ["127.0.0.1:8180", "127.0.0.1:8280", "127.0.0.1:8380"];
        let own = limiters.map(|port| format!("127.0.0.1:{port}"));
        Self::start_changed(Kind::ShardedNginx, theirs.into_iter().zip(own).collect(), None)
    }

    /// The same, with an application of the test's own on this port.
    pub fn start_before(kind: Kind, limiter: &str, application: Option<u16>) -> Self {
        Self::start_changed(kind, vec![("127.0.0.1:8080", limiter.to_owned())], application)
    }

    /// NGINX before an application on this port, with these changes: (what stands there, what shall stand there).
    pub fn start_nginx_changed(limiter: &str, application: u16, changes: &[(&'static str, String)]) -> Self {
        let limiter = ("127.0.0.1:8080", limiter.to_owned());
        Self::start_changed(Kind::Nginx, [changes, &[limiter]].concat(), Some(application))
    }

    fn start_changed(kind: Kind, limiters: Vec<(&'static str, String)>, application: Option<u16>) -> Self {
        let its_own = kind.application();
        let upstream = application.map(|port| its_own.replace("10080", &port.to_string()));
        let ports = [(":10000", free_port()), (":10080", free_port()), (":10081", free_port())];
        let [own, canned, consent] = ports.map(|(documented, port)| (documented, format!(":{port}")));
        let changes = [
            own,
            canned,
            consent,
            ("100ms", "10s".to_owned()),
            ("local TIMEOUT = 1000", "local TIMEOUT = 10000".to_owned()),
            ("lb_try_duration 250ms", "lb_try_duration 25s".to_owned()),
        ];
        let folder = tempfile::tempdir().expect("a folder can be made");
        let listens_on = |documented| kind.files()[0].1.contains(documented);
        let mut awaited: Vec<u16> =
            ports.iter().filter(|(documented, _)| listens_on(*documented)).map(|&(_, port)| port).collect();
        for (name, text) in kind.files() {
            let text = text.replace(its_own, upstream.as_deref().unwrap_or(its_own));
            let text = limiters.iter().chain(&changes).fold(text, |text, (old, new)| text.replace(old, new));
            fs::write(folder.path().join(name), text).expect("the folder is ours");
        }
        let mut command = kind.command();
        // Debian keeps daemons where only root's PATH looks; Caddy writes below its home.
        let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
        command.env("PATH", path).env("HOME", folder.path()).current_dir(folder.path());
        let process = Process::spawn(&mut command);
        let mut proxy = Self { process, port: ports[0].1, _folder: folder };
        eventually_true("the proxy to be ready", || {
            proxy.assert_running();
            awaited.retain(|&port| http::connect(port).is_err());
            awaited.is_empty()
        });
        proxy
    }

    fn assert_running(&mut self) {
        if let Some(status) = self.process.ended() {
            panic!("the proxy ended: {status}\n{}", self.process.output().join("\n"));
        }
    }

    /// The client whose address is 127.0.0.`host`.
    pub fn client(&self, host: u8) -> http::Client {
        http::Client::at([127, 0, 0, host].into(), self.port)
    }
}
