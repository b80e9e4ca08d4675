//! `tidegate replay`: what would these rules have done to the requests of a log?
//!
//! In: rules, logs, how to read them. Out: a report as text, JSON or a page, and whether a condition of CI holds.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::PossibleValuesParser;
use clap::{ArgAction, ArgMatches, Command};

use super::logs::{self, ALLOW_UNMATCHED, allow_unmatched, failed, option, text, with_progress};
use super::{DECIDING, Done, arguments_of, loaded, print_error, read_only};
use crate::clock::wall;
use crate::configuration::Configuration;
use crate::settings::{Problem, Texts};
use tidegate_trial::replay::{About, Condition, Options, Report, replay};

/// The exit code when a condition of `--fail-if` holds.
const EXIT_CONDITION: u8 = 2;

/// Why a report proves nothing about the rules.
const NOTHING_MET: &str = "not one request met a rule, so the report says nothing about these rules (expected --map, \
                           --domain and --format to make descriptors that the rules know; --allow-unmatched to pass)";

pub(super) fn command() -> Command {
    Command::new("replay")
        .about("Shows what rules would do to the requests of a log")
        .args(logs::arguments())
        .arg(option("rules", "PATH").required(true).help("a file or folder of rules"))
        .arg(
            option("against", "PATH")
                .help("rules to compare with, such as those in force: who is newly denied?"),
        )
        .arg(
            option("fail-if", "CONDITION")
                .action(ArgAction::Append)
                .help("exit with 2 if this holds, such as 'newly_denied > 0' or 'denied_keys > 0.1 %'"),
        )
        .arg(allow_unmatched("pass also if no request meets a rule, or if --against has no such domain"))
        .arg(
            option("report", "FORM")
                .value_parser(PossibleValuesParser::new(["text", "json", "html"]))
                .default_value("text")
                .help("the form of the report"),
        )
        .arg(option("html", "FILE").help("also write the report to this file, as a page"))
        .args(arguments_of(DECIDING))
        .after_help(
            "Exit code: 0 done, 1 a log or rules that cannot be read, or no request met a rule, \
             2 a condition of --fail-if holds, 64 a bad command line.",
        )
}

pub(super) fn run(matches: &ArgMatches, texts: Texts<'_>) -> Done {
    let configuration = read_only(DECIDING, matches, texts)?;
    let mut problems = Vec::new();
    let mut conditions = Vec::new();
    for condition in logs::texts(matches, "fail-if") {
        match Condition::parse(&condition, text(matches, "against").is_some()) {
            Ok(condition) => conditions.push(condition),
            Err(error) => {
                problems.push(Problem { name: "--fail-if".to_owned(), what: error.to_string() });
            }
        }
    }
    let allow_unmatched = matches.get_flag(ALLOW_UNMATCHED);
    let options = Options { allow_unmatched, ..logs::options(matches, configuration.modes, &mut problems) };
    if !problems.is_empty() {
        return Err(problems);
    }
    let rules = ["rules", "against"].map(|name| text(matches, name).map(PathBuf::from));
    let logs = logs::logs(matches);
    let report = match reported(&rules, &configuration, &options, &logs) {
        Ok(report) => report,
        Err(failed) => return Ok(failed),
    };
    let page = || {
        let [rules, against] = rules.each_ref().map(Option::as_deref);
        let rules = rules.expect("clap demands it");
        let made = wall();
        report.html(&About { logs: &logs, options: &options, rules, against, made })
    };
    if let Some(file) = text(matches, "html")
        && let Err(error) = fs::write(&file, page())
    {
        print_error(format_args!("{file}: {error}"));
        return Ok((String::new(), ExitCode::FAILURE));
    }
    let output = match text(matches, "report").as_deref() {
        Some("json") => report.json(),
        Some("html") => page(),
        _ => report.to_string(),
    };
    if !report.met_a_rule() && !allow_unmatched {
        print_error(format_args!("{NOTHING_MET}"));
        return Ok((output, ExitCode::FAILURE));
    }
    Ok((output, judged(&conditions, &report)))
}

/// Loads the rules and replays the logs. The error is the end of the command, after its message was printed.
fn reported(
    rules: &[Option<PathBuf>; 2],
    configuration: &Configuration,
    options: &Options,
    logs: &[PathBuf],
) -> Result<Report, (String, ExitCode)> {
    let load = |path: &PathBuf| loaded(path, configuration).map_err(|error| failed(&error, false));
    let [rules, against] = rules.each_ref().map(|path| path.as_ref().map(load).transpose());
    let (rules, against) = (rules?.expect("clap demands it"), against?);
    let replayed = with_progress(logs, |progress| replay(&rules, against.as_ref(), options, logs, progress));
    replayed.map_err(|error| failed(&error, error.is_of_arguments()))
}

/// Prints which conditions hold.
fn judged(conditions: &[Condition], report: &Report) -> ExitCode {
    let held: Vec<_> = conditions.iter().filter_map(|condition| condition.holds(report)).collect();
    held.iter().for_each(|held| print_error(format_args!("{held}")));
    if held.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(EXIT_CONDITION) }
}
