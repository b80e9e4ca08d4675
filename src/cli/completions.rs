//! `tidegate completions SHELL`: writes the script by which a shell completes this command line.

use clap::builder::EnumValueParser;
use clap::{Arg, ArgMatches, Command};
use clap_complete::{Shell, generate};

pub(super) fn command() -> Command {
    Command::new("completions").about("Writes what a shell needs to complete this command line").arg(
        Arg::new("shell")
            .value_name("SHELL")
            .value_parser(EnumValueParser::<Shell>::new())
            .required(true)
            .help("the shell, for example: source <(tidegate completions bash)"),
    )
}

/// The output of the command.
pub(super) fn run(matches: &ArgMatches) -> String {
    let mut script = Vec::new();
    if let Some(shell) = matches.get_one::<Shell>("shell") {
        generate(*shell, &mut super::command(), super::NAME, &mut script);
    }
    String::from_utf8_lossy(&script).into_owned()
}
