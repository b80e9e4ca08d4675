//! `tidegate man`: writes the manual, a page for the program and one for each command.

use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgMatches, Command};
use clap_mangen::Man;

/// The command. `others` have pages too.
pub(super) fn command(others: &[Command]) -> Command {
    let names = others.iter().map(|other| other.get_name().to_owned()).collect::<Vec<_>>();
    Command::new("man").about("Writes a page of the manual, for example: tidegate man | man -l -").arg(
        Arg::new("page")
            .value_name("COMMAND")
            .value_parser(PossibleValuesParser::new(names))
            .help("the command that it is about; none: the program"),
    )
}

/// The output of the command.
pub(super) fn run(matches: &ArgMatches) -> String {
    let program = super::command();
    let page = matches.get_one::<String>("page").and_then(|page| program.find_subcommand(page));
    let about = match page {
        // The name of the page, and the command as it is typed.
        Some(page) => {
            let (name, typed) = (page.get_name(), format!("{} {}", super::NAME, page.get_name()));
            page.clone().name(format!("{}-{name}", super::NAME)).bin_name(typed)
        }
        None => program,
    };
    let mut text = Vec::new();
    // Writing to memory cannot fail.
    let _ = Man::new(about.disable_help_subcommand(true).mut_args(with_help)).render(&mut text);
    String::from_utf8_lossy(&text).into_owned()
}

/// Shows a flag's help that `-h` hides: the manual would leave it out too.
fn with_help(argument: Arg) -> Arg {
    argument.hide_short_help(false)
}
