//! What is wrong now, each in one sentence, the worst first.
//!
//! In: health, the last change of the rules, the stores, the last seconds. Out: sentences for people.

use serde_json::{Value, json};

use super::history::Sample;
use super::{Parts, Recent};
use tidegate_engine::rules::StoreFailure;
use tidegate_engine::text::one_line;
use tidegate_engine::time::ceil_secs;
use tidegate_serve::health::Status;
use tidegate_serve::reload::{Reload, Subject};
use tidegate_serve::service::StaleMode;

/// When counters take this share of their bound, there is a warning.
const STORE_FULL_PERCENT: u64 = 90;

/// Samples, one a second, that show whether requests fail now.
const FAILING_SAMPLES: usize = 10;
/// Samples of a minute.
const MINUTE_SAMPLES: u64 = 60;

/// A rule that denies this share of its hits for a minute denies nearly all, which is seldom intended.
const NEARLY_ALL_PERCENT: u64 = 95;
/// With fewer hits in a minute there is no warning: one client that retries causes as many.
const NEARLY_ALL_HITS_MIN: u64 = 60;

/// When more descriptors than this share of the requests meet no rule, the rules or the proxy are probably wrong.
const UNMATCHED_PERCENT: u64 = 5;

/// The state of the last minute.
#[derive(Debug, Default)]
pub(super) struct Lately {
    samples: Vec<Sample>,
    /// The series that denied nearly all of their hits, with both numbers.
    denying: Vec<(u32, (u64, u64))>,
}

impl Lately {
    pub(super) fn of(Recent { history, rates, .. }: &Recent) -> Self {
        let samples = history.since(history.taken().saturating_sub(MINUTE_SAMPLES)).copied().collect();
        Self { samples, denying: rates.denying(NEARLY_ALL_PERCENT, NEARLY_ALL_HITS_MIN).collect() }
    }

    fn sum(&self, of: impl Fn(&Sample) -> u64) -> u64 {
        self.samples.iter().map(of).sum()
    }
}

/// What is wrong. Counters take `store_bytes`.
pub(super) fn troubles(parts: &Parts, store_bytes: u64, lately: &Lately) -> Vec<Value> {
    let reloads = parts.reloads.refused();
    let last = lately.samples.iter().rev().take(FAILING_SAMPLES);
    let found = [not_serving(parts), redis(parts), failing(last)];
    let found = found.into_iter().chain(reloads.iter().map(refused)).chain([
        denying(parts, lately),
        unmatched(lately),
        without_domain(lately),
        dropped(lately),
        resets(parts),
        records(parts),
        exceptions(parts),
        full(parts, store_bytes),
        cold(parts),
        lease_times(parts),
    ]);
    found.flatten().collect()
}

fn bad(about: &str, text: &str) -> Option<Value> {
    Some(json!({"level": "bad", "about": about, "text": one_line(text)}))
}

fn warning(about: &str, text: &str) -> Option<Value> {
    Some(json!({"level": "warning", "about": about, "text": one_line(text)}))
}

fn not_serving(parts: &Parts) -> Option<Value> {
    match parts.health.status() {
        Status::Serving => None,
        Status::NotServing(why) => {
            bad("health", &format!("Proxies are asked not to use this process: {why}."))
        }
        Status::Draining => warning("health", "This process is ending."),
    }
}

fn redis(parts: &Parts) -> Option<Value> {
    let (_, mode) = parts.shared.as_ref()?;
    let trouble = parts.health.degraded()?;
    let gets = match mode {
        StoreFailure::Error => "requests for counters there get an error",
        StoreFailure::Deny => "requests for counters there are denied",
        StoreFailure::Allow => "requests for counters there pass, uncounted",
        StoreFailure::Local => "this node decides alone, with its share of each limit",
    };
    bad("redis", &format!("No answer from {trouble}. Meanwhile {gets}, unless their rule says otherwise."))
}

fn resets(parts: &Parts) -> Option<Value> {
    let (shared, _) = parts.shared.as_ref()?;
    let troubles = shared.epoch_troubles();
    let (_, first) = troubles.first()?;
    let more = match troubles.len() {
        1 => String::new(),
        count => format!(" So it is with {} more servers.", count - 1),
    };
    warning("resets", &format!("Resets of counters in Redis: {first}.{more}"))
}

fn records(parts: &Parts) -> Option<Value> {
    let (is_up, mode) = parts.records.as_ref()?;
    if is_up() {
        return None;
    }
    let gets = match mode {
        StaleMode::Rule | StaleMode::Last => "have the limit of their rule",
        StaleMode::Deny => "are denied",
    };
    let text = format!(
        "The store of records does not answer. Keys whose record is not known {gets} (LIMITS_STALE_MODE)."
    );
    bad("records", &text)
}

fn exceptions(parts: &Parts) -> Option<Value> {
    warning("exceptions", &(parts.exceptions_trouble)()?)
}

fn failing<'s>(last: impl Iterator<Item = &'s Sample>) -> Option<Value> {
    let (mut failed, mut millis) = (0_u64, 0_u64);
    for sample in last {
        failed += sample.failed;
        millis += sample.span_millis;
    }
    let seconds = millis.div_ceil(1_000).max(1);
    match failed {
        0 => None,
        1 => bad("errors", &format!("1 request got an error within {seconds} s.")),
        _ => bad("errors", &format!("{failed} requests got an error within {seconds} s.")),
    }
}

fn denying(parts: &Parts, lately: &Lately) -> Option<Value> {
    // SHADOW_MODE denies nothing.
    lately.samples.iter().any(|sample| sample.over_limit > 0).then_some(())?;
    let (series, (hits, denied)) = lately.denying.iter().max_by_key(|(_, (_, denied))| *denied)?;
    let (domain, path) = parts.metrics.limit_name(*series as usize)?;
    let more = match lately.denying.len() - 1 {
        0 => String::new(),
        1 => " So it is with 1 more rule.".to_owned(),
        more => format!(" So it is with {more} more rules."),
    };
    warning(
        "denials",
        &format!("{denied} of {hits} hits of the last minute were over the limit of {domain}.{path}.{more}"),
    )
}

fn unmatched(lately: &Lately) -> Option<Value> {
    let count = lately.sum(|sample| sample.without_rule.in_domain);
    let requests = lately.sum(|sample| sample.ok + sample.over_limit + sample.failed);
    (count * 100 > requests * UNMATCHED_PERCENT).then_some(())?;
    let then = "They pass. The log names the first of each kind (`no rule: …`).";
    warning(
        "unmatched",
        &format!("Descriptors of the last minute that met no rule of their domain: {count}. {then}"),
    )
}

fn without_domain(lately: &Lately) -> Option<Value> {
    match lately.sum(|sample| sample.without_rule.without_domain) {
        0 => None,
        count => {
            let then = "They pass. ratelimit_service_rate_limit_domain_not_found names the domain.";
            let text = format!("Descriptors of the last minute whose domain has no rules: {count}. {then}");
            warning("domain", &text)
        }
    }
}

fn dropped(lately: &Lately) -> Option<Value> {
    match lately.sum(|sample| sample.events_dropped) {
        0 => None,
        count => {
            let why = "The log says why; EVENTS_QUEUE is the bound.";
            warning("events", &format!("Events that were dropped in the last minute: {count}. {why}"))
        }
    }
}

fn refused(Reload { subject, what, problems, .. }: &Reload) -> Option<Value> {
    let why = problems.first().map_or(what, |problem| &problem.text);
    match subject {
        Subject::Rules => bad("rules", &format!("The last change of the rules was refused. {why}")),
        Subject::GrpcTls | Subject::HttpTls | Subject::DebugTls => {
            bad("tls", &format!("The last change of the {} was refused. {why}", subject.name()))
        }
        Subject::AdminToken => {
            bad("token", &format!("The last change of the admin token was refused. {why}"))
        }
        // The start went on without it.
        Subject::Mapping => warning("mapping", &format!("Metrics have their built-in names. {why}")),
    }
}

fn full(parts: &Parts, bytes: u64) -> Option<Value> {
    let max = parts.about.store_bytes_max.max(1);
    let percent = bytes.saturating_mul(100) / max;
    (percent >= STORE_FULL_PERCENT).then_some(())?;
    let what = "At the bound, STORE_FULL_MODE says what requests for new counters get.";
    bad("memory", &format!("Counters take {percent} % of MAX_COUNTER_BYTES. {what}"))
}

fn cold(parts: &Parts) -> Option<Value> {
    let (cold, lost) = match &parts.shared {
        Some((shared, _)) => (shared.coldness(), "Redis lost counters. They"),
        None => (*parts.store.coldness(), "Counters were lost at the start. They"),
    };
    match ceil_secs(cold.until().nanos_since(parts.about.clock.now())) {
        0 => None,
        seconds => {
            warning("cold", &format!("{lost} count as full for {seconds} s more at most (COLD_START=deny)."))
        }
    }
}

fn lease_times(parts: &Parts) -> Option<Value> {
    let [own, longest] = parts.shared.as_ref()?.0.lease_times_differ()?;
    let differ = format!("Nodes differ in REDIS_LEASE_TIME: {own:?} here, {longest:?} is the longest.");
    let then = "Set the same on all: after a loss, counters count as full for the longest (COLD_START=deny).";
    warning("cold", &format!("{differ} {then}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::fixture::parts;
    use tidegate_engine::key::Key;
    use tidegate_engine::limit::{Algorithm, Limit};
    use tidegate_engine::time::{SECOND_NANOS, Timestamp};
    use tidegate_serve::metrics::WithoutRule;
    use tidegate_serve::reload::Problem;

    fn texts(parts: &Parts, last: &[Sample]) -> Vec<String> {
        texts_of(parts, &Lately { samples: last.to_vec(), ..Lately::default() })
    }

    fn texts_of(parts: &Parts, lately: &Lately) -> Vec<String> {
        let found = troubles(parts, parts.store.bytes(), lately);
        found.iter().map(|trouble| trouble["text"].as_str().unwrap_or_default().to_owned()).collect()
    }

    #[test]
    fn nothing_is_wrong_with_a_good_process() {
        let parts = parts();
        parts.health.serve();
        assert_eq!(texts(&parts, &[Sample::default()]), [""; 0]);
    }

    #[test]
    fn what_is_wrong_is_said_in_order() {
        let parts = parts();
        let problem = Problem { text: "shop.yaml:3:1: unknown key `limt`".to_owned(), excerpt: None };
        let refused = |subject, what| Reload::new(subject, Timestamp::from_secs(1), false, what);
        parts.reloads.add(Reload { problems: vec![problem], ..refused(Subject::Rules, "refused") });
        parts.reloads.add(refused(Subject::HttpTls, "HTTP_SERVER_TLS_CERT: bad"));
        parts.reloads.add(refused(Subject::Mapping, "PROMETHEUS_MAPPER_YAML: cannot read it"));
        let last = Sample { failed: 7, span_millis: 1_000, ..Sample::default() };
        assert_eq!(
            texts(&parts, &[last, last]),
            [
                "Proxies are asked not to use this process: starting.",
                "14 requests got an error within 2 s.",
                "The last change of the rules was refused. shop.yaml:3:1: unknown key `limt`",
                "The last change of the TLS files of the HTTP port was refused. HTTP_SERVER_TLS_CERT: bad",
                "Metrics have their built-in names. PROMETHEUS_MAPPER_YAML: cannot read it",
            ]
        );
    }

    #[test]
    fn requests_that_nobody_meant_are_said() {
        let parts = parts();
        parts.health.serve();
        let rules = "
domain: shop
descriptors:
  - { key: user, rate_limit: { unit: day, requests_per_unit: 1 } }
";
        let _service = tidegate_serve::service::fixture::service(Some(rules), &parts.metrics);
        let series =
            (0..parts.metrics.limit_series()).find(|it| parts.metrics.limit_name_holds(*it, "shop.user"));
        let series = series.expect("it is there") as u32;
        let without_rule = WithoutRule { in_domain: 6, without_domain: 2 };
        let sample = Sample { over_limit: 99, ok: 1, without_rule, events_dropped: 3, ..Sample::default() };
        let lately = Lately { samples: vec![sample], denying: vec![(series, (100, 99)), (0, (1, 1))] };
        assert_eq!(
            texts_of(&parts, &lately),
            [
                "99 of 100 hits of the last minute were over the limit of shop.user. So it is with 1 more rule.",
                "Descriptors of the last minute that met no rule of their domain: 6. They pass. The log names the first of each \
                 kind (`no rule: …`).",
                "Descriptors of the last minute whose domain has no rules: 2. They pass. \
                 ratelimit_service_rate_limit_domain_not_found names the domain.",
                "Events that were dropped in the last minute: 3. The log says why; EVENTS_QUEUE is the bound.",
            ]
        );
        let few = WithoutRule { in_domain: 5, without_domain: 0 };
        let shadowed = Sample { ok: 100, without_rule: few, ..Sample::default() };
        assert_eq!(texts_of(&parts, &Lately { samples: vec![shadowed], ..lately }), [""; 0]);
    }

    #[test]
    fn thresholds_are_those_of_the_alerts() {
        let alerts = include_str!("../../../../packaging/observability/tidegate.rules.yml");
        let expression = |alert: &str| {
            let (_, rest) = alerts.split_once(&format!("- alert: {alert}\n")).expect(alert);
            rest.split_once("labels:").expect("an alert has labels").0
        };
        let share = |percent: u64| percent as f64 / 100.0;
        let over =
            |alert, sign, percent| expression(alert).contains(&format!(" {sign} {}\n", share(percent)));
        assert!(over("TidegateRuleDeniesNearlyAll", ">=", NEARLY_ALL_PERCENT));
        assert!(over("TidegateUnmatchedDescriptors", ">", UNMATCHED_PERCENT));
    }

    #[test]
    fn exceptions_that_are_not_shared_as_they_should_be_are_said() {
        let mut parts = parts();
        parts.health.serve();
        parts.exceptions_trouble = Box::new(|| Some("Exceptions have no copy.\nIt is full.".to_owned()));
        assert_eq!(texts(&parts, &[]), ["Exceptions have no copy.\\nIt is full."]);
    }

    #[test]
    fn full_memory_is_said_before_it_is_full() {
        let mut parts = parts();
        parts.health.serve();
        let limit = Limit::new(Algorithm::FixedWindow, 10, SECOND_NANOS);
        for key in 1..100 {
            parts.store.take(&limit, Key(key << 64 | key), 1, Timestamp::from_secs(1));
        }
        parts.about.store_bytes_max = parts.store.bytes() * 100 / 80;
        assert_eq!(texts(&parts, &[]), [""; 0]);
        parts.about.store_bytes_max = parts.store.bytes() * 100 / 95;
        assert!(
            texts(&parts, &[])[0].starts_with("Counters take 95 % of MAX_COUNTER_BYTES."),
            "{:?}",
            texts(&parts, &[])
        );
    }
}
