//! `tidegate schema`: writes the JSON Schema of a kind of files, for editors.

use clap::{Arg, ArgMatches, Command};

/// The kinds of files, and their schemas.
const SCHEMAS: [(&str, &str); 2] =
    [("rules", tidegate_engine::rules::SCHEMA), ("cases", tidegate_trial::cases::SCHEMA)];

pub(super) fn command() -> Command {
    Command::new("schema").about("Writes a JSON Schema, by which editors check and complete YAML").arg(
        Arg::new("files")
            .value_name("FILES")
            .value_parser(SCHEMAS.map(|(files, _)| files))
            .default_value("rules")
            .help("what it describes: files of rules, or files of cases for `tidegate test`"),
    )
}

/// The output of the command.
pub(super) fn run(matches: &ArgMatches) -> String {
    let files = matches.get_one::<String>("files");
    SCHEMAS
        .iter()
        .filter(|(name, _)| files.is_some_and(|files| files == name))
        .map(|(_, text)| *text)
        .collect()
}
