//! `tidegate settings`: every setting with its value in force here, or the page of all settings.

use std::process::ExitCode;

use clap::{Arg, ArgAction, ArgMatches, Command};

use super::{Done, EXIT_USAGE, argument, print_error};
use crate::configuration::{Configuration, in_force};
use crate::settings::{TABLE, Texts, markdown};

/// The command. It takes every setting. Its help names none of them, because the program's help does.
pub(super) fn command() -> Command {
    Command::new("settings")
        .about("Shows the settings in force here, and where each comes from")
        .arg(
            Arg::new("changed")
                .long("changed")
                .action(ArgAction::SetTrue)
                .help("only those that differ from their defaults"),
        )
        .arg(
            Arg::new("markdown")
                .long("markdown")
                .action(ArgAction::SetTrue)
                .conflicts_with("changed")
                .help("the page of all settings instead, as docs/settings.md has it"),
        )
        .args(TABLE.iter().map(|row| argument(row).hide(true)))
        .after_help(
            "Takes the flags of all settings (tidegate --help), before its name or behind it.\n\
             Exit code: 0, or 64 when a setting is bad: each is reported.",
        )
}

/// Runs the command. Bad settings are reported in addition to its output.
pub(super) fn run(matches: &ArgMatches, texts: Texts<'_>) -> Done {
    if matches.get_flag("markdown") {
        return Ok((markdown(), ExitCode::SUCCESS));
    }
    let read = Configuration::read(texts);
    let all = in_force(texts, read.is_ok());
    let only_changed = matches.get_flag("changed");
    let lines =
        all.filter(|setting| setting.is_changed || !only_changed).map(|setting| format!("{setting}\n"));
    let lines: String = lines.collect();
    Ok(match read {
        Ok(_) => (lines, ExitCode::SUCCESS),
        Err(problems) => {
            problems.iter().for_each(|problem| print_error(format_args!("{problem}")));
            (lines, ExitCode::from(EXIT_USAGE))
        }
    })
}
