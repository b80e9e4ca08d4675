//! A rule's path in metrics: the names of its nodes, and where it contains values of the request.
//!
//! In: the nodes on a rule's path, or the entries of a descriptor. Out: one name per level. Metrics join the names
//! with dots, make labels of them, and bound how many different ones there are.

use std::borrow::Cow;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::request::Entry;

/// The names of one path, from the first level to the last.
pub type MetricPath<'a> = SmallVec<[Cow<'a, str>; 4]>;

/// The path of a rule in metrics: one name per level.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MetricName {
    rolled_up: Vec<Arc<str>>,
    /// The first levels, which name the series that the rule counts in.
    counted: usize,
    /// What replaces the rolled-up names; empty when no level holds a value of a request.
    dynamic: Vec<Level>,
}

/// What one level's name is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    /// The same for every request.
    Constant,
    /// `key_value`; the key alone for an empty value.
    Value,
    /// `key_value`, also for an empty value.
    Detailed,
}

/// What the name of one node on a rule's path needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NamedNode<'a> {
    pub(crate) name: &'a Arc<str>,
    /// Requests with different values match this node, and have different counters.
    pub(crate) varies: bool,
    pub(crate) value_to_metric: bool,
}

impl MetricName {
    /// The name of a rule at the end of this path, which counts in the series of its first `counted` levels;
    /// `detailed` is the `detailed_metric` of the last of these. The names of nodes are shared by all rules below
    /// them.
    pub(crate) fn of_path<'a>(
        path: impl Iterator<Item = NamedNode<'a>> + Clone,
        counted: usize,
        detailed: bool,
    ) -> Self {
        let level = |node: NamedNode<'_>| match (node.varies, detailed, node.value_to_metric) {
            (true, true, _) => Level::Detailed,
            (true, false, true) => Level::Value,
            _ => Level::Constant,
        };
        let dynamic: Vec<Level> = path.clone().take(counted).map(level).collect();
        let is_static = dynamic.iter().all(|&level| level == Level::Constant);
        Self {
            rolled_up: path.map(|node| node.name.clone()).collect(),
            counted,
            dynamic: if is_static { Vec::new() } else { dynamic },
        }
    }

    /// The path of an override on a descriptor with these entries.
    pub fn of_entries<'a>(entries: &[Entry<'_>]) -> MetricPath<'a> {
        entries.iter().map(|entry| seen(entry, Level::Value)).collect()
    }

    /// Whether the path contains values of the request, so that it has to be [resolved](Self::resolve) for each one.
    pub fn is_dynamic(&self) -> bool {
        !self.dynamic.is_empty()
    }

    /// The full path, without any value of a request.
    pub fn rolled_up(&self) -> &[Arc<str>] {
        &self.rolled_up
    }

    /// The levels that name the series that the rule counts in, also when there are too many different values. Empty
    /// with `metrics: aggregate` at the first level.
    pub fn counted(&self) -> &[Arc<str>] {
        self.rolled_up.get(..self.counted).unwrap_or(&self.rolled_up)
    }

    /// The counted path for a request whose entries matched this rule; one entry for each level of its path.
    pub fn resolve<'a>(&'a self, entries: &[Entry<'_>]) -> MetricPath<'a> {
        let name = |(index, name): (usize, &'a Arc<str>)| match (self.dynamic.get(index), entries.get(index))
        {
            (Some(&level), Some(entry)) if level != Level::Constant => seen(entry, level),
            _ => Cow::Borrowed(&**name),
        };
        self.counted().iter().enumerate().map(name).collect()
    }
}

/// The name of a node.
pub(crate) fn name_of_node(key: &str, value: Option<&str>) -> Arc<str> {
    sanitize(value.map_or_else(|| key.to_owned(), |value| format!("{key}_{value}"))).into()
}

/// A level's name with the value seen.
fn seen<'a>(entry: &Entry<'_>, level: Level) -> Cow<'a, str> {
    if entry.value.is_empty() && level != Level::Detailed {
        return Cow::Owned(sanitize(entry.key.to_owned()));
    }
    Cow::Owned(sanitize(format!("{}_{}", entry.key, entry.value)))
}

/// `:`, `|` and the dots of IPv4 addresses become `_`, as they do in `envoyproxy/ratelimit`.
fn sanitize(name: String) -> String {
    if !name.contains([':', '|', '.']) {
        return name;
    }
    let mut bytes = name.replace([':', '|'], "_").into_bytes();
    let mut at = 0;
    while at < bytes.len() {
        match ipv4_len(&bytes[at..]) {
            Some(len) => {
                let address = &mut bytes[at..at + len];
                address.iter_mut().filter(|byte| **byte == b'.').for_each(|byte| *byte = b'_');
                at += len;
            }
            None => at += 1,
        }
    }
    String::from_utf8(bytes).expect("only ASCII characters were replaced by ASCII characters")
}

/// The length of the IPv4 address at the front of `bytes`: four numbers of one to three digits, separated by dots.
fn ipv4_len(bytes: &[u8]) -> Option<usize> {
    let mut len = 0;
    for part in 0..4 {
        if part > 0 {
            (bytes.get(len) == Some(&b'.')).then_some(())?;
            len += 1;
        }
        let digits = bytes[len..].iter().take(3).take_while(|byte| byte.is_ascii_digit()).count();
        (digits > 0).then_some(())?;
        len += digits;
    }
    Some(len)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The path `wild: foo*`, `user`, `ip: 10.1.2.3:80`, whose levels have this `value_to_metric`.
    fn path(value_to_metric: [bool; 3], shared: bool, detailed: bool) -> MetricName {
        let names = [("wild", Some("foo*")), ("user", None), ("ip", Some("10.1.2.3:80"))];
        let names = names.map(|(key, value)| name_of_node(key, value));
        let nodes = names.iter().zip([!shared, true, false]).zip(value_to_metric);
        MetricName::of_path(
            nodes.map(|((name, varies), value_to_metric)| NamedNode { name, varies, value_to_metric }),
            names.len(),
            detailed,
        )
    }

    fn resolved(name: &MetricName, wild: &str, user: &str) -> Vec<String> {
        let seen = entries(&[("wild", wild), ("user", user), ("ip", "10.1.2.3:80")]);
        name.resolve(&seen).into_iter().map(Cow::into_owned).collect()
    }

    fn entries<'a>(values: &[(&'a str, &'a str)]) -> Vec<Entry<'a>> {
        values.iter().map(|&(key, value)| Entry { key, value }).collect()
    }

    #[test]
    fn a_static_path_keeps_patterns_and_loses_separators() {
        let name = path([false, false, true], false, false);
        assert!(!name.is_dynamic());
        assert_eq!(resolved(&name, "foobar", "alice"), ["wild_foo*", "user", "ip_10_1_2_3_80"]);
    }

    #[test]
    fn detailed_puts_the_value_seen_into_every_level() {
        let name = path([false, true, false], false, true);
        assert!(name.is_dynamic());
        assert_eq!(resolved(&name, "foobar", ""), ["wild_foobar", "user_", "ip_10_1_2_3_80"]);
        let rolled_up: Vec<&str> = name.rolled_up().iter().map(|name| &**name).collect();
        assert_eq!(rolled_up, ["wild_foo*", "user", "ip_10_1_2_3_80"]);
    }

    #[test]
    fn value_to_metric_puts_the_value_seen_into_its_own_level() {
        let name = path([false, true, false], false, false);
        assert_eq!(resolved(&name, "foobar", "a|b"), ["wild_foo*", "user_a_b", "ip_10_1_2_3_80"]);
        assert_eq!(resolved(&name, "foobar", ""), ["wild_foo*", "user", "ip_10_1_2_3_80"]);
    }

    #[test]
    fn a_shared_wildcard_keeps_its_pattern() {
        assert_eq!(resolved(&path([true; 3], true, true), "foobar", "u")[..2], ["wild_foo*", "user_u"]);
    }

    #[test]
    fn the_path_of_an_override_is_made_of_its_entries() {
        assert_eq!(MetricName::of_entries(&entries(&[("a", "b:c"), ("d", "")]))[..], ["a_b_c", "d"]);
    }

    #[test]
    fn only_the_dots_of_addresses_are_replaced() {
        for (name, clean) in [
            ("v1.2.3", "v1.2.3"),
            ("1234.5.6.78", "1234_5_6_78"),
            ("a1.2.3.4567", "a1_2_3_4567"),
            ("1.2.3.4.5", "1_2_3_4.5"),
            ("1.2.3.", "1.2.3."),
        ] {
            assert_eq!(sanitize(name.to_owned()), clean);
        }
    }
}
