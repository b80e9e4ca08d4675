//! `tidegate ask --envoy`: a client's request, and a configuration of Envoy that decides which descriptors are sent
//! for it. The configuration is a bootstrap, or the output of `/config_dump` on Envoy's admin port.
//!
//! In: arguments. Out: the calls that Envoy would make, and how they are shown.

use std::fmt::Write as _;
use std::io::Read as _;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use clap::{Arg, ArgAction, ArgMatches, value_parser};
use serde_json::{Value, json};

use crate::settings::Problem;
use tidegate_engine::request::DescriptorOptions;
use tidegate_engine::text::one_line;
use tidegate_trial::envoy::{Call, Described, DescriptorBuf, EnvoyError, EnvoyRequest, Instance, describe};

/// The longest configuration that is read, in bytes.
const FILE_BYTES_MAX: u64 = 32 << 20;

pub(super) fn arguments() -> [Arg; 9] {
    let with_envoy = |name: &'static str| Arg::new(name).long(name).requires("envoy");
    [
        Arg::new("envoy").long("envoy").value_name("FILE").value_parser(value_parser!(PathBuf)).help(
            "make the descriptors of a client's request, as this configuration of Envoy would: a bootstrap, or a \
             /config_dump; exit code 2 if they need more than the configuration and the request",
        ),
        with_envoy("request").value_name("METHOD PATH").default_value("GET /").help("the client's request"),
        with_envoy("header")
            .value_name("NAME: VALUE")
            .action(ArgAction::Append)
            .help("a header of it; `host: …` is the host (localhost)"),
        with_envoy("from")
            .value_name("ADDRESS")
            .default_value("127.0.0.1")
            .value_parser(value_parser!(IpAddr))
            .help("the address that Envoy takes for the client's"),
        with_envoy("external")
            .action(ArgAction::SetTrue)
            .conflicts_with("internal")
            .help("Envoy takes it for a request from outside; filters with a `request_type` ask for that"),
        with_envoy("internal").action(ArgAction::SetTrue).help("Envoy takes it for a request from inside"),
        with_envoy("listener")
            .value_name("NAME[/CHAIN]")
            .help("the listener that it comes to, and its filter chain, if several have rate limits"),
        with_envoy("service-cluster")
            .value_name("NAME")
            .help("the argument of that name that Envoy was started with [default: node.cluster]"),
        with_envoy("describe").action(ArgAction::SetTrue).help("only show the descriptors, and ask no limiter"),
    ]
}

/// A client's request, and the configuration.
pub(super) struct Source {
    file: PathBuf,
    instance: Instance,
    asked: EnvoyRequest,
    /// Only the descriptors are shown.
    pub(super) only_describes: bool,
}

/// Why there are no calls.
#[derive(Debug, thiserror::Error)]
pub(super) enum SourceError {
    #[error("{}: {error}", file.display())]
    Read { file: PathBuf, error: std::io::Error },
    #[error("{}:{error}", file.display())]
    Envoy { file: PathBuf, error: EnvoyError },
}

impl SourceError {
    /// The configuration is valid, but the descriptors need more than it has.
    pub(super) fn needs_more(&self) -> bool {
        matches!(self, Self::Envoy { error: EnvoyError::Needs { .. }, .. })
    }
}

/// The parsed arguments, if they name a configuration.
pub(super) fn source(matches: &ArgMatches) -> Result<Option<Source>, Problem> {
    let Some(file) = matches.get_one::<PathBuf>("envoy").cloned() else { return Ok(None) };
    let problem = |what: String| Problem { name: "ask".to_owned(), what };
    let request = matches.get_one::<String>("request").map_or("", String::as_str);
    let (method, path) = request
        .split_once(' ')
        .filter(|(method, path)| !method.is_empty() && path.starts_with('/') && !path.contains([' ', '#']))
        .ok_or_else(|| {
            problem(format!("--request: {request:?} is no request (expected such as 'GET /cart')"))
        })?;
    let mut asked =
        EnvoyRequest { method: method.to_owned(), path: path.to_owned(), ..EnvoyRequest::default() };
    for header in matches.get_many::<String>("header").into_iter().flatten() {
        let (name, value) = header
            .split_once(':')
            .filter(|(name, _)| !name.is_empty())
            .ok_or_else(|| problem(format!("--header: {header:?} is no header (expected 'NAME: VALUE')")))?;
        let (name, value) = (name.trim().to_ascii_lowercase(), value.trim().to_owned());
        match name.as_str() {
            "host" => asked.host = value,
            _ => asked.headers.push((name, value)),
        }
    }
    asked.address = matches.get_one::<IpAddr>("from").copied().unwrap_or(asked.address);
    let said = |name: &str| matches.get_flag(name);
    asked.is_external = (said("external") || said("internal")).then(|| said("external"));
    let text = |name: &str| matches.get_one::<String>(name).cloned();
    let instance = Instance { listener: text("listener"), service_cluster: text("service-cluster") };
    Ok(Some(Source { file, instance, asked, only_describes: matches.get_flag("describe") }))
}

impl Source {
    /// The calls that Envoy would make.
    pub(super) fn described(&self) -> Result<Described, SourceError> {
        let file = || self.file.clone();
        let text = read(&self.file).map_err(|error| SourceError::Read { file: file(), error })?;
        let described = describe(&text, &self.asked, &self.instance);
        described.map_err(|error| SourceError::Envoy { file: file(), error })
    }
}

fn read(file: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    let read = std::fs::File::open(file)?.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
    match read as u64 > FILE_BYTES_MAX {
        true => Err(std::io::Error::other(format!("longer than {FILE_BYTES_MAX} bytes"))),
        false => Ok(text),
    }
}

/// The calls, for people.
pub(super) fn head(described: &Described) -> String {
    let mut text = String::new();
    let mut line = |name: &str, what: &str| _ = writeln!(text, "{name:<12}{}", one_line(what));
    if !described.listener.is_empty() {
        line("listener", &described.listener);
    }
    if !described.route.is_empty() {
        line("route", &described.route);
    }
    for Call { domain, descriptors } in &described.calls {
        line("domain", domain);
        descriptors.iter().for_each(|descriptor| line("descriptor", &descriptor_text(descriptor)));
    }
    if !described.filters_before.is_empty() {
        line(
            "before",
            &format!("filters that may change the request: {}", described.filters_before.join(", ")),
        );
    }
    described.notes.iter().for_each(|note| line("note", note));
    if described.calls.is_empty() && described.notes.is_empty() {
        line("note", "no descriptor can be made, so nothing is asked");
    }
    text
}

fn descriptor_text(descriptor: &DescriptorBuf) -> String {
    let entries = descriptor.entries.iter().map(|(key, value)| format!("{key}={value}"));
    let mut words: Vec<_> = entries.collect();
    let DescriptorOptions { limit, hits_addend, is_negative_hits, .. } = descriptor.options;
    words.extend(limit.map(|it| format!("(limit {} per {})", it.requests_per_unit, it.window.unit.name())));
    let verb = if is_negative_hits { "gives back" } else { "takes" };
    words.extend(hits_addend.map(|hits| format!("({verb} {hits})")));
    words.join(" ")
}

/// The calls, for programs.
pub(super) fn json(described: &Described) -> Value {
    let entry = |(key, value): &(String, String)| json!({"key": key, "value": value});
    let descriptor = |it: &DescriptorBuf| {
        let limit = it.options.limit;
        json!({
            "entries": it.entries.iter().map(entry).collect::<Vec<_>>(),
            "hits": it.options.hits_addend,
            "gives_back": it.options.is_negative_hits,
            "limit": limit.map(|it| json!({"requests_per_unit": it.requests_per_unit, "unit": it.window.unit.name()})),
        })
    };
    let descriptors = |it: &Call| it.descriptors.iter().map(descriptor).collect::<Vec<_>>();
    let call = |it: &Call| json!({"domain": it.domain, "descriptors": descriptors(it)});
    json!({
        "listener": described.listener,
        "route": described.route,
        "calls": described.calls.iter().map(call).collect::<Vec<_>>(),
        "filters_before": described.filters_before,
        "notes": described.notes,
    })
}
