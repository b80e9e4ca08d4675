//! Headers of the answer to the client, as messages. Settings name those about the tightest limit.

use crate::front::client_answer::{Draft, HeadersFormat};
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
    draft: Option<&Draft>,
) -> Vec<HeaderValue> {
    let Some(tightest) = decision.tightest() else { return Vec::new() };
    let mut headers = Vec::new();
    if format.is_legacy() {
        headers.push(header(&names.limit, tightest.limit.requests()));
        headers.push(header(&names.remaining, tightest.remaining()));
        headers.push(header(&names.reset, tightest.reset_secs()));
    }
    headers.extend(decision.retry_after_secs().map(|seconds| header(RETRY_AFTER, seconds)));
    // No Content-Type: where the proxy does not enforce a denial, it adds these headers to the application's answer.
    let fields = draft.into_iter().flat_map(Draft::headers);
    headers.extend(fields.map(|(name, field)| header(name.as_str(), field.to_str().expect("it is ASCII"))));
    headers
}

fn header(name: &str, value: impl ToString) -> HeaderValue {
    HeaderValue { key: name.to_owned(), value: value.to_string(), ..HeaderValue::default() }
}
