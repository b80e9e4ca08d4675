//! Resets of counters, one or all below a path: which there were, and another one.

use std::sync::Arc;

use http::StatusCode;
use serde_json::{Value, json};

use super::audited::DONE;
use super::{AdminApi, Answer, Problem, fields, invalid, lines, shown, word};
use crate::exceptions::{Author, Caller};
use crate::page::Page;
use crate::resets::{ResetError, Wanted, id, path, path_json, read_id};
use tidegate_engine::Timestamp;
use tidegate_engine::rules::Epoch;
use tidegate_engine::stamp;
use tidegate_serve::clock::wall;

impl AdminApi {
    /// The last reset of each path.
    pub(super) fn resets(&self) -> Page {
        let reset = |(path, epoch)| {
            let mut line = path_json(path);
            line["id"] = id(epoch).into();
            line["at"] = stamp::show(Timestamp::from_nanos(epoch)).into();
            line.to_string()
        };
        lines(self.resets.all().iter().map(reset).collect::<Vec<_>>())
    }

    /// Begins all counters below a path anew.
    pub(super) async fn reset_below(&self, asked: &Value, caller: Caller) -> Answer {
        fields(asked, &["domain", "entries", "id", "who", "why"])?;
        let (author, why) = (Author { who: word(asked, "who")?, caller }, word(asked, "why")?);
        let path = path(asked).map_err(|error| invalid(&error))?;
        let wanted = self.resets.plan(path, number(asked)?, wall())?;
        let what = json!({"why": why, "rules": wanted.rules});
        let Done { id, done, rules } = self.begin(wanted, author, "reset_below", what).await?;
        Ok(shown(StatusCode::OK, &json!({"id": id, "done": done, "rules": rules})))
    }

    /// Does what was planned, unless it is done. `what` goes into the audit, with the path and the number.
    pub(super) async fn begin(
        &self,
        wanted: Wanted,
        author: Author,
        does: &'static str,
        what: Value,
    ) -> Result<Done, Problem> {
        let (number, rules) = (id(wanted.epoch), wanted.rules);
        if wanted.is_done {
            self.resets.begin(&wanted).await?;
            return Ok(Done { id: Some(number), done: "unchanged", rules });
        }
        let mut shown = path_json(&wanted.path);
        shown["id"] = number.as_str().into();
        for (name, value) in what.as_object().into_iter().flatten() {
            shown[name] = value.clone();
        }
        let resets = Arc::clone(&self.resets);
        let begin = async move { resets.begin(&wanted).await.map(|()| ((), DONE.to_owned())) };
        self.audited(author, does, shown, begin).await?;
        Ok(Done { id: Some(number), done: "reset", rules })
    }
}

/// What became of a reset.
pub(super) struct Done {
    /// Its number. `None`: hits were given back instead.
    pub(super) id: Option<String>,
    /// In one word.
    pub(super) done: &'static str,
    /// How many rules have counters there.
    pub(super) rules: usize,
}

/// The number that a reset is to have, if a request says it.
pub(super) fn number(asked: &Value) -> Result<Option<Epoch>, Problem> {
    let Some(id) = asked.get("id") else { return Ok(None) };
    let number = id.as_str().and_then(read_id);
    let expected = "id: expected sixteen digits in hex, the nanoseconds since 1970";
    number.map(Some).ok_or_else(|| invalid(expected))
}

impl From<ResetError> for Problem {
    fn from(error: ResetError) -> Self {
        let status = match error {
            ResetError::NoRule | ResetError::NoCounter => StatusCode::NOT_FOUND,
            ResetError::Full | ResetError::Older(_) => StatusCode::CONFLICT,
            ResetError::Future => StatusCode::BAD_REQUEST,
            ResetError::Redis(_) | ResetError::Unknown { .. } | ResetError::Lacking { .. } => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            ResetError::Unsent(_) | ResetError::File(_) => StatusCode::SERVICE_UNAVAILABLE,
            ResetError::Thread(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self(status, error.to_string())
    }
}
