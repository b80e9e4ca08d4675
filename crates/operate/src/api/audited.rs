//! A change between the two lines of its audit: the plan, and the outcome.
//!
//! In: the caller, and a future that makes the change. Out: the result of the future. When the client goes away, the
//! change is still finished, and both lines are written.

use std::fmt::Display;
use std::sync::Arc;

use http::StatusCode;
use serde_json::Value;

use super::{AdminApi, Problem};
use crate::audit::{Author, Does};
use crate::exceptions::ChangeError;
use tidegate_redis::runtime::Tokio;
use tidegate_serve::clock::wall;

/// What was changed, and the outcome in words, for the audit.
pub(super) type Made<T, E> = Result<(T, String), E>;

impl AdminApi {
    /// Makes a change if it can be audited.
    pub(super) async fn audited<T, E>(
        &self,
        author: Author,
        does: Does,
        what: Value,
        change: impl Future<Output = Made<T, E>> + Send + 'static,
    ) -> Result<T, Problem>
    where
        T: Send + 'static,
        E: Into<Problem> + Display + Send + 'static,
    {
        let audit = Arc::clone(self.book.audit());
        let change = async move {
            let made = change.await;
            let outcome = made.as_ref().map(|(_, outcome)| outcome.clone()).map_err(ToString::to_string);
            (made.map(|(made, _)| made), outcome)
        };
        let made = tokio::spawn(async move { audit.around(&Tokio, author, wall, does, what, change).await });
        let made =
            made.await.map_err(|error| Problem(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
        made.map_err(ChangeError::from)?.map_err(Into::into)
    }
}
