//! The status page, for people in a browser: one document with its styles and its script, and the data that the script
//! asks for once a second.
//!
//! In: the state of the process. Out: HTML, JSON. The browser may load and run nothing else: the policy names the
//! styles and the script by their hashes, and forbids that text becomes markup or code. All texts from rules and
//! requests are in the JSON, and the script sets them only as text.

use std::sync::{Arc, LazyLock};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http::header::{
    ACCEPT, CACHE_CONTROL, CONTENT_SECURITY_POLICY, REFERRER_POLICY, VARY, X_CONTENT_TYPE_OPTIONS,
    X_FRAME_OPTIONS,
};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use sha2::{Digest, Sha256};

use crate::gate::Reader;
use crate::page::{JSON, Page, page as page_of, parameter, text};
use crate::status::{Order, Rows, Status, View};
use tidegate_engine::text::{json_line, query_decoded};
use tidegate_serve::service::Snapshot;

const HTML: &str = "text/html; charset=utf-8";

const MARKUP: &str = include_str!("status/page.html");
const STYLE: &str = include_str!("status/page.css");
/// One script, in parts.
const SCRIPT: &str = concat!(
    include_str!("status/page.js"),
    include_str!("status/format.js"),
    include_str!("status/plots.js"),
    include_str!("status/overview.js"),
    include_str!("status/rules.js"),
    include_str!("status/details.js"),
    include_str!("status/ask.js"),
    include_str!("status/denied.js"),
    include_str!("status/admin.js"),
    include_str!("status/exceptions.js"),
    include_str!("status/exception_form.js"),
    include_str!("status/bans.js"),
    include_str!("status/updates.js"),
);

/// Limits in the result of a search, and series in one request.
const FOUND_MAX: usize = 15;
/// Bytes of the text of a search.
const SEARCH_BYTES_MAX: usize = 200;

/// The document and its policy.
static DOCUMENT: LazyLock<(String, HeaderValue)> = LazyLock::new(|| {
    let document = MARKUP.replacen("/* styles */", STYLE, 1).replacen("/* script */", SCRIPT, 1);
    let policy = format!(
        "default-src 'none'; script-src '{}'; style-src '{}'; connect-src 'self'; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
        hash(SCRIPT),
        hash(STYLE)
    );
    (document, HeaderValue::try_from(policy).expect("it is ASCII"))
});

/// The form in which a policy names a script or styles.
fn hash(text: &str) -> String {
    format!("sha256-{}", BASE64_STANDARD.encode(Sha256::digest(text)))
}

/// Whether the client prefers HTML: a browser does, curl does not.
pub(super) fn takes_html(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    accepted.flat_map(|value| value.split(',')).any(|range| {
        let mut parts = range.split(';').map(str::trim);
        let is_html = parts.next().is_some_and(|media| media.eq_ignore_ascii_case("text/html"));
        let is_refused = |part: &str| part.strip_prefix("q=").and_then(|q| q.parse().ok()) == Some(0.0_f32);
        is_html && !parts.any(is_refused)
    })
}

pub(super) fn page() -> Page {
    let (document, policy) = &*DOCUMENT;
    let mut page = guarded(page_of(StatusCode::OK, HTML, document.as_bytes()));
    page.headers_mut().insert(CONTENT_SECURITY_POLICY, policy.clone());
    page.headers_mut().insert(X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
    page.headers_mut().insert(VARY, HeaderValue::from_static("accept"));
    page
}

/// The data of the page, for this query.
pub(super) async fn data(status: &Arc<Status>, rules: Option<Snapshot>, query: &str, reader: Reader) -> Page {
    let found = match parameter(query, "find") {
        Some(wanted) => find(status, wanted).await,
        None => view(query, reader).map(|view| status.view(&view, rules.as_ref(), status.now_millis())),
    };
    match found {
        Ok(value) => guarded(page_of(StatusCode::OK, JSON, json_line(&value.to_string()).into_owned())),
        Err(expected) => text(StatusCode::BAD_REQUEST, expected),
    }
}

/// Searches limits by name, on a thread of its own, because there may be many.
async fn find(status: &Arc<Status>, wanted: &str) -> Result<serde_json::Value, &'static str> {
    let wanted = query_decoded(wanted).map_err(|_| "find is not percent-encoded UTF-8\n")?.into_owned();
    if wanted.len() > SEARCH_BYTES_MAX {
        return Err("find is longer than 200 bytes\n");
    }
    let status = Arc::clone(status);
    let finding = tokio::task::spawn_blocking(move || status.find(&wanted, FOUND_MAX));
    let found = finding.await.map_err(|_| "the search broke off\n")?;
    Ok(serde_json::json!({"found": found}))
}

fn view(query: &str, reader: Reader) -> Result<View, &'static str> {
    let number = |name| match parameter(query, name) {
        None => Ok(None),
        Some(text) => text.parse().map(Some).map_err(|_| "since and reloads are numbers\n"),
    };
    let rows = match (parameter(query, "rules"), parameter(query, "order")) {
        (Some(list), _) => Rows::These(series(list)?),
        (None, None) => Rows::First(Order::Denied),
        (None, Some(name)) => {
            Rows::First(Order::named(name).ok_or("order is none of denied, tight, near, busy\n")?)
        }
    };
    Ok(View {
        since: number("since")?.unwrap_or(0),
        rows,
        reloads_known: number("reloads")?,
        about: parameter(query, "about") == Some("1"),
        is_for_bearer: reader == Reader::Bearer,
    })
}

fn series(list: &str) -> Result<Vec<u32>, &'static str> {
    let numbers = list.split(',').filter(|number| !number.is_empty()).map(str::parse);
    let numbers: Result<Vec<u32>, _> = numbers.take(FOUND_MAX + 1).collect();
    let numbers = numbers.map_err(|_| "rules are numbers, separated by commas\n")?;
    if numbers.len() > FOUND_MAX { Err("rules are more than 15 numbers\n") } else { Ok(numbers) }
}

/// For this origin alone, and not to be cached.
fn guarded(mut page: Page) -> Page {
    let headers = [
        (CACHE_CONTROL, "no-store"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    ];
    for (name, value) in headers {
        page.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepts(accept: &str) -> bool {
        let value = HeaderValue::try_from(accept).expect("a header");
        takes_html(&HeaderMap::from_iter([(ACCEPT, value)]))
    }

    #[test]
    fn browsers_take_html_and_programs_do_not() {
        assert!(accepts("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"));
        assert!(accepts("application/json, Text/HTML;level=1;q=0.1"));
        for other in ["*/*", "text/plain", "text/*", "text/html;q=0", "text/html; q=0.0", "text/htmlx", ""] {
            assert!(!accepts(other), "{other}");
        }
        assert!(!takes_html(&HeaderMap::new()));
    }

    #[test]
    fn the_document_is_whole_and_small_and_loads_nothing() {
        let (document, policy) = &*DOCUMENT;
        assert!(document.len() < 150_000, "{} bytes", document.len());
        assert!(document.contains(SCRIPT) && document.contains(STYLE));
        let policy = policy.to_str().expect("ASCII");
        assert!(!policy.contains("unsafe") && !policy.contains('*') && !policy.contains("data:"), "{policy}");
        for outside in ["http://", "https://", "src=", "@import", "url("] {
            assert!(!document.replace("http://www.w3.org/2000/svg", "").contains(outside), "{outside}");
        }
        // What the policy would refuse anyway.
        for refused in
            ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", " style=", " onclick="]
        {
            assert!(!document.contains(refused), "{refused}");
        }
    }

    #[test]
    fn what_is_asked_for_is_checked() {
        let view = |query| view(query, Reader::Anybody);
        let asked = view("since=7&order=busy&reloads=2&about=1").expect("good");
        assert!(matches!(asked.rows, Rows::First(Order::Busy)));
        assert_eq!((asked.since, asked.reloads_known, asked.about), (7, Some(2), true));
        let asked = view("rules=3,1,").expect("good");
        assert!(matches!(asked.rows, Rows::These(series) if series == [3, 1]));
        assert!(matches!(view("").expect("good").rows, Rows::First(Order::Denied)));
        let many = format!("rules={}", "1,".repeat(FOUND_MAX + 1));
        for bad in ["since=x", "since=-1", "order=best", "rules=a", "rules=4294967296", "reloads=", &many] {
            assert!(view(bad).is_err(), "{bad}");
        }
    }

    #[tokio::test]
    async fn a_search_is_decoded_and_bounded() {
        let metrics = tidegate_serve::service::fixture::metrics();
        let status = crate::status::fixture::status(&metrics);
        assert_eq!(find(&status, "a%20b").await, Ok(serde_json::json!({"found": []})));
        assert!(find(&status, "%zz").await.is_err() && find(&status, &"x".repeat(201)).await.is_err());
    }
}
