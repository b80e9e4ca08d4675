//! The admin token in a file: created if there is none, read at the start, and again whenever the file changes.
//!
//! A bad new file is logged, and the token in force stays. Commands read the same file and never create it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use http::HeaderValue;

use crate::app::reload::Watching;
use crate::app::{AppError, Essential, dead};
use crate::clock::Clock;
use crate::configuration::{Admin, Configuration};
use crate::source::file::{Contents, FileSource, Layout, Reread, SourceError};
use tidegate_disk::{Disk, SystemDisk};
use tidegate_operate::gate::{AdminToken, Gate, TokenError};
use tidegate_serve::reload::{Reload, ReloadLog, Subject};

/// The longest file that is read.
const FILE_BYTES_MAX: usize = 4 << 10;
const SETTING: &str = "ADMIN_TOKEN_FILE";

/// Who may change state: the gate of the debug port, with the file of its token if there is one.
pub(super) struct GuardedAdmin {
    gate: Gate,
    file: Option<TokenFile>,
}

/// The file of the token.
struct TokenFile {
    path: PathBuf,
    source: FileSource,
    known: Result<Contents, SourceError>,
}

/// The header that sends the token of these settings to a limiter. `None`: they have no token.
/// Fails with what is wrong with the file that they name.
pub fn token_header(admin: &Admin) -> Result<Option<HeaderValue>, String> {
    let read = |path: &PathBuf| TokenFile::read(path).token();
    let token = match &admin.token {
        Some(token) => Some(token.clone()),
        None => admin.token_file.as_ref().map(read).transpose()?,
    };
    Ok(token.map(|token| token.header()))
}

impl GuardedAdmin {
    /// Takes the token of the settings, or reads its file, which is created if there is none.
    ///
    /// A file that is missing and cannot be created may appear later, as a Kubernetes secret does. Until then there
    /// is no token.
    pub(super) fn open(configuration: &Configuration) -> Result<Self, AppError> {
        let admin = &configuration.admin;
        let path = admin.token_file.as_deref().filter(|_| admin.token.is_none());
        let file = path.map(TokenFile::read_or_made);
        let token = match &file {
            Some(file) if file.is_missing() => None,
            Some(file) => {
                let bad = |problem| AppError::BadFile { setting: SETTING, problem };
                Some(file.token().map_err(bad)?)
            }
            None => admin.token.clone(),
        };
        Ok(Self {
            gate: Gate::new(configuration.debug_hosts(), token).with_names(&admin.certificate_names),
            file,
        })
    }

    /// The gate. Clones share the token.
    pub(super) fn gate(&self) -> Gate {
        self.gate.clone()
    }

    /// Uses every new token from now on, and remembers each change. The returned handle makes it read the file again.
    pub(super) fn keep(
        self,
        tasks: &mut Essential,
        reloads: &Arc<ReloadLog>,
        clock: Clock,
    ) -> io::Result<Option<Reread>> {
        let Self { gate, file } = self;
        let Some(TokenFile { path, source, known }) = file else { return Ok(None) };
        let reloads = Arc::clone(reloads);
        let mut watching = Watching::start(source, known.as_ref(), move |read| {
            let (in_force, what) = match token(&path, &read) {
                Ok(token) => {
                    gate.replace_token(token);
                    (true, format!("{SETTING}: the new token is in force"))
                }
                Err(why) => (false, format!("{SETTING}: {why}; the token in force stays")),
            };
            match in_force {
                true => tracing::info!("{what}"),
                false => tracing::error!("{what}"),
            }
            reloads.add(Reload::new(Subject::AdminToken, clock.now(), in_force, what));
        })?;
        let reread = watching.reread();
        tasks.spawn(async move {
            watching.died().await;
            dead("watching the admin token", "its thread has died")
        });
        Ok(Some(reread))
    }
}

impl TokenFile {
    fn read_or_made(path: &Path) -> Self {
        let file = Self::read(path);
        if !file.is_missing() {
            return file;
        }
        match make(path) {
            Ok(()) => tracing::info!("{SETTING}: made {} with a new token", path.display()),
            Err(why) => {
                tracing::warn!("{SETTING}: {why}; the admin API has no token until the file is there");
            }
        }
        Self::read(path)
    }

    fn read(path: &Path) -> Self {
        let source = FileSource::new(Layout::Files(vec![path.to_owned()]), FILE_BYTES_MAX);
        Self { path: path.to_owned(), known: source.read(), source }
    }

    fn is_missing(&self) -> bool {
        let missing = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
        matches!(&self.known, Err(SourceError::Io { error, .. }) if missing(error))
    }

    fn token(&self) -> Result<AdminToken, String> {
        token(&self.path, &self.known)
    }
}

/// The token in the contents of its file.
fn token(path: &Path, read: &Result<Contents, SourceError>) -> Result<AdminToken, String> {
    let contents = read.as_ref().map_err(ToString::to_string)?;
    let bytes = contents.files.first().map(|file| file.bytes.as_slice()).unwrap_or_default();
    if bytes.len() > FILE_BYTES_MAX {
        return Err(format!("{} is longer than {FILE_BYTES_MAX} bytes (expected a token)", path.display()));
    }
    AdminToken::of_file(bytes).map_err(|error: TokenError| format!("{} {error}", path.display()))
}

/// Writes a file with a new token, which nobody else may read.
fn make(path: &Path) -> Result<(), String> {
    let token = AdminToken::random().map_err(|error| error.to_string())?;
    let disk: &dyn Disk = &SystemDisk;
    let written = disk.replace(path, |file| writeln!(file, "{}", token.as_str()));
    written.map_err(|error| error.to_string())
}
