//! The state of the process as JSON.
//!
//! In: what to show ([`View`]). Out: one value, of some kilobytes: the caller says which samples it has already, and
//! gets the later ones. Texts that come from rules or requests are one line each; the page must still set them as
//! text.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use serde_json::{Value, json};

use super::history::Sample;
use super::rates::{Hits, Order, STEP_MILLIS, TOP};
use super::troubles::{Lately, troubles};
use super::{ExceptionsNow, Recent, Setting, Status, StoreSize};
use tidegate_engine::request::{Entry, RequestBuf};
use tidegate_engine::rule::Rule;
use tidegate_engine::text::{cut, one_line};
use tidegate_redis::{Contact, Failure, RedisStore};
use tidegate_serve::bans::SeenBan;
use tidegate_serve::clock::Clock;
use tidegate_serve::denied::DeniedKey;
use tidegate_serve::reload::{Problem, Reload};
use tidegate_serve::service::Snapshot;

/// Denied keys that are shown.
const DENIED_MAX: usize = 12;

/// Bans that are shown.
const BANS_MAX: usize = 50;

/// Characters of a name that are shown.
const NAME_CHARS_MAX: usize = 300;

/// What to show.
#[derive(Clone, Debug)]
pub struct View {
    /// The number of the last sample that the caller has; 0: none.
    pub since: u64,
    /// Which series of limits.
    pub rows: Rows,
    /// How many changes of rules and other files the caller knows; if there are no others, they are left out.
    pub reloads_known: Option<u64>,
    /// Whether to include what does not change.
    pub about: bool,
    /// Whether it is for a bearer of the admin token, who may see values of requests.
    pub is_for_bearer: bool,
}

/// Series of limits.
#[derive(Clone, Debug)]
pub enum Rows {
    /// The first in this order.
    First(Order),
    /// Those with these numbers.
    These(Vec<u32>),
}

impl Status {
    /// The state of the process, `now_millis` after its start. `rules` are those in force.
    pub fn view(&self, view: &View, rules: Option<&Snapshot>, now_millis: u64) -> Value {
        let mut recent = self.recent.lock();
        recent.viewed_millis = Some(now_millis);
        let parts = &self.parts;
        let answered = parts.metrics.answered();
        let (reloads, lately) = (parts.reloads.count(), Lately::of(&recent));
        let mut shown = json!({
            "process": process_id(parts.about.clock, parts.about.started),
            "now": now_millis,
            "troubles": troubles(parts, recent.size.bytes, &lately),
            "taken": recent.history.taken(),
            "samples": recent.history.since(view.since).map(sample).collect::<Vec<_>>(),
            "minutes": recent.history.minutes_since(view.since).map(sample).collect::<Vec<_>>(),
            "totals": {
                "ok": answered.ok,
                "over_limit": answered.over_limit,
                "failed": answered.failed,
            },
            "rules": self.rules(&mut recent, &view.rows, rules, now_millis),
            "store": self.store(recent.size),
            "redis": self.redis(&recent),
            "connections": (parts.connections)(),
            "is_for_bearer": view.is_for_bearer,
            "denied": self.denied(&recent, view, now_millis),
            "bans": self.bans(view),
            "exceptions": parts.exceptions.as_ref().map(|now| exceptions(now())),
            "reloads_known": reloads,
        });
        if view.reloads_known != Some(reloads) {
            shown["reloads"] = parts.reloads.all().iter().map(reload).collect();
        }
        if view.about {
            shown["about"] = self.about(rules);
        }
        shown
    }

    fn about(&self, rules: Option<&Snapshot>) -> Value {
        let about = &self.parts.about;
        let example = rules.and_then(|rules| {
            let example = rules.rules().example()?;
            Some(json!({"domain": &*example.domain, "entries": example.entries}))
        });
        let setting = |setting: &Setting| json!({"name": setting.name, "value": one_line(&setting.value), "origin": setting.origin});
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "workers": about.workers,
            "settings": about.settings.iter().map(setting).collect::<Vec<_>>(),
            "example": example,
            "step_millis": STEP_MILLIS,
            "rows": TOP,
        })
    }

    fn rules(&self, recent: &mut Recent, rows: &Rows, rules: Option<&Snapshot>, now_millis: u64) -> Value {
        let series = match rows {
            Rows::First(order) => recent.rates.top(*order).to_vec(),
            Rows::These(series) => {
                recent.rates.follow(series, now_millis);
                series.clone()
            }
        };
        json!({
            "hash": rules.map(|rules| &**rules.rules().hash()),
            "limits": rules.map_or(0, |rules| rules.rules().limits().count()),
            "domains": rules.map_or(0, |rules| rules.rules().domains().count()),
            "rows": series.iter().filter_map(|series| self.row(recent, *series, rules)).collect::<Vec<_>>(),
        })
    }

    fn row(&self, recent: &Recent, series: u32, rules: Option<&Snapshot>) -> Option<Value> {
        let metrics = &self.parts.metrics;
        let counts = metrics.limit_counts(series as usize)?;
        let (domain, path) = metrics.limit_name(series as usize)?;
        let rate = recent.rates.rate(series);
        let limits = rules.map(|rules| {
            let all = metrics.rules_of(rules.by_series(), series as usize);
            let all = all.map(|id| &rules.rules().rules()[id]);
            let mut counting = all.filter(|rule| rule.is_limit());
            (counting.next().map(limit), counting.count())
        });
        let (limit, more) = limits.unwrap_or_default();
        Some(json!({
            "id": series,
            "domain": shown(&domain),
            "path": shown(&path),
            "limit": limit,
            "more": more,
            "hits": counts.hits,
            "over": counts.over,
            "near": counts.near,
            "shadow": counts.shadow,
            "rate": [rounded(rate.hits), rounded(rate.over), rounded(rate.near)],
            "plot": recent.rates.plot(series).map(|plot| plot.steps.iter().map(step).collect::<Vec<_>>()),
        }))
    }

    fn store(&self, size: StoreSize) -> Value {
        let full = self.parts.store.full_total();
        json!({
            "counters": size.counters,
            "bytes": size.bytes,
            "bytes_max": self.parts.about.store_bytes_max,
            "full": full.deny + full.allow,
        })
    }

    fn redis(&self, recent: &Recent) -> Option<Value> {
        let (shared, mode) = self.parts.shared.as_ref()?;
        let (leases, (remembered, _)) = (shared.leases(), shared.deny_cache_totals());
        Some(json!({
            "failure_mode": mode.name(),
            "p99_nanos": recent.history.round_trip_p99_nanos(),
            "servers": shared.stores().map(|(name, store)| server(name, store)).collect::<Vec<_>>(),
            "leases": {
                "taken": leases.taken,
                "hits_taken": leases.hits_taken,
                "hits_spent": leases.hits_spent,
                "hits_given_back": leases.hits_given_back,
            },
            "deny_cache_hits": remembered,
        }))
    }

    /// Whether keys may be shown: they hold values of requests.
    fn may_see_keys(&self, view: &View) -> bool {
        view.is_for_bearer || self.parts.denied_for_all
    }

    fn denied(&self, recent: &Recent, view: &View, now_millis: u64) -> Option<Value> {
        let denied = self.parts.denied.as_ref().filter(|_| self.may_see_keys(view))?;
        let kept = now_millis.saturating_sub(recent.denied_turned_millis) + super::DENIED_PERIOD_MILLIS;
        let keys: Vec<_> = denied.top(DENIED_MAX).iter().map(denied_key).collect();
        Some(json!({"seconds": kept.min(now_millis) / 1_000, "keys": keys}))
    }

    fn bans(&self, view: &View) -> Value {
        let bans = (self.parts.bans)();
        let first = || bans.iter().take(BANS_MAX).map(ban).collect::<Vec<_>>();
        json!({"count": bans.len(), "first": self.may_see_keys(view).then(first)})
    }
}

/// Distinguishes two processes on one port: when they started, as Unix time in milliseconds.
fn process_id(clock: Clock, started: Instant) -> u64 {
    clock.at(started).as_nanos() / 1_000_000
}

fn shown(name: &str) -> String {
    one_line(&cut(name, NAME_CHARS_MAX)).into_owned()
}

fn rounded(rate: f32) -> f64 {
    (f64::from(rate) * 100.0).round() / 100.0
}

/// As a list, because there are many.
fn sample(sample: &Sample) -> Value {
    json!([
        sample.at_millis,
        sample.span_millis,
        sample.ok,
        sample.over_limit,
        sample.failed,
        sample.cpu_nanos,
        sample.decision_nanos,
        sample.round_trips,
        sample.round_trip_nanos,
        sample.redis_failures,
        sample.store_bytes,
        sample.connections,
    ])
}

fn denied_key(DeniedKey { name, denials }: &DeniedKey) -> Value {
    json!({
        "rule": name.rule,
        "entries": name.entries,
        "denials": denials.json(),
        "question": name.question.as_ref().map(question),
    })
}

fn ban(ban: &SeenBan) -> Value {
    let entry = |(key, value): &(Box<str>, Box<str>)| json!({"key": key, "value": value});
    json!({
        "domain": ban.domain,
        "rule": shown(&ban.rule),
        "entries": ban.entries.iter().map(entry).collect::<Vec<_>>(),
        "since": ban.since.as_nanos() / 1_000_000,
        "until": ban.until.as_nanos() / 1_000_000,
    })
}

/// In the form of `/json`.
fn question(question: &RequestBuf) -> Value {
    let request = question.as_request();
    let entry = |entry: &Entry<'_>| json!({"key": entry.key, "value": entry.value});
    let entries = request.descriptors().flat_map(|descriptor| descriptor.entries.iter().map(entry));
    json!({"domain": request.domain(), "entries": entries.collect::<Vec<_>>()})
}

fn step(&Hits { all, over, .. }: &Hits) -> Value {
    json!([all, over])
}

fn limit(rule: &Rule) -> Value {
    let window = rule.counting.window;
    json!({
        "requests": rule.limit.map(|limit| limit.requests()),
        "window": rule.limit.map_or_else(|| window.to_string(), |limit| limit.per(window).to_string()),
        "algorithm": rule.limit.map(|limit| limit.algorithm().name()),
        "carries": rule.limit.is_some_and(|limit| limit.carries_debt()),
        "place": shown(&format!("{}:{}", rule.written.file, rule.written.line)),
        "shadow": rule.shadow_mode,
        "quota": rule.quota_mode,
    })
}

fn server(name: &str, store: &RedisStore) -> Value {
    let (stats, contact) = (store.stats(), store.contact());
    let (state, why) = match &*contact.borrow() {
        Contact::Up => ("up", None),
        Contact::Never(why) => ("never", why.as_ref().map(ToString::to_string)),
        Contact::Lost(why) => ("lost", Some(why.to_string())),
        Contact::Unusable(why) => ("unusable", Some(why.to_string())),
    };
    let failures = Failure::ALL.into_iter().map(|kind| (kind.name().to_owned(), stats.failures(kind).into()));
    json!({
        "name": name,
        "place": shown(&store.options().kind.to_string()),
        "state": state,
        "why": why.map(|why| shown(&why)),
        "round_trips": stats.round_trips.count(),
        "in_flight": stats.in_flight.load(Relaxed),
        "connections": stats.connections.load(Relaxed),
        "memory_lost": stats.memory_lost.load(Relaxed),
        "failures": Value::Object(failures.collect()),
    })
}

fn exceptions(ExceptionsNow { count, changes, refused }: ExceptionsNow) -> Value {
    json!({"count": count, "changes": changes, "refused": refused})
}

fn reload(reload: &Reload) -> Value {
    let problem = |problem: &Problem| json!({"text": problem.text, "excerpt": problem.excerpt});
    json!({
        "subject": reload.subject.name(),
        "unix_secs": reload.unix_secs,
        "in_force": reload.in_force,
        "what": reload.what,
        "problems": reload.problems.iter().map(problem).collect::<Vec<_>>(),
        "more": reload.more,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::status::fixture::status;
    use tidegate_serve::metrics::{Front, Outcome};
    use tidegate_serve::service::fixture::{metrics, service};

    const RULES: &str = "
domain: shop
descriptors:
  - key: us<er>
    rate_limit: { unit: minute, unit_multiplier: 5, requests_per_unit: 10 }
";

    fn view(since: u64, rows: Rows) -> View {
        View { since, rows, reloads_known: None, about: true, is_for_bearer: false }
    }

    #[test]
    fn only_what_the_caller_does_not_have_is_sent() {
        let metrics = metrics();
        let (service, status) = (service(Some(RULES), &metrics), status(&metrics));
        let rules = service.snapshot().expect("rules");
        let look = |view: &View| status.view(view, Some(&rules), 9_000);
        metrics.requests(Front::Grpc, Outcome::Ok, 5);
        (1..=3).for_each(|second| status.sample(second * 1_000));
        let first = look(&view(0, Rows::First(Order::Denied)));
        assert_eq!((first["taken"].as_u64(), first["samples"].as_array().map(Vec::len)), (Some(3), Some(3)));
        assert_eq!((&first["samples"][0][2], &first["samples"][1][2]), (&json!(5), &json!(0)));
        assert_eq!((&first["totals"]["ok"], &first["rules"]["limits"]), (&json!(5), &json!(1)));
        assert_eq!(first["about"]["example"]["domain"], "shop");
        let known = View { reloads_known: Some(0), about: false, ..view(3, Rows::First(Order::Busy)) };
        let next = look(&known);
        assert_eq!(next["samples"], json!([]));
        assert!(next.get("about").is_none() && next.get("reloads").is_none(), "{next}");
    }

    #[test]
    fn a_row_says_what_the_limit_is_and_where_it_was_written() {
        let metrics = metrics();
        let (service, status) = (service(Some(RULES), &metrics), status(&metrics));
        status.sample(1_000);
        let found: Vec<_> = status.find("shop.us<", 10).into_iter().map(|id| id as u32).collect();
        let rows = Rows::These([&found[..], &[u32::MAX]].concat());
        let shown = status.view(&view(0, rows), service.snapshot().ok().as_ref(), 2_000);
        let row = &shown["rules"]["rows"][0];
        assert_eq!(row["path"], "us<er>", "{shown}");
        assert_eq!(
            (&row["limit"]["requests"], &row["limit"]["window"], &row["limit"]["place"]),
            (&json!(10), &json!("5 minutes"), &json!("rules.yaml:4"))
        );
        assert_eq!(
            shown["rules"]["rows"].as_array().map(Vec::len),
            Some(1),
            "a number without a series is left out"
        );
        assert!(Arc::strong_count(&status) == 1 && status.find("nothing", 10).is_empty());
    }
}
