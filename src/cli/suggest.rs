//! `tidegate suggest`: which limits deny no more than is wanted?
//!
//! In: logs, the descriptors to limit, and how much may be denied. Out: a rule file whose comments say where its
//! limits come from.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{ArgMatches, Command};

use super::logs::{self, failed, option, text, with_progress};
use super::{DECIDING, Done, arguments_of, print_error, read_only};
use crate::settings::{Problem, Texts};
use tidegate_engine::rules::{RulesFormat, parse_duration_nanos};
use tidegate_trial::replay::{Limited, Promise, suggest};

/// Why no limits of Limitador are suggested.
const ONLY_RULES: &str = "suggest writes rules, not limits of Limitador (expected tidegate, with --map; `replay` tries the \
                          numbers in a file of limits)";

pub(super) fn command() -> Command {
    Command::new("suggest")
        .about("Suggests limits from logs, as a rule file")
        .args(logs::arguments())
        .arg(option("rules", "FILE").conflicts_with("window").help(
            "suggest numbers for the rules of this file [default: a rule for each descriptor of --map]",
        ))
        .arg(
            option("window", "DURATION")
                .default_value("1m")
                .help("the window of the limits, such as 1s, 1m, 24h"),
        )
        .arg(
            option("deny-at-most", "PART")
                .default_value("0.1 % of keys")
                .help("how much each limit may deny: a percentage of keys or of requests"),
        )
        .args(arguments_of(DECIDING))
        .after_help("Exit code: 0 done, 1 the logs or rules allow no suggestion, 64 a bad command line.")
}

pub(super) fn run(matches: &ArgMatches, texts: Texts<'_>) -> Done {
    let configuration = read_only(DECIDING, matches, texts)?;
    let mut problems = Vec::new();
    let options = logs::options(matches, configuration.modes, &mut problems);
    if configuration.rules.load.format != RulesFormat::Tidegate {
        problems.push(Problem { name: "RULES_FORMAT".to_owned(), what: ONLY_RULES.to_owned() });
    }
    let mut problem = |name: &str, what: String| problems.push(Problem { name: name.to_owned(), what });
    let promise = Promise::parse(&text(matches, "deny-at-most").unwrap_or_default());
    let promise = promise.map_err(|error| problem("--deny-at-most", error.to_string())).ok();
    let window = text(matches, "window").unwrap_or_default();
    if parse_duration_nanos(&window).is_none_or(|nanos| nanos == 0) {
        problem("--window", format!("{window:?} is no duration (expected 1s, 5m, 24h)"));
    }
    let limited =
        text(matches, "rules").map_or(Limited::Map { window }, |path| Limited::Rules(PathBuf::from(path)));
    let Some(promise) = promise.filter(|_| problems.is_empty()) else { return Err(problems) };
    let logs = logs::logs(matches);
    let suggested = with_progress(&logs, |progress| {
        suggest(&limited, &promise, &options, &configuration.rules.load, &logs, progress)
    });
    match suggested {
        Ok(suggestion) => {
            suggestion.warnings.iter().for_each(|warning| print_error(format_args!("warning: {warning}")));
            Ok((suggestion.text, ExitCode::SUCCESS))
        }
        Err(error) => Ok(failed(&error, error.is_of_arguments())),
    }
}
