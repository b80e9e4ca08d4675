//! The lines of StatsD and of DogStatsD.
//!
//! Names and tags come from rules and requests. Characters in them that would end a line or a field become `_`.

use std::fmt::{Display, Write};

use regex::Regex;
use tidegate_engine::text::is_unsafe;

/// The format of lines, and the tags on every line.
#[derive(Clone, Debug)]
pub enum Dialect {
    /// `name.__k=v:6|c`: tags are part of the name.
    Plain {
        /// The text after every name.
        suffix: String,
    },
    /// `name:6|c|#k:v`.
    Dog {
        /// `k:v,k:v`.
        tags: String,
        /// Rules that rewrite names. The first that matches applies.
        mogrifiers: Vec<Mogrifier>,
    },
}

/// A rule that gives matching names another name, and tags.
#[derive(Clone, Debug)]
pub struct Mogrifier {
    /// The pattern, which may match anywhere in a name.
    pub pattern: Regex,
    /// The new name. `$0`, `$1`, … stand for what was matched.
    pub name: String,
    /// Tags to add. `$0`, `$1`, … in their values stand for what was matched.
    pub tags: Vec<(String, String)>,
}

impl Dialect {
    /// Plain StatsD with these tags.
    pub fn plain(tags: &[(String, String)]) -> Self {
        let part = |text: &str| clean(text, &['.', '=', ':', '|']);
        let suffix = tags.iter().map(|(name, value)| format!(".__{}={}", part(name), part(value)));
        Self::Plain { suffix: suffix.collect() }
    }

    /// DogStatsD with these tags, and with these rules that rewrite names.
    pub fn dog<'a>(tags: impl Iterator<Item = (&'a str, &'a str)>, mogrifiers: Vec<Mogrifier>) -> Self {
        let tags: Vec<_> = tags.map(|(name, value)| tag(name, value)).collect();
        Self::Dog { tags: tags.join(","), mogrifiers }
    }

    /// Writes the line of a counter that has grown by this much.
    pub(super) fn counter(&self, out: &mut String, name: &impl Display, grown: u64) {
        self.line(out, name, format_args!("{grown}|c"));
    }

    /// Writes the line of a duration, in milliseconds.
    pub(super) fn timer(&self, out: &mut String, name: &impl Display, nanos: u64) {
        self.line(out, name, format_args!("{}|ms", nanos as f64 / 1e6));
    }

    fn line(&self, out: &mut String, name: &impl Display, value: impl Display) {
        let name = clean(&name.to_string(), &[':', '|', '#', '@']);
        // Here and below: writing to a string cannot fail.
        let _ = match self {
            Self::Plain { suffix } => writeln!(out, "{name}{suffix}:{value}"),
            Self::Dog { tags, mogrifiers } => {
                let (name, own) = mogrify(name, mogrifiers);
                let (mark, comma) = match (tags.is_empty(), own.is_empty()) {
                    (true, true) => ("", ""),
                    (false, false) => ("|#", ","),
                    _ => ("|#", ""),
                };
                writeln!(out, "{name}:{value}{mark}{tags}{comma}{own}")
            }
        };
    }
}

/// The new name by the first rule that matches, and the tags that the rule adds.
fn mogrify(name: String, mogrifiers: &[Mogrifier]) -> (String, String) {
    let met = mogrifiers.iter().find_map(|rule| Some((rule, rule.pattern.captures(&name)?)));
    let Some((rule, found)) = met else { return (name, String::new()) };
    let expand = |template: &str| {
        let mut expanded = String::new();
        found.expand(template, &mut expanded);
        expanded
    };
    let tags: Vec<_> = rule.tags.iter().map(|(name, value)| tag(name, &expand(value))).collect();
    (clean(&expand(&rule.name), &[':', '|', '#', '@']), tags.join(","))
}

fn tag(name: &str, value: &str) -> String {
    format!("{}:{}", clean(name, &[':', ',', '|']), clean(value, &[',', '|']))
}

/// The text with `_` for these characters and for control characters.
fn clean(text: &str, marks: &[char]) -> String {
    text.replace(|char: char| is_unsafe(char) || marks.contains(&char), "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    fn lines(dialect: &Dialect, name: &str) -> String {
        let mut out = String::new();
        dialect.counter(&mut out, &name, 6);
        dialect.timer(&mut out, &name, 1_250_000);
        out
    }

    #[test]
    fn plain_tags_are_part_of_the_name() {
        assert_eq!(lines(&Dialect::plain(&[]), "a.b"), "a.b:6|c\na.b:1.25|ms\n");
        let tagged = Dialect::plain(&pairs(&[("env", "p.r"), ("az", "1")]));
        assert_eq!(lines(&tagged, "a.b"), "a.b.__env=p_r.__az=1:6|c\na.b.__env=p_r.__az=1:1.25|ms\n");
    }

    #[test]
    fn the_first_mogrifier_that_matches_makes_name_and_tags() {
        let rule = |pattern: &str, name: &str, tags: &[(&str, &str)]| Mogrifier {
            pattern: Regex::new(pattern).expect("a pattern"),
            name: name.to_owned(),
            tags: pairs(tags),
        };
        let rules = vec![
            rule(r"^rate\.(.*)\.(.*)\.(\w+)$", "rate.$3", &[("domain", "$1"), ("d", "x-${2}_")]),
            rule("rate", "never", &[]),
        ];
        let dog = |tags: &[(&'static str, &'static str)]| Dialect::dog(tags.iter().copied(), rules.clone());
        assert_eq!(
            lines(&dog(&[("env", "prod")]), "rate.shop.user,1.hits"),
            "rate.hits:6|c|#env:prod,domain:shop,d:x-user_1_\nrate.hits:1.25|ms|#env:prod,domain:shop,d:x-user_1_\n"
        );
        assert_eq!(lines(&dog(&[]), "other"), "other:6|c\nother:1.25|ms\n");
        assert_eq!(lines(&dog(&[("a", "b:c")]), "other"), "other:6|c|#a:b:c\nother:1.25|ms|#a:b:c\n");
    }

    #[test]
    fn no_name_forges_a_line_or_a_field() {
        assert_eq!(lines(&Dialect::plain(&[]), "a\nb:1|c#@"), "a_b_1_c__:6|c\na_b_1_c__:1.25|ms\n");
    }
}
