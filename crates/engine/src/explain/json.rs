//! An explanation as JSON, for programs. Times are whole seconds, rounded up.

use serde_json::{Value, json};

use super::{Denials, Explained, Explanation, denying};
use crate::decision::{Limited, Status, Trial};
use crate::look::Look;
use crate::overlay::{Finding, Met as Exception, Record, Unconfirmed};
use crate::plan::Hits;
use crate::rules::{Fit, Level, Met, Rule, Tried, Written, shown_duration};
use crate::stamp;
use crate::time::ceil_secs;
use crate::unit::Window;

impl Explanation<'_> {
    /// As JSON.
    pub fn json(&self) -> Value {
        json!({
            "domain": self.domain,
            "hits": self.hits,
            "code": self.decision.code.name(),
            "shadowed": self.decision.shadowed,
            "denied_by": denying(&self.decision),
            "descriptors": self.descriptors.iter().map(Explained::json).collect::<Vec<_>>(),
        })
    }
}

impl Explained<'_> {
    fn json(&self) -> Value {
        let entry = |(key, value): &(String, String)| json!({"key": key, "value": value});
        let mut json = json!({
            "entries": self.entries.iter().map(entry).collect::<Vec<_>>(),
            "path": self.walk.met().map(met).collect::<Vec<_>>(),
            "levels": self.walk.levels.iter().map(level).collect::<Vec<_>>(),
            "rule": self.rule.map(rule),
            "code": self.status.code().name(),
            "why": self.why,
        });
        if let Some(by) = self.replaced_by {
            json["replaced_by"] = by.into();
        }
        if let Some(settled) = &self.settled {
            json["settled"] = json!({"charged": settled.charged, "why": settled.why});
        }
        if let (Status::Limited(limited), Some(look)) = (&self.status, &self.look) {
            json["limit"] = limit(limited);
            json["counter"] = counter(limited, look);
        }
        if !self.others.is_empty() {
            let other = |other: &Limited<'_>| json!({"limit": limit(other), "counted": other.verdict.before, "remaining": other.remaining()});
            json["also"] = self.others.iter().map(other).collect();
        }
        if let Some((terms, look)) = &self.ban {
            let verdict = &look.verdict;
            let left = if verdict.over { ceil_secs(verdict.reset_nanos) } else { 0 };
            json["ban"] = json!({"banned": verdict.over, "seconds": left, "denials": verdict.before, "after": terms.strikes});
        }
        if let Some(held) = self.held {
            json["held"] = held.into();
        }
        if let (Some(class), Status::Limited(limited)) = (&self.class, &self.status) {
            let share = limited.limit.share().as_f64();
            json["class"] = json!({"name": class.name, "share": share, "hits": limited.limit.capacity()});
        }
        if let Some(counted_as) = &self.counted_as {
            json["counted_as"] = counted_as.as_str().into();
        }
        if let Some(met) = &self.exception {
            json["exception"] = met.json(self.rule);
        }
        if let Some(known) = &self.record {
            json["record"] = known.json(self.walked_rule());
        }
        if let Some((trial, look)) = &self.trial {
            json["candidate"] = candidate(trial, look);
        }
        if let Some(denials) = &self.denials {
            json["denials"] = denials.json();
        }
        json
    }
}

impl Denials {
    /// As JSON.
    pub fn json(&self) -> Value {
        let [first, last] = self.times();
        json!({"count": self.count, "error": self.error, "first": first, "last": last})
    }
}

fn met(met: &Met<'_>) -> Value {
    match met {
        Met::Exact => json!({"met": "value"}),
        Met::Pattern(pattern) => json!({"met": "pattern", "pattern": pattern}),
        Met::Any => json!({"met": "any"}),
    }
}

fn level(level: &Level<'_>) -> Value {
    let tried = |tried: &Tried<'_>| {
        let (kind, pattern) = match tried.node {
            Met::Exact => ("value", None),
            Met::Pattern(pattern) => ("pattern", Some(pattern)),
            Met::Any => ("any", None),
        };
        let fit = match tried.fit {
            Fit::Taken => "fits",
            Fit::No => "no",
            Fit::Shorter => "shorter",
            Fit::NotTried => "not_tried",
        };
        let mut json = json!({"node": kind, "fit": fit});
        pattern.into_iter().for_each(|pattern| json["pattern"] = pattern.into());
        tried.written.into_iter().for_each(|at| json["at"] = written(at));
        json
    };
    json!({"tried": level.tried.iter().map(tried).collect::<Vec<_>>(), "more_patterns": level.more})
}

fn written(at: &Written) -> Value {
    json!({"file": &*at.file, "line": at.line, "column": at.column})
}

fn rule(rule: &Rule) -> Value {
    let mut json = written(&rule.written);
    json["path"] = rule.path().into();
    json["name"] = (&*rule.name).into();
    json
}

fn limit(limited: &Limited<'_>) -> Value {
    let window = limited.origin.window();
    let mut json = json!({
        "requests_per_unit": limited.limit.requests(),
        "unit": window.unit.name(),
        "unit_multiplier": window.multiplier,
        "algorithm": limited.limit.algorithm().name(),
        "burst": limited.limit.burst(),
        "shadow_mode": limited.shadow,
        "quota_mode": limited.quota,
    });
    if let Some(periods) = limited.limit.periods() {
        json["period"] = periods.to_string().into();
    }
    if limited.limit.carries_debt() {
        json["carry_debt"] = true.into();
    }
    json
}

/// The wait is null when so many hits never fit. `capacity_in_seconds` is when the counter has room, which is what
/// the answer says unless an exception denies.
fn counter(limited: &Limited<'_>, look: &Look) -> Value {
    let verdict = &limited.verdict;
    let (hits, gives_back) = match limited.hits {
        Hits::Take(hits) => (hits, false),
        Hits::GiveBack(hits) => (hits, true),
    };
    let fits = |hits: u64| hits <= limited.limit.capacity();
    let wait_for_hits = if verdict.over { ceil_secs(verdict.reset_nanos) } else { 0 };
    let mut json = json!({
        "hits": hits,
        "gives_back": gives_back,
        "counted": verdict.before,
        "remaining": limited.remaining(),
        "capacity_in_seconds": ceil_secs(verdict.reset_nanos),
        "wait_for_one_seconds": fits(1).then(|| ceil_secs(look.wait_one_nanos)),
        "wait_for_hits_seconds": (!verdict.over || fits(hits)).then_some(wait_for_hits),
    });
    if let Some(leaving) = &look.leaving {
        json["leaving"] = json!({
            "hits": &leaving.slices[..],
            "first_seconds": ceil_secs(leaving.nanos.0),
            "last_seconds": ceil_secs(leaving.nanos.1),
        });
    }
    json
}

impl Exception {
    /// As JSON. `until` is null if the exception does not end by itself; `instead_of` is the rule's number.
    pub fn json(&self, rule: Option<&Rule>) -> Value {
        let (id, until) = self.label.as_ref().map(|label| (&label.id, label.until.map(stamp::show))).unzip();
        let own = rule.and_then(|rule| rule.limit);
        let mut json = json!({
            "id": id,
            "effect": self.effect.name(),
            "until": until.flatten(),
            "instead_of": own.map(|own| json!({"requests_per_unit": own.requests(), "burst": own.burst()})),
        });
        if let Some(made) = self.label.as_ref().and_then(|label| label.made.as_ref()) {
            (json["who"], json["why"]) = (made.who.as_str().into(), made.why.as_str().into());
        }
        json
    }
}

impl Finding {
    /// The record, and the rule's numbers without it. Null: there is no record, according to the store.
    pub fn json(&self, rule: Option<&Rule>) -> Value {
        let mut json = self.record.as_ref().map_or(Value::Null, |record| says(record, rule));
        match self.unconfirmed {
            None => {}
            Some(Unconfirmed::KnownLast) => json["known_last"] = true.into(),
            Some(Unconfirmed::NotKnown) => json["not_known"] = true.into(),
        }
        json
    }
}

fn says(record: &Record, rule: Option<&Rule>) -> Value {
    let mut json =
        json!({"unlimited": record.unlimited, "shadow_mode": record.shadow, "burst": record.burst});
    if !record.unlimited {
        json["requests_per_unit"] = record.requests.into();
    }
    if let Some(Window { unit, multiplier }) = record.window {
        json["unit"] = unit.name().into();
        json["unit_multiplier"] = multiplier.into();
    }
    if let Some(algorithm) = record.algorithm {
        json["algorithm"] = algorithm.name().into();
    }
    if let Some(nanos) = record.granularity_nanos {
        json["granularity"] = shown_duration(nanos).into();
    }
    if let Some(anchor) = record.anchor {
        json["anchor"] = anchor.to_string().into();
    }
    let own = rule.and_then(|rule| rule.limit);
    json["instead_of"] =
        own.map_or(Value::Null, |own| json!({"requests_per_unit": own.requests(), "burst": own.burst()}));
    json
}

fn candidate(trial: &Trial<'_>, look: &Look) -> Value {
    let limited = &trial.limited;
    json!({
        "requests_per_unit": limited.limit.requests(),
        "burst": limited.limit.burst(),
        "over": limited.verdict.over,
        "passes": trial.passes,
        "counter": counter(limited, look),
    })
}
