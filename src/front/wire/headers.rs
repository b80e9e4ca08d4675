//! Headers of the answer to the client, as messages. Settings name those about the tightest limit.

use http::header::CONTENT_TYPE;

use crate::front::client_answer::{Draft, HeadersFormat, PROBLEM_JSON};
use crate::front::proto::envoy::config::core::v3::HeaderValue;
use tidegate_engine::decision::Decision;

/// The names of the headers of a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitHeaders {
    /// The header of N.
    pub limit: String,
    /// The header of the hits that would still pass.
    pub remaining: String,
    /// The header of the whole seconds until capacity comes back.
    pub reset: String,
}

const RETRY_AFTER: &str = "Retry-After";

/// The headers of a decision. None if no counter was asked.
pub(super) fn render(
    names: &LimitHeaders,
    format: HeadersFormat,
    decision: &Decision<'_>,
    draft: &Draft,
) -> Vec<HeaderValue> {
    let Some(tightest) = decision.tightest() else { return Vec::new() };
    let mut headers = Vec::new();
    if format.is_legacy() {
        headers.push(header(&names.limit, tightest.limit.requests()));
        headers.push(header(&names.remaining, tightest.remaining()));
        headers.push(header(&names.reset, tightest.reset_secs()));
    }
    headers.extend(decision.retry_after_secs().map(|seconds| header(RETRY_AFTER, seconds)));
    headers.extend(draft.headers().map(|(name, field)| header(name.as_str(), field)));
    headers.extend(draft.problem.as_ref().map(|_| header(CONTENT_TYPE.as_str(), PROBLEM_JSON)));
    headers
}

fn header(name: &str, value: impl ToString) -> HeaderValue {
    HeaderValue { key: name.to_owned(), value: value.to_string(), ..HeaderValue::default() }
}
