//! `tidegate state`: shows what STATE_DIR holds, checks all of it, or says that there is no history.
//!
//! In: the folder, of a process that runs or not. Out: text. Only `init` changes anything.

use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{ArgMatches, Command};

use super::{Done, arguments_of, flag_of, print_error, read_only};
use crate::clock::Clock;
use crate::configuration::State;
use crate::settings::Row;
use crate::state::{
    Distrust, File, Folder, FolderError, Header, KeySource, Moment, SecretError, StartError, StateReader,
    Totals, init,
};
use tidegate_engine::limit::Algorithm;
use tidegate_engine::time::SECOND_NANOS;

/// The settings that say where a state is.
const SETTINGS: &[&str] = &["STATE_DIR", "KEY_SECRET_FILE", "SHARD_MEMBERS"];

/// The command.
pub(super) fn command() -> Command {
    let one = |name: &'static str, about: &'static str| {
        Command::new(name).about(about).args(arguments_of(SETTINGS))
    };
    Command::new("state")
        .about("Shows or checks the counters in STATE_DIR, or begins without any")
        .subcommand_required(true)
        .subcommand(one("show", "Shows what the folder holds"))
        .subcommand(one("verify", "Reads all counters, and fails if something is damaged"))
        .subcommand(one("init", "Says that there is no history: the next start counts as a clean one"))
        .after_help(
            "Exit code: 0; 1 when there is nothing or it is not to be believed; 64 a bad command line.",
        )
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
enum StateError {
    #[error("STATE_DIR is not set (expected the folder of the limiter)")]
    NoFolder,
    #[error("{} holds no counters (expected a file {} or {})", .0.display(), File::Counters.name(), File::Checkpoint.name())]
    Nothing(PathBuf),
    #[error("{}: {distrust}", path.display())]
    Distrusted { path: PathBuf, distrust: Distrust },
    #[error("{}: the process was killed, or still runs: the next start is not a clean one", .0.display())]
    NotClean(PathBuf),
    #[error(transparent)]
    Folder(#[from] FolderError),
    #[error(transparent)]
    Secret(#[from] SecretError),
    #[error(transparent)]
    Start(#[from] StartError),
}

/// Runs the command.
pub(super) fn run(
    matches: &ArgMatches,
    flag: impl Fn(&Row) -> Option<String>,
    variable: impl Fn(&str) -> Option<String>,
) -> Done {
    let Some((command, own)) = matches.subcommand() else { return Ok((String::new(), ExitCode::FAILURE)) };
    let given = flag_of(own, own);
    let state = read_only(SETTINGS, |row| given(row).or_else(|| flag(row)), variable)?.state;
    let done = match command {
        "init" => begin_without(&state),
        "verify" => verify(&state),
        _ => show(&state),
    };
    Ok(match done {
        Ok(text) => (text, ExitCode::SUCCESS),
        Err(error) => {
            print_error(format_args!("{error}"));
            (String::new(), ExitCode::FAILURE)
        }
    })
}

fn folder(state: &State) -> Result<&Path, StateError> {
    state.folder.as_deref().ok_or(StateError::NoFolder)
}

fn own_secret(state: &State) -> Result<Option<KeySource>, SecretError> {
    state.secret_file.as_deref().map(KeySource::of_file).transpose()
}

fn begin_without(state: &State) -> Result<String, StateError> {
    let folder = Folder::lock(folder(state)?)?;
    init(&folder, own_secret(state)?, state.members)?;
    Ok(format!("{}: there is no history\n", folder.path().display()))
}

/// Shows both files, as far as they can be read.
fn show(state: &State) -> Result<String, StateError> {
    let folder = folder(state)?;
    let mut text = String::new();
    for file in [File::Counters, File::Checkpoint] {
        let path = folder.join(file.name());
        match read(&path) {
            Ok((header, totals)) => describe(&mut text, &path, &header, &totals),
            Err(Distrust::Unreadable(error)) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(distrust) => writeln!(text, "{}: {distrust}", path.display()),
        }
        .expect("a String takes all");
    }
    if text.is_empty() { Err(StateError::Nothing(folder.to_owned())) } else { Ok(text) }
}

/// Checks the file that the next start reads.
fn verify(state: &State) -> Result<String, StateError> {
    let folder = folder(state)?;
    let path = folder.join(File::Counters.name());
    let distrusted = |distrust| match distrust {
        Distrust::Unreadable(error) if error.kind() == io::ErrorKind::NotFound => {
            let checkpoint = folder.join(File::Checkpoint.name());
            match checkpoint.exists() {
                true => StateError::NotClean(checkpoint),
                false => StateError::Nothing(folder.to_owned()),
            }
        }
        distrust => StateError::Distrusted { path: path.clone(), distrust },
    };
    let (header, totals) = read(&path).map_err(distrusted)?;
    KeySource::of_state(&header, own_secret(state)?).map_err(distrusted)?;
    Ok(format!("{}: good, counters {}\n", path.display(), totals.all()))
}

/// Reads a whole file.
fn read(path: &Path) -> Result<(Header, Totals), Distrust> {
    let reader = StateReader::open(path)?;
    let header = reader.header.clone();
    Ok((header, reader.read(|counters| counters.verify())?))
}

fn describe(text: &mut String, path: &Path, header: &Header, totals: &Totals) -> std::fmt::Result {
    let now = Moment::now(&Clock::start());
    let kind = if header.is_clean { "all counters at the end of a process" } else { "a checkpoint" };
    let place = if header.moment.is_same_boot(&now) { "on this boot" } else { "on another boot or machine" };
    writeln!(text, "{}: {kind}", path.display())?;
    let age = now.wall.nanos_since(header.moment.wall) / SECOND_NANOS;
    let at = header.moment.wall.as_nanos() / SECOND_NANOS;
    writeln!(text, "  written   at unix time {at}, {age} s ago, {place}")?;
    writeln!(text, "  counters  {} in {} bytes", totals.all(), totals.bytes)?;
    for (algorithm, count) in Algorithm::ALL.iter().zip(totals.counters).filter(|(_, count)| *count > 0) {
        writeln!(text, "            {count} {}", algorithm.name())?;
    }
    let secret = if header.holds_secret() { "in the file" } else { "in KEY_SECRET_FILE" };
    writeln!(text, "  secret    {secret}")?;
    if let Some(lost_since) = header.lost_since {
        let ago = header.moment.clock.nanos_since(lost_since) / SECOND_NANOS;
        writeln!(text, "  lost      counters were lost {ago} s before that")?;
    }
    match header.members {
        0 => Ok(()),
        members => writeln!(text, "  members   {members}"),
    }
}
