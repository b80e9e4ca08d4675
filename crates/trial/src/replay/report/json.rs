//! A report as one JSON object, for programs. Times are RFC 3339, waits are seconds.

use serde_json::{Value, json};

use super::{KeyReport, Report, RuleReport, SideReport};
use crate::replay::keys::Numbers;
use tidegate_engine::stamp;
use tidegate_engine::text::json_line;

impl Report {
    /// The report as JSON, on one line.
    pub fn json(&self) -> String {
        let totals = &self.totals;
        let mut report = json!({
            "lines": {
                "read": totals.lines,
                "unreadable": totals.unreadable,
                "left_out": totals.left_out,
                "not_asked": totals.not_asked,
                "late": totals.late,
                "first_unreadable": self.unreadable,
            },
            "requests": totals.requests,
            "denied": totals.denied,
            "unlimited": totals.unlimited,
            "unmatched": totals.unmatched,
            "from": self.span.map(|(first, _)| stamp::show(first)),
            "to": self.span.map(|(_, last)| stamp::show(last)),
            "rules": side(&self.side),
            "over_time": {
                "start": self.timeline.start_secs,
                "width_seconds": self.timeline.width_secs,
                "requests": self.timeline.bins.iter().map(|bin| bin.requests).collect::<Vec<_>>(),
                "denied": self.timeline.bins.iter().map(|bin| bin.denied).collect::<Vec<_>>(),
            },
            "bursts": self.bursts(),
            "notes": self.notes,
        });
        if let Some(against) = &self.against {
            report["newly_denied"] = totals.newly_denied.into();
            report["newly_admitted"] = totals.newly_admitted.into();
            report["against"] = side(against);
        }
        format!("{}\n", json_line(&report.to_string()))
    }

    /// The classes of bursts up to the last one that occurred.
    fn bursts(&self) -> Vec<Value> {
        let classes = self.bursts.iter().rposition(|count| *count > 0).map_or(0, |last| last + 1);
        let class = |(class, count): (usize, &u64)| json!({"at_least": 1_u64 << class, "seconds": count});
        self.bursts[..classes].iter().enumerate().map(class).collect()
    }
}

fn side(side: &SideReport) -> Value {
    json!({
        "estimated": side.is_estimated,
        "keys": side.keys_total,
        "denied_keys": side.denied_keys,
        "each": side.rules.iter().map(rule).collect::<Vec<_>>(),
        "top_keys": side.keys.iter().map(key).collect::<Vec<_>>(),
        "changed_keys": side.changed.iter().map(key).collect::<Vec<_>>(),
    })
}

fn rule(rule: &RuleReport) -> Value {
    let mut value = numbers(&rule.numbers);
    value["rule"] = rule.path.as_str().into();
    value["place"] = rule.place.as_str().into();
    value["limit"] = rule.limit.as_str().into();
    if let Some((limit, trial)) = &rule.candidate {
        value["candidate"] = json!({
            "limit": limit,
            "admitted": trial.admitted,
            "denied": trial.denied,
            "newly_denied": trial.newly_denied,
            "newly_admitted": trial.newly_admitted,
        });
    }
    value["keys"] = rule.keys.into();
    value["denied_keys"] = rule.denied_keys.into();
    value
}

fn key(key: &KeyReport) -> Value {
    let mut value = match key.error {
        None => numbers(&key.numbers),
        Some(error) => {
            json!({"denied_at_most": key.numbers.denied, "denied_at_least": key.numbers.denied - error})
        }
    };
    value["rule"] = key.rule.as_str().into();
    value["key"] = key.name.as_str().into();
    value
}

fn numbers(numbers: &Numbers) -> Value {
    json!({
        "requests": numbers.requests,
        "admitted": numbers.admitted,
        "denied": numbers.denied,
        "near_limit": numbers.near,
        "shadow_denied": numbers.shadowed,
        "changed": numbers.changed,
        "first_denied": numbers.first_denied.map(stamp::show),
        "worst_denied": numbers.worst.map(|(at, _)| stamp::show(at)),
        "worst_wait_seconds": numbers.worst.map(|(_, wait)| wait as f64 / 1e9),
        "longest_streak": numbers.longest_streak,
    })
}
