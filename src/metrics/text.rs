//! The Prometheus text format: families, samples, escaping.
//!
//! It writes what it is given; which families there are is the business of its callers.

use std::fmt::{Display, Write};

/// What a family's numbers mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
}

/// The samples of one family, as it is written.
pub struct Samples<'a> {
    out: &'a mut String,
    family: &'a str,
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
        }
    }
}

impl<'a> Samples<'a> {
    /// Begins a family.
    pub(super) fn of(out: &'a mut String, family: &'a str, help: &str, kind: Kind) -> Self {
        header(out, family, help, kind.name());
        Self { out, family }
    }

    /// Goes on with a family that was begun.
    pub(super) fn go_on(out: &'a mut String, family: &'a str) -> Self {
        Self { out, family }
    }

    /// Adds a sample. Label names are written as they are, values are escaped.
    pub fn push(&mut self, labels: &[(&str, &str)], value: impl Display) {
        self.push_joined(labels.iter().map(|&(name, text)| (name, [text])), value);
    }

    /// Adds a sample whose labels' values are each made of several texts.
    pub(super) fn push_joined<'t, Texts: IntoIterator<Item = &'t str>>(
        &mut self,
        labels: impl IntoIterator<Item = (&'t str, Texts)>,
        value: impl Display,
    ) {
        self.out.push_str(self.family);
        let mut before = "{";
        for (name, texts) in labels {
            self.out.extend([before, name, "=\""]);
            texts.into_iter().for_each(|text| escape(self.out, text));
            self.out.push('"');
            before = ",";
        }
        self.out.push_str(if before == "," { "}" } else { "" });
        // Writing to a string cannot fail.
        let _ = writeln!(self.out, " {value}");
    }
}

/// Begins a family of any type.
pub(super) fn header(out: &mut String, family: &str, help: &str, kind: &str) {
    out.extend(["# HELP ", family, " ", help, "\n# TYPE ", family, " ", kind, "\n"]);
}

/// Writes a label's value: `\`, `"` and the line feed are escaped, everything else stands for itself.
fn escape(out: &mut String, mut value: &str) {
    while let Some(at) = value.find(['\\', '"', '\n']) {
        let (plain, rest) = value.split_at(at);
        out.push_str(plain);
        out.push_str(match rest.as_bytes()[0] {
            b'\\' => "\\\\",
            b'"' => "\\\"",
            _ => "\\n",
        });
        value = &rest[1..];
    }
    out.push_str(value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_follow_the_text_format() {
        let mut out = String::new();
        let mut samples = Samples::of(&mut out, "hits", "What was hit.", Kind::Counter);
        samples.push(&[], 1_u64);
        samples.push(&[("domain", "a\\b\"c\nd"), ("key1", "")], 0.5);
        samples.push_joined([("rule", ["a", ".", "\"b"])], 3);
        let expected = "# HELP hits What was hit.\n# TYPE hits counter\n\
                        hits 1\n\
                        hits{domain=\"a\\\\b\\\"c\\nd\",key1=\"\"} 0.5\n\
                        hits{rule=\"a.\\\"b\"} 3\n";
        assert_eq!(out, expected);
    }
}
