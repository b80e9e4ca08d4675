//! A report as one HTML page that loads nothing else: styles, script and drawings are in it.
//!
//! All text from logs is escaped and stays text. The page is complete without its script, which only sorts tables.

mod plot;
mod table;

use std::path::{Path, PathBuf};

use tidegate_engine::Timestamp;
use tidegate_engine::stamp;
use tidegate_engine::text::one_line;

use self::plot::plot;
use self::table::{Cell, Table};
use super::{KeyReport, Report, RuleReport, SideReport};
use crate::replay::Options;
use crate::replay::keys::Numbers;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// Logs that a page names.
const LOGS_SHOWN: usize = 20;

/// A number that a rule and a key have, with the name of its column.
type Column = (&'static str, fn(&Numbers) -> Cell);

/// Counts of requests, by outcome.
const REQUESTS: &[Column] = &[
    ("Requests", |it| Cell::Number(it.requests)),
    ("Admitted", |it| Cell::Number(it.admitted)),
    ("Near the limit", |it| Cell::Number(it.near)),
    ("Denied", |it| Cell::Part(it.denied, it.requests)),
    ("Denied but for shadow mode", |it| Cell::Number(it.shadowed)),
];

/// When, and for how long.
const DENIALS: &[Column] = &[
    ("Most in a row", |it| Cell::Number(it.longest_streak)),
    ("First denial", |it| {
        Cell::As(
            it.first_denied.map(moment).unwrap_or_default(),
            it.first_denied.map_or(0, Timestamp::as_nanos),
        )
    }),
    ("Longest wait", |it| wait(it.worst.map_or(0, |(_, wait)| wait))),
];

/// The source of a report, for people who find the page later.
#[derive(Clone, Copy, Debug)]
pub struct About<'a> {
    /// The logs, in order.
    pub logs: &'a [PathBuf],
    /// How they were read.
    pub options: &'a Options,
    /// The rules that were tried.
    pub rules: &'a Path,
    /// The rules that they are compared with.
    pub against: Option<&'a Path>,
    /// When the page was made.
    pub made: Timestamp,
}

impl About<'_> {
    fn html(&self) -> String {
        let Self { logs, options, rules, against, made } = self;
        let path = |path: &Path| path.display().to_string();
        let mut named: Vec<_> = logs.iter().take(LOGS_SHOWN).map(|log| path(log)).collect();
        named.extend((logs.len() > LOGS_SHOWN).then(|| format!("and {} more", logs.len() - LOGS_SHOWN)));
        let without = (!options.without_status.is_empty()).then(|| options.without_status.join(", "));
        let rows = [
            ("Log", Some(named.join(", "))),
            ("Format", Some(options.format.clone())),
            ("Without status", without),
            ("Map", Some(options.map.clone().unwrap_or_else(|| "the rate_limits of the rules".to_owned()))),
            ("Rules", Some(path(rules))),
            ("Compared with", against.map(path)),
            ("Made", Some(format!("{} UTC, by tidegate {}", moment(*made), env!("CARGO_PKG_VERSION")))),
        ];
        let row = |(name, value): (&str, Option<String>)| {
            value.map(|value| format!("<div><dt>{name}</dt><dd>{}</dd></div>\n", escaped(&value)))
        };
        let rows: String = rows.into_iter().filter_map(row).collect();
        format!("<dl class=\"about\">\n{rows}</dl>\n")
    }
}

impl Report {
    /// The report as a page, with its source.
    pub fn html(&self, about: &About<'_>) -> String {
        let compared = self.against.iter().flat_map(|against| {
            [
                section(
                    "Keys that are newly denied",
                    &keys("newly denied keys", &self.side.changed, "Newly denied"),
                ),
                section(
                    "Keys that are newly admitted",
                    &keys("newly admitted keys", &against.changed, "Newly admitted"),
                ),
                section("The rules that they are compared with", &rules("compared rules", against)),
            ]
        });
        let sections = [
            section("Requests over time", &plot(&self.timeline)),
            section("Rules", &rules("rules", &self.side)),
        ]
        .into_iter()
        .chain(compared)
        .chain([
            section("Keys", &keys("keys", &self.side.keys, "Only here")),
            section("Bursts: requests of one key within one second", &self.bursts_table()),
            list("Unreadable lines", &self.unreadable),
            list("Notes", &self.notes),
        ]);
        format!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <title>Replay</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n{}{}{}</main>\n\
             <script>\n{SCRIPT}</script>\n</body>\n</html>\n",
            self.head_section(),
            about.html(),
            sections.collect::<String>(),
        )
    }

    fn head_section(&self) -> String {
        let totals = &self.totals;
        let about = if self.side.is_estimated { "about " } else { "" };
        let of = |count: u64, whole: u64, what: &str| match percent(count, whole) {
            Some(percent) => format!("{percent} of {}{what}", grouped(whole)),
            None => String::new(),
        };
        let denied_keys = of(self.side.denied_keys, self.side.keys_total, " keys");
        let mut tiles = vec![
            ("requests", grouped(totals.requests), String::new()),
            ("denied", grouped(totals.denied), of(totals.denied, totals.requests, "")),
            ("denied keys", format!("{about}{}", grouped(self.side.denied_keys)), denied_keys),
        ];
        if self.against.is_some() {
            let newly = |count: u64| (grouped(count), of(count, totals.requests, ""));
            let ((denied, denied_part), (admitted, admitted_part)) =
                (newly(totals.newly_denied), newly(totals.newly_admitted));
            tiles.push(("newly denied", denied, denied_part));
            tiles.push(("newly admitted", admitted, admitted_part));
        }
        if totals.unreadable > 0 {
            tiles.push((
                "unreadable lines",
                grouped(totals.unreadable),
                of(totals.unreadable, totals.lines, ""),
            ));
        }
        let tile = |(name, value, part): &(&str, String, String)| {
            format!("<div><dt>{name}</dt><dd>{value}<span class=\"sub\">{part}</span></dd></div>\n")
        };
        let tiles: String = tiles.iter().map(tile).collect();
        let span = self.span.map(|(first, last)| {
            format!("<p class=\"sub\">Requests from {} to {} UTC</p>\n", moment(first), moment(last))
        });
        let span = span.unwrap_or_default();
        format!("<h1>What the rules would have done</h1>\n{span}<dl class=\"tiles\">\n{tiles}</dl>\n")
    }

    fn bursts_table(&self) -> String {
        let classes = self.bursts.iter().rposition(|count| *count > 0).map_or(0, |last| last + 1);
        let most = self.bursts.iter().copied().max().unwrap_or(0).max(1);
        let mut table = Table::new("bursts", vec!["Requests", "Times", ""]);
        for (class, count) in self.bursts[..classes].iter().enumerate() {
            let (from, to) = (1_u64 << class, (2_u64 << class) - 1);
            let range =
                if from == to { from.to_string() } else { format!("{}–{}", grouped(from), grouped(to)) };
            table.rows.push(vec![Cell::As(range, from), Cell::Number(*count), Cell::Bar(count * 100 / most)]);
        }
        table.html()
    }
}

fn rules(label: &'static str, side: &SideReport) -> String {
    let headers = ["Rule"].into_iter().chain(REQUESTS.iter().map(|it| it.0)).chain(["Keys", "Denied keys"]);
    let headers = headers.chain(DENIALS.iter().map(|it| it.0)).chain(["The candidate denies"]);
    let mut table = Table::new(label, headers.collect());
    let cells = |rule: &RuleReport| {
        let numbers = &rule.numbers;
        let mut cells = vec![Cell::Name(rule.path.clone(), vec![rule.limit.clone(), rule.place.clone()])];
        cells.extend(REQUESTS.iter().map(|it| it.1(numbers)));
        cells.extend([Cell::Number(rule.keys), Cell::Part(rule.denied_keys, rule.keys)]);
        cells.extend(DENIALS.iter().map(|it| it.1(numbers)));
        cells.push(match &rule.candidate {
            Some((limit, trial)) => Cell::Noted(trial.denied, format!("with {limit}")),
            None => Cell::Nothing,
        });
        cells
    };
    table.rows = side.rules.iter().map(cells).collect();
    table.html()
}

fn keys(label: &'static str, keys: &[KeyReport], changed: &'static str) -> String {
    let headers = ["Key"].into_iter().chain(REQUESTS.iter().map(|it| it.0));
    let headers = headers.chain([changed]).chain(DENIALS.iter().map(|it| it.0));
    let mut table = Table::new(label, headers.collect());
    let cells = |key: &KeyReport| {
        let numbers = &key.numbers;
        let name = Cell::Name(key.name.clone(), vec![key.rule.clone()]);
        if let Some(error) = key.error {
            // A sketch has only the denials.
            let denied = format!("{} (at most {error} fewer)", grouped(numbers.denied));
            let mut cells = vec![Cell::Nothing; REQUESTS.len() + DENIALS.len() + 2];
            (cells[0], cells[4]) = (name, Cell::As(denied, numbers.denied));
            return cells;
        }
        let mut cells = vec![name];
        cells.extend(REQUESTS.iter().map(|it| it.1(numbers)));
        cells.push(Cell::Number(numbers.changed));
        cells.extend(DENIALS.iter().map(|it| it.1(numbers)));
        cells
    };
    table.rows = keys.iter().map(cells).collect();
    table.html()
}

fn wait(nanos: u64) -> Cell {
    let text = if nanos == 0 { String::new() } else { format!("{:.1} s", nanos as f64 / 1e9) };
    Cell::As(text, nanos)
}

/// A time for people: `2015-05-17 10:05:03`.
fn moment(at: Timestamp) -> String {
    stamp::show(at).replace('T', " ").replace('Z', "")
}

fn section(title: &str, body: &str) -> String {
    format!("<section><h2>{title}</h2>\n{body}</section>\n")
}

fn list(title: &str, lines: &[String]) -> String {
    if lines.is_empty() {
        return String::new();
    }
    let lines: String = lines.iter().map(|line| format!("<li>{}</li>\n", escaped(line))).collect();
    section(title, &format!("<ul>\n{lines}</ul>\n"))
}

/// Text, escaped for HTML, in an element and in a quoted attribute. Characters that reorder or hide text are made
/// visible.
fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for char in one_line(text).chars() {
        match char {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            char => safe.push(char),
        }
    }
    safe
}

fn percent(count: u64, whole: u64) -> Option<String> {
    (whole > 0).then(|| format!("{:.2} %", count as f64 * 100.0 / whole as f64))
}

/// A number with its thousands separated: 99,992.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let separated = digits.char_indices().map(|(at, digit)| match (digits.len() - at) % 3 {
        0 if at > 0 => format!(",{digit}"),
        _ => digit.to_string(),
    });
    separated.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_stays_text_and_numbers_are_grouped() {
        let hostile = "<script>alert('x')</script>&\"\u{202e}\n";
        let safe = "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&amp;&quot;\\u{202e}\\n";
        assert_eq!(escaped(hostile), safe);
        assert_eq!([0, 999, 1_000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(percent(1, 8).as_deref(), Some("12.50 %"));
    }
}
