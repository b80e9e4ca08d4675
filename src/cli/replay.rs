//! `tidegate replay`: what would these rules have done to the requests of a log?
//!
//! In: rules, logs, how to read them. Out: a report as text, JSON or a page, and whether a condition of CI holds.

use std::fs;
use std::io::{self, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgAction, ArgMatches, Command};

use super::{DECIDING, Done, arguments_of, loaded, print_error, read_only};
use crate::clock::monotonic;
use crate::configuration::Configuration;
use crate::replay::{Condition, Options, Progress, Report, bytes_of, replay};
use crate::settings::{Problem, Row};
use tidegate_engine::rules::{RuleSet, parse_duration_nanos};

/// The exit code when a condition of `--fail-if` holds.
const EXIT_CONDITION: u8 = 2;

/// How often the progress is shown.
const SHOW_INTERVAL: Duration = Duration::from_millis(200);

/// The command.
pub(super) fn command() -> Command {
    let option = |name: &'static str, value: &'static str| Arg::new(name).long(name).value_name(value);
    Command::new("replay")
        .about("Shows what rules would do to the requests of a log")
        .arg(
            Arg::new("logs")
                .value_name("LOG")
                .num_args(1..)
                .required(true)
                .help("access logs in the order of time, also compressed by gzip or zstd; `-`: the standard input"),
        )
        .arg(option("rules", "PATH").required(true).help("a file or folder of rules"))
        .arg(option("against", "PATH").help("rules to compare with, such as those in force: who is newly denied?"))
        .arg(option("format", "FORMAT").default_value("combined").help(
            "combined, envoy, json, or a format in the words of NGINX's log_format or of Envoy's access log",
        ))
        .arg(option("time", "KEY").help("the key of the time, with --format json"))
        .arg(option("map", "MAP").help(
            "the descriptors of a line, such as 'user=$http_x_user,path=/$path[0]; remote_address=$remote_addr' \
             [default: the domain's own `rate_limits`]",
        ))
        .arg(option("domain", "NAME").help("the domain to ask [default: the only one in the rules]"))
        .arg(
            option("without-status", "STATUS")
                .action(ArgAction::Append)
                .value_delimiter(',')
                .help("leave out lines with this status, such as 429"),
        )
        .arg(
            option("out-of-order", "DURATION")
                .default_value("60s")
                .help("by how much lines may be out of order; requests are decided in the order of their times"),
        )
        .arg(
            option("fail-if", "CONDITION")
                .action(ArgAction::Append)
                .help("exit with 2 if this holds, such as 'newly_denied > 0' or 'denied_keys > 0.1 %'"),
        )
        .arg(
            option("report", "FORM")
                .value_parser(PossibleValuesParser::new(["text", "json", "html"]))
                .default_value("text")
                .help("the form of the report"),
        )
        .arg(option("html", "FILE").help("also write the report to this file, as a page"))
        .args(arguments_of(DECIDING))
        .after_help(
            "Exit code: 0 done, 1 a log or rules that cannot be read, 2 a condition of --fail-if holds, \
             64 a bad command line.",
        )
}

/// Runs the command.
pub(super) fn run(
    matches: &ArgMatches,
    flag: impl Fn(&Row) -> Option<String>,
    variable: impl Fn(&str) -> Option<String>,
) -> Done {
    let configuration = read_only(DECIDING, flag, variable)?;
    let text = |name: &str| matches.get_one::<String>(name).cloned();
    let texts =
        |name: &str| matches.get_many::<String>(name).into_iter().flatten().cloned().collect::<Vec<_>>();
    let problem = |name: &str, what: String| Problem { name: name.to_owned(), what };
    let mut problems = Vec::new();
    let mut conditions = Vec::new();
    for condition in texts("fail-if") {
        match Condition::parse(&condition) {
            Ok(condition) => conditions.push(condition),
            Err(error) => problems.push(problem("--fail-if", error.to_string())),
        }
    }
    let out_of_order = text("out-of-order").unwrap_or_default();
    let out_of_order_nanos = parse_duration_nanos(&out_of_order).unwrap_or_else(|| {
        problems.push(problem(
            "--out-of-order",
            format!("{out_of_order:?} is no duration (expected 60s, 5m, 1h30m)"),
        ));
        0
    });
    if !problems.is_empty() {
        return Err(problems);
    }
    let options = Options {
        format: text("format").unwrap_or_default(),
        time: text("time"),
        map: text("map"),
        domain: text("domain"),
        without_status: texts("without-status"),
        out_of_order_nanos,
        modes: configuration.modes,
    };
    let logs: Vec<_> = texts("logs").into_iter().map(PathBuf::from).collect();
    let rules = [text("rules"), text("against")].map(|path| path.map(PathBuf::from));
    let Some(report) = reported(&rules, &configuration, &options, &logs) else {
        return Ok((String::new(), ExitCode::FAILURE));
    };
    if let Some(file) = text("html")
        && let Err(error) = fs::write(&file, report.html())
    {
        print_error(format_args!("{file}: {error}"));
        return Ok((String::new(), ExitCode::FAILURE));
    }
    let output = match text("report").as_deref() {
        Some("json") => report.json(),
        Some("html") => report.html(),
        _ => report.to_string(),
    };
    Ok((output, judged(&conditions, &report)))
}

/// Loads the rules and replays the logs. `None`: it was said why that fails.
fn reported(
    rules: &[Option<PathBuf>; 2],
    configuration: &Configuration,
    options: &Options,
    logs: &[PathBuf],
) -> Option<Report> {
    let load = |path: &Path| -> Option<RuleSet> {
        loaded(path, configuration).map_err(|error| print_error(format_args!("{error}"))).ok()
    };
    let [rules, against] = rules;
    let rules = load(rules.as_deref()?)?;
    let against = match against {
        Some(path) => Some(load(path)?),
        None => None,
    };
    let mut bar = io::stderr().is_terminal().then(|| Bar::new(bytes_of(logs)));
    let replayed = replay(&rules, against.as_ref(), options, logs, |progress| {
        bar.iter_mut().for_each(|bar| bar.show(progress));
    });
    bar.iter_mut().for_each(|_| Bar::clear());
    replayed.map_err(|error| print_error(format_args!("{error}"))).ok()
}

/// Says which conditions hold.
fn judged(conditions: &[Condition], report: &Report) -> ExitCode {
    let held: Vec<_> = conditions.iter().filter_map(|condition| condition.holds(report)).collect();
    held.iter().for_each(|held| print_error(format_args!("{held}")));
    if held.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(EXIT_CONDITION) }
}

/// The progress on a terminal, on one line.
struct Bar {
    total: Option<u64>,
    started: Instant,
    shown: Instant,
}

impl Bar {
    fn new(total: Option<u64>) -> Self {
        let now = monotonic();
        Self { total: total.filter(|total| *total > 0), started: now, shown: now }
    }

    fn show(&mut self, progress: Progress) {
        let now = monotonic();
        if now.saturating_duration_since(self.shown) < SHOW_INTERVAL {
            return;
        }
        self.shown = now;
        let seconds = now.saturating_duration_since(self.started).as_secs_f64();
        let line = progress_line(progress, self.total, seconds);
        // If the terminal is gone, nobody can read it.
        let _ = write!(io::stderr(), "\r{line}\u{1b}[K");
    }

    fn clear() {
        let _ = write!(io::stderr(), "\r\u{1b}[K");
    }
}

/// Bytes, rate and time left.
fn progress_line(progress: Progress, total: Option<u64>, seconds: f64) -> String {
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let rate = progress.lines as f64 / seconds.max(0.001);
    let Some(total) = total else {
        return format!("{:.0} MiB, {rate:.0} lines/s", mib(progress.bytes));
    };
    let part = (progress.bytes as f64 / total as f64).clamp(0.0, 1.0);
    let left = seconds * (1.0 - part) / part.max(0.001);
    let filled = "#".repeat((part * 20.0) as usize);
    format!(
        "[{filled:<20}] {:.0} of {:.0} MiB, {rate:.0} lines/s, {left:.0} s left",
        mib(progress.bytes),
        mib(total)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_progress_says_bytes_rate_and_the_time_left() {
        let progress = Progress { bytes: 25 << 20, lines: 1_000_000 };
        assert_eq!(
            progress_line(progress, Some(100 << 20), 2.0),
            "[#####               ] 25 of 100 MiB, 500000 lines/s, 6 s left"
        );
        assert_eq!(progress_line(progress, None, 2.0), "25 MiB, 500000 lines/s");
        assert!(progress_line(Progress { bytes: 0, lines: 0 }, Some(1), 0.0).starts_with("[     "));
    }
}
