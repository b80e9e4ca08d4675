//! `tidegate man`: writes the manual, a page for the program, each command, and each of their commands.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Arg, ArgMatches, Command, value_parser};
use clap_mangen::Man;

use super::{Done, print_error};
use crate::settings::Problem;

/// The option that names a folder for all pages.
const ALL: &str = "all";

pub(super) fn command() -> Command {
    Command::new("man")
        .about("Writes a page of the manual, for example: tidegate man | man -l -")
        .arg(
            Arg::new("page")
                .value_name("COMMAND")
                .num_args(0..=2)
                .help("the command that it is about, such as: check, exception put; none: the program"),
        )
        .arg(
            Arg::new(ALL)
                .long(ALL)
                .value_name("FOLDER")
                .value_parser(value_parser!(PathBuf))
                .conflicts_with("page")
                .help("write all pages into this folder instead, as tidegate.1, tidegate-check.1, …"),
        )
}

pub(super) fn run(matches: &ArgMatches) -> Done {
    if let Some(folder) = matches.get_one::<PathBuf>(ALL) {
        return Ok(match write_all(folder, &super::command(), &[super::NAME]) {
            Ok(()) => (String::new(), ExitCode::SUCCESS),
            Err(error) => {
                print_error(format_args!("{}: {error}", folder.display()));
                (String::new(), ExitCode::FAILURE)
            }
        });
    }
    let mut about = super::command();
    let mut words = vec![super::NAME];
    for word in matches.get_many::<String>("page").into_iter().flatten() {
        let Some(below) = about.find_subcommand(word).cloned() else {
            let names = about.get_subcommands().map(Command::get_name).collect::<Vec<_>>().join(", ");
            let what = format!("{word:?} is no command (expected one of {names})");
            return Err(vec![Problem { name: "man".to_owned(), what }]);
        };
        words.push(word);
        about = below;
    }
    Ok((page(about, &words), ExitCode::SUCCESS))
}

/// Writes the page of a command, which is typed with these words, and the pages of its commands.
fn write_all(folder: &Path, command: &Command, words: &[&str]) -> io::Result<()> {
    fs::write(folder.join(format!("{}.1", words.join("-"))), page(command.clone(), words))?;
    let mut below = command.get_subcommands();
    below.try_for_each(|below| write_all(folder, below, &[words, &[below.get_name()]].concat()))
}

/// The page of a command that is typed with these words.
fn page(command: Command, words: &[&str]) -> String {
    let about = command.name(words.join("-")).bin_name(words.join(" "));
    let mut text = Vec::new();
    // Writing to memory cannot fail.
    let _ = Man::new(about.disable_help_subcommand(true).mut_args(with_help)).render(&mut text);
    String::from_utf8_lossy(&text).into_owned()
}

/// Shows a flag's help that `-h` hides: the manual would leave it out too.
fn with_help(argument: Arg) -> Arg {
    argument.hide_short_help(false)
}
