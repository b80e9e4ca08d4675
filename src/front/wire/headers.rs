//! Headers for the answer to the client: the limit that stands for the whole answer, in numbers, and how long to wait.

use crate::front::proto::envoy::config::core::v3::HeaderValue;
use tidegate_engine::decision::Decision;

/// The names of the headers that tell a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitHeaders {
    /// Of N.
    pub limit: String,
    /// Of the hits that would still pass.
    pub remaining: String,
    /// Of the whole seconds until capacity comes back.
    pub reset: String,
}

const RETRY_AFTER: &str = "Retry-After";

/// The headers of a decision; none when no counter was asked.
pub(super) fn render(names: &LimitHeaders, decision: &Decision<'_>) -> Vec<HeaderValue> {
    let Some(tightest) = decision.tightest() else { return Vec::new() };
    let mut headers = vec![
        header(&names.limit, tightest.limit.requests().into()),
        header(&names.remaining, tightest.remaining().into()),
        header(&names.reset, tightest.reset_secs()),
    ];
    headers.extend(decision.retry_after_secs().map(|seconds| header(RETRY_AFTER, seconds)));
    headers
}

fn header(name: &str, number: u64) -> HeaderValue {
    HeaderValue { key: name.to_owned(), value: number.to_string(), ..HeaderValue::default() }
}
