//! The command line: flags and environment become settings, then a command runs. Exit codes: 0; 1 for a failed start,
//! run or check; 2 for a condition of `replay` that holds; 64 for bad settings or a bad command line.
//!
//! Without a command the limiter runs. Each command has a file of its own.

mod admin;
mod answers;
mod ask;
mod called;
mod check;
mod completions;
mod debug_port;
mod init;
mod limit;
mod limitador;
mod logs;
mod man;
mod replay;
mod schema;
mod sent;
mod settings;
mod shown;
mod state;
mod suggest;
mod test;
mod times;

use std::any::Any;
use std::collections::HashMap;
use std::ffi::OsString;
use std::io::{self, IsTerminal as _, Write as _};
use std::path::Path;
use std::process::ExitCode;

use clap::{Arg, ArgMatches, Command};
use strsim::osa_distance;

use crate::app;
use crate::configuration::{Configuration, no_rules};
use crate::settings::value::Secrecy;
use crate::settings::{Problem, Row, TABLE, Texts, misspelt};
use crate::source::file::{FileSource, Layout, SourceError};
use tidegate_engine::rules::{Diagnostic, Ink, RuleSet, load};
use tidegate_engine::text::lines;
use tidegate_serve::report::REPORT;

/// A bad setting or a bad command line (EX_USAGE).
const EXIT_USAGE: u8 = 64;

/// The name of the program.
const NAME: &str = "tidegate";

/// The argument without a flag: the path of the rules to serve.
const RULES: &str = "served";

/// The settings of commands that decide requests without a limiter: how rules are read, and how requests are treated.
const DECIDING: &str = "
    SHADOW_MODE QUOTA_MODE STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT MERGE_DOMAIN_CONFIG DEFAULT_ALGORITHM
    DEFAULT_COST MAX_RULES_FILE_BYTES RULES_FORMAT";

/// The settings that most people set first, described in a few words so that `-h` fits a screen.
const FIRST: &[(&str, &str)] = &[
    ("CONFIG_PATH", "a file or folder of rules"),
    ("STRICT_RULES", "treat warnings about rules as errors"),
    ("DEFAULT_ALGORITHM", "for rules that name none"),
    ("SHADOW_MODE", "count, and deny nothing"),
    ("GRPC_PORT", "gRPC, for Envoy"),
    ("PORT", "HTTP: /check, /json, health"),
    ("REDIS_URL", "host:port; counters are there, not here"),
    ("REDIS_FAILURE_MODE", "without Redis: error, deny, allow, local"),
    ("MAX_COUNTER_BYTES", "memory of counters [half of the memory]"),
    ("LOG_LEVEL", "error, warn, info, debug, trace"),
];

/// The end of a command that does not serve: its output and exit code, or bad settings.
type Done = Result<(String, ExitCode), Vec<Problem>>;

/// Runs the program with these arguments (the first is its name) and this environment.
pub fn main(arguments: Vec<OsString>, environment: HashMap<String, String>) -> ExitCode {
    let variable = |name: &str| environment.get(name).cloned();
    let called = match called::read(arguments, called::is_this_program) {
        Ok(called) => called,
        Err(error) => return usage(&error),
    };
    let first = called.words.get(1).and_then(|word| word.to_str()).map(str::to_owned);
    let mistakes = || {
        let misspelt = misspelt(environment.keys().map(String::as_str), variable);
        called.warning.iter().cloned().chain(misspelt).collect::<Vec<_>>()
    };
    let matches = match command().try_get_matches_from(&called.words) {
        Ok(matches) => matches,
        Err(error) => {
            // After a misspelt command, clap would complain about the next argument.
            let first = first.as_deref().filter(|word| !word.starts_with('-'));
            let Some(problem) = first.and_then(no_rules_at) else { return usage(&error) };
            print_error(format_args!("{problem}"));
            return ExitCode::from(EXIT_USAGE);
        }
    };
    if let Some(problem) = matches.get_one::<String>(RULES).and_then(|path| no_rules_at(path)) {
        print_error(format_args!("{problem}"));
        return ExitCode::from(EXIT_USAGE);
    }
    let is_coloured_or_rules = matches!(matches.subcommand_name(), Some("check" | "suggest"));
    // A flag may be given after the name of a command or before it.
    let own = matches.subcommand().map_or(&matches, |(_, own)| own);
    let flag = |row: &Row| flag(own, row).or_else(|| flag(&matches, row));
    let texts = Texts { flag: &flag, variable: &variable };
    let done: Done = match matches.subcommand() {
        None => return serve(texts, mistakes()),
        Some(("init", own)) => init::run(own),
        Some(("check", own)) => check::run(own, texts),
        Some(("ask", own)) => ask::run(own, texts),
        Some(("replay", own)) => replay::run(own, texts),
        Some(("suggest", own)) => suggest::run(own, texts),
        Some(("test", own)) => test::run(own, texts),
        Some(("exception", own)) => admin::exception(own, texts),
        Some(("counter", own)) => admin::counter(own, texts),
        Some(("audit", own)) => admin::audit(own, texts),
        Some(("limit", own)) => limit::run(own, texts),
        Some(("schema", own)) => Ok((schema::run(own), ExitCode::SUCCESS)),
        Some(("completions", own)) => Ok((completions::run(own), ExitCode::SUCCESS)),
        Some(("man", own)) => man::run(own),
        Some(("state", own)) => state::run(own, texts),
        Some((_, own)) => {
            mistakes().iter().for_each(|mistake| print_error(format_args!("warning: {mistake}")));
            settings::run(own, texts)
        }
    };
    match done {
        Ok((text, code)) => {
            // `check` has escaped its texts and may colour them; the output of `suggest` is rules, for programs.
            let text = if is_coloured_or_rules { text.into() } else { lines(&text) };
            let mut out = io::stdout().lock();
            written(out.write_all(text.as_bytes()).and_then(|()| out.flush()), code)
        }
        Err(problems) => bad_settings(&problems),
    }
}

/// The exit code of a command: its own if its output was written, else a failure. A reader that stops (`| head`) is
/// no failure.
fn written(written: io::Result<()>, code: ExitCode) -> ExitCode {
    match written {
        Ok(()) => code,
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => code,
        Err(error) => {
            print_error(format_args!("the output cannot be written: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// The error for a path of rules that does not exist. It may be a misspelt command. `None`: it exists, or is a
/// command.
fn no_rules_at(path: &str) -> Option<String> {
    let known = command();
    let names: Vec<_> = known.get_subcommands().map(Command::get_name).chain(["help"]).collect();
    if Path::new(path).exists() || names.contains(&path) {
        return None;
    }
    let near =
        names.into_iter().map(|name| (osa_distance(name, path), name)).filter(|(wrong, _)| *wrong <= 2).min();
    let closest = near.map(|(_, name)| format!("; the closest command is {name}")).unwrap_or_default();
    Some(format!(
        "{path:?} is neither a command nor a file or folder of rules{closest} (expected one; see -h)"
    ))
}

/// Runs the limiter. Logs `mistakes` in the environment.
fn serve(texts: Texts<'_>, mistakes: Vec<Problem>) -> ExitCode {
    let mut configuration = match Configuration::read(texts) {
        Ok(configuration) => configuration,
        Err(problems) => {
            mistakes.iter().for_each(|mistake| print_error(format_args!("warning: {mistake}")));
            return bad_settings(&problems);
        }
    };
    configuration.warnings.extend(mistakes);
    let is_terminal = std::io::stderr().is_terminal();
    match app::run(configuration, is_terminal.then(|| Ink::new(true, texts.variable))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // An error may hold several problems, one per line.
            error.to_string().lines().for_each(|line| tracing::error!(target: REPORT, "{line}"));
            ExitCode::FAILURE
        }
    }
}

/// The command line, made from the table of settings.
fn command() -> Command {
    let commands = [
        check::command(),
        ask::command(),
        replay::command(),
        suggest::command(),
        test::command(),
        settings::command(),
        state::command(),
        admin::exception_command(),
        admin::counter_command(),
        limit::command(),
        admin::audit_command(),
        init::command(),
        schema::command(),
        completions::command(),
        man::command(),
    ];
    Command::new(NAME)
        .version(env!("CARGO_PKG_VERSION"))
        .about("Decides for a proxy whether a request may pass")
        .after_help(first_settings())
        .after_long_help("Each setting is a flag and an environment variable; the flag wins.")
        .arg(
            Arg::new(RULES)
                .value_name("RULES")
                .conflicts_with("CONFIG_PATH")
                .help("a file or folder of rules to serve, as --config [default: config]"),
        )
        .args(TABLE.iter().map(argument))
        .subcommands(commands)
}

/// The end of `-h`: a line per setting, and a pointer to the rest.
fn first_settings() -> String {
    let line = |(name, words): &(&str, &str)| {
        let row = TABLE.iter().find(|row| row.name == *name)?;
        let default = row.default.filter(|_| row.secrecy == Secrecy::None);
        let default = default.map(|default| format!(" [{default}]")).unwrap_or_default();
        Some(format!("      --{:<20} {words}{default}\n", row.flag()))
    };
    format!(
        "Settings, each a variable too (GRPC_PORT is --grpc-port; all: tidegate --help):\n{}",
        FIRST.iter().filter_map(line).collect::<String>()
    )
}

/// The flag of a setting.
fn argument(row: &Row) -> Arg {
    let argument = Arg::new(row.name).long(row.flag()).value_name(row.value_name).help(help(row));
    let argument = argument.help_heading(row.group).hide_default_value(true).hide_short_help(true);
    if row.is_switch {
        return argument.num_args(0..=1).require_equals(true).default_missing_value("true");
    }
    argument
}

/// The flags of these settings, for a command that takes no others.
fn arguments_of(names: &str) -> impl Iterator<Item = Arg> {
    TABLE.iter().filter(|row| has_word(names, row.name)).map(|row| argument(row).hide_short_help(false))
}

/// Whether a list of names has this one.
fn has_word(names: &str, name: &str) -> bool {
    names.split_ascii_whitespace().any(|known| known == name)
}

/// The configuration of these settings, which a command may have as flags of its `own`. All others have their defaults,
/// whatever the environment contains.
fn read_only(names: &str, own: &ArgMatches, texts: Texts<'_>) -> Result<Configuration, Vec<Problem>> {
    let given = |row: &Row| flag(own, row).or_else(|| (texts.flag)(row));
    let flag = |row: &Row| if has_word(names, row.name) { given(row) } else { None };
    let variable = |name: &str| if has_word(names, name) { (texts.variable)(name) } else { None };
    Configuration::read(Texts { flag: &flag, variable: &variable })
}

/// Why rules that a command names cannot be used.
#[derive(Debug, thiserror::Error)]
enum RulesError {
    #[error(transparent)]
    Files(#[from] SourceError),
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\ntidegate: "))]
    Rules(Vec<Diagnostic>),
    #[error("{0}")]
    NoRules(String),
}

/// The rules in a file or folder.
fn loaded(path: &Path, configuration: &Configuration) -> Result<RuleSet, RulesError> {
    let options = &configuration.rules.load;
    let layout = Layout::Path(path.to_owned());
    let no_rules = no_rules(&layout);
    let files = FileSource::new(layout, options.max_file_bytes).read()?.files;
    let rules = load(&files, options).map_err(RulesError::Rules)?.rules;
    if rules.domains().next().is_none() { Err(RulesError::NoRules(no_rules)) } else { Ok(rules) }
}

fn help(row: &Row) -> String {
    let default = match row.default {
        Some("") => " [default: empty]".to_owned(),
        Some(default) => format!(" [default: {default}]"),
        None => String::new(),
    };
    format!("{} [env: {}]{default}", row.help, row.name)
}

/// The value of an argument that only some commands have.
///
/// `try_get_one` of clap is banned: for an argument that the command does not have, it is an error with debug assertions, and
/// `None` in release.
fn given<'a, T: Any + Clone + Send + Sync>(matches: &'a ArgMatches, name: &str) -> Option<&'a T> {
    matches.ids().any(|id| id == name).then(|| matches.get_one(name))?
}

/// The value of a setting's flag in these arguments. A command has only some of the flags.
fn flag(matches: &ArgMatches, row: &Row) -> Option<String> {
    let text = |name: &str| given::<String>(matches, name).cloned();
    text(row.name).or_else(|| if row.name == "CONFIG_PATH" { text(RULES) } else { None })
}

/// Prints help, the version or an error of usage. `--help` and `--version` are no errors.
fn usage(error: &clap::Error) -> ExitCode {
    let printed = error.print();
    if error.use_stderr() {
        return ExitCode::from(EXIT_USAGE);
    }
    written(printed.and_then(|()| io::stdout().flush()), ExitCode::SUCCESS)
}

fn bad_settings(problems: &[Problem]) -> ExitCode {
    problems.iter().for_each(|problem| print_error(format_args!("{problem}")));
    ExitCode::from(EXIT_USAGE)
}

/// Prints a problem for people.
fn print_error(what: std::fmt::Arguments<'_>) {
    // If the terminal is gone, nobody can read it.
    let _ = writeln!(io::stderr(), "tidegate: {}", lines(&what.to_string()));
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
    fn the_short_help_is_a_screen_and_says_where_the_rest_is() {
        let help = command().term_width(80).render_help().to_string();
        assert!(help.lines().count() <= 40, "{}:\n{help}", help.lines().count());
        for (name, _) in FIRST {
            let row = TABLE.iter().find(|row| row.name == *name).expect("a setting");
            assert_eq!(help.matches(&format!("\n      --{} ", row.flag())).count(), 1, "{name} in:\n{help}");
        }
        assert!(FIRST.len() == 10 && help.contains("tidegate --help"), "{help}");
        for command in command().get_subcommands() {
            assert!(help.contains(&format!("\n  {} ", command.get_name())), "{help}");
        }
    }

    #[test]
    fn a_path_is_rules_and_a_command_that_is_misspelt_is_reported() {
        let path = |arguments: &[&str]| {
            let matches = command().try_get_matches_from(arguments).expect("good");
            let row = TABLE.iter().find(|row| row.name == "CONFIG_PATH").expect("a setting");
            (flag(&matches, row), matches.get_one::<String>(RULES).and_then(|path| no_rules_at(path)))
        };
        assert_eq!(path(&["tidegate", "src/"]), (Some("src/".to_owned()), None));
        assert_eq!(path(&["tidegate", "--config", "nowhere"]), (Some("nowhere".to_owned()), None));
        let problem = path(&["tidegate", "chekc"]).1.expect("nobody has such a folder");
        assert!(problem.contains("closest command is check"), "{problem}");
        assert!(command().try_get_matches_from(["tidegate", "src/", "--config", "src"]).is_err());
    }

    #[test]
    fn a_switch_needs_no_value() {
        let read = |arguments: &[&str]| {
            let matches = command().try_get_matches_from(arguments).expect("good");
            let texts = Texts { flag: &|row| flag(&matches, row), variable: &|_| None };
            let configuration = Configuration::read(texts).expect("good");
            configuration.rules.load.strict
        };
        assert!(read(&["tidegate", "--strict-rules"]));
        assert!(!read(&["tidegate", "--strict-rules=false"]));
    }
}
