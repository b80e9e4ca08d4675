//! An explanation as text for people.

use std::fmt::{self, Display};

use super::{Class, Denials, Explained, Explanation, denying, drawing};
use crate::decision::{Limited, Status, Trial};
use crate::limit::{BanTerms, Limit};
use crate::look::Look;
use crate::overlay::{Effect, Finding, Met as Exception, Record, Unconfirmed};
use crate::plan::{Hits, Origin};
use crate::rules::{Cost, End, Fit, Level, Met, Rule, Tried, shown_duration};
use crate::stamp;
use crate::text::{one_line, span};
use crate::time::ceil_secs;

/// Writes one line, whatever the text contains.
fn line(out: &mut fmt::Formatter<'_>, text: fmt::Arguments<'_>) -> fmt::Result {
    writeln!(out, "{}", one_line(&text.to_string()))
}

impl Display for Explanation<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { domain, hits, decision, descriptors } = self;
        let shadowed = if decision.shadowed { " (OVER_LIMIT, but for SHADOW_MODE)" } else { "" };
        let code = decision.code.name();
        line(
            out,
            format_args!("{domain}: {} would get {code}{shadowed}; nothing was counted", hits_text(*hits)),
        )?;
        let is_one_of_many = descriptors.len() > 1;
        for (index, descriptor) in descriptors.iter().enumerate() {
            writeln!(out)?;
            if is_one_of_many {
                write!(out, "{}. ", index + 1)?;
            }
            descriptor.write(out)?;
        }
        let denying = denying(decision);
        if is_one_of_many && !denying.is_empty() {
            writeln!(out)?;
            denying.iter().try_for_each(|&index| {
                let path =
                    descriptors[index].rule.map(|rule| format!(" ({})", rule.path())).unwrap_or_default();
                line(out, format_args!("denied by descriptor {}{path}", index + 1))
            })?;
        }
        Ok(())
    }
}

fn hits_text(hits: u64) -> String {
    if hits == 1 { "1 hit".to_owned() } else { format!("{hits} hits") }
}

impl Explained<'_> {
    fn write(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries = self.entries.iter().map(|(key, value)| format!("{key}={value}"));
        line(out, format_args!("{}", entries.collect::<Vec<_>>().join(" ")))?;
        if self.walk.met().next().is_some() {
            line(out, format_args!("  path      {}", self.path()))?;
        }
        for (number, (level, entry)) in (1..).zip(self.walk.levels.iter().zip(&self.entries)) {
            write_level(out, number, level, entry)?;
        }
        if let Some(rule) = self.rule {
            line(out, format_args!("  rule      {} at {}", rule.path(), rule.written))?;
        }
        match &self.status {
            Status::Limited(limited) => self.write_counter(out, limited)?,
            Status::Unlimited(_) => writeln!(out, "  limit     unlimited")?,
            Status::NoLimit | Status::Replaced(_) => writeln!(out, "  limit     none")?,
        }
        for other in &self.others {
            let (counted, left) = (other.verdict.before, other.remaining());
            line(out, format_args!("  also      {}: {counted} counted, {left} left", limit_text(other)))?;
        }
        if let Some((terms, look)) = &self.ban {
            line(out, format_args!("  ban       {}", ban_text(terms, look)))?;
        }
        if let Some(held) = self.held {
            writeln!(out, "  held      {held} by reservations")?;
        }
        if let Some(settled) = &self.settled {
            writeln!(out, "  settled   {}", settled.why)?;
        }
        line(out, format_args!("  answer    {}: {}", self.status.code().name(), self.why))?;
        if let Some(denials) = &self.denials {
            writeln!(out, "  denied    {denials}")?;
        }
        match &self.trial {
            Some((trial, look)) => write_trial(out, trial, look),
            None => Ok(()),
        }
    }

    /// The rule as it is written: for a single reset counter a copy with another counter may be used in its place.
    pub(super) fn walked_rule(&self) -> Option<&Rule> {
        match self.walk.end {
            End::Rule(rule) => Some(rule),
            _ => None,
        }
    }

    /// The nodes of the path: `user (any value) > plan=free* (pattern)`.
    fn path(&self) -> String {
        let node = |(met, (key, value)): (&Met<'_>, &(String, String))| match met {
            Met::Exact => format!("{key}={value}"),
            Met::Pattern(pattern) => format!("{key}={pattern} (pattern)"),
            Met::Any => format!("{key} (any value)"),
        };
        self.walk.met().zip(&self.entries).map(node).collect::<Vec<_>>().join(" > ")
    }

    fn write_counter(&self, out: &mut fmt::Formatter<'_>, limited: &Limited<'_>) -> fmt::Result {
        line(out, format_args!("  limit     {}", limit_text(limited)))?;
        if let Some(Class { name, is_named }) = &self.class {
            let why = if *is_named { "" } else { ", because the request names no class of this limit" };
            let (capacity, burst) = (limited.limit.capacity(), limited.limit.burst());
            line(out, format_args!("  class     {name}: {capacity} of {burst}{why}"))?;
        }
        if let Some(counted_as) = &self.counted_as {
            line(out, format_args!("  counts as {counted_as}"))?;
        }
        if let Some(record) = &self.record {
            let own = self.walked_rule().and_then(|rule| rule.limit);
            line(out, format_args!("  record    {}", record.text(own.as_ref())))?;
        }
        if let Some(met) = &self.exception {
            let own = self.rule.and_then(|rule| rule.limit);
            line(out, format_args!("  exception {}", met.text(own.as_ref())))?;
        }
        if self.own_hits {
            let (does, hits) = match limited.hits {
                Hits::Take(hits) => ("takes", hits),
                Hits::GiveBack(hits) => ("gives back", hits),
            };
            writeln!(out, "  hits      {does} {hits}, by its own hits_addend")?;
        }
        let (fitting, verdict) = (limited.limit.capacity(), &limited.verdict);
        // Reported costs may count beyond the limit, hits of higher classes beyond the share of one.
        let most = if self.class.is_some() { "the share of its class" } else { "the limit" };
        let beyond = match verdict.before.saturating_sub(fitting) {
            0 => String::new(),
            beyond => format!(", {beyond} beyond {most}"),
        };
        writeln!(out, "  counter   {} counted, {} left{beyond}", verdict.before, limited.remaining())?;
        writeln!(out, "            {}", drawing::bar(verdict.before, fitting))?;
        let Some(look) = &self.look else { return Ok(()) };
        if let Some(leaving) = &look.leaving {
            writeln!(out, "            {}", drawing::leaving(leaving))?;
        }
        match &self.ban {
            Some((_, ban)) if ban.verdict.over => writeln!(out, "  capacity  none while its key is banned"),
            _ => writeln!(out, "  capacity  {}", capacity(limited, look)),
        }
    }
}

/// `214 times in the last ten minutes, at least 200; first 2026-11-30T08:00:00Z, last 2026-11-30T08:09:00Z`.
impl Display for Denials {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let least = match self.error {
            0 => String::new(),
            error => format!(", at least {}", self.count - error),
        };
        let [first, last] = self.times();
        write!(out, "{} times in the last ten minutes{least}; first {first}, last {last}", self.count)
    }
}

impl Finding {
    /// The record of a descriptor, or what applies because it is not known. `own` is the limit of its rule.
    pub fn text(&self, own: Option<&Limit>) -> String {
        let away = "the store of records does not answer";
        match (&self.record, self.unconfirmed) {
            (None, None) => "none: the limit is the rule's".to_owned(),
            (Some(record), None) => says(record, own),
            (None, Some(Unconfirmed::KnownLast)) => format!("none, by the last known record: {away}"),
            (Some(record), Some(Unconfirmed::KnownLast)) => {
                format!("{}, by the last known record: {away}", says(record, own))
            }
            (None, Some(Unconfirmed::NotKnown)) => {
                format!("not known: {away}; until it does, the rule's limit applies")
            }
            (Some(_), Some(Unconfirmed::NotKnown)) => {
                format!("not known: {away}; until it does, nothing passes")
            }
        }
    }
}

/// `50 instead of 3, burst 60`.
fn says(record: &Record, own: Option<&Limit>) -> String {
    if record.unlimited {
        return "unlimited: counted and never denied".to_owned();
    }
    let instead = own.map(|own| format!(" instead of {}", own.requests())).unwrap_or_default();
    let parts = [
        Some(format!("{}{instead}", record.requests)),
        record.burst.map(|burst| format!("burst {burst}")),
        record.window.map(|window| format!("per {window}")),
        record.algorithm.map(|algorithm| algorithm.name().to_owned()),
        record.granularity_nanos.map(|nanos| format!("granularity {}", shown_duration(nanos))),
        record.anchor.map(|anchor| format!("anchor {anchor}")),
        record.shadow.map(|shadow| format!("shadow_mode {shadow}")),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

impl Exception {
    /// `launch: 5 instead of 3, until 2026-11-30T08:00:00Z, made by jane: an order`. `own` is the limit of the rule.
    pub fn text(&self, own: Option<&Limit>) -> String {
        let of = |number: Option<u64>, own: Option<u64>| match (number, own) {
            (Some(number), Some(own)) => Some(format!("{number} instead of {own}")),
            (number, _) => number.map(|number| number.to_string()),
        };
        let does = match self.effect {
            Effect::Deny => "nothing passes".to_owned(),
            Effect::Unlimited => "counted and never denied".to_owned(),
            Effect::Limit { requests, burst } => {
                let burst = of(burst, own.map(Limit::burst)).map(|text| format!("burst {text}"));
                let parts = of(requests, own.map(Limit::requests)).into_iter().chain(burst);
                parts.collect::<Vec<_>>().join(", ")
            }
        };
        let Some(label) = &self.label else { return does };
        let until = label.until.map_or("it is ended".to_owned(), stamp::show);
        let made = label.made.as_ref().map(|made| format!(", made by {}: {}", made.who, made.why));
        format!("{}: {does}, until {until}{}", label.id, made.unwrap_or_default())
    }
}

/// `2 of 5 denials within 10 minutes`, or `for 57 minutes more`.
fn ban_text(terms: &BanTerms, look: &Look) -> String {
    let secs = |nanos| span(ceil_secs(nanos));
    match look.verdict.over {
        true => format!("for {} more", secs(look.verdict.reset_nanos)),
        false => {
            let (counted, within) = (look.verdict.before, secs(terms.within_nanos));
            format!("{counted} of {} denials within {within} count", terms.strikes)
        }
    }
}

/// When there is room for one hit, and for the hits of the request.
fn capacity(limited: &Limited<'_>, look: &Look) -> String {
    let wait = |nanos: u64| match ceil_secs(nanos) {
        0 => "now".to_owned(),
        seconds => format!("in {}", span(seconds)),
    };
    if limited.limit.capacity() == 0 {
        return "none: the limit is 0".to_owned();
    }
    let one = format!("1 hit fits {}", wait(look.wait_one_nanos));
    let verdict = &limited.verdict;
    let asked = match limited.hits {
        Hits::Take(hits @ 2..) if hits > limited.limit.capacity() => {
            format!(", {hits} hits never")
        }
        Hits::Take(hits @ 2..) if verdict.over => format!(", {hits} hits {}", wait(verdict.reset_nanos)),
        Hits::Take(hits @ 2..) => format!(", {hits} hits now"),
        Hits::Take(_) | Hits::GiveBack(_) => String::new(),
    };
    let more = match ceil_secs(verdict.reset_nanos) {
        0 => String::new(),
        _ if verdict.over => String::new(),
        seconds => format!("; more comes back in {}", span(seconds)),
    };
    format!("{one}{asked}{more}")
}

/// One level of the walk: which nodes were tried, and why each fits or does not.
fn write_level(
    out: &mut fmt::Formatter<'_>,
    number: usize,
    level: &Level<'_>,
    (key, value): &(String, String),
) -> fmt::Result {
    line(out, format_args!("  level {number:<3} {key}={value}"))?;
    if level.tried.is_empty() {
        writeln!(out, "            no node has this key")?;
    }
    level.tried.iter().try_for_each(|tried| write_tried(out, tried, key))?;
    match level.more {
        0 => Ok(()),
        more => writeln!(out, "            and {more} more patterns, which do not match or were not tried"),
    }
}

fn write_tried(out: &mut fmt::Formatter<'_>, tried: &Tried<'_>, key: &str) -> fmt::Result {
    let node = match tried.node {
        Met::Exact => "this value".to_owned(),
        Met::Pattern(pattern) => format!("{key}={pattern}"),
        Met::Any => "any value".to_owned(),
    };
    let fit = match (tried.fit, tried.node, tried.written) {
        (_, Met::Exact, None) => "no such node",
        (Fit::Taken, ..) => "fits",
        (Fit::No, ..) => "does not match",
        (Fit::Shorter, ..) => "contains it, and a longer range does too",
        (Fit::NotTried, ..) => "not tried",
    };
    let at = tried.written.map(|written| format!(" at {written}")).unwrap_or_default();
    line(out, format_args!("            {node}{at}: {fit}"))
}

/// The verdict of the candidate.
fn write_trial(out: &mut fmt::Formatter<'_>, trial: &Trial<'_>, look: &Look) -> fmt::Result {
    let Limited { limit, verdict, .. } = &trial.limited;
    let burst = match limit.algorithm().is_bucket() {
        true => format!(", burst {}", limit.burst()),
        false => String::new(),
    };
    let (counted, left) = (verdict.before, trial.limited.remaining());
    let says = match (trial.passes, verdict.over) {
        (true, false) => "the request would pass",
        (true, true) => "over, and the request would pass",
        (false, true) => "the request would be denied",
        (false, false) => "another limit would deny the request",
    };
    writeln!(out, "  candidate {} instead{burst}: {counted} counted, {left} left: {says}", limit.requests())?;
    match ceil_secs(look.wait_one_nanos) {
        0 => Ok(()),
        seconds => writeln!(out, "            1 hit fits in {}", span(seconds)),
    }
}

/// `5 per 2 hours, token_bucket, burst 1, named per_user`.
fn limit_text(limited: &Limited<'_>) -> String {
    let name = limited.origin.rule().map_or("", |rule| &rule.name);
    let name = if name.is_empty() { String::new() } else { format!(", named {name}") };
    let (counts, burst) = (limited.limit.counts(limited.origin.window()), limited.limit.burst());
    let burst =
        if limited.limit.algorithm().is_bucket() { format!(", burst {burst}") } else { String::new() };
    let algorithm = limited.limit.algorithm().name();
    let cost = match limited.origin {
        Origin::Rule { rule, .. } if rule.cost.is_reported() => "",
        Origin::Rule { rule, .. } if rule.cost.said() == Cost::Auto => ", cost asked (learnt)",
        Origin::Rule { .. } => ", cost asked",
        Origin::Override { .. } => "",
    };
    format!("{counts}, {algorithm}{burst}{cost}{name}")
}
