//! Which events are emitted, and where they go.

use std::path::PathBuf;
use std::time::Duration;

use http::Uri;

use super::unless_empty;
use crate::settings::value::Secret;
use crate::settings::{Problem, Settings};
use tidegate_serve::events::{EventOptions, LinesTo};

/// Which events are emitted, and where they go: to at least one outlet.
#[derive(Clone)]
pub struct Events {
    /// Which kinds, and how many.
    pub options: EventOptions,
    /// Events show the entries of descriptors.
    pub shows_entries: bool,
    /// Where lines of JSON go.
    pub lines: Option<LinesTo>,
    pub webhook: Option<WebhookSettings>,
}

/// A webhook, without the contents of files.
#[derive(Clone)]
pub struct WebhookSettings {
    pub url: Uri,
    /// The proxy that connects to it.
    pub proxy: Option<Uri>,
    /// What signs requests.
    pub secret: Option<Secret>,
    /// The file of certificates that are trusted in addition to the system's.
    pub roots: Option<PathBuf>,
    /// How long an attempt may take.
    pub timeout: Duration,
    /// For how long a request is tried again.
    pub retry_time: Duration,
}

const URL: &str =
    "is not a URL of a web server (expected http://host:port/path or https://host/path, without a user)";
const PROXY: &str = "is not the URL of a proxy (expected http://host:port, without a user)";

pub(super) fn resolve(settings: &Settings, problems: &mut Vec<Problem>) -> Option<Events> {
    let lines = settings.events_log.as_deref().filter(|place| !place.is_empty()).map(LinesTo::parse);
    let webhook = webhook(settings, problems);
    (lines.is_some() || webhook.is_some()).then(|| Events {
        options: EventOptions {
            kinds: settings.events_kinds,
            near: settings.events_near.0,
            per_second_max: u32::try_from(settings.events_per_second.0).unwrap_or(u32::MAX),
            queue_max: settings.events_queue.0,
        },
        shows_entries: settings.keep_keys,
        lines,
        webhook,
    })
}

fn webhook(settings: &Settings, problems: &mut Vec<Problem>) -> Option<WebhookSettings> {
    // A URL may be a secret, so a bad one is not quoted.
    let mut url = |name: &str, text: Option<&str>, schemes: &[&str], expected: &str| {
        let url = web_url(text?, schemes);
        if url.is_none() {
            problems.push(Problem { name: name.to_owned(), what: expected.to_owned() });
        }
        url
    };
    let proxy = unless_empty(&settings.events_webhook_proxy);
    let proxy = url("EVENTS_WEBHOOK_PROXY", proxy, &["http"], PROXY);
    let webhook = unless_empty(&settings.events_webhook_url);
    Some(WebhookSettings {
        url: url("EVENTS_WEBHOOK_URL", webhook, &["http", "https"], URL)?,
        proxy,
        secret: settings.events_webhook_secret.clone().filter(|secret| !secret.0.is_empty()),
        roots: settings.events_webhook_cacert.as_ref().map(|path| path.0.clone()),
        timeout: settings.events_webhook_timeout,
        retry_time: settings.events_webhook_retry_time,
    })
}

/// A URL with one of these schemes, a host, and no user.
fn web_url(text: &str, schemes: &[&str]) -> Option<Uri> {
    let url: Uri = text.parse().ok()?;
    let has_user = url.authority()?.as_str().contains('@');
    let is_good = schemes.contains(&url.scheme_str()?) && !has_user && !url.host()?.is_empty();
    is_good.then_some(url)
}

#[cfg(test)]
mod tests {
    use crate::configuration::configured;

    const URL: &str = "EVENTS_WEBHOOK_URL";
    const PROXY: &str = "EVENTS_WEBHOOK_PROXY";

    #[test]
    fn events_are_sent_where_somebody_listens() {
        let outlets = |pairs: &[(&str, &str)]| {
            let events = configured(pairs).expect("good settings").events;
            events.map(|events| (events.lines.is_some(), events.webhook.is_some()))
        };
        assert_eq!(outlets(&[]), None);
        assert_eq!(outlets(&[("EVENTS_LOG", ""), (URL, "")]), None);
        assert_eq!(outlets(&[("EVENTS_LOG", "-")]), Some((true, false)));
        assert_eq!(outlets(&[(URL, "https://example.com/hook?key=1")]), Some((false, true)));
    }

    #[test]
    fn bad_urls_are_refused_and_not_quoted() {
        let refused = |pairs: &[(&str, &str)]| {
            let problems = configured(pairs).err().expect("refused");
            assert!(problems.iter().all(|problem| !problem.what.contains("hunter2")), "{problems:?}");
            problems.into_iter().map(|problem| problem.name).collect::<Vec<_>>()
        };
        for bad in
            ["hunter2", "/hunter2", "ftp://hunter2", "https://u:hunter2@example.com/", "http:///hunter2"]
        {
            assert_eq!(refused(&[(URL, bad)]), [URL], "{bad}");
        }
        let good = (URL, "https://example.com");
        for bad in ["https://proxy:1", "proxy:1", "http://u:hunter2@proxy:1"] {
            assert_eq!(refused(&[good, (PROXY, bad)]), [PROXY], "{bad}");
        }
        assert!(configured(&[good, (PROXY, "http://proxy:3128")]).is_ok());
    }
}
