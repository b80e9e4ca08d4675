//! `tidegate test`: are requests answered as the cases expect?
//!
//! In: files of cases, outside of every folder of rules. Out: the failures, as text, JUnit's XML, JSON or
//! annotations.

use std::path::Path;
use std::process::ExitCode;

use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgMatches, Command};

use super::check::workflow_command;
use super::logs::{ALLOW_UNMATCHED, allow_unmatched};
use super::{DECIDING, Done, RulesError, arguments_of, loaded, read_only};
use crate::settings::Texts;
use tidegate_trial::cases::{self, FileResult, Problem};

pub(super) fn command() -> Command {
    Command::new("test")
        .about("Runs cases: requests, and the answers to expect")
        .arg(
            Arg::new("files")
                .value_name("FILE")
                .num_args(1..)
                .required(true)
                .help("files of cases, each with the path of its rules"),
        )
        .arg(
            Arg::new("format")
                .long("format")
                .value_parser(PossibleValuesParser::new(["text", "junit", "github", "json"]))
                .default_value("text")
                .help("the form of the results; github: annotations of a workflow"),
        )
        .arg(allow_unmatched("pass also if no request of a file meets a rule"))
        .args(arguments_of(DECIDING))
        .after_help(
            "Exit code: 0 all as expected, 1 not, or no request of a file met a rule, 64 a bad command line.",
        )
}

pub(super) fn run(matches: &ArgMatches, texts: Texts<'_>) -> Done {
    let configuration = read_only(DECIDING, matches, texts)?;
    let files = matches.get_many::<String>("files").into_iter().flatten();
    let load = |path: &Path| loaded(path, &configuration).map_err(problems);
    let allow_unmatched = matches.get_flag(ALLOW_UNMATCHED);
    let run = |file: &String| cases::run(Path::new(file), configuration.modes, allow_unmatched, load);
    let results: Vec<_> = files.map(run).collect();
    let text = match matches.get_one::<String>("format").map(String::as_str) {
        Some("junit") => cases::junit(&results),
        Some("json") => cases::json(&results),
        Some("github") => cases::github(&results, |at, what| workflow_command("error", at, what)),
        _ => cases::text(&results),
    };
    let good = results.iter().all(FileResult::is_good);
    Ok((text, if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }))
}

/// What is wrong with rules, each with its place.
fn problems(error: RulesError) -> Vec<Problem> {
    match error {
        RulesError::Rules(diagnostics) => diagnostics
            .into_iter()
            .map(|it| Problem { at: Some((it.file, it.line, it.column)), what: it.message })
            .collect(),
        other => vec![Problem { at: None, what: other.to_string() }],
    }
}
