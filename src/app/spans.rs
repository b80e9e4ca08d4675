//! Starts tracing: reads the collector's certificates and names this instance.

use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;

use crate::app::AppError;
use crate::configuration::Tracing;
use crate::spans::Tracer;
use tidegate_serve::metrics::{MetricType, Metrics};

/// The attribute that distinguishes the instances of a service.
const INSTANCE: &str = "service.instance.id";

/// Starts tracing if it is wanted, and shows counts of spans in metrics.
pub(super) fn start(tracing: Option<Tracing>, metrics: &Metrics) -> Result<Option<Tracer>, AppError> {
    let Some(Tracing { mut options, instance, mut collector, files }) = tracing else { return Ok(None) };
    collector.roots = read(files.roots)?;
    collector.identity = read(files.chain)?.zip(read(files.key)?);
    tracing::info!("tracing: to {} (TRACING_ENABLED)", collector.endpoint);
    options.resource.retain(|(name, _)| name != INSTANCE);
    options.resource.push((INSTANCE.to_owned(), instance.map_or_else(random_uuid, Ok)?));
    let tracer = Tracer::start(options, &collector)?;
    let help = "Spans that were exported (sent), whose export failed (refused), and for which the queue was full (dropped).";
    metrics.of(tracer.stats()).samples(
        MetricType::Counter,
        "tidegate_spans_total",
        help,
        |stats, samples| {
            samples.push(&[("outcome", "sent")], stats.sent.load(Relaxed));
            samples.push(&[("outcome", "refused")], stats.refused.load(Relaxed));
            samples.push(&[("outcome", "dropped")], stats.dropped.load(Relaxed));
        },
    );
    Ok(Some(tracer))
}

/// Sends the last spans.
pub(super) async fn finish(tracer: Option<Tracer>) {
    if let Some(tracer) = tracer {
        // It waits for the collector, whose I/O is done by this thread.
        let _ = tokio::task::spawn_blocking(move || tracer.finish()).await;
    }
}

/// The contents of the file, if one is named.
fn read(path: Option<PathBuf>) -> Result<Option<Vec<u8>>, AppError> {
    let read = |path: PathBuf| {
        tidegate_disk::read(&path)
            .map_err(|source| AppError::File { path: path.display().to_string(), source })
    };
    path.map(read).transpose()
}

/// A UUID of version 4.
fn random_uuid() -> Result<String, AppError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(std::io::Error::from)?;
    let bits = u128::from_be_bytes(bytes) & !(0xf << 76) & !(0b11 << 62) | 4 << 76 | 0b10 << 62;
    let hex = format!("{bits:032x}");
    Ok([&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_random_uuid_says_its_version() {
        let uuid = random_uuid().expect("random bytes");
        let lengths: Vec<usize> = uuid.split('-').map(str::len).collect();
        assert_eq!(lengths, [8, 4, 4, 4, 12]);
        assert!(uuid.as_bytes()[14] == b'4' && b"89ab".contains(&uuid.as_bytes()[19]), "{uuid}");
    }
}
