//! Shows the lines of diagnostics to people, with a caret beneath the place.
//!
//! In: the files as they were read, and their diagnostics. Lines are searched only here, so a set without problems
//! pays nothing.

use std::collections::HashMap;

use crate::rules::quote::is_invisible;
use crate::rules::{Diagnostic, SourceFile, text};

/// How much of a line is shown, in characters.
const WIDTH_MAX: usize = 110;

/// How much of a long line is shown before the place.
const BEFORE_MAX: usize = 70;

/// The most problems that are shown with their lines; nobody reads more.
const SHOWN_MAX: usize = 100;

/// A line of a file, and a place in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Excerpt {
    line: u32,
    /// Cut when it is long; without characters that cannot be seen or that control a terminal.
    text: String,
    /// Characters before the place.
    before: usize,
}

/// How an excerpt is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ink {
    /// Characters alone.
    Plain,
    /// The colours of a terminal.
    Coloured,
}

impl Ink {
    /// The ink for an output that is a terminal or not. `variable` reads the environment: see <https://no-color.org>.
    pub fn new(is_terminal: bool, variable: impl Fn(&str) -> Option<String>) -> Self {
        let refused = variable("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = variable("TERM").is_some_and(|value| value == "dumb");
        if is_terminal && !refused && !dumb { Self::Coloured } else { Self::Plain }
    }

    /// The text in this ink. `colour` is an SGR code, such as `1;31`.
    pub fn paint(self, colour: &str, text: &str) -> String {
        match self {
            Self::Plain => text.to_owned(),
            Self::Coloured => format!("\u{1b}[{colour}m{text}\u{1b}[0m"),
        }
    }
}

impl Excerpt {
    /// Two lines: the text, and the caret beneath it.
    pub fn draw(&self, ink: Ink, caret_colour: &str) -> String {
        let number = self.line.to_string();
        let gutter = |number: &str| {
            ink.paint("34", &format!("{number:>width$} |", width = self.line.to_string().len()))
        };
        let (number, empty) = (gutter(&number), gutter(""));
        let (text, before, caret) = (&self.text, self.before, ink.paint(caret_colour, "^"));
        format!("  {number} {text}\n  {empty} {:before$}{caret}\n", "")
    }
}

/// The excerpt of each diagnostic, in their order; `None` where there is no line to show.
pub fn excerpts(files: &[SourceFile], diagnostics: &[Diagnostic]) -> Vec<Option<Excerpt>> {
    let mut found = vec![None; diagnostics.len()];
    let mut wanted: HashMap<&str, Vec<(u32, usize)>> = HashMap::new();
    for (index, diagnostic) in diagnostics.iter().take(SHOWN_MAX).enumerate() {
        wanted.entry(&diagnostic.file).or_default().push((diagnostic.line, index));
    }
    for file in files {
        let Some(mut wanted) = wanted.remove(&*file.name) else { continue };
        wanted.sort_unstable();
        let text = text::decode(&file.bytes).unwrap_or_else(|_| String::from_utf8_lossy(&file.bytes));
        let mut lines = (1..).zip(lines(&text)).peekable();
        for (line, index) in wanted {
            while lines.next_if(|(number, _)| *number < line).is_some() {}
            if let Some((_, text)) = lines.peek().filter(|(number, _)| *number == line) {
                found[index] = Excerpt::of(line, text, diagnostics[index].column);
            }
        }
    }
    found
}

/// The lines of a text, as YAML counts them: CR, LF and CR LF end one.
fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.split('\n').flat_map(|line| line.strip_suffix('\r').unwrap_or(line).split('\r'))
}

impl Excerpt {
    /// `None`: the line is blank.
    fn of(line: u32, text: &str, column: u32) -> Option<Self> {
        let column = column.saturating_sub(1) as usize;
        let from = if column < WIDTH_MAX { 0 } else { column - BEFORE_MAX };
        let mut shown: String = text.chars().skip(from).take(WIDTH_MAX).map(visible).collect();
        let is_cut = text.chars().nth(from + WIDTH_MAX).is_some();
        if shown.trim().is_empty() {
            return None;
        }
        let before = column - from + usize::from(from > 0);
        if from > 0 {
            shown.insert(0, '…');
        }
        if is_cut {
            shown.push('…');
        }
        Some(Self { line, text: shown, before })
    }
}

/// A character of one column that can be seen and does not control a terminal.
fn visible(char: char) -> char {
    match char {
        '\t' => ' ',
        char if char.is_control() => '\u{fffd}',
        char if is_invisible(char) => '␣',
        char => char,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(bytes: &[u8], line: u32, column: u32) -> Option<String> {
        let file = SourceFile { name: "a.yaml".to_owned(), bytes: bytes.to_vec(), presumed: false };
        let message = String::new();
        let diagnostic = Diagnostic { file: file.name.clone(), line, column, message };
        excerpts(&[file], &[diagnostic]).remove(0).map(|excerpt| excerpt.draw(Ink::Plain, ""))
    }

    #[test]
    fn the_caret_stands_beneath_the_place() {
        let text = "domain: é\r\n\tkey:\u{a0}\u{1b}[2Jx\rlast";
        assert_eq!(drawn(text.as_bytes(), 1, 9).unwrap(), "  1 | domain: é\n    |         ^\n");
        assert_eq!(drawn(text.as_bytes(), 2, 2).unwrap(), "  2 |  key:␣\u{fffd}[2Jx\n    |  ^\n");
        assert_eq!(drawn(text.as_bytes(), 3, 5).unwrap(), "  3 | last\n    |     ^\n");
        assert_eq!(drawn(text.as_bytes(), 4, 1), None);
        assert_eq!(drawn(b"", 1, 1), None);
        assert_eq!(drawn(b"a: \xff", 1, 4).unwrap(), "  1 | a: \u{fffd}\n    |    ^\n");
    }

    #[test]
    fn of_a_long_line_what_is_around_the_place_is_shown() {
        let line = "x".repeat(5_000) + "!" + &"y".repeat(5_000);
        let drawn = drawn(line.as_bytes(), 1, 5_001).unwrap();
        let (text, caret) = drawn.split_once('\n').unwrap();
        assert_eq!(text.chars().nth(caret.find('^').unwrap()), Some('!'));
        assert!(
            text.ends_with("y…") && text.contains("| …x") && text.chars().count() < WIDTH_MAX + 10,
            "{text}"
        );
    }

    #[test]
    fn colours_are_for_terminals_that_want_them() {
        let ink = |is_terminal, name: &str, value: &str| {
            Ink::new(is_terminal, |asked| (asked == name).then(|| value.to_owned()))
        };
        assert_eq!(ink(true, "TERM", "xterm"), Ink::Coloured);
        assert_eq!(ink(true, "NO_COLOR", ""), Ink::Coloured);
        for (is_terminal, name, value) in
            [(true, "NO_COLOR", "1"), (true, "TERM", "dumb"), (false, "TERM", "xterm")]
        {
            assert_eq!(ink(is_terminal, name, value), Ink::Plain, "{name}");
        }
    }
}
