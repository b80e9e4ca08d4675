//! `tidegate state`: shows the contents of STATE_DIR, checks all of it, or declares that there is no history, there
//! or in Redis.
//!
//! In: the folder, of a process that runs or not; or Redis. Out: text. Only `init` changes anything.

use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::{ArgMatches, Command};

use super::{Done, arguments_of, print_error, read_only};
use crate::app::{AppError, declare_complete};
use crate::configuration::{Configuration, Redis, StateOptions};
use crate::settings::Texts;
use tidegate_engine::clock::Clock;
use tidegate_engine::limit::Algorithm;
use tidegate_engine::time::SECOND_NANOS;
use tidegate_redis::address::Address;
use tidegate_state::{
    Distrust, File, Folder, FolderError, Header, KeySource, Moment, SecretError, Sequence, SequenceError,
    ShardName, StartError, StateReader, ThisMachine, Totals, init,
};

/// The settings that name a state.
const SETTINGS: &str = "STATE_DIR STATE_SEQUENCE_FILE KEY_SECRET_FILE SHARD_MEMBERS SHARD_NAME";

/// The settings that name Redis and its keys. `init` takes both.
const SETTINGS_OF_REDIS: &str = "
    BACKEND_TYPE REDIS_TYPE REDIS_URL REDIS_SOCKET_TYPE REDIS_AUTH REDIS_SENTINEL_AUTH REDIS_TLS
    REDIS_TLS_SKIP_HOSTNAME_VERIFICATION REDIS_TLS_CACERT REDIS_TLS_CLIENT_CERT REDIS_TLS_CLIENT_KEY
    REDIS_TIMEOUT CACHE_KEY_PREFIX REDIS_PERSECOND REDIS_PERSECOND_TYPE REDIS_PERSECOND_URL
    REDIS_PERSECOND_SOCKET_TYPE REDIS_PERSECOND_AUTH REDIS_PERSECOND_SENTINEL_AUTH REDIS_PERSECOND_TLS
    REDIS_PERSECOND_TIMEOUT";

pub(super) fn command() -> Command {
    let one = |name: &'static str, about: &'static str| {
        Command::new(name).about(about).args(arguments_of(&settings_of(name)))
    };
    Command::new("state")
        .about("Shows or checks the counters in STATE_DIR, or declares none")
        .subcommand_required(true)
        .subcommand(one("show", "Shows what the folder holds"))
        .subcommand(one("verify", "Reads all counters, and fails if something is damaged"))
        .subcommand(
            one("init", "Declares that STATE_DIR or Redis has no history, so that no counter counts as lost")
                .after_help(INIT_HELP),
        )
        .after_help("Exit code: 0; 1 when there are no counters or they are damaged; 64 a bad command line.")
}

const INIT_HELP: &str = "Once, before the first start with COLD_START=deny, by hand: what was lost before is believed \
to be nothing. With Redis, its settings are those of the limiter, and every primary is written to.";

fn settings_of(command: &str) -> String {
    [SETTINGS, if command == "init" { SETTINGS_OF_REDIS } else { "" }].join(" ")
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
enum StateError {
    #[error("STATE_DIR is not set (expected the folder of the limiter)")]
    NoFolder,
    #[error("neither STATE_DIR nor REDIS_URL is set (expected the one that the limiter has)")]
    Nowhere,
    #[error("{}", .0.iter().map(|server| format!("{server}: a limiter has used it before, and may have lost counters (nothing was changed)")).collect::<Vec<_>>().join("\ntidegate: "))]
    Used(Vec<Address>),
    #[error(transparent)]
    Redis(#[from] AppError),
    #[error("{} holds no counters (expected a file {} or {})", .0.display(), File::Counters.name(), File::Checkpoint.name())]
    Nothing(PathBuf),
    #[error("{}: {distrust}", path.display())]
    Distrusted { path: PathBuf, distrust: Distrust },
    #[error("{}: the process was killed, or still runs: the next start is not a clean one", .0.display())]
    NotClean(PathBuf),
    #[error(transparent)]
    Folder(#[from] FolderError),
    #[error(transparent)]
    Sequence(#[from] SequenceError),
    #[error(transparent)]
    Secret(#[from] SecretError),
    #[error(transparent)]
    Start(#[from] StartError),
}

pub(super) fn run(matches: &ArgMatches, texts: Texts<'_>) -> Done {
    let Some((command, own)) = matches.subcommand() else { return Ok((String::new(), ExitCode::FAILURE)) };
    let Configuration { state, redis, .. } = read_only(&settings_of(command), own, texts)?;
    let done = match (command, redis) {
        ("init", Some(redis)) => begin_without_in_redis(redis),
        ("init", None) => begin_without(&state),
        ("verify", _) => verify(&state),
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

fn folder(state: &StateOptions) -> Result<&Path, StateError> {
    state.folder.as_deref().ok_or(StateError::NoFolder)
}

fn own_secret(state: &StateOptions) -> Result<Option<KeySource>, SecretError> {
    state.secret_file.as_deref().map(KeySource::of_file).transpose()
}

fn begin_without(state: &StateOptions) -> Result<String, StateError> {
    let folder = state.folder.as_deref().ok_or(StateError::Nowhere)?;
    let folder = Folder::lock(folder)?.counted_in(state.sequence_file.as_deref())?;
    let (secret, name) = (own_secret(state)?, ShardName::of(state.name.as_deref()));
    init(&folder, secret, state.members, name, Arc::new(ThisMachine))?;
    Ok(format!("{}: there is no history\n", folder.path().display()))
}

fn begin_without_in_redis(redis: Redis) -> Result<String, StateError> {
    let (used, new): (Vec<_>, Vec<_>) =
        declare_complete(redis)?.into_iter().partition(|server| server.complete_since_micros > 0);
    if !used.is_empty() {
        return Err(StateError::Used(used.into_iter().map(|server| server.server).collect()));
    }
    Ok(new.iter().map(|server| format!("{}: there is no history\n", server.server)).collect())
}

/// Shows both files, as far as they can be read.
fn show(state: &StateOptions) -> Result<String, StateError> {
    let folder = folder(state)?;
    let mut text = String::new();
    for file in File::ALL {
        let path = folder.join(file.name());
        match read(&path) {
            Ok((header, totals)) => describe(&mut text, file, &path, &header, &totals),
            Err(Distrust::Unreadable(error)) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(distrust) => writeln!(text, "{}: {distrust}", path.display()),
        }
        .expect("a String takes all");
    }
    if text.is_empty() { Err(StateError::Nothing(folder.to_owned())) } else { Ok(text) }
}

/// Checks the file that the next start reads.
fn verify(state: &StateOptions) -> Result<String, StateError> {
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
    let last = state.sequence_file.as_deref().map(Sequence::read).transpose()?.map_or(0, |it| it.seen);
    if header.sequence < last {
        return Err(distrusted(Distrust::Restored { written: header.sequence, last }));
    }
    Ok(format!("{}: good, counters {}\n", path.display(), totals.all()))
}

fn read(path: &Path) -> Result<(Header, Totals), Distrust> {
    let reader = StateReader::open(path)?;
    let header = reader.header.clone();
    Ok((header, reader.read(|counters| counters.verify())?))
}

fn describe(
    text: &mut String,
    file: File,
    path: &Path,
    header: &Header,
    totals: &Totals,
) -> std::fmt::Result {
    let now = Moment::now(&ThisMachine, &Clock::start());
    let kind = match (file, header.is_clean) {
        (File::Counters, _) => "all counters at the end of a process",
        (File::Checkpoint, true) => "a checkpoint: what a process began with that runs, or was killed",
        (File::Checkpoint, false) => "a checkpoint of a process that runs, or was killed",
    };
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
    writeln!(text, "  start     {}", header.sequence)?;
    if let Some(lost_since) = header.lost_since {
        let ago = header.moment.clock.nanos_since(lost_since) / SECOND_NANOS;
        writeln!(text, "  lost      counters were lost {ago} s before that")?;
    }
    match header.members {
        0 => Ok(()),
        members => writeln!(text, "  members   {members}"),
    }
}
