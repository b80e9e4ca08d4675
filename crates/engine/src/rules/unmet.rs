//! Why an exception or a record for these entries changes nothing: a name in it may be misspelt.
//!
//! In: a domain and entries. Out: a sentence with the most similar name that the rules have, or nothing.

use crate::limit::Algorithm;
use crate::request::Entry;
use crate::rules::hint::closest;
use crate::rules::{Rule, RuleSet};
use crate::text::one_line;
use crate::unit::Anchor;

/// The most nodes of a level that are compared: enough to find a misspelt name.
const COMPARED_MAX: usize = 10_000;

impl RuleSet {
    /// Why no rule applies to these entries; `None`: one does.
    pub fn why_unmet(&self, domain: &str, entries: &[Entry<'_>]) -> Option<String> {
        let Some(domain_of) = self.domains.get(domain) else {
            let known: Vec<_> = self.domains().take(COMPARED_MAX).collect();
            return Some(format!("no rules of this domain are in force{}", like(domain, &known)));
        };
        let mut node = domain_of.root;
        for (place, entry) in entries.iter().enumerate() {
            let Some(next) = self.tree.choices(node, entry).and_then(|choices| choices.taken) else {
                let written = format!("{}={}", entry.key, entry.value);
                if self.tree.is_trailing(node, &entries[place..]) {
                    let written = one_line(&written);
                    return Some(format!(
                        "{written} names a class or a call, which is no part of a path (expected the entries before it)"
                    ));
                }
                let below = || self.tree.children(node).take(COMPARED_MAX);
                let known: Vec<_> = match below().any(|(key, _)| key == entry.key) {
                    true => below().filter_map(|(key, value)| Some(format!("{key}={}", value?))).collect(),
                    false => below().map(|(key, _)| key.to_owned()).collect(),
                };
                let known: Vec<_> = known.iter().map(String::as_str).collect();
                let wrong = if known.iter().any(|name| name.contains('=')) { &written } else { entry.key };
                return Some(format!("no rule applies to {}{}", one_line(&written), like(wrong, &known)));
            };
            node = next;
        }
        match self.tree.rule(node) {
            Some(_) => None,
            None => Some("no rule applies to these entries: the path ends where no limit is set".to_owned()),
        }
    }

    /// Why no rule reads a record for these entries; `None`: one does.
    pub fn why_unread(&self, domain: &str, entries: &[Entry<'_>]) -> Option<String> {
        match self.rule_of(domain, entries) {
            Some(rule) if rule.records.is_some() => None,
            Some(rule) => {
                let at = &rule.written;
                Some(format!("the rule at {at} reads no records (expected `limits_from: store`)"))
            }
            None => self.why_unmet(domain, entries),
        }
    }

    /// Whether a rule reads a record for these entries.
    pub fn reads_record(&self, domain: &str, entries: &[Entry<'_>]) -> bool {
        self.rule_of(domain, entries).is_some_and(|rule| rule.records.is_some())
    }

    /// Why the anchor of a record for these entries changes nothing; `None`: the calendar of its rule has it, or no rule reads
    /// the record.
    pub fn why_not_anchored(&self, domain: &str, entries: &[Entry<'_>], anchor: Anchor) -> Option<String> {
        let rule = self.rule_of(domain, entries).filter(|rule| rule.records.is_some())?;
        let at = &rule.written;
        match rule.limit.as_ref()?.periods() {
            None => Some(format!("`anchor` for the rule at {at}, which has no calendar (expected `period`)")),
            Some(periods) if periods.has_anchor(anchor.number()) => None,
            Some(periods) => Some(format!(
                "no period of the rule at {at} begins at the anchor {anchor}: it counts by the calendar {periods}"
            )),
        }
    }

    /// Why the algorithm of a record for these entries changes nothing; `None`: its rule can count by it, or no rule reads the
    /// record.
    pub fn why_not_by(&self, domain: &str, entries: &[Entry<'_>], algorithm: Algorithm) -> Option<String> {
        let rule = self.rule_of(domain, entries).filter(|rule| rule.records.is_some())?;
        let (at, name) = (&rule.written, algorithm.name());
        (!rule.goes_with(algorithm)).then(|| {
            format!("`algorithm` is {name}, which does not go with the `classes` of the rule at {at}")
        })
    }

    /// Why N of a record for these entries, which may say another algorithm, is cut; `None`: the counters of its rule can
    /// hold it, or no rule reads the record.
    pub fn why_cut(
        &self,
        domain: &str,
        entries: &[Entry<'_>],
        requests: u64,
        other: Option<Algorithm>,
    ) -> Option<String> {
        let rule = self.rule_of(domain, entries).filter(|rule| rule.records.is_some())?;
        let own = rule.limit?.algorithm();
        // Of a calendar budget and of slots only N changes.
        let is_meant = |other: &Algorithm| Algorithm::NAMED.contains(&own) && rule.goes_with(*other);
        let algorithm = other.filter(is_meant).unwrap_or(own);
        let (at, most, name) = (&rule.written, algorithm.requests_max(), algorithm.name());
        (requests > most).then(|| {
            format!("{requests} is cut to {most}: the rule at {at} counts by {name}, which has no more")
        })
    }

    fn rule_of(&self, domain: &str, entries: &[Entry<'_>]) -> Option<&Rule> {
        let root = self.domains.get(domain)?.root;
        let rule = self.rule(self.tree.find(root, entries)? as usize)?;
        // A class or a call is no part of a path.
        (rule.own_entries(entries).len() == entries.len()).then_some(rule)
    }
}

/// The most similar name, if one is similar enough.
fn like(name: &str, known: &[&str]) -> String {
    closest(name, known).map(|known| format!(" (the closest is {})", one_line(known))).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::KeySecret;
    use crate::rules::{LoadOptions, SourceFile, load};

    const RULES: &str = "
domain: shop
descriptors:
  - key: tenant
    rate_limit: {unit: hour, requests_per_unit: 5}
  - key: plan
    value: gold
    descriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 5}}]
  - key: app
    limits_from: store
    rate_limit: {unit: hour, requests_per_unit: 5}
    classes: {key: priority, shares: {batch: 0.5}}
  - key: month
    limits_from: store
    rate_limit: {period: {calendar: month, anchor: 3}, requests_per_unit: 5}
";

    #[test]
    fn the_closest_name_of_the_level_is_named() {
        let file = SourceFile { name: "a.yaml".to_owned(), bytes: RULES.into(), presumed: false };
        let rules = load(&[file], &LoadOptions::new(KeySecret::new([0; 16]))).expect("good rules").rules;
        let why = |domain: &str, entries: &[(&str, &str)]| {
            let entries: Vec<_> = entries.iter().map(|&(key, value)| Entry { key, value }).collect();
            rules.why_unmet(domain, &entries)
        };
        assert_eq!(why("shop", &[("tenant", "acme")]), None);
        assert_eq!(why("shop", &[("plan", "gold"), ("user", "a")]), None);
        for (domain, entries, expected) in [
            ("shpo", &[("tenant", "acme")][..], "no rules of this domain are in force (the closest is shop)"),
            ("shop", &[("tennant", "acme")], "no rule applies to tennant=acme (the closest is tenant)"),
            (
                "shop",
                &[("plan", "glod"), ("user", "a")],
                "no rule applies to plan=glod (the closest is plan=gold)",
            ),
            ("shop", &[("plan", "gold"), ("uesr", "a")], "no rule applies to uesr=a (the closest is user)"),
            (
                "shop",
                &[("plan", "gold")],
                "no rule applies to these entries: the path ends where no limit is set",
            ),
            ("shop", &[("zzz", "\u{1b}")], "no rule applies to zzz=\\u{1b}"),
            (
                "shop",
                &[("app", "a"), ("priority", "batch")],
                "priority=batch names a class or a call, which is no part of a path (expected the entries before it)",
            ),
        ] {
            assert_eq!(why(domain, entries).as_deref(), Some(expected));
        }
        let unread = rules.why_unread("shop", &[Entry { key: "tenant", value: "acme" }]);
        let expected = "the rule at a.yaml:4:10 reads no records (expected `limits_from: store`)";
        assert_eq!(unread.as_deref(), Some(expected));
        let anchored = |keys: &[(&str, &str)], anchor: &str| {
            let entries: Vec<_> = keys.iter().map(|&(key, value)| Entry { key, value }).collect();
            let anchor = Anchor::parse(anchor).expect("an anchor");
            rules.why_not_anchored("shop", &entries, anchor)
        };
        assert_eq!(anchored(&[("tenant", "acme")], "15"), None, "it reads no records");
        assert_eq!([anchored(&[("month", "a")], "1"), anchored(&[("month", "a")], "31")], [None, None]);
        let no_calendar = "`anchor` for the rule at a.yaml:9:10, which has no calendar (expected `period`)";
        assert_eq!(anchored(&[("app", "a")], "15").as_deref(), Some(no_calendar));
        let other = "no period of the rule at a.yaml:13:10 begins at the anchor sunday: it counts by the calendar month (UTC, from day 3)";
        assert_eq!(anchored(&[("month", "a")], "sunday").as_deref(), Some(other));
        let not_by = |key, algorithm| rules.why_not_by("shop", &[Entry { key, value: "a" }], algorithm);
        assert_eq!(
            [not_by("app", Algorithm::SlidingLog), not_by("tenant", Algorithm::FixedWindow)],
            [None, None]
        );
        let classes =
            "`algorithm` is fixed_window, which does not go with the `classes` of the rule at a.yaml:9:10";
        assert_eq!(not_by("app", Algorithm::FixedWindow).as_deref(), Some(classes));
        let cut = |key, requests, other| {
            let entries = [Entry { key, value: "a" }];
            rules.why_cut("shop", &entries, requests, other)
        };
        let (most, log) = (u32::MAX.into(), Some(Algorithm::SlidingLog));
        assert_eq!(
            [cut("app", most, None), cut("month", most + 1, log), cut("tenant", most + 1, None)],
            [None, None, None]
        );
        let window = "4294967296 is cut to 4294967295: the rule at a.yaml:9:10 counts by sliding_window, which has no more";
        assert_eq!(cut("app", most + 1, None).as_deref(), Some(window));
        assert!(cut("app", 100_001, log).is_some_and(|why| why.starts_with("100001 is cut to 100000: ")));
        let app = [("app", "a"), ("priority", "batch")].map(|(key, value)| Entry { key, value });
        assert_eq!([&app[..1], &app[..]].map(|entries| rules.reads_record("shop", entries)), [true, false]);
        assert!(
            rules.why_unread("shop", &app).is_some_and(|why| why.starts_with("priority=batch names a class"))
        );
    }
}
