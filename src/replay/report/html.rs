//! A report as one HTML page that needs nothing else: styles, script and drawings are in it.
//!
//! All text from logs is escaped and stays text. The page is whole without its script, which only sorts tables.

use std::fmt::Write as _;

use tidegate_engine::text::one_line;

use super::{KeyReport, Report, SideReport};
use crate::replay::timeline::{Bin, Timeline};
use crate::stamp;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// The size of a plot, in its own units.
const PLOT_WIDTH: usize = 960;
const PLOT_HEIGHT: usize = 200;

/// How a cell of a table is sorted and aligned.
enum Cell {
    Text(String),
    Number(u64),
    /// Shown as text, sorted as this number.
    As(String, u64),
}

impl Report {
    /// The report as a page.
    pub fn html(&self) -> String {
        let mut page = format!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <title>Replay</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n<h1>What the rules would have done</h1>\n"
        );
        page.push_str(&self.head_section());
        page.push_str(&plot(&self.timeline));
        page.push_str(&section("Rules", &rules(&self.side)));
        if let Some(against) = &self.against {
            page.push_str(&section("The rules that they are compared with", &rules(against)));
            page.push_str(&section("Keys that are newly denied", &keys(&self.side.changed, "Newly denied")));
            page.push_str(&section(
                "Keys that are newly admitted",
                &keys(&against.changed, "Newly admitted"),
            ));
        }
        page.push_str(&section("Keys", &keys(&self.side.keys, "Only here")));
        page.push_str(&section("Bursts: requests of one key within one second", &self.bursts_table()));
        page.push_str(&list("Unreadable lines", &self.unreadable));
        page.push_str(&list("Notes", &self.notes));
        let _ = write!(page, "</main>\n<script>\n{SCRIPT}</script>\n</body>\n</html>\n");
        page
    }

    fn head_section(&self) -> String {
        let totals = &self.totals;
        let about = if self.side.is_estimated { "about " } else { "" };
        let mut tiles = vec![
            ("requests", grouped(totals.requests)),
            ("denied", part(totals.denied, totals.requests)),
            ("keys", format!("{about}{}", grouped(self.side.keys_total))),
            ("denied keys", format!("{about}{}", part(self.side.denied_keys, self.side.keys_total))),
        ];
        if self.against.is_some() {
            tiles.push(("newly denied", grouped(totals.newly_denied)));
            tiles.push(("newly admitted", grouped(totals.newly_admitted)));
        }
        tiles.extend((totals.unreadable > 0).then(|| ("unreadable lines", grouped(totals.unreadable))));
        let span = self
            .span
            .map(|(first, last)| format!("<p>{} to {}</p>\n", stamp::show(first), stamp::show(last)));
        let tile = |(name, value): &(&str, String)| format!("<div><dt>{name}</dt><dd>{value}</dd></div>\n");
        let tiles: String = tiles.iter().map(tile).collect();
        format!("{}<dl class=\"tiles\">\n{tiles}</dl>\n", span.unwrap_or_default())
    }

    fn bursts_table(&self) -> String {
        let classes = self.bursts.iter().rposition(|count| *count > 0).map_or(0, |last| last + 1);
        let most = self.bursts.iter().copied().max().unwrap_or(0).max(1);
        let row = |(class, count): (usize, &u64)| {
            let (from, to) = (1_u64 << class, (2_u64 << class) - 1);
            let range =
                if from == to { from.to_string() } else { format!("{}–{}", grouped(from), grouped(to)) };
            let width = count * 100 / most;
            let bar = format!("<span class=\"bar\" style=\"width:{width}%\"></span>");
            format!(
                "<tr><td data-n=\"{from}\">{range}</td><td class=\"n\" data-n=\"{count}\">{}</td><td>{bar}</td></tr>\n",
                grouped(*count)
            )
        };
        let rows: String = self.bursts[..classes].iter().enumerate().map(row).collect();
        table(&["Requests", "Times", ""], &rows)
    }
}

fn rules(side: &SideReport) -> String {
    let tries = side.rules.iter().any(|rule| rule.candidate.is_some());
    let mut headers = vec![
        "Rule",
        "Limit",
        "Requests",
        "Admitted",
        "Near",
        "Denied",
        "Shadow",
        "Keys",
        "Denied keys",
        "In a row",
        "First denial",
        "Longest wait",
    ];
    headers.extend(tries.then_some("The candidate denies"));
    let cells = |rule: &super::RuleReport| {
        let numbers = &rule.numbers;
        let mut cells = vec![
            Cell::Text(format!("{} ({})", rule.path, rule.place)),
            Cell::Text(rule.limit.clone()),
            Cell::Number(numbers.requests),
            Cell::Number(numbers.admitted),
            Cell::Number(numbers.near),
            Cell::As(part(numbers.denied, numbers.requests), numbers.denied),
            Cell::Number(numbers.shadowed),
            Cell::Number(rule.keys),
            Cell::As(part(rule.denied_keys, rule.keys), rule.denied_keys),
            Cell::Number(numbers.longest_streak),
            Cell::As(
                numbers.first_denied.map(stamp::show).unwrap_or_default(),
                numbers.first_denied.map_or(0, |at| at.as_nanos()),
            ),
            wait(numbers.worst.map_or(0, |(_, wait)| wait)),
        ];
        if let (true, Some((limit, trial))) = (tries, &rule.candidate) {
            let denied = format!("{}, with {limit}", part(trial.denied, numbers.requests));
            cells.push(Cell::As(denied, trial.denied));
        } else if tries {
            cells.push(Cell::Text(String::new()));
        }
        cells
    };
    table(&headers, &side.rules.iter().map(|rule| row(&cells(rule))).collect::<String>())
}

fn keys(keys: &[KeyReport], changed: &str) -> String {
    let headers = [
        "Key",
        "Rule",
        "Requests",
        "Admitted",
        "Near",
        "Denied",
        changed,
        "In a row",
        "First denial",
        "Longest wait",
    ];
    let row = |key: &KeyReport| {
        let numbers = &key.numbers;
        let name = Cell::Text(key.name.clone());
        if let Some(error) = key.error {
            let denied =
                Cell::As(format!("{} (at most {error} fewer)", grouped(numbers.denied)), numbers.denied);
            let unknown = || Cell::As("?".to_owned(), 0);
            return row(&[
                name,
                Cell::Text(key.rule.clone()),
                unknown(),
                unknown(),
                unknown(),
                denied,
                unknown(),
                unknown(),
                unknown(),
                unknown(),
            ]);
        }
        row(&[
            name,
            Cell::Text(key.rule.clone()),
            Cell::Number(numbers.requests),
            Cell::Number(numbers.admitted),
            Cell::Number(numbers.near),
            Cell::Number(numbers.denied),
            Cell::Number(numbers.changed),
            Cell::Number(numbers.longest_streak),
            Cell::As(
                numbers.first_denied.map(stamp::show).unwrap_or_default(),
                numbers.first_denied.map_or(0, |at| at.as_nanos()),
            ),
            wait(numbers.worst.map_or(0, |(_, wait)| wait)),
        ])
    };
    table(&headers, &keys.iter().map(row).collect::<String>())
}

fn wait(nanos: u64) -> Cell {
    let text = if nanos == 0 { String::new() } else { format!("{:.1} s", nanos as f64 / 1e9) };
    Cell::As(text, nanos)
}

/// Requests over time as bars, with denials in another colour.
fn plot(timeline: &Timeline) -> String {
    let Timeline { start_secs, width_secs, bins } = timeline;
    let most = bins.iter().map(|bin| bin.requests).max().unwrap_or(0).max(1);
    let step = PLOT_WIDTH as f64 / bins.len().max(1) as f64;
    let bar = |(at, bin): (usize, &Bin)| {
        let height = |count: u64| {
            (count as f64 * PLOT_HEIGHT as f64 / most as f64).max(f64::from(u8::from(count > 0)))
        };
        let (all, denied) = (height(bin.requests), height(bin.denied));
        let (x, width) = (at as f64 * step, (step * 0.9).max(0.5));
        let when = stamp::show(tidegate_engine::Timestamp::from_secs(start_secs + at as u64 * width_secs));
        let title = format!("{when}: {} requests, {} denied", grouped(bin.requests), grouped(bin.denied));
        let rect = |class: &str, height: f64| {
            let y = PLOT_HEIGHT as f64 - height;
            format!(
                "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\"/>"
            )
        };
        format!("<g><title>{title}</title>{}{}</g>\n", rect("all", all), rect("denied", denied))
    };
    let bars: String = bins.iter().enumerate().map(bar).collect();
    format!(
        "<section><h2>Requests over time</h2>\n<svg viewBox=\"0 0 {PLOT_WIDTH} {PLOT_HEIGHT}\" role=\"img\" \
         aria-label=\"requests and denials over time\" preserveAspectRatio=\"none\">\n{bars}</svg>\n\
         <p class=\"legend\"><span class=\"all\"></span> requests <span class=\"denied\"></span> denied; \
         a bar is {}, the highest has {} requests</p></section>\n",
        duration(*width_secs),
        grouped(most),
    )
}

fn duration(seconds: u64) -> String {
    match seconds {
        seconds if seconds.is_multiple_of(86_400) => format!("{} d", seconds / 86_400),
        seconds if seconds.is_multiple_of(3_600) => format!("{} h", seconds / 3_600),
        seconds if seconds.is_multiple_of(60) => format!("{} min", seconds / 60),
        seconds => format!("{seconds} s"),
    }
}

fn section(title: &str, body: &str) -> String {
    format!("<section><h2>{title}</h2>\n{body}</section>\n")
}

/// A table that can be wider than the screen, and is sorted by the button in each header.
fn table(headers: &[&str], rows: &str) -> String {
    if rows.is_empty() {
        return "<p>None.</p>\n".to_owned();
    }
    let header = |name: &&str| match *name {
        "" => "<th></th>".to_owned(),
        name => format!("<th scope=\"col\"><button type=\"button\">{name}</button></th>"),
    };
    let headers: String = headers.iter().map(header).collect();
    format!(
        "<div class=\"wide\" tabindex=\"0\"><table>\n<thead><tr>{headers}</tr></thead>\n<tbody>\n{rows}</tbody>\n</table></div>\n"
    )
}

fn row(cells: &[Cell]) -> String {
    let cell = |cell: &Cell| match cell {
        Cell::Text(text) => format!("<td>{}</td>", escaped(text)),
        Cell::Number(number) => format!("<td class=\"n\" data-n=\"{number}\">{}</td>", grouped(*number)),
        Cell::As(text, number) => format!("<td class=\"n\" data-n=\"{number}\">{}</td>", escaped(text)),
    };
    format!("<tr>{}</tr>\n", cells.iter().map(cell).collect::<String>())
}

fn list(title: &str, lines: &[String]) -> String {
    if lines.is_empty() {
        return String::new();
    }
    let lines: String = lines.iter().map(|line| format!("<li>{}</li>\n", escaped(line))).collect();
    section(title, &format!("<ul>\n{lines}</ul>\n"))
}

/// Text that stays text in HTML, in an element and in a quoted attribute. What reorders or hides text is shown.
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

fn part(count: u64, whole: u64) -> String {
    match whole {
        0 => grouped(count),
        whole => format!("{} ({:.2} %)", grouped(count), count as f64 * 100.0 / whole as f64),
    }
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
        assert_eq!([1, 90, 300, 7_200, 172_800].map(duration), ["1 s", "90 s", "5 min", "2 h", "2 d"]);
    }
}
