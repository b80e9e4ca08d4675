//! The command line of Limitador, which this program has under the name `limitador-server`: its operator starts that name, with
//! arguments alone.
//!
//! In: the arguments. Out: the arguments of our own command line that mean the same, and a warning of those without a meaning
//! here. What the operator never writes is refused.

use std::ffi::OsString;

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, Id};

use super::given;
use crate::settings::Problem;

/// The name of Limitador's server.
pub(super) const NAME: &str = "limitador-server";

/// Arguments that are read and change nothing: what they choose is so here in any case, or does not exist here.
const WITHOUT_EFFECT: [&str; 8] = [
    "limit-name-in-labels",
    "metric-labels-default",
    "grpc-reflection-service",
    "cache",
    "optimize",
    "flush-period",
    "max-cached",
    "batch-size",
];

/// Our arguments for these, and the warning, if there is one. The first is the name.
pub(super) fn read(words: Vec<OsString>) -> Result<(Vec<OsString>, Option<Problem>), clap::Error> {
    let matches = command().try_get_matches_from(&words)?;
    let mut ours: Vec<OsString> = words.into_iter().take(1).collect();
    let (storage, of_storage) = matches.subcommand().expect("clap requires it");
    let settings = [
        ("--rules-format", Some("limitador".to_owned())),
        ("--config", text(&matches, "file")),
        ("--grpc-host", text(&matches, "rls-ip")),
        ("--grpc-port", text(&matches, "rls-port")),
        ("--host", text(&matches, "http-ip")),
        ("--port", text(&matches, "http-port")),
        ("--backend-type", Some(if storage.starts_with("redis") { "redis" } else { "memory" }.to_owned())),
        ("--redis-url", text(of_storage, "url")),
        ("--redis-timeout", text(of_storage, "response-timeout").map(|millis| format!("{millis}ms"))),
        ("--redis-sync", (storage == "redis_cached").then(|| "leased".to_owned())),
        ("--state-dir", text(of_storage, "path")),
        ("--log-level", level(matches.get_count("v")).map(str::to_owned)),
        ("--log-format", matches.get_flag("structured-logs").then(|| "json".to_owned())),
    ];
    let settings = settings.into_iter().chain(headers(&matches)).chain(tracing(&matches));
    let all_or_none = "--stop-cache-key-increment-when-overlimit";
    ours.extend(["--rules-may-be-empty", "--http-metrics", all_or_none].map(Into::into));
    for (flag, value) in settings {
        ours.extend(value.into_iter().map(|value| format!("{flag}={value}").into()));
    }
    Ok((ours, ignored(&[&matches, of_storage])))
}

/// The command line, as the operator writes it.
fn command() -> Command {
    let value = |name: &'static str| Arg::new(name).long(name).value_name("VALUE");
    let flag = |name: &'static str| Arg::new(name).long(name).action(ArgAction::SetTrue);
    let url = || Arg::new("url").value_name("URL").required(true);
    Command::new(NAME)
        .version(env!("CARGO_PKG_VERSION"))
        .about("Tidegate in the place of Limitador, under its name and with its arguments")
        .subcommand_required(true)
        .subcommand_value_name("STORAGE")
        .disable_help_subcommand(true)
        .arg(Arg::new("file").value_name("LIMITS_FILE").required(true))
        .arg(value("rls-ip").short('b').default_value("0.0.0.0"))
        .arg(value("rls-port").short('p').default_value("8081"))
        .arg(value("http-ip").short('B').default_value("0.0.0.0"))
        .arg(value("http-port").short('P').default_value("8080"))
        .arg(value("rate-limit-headers").short('H').value_parser(["NONE", "DRAFT_VERSION_03"]))
        .arg(value("tracing-endpoint"))
        .arg(Arg::new("v").short('v').action(ArgAction::Count))
        .arg(flag("structured-logs"))
        .arg(flag("limit-name-in-labels").short('l'))
        .arg(value("metric-labels-default"))
        .arg(flag("grpc-reflection-service"))
        .subcommand(Command::new("memory").arg(value("cache").short('c')))
        .subcommand(Command::new("disk").arg(Arg::new("path").required(true)).arg(value("optimize")))
        .subcommand(Command::new("redis").arg(url()))
        .subcommand(
            Command::new("redis_cached")
                .arg(url())
                .args(["flush-period", "max-cached", "batch-size"].map(value))
                .arg(value("response-timeout")),
        )
}

/// The text of an argument, if this command has it.
fn text(matches: &ArgMatches, name: &str) -> Option<String> {
    given::<String>(matches, name).cloned()
}

/// The level of the log for so many `-v`.
fn level(count: u8) -> Option<&'static str> {
    let level = usize::from(count).checked_sub(1)?;
    Some(["warn", "info", "debug", "trace"].get(level).copied().unwrap_or("trace"))
}

/// The settings of headers, with Limitador's names.
fn headers(matches: &ArgMatches) -> impl Iterator<Item = (&'static str, Option<String>)> {
    let is_on = text(matches, "rate-limit-headers").is_some_and(|format| format != "NONE");
    let settings = [
        ("--limit-response-headers-enabled", "true"),
        ("--limit-limit-header", "X-RateLimit-Limit"),
        ("--limit-remaining-header", "X-RateLimit-Remaining"),
        ("--limit-reset-header", "X-RateLimit-Reset"),
    ];
    settings.into_iter().map(move |(flag, value)| (flag, is_on.then(|| value.to_owned())))
}

/// The settings of traces, which Limitador sends by gRPC. It calls the scheme of a collector `rpc`.
fn tracing(matches: &ArgMatches) -> [(&'static str, Option<String>); 3] {
    let endpoint = text(matches, "tracing-endpoint").filter(|endpoint| !endpoint.is_empty());
    let endpoint = endpoint.map(|endpoint| match endpoint.strip_prefix("rpc://") {
        Some(rest) => format!("http://{rest}"),
        None => endpoint,
    });
    let set = |value: &str| endpoint.is_some().then(|| value.to_owned());
    [
        ("--tracing-enabled", set("true")),
        ("--tracing-exporter-protocol", set("grpc")),
        ("--otel-exporter-otlp-endpoint", endpoint),
    ]
}

/// The warning about arguments without effect.
fn ignored(all: &[&ArgMatches]) -> Option<Problem> {
    let is_given = |matches: &ArgMatches, name: &str| {
        WITHOUT_EFFECT.contains(&name) && matches.value_source(name) == Some(ValueSource::CommandLine)
    };
    let of = |matches: &ArgMatches| -> Vec<String> {
        let given = matches.ids().map(Id::as_str).filter(|name| is_given(matches, name));
        given.map(|name| format!("--{name}")).collect()
    };
    let given: Vec<String> = all.iter().flat_map(|matches| of(matches)).collect();
    (!given.is_empty()).then(|| Problem {
        name: NAME.to_owned(),
        what: format!("{}: no effect here (expected none of these)", given.join(", ")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split_whitespace().map(Into::into).collect()
    }

    /// What these arguments become, without what all of them become.
    fn ours(line: &str) -> (String, String) {
        let (words, warning) = read(words(line)).unwrap_or_else(|error| panic!("{error}"));
        let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
        let common = "limitador-server --rules-may-be-empty --http-metrics --stop-cache-key-increment-when-overlimit \
             --rules-format=limitador --config=/l.yaml ";
        let rest = words.join(" ").strip_prefix(common).expect("it is common").to_owned();
        (rest, warning.map(|problem| problem.to_string()).unwrap_or_default())
    }

    #[test]
    fn the_command_line_is_sound() {
        command().debug_assert();
    }

    #[test]
    fn what_the_operator_writes_becomes_settings() {
        let hosts = "--grpc-host=0.0.0.0 --grpc-port=8081 --host=0.0.0.0 --port=8080";
        let (memory, redis) =
            ("--backend-type=memory", "--backend-type=redis --redis-url=redis://u:p@r:6379");
        for (line, expected) in [
            ("/l.yaml memory", format!("{hosts} {memory}")),
            (
                "--http-port 80 --rls-port 81 /l.yaml memory",
                format!("--grpc-host=0.0.0.0 --grpc-port=81 --host=0.0.0.0 --port=80 {memory}"),
            ),
            ("/l.yaml redis redis://u:p@r:6379", format!("{hosts} {redis}")),
            (
                "/l.yaml redis_cached redis://u:p@r:6379 --response-timeout 350",
                format!("{hosts} {redis} --redis-timeout=350ms --redis-sync=leased"),
            ),
            (
                "/l.yaml disk /var/lib/limitador/data",
                format!("{hosts} {memory} --state-dir=/var/lib/limitador/data"),
            ),
            ("-vvv /l.yaml memory", format!("{hosts} {memory} --log-level=debug")),
            (
                "--rate-limit-headers DRAFT_VERSION_03 /l.yaml memory",
                format!(
                    "{hosts} {memory} --limit-response-headers-enabled=true --limit-limit-header=X-RateLimit-Limit \
                     --limit-remaining-header=X-RateLimit-Remaining --limit-reset-header=X-RateLimit-Reset"
                ),
            ),
            ("--rate-limit-headers NONE /l.yaml memory", format!("{hosts} {memory}")),
            (
                "--tracing-endpoint rpc://jaeger:4317 /l.yaml memory",
                format!(
                    "{hosts} {memory} --tracing-enabled=true --tracing-exporter-protocol=grpc \
                     --otel-exporter-otlp-endpoint=http://jaeger:4317"
                ),
            ),
        ] {
            assert_eq!(ours(&format!("limitador-server {line}")), (expected, String::new()), "{line}");
        }
    }

    #[test]
    fn what_has_no_effect_is_warned_of() {
        let line = "limitador-server --limit-name-in-labels --metric-labels-default descriptors[1] /l.yaml redis_cached \
                    redis://r:6379 --flush-period 1000";
        let (_, warning) = ours(line);
        assert_eq!(
            warning,
            "limitador-server: --limit-name-in-labels, --metric-labels-default, --flush-period: no effect here (expected none of \
             these)"
        );
    }

    #[test]
    fn what_the_operator_never_writes_is_refused() {
        for line in
            ["", "/l.yaml", "memory", "/l.yaml distributed", "--validate /l.yaml memory", "/l.yaml redis"]
        {
            assert!(read(words(&format!("limitador-server {line}"))).is_err(), "{line}");
        }
    }

    #[test]
    fn each_setting_is_in_the_table() {
        let line = "limitador-server -v --structured-logs -H DRAFT_VERSION_03 --tracing-endpoint http://t:4317 /l.yaml \
                    redis_cached redis://r:6379 --response-timeout 5";
        let (words, _) = read(words(line)).unwrap_or_else(|error| panic!("{error}"));
        let parsed = super::super::command().try_get_matches_from(words);
        assert!(parsed.is_ok(), "{:?}", parsed.err());
    }
}
