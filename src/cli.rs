//! The command line: flags and environment become settings, a command runs, and its end becomes an exit code:
//! 0, 1 for a failed start or run, 64 for bad settings or a bad command line.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Arg, ArgMatches, Command};

use crate::app;
use crate::settings::{Problem, Row, Settings, TABLE};

/// A bad setting or a bad command line (EX_USAGE).
const EXIT_USAGE: u8 = 64;

/// Runs the program with these arguments (the first is its name) and this environment.
pub fn main(
    arguments: impl IntoIterator<Item = OsString>,
    variable: impl Fn(&str) -> Option<String>,
) -> ExitCode {
    let matches = match command().try_get_matches_from(arguments) {
        Ok(matches) => matches,
        Err(error) => return usage(&error),
    };
    let settings = match Settings::read(|row| flag(&matches, row), variable) {
        Ok(settings) => settings,
        Err(problems) => return bad_settings(&problems),
    };
    match app::run(settings) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// The command line, made of the table of settings.
fn command() -> Command {
    let flag = |row: &Row| {
        let argument = Arg::new(row.name).long(row.flag()).value_name(row.value_name).help(help(row));
        let argument = argument.help_heading(row.group).hide_default_value(true);
        if row.is_switch {
            return argument.num_args(0..=1).require_equals(true).default_missing_value("true");
        }
        argument
    };
    Command::new("tidegate")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Decides, for every request that a proxy is about to forward, whether it may pass.")
        .after_help("Each setting is a flag and an environment variable; the flag wins.")
        .args(TABLE.iter().map(flag))
}

fn help(row: &Row) -> String {
    let default = match row.default {
        Some("") => " [default: empty]".to_owned(),
        Some(default) => format!(" [default: {default}]"),
        None => String::new(),
    };
    format!("{} [env: {}]{default}", row.help, row.name)
}

fn flag(matches: &ArgMatches, row: &Row) -> Option<String> {
    matches.get_one::<String>(row.name).cloned()
}

/// `--help` and `--version` are no errors.
fn usage(error: &clap::Error) -> ExitCode {
    // Nothing is left to tell where the terminal is gone.
    let _ = error.print();
    if error.use_stderr() { ExitCode::from(EXIT_USAGE) } else { ExitCode::SUCCESS }
}

fn bad_settings(problems: &[Problem]) -> ExitCode {
    for problem in problems {
        eprintln!("tidegate: {problem}");
    }
    ExitCode::from(EXIT_USAGE)
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
}
