//! The file of a mapping, in YAML. Every key has an effect; unknown keys are refused with their place.

use regex::Regex;

use super::{Mapping, MappingRule, Match, Metric, Template};
use tidegate_engine::rules::Diagnostic;
use tidegate_yaml::Place;
use tidegate_yaml::{Budget, Content, Document, NodeId};

/// The buckets of statsd_exporter for a histogram that names none, in the histogram's own unit.
const BUCKETS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// The most buckets of a histogram.
const BUCKETS_MAX: usize = 100;

/// The keys of a rule, for error texts.
const KEYS: &str = "match, match_type, match_metric_type, name, labels, help, action, scale, observer_type, timer_type, \
                    buckets or histogram_options";

/// A problem, before the name of the file is added.
type Problem = (Place, String);

struct File<'t> {
    document: Document<'t>,
}

/// The fields of a rule as they are read, not yet checked.
#[derive(Default)]
struct RuleFields<'t> {
    pattern: Option<(Place, &'t str)>,
    is_regex: bool,
    only: Option<Metric>,
    name: Option<(Place, &'t str)>,
    labels: Vec<(String, String)>,
    help: Option<String>,
    is_drop: bool,
    scale: Option<f64>,
    is_histogram: bool,
    buckets: Option<Vec<f64>>,
}

impl Mapping {
    /// Reads a file of this name.
    /// Fails with all problems, each with its place.
    pub fn parse(file: &str, text: &str) -> Result<Self, Vec<Diagnostic>> {
        let diagnostic = |(Place { line, column }, message): Problem| Diagnostic {
            file: file.to_owned(),
            line,
            column,
            message,
        };
        let document = Document::parse(text, &mut Budget::of_set(text.len()));
        let file = File { document: document.map_err(|problem| vec![diagnostic(problem)])? };
        let mut problems = Vec::new();
        let rules = file.rules(&mut problems);
        match problems.is_empty() {
            true => Ok(Self { rules }),
            false => Err(problems.into_iter().map(diagnostic).collect()),
        }
    }
}

impl File<'_> {
    fn rules(&self, problems: &mut Vec<Problem>) -> Vec<MappingRule> {
        let mut rules = Vec::new();
        let top = self.document.root.map_or(Ok(Vec::new()), |root| self.entries(root));
        for (at, key, value) in top.unwrap_or_else(|problem| report(problems, problem)) {
            if key != "mappings" {
                problems.push((at, format!("`{key}` is not supported (expected mappings)")));
                continue;
            }
            for item in self.items(value).unwrap_or_else(|problem| report(problems, problem)) {
                match self.rule(item) {
                    Ok(rule) => rules.push(rule),
                    Err(problem) => problems.push(problem),
                }
            }
        }
        rules
    }

    fn rule(&self, id: NodeId) -> Result<MappingRule, Problem> {
        let mut fields = RuleFields::default();
        for (at, key, value) in self.entries(id)? {
            self.read(&mut fields, at, key, value)?;
        }
        fields.check(self.document.node(id).at)
    }

    fn read<'f>(
        &'f self,
        fields: &mut RuleFields<'f>,
        at: Place,
        key: &str,
        value: NodeId,
    ) -> Result<(), Problem> {
        let place = self.document.node(value).at;
        match key {
            "match" => fields.pattern = Some((place, self.text(value)?)),
            "match_type" => fields.is_regex = self.word(value, &[("glob", false), ("regex", true)])?,
            "match_metric_type" => {
                let kinds = [
                    ("counter", Metric::Counter),
                    ("gauge", Metric::Gauge),
                    ("observer", Metric::Observer),
                    ("timer", Metric::Observer),
                ];
                fields.only = Some(self.word(value, &kinds)?);
            }
            "name" => fields.name = Some((place, self.text(value)?)),
            "labels" => fields.labels = self.labels(value)?,
            "help" => fields.help = Some(self.text(value)?.replace('\\', r"\\").replace('\n', r"\n")),
            "action" => fields.is_drop = self.word(value, &[("map", false), ("drop", true)])?,
            "scale" => fields.scale = Some(self.number(value)?),
            "observer_type" | "timer_type" => {
                fields.is_histogram = self.word(value, &[("histogram", true), ("summary", false)])?;
            }
            "buckets" => fields.buckets = Some(self.buckets(value)?),
            "histogram_options" => {
                for (at, key, value) in self.entries(value)? {
                    if key != "buckets" {
                        return Err((at, format!("`{key}` is not supported (expected buckets)")));
                    }
                    fields.buckets = Some(self.buckets(value)?);
                }
            }
            _ => return Err((at, format!("`{key}` is not supported (expected {KEYS})"))),
        }
        Ok(())
    }

    fn labels(&self, id: NodeId) -> Result<Vec<(String, String)>, Problem> {
        let mut labels = Vec::new();
        for (at, name, value) in self.entries(id)? {
            if !is_label(name) {
                return Err((
                    at,
                    format!("`{name}` is no name of a label (expected letters, digits and `_`)"),
                ));
            }
            labels.push((name.to_owned(), self.text(value)?.to_owned()));
        }
        labels.sort();
        Ok(labels)
    }

    fn buckets(&self, id: NodeId) -> Result<Vec<f64>, Problem> {
        let buckets: Result<Vec<f64>, Problem> =
            self.items(id)?.into_iter().map(|item| self.number(item)).collect();
        let buckets = buckets?;
        let ascend = buckets.is_sorted_by(|a, b| a < b) && buckets.len() <= BUCKETS_MAX;
        let expected = || format!("buckets (expected at most {BUCKETS_MAX} ascending numbers)");
        ascend.then_some(buckets).ok_or_else(|| (self.document.node(id).at, expected()))
    }

    fn number(&self, id: NodeId) -> Result<f64, Problem> {
        let number = self.text(id)?.parse().ok().filter(|number: &f64| number.is_finite() && *number > 0.0);
        number.ok_or_else(|| (self.document.node(id).at, "expected a number above 0".to_owned()))
    }

    fn word<T: Copy>(&self, id: NodeId, words: &[(&str, T)]) -> Result<T, Problem> {
        let text = self.text(id)?;
        let word = words.iter().find(|(word, _)| *word == text).map(|&(_, meaning)| meaning);
        word.ok_or_else(|| {
            let expected: Vec<_> = words.iter().map(|(word, _)| *word).collect();
            (self.document.node(id).at, format!("`{text}` (expected {})", expected.join(" or ")))
        })
    }

    fn text(&self, id: NodeId) -> Result<&str, Problem> {
        let node = self.document.node(id);
        match &node.content {
            Content::Scalar(scalar) => Ok(&scalar.text),
            _ => Err((node.at, "expected a value".to_owned())),
        }
    }

    fn items(&self, id: NodeId) -> Result<Vec<NodeId>, Problem> {
        let node = self.document.node(id);
        match &node.content {
            Content::Sequence(items) => Ok(items.clone()),
            Content::Scalar(scalar) if scalar.is_null() => Ok(Vec::new()),
            _ => Err((node.at, "expected a list".to_owned())),
        }
    }

    fn entries(&self, id: NodeId) -> Result<Vec<(Place, &str, NodeId)>, Problem> {
        let node = self.document.node(id);
        let Content::Mapping(entries) = &node.content else {
            return Err((node.at, "expected keys and values".to_owned()));
        };
        let entry =
            |&(key, value): &(NodeId, NodeId)| Ok((self.document.node(key).at, self.text(key)?, value));
        entries.iter().map(entry).collect()
    }
}

impl RuleFields<'_> {
    fn check(self, at: Place) -> Result<MappingRule, Problem> {
        let (pattern_at, pattern) = self.pattern.ok_or_else(|| (at, "`match` is missing".to_owned()))?;
        let matches = match self.is_regex {
            true => Regex::new(pattern).map(Match::Regex).map_err(|error| (pattern_at, error.to_string()))?,
            false => glob(pattern)
                .ok_or_else(|| (pattern_at, format!("`{pattern}` is no glob (expected a.*.b)")))?,
        };
        let (name_at, name) = match self.name {
            Some(name) => name,
            None if self.is_drop => (at, ""),
            None => return Err((at, "`name` is missing".to_owned())),
        };
        if !self.is_drop && !is_name(name) {
            let expected = "expected letters, digits, `_`, and `$1`";
            return Err((name_at, format!("`{name}` is no name of a metric ({expected})")));
        }
        let template = Template {
            name: name.to_owned(),
            labels: self.labels,
            help: self.help,
            scale: self.scale.unwrap_or(1.0),
            histogram: self.is_histogram.then(|| self.buckets.unwrap_or_else(|| BUCKETS.to_vec())),
        };
        Ok(MappingRule { matches, only: self.only, target: (!self.is_drop).then_some(template) })
    }
}

/// Adds a problem to the list. Returns an empty value in place of the one that could not be read.
fn report<T: Default>(problems: &mut Vec<Problem>, problem: Problem) -> T {
    problems.push(problem);
    T::default()
}

/// Parses a glob: parts with dots between them, each `*` or made of letters, digits, `_` and `-`.
fn glob(pattern: &str) -> Option<Match> {
    let literal = |part: &str| !part.is_empty() && part.bytes().all(|byte| is_word(byte) || byte == b'-');
    let part = |part: &str| match part {
        "*" => Some(None),
        text => literal(text).then(|| Some(text.to_owned())),
    };
    pattern.split('.').map(part).collect::<Option<_>>().map(Match::Glob)
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Whether it is a metric name, which may hold references such as `$1`.
fn is_name(name: &str) -> bool {
    let first = name.starts_with(|first: char| first.is_ascii_alphabetic() || matches!(first, '_' | '$'));
    first && name.bytes().all(|byte| is_word(byte) || b"${}".contains(&byte))
}

/// Whether it is a label name. `le` is not allowed, because histograms use it.
fn is_label(name: &str) -> bool {
    !name.is_empty() && !name.as_bytes()[0].is_ascii_digit() && name.bytes().all(is_word) && name != "le"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(text: &str) -> Vec<String> {
        let problems = Mapping::parse("m.yaml", text).expect_err(text);
        problems.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn every_problem_is_reported_with_its_place() {
        let text = "defaults: {ttl: 1s}\nmappings:\n- match: a.*\n  ttl: 1s\n- {match: a, name: b, scale: 0}\n- name: b\n";
        let expected = [
            "m.yaml:1:1: `defaults` is not supported (expected mappings)",
            &format!("m.yaml:4:3: `ttl` is not supported (expected {KEYS})"),
            "m.yaml:5:30: expected a number above 0",
            "m.yaml:6:3: `match` is missing",
        ];
        assert_eq!(problems(text), expected);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for rule in [
            "{match: a}",
            "{match: a, name: ''}",
            "{match: a, name: 0b}",
            "{match: a, name: a.b}",
            "{match: a..b, name: b}",
            "{match: 'a b', name: b}",
            "{match: a*, name: b}",
            "{match: '(', match_type: regex, name: b}",
            "{match: a, match_type: prefix, name: b}",
            "{match: a, match_metric_type: set, name: b}",
            "{match: a, action: keep, name: b}",
            "{match: a, name: b, labels: {0a: c}}",
            "{match: a, name: b, labels: {le: c}}",
            "{match: a, name: b, labels: c}",
            "{match: a, name: b, buckets: [2, 1]}",
            "{match: a, name: b, buckets: [x]}",
            "{match: a, name: b, histogram_options: {native: 1}}",
            "{match: [a], name: b}",
            "a",
        ] {
            assert_eq!(problems(&format!("mappings:\n- {rule}\n")).len(), 1, "{rule}");
        }
        assert_eq!(problems("mappings: {a: b}\n").len(), 1);
        assert_eq!(problems("- a\n").len(), 1);
        assert_eq!(problems("mappings: [").len(), 1);
    }

    #[test]
    fn an_empty_file_maps_nothing() {
        for text in ["", "mappings:\n", "mappings: []\n"] {
            assert!(Mapping::parse("m.yaml", text).expect("good").rules.is_empty(), "{text}");
        }
    }
}
