//! The rules for a map: a rule for each of its descriptors, with a limit that nothing reaches.
//!
//! In: a map, the name of a domain, a window, an algorithm. Out: a rule file. An entry whose value is only text has that
//! value in the rule too; any other gets a rule without `value`, so that each value has a counter of its own.

use std::fmt::Write as _;

use crate::replay::map::Level;

/// What every rule of the file has.
pub(super) struct Skeleton<'s> {
    pub(super) domain: &'s str,
    /// As rule files write it: `1m`.
    pub(super) window: &'s str,
    pub(super) algorithm: &'s str,
    /// The number of requests, until a better one is found.
    pub(super) requests: u32,
}

/// A node of the tree of rules.
#[derive(Debug, Default)]
struct Node {
    level: Level,
    has_limit: bool,
    below: Vec<Node>,
}

impl Skeleton<'_> {
    /// The rule file for these descriptors.
    pub(super) fn text(&self, descriptors: &[Vec<Level>]) -> String {
        let mut root = Node::default();
        for levels in descriptors {
            root.add(levels);
        }
        let mut text = format!("domain: {}\n", quoted(self.domain));
        self.list(&root.below, 0, &mut text);
        text
    }

    /// Writes nodes, two columns further to the right for each level.
    fn list(&self, nodes: &[Node], indent: usize, text: &mut String) {
        let _ = writeln!(text, "{:indent$}descriptors:", "");
        for node in nodes {
            let (key, value) = &node.level;
            let inside = indent + 4;
            let _ = writeln!(text, "{:1$}- key: {2}", "", indent + 2, quoted(key));
            if let Some(value) = value {
                let _ = writeln!(text, "{:inside$}value: {}", "", quoted(value));
            }
            if node.has_limit {
                let Self { window, algorithm, requests, .. } = self;
                let _ = writeln!(
                    text,
                    "{0:1$}rate_limit:\n{0:1$}  window: {window}\n{0:1$}  requests_per_unit: {requests}\n\
                     {0:1$}  algorithm: {algorithm}",
                    "", inside
                );
            }
            if !node.below.is_empty() {
                self.list(&node.below, inside, text);
            }
        }
    }
}

impl Node {
    fn add(&mut self, levels: &[Level]) {
        let Some((level, rest)) = levels.split_first() else {
            self.has_limit = true;
            return;
        };
        let at = self.below.iter().position(|node| node.level == *level).unwrap_or_else(|| {
            self.below.push(Self { level: level.clone(), ..Self::default() });
            self.below.len() - 1
        });
        self.below[at].add(rest);
    }
}

/// A text in YAML: unquoted if that is safe, else in the quotes of JSON.
fn quoted(text: &str) -> String {
    let is_plain = text.starts_with(|first: char| first.is_ascii_alphabetic())
        && text.chars().all(|char| char.is_ascii_alphanumeric() || matches!(char, '_' | '-' | '.' | '/'))
        && !["true", "false", "null", "yes", "no", "on", "off", "y", "n"]
            .iter()
            .any(|word| text.eq_ignore_ascii_case(word));
    if is_plain { text.to_owned() } else { serde_json::Value::from(text).to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_become_a_tree() {
        let level = |key: &str, value: Option<&str>| (key.to_owned(), value.map(str::to_owned));
        let (path, user) = (level("path", None), level("user id", None));
        let skeleton = Skeleton { domain: "on", window: "1m", algorithm: "sliding_log", requests: 9 };
        let fixed = level("generic_key", Some("a: \"b\""));
        let text = skeleton.text(&[vec![path.clone(), user], vec![path.clone()], vec![fixed], vec![path]]);
        let limit = |indent: &str| {
            format!(
                "{indent}rate_limit:\n{indent}  window: 1m\n{indent}  requests_per_unit: 9\n{indent}  algorithm: sliding_log\n"
            )
        };
        let expected = format!(
            "domain: \"on\"\ndescriptors:\n  - key: path\n{}    descriptors:\n      - key: \"user id\"\n{}  - key: generic_key\n    value: \"a: \\\"b\\\"\"\n{}",
            limit("    "),
            limit("        "),
            limit("    "),
        );
        assert_eq!(text, expected);
    }
}
