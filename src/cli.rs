//! The command line: flags and environment become settings, a command runs, and its end becomes an exit code:
//! 0, 1 for a failed start, run or check, 64 for bad settings or a bad command line.
//!
//! Without a command the limiter runs. The commands are `check`, `ask` and `settings`, a file each.

mod ask;
mod check;
mod settings;

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use clap::{Arg, ArgMatches, Command};

use crate::app;
use crate::logging::REPORT;
use crate::settings::{Problem, Row, Settings, TABLE, misspelt};

/// A bad setting or a bad command line (EX_USAGE).
const EXIT_USAGE: u8 = 64;

/// The name of the program of `envoyproxy/ratelimit` that checks rules: under this name, this one checks too.
const CHECK_NAME: &str = "ratelimit_config_check";

/// What became of a command that does not serve: what to write, and its exit code.
type Done = Result<(String, ExitCode), Vec<Problem>>;

/// Runs the program with these arguments (the first is its name) and this environment.
pub fn main(arguments: impl IntoIterator<Item = OsString>, environment: HashMap<String, String>) -> ExitCode {
    let variable = |name: &str| environment.get(name).cloned();
    let mistakes = || misspelt(environment.keys().map(String::as_str), variable);
    let matches = match command().try_get_matches_from(spelled(arguments)) {
        Ok(matches) => matches,
        Err(error) => return usage(&error),
    };
    let done: Done = match matches.subcommand() {
        None => return serve(&matches, variable, mistakes()),
        Some(("check", own)) => check::run(own, variable),
        Some(("ask", own)) => ask::run(own, variable),
        Some((_, own)) => {
            mistakes().iter().for_each(|mistake| complain(format_args!("warning: {mistake}")));
            Ok((settings::run(own, |row| flag(&matches, row), variable), ExitCode::SUCCESS))
        }
    };
    match done {
        Ok((text, code)) => {
            // Nothing is left to tell where the terminal is gone.
            let _ = std::io::stdout().write_all(text.as_bytes());
            code
        }
        Err(problems) => bad_settings(&problems),
    }
}

/// Runs the limiter. `mistakes` in the environment are told in its log.
fn serve(
    matches: &ArgMatches,
    variable: impl Fn(&str) -> Option<String>,
    mistakes: Vec<Problem>,
) -> ExitCode {
    let mut settings = match Settings::read(|row| flag(matches, row), variable) {
        Ok(settings) => settings,
        Err(problems) => {
            mistakes.iter().for_each(|mistake| complain(format_args!("warning: {mistake}")));
            return bad_settings(&problems);
        }
    };
    settings.warnings.extend(mistakes);
    match app::run(settings) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // An error may be several problems, a line each.
            error.to_string().lines().for_each(|line| tracing::error!(target: REPORT, "{line}"));
            ExitCode::FAILURE
        }
    }
}

/// The command line, made of the table of settings.
fn command() -> Command {
    Command::new("tidegate")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Decides, for every request that a proxy is about to forward, whether it may pass.")
        .after_help("Each setting is a flag and an environment variable; the flag wins.")
        .args(TABLE.iter().map(argument))
        .subcommands([check::command(), ask::command(), settings::command()])
}

/// The flag of a setting.
fn argument(row: &Row) -> Arg {
    let argument = Arg::new(row.name).long(row.flag()).value_name(row.value_name).help(help(row));
    let argument = argument.help_heading(row.group).hide_default_value(true);
    if row.is_switch {
        return argument.num_args(0..=1).require_equals(true).default_missing_value("true");
    }
    argument
}

/// The flags of the settings with these names, for a command that heeds no others.
fn arguments_of(names: &'static [&'static str]) -> impl Iterator<Item = Arg> {
    TABLE.iter().filter(|row| names.contains(&row.name)).map(argument)
}

/// Reads the settings with these names; all others are at their defaults, whatever the environment says of them.
fn read_only(
    names: &[&str],
    matches: &ArgMatches,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Settings, Vec<Problem>> {
    let heeded = |name: &str| if names.contains(&name) { variable(name) } else { None };
    Settings::read(|row| flag(matches, row), heeded)
}

/// The arguments with what `envoyproxy/ratelimit` spells in Go's way spelled in ours: `-config_dir X`.
fn spelled(arguments: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut words: Vec<_> = arguments.into_iter().collect();
    let name = words.first().and_then(|path| Path::new(path).file_name());
    if name == Some(OsStr::new(CHECK_NAME)) {
        words.insert(1, "check".into());
    }
    if words.get(1).is_some_and(|word| word == "check") {
        words.iter_mut().skip(2).for_each(respell);
    }
    words
}

fn respell(word: &mut OsString) {
    let flags = [("config_dir", "--config-dir"), ("merge_domain_configs", "--merge-domain-config")];
    let Some(text) = word.to_str() else { return };
    let Some(bare) = text.strip_prefix("--").or_else(|| text.strip_prefix('-')) else { return };
    let (name, value) = bare.split_once('=').map_or((bare, None), |(name, value)| (name, Some(value)));
    if let Some((_, ours)) = flags.iter().find(|(theirs, _)| *theirs == name) {
        *word = value.map_or_else(|| (*ours).into(), |value| format!("{ours}={value}").into());
    }
}

fn help(row: &Row) -> String {
    let default = match row.default {
        Some("") => " [default: empty]".to_owned(),
        Some(default) => format!(" [default: {default}]"),
        None => String::new(),
    };
    format!("{} [env: {}]{default}", row.help, row.name)
}

/// What the command line says of a setting. A command knows only some of them.
fn flag(matches: &ArgMatches, row: &Row) -> Option<String> {
    matches.try_get_one::<String>(row.name).ok().flatten().cloned()
}

/// `--help` and `--version` are no errors.
fn usage(error: &clap::Error) -> ExitCode {
    // Nothing is left to tell where the terminal is gone.
    let _ = error.print();
    if error.use_stderr() { ExitCode::from(EXIT_USAGE) } else { ExitCode::SUCCESS }
}

fn bad_settings(problems: &[Problem]) -> ExitCode {
    problems.iter().for_each(|problem| complain(format_args!("{problem}")));
    ExitCode::from(EXIT_USAGE)
}

/// Tells people that something is wrong.
fn complain(what: std::fmt::Arguments<'_>) {
    // Nothing is left to tell where the terminal is gone.
    let _ = writeln!(std::io::stderr(), "tidegate: {what}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        command().debug_assert();
    }

    #[test]
    fn every_setting_stands_in_the_help() {
        let help = command().term_width(usize::MAX).render_long_help().to_string();
        for row in TABLE {
            assert!(help.contains(&format!("--{}", row.flag())), "{}", row.name);
            assert!(help.contains(&format!("[env: {}]", row.name)), "{}", row.name);
        }
    }

    #[test]
    fn a_switch_needs_no_value() {
        let read = |arguments: &[&str]| {
            let matches = command().try_get_matches_from(arguments).expect("good");
            Settings::read(|row| flag(&matches, row), |_| None).expect("good").strict_rules
        };
        assert!(read(&["tidegate", "--strict-rules"]));
        assert!(!read(&["tidegate", "--strict-rules=false"]));
    }

    #[test]
    fn what_go_spells_is_understood() {
        let spelled = |words: &[&str]| {
            let words = spelled(words.iter().map(Into::into));
            words.iter().map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
        };
        let ours = "x/ratelimit_config_check check --config-dir a --merge-domain-config";
        assert_eq!(spelled(&["x/ratelimit_config_check", "-config_dir", "a", "-merge_domain_configs"]), ours);
        assert_eq!(spelled(&["tidegate", "check", "--config_dir=a"]), "tidegate check --config-dir=a");
        assert_eq!(spelled(&["tidegate", "-config_dir", "a"]), "tidegate -config_dir a", "only to check");
    }
}
