//! The configuration of the filter and of its routes.
//!
//! In: JSON, which Envoy makes from a `google.protobuf.Struct`. Out: a [`Configured`], or a sentence that names the
//! field. Filters with the same settings and rules share one limiter: its counters, its leases and its thread.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Once};
use std::time::Duration;

use parking_lot::Mutex;
use program::inside::{self, Actions, Inside, Options, Refusal, RefusalCode, is_secret};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::abi::{Bell, Counter, Flow, Host, Stream};
use crate::doorbell::Doorbell;
use crate::stats::Stats;

/// Where an error or a warning about a route is.
const OF_A_ROUTE: &str = "the filter_config of a route";

/// How often the limiter's metrics are shown.
const STATS_INTERVAL: Duration = Duration::from_secs(1);

/// What a filter runs with.
pub struct Configured {
    pub inside: Arc<Inside>,
    pub domain: String,
    /// Its routes may have `rate_limits` of their own, so the domain needs none.
    rate_limits_of_routes: bool,
    /// Whether the rules had `rate_limits` for the domain when that was last checked. `None`: they had no such domain.
    described: Mutex<Option<bool>>,
    /// The status of a denial.
    pub deny_status: u16,
    /// Which responses get RateLimit headers.
    pub headers: Which,
    /// Which requests get dynamic metadata. Four values cost Envoy several times what the decision does.
    pub metadata: Which,
    pub counters: Counters,
    stats: Stats,
    /// Makes Envoy call to show the limiter's metrics.
    doorbell: Arc<Doorbell<Bell>>,
    /// The status for a request that could not be decided. `None`: it passes.
    error_status: Option<u16>,
    /// Requests that were not decided.
    failures: AtomicU64,
}

/// What a route changes.
pub struct Route {
    is_disabled: bool,
    domain: Option<String>,
    rate_limits: Option<Actions>,
    /// Its domain was looked up in the rules, once.
    is_looked_up: Once,
}

/// Which requests something is done for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Which {
    Never,
    #[default]
    Denied,
    Always,
}

impl Which {
    /// Whether it is done for a request that passes, or that does not.
    pub fn has(self, passes: bool) -> bool {
        match self {
            Self::Never => false,
            Self::Denied => !passes,
            Self::Always => true,
        }
    }
}

/// Counters in Envoy's statistics.
pub struct Counters {
    pub ok: Counter,
    pub over_limit: Counter,
    /// Requests that waited for Redis or for records.
    pub waited: Counter,
    /// Requests that could not be decided.
    pub error: Counter,
    /// Costs that could not be read at the end of a stream.
    pub cost_unknown: Counter,
    /// Panics in hooks.
    panics: Counter,
}

/// The configuration of a filter, as it is written.
struct Written {
    domain: String,
    /// The rules have no `rate_limits`: routes have their own, which Envoy reads later.
    rate_limits_of_routes: bool,
    /// A file or folder of rules, which is watched.
    rules: Option<String>,
    /// Or the rules themselves.
    rules_inline: Option<String>,
    settings: BTreeMap<String, Value>,
    deny_status: u16,
    headers: Which,
    metadata: Which,
    failure_mode_deny: bool,
    status_on_error: u16,
}

/// The fields of a `filter_config` that were not read yet.
struct Fields {
    left: BTreeMap<String, Value>,
    known: Vec<&'static str>,
    problems: Vec<String>,
}

impl Configured {
    /// Starts what a filter needs.
    /// Fails with what is wrong, and where.
    pub fn new(host: &Host, text: &[u8]) -> Result<Self, String> {
        let written = Written::read(text)?;
        let options = options(written.settings, written.rules, written.rules_inline)?;
        let inside = Inside::with(&options)?;
        let described = inside.describes(&written.domain);
        if !written.rate_limits_of_routes && described == Some(false) {
            return Err(format!(
                "domain: the rules of {:?} have no `rate_limits` (expected some, or rate_limits_of_routes: true if routes have \
                 their own)",
                written.domain
            ));
        }
        inside.warn_of_unknown(&written.domain, written.rate_limits_of_routes);
        let configured = Self {
            stats: Stats::new(host)?,
            doorbell: Arc::new(Doorbell::new(host.bell())),
            inside,
            domain: written.domain,
            rate_limits_of_routes: written.rate_limits_of_routes,
            described: Mutex::new(described),
            deny_status: written.deny_status,
            headers: written.headers,
            metadata: written.metadata,
            counters: Counters::new(host)?,
            error_status: written.failure_mode_deny.then_some(written.status_on_error),
            failures: AtomicU64::new(0),
        };
        let doorbell = Arc::clone(&configured.doorbell);
        configured.inside.every(STATS_INTERVAL, move || doorbell.ring(Bell::ring));
        Ok(configured)
    }

    /// Shows the limiter's metrics in Envoy's statistics, and so many more panics.
    pub fn show_stats(&self, host: &Host, panics: u64) {
        self.warn_of_reload();
        self.stats.show(host, &self.inside);
        if panics > 0 {
            host.add(self.counters.panics, std::iter::empty(), panics);
        }
    }

    /// Warns if rules that were reloaded no longer limit the domain.
    fn warn_of_reload(&self) {
        let now = self.inside.describes(&self.domain);
        let before = std::mem::replace(&mut *self.described.lock(), now);
        if before != now {
            // Routes with `rate_limits` of their own do not make up for those that the domain had.
            let has_own = self.rate_limits_of_routes && before != Some(true);
            self.inside.warn_of_unknown(&self.domain, has_own);
        }
    }

    /// The outcome of a request that was not decided. What a client sends must not lift its limits, so a request that
    /// cannot be described is never admitted.
    pub fn refused(&self, stream: &mut Stream<'_>, refusal: &Refusal) -> Flow {
        let failures = self.failures.fetch_add(1, Relaxed) + 1;
        if failures.is_power_of_two() {
            tracing::warn!("{failures} requests were not decided, the last because of: {refusal}");
        }
        match refusal.code {
            RefusalCode::InvalidArgument => self.answer_failure(stream, Some(400)),
            RefusalCode::ResourceExhausted => self.answer_failure(stream, Some(431)),
            _ => self.failed(stream),
        }
    }

    /// The outcome of a request after a failure of ours.
    pub fn failed(&self, stream: &mut Stream<'_>) -> Flow {
        self.answer_failure(stream, self.error_status)
    }

    fn answer_failure(&self, stream: &mut Stream<'_>, status: Option<u16>) -> Flow {
        stream.count(self.counters.error);
        let Some(status) = status else { return Flow::GoOn };
        stream.respond(status, &[], "", "tidegate_error");
        Flow::Answered
    }
}

/// Nobody calls Envoy about a configuration that is gone.
impl Drop for Configured {
    fn drop(&mut self) {
        self.doorbell.remove();
    }
}

impl Counters {
    fn new(host: &Host) -> Result<Self, String> {
        Ok(Self {
            ok: host.counter("tidegate_ok", &[])?,
            over_limit: host.counter("tidegate_over_limit", &[])?,
            waited: host.counter("tidegate_waited", &[])?,
            error: host.counter("tidegate_error", &[])?,
            cost_unknown: host.counter("tidegate_cost_unknown", &[])?,
            panics: host.counter("tidegate_panics", &[])?,
        })
    }
}

impl Written {
    fn read(text: &[u8]) -> Result<Self, String> {
        let mut fields = Fields::read(text)?;
        let written = Self {
            domain: fields.take("domain").unwrap_or_default(),
            rate_limits_of_routes: fields.take("rate_limits_of_routes").unwrap_or_default(),
            rules: fields.take("rules"),
            rules_inline: fields.take("rules_inline"),
            settings: fields.take("settings").unwrap_or_default(),
            deny_status: fields.status("deny_status", 429),
            headers: fields.take("headers").unwrap_or_default(),
            metadata: fields.take("metadata").unwrap_or_default(),
            failure_mode_deny: fields.take("failure_mode_deny").unwrap_or_default(),
            status_on_error: fields.status("status_on_error", 500),
        };
        fields.end()?;
        if written.domain.is_empty() {
            return Err("domain: missing or empty (expected a domain of the rules)".to_owned());
        }
        Ok(written)
    }
}

impl Route {
    /// What a route changes.
    /// Fails with what is wrong, and where.
    pub fn new(text: &[u8]) -> Result<Self, String> {
        Self::read(text).map_err(|why| format!("{OF_A_ROUTE}: {why}"))
    }

    fn read(text: &[u8]) -> Result<Self, String> {
        let mut fields = Fields::read(text)?;
        let domain = fields.take::<String>("domain");
        let rate_limits: Option<Value> = fields.take("rate_limits");
        let normalize_path = fields.take("normalize_path");
        let is_disabled = fields.take("disabled").unwrap_or(false);
        fields.end()?;
        if domain.as_deref() == Some("") {
            return Err("domain: empty (expected a domain of the rules)".to_owned());
        }
        if normalize_path.is_some() && rate_limits.is_none() {
            return Err("normalize_path without rate_limits (expected both)".to_owned());
        }
        match (domain.is_some() || rate_limits.is_some(), is_disabled) {
            (true, true) => {
                Err("disabled: true with domain or rate_limits (expected nothing else)".to_owned())
            }
            (false, false) => Err("nothing (expected domain, rate_limits, or disabled: true)".to_owned()),
            _ => {
                let read = |written| inside::rate_limits(written, normalize_path.unwrap_or(true));
                let (rate_limits, warnings) = rate_limits.as_ref().map(read).transpose()?.unzip();
                for warning in warnings.unwrap_or_default() {
                    tracing::warn!("{OF_A_ROUTE}: {warning}");
                }
                Ok(Self { is_disabled, domain, rate_limits, is_looked_up: Once::new() })
            }
        }
    }
}

impl Configured {
    /// The domain of a request, and its `rate_limits` if they are not those of the domain. `None`: its route is not
    /// limited.
    pub fn limits<'c>(&'c self, route: Option<&'c Route>) -> Option<(&'c str, Option<&'c Actions>)> {
        let Some(route) = route else { return Some((&self.domain, None)) };
        let own = route.rate_limits.as_ref();
        let domain = route.domain.as_deref().unwrap_or(&self.domain);
        (!route.is_disabled).then(|| {
            route.is_looked_up.call_once(|| self.inside.warn_of_unknown(domain, own.is_some()));
            (domain, own)
        })
    }
}

impl Fields {
    fn read(text: &[u8]) -> Result<Self, String> {
        // Envoy passes nothing if there is no `filter_config`.
        let text = if text.is_empty() { b"{}" } else { text };
        let left = serde_json::from_slice(text).map_err(|error| format!("filter_config: {error}"))?;
        Ok(Self { left, known: Vec::new(), problems: Vec::new() })
    }

    /// The value of a field, if it has one of this type.
    fn take<T: DeserializeOwned>(&mut self, name: &'static str) -> Option<T> {
        self.known.push(name);
        let value = serde_json::from_value(self.left.remove(name)?);
        value.map_err(|error| self.problems.push(format!("{name}: {error}"))).ok()
    }

    /// The status of an answer that is no success.
    fn status(&mut self, name: &'static str, default: u16) -> u16 {
        let status = self.take(name).unwrap_or(default);
        if !(400..600).contains(&status) {
            self.problems.push(format!("{name}: {status} (expected a status from 400 to 599)"));
        }
        status
    }

    /// Fails with all that is wrong with them.
    fn end(mut self) -> Result<(), String> {
        let known = self.known.join(", ");
        let unknown = |name| format!("unknown field `{name}` (expected {known})");
        self.problems.extend(self.left.keys().map(unknown));
        if self.problems.is_empty() { Ok(()) } else { Err(self.problems.join("; ")) }
    }
}

/// The options of the limiter.
fn options(
    settings: BTreeMap<String, Value>,
    path: Option<String>,
    rules: Option<String>,
) -> Result<Options, String> {
    let settings = settings.into_iter().map(setting).collect::<Result<BTreeMap<_, _>, _>>();
    let mut settings = settings?;
    let is_followed = settings.contains_key("CONFIG_TYPE");
    if settings.contains_key("CONFIG_PATH") {
        return Err("settings.CONFIG_PATH: expected rules".to_owned());
    }
    if usize::from(path.is_some()) + usize::from(rules.is_some()) + usize::from(is_followed) != 1 {
        return Err("expected one of rules, rules_inline and settings.CONFIG_TYPE".to_owned());
    }
    settings.extend(path.map(|path| ("CONFIG_PATH".to_owned(), path)));
    Ok(Options { settings, rules })
}

/// The text of a setting: numbers and booleans need no quotes.
fn setting((name, value): (String, Value)) -> Result<(String, String), String> {
    let text = match value {
        Value::String(text) => text,
        _ if is_secret(&name) => {
            return Err(format!(
                "settings.{name}: no text (expected quotes: a number may be written in another way)"
            ));
        }
        // JSON of a Struct has one kind of number: 5 may arrive as 5 or as 5.0.
        Value::Number(number) => match number.as_f64() {
            Some(whole) if whole.fract() == 0.0 => format!("{whole:.0}"),
            _ => number.to_string(),
        },
        Value::Bool(is_true) => is_true.to_string(),
        _ => return Err(format!("settings.{name}: expected a text, a number or a boolean")),
    };
    Ok((name, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_settings_are_texts_numbers_and_booleans() {
        let text =
            br#"{"domain": "a", "rules": "r", "settings": {"A": "1s", "B": 5.0, "C": 0.5, "D": true}}"#;
        let written = Written::read(text).expect("good");
        let options = options(written.settings, written.rules, None).expect("good");
        let settings: Vec<_> = options.settings.iter().map(|(name, value)| (&**name, &**value)).collect();
        assert_eq!(settings, [("A", "1s"), ("B", "5"), ("C", "0.5"), ("CONFIG_PATH", "r"), ("D", "true")]);
    }

    #[test]
    fn rules_come_from_one_place() {
        let settings = |name: &str| BTreeMap::from([(name.to_owned(), Value::from("x"))]);
        let some = || Some("r".to_owned());
        assert!(options(BTreeMap::new(), None, None).is_err());
        assert!(options(BTreeMap::new(), some(), some()).is_err());
        assert!(options(settings("CONFIG_TYPE"), some(), None).is_err());
        assert!(options(settings("CONFIG_PATH"), some(), None).is_err());
        assert!(options(settings("CONFIG_TYPE"), None, None).is_ok());
    }

    #[test]
    fn a_secret_is_a_text() {
        let number = BTreeMap::from([("REDIS_AUTH".to_owned(), Value::from(7))]);
        assert!(options(number, Some("r".to_owned()), None).is_err_and(|why| why.contains("REDIS_AUTH")));
    }

    #[test]
    fn every_problem_of_a_field_has_its_name() {
        let wrong = |text: &str| Written::read(text.as_bytes()).err().expect(text);
        assert_eq!(
            wrong(
                r#"{"domain": 7, "metadata": 1, "headers": "some", "deny_status": "x", "status_on_error": 200, "x": 1}"#
            ),
            "domain: invalid type: integer `7`, expected a string; \
             deny_status: invalid type: string \"x\", expected u16; \
             headers: unknown variant `some`, expected one of `never`, `denied`, `always`; \
             metadata: invalid type: integer `1`, expected string or map; \
             status_on_error: 200 (expected a status from 400 to 599); \
             unknown field `x` (expected domain, rate_limits_of_routes, rules, rules_inline, settings, deny_status, headers, metadata, \
             failure_mode_deny, status_on_error)"
        );
        assert_eq!(wrong(""), "domain: missing or empty (expected a domain of the rules)");
        assert!(wrong("[]").starts_with("filter_config: "), "{}", wrong("[]"));
        let list = BTreeMap::from([("REDIS_TIMEOUT".to_owned(), Value::Array(Vec::new()))]);
        let why = options(list, Some("r".to_owned()), None).expect_err("a list");
        assert_eq!(why, "settings.REDIS_TIMEOUT: expected a text, a number or a boolean");
    }

    #[test]
    fn a_route_chooses_a_domain_or_rate_limits_or_nothing() {
        let route = |text: &str| {
            Route::new(text.as_bytes())
                .map(|route| (route.domain, route.rate_limits.is_some(), route.is_disabled))
        };
        assert_eq!(route(r#"{"domain": "a"}"#), Ok((Some("a".to_owned()), false, false)));
        assert_eq!(route(r#"{"disabled": true}"#), Ok((None, false, true)));
        assert_eq!(
            route(r#"{"rate_limits": [{"actions": [{"remote_address": {}}]}]}"#),
            Ok((None, true, false))
        );
        assert!(
            route(r#"{"rate_limits": [{"actions": [{"remote_address": {}}]}], "normalize_path": false}"#)
                .is_ok()
        );
        for (bad, why) in [
            ("{}", "nothing (expected domain, rate_limits, or disabled: true)"),
            ("", "nothing"),
            (r#"{"domain": "a", "disabled": true}"#, "disabled: true with domain or rate_limits"),
            (r#"{"rate_limits": [], "disabled": true}"#, "disabled: true with"),
            (r#"{"domain": ""}"#, "domain: empty"),
            (r#"{"domains": "a"}"#, "unknown field `domains`"),
            (r#"{"domain": "a", "normalize_path": false}"#, "normalize_path without rate_limits"),
            (r#"{"rate_limits": []}"#, "rate_limits"),
            (r#"{"rate_limits": 5}"#, "rate_limits:1:"),
            (r#"{"rate_limits": [{"actions": [{"remote_adress": {}}]}]}"#, "unknown key `remote_adress`"),
            (
                r#"{"rate_limits": [{"actions": [{"source_cluster": {}}]}]}"#,
                "`source_cluster` of Envoy's is not supported",
            ),
        ] {
            assert!(route(bad).is_err_and(|said| said.contains(why)), "{bad}: {:?}", route(bad));
        }
    }
}
