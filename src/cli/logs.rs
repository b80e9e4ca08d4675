//! What `replay` and `suggest` have in common: which logs are read, and how; and the progress on a terminal.

use std::fmt::Display;
use std::io::{self, IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Arg, ArgAction, ArgMatches};

use super::{EXIT_USAGE, Problem, print_error};
use crate::clock::monotonic;
use tidegate_engine::plan::Modes;
use tidegate_engine::rules::parse_duration_nanos;
use tidegate_trial::replay::{Options, Progress, bytes_of};

/// How often the progress is shown.
const SHOW_INTERVAL: Duration = Duration::from_millis(200);

/// A flag with a value.
pub(super) fn option(name: &'static str, value: &'static str) -> Arg {
    Arg::new(name).long(name).value_name(value)
}

/// The flag that accepts a result which proves nothing.
pub(super) const ALLOW_UNMATCHED: &str = "allow-unmatched";

/// The argument of [`ALLOW_UNMATCHED`].
pub(super) fn allow_unmatched(help: &'static str) -> Arg {
    Arg::new(ALLOW_UNMATCHED).long(ALLOW_UNMATCHED).action(ArgAction::SetTrue).help(help)
}

/// The arguments that say which logs are read, and how.
pub(super) fn arguments() -> [Arg; 7] {
    [
        Arg::new("logs")
            .value_name("LOG")
            .num_args(1..)
            .required(true)
            .help("access logs in the order of time, also compressed by gzip or zstd; `-`: the standard input"),
        option("format", "FORMAT").default_value("combined").help(
            "combined, envoy, json, or a format in the words of NGINX's log_format or of Envoy's access log",
        ),
        option("time", "KEY").help("the key of the time, with --format json"),
        option("map", "MAP").help(
            "the descriptors of a line, such as 'user=$http_x_user,path=/$path[0]; remote_address=$remote_addr' \
             [default: the domain's own `rate_limits`]",
        ),
        option("domain", "NAME").help("the domain to ask, as the proxy does [default: the only one in the rules]"),
        option("without-status", "STATUS")
            .action(ArgAction::Append)
            .value_delimiter(',')
            .help("leave out lines with this status, such as 429"),
        option("out-of-order", "DURATION")
            .default_value("60s")
            .help("by how much lines may be out of order; requests are decided in the order of their times"),
    ]
}

/// The options in these arguments. Adds what is wrong to `problems`.
pub(super) fn options(matches: &ArgMatches, modes: Modes, problems: &mut Vec<Problem>) -> Options {
    let out_of_order = text(matches, "out-of-order").unwrap_or_default();
    let out_of_order_nanos = parse_duration_nanos(&out_of_order).unwrap_or_else(|| {
        problems.push(Problem {
            name: "--out-of-order".to_owned(),
            what: format!("{out_of_order:?} is no duration (expected 60s, 5m, 1h30m)"),
        });
        0
    });
    Options {
        format: text(matches, "format").unwrap_or_default(),
        time: text(matches, "time"),
        map: text(matches, "map"),
        domain: text(matches, "domain"),
        allow_unmatched: false,
        without_status: texts(matches, "without-status"),
        out_of_order_nanos,
        modes,
    }
}

/// The value of a flag.
pub(super) fn text(matches: &ArgMatches, name: &str) -> Option<String> {
    matches.get_one::<String>(name).cloned()
}

/// The values of a flag.
pub(super) fn texts(matches: &ArgMatches, name: &str) -> Vec<String> {
    matches.get_many::<String>(name).into_iter().flatten().cloned().collect()
}

pub(super) fn logs(matches: &ArgMatches) -> Vec<PathBuf> {
    texts(matches, "logs").into_iter().map(PathBuf::from).collect()
}

/// Prints why there is no result. The exit code differs for wrong arguments.
pub(super) fn failed(error: &impl Display, is_of_arguments: bool) -> (String, ExitCode) {
    print_error(format_args!("{error}"));
    (String::new(), if is_of_arguments { ExitCode::from(EXIT_USAGE) } else { ExitCode::FAILURE })
}

/// Runs a function that reads these logs, with its progress on one line of a terminal; otherwise there is none.
pub(super) fn with_progress<T>(logs: &[PathBuf], run: impl FnOnce(&mut dyn FnMut(Progress)) -> T) -> T {
    let mut bar = io::stderr().is_terminal().then(|| Bar::new(bytes_of(logs)));
    let done = run(&mut |progress| bar.iter_mut().for_each(|bar| bar.show(progress)));
    bar.iter().for_each(|_| Bar::clear());
    done
}

/// The progress on a terminal.
struct Bar {
    total: Option<u64>,
    started: Instant,
    shown: Instant,
    bytes: u64,
}

impl Bar {
    fn new(total: Option<u64>) -> Self {
        let now = monotonic();
        Self { total: total.filter(|total| *total > 0), started: now, shown: now, bytes: 0 }
    }

    fn show(&mut self, progress: Progress) {
        let now = monotonic();
        if progress.bytes < self.bytes {
            // The logs are read once more.
            self.started = now;
        }
        self.bytes = progress.bytes;
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
