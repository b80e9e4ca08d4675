//! Headers of the answer to the client: the limit that represents the whole answer, in numbers, and how long to wait.

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
