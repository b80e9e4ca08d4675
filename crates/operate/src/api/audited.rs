//! A change between the two lines of its audit: the plan, and the outcome.
//!
//! In: the caller, and a future that makes the change. Out: the result of the future. When the client goes away, the
//! change is still finished, and both lines are written.

use std::fmt::Display;
use std::sync::Arc;

use http::StatusCode;
use serde_json::Value;

use super::{AdminApi, Problem};
use crate::exceptions::Author;
use tidegate_serve::clock::wall;

/// What was changed, and the outcome in words, for the audit.
pub(super) type Made<T, E> = Result<(T, String), E>;

/// The outcome of a change that needs no further words.
pub(super) const DONE: &str = "done";

impl AdminApi {
    /// Makes a change if it can be audited.
    pub(super) async fn audited<T, E>(
        &self,
        author: Author,
        does: &'static str,
        what: Value,
        change: impl Future<Output = Made<T, E>> + Send + 'static,
    ) -> Result<T, Problem>
    where
        T: Send + 'static,
        E: Into<Problem> + Display + Send + 'static,
    {
        let book = Arc::clone(&self.book);
        let made = tokio::spawn(async move {
            let intended = book.intend(author, wall(), does, what).await?;
            let made = change.await;
            let outcome = made.as_ref().map(|(_, outcome)| outcome.clone()).map_err(ToString::to_string);
            book.ended(intended, wall(), outcome).await;
            Ok(made.map_err(Into::into)?.0)
        });
        made.await.map_err(|error| Problem(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?
    }
}
