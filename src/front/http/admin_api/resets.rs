//! Resets below a path: which there were, and another one.

use http::StatusCode;
use serde_json::{Value, json};

use super::{AdminApi, Answer, Problem, blocking, fields, invalid, lines, shown, word};
use crate::clock::Clock;
use crate::exceptions::{Author, Caller, ChangeError};
use crate::front::http::page::Page;
use crate::resets::{ResetError, id, path, path_json, read_id};
use crate::stamp;
use tidegate_engine::Timestamp;

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
        let epoch =
            match asked.get("id") {
                None => None,
                Some(id) => Some(id.as_str().and_then(read_id).ok_or_else(|| {
                    invalid("id: expected sixteen digits in hex, the nanoseconds since 1970")
                })?),
            };
        let wanted = self.resets.plan(path, epoch, Clock::start().now()).await?;
        let (number, rules) = (id(wanted.epoch), wanted.rules);
        if wanted.is_done {
            return Ok(shown(StatusCode::OK, &json!({"id": number, "done": "unchanged", "rules": rules})));
        }
        let mut what = path_json(&wanted.path);
        (what["id"], what["why"], what["rules"]) = (number.as_str().into(), why.into(), rules.into());
        let book = self.book.clone();
        let intend = move || book.audit().intend(&author, Clock::start().now(), "reset_below", what);
        let intended = blocking(intend).await?.map_err(ChangeError::from)?;
        let done = self.resets.begin(&wanted).await;
        let outcome = done.as_ref().map(|()| "done").map_err(ToString::to_string);
        let book = self.book.clone();
        blocking(move || book.audit().ended(intended, Clock::start().now(), outcome)).await?;
        done?;
        Ok(shown(StatusCode::OK, &json!({"id": number, "done": "reset", "rules": rules})))
    }
}

impl From<ResetError> for Problem {
    fn from(error: ResetError) -> Self {
        let status = match error {
            ResetError::NoRule => StatusCode::NOT_FOUND,
            ResetError::Full | ResetError::Older(_) => StatusCode::CONFLICT,
            ResetError::Future => StatusCode::BAD_REQUEST,
            ResetError::Redis(_) | ResetError::Untold(_) | ResetError::File(_) => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            ResetError::Thread(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self(status, error.to_string())
    }
}
