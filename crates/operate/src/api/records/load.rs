//! A bulk load: lines of records as they arrive, stored in batches, each completely or not at all.
//!
//! In: a body of any length. Out: the number of loaded records, and what is wrong with which line. A batch with a bad
//! line is not stored; the others are. At most one batch is in memory.

use std::fmt::Display;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use http_body_util::BodyExt as _;
use hyper::body::{Body, Incoming};
use serde_json::json;
use tokio::time::timeout;

use super::super::unmet::{is_read, of_record};
use super::super::{AdminApi, Answer, Problem, blocking, invalid, shown};
use super::Reason;
use crate::audit::{Author, Caller, Does};
use crate::bodies::answered::{LineProblem, LineWarning, Loaded};
use crate::bodies::values::TEXT_BYTES_MAX;
use crate::page::parameter;
use crate::records::{RecordStore, StoreError};
use tidegate_engine::limit::SLOTS_MAX;
use tidegate_engine::rules::RuleSet;
use tidegate_engine::text::query_decoded;
use tidegate_records::{Format, Line, Reader, Record, RecordKey};
use tidegate_serve::service::Service;

const BATCH_LINES: u64 = 10_000;
/// How long the client may send nothing.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// The longest body, in bytes: 100,000,000 records and some.
const BODY_BYTES_MAX: u64 = 32 << 30;
/// Bytes that are read from the client before they are parsed.
const PIECE_BYTES: usize = 256 << 10;
/// Bad lines that the answer names. All are counted.
const PROBLEMS_MAX: usize = 100;
/// Records that no rule reads, with why. All are counted.
const WARNINGS_MAX: usize = 10;

/// A load that was asked for.
pub(super) struct Load {
    asked: Reason,
    format: Format,
}

/// The progress of a load.
struct Progress {
    service: Arc<Service>,
    reader: Option<Reader>,
    batch: RecordBatch,
    /// Batches that are full, and not stored yet.
    full: Vec<RecordBatch>,
    report: Loaded,
}

/// Lines that are stored together.
#[derive(Default)]
struct RecordBatch {
    lines: u64,
    records: Vec<(RecordKey, Record)>,
    has_bad: bool,
}

impl Load {
    /// Reads `format`, `who` and `why`.
    pub(super) fn of(query: &str, caller: Caller) -> Result<Self, Problem> {
        let text = |name: &str| {
            let text = query_decoded(parameter(query, name).unwrap_or_default());
            let text = text.ok().filter(|text| text.len() <= TEXT_BYTES_MAX);
            text.ok_or_else(|| invalid(&format!("{name}: is no text of at most {TEXT_BYTES_MAX} bytes")))
        };
        let named = parameter(query, "format").unwrap_or(Format::JsonLines.name());
        let format = Format::ALL.into_iter().find(|format| format.name() == named);
        let format = format.ok_or_else(|| invalid("format: expected json or csv"))?;
        let given = |name: &str| match text(name)? {
            text if text.is_empty() => Err(invalid(&format!("{name}: is missing"))),
            text => Ok(text.into_owned()),
        };
        let (author, why) = (Author { who: given("who")?, caller }, given("why")?);
        Ok(Self { asked: Reason { author, why }, format })
    }

    /// Loads the complete body. One load runs at a time.
    pub(super) async fn run(self, api: &AdminApi, records: Arc<RecordStore>, body: Incoming) -> Answer {
        let Ok(only) = Arc::clone(&api.loading).try_acquire_owned() else {
            return Err(Problem(
                StatusCode::CONFLICT,
                "another load is running (expected one at a time)".to_owned(),
            ));
        };
        let (format, service) = (self.format, Arc::clone(&api.service));
        let load = async move {
            let _only = only;
            let mut progress = Progress::new(format, service);
            let ended = progress.read(&records, body).await;
            let stopped = ended.as_ref().err().map(|Problem(_, why)| format!("; stopped: {why}"));
            let Loaded { loaded, not_loaded, bad, .. } = &progress.report;
            let outcome =
                format!("{loaded} loaded, {not_loaded} not, {bad} bad lines{}", stopped.unwrap_or_default());
            Ok(((progress.report, ended), outcome))
        };
        let what = json!({"format": format.name()});
        let (mut report, ended) = api.change_records(self.asked, Does::RecordsLoad, what, load).await?;
        let status = match ended {
            Ok(()) if report.bad == 0 => StatusCode::OK,
            Ok(()) => StatusCode::BAD_REQUEST,
            Err(Problem(status, why)) => {
                report.error = Some(why);
                status
            }
        };
        Ok(shown(status, &report))
    }
}

impl Progress {
    fn new(format: Format, service: Arc<Service>) -> Self {
        let reader = Some(Reader::new(format));
        Self { service, reader, batch: RecordBatch::default(), full: Vec::new(), report: Loaded::default() }
    }

    async fn read(
        &mut self,
        records: &RecordStore,
        mut body: impl Body<Data = Bytes, Error: Display> + Unpin,
    ) -> Result<(), Problem> {
        let (mut piece, mut all) = (Vec::new(), 0);
        loop {
            let frame = timeout(SILENCE_MAX, body.frame()).await;
            let frame = frame
                .map_err(|_| Problem(StatusCode::REQUEST_TIMEOUT, "the client fell silent".to_owned()))?;
            let frame = frame.transpose().map_err(|error| invalid(&error))?;
            let is_end = frame.is_none();
            let bytes = frame.and_then(|frame| frame.into_data().ok()).unwrap_or_default();
            all += bytes.len() as u64;
            if all > BODY_BYTES_MAX {
                let what = format!("more than {BODY_BYTES_MAX} bytes (expected several loads)");
                return Err(Problem(StatusCode::PAYLOAD_TOO_LARGE, what));
            }
            piece.extend_from_slice(&bytes);
            if piece.len() >= PIECE_BYTES || is_end {
                self.look_at(mem::take(&mut piece), is_end).await?;
                self.store(records, is_end).await?;
            }
            if is_end {
                return Ok(());
            }
        }
    }

    /// Parses the lines of these bytes, on a thread where that delays nobody.
    async fn look_at(&mut self, piece: Vec<u8>, is_end: bool) -> Result<(), Problem> {
        let Some(mut reader) = self.reader.take() else { return Ok(()) };
        let look = move || {
            let mut lines = Vec::new();
            reader.feed(&piece, &mut |line| lines.push(line));
            match is_end {
                true => {
                    reader.finish(&mut |line| lines.push(line));
                    (None, lines)
                }
                false => (Some(reader), lines),
            }
        };
        let (reader, lines) = blocking(look).await?;
        self.reader = reader;
        let service = Arc::clone(&self.service);
        service.with_rules(|rules| lines.into_iter().for_each(|line| self.take(line, rules)));
        Ok(())
    }

    fn warn(&mut self, line: u64, key: &RecordKey, record: &Record, rules: &RuleSet) {
        let is_unread = !is_read(key, rules);
        self.report.unread += u64::from(is_unread);
        // A smaller N fits all counters.
        let may_fit_in_part = record.anchor.is_some() || record.requests > SLOTS_MAX.into();
        if (is_unread || may_fit_in_part) && self.report.warnings.len() < WARNINGS_MAX {
            let warning = of_record(key, record, rules);
            self.report.warnings.extend(warning.map(|it| LineWarning { line, warning: Some(it) }));
        }
    }

    fn take(&mut self, line: Line, rules: Option<&RuleSet>) {
        self.batch.lines += 1;
        match line.read {
            Ok((key, record)) => {
                if let Some(rules) = rules {
                    self.warn(line.number, &key, &record, rules);
                }
                self.batch.records.push((key, record));
            }
            Err(error) => {
                self.batch.has_bad = true;
                self.report.bad += 1;
                if self.report.problems.len() < PROBLEMS_MAX {
                    let problem = error.to_string();
                    self.report.problems.push(LineProblem { line: line.number, problem });
                }
            }
        }
        if self.batch.lines == BATCH_LINES {
            self.full.push(mem::take(&mut self.batch));
        }
    }

    async fn store(&mut self, records: &RecordStore, is_end: bool) -> Result<(), StoreError> {
        if is_end {
            self.full.push(mem::take(&mut self.batch));
        }
        for batch in mem::take(&mut self.full) {
            let count = batch.records.len() as u64;
            if batch.has_bad || count == 0 {
                self.report.not_loaded += count;
                continue;
            }
            records.load(batch.records).await?;
            self.report.loaded += count;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures_util::{StreamExt as _, stream};
    use http_body_util::StreamBody;
    use hyper::body::Frame;

    use super::*;
    use tidegate_serve::service::fixture;

    /// Sends these lines, and then falls silent or ends. Returns what was loaded, and how it ended.
    async fn loaded(lines: &[&'static str], is_silent: bool) -> (Loaded, Result<(), Problem>) {
        let temporary = tempfile::tempdir().expect("a folder for the test");
        let records = RecordStore::in_folder(temporary.path(), || {}).expect("threads");
        records.open().await;
        let service = Arc::new(fixture::service(None, &fixture::metrics()));
        let mut progress = Progress::new(Format::JsonLines, service);
        let frame = |line: &'static str| Ok::<_, Infallible>(Frame::data(Bytes::from(line)));
        let frames = stream::iter(lines.iter().copied().map(frame));
        let silence = stream::pending().take(usize::from(is_silent));
        let ended = progress.read(&records, StreamBody::new(frames.chain(silence))).await;
        (progress.report, ended)
    }

    #[tokio::test]
    async fn a_line_may_arrive_in_parts_and_the_last_one_needs_no_end() {
        let lines = [
            r#"{"domain":"d","entries":[{"key":"tenant","value":"a"}],"#,
            "\"requests_per_unit\":5}\n",
            r#"{"domain":"d","entries":[{"key":"tenant","value":"b"}],"requests_per_unit":6}"#,
        ];
        let (report, ended) = loaded(&lines, false).await;
        assert!(ended.is_ok());
        assert_eq!((report.loaded, report.not_loaded, report.bad), (2, 0, 0));
        let (report, _) = loaded(&[lines[2], "\n{\n"], false).await;
        assert_eq!((report.loaded, report.not_loaded, report.bad), (0, 1, 1));
    }

    /// The clock of the runtime is paused: pauses pass at once.
    #[tokio::test(start_paused = true)]
    async fn a_client_that_falls_silent_is_not_waited_for() {
        let (report, ended) = loaded(&["{"], true).await;
        assert_eq!(ended.expect_err("it is silent").0, StatusCode::REQUEST_TIMEOUT);
        assert_eq!((report.loaded, report.bad), (0, 0));
    }
}
