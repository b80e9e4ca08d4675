//! The metrics of a limiter as values, for a host that has statistics of its own.
//!
//! In: the text that `/metrics` of the server has. Out: its samples that are whole numbers, and the growth of each
//! counter since the host last got it.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;

use super::Inside;
use crate::clock::monotonic;

/// For this long after the samples were shown, nobody has to show them again.
const SHOWN_FOR: Duration = Duration::from_millis(500);

/// The values that the host got of metrics about the counters in memory, which all limiters of the process share.
static OF_PROCESS: Mutex<Option<Shown>> = Mutex::new(None);

/// The last value that the host got of each counter, by its name and labels as they are written.
pub(super) type Shown = HashMap<Box<str>, u64>;

/// A value of a family of metrics.
#[derive(Debug, PartialEq, Eq)]
pub struct Sample<'t> {
    /// The name of the family.
    pub family: &'t str,
    labels: Vec<(&'t str, String)>,
    /// The name and labels, as they are written.
    name: &'t str,
    /// The value.
    pub value: u64,
}

impl<'t> Sample<'t> {
    /// A line of the text. `None`: it is a comment, or its value is no whole number.
    fn parse(line: &'t str) -> Option<Self> {
        let (name, value) = line.rsplit_once(' ')?;
        let value = value.parse().ok()?;
        let (family, labels) = name.split_once('{').unwrap_or((name, ""));
        Some(Self { family, labels: parse_labels(labels), name, value })
    }

    /// The value of a label. Empty: it has none.
    pub fn label(&self, name: &str) -> &str {
        self.labels.iter().find(|(of, _)| *of == name).map_or("", |(_, value)| value)
    }
}

impl Inside {
    /// Calls `show` with every sample of the metrics, unless they were shown a moment ago: many configurations of a
    /// host may share a limiter, and show the same statistics.
    pub fn samples(&self, mut show: impl FnMut(&Sample<'_>)) {
        let (mut shown_at, now) = (self.shown_at.lock(), monotonic());
        if shown_at.is_some_and(|at| now < at + SHOWN_FOR) {
            return;
        }
        *shown_at = Some(now);
        drop(shown_at);
        for piece in self.handler.scrape() {
            piece.lines().filter_map(Sample::parse).for_each(|sample| show(&sample));
        }
    }

    /// The growth of a counter since the last call. `of_process`: all limiters show the same counter.
    pub fn growth(&self, counter: &Sample<'_>, of_process: bool) -> u64 {
        match of_process {
            true => growth(OF_PROCESS.lock().get_or_insert_default(), counter),
            false => growth(&mut self.shown.lock(), counter),
        }
    }
}

fn growth(shown: &mut Shown, counter: &Sample<'_>) -> u64 {
    let before = match shown.get_mut(counter.name) {
        Some(shown) => std::mem::replace(shown, counter.value),
        None => shown.insert(counter.name.into(), counter.value).unwrap_or_default(),
    };
    counter.value.saturating_sub(before)
}

/// The labels of a line, after their opening brace.
fn parse_labels(mut text: &str) -> Vec<(&str, String)> {
    let mut labels = Vec::new();
    while let Some((name, quoted)) = text.split_once("=\"") {
        let (mut value, mut chars) = (String::new(), quoted.chars());
        loop {
            match chars.next() {
                None | Some('"') => break,
                Some('\\') => value.extend(chars.next().map(|char| if char == 'n' { '\n' } else { char })),
                Some(char) => value.push(char),
            }
        }
        labels.push((name.trim_start_matches(','), value));
        text = chars.as_str();
    }
    labels
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_samples_if_their_values_are_whole() {
        let line = r#"hits{domain="a b",key1="x\"\\y\nz",rule=""} 7"#;
        let sample = Sample::parse(line).expect("a sample");
        assert_eq!((sample.family, sample.value), ("hits", 7));
        assert_eq!(
            ["domain", "key1", "rule", "none"].map(|name| sample.label(name)),
            ["a b", "x\"\\y\nz", "", ""]
        );
        assert_eq!(Sample::parse("up 1").map(|sample| (sample.family, sample.value)), Some(("up", 1)));
        for none in ["# TYPE up gauge", "seconds_sum 0.5", "", "below -1"] {
            assert_eq!(Sample::parse(none), None, "{none}");
        }
    }

    #[test]
    fn a_counter_has_grown_by_what_came_since() {
        let mut shown = Shown::new();
        let mut grown = |line| growth(&mut shown, &Sample::parse(line).expect("a sample"));
        let lines = [r#"a{x="1"} 3"#, r#"a{x="2"} 5"#, r#"a{x="1"} 3"#, r#"a{x="1"} 10"#, r#"a{x="1"} 2"#];
        assert_eq!(lines.map(&mut grown), [3, 5, 0, 7, 0]);
    }
}
