//! What is wrong now, each in one sentence, the worst first.
//!
//! In: health, the last change of the rules, the stores, the last seconds. Out: sentences for people.

use serde_json::{Value, json};

use super::Parts;
use super::history::Sample;
use tidegate_engine::rules::StoreFailure;
use tidegate_engine::text::one_line;
use tidegate_engine::time::ceil_secs;
use tidegate_serve::health::Status;
use tidegate_serve::reload::{Reload, Subject};
use tidegate_serve::service::StaleMode;

/// Counters that take this share of their bound are worth a warning.
const STORE_FULL_PERCENT: u64 = 90;

/// What is wrong. Counters take `store_bytes`; `last` are the samples of the last seconds.
pub(super) fn troubles<'s>(
    parts: &Parts,
    store_bytes: u64,
    last: impl Iterator<Item = &'s Sample>,
) -> Vec<Value> {
    let reloads = parts.reloads.refused();
    let found = [not_serving(parts), redis(parts), failing(last)];
    let found = found.into_iter().chain(reloads.iter().map(refused)).chain([
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
            bad("health", &format!("This process tells proxies not to ask it: {why}."))
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
    use tidegate_serve::reload::Problem;

    fn texts(parts: &Parts, last: &[Sample]) -> Vec<String> {
        let found = troubles(parts, parts.store.bytes(), last.iter());
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
                "This process tells proxies not to ask it: starting.",
                "14 requests got an error within 2 s.",
                "The last change of the rules was refused. shop.yaml:3:1: unknown key `limt`",
                "The last change of the TLS files of the HTTP port was refused. HTTP_SERVER_TLS_CERT: bad",
                "Metrics have their built-in names. PROMETHEUS_MAPPER_YAML: cannot read it",
            ]
        );
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
