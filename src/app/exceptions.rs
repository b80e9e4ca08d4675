//! Exceptions: where they come from at the start, and how each change comes into force.

use std::convert::Infallible;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use super::shared::server_options;
use crate::app::reload::Watching;
use crate::app::{AppError, Essential, dead, spawn_forever};
use crate::clock::wall;
use crate::configuration::{Admin, Redis};
use crate::source::file::{Contents, FileSource, Layout, SourceError};
use tidegate_operate::audit::Audit;
use tidegate_operate::exceptions::{Book, FILE_BYTES_MAX};
use tidegate_redis::{RedisOptions, RedisStore};
use tidegate_serve::metrics::{MetricType, Metrics};
use tidegate_serve::service::{EFFECTS, Service};

const SETTING: &str = "EXCEPTIONS_FILE";

/// How often the file is tried. An operator who needs an exception at night should not be the first to learn that it
/// cannot be kept.
const TRY_FILE: Duration = Duration::from_secs(60);

/// How long the end of the process waits for the last copy of shared exceptions.
const LAST_COPY_MAX: Duration = Duration::from_secs(2);

/// The exceptions of the previous process, and the audit of changes. With a Redis, all nodes share them.
pub(super) fn open(admin: &Admin, redis: Option<&Redis>) -> Result<Book, AppError> {
    let began = wall();
    let audit = match &admin.audit_log {
        Some(path) => Audit::to(path, began)?,
        None => Audit::in_memory(began),
    };
    let book = match &admin.exceptions_file {
        Some(path) => Book::open(path.clone(), audit)?,
        None => Book::new(audit),
    };
    let Some(redis) = redis else { return Ok(book) };
    // It has a connection of its own: reading 100,000 exceptions delays no decision.
    let options = server_options(redis.main.clone(), &redis.tls, redis.tls_any_name)?;
    let options = RedisOptions { workers: 1, pool_size: 1, ..options.without_counters() };
    Ok(book.shared_in(RedisStore::new(options)))
}

/// Reads the exceptions of all nodes, and puts them in force before any request is served.
pub(super) async fn read_first(book: &Arc<Book>, service: &Service) {
    book.read_first().await;
    book.install(service);
}

/// Reads the exceptions of a file that another program writes, now and after every change.
/// Fails when the file cannot be read, or does not contain exceptions.
pub(super) fn follow_file(tasks: &mut Essential, path: &Path, book: &Arc<Book>) -> Result<(), AppError> {
    let source = FileSource::new(Layout::Files(vec![path.to_owned()]), FILE_BYTES_MAX);
    let read = source.read();
    match &read {
        // Later a missing file ends none: a program that replaces a file may remove it first.
        Err(SourceError::Io { error, .. }) if error.kind() == io::ErrorKind::NotFound => (),
        read => take(book, path, read)?,
    }
    let (book, path) = (Arc::clone(book), path.to_owned());
    let mut watching = Watching::start(source, read.as_ref(), move |read| match take(&book, &path, &read) {
        Ok(()) => tracing::info!("{SETTING}: {} exceptions", book.version().count),
        Err(why) => tracing::error!("{why}; the exceptions before stay"),
    })?;
    tasks.spawn(async move {
        watching.died().await;
        dead("watching the exceptions", "its thread has died")
    });
    Ok(())
}

/// Uses what was read from a file.
fn take(book: &Book, path: &Path, read: &Result<Contents, SourceError>) -> Result<(), AppError> {
    let bad = |problem| AppError::BadFile { setting: SETTING, problem };
    let bytes = match read {
        Ok(contents) => contents.files.first().map(|file| file.bytes.as_slice()).unwrap_or_default(),
        Err(error) => return Err(bad(error.to_string())),
    };
    let text = str::from_utf8(bytes).map_err(|error| bad(error.to_string()))?;
    Ok(book.replace_all(path, text)?)
}

/// Keeps them in force, in step with other nodes, and copied to the file.
pub(super) fn keep(control: &mut Essential, book: &Arc<Book>, service: &Arc<Service>) {
    spawn_forever(control, Arc::clone(book).keep_in_force(Arc::clone(service)));
    spawn_forever(control, Arc::clone(book).follow());
    spawn_forever(control, Arc::clone(book).keep_copy());
    spawn_forever(control, try_file(Arc::clone(book)));
}

/// Copies them to the file once more. A disk that hangs does not keep the process from ending.
pub(super) async fn copy_at_the_end(book: &Arc<Book>) {
    if tokio::time::timeout(LAST_COPY_MAX, book.copy()).await.is_err() {
        tracing::warn!(
            "exceptions: not copied within {LAST_COPY_MAX:?}: EXCEPTIONS_FILE may miss the last changes"
        );
    }
}

/// Checks again and again whether the file can be written.
async fn try_file(book: Arc<Book>) -> Infallible {
    loop {
        tokio::time::sleep(TRY_FILE).await;
        let book = Arc::clone(&book);
        // If the check panicked, the next one reports what is wrong.
        let _ = tokio::task::spawn_blocking(move || book.check_file()).await;
    }
}

#[rustfmt::skip]
pub(super) fn register(metrics: &Metrics, book: &Arc<Book>, service: &Arc<Service>) {
    metrics
        .of(book)
        .value(MetricType::Gauge, "tidegate_exceptions", "Exceptions that were made and not ended.", |book| book.version().count)
        .samples(MetricType::Gauge, "tidegate_exceptions_up", "1 while the exceptions of all nodes are read from Redis. Without Redis there is none.", |book, samples| {
            book.is_in_step().iter().for_each(|&is_in_step| samples.push(&[], u64::from(is_in_step)));
        })
        .samples(MetricType::Gauge, "tidegate_exceptions_file_up", "0 while EXCEPTIONS_FILE cannot be written. Without the setting there is none.",
            |book, samples| book.is_file_up().iter().for_each(|&is_up| samples.push(&[], u64::from(is_up))));
    metrics.of(service).samples(MetricType::Counter, "tidegate_exceptions_met_total", "Descriptors that met an exception, by what it does.", |service, samples| {
        for (effect, met) in EFFECTS.into_iter().zip(service.exceptions_met()) {
            samples.push(&[("effect", effect)], met);
        }
    });
}

/// Shows requests to the admin API that were refused.
pub(super) fn register_refused(metrics: &Metrics, refused: &Arc<AtomicU64>) {
    metrics.of(refused).value(
        MetricType::Counter,
        "tidegate_admin_refused_total",
        "Requests to the admin API that were refused because of their token or origin.",
        |refused| refused.load(Relaxed),
    );
}
