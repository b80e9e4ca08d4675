//! `tidegate settings`: every setting with the value that is in force here, or the page of all of them.

use clap::{Arg, ArgAction, ArgMatches, Command};

use crate::settings::{Row, effective, markdown};

/// The command, without its name.
pub(super) fn command() -> Command {
    Command::new("settings")
        .about("Shows the settings that are in force here, and where each comes from")
        .arg(
            Arg::new("markdown")
                .long("markdown")
                .action(ArgAction::SetTrue)
                .help("the page of all settings instead, as docs/settings.md has it"),
        )
}

/// What the command writes.
pub(super) fn run(
    matches: &ArgMatches,
    flag: impl Fn(&Row) -> Option<String>,
    variable: impl Fn(&str) -> Option<String>,
) -> String {
    if matches.get_flag("markdown") { markdown() } else { effective(flag, variable) }
}
