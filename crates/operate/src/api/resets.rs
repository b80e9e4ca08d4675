//! Resets of counters, of one or of all below a path: the list, and a new one.

use std::sync::Arc;

use http::StatusCode;
use serde_json::{Value, json};

use super::{AdminApi, Answer, Problem, line, lines, shown};
use crate::audit::{Author, Caller, DONE, Does};
use crate::bodies::answered::{LastReset, ResetDone, ResetOutcome};
use crate::bodies::asked::ResetBelow;
use crate::bodies::values::{ResetId, Time};
use crate::page::Page;
use crate::resets::{ResetError, Wanted, Written, path_json};
use tidegate_engine::Timestamp;
use tidegate_serve::clock::wall;

impl AdminApi {
    /// The last reset of each path.
    pub(super) fn resets(&self) -> Page {
        let reset = |(path, epoch)| {
            let Written { domain, entries, counter } = Written::from(path);
            let (id, at) = (ResetId(epoch), Time(Timestamp::from_nanos(epoch)));
            line(&LastReset { domain, entries, counter, id, at })
        };
        lines(self.resets.all().iter().map(reset).collect::<Vec<_>>())
    }

    /// Sets all counters below a path to zero.
    pub(super) async fn reset_below(&self, asked: ResetBelow, caller: Caller) -> Answer {
        let (path, number) = (asked.path(), asked.id.map(|ResetId(number)| number));
        let author = Author { who: asked.who.into_string(), caller };
        let wanted = self.resets.plan(path, number, wall())?;
        let what = json!({"why": asked.why, "rules": wanted.rules});
        let done = self.begin(wanted, author, Does::ResetBelow, what).await?;
        Ok(shown(StatusCode::OK, &done))
    }

    /// Makes a planned reset, unless it is in force already. `what` goes into the audit, with the path and the
    /// number.
    pub(super) async fn begin(
        &self,
        wanted: Wanted,
        author: Author,
        does: Does,
        what: Value,
    ) -> Result<ResetDone, Problem> {
        let (id, rules) = (ResetId(wanted.epoch), wanted.rules);
        if wanted.is_done {
            self.resets.begin(&wanted).await?;
            return Ok(ResetDone { id, done: ResetOutcome::Unchanged, rules });
        }
        let mut shown = path_json(&wanted.path);
        shown["id"] = json!(id);
        for (name, value) in what.as_object().into_iter().flatten() {
            shown[name] = value.clone();
        }
        let resets = Arc::clone(&self.resets);
        let begin = async move { resets.begin(&wanted).await.map(|()| ((), DONE.to_owned())) };
        self.audited(author, does, shown, begin).await?;
        Ok(ResetDone { id, done: ResetOutcome::Reset, rules })
    }
}

impl From<ResetError> for Problem {
    fn from(error: ResetError) -> Self {
        let status = match error {
            ResetError::NoRule | ResetError::NoCounter => StatusCode::NOT_FOUND,
            ResetError::TooManyPaths | ResetError::TooManyCounters | ResetError::Older(_) => {
                StatusCode::CONFLICT
            }
            ResetError::Future => StatusCode::BAD_REQUEST,
            ResetError::Redis(_)
            | ResetError::Unknown { .. }
            | ResetError::Incomplete { .. }
            | ResetError::File(_) => StatusCode::SERVICE_UNAVAILABLE,
            ResetError::Thread => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self(status, error.to_string())
    }
}
