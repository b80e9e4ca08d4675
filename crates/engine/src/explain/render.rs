//! An explanation as text for people, and as JSON for programs.

use std::fmt::{self, Display};

use serde_json::{Value, json};

use super::{Explained, Explanation};
use crate::decision::{Limited, Status};
use crate::plan::Origin;
use crate::rules::{Cost, Met, Rule};
use crate::text::one_line;
use crate::time::ceil_secs;

/// Writes one line, whatever the text holds.
fn line(out: &mut fmt::Formatter<'_>, text: fmt::Arguments<'_>) -> fmt::Result {
    writeln!(out, "{}", one_line(&text.to_string()))
}

impl Display for Explanation<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { domain, hits, decision, descriptors } = self;
        let shadowed = if decision.shadowed { " (OVER_LIMIT, but for SHADOW_MODE)" } else { "" };
        let hits = if *hits == 1 { "1 hit".to_owned() } else { format!("{hits} hits") };
        line(
            out,
            format_args!(
                "{domain}: {hits} would get {}{shadowed}; nothing was counted",
                decision.code.name()
            ),
        )?;
        descriptors.iter().try_for_each(|descriptor| descriptor.write(out))
    }
}

impl Explained<'_> {
    fn write(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries = self.entries.iter().map(|(key, value)| format!("{key}={value}"));
        writeln!(out)?;
        line(out, format_args!("{}", entries.collect::<Vec<_>>().join(" ")))?;
        if !self.walk.met.is_empty() {
            line(out, format_args!("  path      {}", self.path()))?;
        }
        if let Some(rule) = self.rule {
            line(out, format_args!("  rule      {} at {}", rule.path(), rule.written))?;
        }
        match &self.status {
            Status::Limited(limited) => write_counter(out, limited)?,
            Status::Unlimited(_) => writeln!(out, "  limit     unlimited")?,
            Status::NoLimit | Status::Replaced(_) => writeln!(out, "  limit     none")?,
        }
        line(out, format_args!("  answer    {}: {}", self.status.code().name(), self.why))
    }

    /// The nodes of the path: `user (any value) > plan=free* (pattern)`.
    fn path(&self) -> String {
        let node = |(met, (key, value)): (&Met<'_>, &(String, String))| match met {
            Met::Exact => format!("{key}={value}"),
            Met::Pattern(pattern) => format!("{key}={pattern} (pattern)"),
            Met::Any => format!("{key} (any value)"),
        };
        self.walk.met.iter().zip(&self.entries).map(node).collect::<Vec<_>>().join(" > ")
    }
}

fn write_counter(out: &mut fmt::Formatter<'_>, limited: &Limited<'_>) -> fmt::Result {
    let (unit, multiplier, name) = limit_of(limited);
    let name = if name.is_empty() { String::new() } else { format!(", named {name}") };
    let window = if multiplier == 1 { unit.to_owned() } else { format!("{multiplier} {unit}s") };
    let (requests, burst) = (limited.limit.requests(), limited.limit.burst());
    let burst_text =
        if limited.limit.algorithm().is_bucket() { format!(", burst {burst}") } else { String::new() };
    let algorithm = limited.limit.algorithm().name();
    let cost = match limited.origin {
        Origin::Rule(rule) if rule.cost == Cost::Asked => ", cost asked",
        _ => "",
    };
    let text = format_args!("  limit     {requests} per {window}, {algorithm}{burst_text}{cost}{name}");
    line(out, text)?;
    // Reported costs may count beyond the limit.
    let beyond = match limited.verdict.before.saturating_sub(u64::from(burst)) {
        0 => String::new(),
        beyond => format!(", {beyond} beyond the limit"),
    };
    writeln!(out, "  counter   {} counted, {} left{beyond}", limited.verdict.before, limited.remaining())?;
    match ceil_secs(limited.verdict.reset_nanos) {
        0 => Ok(()),
        seconds => writeln!(out, "  capacity  comes back in {seconds} s"),
    }
}

impl Explanation<'_> {
    /// As JSON.
    pub fn json(&self) -> Value {
        json!({
            "domain": self.domain,
            "hits": self.hits,
            "code": self.decision.code.name(),
            "shadowed": self.decision.shadowed,
            "descriptors": self.descriptors.iter().map(Explained::json).collect::<Vec<_>>(),
        })
    }
}

impl Explained<'_> {
    fn json(&self) -> Value {
        let entry = |(key, value): &(String, String)| json!({"key": key, "value": value});
        let met = |met: &Met<'_>| match met {
            Met::Exact => json!({"met": "value"}),
            Met::Pattern(pattern) => json!({"met": "pattern", "pattern": pattern}),
            Met::Any => json!({"met": "any"}),
        };
        let mut json = json!({
            "entries": self.entries.iter().map(entry).collect::<Vec<_>>(),
            "path": self.walk.met.iter().map(met).collect::<Vec<_>>(),
            "rule": self.rule.map(rule_json),
            "code": self.status.code().name(),
            "why": self.why,
        });
        if let Status::Limited(limited) = &self.status {
            json["limit"] = limit_json(limited);
            json["counter"] = json!({
                "counted": limited.verdict.before,
                "remaining": limited.remaining(),
                "capacity_in_seconds": ceil_secs(limited.verdict.reset_nanos),
            });
        }
        json
    }
}

fn rule_json(rule: &Rule) -> Value {
    let written = &rule.written;
    json!({
        "path": rule.path(), "name": &*rule.name,
        "file": &*written.file, "line": written.line, "column": written.column,
    })
}

fn limit_json(limited: &Limited<'_>) -> Value {
    let (unit, unit_multiplier, _) = limit_of(limited);
    json!({
        "requests_per_unit": limited.limit.requests(),
        "unit": unit,
        "unit_multiplier": unit_multiplier,
        "algorithm": limited.limit.algorithm().name(),
        "burst": limited.limit.burst(),
        "shadow_mode": limited.shadow,
        "quota_mode": limited.quota,
    })
}

/// Unit, multiplier and name.
fn limit_of<'a>(limited: &Limited<'a>) -> (&'static str, u32, &'a str) {
    match limited.origin {
        Origin::Rule(rule) => (rule.unit.name(), rule.unit_multiplier, &rule.name),
        Origin::Override { unit, unit_multiplier } => (unit.name(), unit_multiplier, ""),
    }
}
