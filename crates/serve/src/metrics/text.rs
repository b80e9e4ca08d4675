//! The Prometheus text format: families, samples, escaping.
//!
//! Its callers decide which families there are.

use std::collections::BTreeMap;
use std::fmt::{Display, Write};
use std::sync::Arc;

use tidegate_engine::text::lines;

tidegate_engine::named! {
    /// The type of a family.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum MetricType {
        /// Only grows.
        Counter = "counter",
        /// Goes up and down.
        Gauge = "gauge",
        /// Counts values up to each of several bounds.
        Histogram = "histogram",
    }
}

/// The text of metrics so far, and the labels that every sample carries.
#[derive(Clone, Debug, Default)]
pub(super) struct Page {
    pub(super) text: String,
    /// Names and values, already escaped for the text format.
    constant: Arc<[(String, String)]>,
}

/// Writes the samples of one family.
pub struct Samples<'a> {
    page: &'a mut Page,
    family: &'a str,
}

impl Page {
    /// An empty page on which every sample carries these labels. Invalid label names are made valid.
    pub(super) fn with_labels(labels: &[(String, String)]) -> Self {
        let constant = labels.iter().map(|(name, value)| {
            let mut escaped = String::new();
            escape(&mut escaped, value);
            (label_name(name), escaped)
        });
        let constant: BTreeMap<_, _> = constant.collect();
        Self { text: String::new(), constant: constant.into_iter().collect() }
    }

    /// The labels of a sample, in braces; an empty text when there are none.
    pub(super) fn labels<'t>(&self, own: impl Iterator<Item = (&'t str, &'t str)> + Clone) -> String {
        let mut labels = String::new();
        self.write_labels(&mut labels, own.map(|(name, value)| (name, [value])));
        labels
    }

    fn write_labels<'t, Texts: IntoIterator<Item = &'t str>>(
        &self,
        out: &mut String,
        own: impl Iterator<Item = (&'t str, Texts)> + Clone,
    ) {
        let mut before = "{";
        let is_own = |name: &str| own.clone().any(|(own, _)| own == name);
        for (name, value) in self.constant.iter() {
            // Only a mapping can repeat a name here: the names of our own families were replaced at the start.
            let exported = is_own(name).then(|| exported(name));
            let name = exported.as_ref().unwrap_or(name);
            if exported.is_some() && (is_own(name) || self.constant().any(|(other, _)| other == name)) {
                continue;
            }
            out.extend([before, name, "=\"", value, "\""]);
            before = ",";
        }
        for (name, texts) in own {
            out.extend([before, name, "=\""]);
            texts.into_iter().for_each(|text| escape(out, text));
            out.push('"');
            before = ",";
        }
        out.push_str(if before == "," { "}" } else { "" });
    }

    /// Adds a sample. `labels` is their text, with braces.
    pub(super) fn line(&mut self, name: &str, labels: &str, value: impl Display) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "{name}{labels} {value}");
    }

    /// The labels that every sample carries.
    pub(super) fn constant(&self) -> impl Iterator<Item = (&str, &str)> {
        self.constant.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

/// Labels of our own families. `tests/blackbox/promtool.rs` compares the list with a scrape.
const OWN_LABELS: [&str; 24] = [
    "answer",
    "by",
    "candidate",
    "code",
    "cost",
    "domain",
    "effect",
    "err_type",
    "event",
    "front",
    "grpc_method",
    "hash",
    "key1",
    "key2",
    "kind",
    "le",
    "limit",
    "outcome",
    "port",
    "reason",
    "rule",
    "store",
    "to",
    "version",
];

/// The new name of a constant label that a sample has too. Prometheus renames labels of its targets the same way.
fn exported(name: &str) -> String {
    format!("exported_{name}")
}

/// A valid label name: `_` replaces other characters and precedes a digit; a name in [`OWN_LABELS`] is changed.
fn label_name(name: &str) -> String {
    let valid = |char: char| if char.is_ascii_alphanumeric() { char } else { '_' };
    let digit = name.starts_with(|first: char| first.is_ascii_digit()) || name.is_empty();
    let name: String = digit.then_some('_').into_iter().chain(name.chars().map(valid)).collect();
    if OWN_LABELS.contains(&name.as_str()) { exported(&name) } else { name }
}

impl<'a> Samples<'a> {
    /// Begins a family.
    pub(super) fn of(page: &'a mut Page, family: &'a str, help: &str, kind: MetricType) -> Self {
        header(page, family, help, kind.name());
        Self { page, family }
    }

    /// Continues a family whose header is written.
    pub(super) fn resume(page: &'a mut Page, family: &'a str) -> Self {
        Self { page, family }
    }

    /// Adds a sample. Label names are written as they are, values are escaped.
    pub fn push(&mut self, labels: &[(&str, &str)], value: impl Display) {
        self.push_parts(labels.iter().map(|&(name, text)| (name, [text])), value);
    }

    /// Adds the samples of a histogram of durations. `bounds` (inclusive, ascending) and `sum` are in nanoseconds.
    /// `counts` has the count of each bucket alone, not cumulative, and last the count beyond all bounds.
    pub fn push_durations(&mut self, labels: &[(&str, &str)], bounds: &[u64], counts: &[u64], sum: u64) {
        let family = self.family;
        let seconds = bounds.iter().map(|&nanos| (nanos as f64 / 1e9).to_string());
        let mut total = 0;
        for (bound, count) in seconds.chain(["+Inf".to_owned()]).zip(counts) {
            total += count;
            let labels = self.page.labels(labels.iter().copied().chain([("le", bound.as_str())]));
            self.page.line(&format!("{family}_bucket"), &labels, total);
        }
        let labels = self.page.labels(labels.iter().copied());
        self.page.line(&format!("{family}_sum"), &labels, sum as f64 / 1e9);
        self.page.line(&format!("{family}_count"), &labels, total);
    }

    /// Adds a sample. Each label value is given in parts, which are concatenated.
    pub(super) fn push_parts<'t, Texts: IntoIterator<Item = &'t str>>(
        &mut self,
        labels: impl IntoIterator<Item = (&'t str, Texts), IntoIter: Clone>,
        value: impl Display,
    ) {
        let mut out = std::mem::take(&mut self.page.text);
        out.push_str(self.family);
        self.page.write_labels(&mut out, labels.into_iter());
        // Writing to a string cannot fail.
        let _ = writeln!(out, " {value}");
        self.page.text = out;
    }
}

/// Writes the header of a family.
pub(super) fn header(page: &mut Page, family: &str, help: &str, kind: &str) {
    page.text.extend(["# HELP ", family, " ", help, "\n# TYPE ", family, " ", kind, "\n"]);
}

/// Writes a label's value: `\`, `"` and the line feed are escaped, as the format wants it. Characters that could steer a
/// terminal or reorder a line are written as logs do, because people read this page too.
fn escape(out: &mut String, value: &str) {
    let value = lines(value);
    let mut value = &*value;
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
        let mut page = Page::default();
        let mut samples = Samples::of(&mut page, "hits", "What was hit.", MetricType::Counter);
        samples.push(&[], 1_u64);
        samples.push(&[("domain", "a\\b\"c\nd"), ("key1", "")], 0.5);
        samples.push_parts([("rule", ["a", ".", "\"b"])], 3);
        samples.push(&[("key1", "a\u{1b}[2J\u{202e}")], 7);
        let expected = "# HELP hits What was hit.\n# TYPE hits counter\n\
                        hits 1\n\
                        hits{domain=\"a\\\\b\\\"c\\nd\",key1=\"\"} 0.5\n\
                        hits{rule=\"a.\\\"b\"} 3\n\
                        hits{key1=\"a\\\\u{1b}[2J\\\\u{202e}\"} 7\n";
        assert_eq!(page.text, expected);
    }

    #[test]
    fn durations_are_a_histogram_of_seconds() {
        let mut page = Page::default();
        let mut samples = Samples::of(&mut page, "took_seconds", "Time.", MetricType::Histogram);
        samples.push_durations(&[("store", "main")], &[250, 1_000_000], &[2, 3, 1], 7_000_000_000);
        let expected = "# HELP took_seconds Time.\n# TYPE took_seconds histogram\n\
                        took_seconds_bucket{store=\"main\",le=\"0.00000025\"} 2\n\
                        took_seconds_bucket{store=\"main\",le=\"0.001\"} 5\n\
                        took_seconds_bucket{store=\"main\",le=\"+Inf\"} 6\n\
                        took_seconds_sum{store=\"main\"} 7\n\
                        took_seconds_count{store=\"main\"} 6\n";
        assert_eq!(page.text, expected);
    }

    #[test]
    fn every_sample_carries_the_labels_of_its_page() {
        let labels = [("1 env", "\"p\""), ("domain", "d"), ("az", "a"), ("az", "b")];
        let mut page = Page::with_labels(&labels.map(|(name, value)| (name.to_owned(), value.to_owned())));
        let constant = "_1_env=\"\\\"p\\\"\",az=\"b\",exported_domain=\"d\"";
        let exported = constant.replace("az=", "exported_az=");
        assert_eq!(page.labels([("az", "own")].into_iter()), format!("{{{exported},az=\"own\"}}"));
        let mut samples = Samples::of(&mut page, "hits", "H.", MetricType::Gauge);
        samples.push(&[], 1);
        samples.push(&[("a", "b")], 2);
        let lines: Vec<_> = page.text.lines().skip(2).collect();
        assert_eq!(lines, [format!("hits{{{constant}}} 1"), format!("hits{{{constant},a=\"b\"}} 2")]);
    }
}
