//! Tables of the page. They scroll by themselves if they are wider or longer than the screen, and each header sorts.
//!
//! In: names of columns, and rows of cells. Out: HTML. Empty columns are left out.

use std::fmt::Write as _;

use super::{escaped, grouped, percent};

/// Columns that stay even with only zeros, because people look for them.
const KEPT: &[&str] = &["Requests", "Denied", "Denied keys", "Newly denied", "Newly admitted"];

/// A table of more rows scrolls.
const ROWS_SHOWN: usize = 12;

/// A cell: what it shows, and what it is sorted by.
#[derive(Clone)]
pub(super) enum Cell {
    Nothing,
    /// A name, and lines below it.
    Name(String, Vec<String>),
    Number(u64),
    /// Shown as text, sorted as this number.
    As(String, u64),
    /// A count and its percentage.
    Part(u64, u64),
    /// A count, and a line below it. The column is not empty even if it is 0.
    Noted(u64, String),
    /// A bar of so many percent.
    Bar(u64),
}

pub(super) struct Table {
    label: &'static str,
    columns: Vec<&'static str>,
    pub(super) rows: Vec<Vec<Cell>>,
}

impl Table {
    pub(super) fn new(label: &'static str, columns: Vec<&'static str>) -> Self {
        Self { label, columns, rows: Vec::new() }
    }

    pub(super) fn html(&self) -> String {
        if self.rows.is_empty() {
            return "<p>None.</p>\n".to_owned();
        }
        let shown: Vec<_> = (0..self.columns.len()).filter(|column| self.is_shown(*column)).collect();
        let headers: String = shown.iter().map(|column| header(self.columns[*column])).collect();
        let mut rows = String::new();
        for row in &self.rows {
            let cells: String = shown.iter().map(|column| row[*column].html()).collect();
            let _ = writeln!(rows, "<tr>{cells}</tr>");
        }
        let class = if self.rows.len() > ROWS_SHOWN { "wide long" } else { "wide" };
        format!(
            "<div class=\"{class}\" tabindex=\"0\" role=\"region\" aria-label=\"{}\"><table>\n\
             <thead><tr>{headers}</tr></thead>\n<tbody>\n{rows}</tbody>\n</table></div>\n",
            self.label
        )
    }

    fn is_shown(&self, column: usize) -> bool {
        KEPT.contains(&self.columns[column]) || self.rows.iter().any(|row| !row[column].is_nothing())
    }
}

fn header(name: &str) -> String {
    match name {
        "" => "<td></td>".to_owned(),
        name => format!("<th scope=\"col\"><button type=\"button\">{name}</button></th>"),
    }
}

impl Cell {
    fn is_nothing(&self) -> bool {
        match self {
            Self::Nothing => true,
            Self::Number(number) | Self::As(_, number) | Self::Part(number, _) => *number == 0,
            Self::Name(..) | Self::Noted(..) | Self::Bar(_) => false,
        }
    }

    fn html(&self) -> String {
        let number = |number: u64, text: &str| {
            let class = if number == 0 { "n zero" } else { "n" };
            format!("<td class=\"{class}\" data-n=\"{number}\">{text}</td>")
        };
        let below = |line: &String| format!("<span class=\"sub\">{}</span>", escaped(line));
        match self {
            Self::Nothing => "<td class=\"n\" data-n=\"0\"></td>".to_owned(),
            Self::Name(name, lines) => {
                format!("<td>{}{}</td>", escaped(name), lines.iter().map(below).collect::<String>())
            }
            Self::Number(count) => number(*count, &grouped(*count)),
            Self::As(text, sorted) => number(*sorted, &escaped(text)),
            Self::Part(0, _) => number(0, "0"),
            Self::Part(count, whole) => {
                let percent = percent(*count, *whole).unwrap_or_default();
                number(*count, &format!("{}<span class=\"sub\">{percent}</span>", grouped(*count)))
            }
            Self::Noted(count, line) => number(*count, &format!("{}{}", grouped(*count), below(line))),
            Self::Bar(percent) => {
                format!("<td><span class=\"bar\" style=\"width:{percent}%\"></span></td>")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_without_anything_are_left_out_but_for_those_that_people_look_for() {
        let mut table = Table::new("test", vec!["Key", "Denied", "Shadow", "Wait"]);
        let name = |name: &str| Cell::Name(name.to_owned(), vec!["<b>".to_owned()]);
        table.rows = vec![
            vec![name("a"), Cell::Part(0, 0), Cell::Number(0), Cell::Nothing],
            vec![name("b"), Cell::Part(0, 9), Cell::Number(0), Cell::As("1 s".to_owned(), 1)],
        ];
        let html = table.html();
        for (name, is_there) in [("Key", true), ("Denied", true), ("Shadow", false), ("Wait", true)] {
            assert_eq!(html.contains(&format!(">{name}</button>")), is_there, "{html}");
        }
        assert_eq!(html.matches("<td").count(), 6);
        assert!(html.contains("a<span class=\"sub\">&lt;b&gt;</span>"), "{html}");
        assert_eq!(Table::new("test", vec!["Key"]).html(), "<p>None.</p>\n");
    }
}
