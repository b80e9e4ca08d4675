//! The laws of the code base that no compiler checks: who imports whom, that the engine is pure, who reads clocks, how
//! files begin.
//!
//! In: the source tree. Out: every breach as `file:line: what`, all at once. It reads text and does not parse Rust: it
//! looks for paths that begin with `crate::` outside comments.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Which rooms of a crate each of its rooms may import. A room that is not here is a breach: the law has to say where it
/// belongs. So is a room here that has no file, and an import here that no file needs. Which crate may name which, Cargo
/// knows.
const MAY_IMPORT: &[(&str, Rooms)] = &[
    (
        "crates/engine/src",
        &[
            ("named", &[]),
            ("time", &[]),
            ("stamp", &["time"]),
            ("clock", &["time"]),
            ("unit", &["named", "time"]),
            ("cost", &["named"]),
            ("request", &["cost", "unit"]),
            ("limit", &["time"]),
            ("sip", &[]),
            ("key", &["sip"]),
            ("held_costs", &["key", "limit", "named", "sync"]),
            ("pattern", &[]),
            ("prefix", &["pattern"]),
            ("path", &["pattern", "request"]),
            ("text", &[]),
            ("metric_name", &["request"]),
            ("classes", &["limit"]),
            (
                "rule",
                &[
                    "classes",
                    "cost",
                    "held_costs",
                    "key",
                    "limit",
                    "metric_name",
                    "named",
                    "prefix",
                    "request",
                    "unit",
                ],
            ),
            ("plan", &["key", "limit", "request", "rule", "unit"]),
            (
                "rules",
                &[
                    "classes",
                    "cost",
                    "held_costs",
                    "key",
                    "limit",
                    "metric_name",
                    "path",
                    "pattern",
                    "plan",
                    "prefix",
                    "request",
                    "rule",
                    "text",
                    "time",
                    "unit",
                ],
            ),
            (
                "overlay",
                &["key", "limit", "path", "pattern", "plan", "request", "rule", "rules", "time", "unit"],
            ),
            ("settle", &["limit", "plan"]),
            ("look", &["limit"]),
            ("decision", &["key", "limit", "named", "overlay", "plan", "rule", "settle", "time"]),
            ("strikes", &["decision", "limit", "plan", "settle"]),
            (
                "explain",
                &[
                    "decision", "limit", "look", "overlay", "plan", "settle", "request", "rules", "stamp",
                    "text", "time", "unit",
                ],
            ),
            ("keyed", &["key"]),
            ("heavy", &["key", "keyed"]),
            ("known", &["key", "limit", "overlay", "sync", "unit"]),
            ("sync", &[]),
            ("reported", &["plan", "sync"]),
            (
                "memory",
                &[
                    "decision", "key", "limit", "look", "named", "plan", "reported", "settle", "strikes",
                    "sync", "time", "unit",
                ],
            ),
            (
                "limiter",
                &["decision", "explain", "key", "limit", "memory", "plan", "request", "rules", "time"],
            ),
            ("lib", &["clock", "decision", "limit", "limiter", "memory", "request", "rules", "time"]),
        ],
    ),
    (
        "crates/grpc/src",
        &[
            ("frames", &[]),
            ("huffman", &[]),
            ("hpack", &["huffman", "message", "timeout"]),
            ("message", &[]),
            ("status", &[]),
            ("timeout", &[]),
            ("connection", &["frames", "hpack", "message", "status"]),
            ("fixture", &["hpack"]),
            ("lib", &[]),
        ],
    ),
    (
        "crates/records/src",
        &[
            ("key", &[]),
            ("checks", &[]),
            ("json", &["key", "checks"]),
            ("value", &["checks"]),
            ("unique_keys", &[]),
            ("reader", &["json", "key", "checks", "unique_keys"]),
            ("folder", &["key", "value"]),
            ("fixture", &["checks"]),
            ("lib", &[]),
        ],
    ),
    (
        "crates/redis/src",
        &[
            ("clock", &[]),
            ("failure", &[]),
            ("sync", &[]),
            ("address", &[]),
            ("connect_error", &["address"]),
            ("key", &[]),
            ("script", &[]),
            ("breaker", &[]),
            ("server_clock", &[]),
            ("options", &["address", "key"]),
            ("runtime", &["address", "clock"]),
            ("wire", &["address", "connect_error", "runtime"]),
            ("lost", &["address", "options", "script"]),
            ("server", &["breaker", "connect_error", "lost", "runtime", "script", "wire"]),
            (
                "state",
                &["address", "connect_error", "failure", "lost", "options", "runtime", "script", "server"],
            ),
            ("call_batches", &["lost", "runtime", "script", "server", "state", "wire"]),
            (
                "connection",
                &[
                    "address",
                    "call_batches",
                    "connect_error",
                    "failure",
                    "lost",
                    "runtime",
                    "script",
                    "server",
                    "server_clock",
                    "state",
                    "wire",
                ],
            ),
            ("routes", &["address", "connection", "runtime"]),
            ("topology", &["address", "connect_error", "connection", "runtime", "state"]),
            (
                "inspect",
                &[
                    "address",
                    "connect_error",
                    "connection",
                    "lost",
                    "routes",
                    "runtime",
                    "script",
                    "state",
                    "topology",
                ],
            ),
            (
                "complete",
                &[
                    "address",
                    "connect_error",
                    "connection",
                    "inspect",
                    "options",
                    "runtime",
                    "state",
                    "topology",
                ],
            ),
            (
                "worker_connections",
                &[
                    "address",
                    "connect_error",
                    "connection",
                    "inspect",
                    "lost",
                    "routes",
                    "runtime",
                    "state",
                    "topology",
                ],
            ),
            (
                "store",
                &[
                    "address",
                    "connect_error",
                    "connection",
                    "failure",
                    "options",
                    "routes",
                    "runtime",
                    "script",
                    "state",
                    "topology",
                    "worker_connections",
                ],
            ),
            ("tls", &[]),
            ("lease", &["script"]),
            ("values", &["address", "connect_error", "runtime", "store"]),
            (
                "shared_store",
                &[
                    "address",
                    "connect_error",
                    "connection",
                    "failure",
                    "lease",
                    "routes",
                    "runtime",
                    "script",
                    "store",
                    "sync",
                    "topology",
                ],
            ),
            ("lib", &[]),
        ],
    ),
    ("crates/disk/src", &[("mortal", &[]), ("tests", &[]), ("lib", &[])]),
    (
        "crates/state/src",
        &[
            ("clock", &[]),
            ("format", &["moment", "outcome"]),
            ("writer", &["clock", "format"]),
            ("reader", &["format", "outcome"]),
            ("folder", &["sequence", "writer"]),
            ("moment", &["clock", "outcome"]),
            ("outcome", &[]),
            ("secret", &["format", "outcome"]),
            ("sequence", &[]),
            ("start", &["clock", "folder", "format", "moment", "outcome", "reader", "secret", "writer"]),
            ("checkpoints", &["folder", "outcome", "start", "writer"]),
            ("tests", &[]),
            ("lib", &[]),
        ],
    ),
    ("crates/trial/src", &[("replay", &[]), ("cases", &[]), ("envoy", &[]), ("lib", &[])]),
    (
        "crates/serve/src",
        &[
            ("clock", &[]),
            ("report", &[]),
            ("health", &[]),
            ("live", &[]),
            ("metrics", &[]),
            ("decisions", &["metrics", "report"]),
            ("bans", &[]),
            ("events", &["bans", "clock"]),
            ("denied", &[]),
            ("watches", &["denied"]),
            ("service", &["bans", "live", "metrics", "clock", "decisions", "denied", "events", "watches"]),
            ("refusal", &["service"]),
            ("reload", &["clock", "events", "health", "metrics", "report", "service"]),
            ("lib", &[]),
        ],
    ),
    (
        "crates/operate/src",
        &[
            ("peer", &[]),
            ("bodies", &[]),
            ("line_file", &["bodies"]),
            ("numbers", &[]),
            ("audit", &[]),
            ("exceptions", &["audit", "bodies", "line_file", "numbers", "serve::service"]),
            ("resets", &["bodies", "line_file", "numbers", "serve::service"]),
            ("records", &["serve::service"]),
            (
                "status",
                &[
                    "serve::bans",
                    "serve::clock",
                    "serve::denied",
                    "serve::health",
                    "serve::metrics",
                    "serve::reload",
                    "serve::service",
                ],
            ),
            ("page", &["peer", "serve::refusal"]),
            ("gate", &["peer", "serve::clock"]),
            (
                "api",
                &[
                    "audit",
                    "bodies",
                    "exceptions",
                    "gate",
                    "page",
                    "peer",
                    "records",
                    "resets",
                    "serve::bans",
                    "serve::clock",
                    "serve::refusal",
                    "serve::service",
                    "serve::watches",
                ],
            ),
            (
                "debug",
                &[
                    "api",
                    "gate",
                    "page",
                    "peer",
                    "status",
                    "serve::metrics",
                    "serve::refusal",
                    "serve::service",
                ],
            ),
            ("lib", &[]),
        ],
    ),
    (
        "crates/envoy/src",
        &[
            ("abi", &[]),
            ("log", &["abi"]),
            ("client", &["abi"]),
            ("doorbell", &[]),
            ("stats", &["abi"]),
            ("configuration", &["abi", "doorbell", "stats"]),
            ("filter", &["abi", "client", "configuration", "doorbell"]),
            ("hooks", &["abi", "configuration", "filter", "log"]),
            ("lib", &[]),
        ],
    ),
    ("crates/yaml/src", &[("lib", &[])]),
    (
        "src",
        &[
            ("clock", &["serve::clock"]),
            ("logging", &["clock", "operate::debug", "serve::report"]),
            // Nothing but a type: everybody may hold an address.
            ("url", &[]),
            ("source", &["url"]),
            ("statsd", &["serve::metrics"]),
            ("spans", &["url"]),
            ("webhook", &["clock", "serve::events"]),
            (
                "front",
                &[
                    "spans",
                    "clock",
                    "operate::bodies",
                    "operate::debug",
                    "operate::page",
                    "operate::peer",
                    "serve::health",
                    "serve::metrics",
                    "serve::refusal",
                    "serve::service",
                ],
            ),
            (
                "settings",
                // Choices that others own: their names. Nothing else of anybody.
                &[
                    "url",
                    "front::HeadersFormat",
                    "front::http::Proxy",
                    "logging::LogLevel",
                    "spans::Protocol",
                    "statsd::Transport",
                    "operate::gate::AdminToken",
                    "serve::events::Kinds",
                    "serve::service::StaleMode",
                ],
            ),
            (
                "configuration",
                &[
                    "url",
                    "settings",
                    "logging",
                    "source",
                    "statsd",
                    "spans",
                    "front",
                    "operate::gate",
                    "serve::events",
                    "serve::metrics",
                    "serve::refusal",
                    "serve::service",
                ],
            ),
            (
                "app",
                &[
                    "clock",
                    "configuration",
                    "logging",
                    "source",
                    "statsd",
                    "spans",
                    "webhook",
                    "front",
                    "operate",
                    "serve",
                ],
            ),
            (
                "cli",
                &[
                    "clock",
                    "settings",
                    "configuration",
                    "source",
                    "app",
                    "operate::bodies",
                    "serve::report",
                    "trial",
                ],
            ),
            // The binary: argv to exit code, through the library's name.
            ("main", &["cli"]),
            ("lib", &[]),
        ],
    ),
];

/// Rooms, each with those that it may import.
type Rooms = &'static [(&'static str, &'static [&'static str])];

/// What the engine may not name: clocks, I/O, threads, async, logs, metrics, protocol types.
const IMPURE: &[&str] = &[
    "Instant",
    "SystemTime",
    "std::fs",
    "std::io",
    "std::net",
    "std::env",
    "std::thread",
    "std::process",
    "tokio",
    "tonic",
    "prost",
    "hyper",
    "tracing",
    "prometheus",
    "notify",
    "arc_swap",
    "async fn",
    ".await",
    "println!",
    "eprintln!",
    "rand::",
    "getrandom",
];

/// What the shared store and the way of a request take from their runtime only, so that a simulation can run them.
const OF_THE_RUNTIME: &[&str] = &[
    "monotonic()",
    "tokio::net",
    "tokio::runtime",
    "tokio::spawn",
    "tokio::task",
    "tokio::time",
    "thread_local!",
    "getrandom",
];

/// Names that do not say what a type is.
const VAGUE: &[&str] = &["Asked", "Kind", "Known", "Memory", "Stamp"];

/// Types with the name of a word of the glossary that have another meaning: the name, the file, and why.
const OTHER_TYPES: &[(&str, &str, &str)] = &[
    ("Answer", "src/app/inside.rs", "the answer to Envoy, for the module inside it"),
    (
        "Ban",
        "crates/operate/src/bodies/asked.rs",
        "its form in JSON, by the name of its schema in openapi.json",
    ),
    ("Counter", "crates/envoy/src/abi.rs", "Envoy's word: a counter of its statistics"),
    ("Entry", "crates/grpc/src/hpack/table.rs", "RFC 7541's word: an entry of a table"),
    (
        "Entry",
        "crates/operate/src/bodies/asked.rs",
        "its form in JSON, by the name of its schema in openapi.json",
    ),
    ("Entry", "crates/redis/src/values.rs", "Redis' word: an entry of a stream"),
    (
        "Exception",
        "crates/operate/src/bodies/asked.rs",
        "its form in JSON, by the name of its schema in openapi.json",
    ),
    ("State", "crates/grpc/src/connection/streams.rs", "RFC 9113's word: the state of a stream"),
];

/// A line of code: comments and the contents of string literals are blanked out.
struct Line {
    number: usize,
    code: String,
}

/// A source file.
struct Source {
    path: PathBuf,
    text: String,
}

impl Source {
    /// Where the crate's sources are that it belongs to: `crates/engine/src`.
    fn house(&self) -> &Path {
        self.path.ancestors().find(|folder| folder.ends_with("src")).expect("a file of a crate")
    }

    /// The top-level module that it belongs to: `front` for `src/front/http.rs` and `src/front.rs`.
    fn room(&self) -> String {
        let inside = self.path.strip_prefix(self.house()).expect("a file of that");
        let first = inside.components().next().expect("a name").as_os_str().to_string_lossy();
        first.trim_end_matches(".rs").to_owned()
    }

    /// The path of its module: `front::http`; of the crate itself an empty one.
    fn module(&self) -> String {
        let inside = self.path.strip_prefix(self.house()).expect("a file of that").with_extension("");
        let module = inside.to_string_lossy().replace('/', "::");
        if module == "lib" { String::new() } else { module }
    }

    /// Of unit tests only: a front's tests may well start a store and look at a clock.
    fn is_tests(&self) -> bool {
        let inside = self.path.to_string_lossy();
        inside.ends_with("/tests.rs") || inside.contains("/tests/")
    }

    /// The code without its unit tests: comments, strings and what follows `mod tests {` are gone.
    fn production(&self) -> String {
        let code = blank_comments_and_strings(&self.text);
        let mut tests = code.match_indices("#[cfg(test)]\nmod ").map(|(at, _)| at);
        // In a file of its own, tests are declared above the code.
        let begin =
            |at: &usize| code[*at..].find(['{', ';']).is_some_and(|end| code[at + end..].starts_with('{'));
        let end = if self.is_tests() { 0 } else { tests.find(begin).unwrap_or(code.len()) };
        code[..end].to_owned()
    }
}

/// Breaches, collected over all files.
#[derive(Default)]
struct Breaches(String);

impl Breaches {
    fn add(&mut self, path: &Path, line: usize, what: &str) {
        writeln!(self.0, "{}:{line}: {what}", path.display()).expect("a String takes all");
    }

    fn check(self) {
        assert!(self.0.is_empty(), "\n{}", self.0);
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The lines of this code.
fn numbered(code: &str) -> impl Iterator<Item = Line> {
    code.lines().enumerate().map(|(at, code)| Line { number: at + 1, code: code.to_owned() })
}

/// Files below this folder, of which the name ends so, with paths from the root.
fn files(folder: &str, wanted: &dyn Fn(&Path) -> bool) -> Vec<Source> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten() {
            let path = entry.expect("the tree can be read").path();
            if path.is_dir() && path != root().join("tests/.work") {
                folders.push(path);
            } else if wanted(&path) {
                let text = fs::read_to_string(&path).expect("the tree can be read");
                let path = path.strip_prefix(root()).expect("below the root").to_owned();
                found.push(Source { path, text });
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

fn sources() -> Vec<Source> {
    let is_rust = |path: &Path| path.extension().is_some_and(|extension| extension == "rs");
    houses().iter().flat_map(|house| files(house, &is_rust)).collect()
}

/// Where the sources of every crate are.
fn houses() -> Vec<String> {
    let crates = fs::read_dir(root().join("crates")).expect("the tree can be read");
    let mut houses: Vec<_> = crates
        .map(|entry| format!("crates/{}/src", entry.expect("a crate").file_name().to_string_lossy()))
        .chain(["src".to_owned()])
        .collect();
    houses.sort();
    houses
}

/// Keeps the shape (lines and columns) and drops what comments and strings say.
fn blank_comments_and_strings(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let skipped = comment_or_literal(rest);
        if skipped == 0 {
            out.push(first);
            rest = &rest[first.len_utf8()..];
            continue;
        }
        out.extend(rest[..skipped].chars().map(|char| if char == '\n' { '\n' } else { ' ' }));
        rest = &rest[skipped..];
    }
    out
}

/// How many bytes the comment, string or character that starts here has; 0 when none does.
fn comment_or_literal(text: &str) -> usize {
    let to_the_end = |at: Option<usize>, len: usize| at.map_or(text.len(), |at| at + len);
    if text.starts_with("//") {
        return to_the_end(text.find('\n'), 0);
    }
    if text.starts_with("/*") {
        return to_the_end(text.find("*/"), 2);
    }
    if let Some(raw) = text.strip_prefix('r').filter(|raw| raw.starts_with(['"', '#'])) {
        let fence = raw.len() - raw.trim_start_matches('#').len();
        if !raw[fence..].starts_with('"') {
            return 0; // A raw identifier.
        }
        let close = format!("\"{}", "#".repeat(fence));
        let body = 1 + fence + 1;
        return to_the_end(text[body..].find(&close).map(|at| body + at), close.len());
    }
    if text.starts_with("'\"'") || text.starts_with("'\\") {
        return to_the_end(text[2..].find('\'').map(|at| 2 + at), 1);
    }
    if let Some(inside) = text.strip_prefix('"') {
        let mut escaped = false;
        let close = inside.find(|char| {
            let closes = char == '"' && !escaped;
            escaped = char == '\\' && !escaped;
            closes
        });
        return to_the_end(close.map(|at| 1 + at), 1);
    }
    0
}

/// Our modules that this code names, each with its line, as far as the law looks: `engine`, `store::StoreError`.
fn imports(code: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let others =
        ["serve", "operate", "trial"].map(|name| (format!("tidegate_{name}::"), format!("{name}::")));
    let own = ["crate::", "tidegate::"].map(|start| (start.to_owned(), String::new()));
    for (start, of) in own.into_iter().chain(others) {
        for (at, _) in code.match_indices(&start) {
            let before = code[..at].chars().next_back();
            if before.is_some_and(|char| char.is_alphanumeric() || char == '_') {
                continue;
            }
            let line = code[..at].matches('\n').count() + 1;
            let path = &code[at + start.len()..];
            let paths = path.strip_prefix('{').map_or_else(|| vec![path], group);
            found.extend(
                paths
                    .into_iter()
                    .map(path_of)
                    .filter(|path| !path.is_empty())
                    .map(|path| (line, format!("{of}{path}"))),
            );
        }
    }
    found
}

/// What begins each member of a `{a::{b, c}, d}`, the opening brace taken off: `a::{b, c}, d}` and `d}`.
fn group(text: &str) -> Vec<&str> {
    let mut members = vec![text];
    let mut depth = 1;
    for (at, char) in text.char_indices() {
        match char {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 1 => members.push(&text[at + 1..]),
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    members
}

/// The path at the start of this text.
fn path_of(text: &str) -> String {
    let text = text.trim_start();
    let end =
        text.find(|char: char| !(char.is_alphanumeric() || char == '_' || char == ':')).unwrap_or(text.len());
    text[..end].trim_end_matches(':').to_owned()
}

fn allows(law: &[&str], path: &str) -> bool {
    law.iter().any(|allowed| path == *allowed || path.starts_with(&format!("{allowed}::")))
}

#[test]
fn modules_import_only_what_the_law_allows() {
    let law: BTreeMap<_, BTreeMap<_, _>> =
        MAY_IMPORT.iter().map(|(house, rooms)| (Path::new(house), rooms.iter().copied().collect())).collect();
    let (mut breaches, sources) = (Breaches::default(), sources());
    let mut empty: BTreeSet<_> =
        law.iter().flat_map(|(house, rooms)| rooms.keys().map(|room| (*house, (*room).to_owned()))).collect();
    let mut unused: BTreeSet<_> = law
        .iter()
        .flat_map(|(house, rooms)| rooms.iter().map(move |(room, allowed)| (*house, *room, *allowed)))
        .flat_map(|(house, room, allowed)| allowed.iter().map(move |other| (house, room.to_owned(), *other)))
        .collect();
    for source in &sources {
        let room = source.room();
        empty.remove(&(source.house(), room.clone()));
        let Some(allowed) = law.get(source.house()).and_then(|rooms| rooms.get(room.as_str())) else {
            breaches.add(
                &source.path,
                1,
                &format!("`{room}` has no place in the import law of tests/tidy.rs"),
            );
            continue;
        };
        for (line, path) in imports(&source.production()) {
            match allowed.iter().find(|other| allows(&[other], &path)) {
                Some(other) => _ = unused.remove(&(source.house(), room.clone(), *other)),
                None if allows(&[&room], &path) => {}
                None => breaches.add(&source.path, line, &format!("`{room}` may not import `{path}`")),
            }
        }
    }
    for (house, room) in empty {
        breaches.add(house, 1, &format!("`{room}` is in the import law, and has no file"));
    }
    for (house, room, other) in unused {
        breaches.add(house, 1, &format!("`{room}` may import `{other}`, and does not"));
    }
    breaches.check();
}

/// The modules of a crate, each with the paths that it uses, from the crate on.
type Modules = BTreeMap<String, Vec<String>>;

/// Of modules that lie side by side none needs itself by way of others.
#[test]
fn modules_side_by_side_need_each_other_in_no_circle() {
    let (mut breaches, sources) = (Breaches::default(), sources());
    for house in houses() {
        let inside =
            sources.iter().filter(|source| source.house() == Path::new(&house) && !source.is_tests());
        let modules = inside.map(|source| (source.module(), used(&source.module(), &source.production())));
        for (module, needed) in circles(&modules.collect()) {
            let problem = format!("`{module}` needs itself by way of one of {needed:?}");
            breaches.add(Path::new(&house), 1, &problem);
        }
    }
    breaches.check();
}

/// Modules that need themselves by way of others, each with all modules that it needs.
fn circles(modules: &Modules) -> BTreeMap<String, BTreeSet<String>> {
    let mut needs: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (module, used) in modules {
        for path in used {
            if let Some((one, other)) = side_by_side(module, owner(path, modules)) {
                needs.entry(one).or_default().insert(other);
            }
        }
    }
    let needs_itself = |module: &String| {
        let (mut met, mut next) = (BTreeSet::new(), vec![module]);
        while let Some(at) = next.pop() {
            next.extend(needs.get(at).into_iter().flatten().filter(|needed| met.insert(*needed)));
        }
        met.contains(module)
    };
    needs
        .iter()
        .filter(|(module, _)| needs_itself(module))
        .map(|(module, needed)| (module.clone(), needed.clone()))
        .collect()
}

/// The paths of every `use` in this module, from the crate on. Those of other crates look as if they were below it.
fn used(module: &str, code: &str) -> Vec<String> {
    let mut found = Vec::new();
    for statement in code.split("use ").skip(1) {
        let (mut groups, mut path) = (Vec::new(), String::new());
        for char in statement.chars().filter(|char| !char.is_whitespace()) {
            match char {
                '{' => groups.push(path.clone()),
                ',' | '}' | ';' => {
                    found.push(from_the_crate(module, &path));
                    path = if char == ',' { groups.last().cloned() } else { None }.unwrap_or_default();
                    if char == '}' {
                        groups.pop();
                    }
                    if char == ';' {
                        break;
                    }
                }
                _ => path.push(char),
            }
        }
    }
    found
}

fn from_the_crate(module: &str, path: &str) -> String {
    let (mut base, mut rest) = (module, path);
    if let Some(rest) = path.strip_prefix("crate::") {
        return rest.to_owned();
    }
    while let Some(above) = rest.strip_prefix("super::") {
        (base, rest) = (parent(base), above);
    }
    format!("{base}::{}", rest.strip_prefix("self::").unwrap_or(rest)).trim_start_matches("::").to_owned()
}

/// The module that has what this path names, or passes it on from one below.
fn owner<'m>(path: &str, modules: &'m Modules) -> &'m str {
    let mut module = path;
    while !modules.contains_key(module) {
        module = parent(module);
    }
    let (module, used) = modules.get_key_value(module).expect("the crate at least");
    let item = path[module.len()..].trim_start_matches("::").split("::").next().unwrap_or_default();
    let is_passed_on = |below: &&String| {
        !item.is_empty() && allows(&[module], below) && below.ends_with(&format!("::{item}"))
    };
    match used.iter().filter(|below| *below != path).find(is_passed_on) {
        Some(below) if owner(below, modules) != module => owner(below, modules),
        _ => module,
    }
}

/// Where these two modules part. `None`: one lies in the other.
fn side_by_side(one: &str, other: &str) -> Option<(String, String)> {
    let (one, other): (Vec<_>, Vec<_>) = (one.split("::").collect(), other.split("::").collect());
    let at = one.iter().zip(&other).position(|(one, other)| one != other)?;
    let side = |path: &[&str]| path[..=at].join("::");
    (!one[at].is_empty() && !other[at].is_empty()).then(|| (side(&one), side(&other)))
}

fn parent(module: &str) -> &str {
    module.rsplit_once("::").map_or("", |(parent, _)| parent)
}

#[test]
fn the_engine_is_pure() {
    let mut breaches = Breaches::default();
    let engine = Path::new("crates/engine/src");
    for source in sources().iter().filter(|source| source.house() == engine && source.room() != "clock") {
        for line in numbered(&blank_comments_and_strings(&source.text)) {
            for word in IMPURE.iter().filter(|word| line.code.contains(**word)) {
                breaches.add(&source.path, line.number, &format!("`{word}` in the engine"));
            }
        }
    }
    breaches.check();
}

#[test]
fn the_shared_store_and_the_service_ask_their_runtime() {
    let mut breaches = Breaches::default();
    let (store, serve) = (Path::new("crates/redis/src"), Path::new("crates/serve/src"));
    let is_driven = |source: &&Source| match source.room().as_str() {
        "clock" | "runtime" => false,
        room => source.house() == store || source.house() == serve && room == "service",
    };
    // Judges of tests.
    let is_judge =
        |path: &Path| ["records/oracle.rs", "records/batches.rs"].iter().any(|it| path.ends_with(it));
    let is_driven = |source: &&Source| is_driven(source) && !is_judge(&source.path);
    for source in sources().iter().filter(is_driven) {
        for line in numbered(&source.production()) {
            // Each thread reads the rules in force through a cache of its own.
            let own =
                if source.path.ends_with("serve/src/service/readers.rs") { "thread_local!" } else { "" };
            let code = line.code.replace("runtime.monotonic()", "").replace(own, "");
            for word in OF_THE_RUNTIME.iter().filter(|word| code.contains(**word)) {
                breaches.add(&source.path, line.number, &format!("`{word}`: ask the runtime"));
            }
            if code.contains("select!") && !source.text.contains("biased;") {
                breaches.add(&source.path, line.number, "a `select!` that is not `biased`");
            }
        }
    }
    breaches.check();
}

/// The way of a request opens no sockets, and reads no settings.
#[test]
fn the_way_of_a_request_knows_no_sockets_and_no_settings() {
    let mut breaches = Breaches::default();
    for source in sources().iter().filter(|source| source.house() == Path::new("crates/serve/src")) {
        for line in numbered(&source.production()) {
            for word in ["tokio::net", "std::net", "std::env", "hyper::", "tonic::"] {
                if line.code.contains(word) {
                    breaches.add(&source.path, line.number, &format!("`{word}`: that is the program's"));
                }
            }
        }
    }
    breaches.check();
}

/// Those who embed the engine, or the protocol, take neither a runtime nor a server with it. Rules are tried without either.
#[test]
fn no_runtime_and_no_server_come_with_the_engine_the_protocol_or_trials() {
    let heavy = [
        "tokio", "mio", "hyper", "http", "h2", "tonic", "prost", "redis", "clap", "rustls", "tracing",
        "rustix",
    ];
    for name in ["tidegate-engine", "tidegate-grpc", "tidegate-trial", "tidegate-yaml"] {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["tree", "--edges", "normal", "--target", "all", "--prefix", "none", "--format", "{p}"]);
        let tree = cargo.args(["--locked", "--offline", "--package", name]).current_dir(root()).output();
        let tree = tree.expect("cargo runs");
        let (shown, errors) = (String::from_utf8_lossy(&tree.stdout), String::from_utf8_lossy(&tree.stderr));
        assert!(shown.starts_with(name), "{name}: {shown}{errors}");
        let brought = |heavy: &&&str| shown.lines().any(|line| line.split(' ').next() == Some(**heavy));
        assert_eq!(heavy.iter().filter(brought).collect::<Vec<_>>(), Vec::<&&str>::new(), "{name}: {shown}");
    }
}

#[test]
fn only_clock_rs_reads_clocks() {
    let mut breaches = Breaches::default();
    for source in sources().iter().filter(|source| source.room() != "clock") {
        for (at, code) in source.production().lines().enumerate() {
            for call in ["Instant::now", "SystemTime::now"].iter().filter(|call| code.contains(**call)) {
                breaches.add(&source.path, at + 1, &format!("`{call}`: ask clock.rs"));
            }
        }
    }
    breaches.check();
}

/// The one that Cargo built with the tests is not the one that is shipped.
#[test]
fn tests_ask_the_harness_which_binary_they_test() {
    let mut breaches = Breaches::default();
    let rust = |path: &Path| path.extension().is_some_and(|extension| extension == "rs");
    for source in files("tests/blackbox", &rust) {
        let is_harness = source.path.ends_with("harness/tidegate.rs");
        for (at, line) in source.text.lines().enumerate() {
            if line.contains("CARGO_BIN_EXE_") && !is_harness {
                breaches.add(&source.path, at + 1, "`CARGO_BIN_EXE_…`: ask `harness::tidegate::binary`");
            }
        }
    }
    breaches.check();
}

#[test]
fn every_file_says_first_what_it_is() {
    let mut breaches = Breaches::default();
    let rust = |path: &Path| path.extension().is_some_and(|extension| extension == "rs");
    for folder in ["src", "crates", "tests", "benches", "examples"] {
        for source in files(folder, &rust) {
            if !source.text.starts_with("//! ") {
                breaches.add(&source.path, 1, "does not open with //!");
            }
        }
    }
    breaches.check();
}

#[test]
fn files_and_functions_stay_readable() {
    let mut breaches = Breaches::default();
    for source in sources() {
        let production = source.production();
        let code: Vec<_> = numbered(&production).filter(|line| !line.code.trim().is_empty()).collect();
        if code.len() > 500 {
            breaches.add(&source.path, 1, &format!("{} lines of code, over 500", code.len()));
        }
        for line in code.iter().filter(|line| line.code.contains(".unwrap()")) {
            breaches.add(&source.path, line.number, "unwrap(): say with expect() why it cannot fail");
        }
        for (name, start, lines) in functions(&code) {
            if lines > 60 {
                breaches.add(&source.path, start, &format!("fn {name} has {lines} lines, over 60"));
            }
        }
    }
    breaches.check();
}

/// Name, first line and length of every function, by the indentation that rustfmt gives.
fn functions(code: &[Line]) -> Vec<(String, usize, usize)> {
    let mut found = Vec::new();
    for (at, line) in code.iter().enumerate() {
        let Some((before, name)) = line.code.split_once("fn ") else { continue };
        if !before
            .split_whitespace()
            .all(|word| word.starts_with("pub") || matches!(word, "const" | "async" | "unsafe"))
        {
            continue;
        }
        // One that a trait only declares has no body.
        let ends_with = |line: &&Line| line.code.trim_end().ends_with([';', '{', '}']);
        if code[at..].iter().find(ends_with).is_some_and(|line| line.code.trim_end().ends_with(';')) {
            continue;
        }
        let indent = line.code.len() - line.code.trim_start().len();
        let close = format!("{}}}", " ".repeat(indent));
        let length = code[at..].iter().position(|line| line.code.trim_end() == close).unwrap_or(0) + 1;
        found.push((path_of(name), line.number, length));
    }
    found
}

/// A setting that no test names may do nothing at all. Tests in the table's own folder only show that it is read.
#[test]
fn every_setting_is_named_by_a_test_of_what_it_does() {
    let rust = |path: &Path| path.extension().is_some_and(|extension| extension == "rs");
    let tests: Vec<_> = files("tests/blackbox", &rust).into_iter().map(|test| test.text).collect();
    let page = fs::read_to_string(root().join("docs/settings.md")).expect("the tree can be read");
    let names = page.lines().filter_map(|row| row.strip_prefix("| ")?.split_once(" | `--")).map(|row| row.0);
    let names: Vec<_> = names.collect();
    assert!(names.len() > 50, "the page has a row a setting: {names:?}");
    let mut breaches = Breaches::default();
    for name in names.iter().filter(|name| !tests.iter().any(|test| names_setting(test, name))) {
        breaches.add(Path::new("docs/settings.md"), 1, &format!("no test in tests/blackbox names {name}"));
    }
    breaches.check();
}

/// As a setting: `"NAME"`, or `NAME=value`.
fn names_setting(test: &str, name: &str) -> bool {
    test.match_indices(name).any(|(at, _)| {
        let (before, after) = (&test[..at], &test[at + name.len()..]);
        (before.ends_with('"') && after.starts_with('"'))
            || (before.ends_with(char::is_whitespace) && after.starts_with('='))
    })
}

/// A reader who knows the glossary knows what a type of that name is.
#[test]
fn a_word_of_the_glossary_names_one_type() {
    let page = fs::read_to_string(root().join("CONTRIBUTING.md")).expect("the tree can be read");
    let words = page.split("\n## ").find_map(|part| part.strip_prefix("The words\n")).expect("the glossary");
    let words = words.lines().filter_map(|row| row.strip_prefix("| ")?.split_once(" | "));
    let names: BTreeSet<_> = words.map(|(word, _)| type_named_by(word)).collect();
    assert!(names.len() > 40, "a row for each word: {names:?}");
    let mut breaches = Breaches::default();
    let mut types: BTreeMap<_, Vec<_>> = BTreeMap::new();
    let mut others: BTreeSet<_> =
        OTHER_TYPES.iter().map(|(name, path, _)| (*name, Path::new(path))).collect();
    let sources = sources();
    for source in &sources {
        for line in numbered(&source.production()) {
            let Some(name) = type_defined(&line.code) else { continue };
            if VAGUE.contains(&&*name) {
                breaches.add(&source.path, line.number, &format!("`{name}` does not say what it is"));
            }
            let Some(name) = names.get(&name) else { continue };
            if !others.remove(&(name.as_str(), source.path.as_path())) {
                types.entry(name).or_default().push((&source.path, line.number));
            }
        }
    }
    for (name, places) in types.iter().filter(|(_, places)| places.len() > 1) {
        for (path, line) in places {
            breaches.add(
                path,
                *line,
                &format!("`{name}` is a word of the glossary, and names several types"),
            );
        }
    }
    for (name, path) in others {
        breaches.add(path, 1, &format!("has no type `{name}` any more: take it off OTHER_TYPES"));
    }
    breaches.check();
}

/// `rule set` → `RuleSet`
fn type_named_by(word: &str) -> String {
    word.split(' ').map(|part| part[..1].to_uppercase() + &part[1..]).collect()
}

/// The type that this line defines.
fn type_defined(line: &str) -> Option<String> {
    let mut words = line.split_whitespace().skip_while(|word| word.starts_with("pub") || *word == "unsafe");
    matches!(words.next()?, "struct" | "enum" | "trait").then(|| words.next().map(path_of))?
}

#[test]
fn the_laws_themselves_find_breaches() {
    let code =
        blank_comments_and_strings("let a = \"crate::app\"; // crate::cli\nuse crate::store::memory::X;\n");
    assert_eq!(code.lines().count(), 2);
    assert_eq!(imports(&code), [(2, "store::memory::X".to_owned())]);
    let group = imports("use crate::{\n    engine::{a, b},\n    store::Y,\n};\nuse x;");
    assert_eq!(group, [(1, "engine".to_owned()), (1, "store::Y".to_owned())]);
    assert_eq!(imports("use tidegate_serve::metrics::X;"), [(1, "serve::metrics::X".to_owned())]);
    assert!(!allows(&["store::StoreError"], "store::memory::X") && allows(&["engine"], "engine::key::Key"));
    assert_eq!(
        blank_comments_and_strings("r#\"a \" crate::b\"# + 'x' + '\"' + \"\\\"c\" + d").trim_start(),
        "+ 'x' +     +       + d"
    );
    let module = |name: &str, code: &str| (name.to_owned(), used(name, code));
    let room = module("a", "pub use self::b::B;");
    let (one, other) = (module("a::b", "use super::{c::{C,}, d};"), module("a::c", "use crate::a::B;"));
    let modules = [module("", ""), room, one, other];
    assert_eq!(circles(&modules.into_iter().collect()).into_keys().collect::<Vec<_>>(), ["a::b", "a::c"]);
    let text: Vec<_> = ["pub fn a() {", "    x();", "}"]
        .iter()
        .enumerate()
        .map(|(at, code)| Line { number: at + 1, code: (*code).to_owned() })
        .collect();
    assert_eq!(functions(&text), [("a".to_owned(), 1, 3)]);
    let defined =
        ["pub(super) struct A<'a> {", "unsafe trait B: C {", "    enum D {", "type E = F;", "struct G(H);"];
    assert_eq!(defined.map(|line| type_defined(line).unwrap_or_default()), ["A", "B", "D", "", "G"]);
    assert_eq!(["rule set", "key"].map(type_named_by), ["RuleSet", "Key"]);
}
