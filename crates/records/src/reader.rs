//! Records as text, a line each: JSON, or CSV with the names of its columns in the first line.
//!
//! In: bytes, in pieces of any size. Out: each record with the number of its line, or what is wrong with the line. A
//! bad line does not affect the others. Memory is bounded by the longest line that is read.

use std::mem;
use std::path::Path;

use csv_core::ReadRecordResult;
use serde_json::{Map, Value, json};
use tidegate_engine::overlay::Record;

use crate::checks::{BadRecord, bad};
use crate::json::{self, FIELDS};
use crate::key::{LEVELS_MAX, RecordKey};
use crate::unique_keys::UniqueKeys;

/// The longest line, in bytes.
pub const LINE_BYTES_MAX: usize = 16 << 10;

/// The name of a CSV column with the values of an entry begins with this. The entry's key follows.
const ENTRY: &str = "entry.";

tidegate_engine::named! {
    /// How records are written.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Format {
        /// A JSON object in each line.
        JsonLines = "json",
        /// Cells, separated by commas. A quote has to be closed in its line.
        Csv = "csv",
    }
}

impl Format {
    /// The format of a file, by the end of its name: CSV, else JSON.
    pub fn of_file(path: &Path) -> Self {
        let is_csv = path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("csv"));
        if is_csv { Self::Csv } else { Self::JsonLines }
    }
}

/// A line that is not empty, and no heading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// From 1.
    pub number: u64,
    /// Its record, or what is wrong with it.
    pub read: Result<(RecordKey, Record), BadRecord>,
}

/// Reads lines.
#[derive(Debug)]
pub struct Reader {
    format: Format,
    cells: Cells,
    /// The columns, once the header line was read. Without them no line of CSV can be read.
    columns: Option<Result<Vec<Column>, BadRecord>>,
    /// The beginning of a line that has not ended.
    rest: Vec<u8>,
    /// That line is too long already: the rest of it is dropped.
    is_too_long: bool,
    lines: u64,
}

/// Splits lines of CSV.
#[derive(Debug)]
struct Cells {
    /// It has read complete lines only. It is kept because creating a parser takes longer than a line.
    parser: csv_core::Reader,
    /// The text of all cells, and where each ends.
    text: Vec<u8>,
    ends: Vec<usize>,
}

/// The contents of a CSV column.
#[derive(Clone, Debug)]
enum Column {
    /// A field of the record.
    Field(&'static str),
    /// The values of the entry with this key.
    Entry(String),
}

impl Reader {
    /// Reads this format.
    pub fn new(format: Format) -> Self {
        let cells = Cells { parser: csv_core::Reader::new(), text: Vec::new(), ends: Vec::new() };
        Self { format, cells, columns: None, rest: Vec::new(), is_too_long: false, lines: 0 }
    }

    /// Reads the next bytes, and calls `take` with every line that ends in them.
    pub fn feed(&mut self, mut bytes: &[u8], take: &mut dyn FnMut(Line)) {
        while let Some(end) = bytes.iter().position(|&byte| byte == b'\n') {
            let (last, after) = bytes.split_at(end);
            bytes = &after[1..];
            if self.rest.is_empty() && !self.is_too_long {
                self.line(last, take);
            } else {
                self.keep(last);
                self.end_of_line(take);
            }
        }
        self.keep(bytes);
    }

    /// Reads the last line, if it does not end with a line feed.
    pub fn finish(mut self, take: &mut dyn FnMut(Line)) {
        if !self.rest.is_empty() || self.is_too_long {
            self.end_of_line(take);
        }
    }

    fn keep(&mut self, bytes: &[u8]) {
        if self.rest.len() + bytes.len() > LINE_BYTES_MAX {
            self.is_too_long = true;
            self.rest.clear();
        } else if !self.is_too_long {
            self.rest.extend(bytes);
        }
    }

    fn end_of_line(&mut self, take: &mut dyn FnMut(Line)) {
        if mem::take(&mut self.is_too_long) {
            self.lines += 1;
            let read = bad(format!("the line is too long (expected at most {LINE_BYTES_MAX} bytes)"));
            return take(Line { number: self.lines, read });
        }
        let line = mem::take(&mut self.rest);
        self.line(&line, take);
    }

    fn line(&mut self, line: &[u8], take: &mut dyn FnMut(Line)) {
        if line.len() > LINE_BYTES_MAX {
            self.is_too_long = true;
            return self.end_of_line(take);
        }
        self.lines += 1;
        let number = self.lines;
        let mut line = line.strip_suffix(b"\r").unwrap_or(line);
        if number == 1 {
            line = line.strip_prefix("\u{feff}".as_bytes()).unwrap_or(line);
        }
        if line.iter().all(u8::is_ascii_whitespace) {
            return;
        }
        match self.read(line) {
            Ok(None) => {}
            Ok(Some(record)) => take(Line { number, read: Ok(record) }),
            Err(error) => take(Line { number, read: Err(error) }),
        }
    }

    /// The record of a line. `None`: it is the heading.
    fn read(&mut self, line: &[u8]) -> Result<Option<(RecordKey, Record)>, BadRecord> {
        if self.format == Format::JsonLines {
            let value = serde_json::from_slice(line);
            let value = value.and_then(|value| serde_json::from_slice(line).map(|UniqueKeys| value));
            let value = value.map_err(|error| BadRecord(error.to_string()))?;
            return json::read(&value).map(Some);
        }
        let cells = self.cells.of(line)?;
        match &self.columns {
            Some(Ok(columns)) => json::read(&object(columns, cells)?).map(Some),
            Some(Err(_)) => bad("there is no heading that says what the cells are"),
            None => {
                let columns = columns(cells);
                let heading = columns.clone().map(|_| None);
                self.columns = Some(columns);
                heading
            }
        }
    }
}

impl Cells {
    /// The cells of a line.
    fn of(&mut self, line: &[u8]) -> Result<Vec<String>, BadRecord> {
        let cells = self.split(line);
        if cells.is_err() {
            self.parser = csv_core::Reader::new();
        }
        let (mut start, mut found) = (0, Vec::new());
        for &end in &self.ends[..cells?] {
            let cell = self.text.get(start..end).unwrap_or_default();
            let cell = str::from_utf8(cell).map_err(|_| BadRecord("a cell is not UTF-8".to_owned()))?;
            found.push(cell.to_owned());
            start = end;
        }
        Ok(found)
    }

    /// The number of cells of a line. After an error the parser may be inside a cell.
    fn split(&mut self, line: &[u8]) -> Result<usize, BadRecord> {
        self.text.resize(line.len() + 2, 0);
        self.ends.resize(FIELDS.len() + LEVELS_MAX, 0);
        let (mut result, read, written, mut cells) =
            self.parser.read_record(line, &mut self.text, &mut self.ends);
        if result == ReadRecordResult::InputEmpty {
            let (text, ends) = (&mut self.text[written..], &mut self.ends[cells..]);
            let (ended, _, _, more) = self.parser.read_record(b"\n", text, ends);
            (result, cells) = (ended, cells + more);
        }
        match result {
            ReadRecordResult::Record if read == line.len() => Ok(cells),
            ReadRecordResult::InputEmpty => bad("a quote is not closed in its line"),
            ReadRecordResult::OutputEndsFull => {
                bad(format!("too many cells (expected at most {})", self.ends.len()))
            }
            _ => bad("a carriage return stands within the line (expected it in quotes)"),
        }
    }
}

/// The columns of the header line.
fn columns(cells: Vec<String>) -> Result<Vec<Column>, BadRecord> {
    let column = |cell: &String| match cell.strip_prefix(ENTRY) {
        Some(key) => Ok(Column::Entry(key.to_owned())),
        None => match FIELDS.iter().find(|field| *field == cell && *field != &"entries") {
            Some(field) => Ok(Column::Field(field)),
            None => bad(format!(
                "{cell:?} is no column (expected `domain`, `{ENTRY}KEY` for each entry, and fields of a record)"
            )),
        },
    };
    let twice = |(at, cell): &(usize, &String)| cells[..*at].contains(cell);
    if let Some((_, cell)) = cells.iter().enumerate().find(twice) {
        return bad(format!("{cell:?} is the name of two columns (expected each once)"));
    }
    cells.iter().map(column).collect()
}

/// The cells as a JSON object with the same meaning. Empty cells are absent.
fn object(columns: &[Column], cells: Vec<String>) -> Result<Value, BadRecord> {
    if columns.len() != cells.len() {
        return bad(format!("{} cells (expected {}, as in the heading)", cells.len(), columns.len()));
    }
    let (mut fields, mut entries) = (Map::new(), Vec::new());
    for (column, cell) in columns.iter().zip(cells) {
        match column {
            Column::Field(name) if !cell.is_empty() => {
                fields.insert((*name).to_owned(), field(name, cell));
            }
            Column::Field(_) => {}
            Column::Entry(key) => entries.push((key, cell)),
        }
    }
    // A shorter path leaves its last cells empty.
    while entries.last().is_some_and(|(_, value)| value.is_empty()) {
        entries.pop();
    }
    if let Some((key, _)) = entries.iter().find(|(_, value)| value.is_empty()) {
        return bad(format!("{ENTRY}{key} is empty, and a later entry is not (expected a value)"));
    }
    let entries = entries.into_iter().map(|(key, value)| json!({"key": key, "value": value}));
    fields.insert("entries".to_owned(), entries.collect());
    Ok(Value::Object(fields))
}

/// A cell as JSON: a text that is neither a number nor a flag stays text, and is refused where it must not be one.
fn field(name: &str, cell: String) -> Value {
    let number = matches!(name, "requests_per_unit" | "burst" | "unit_multiplier");
    match cell.trim() {
        text if number => text.parse::<u64>().map_or(Value::String(cell), Value::from),
        "true" if name != "domain" => true.into(),
        "false" if name != "domain" => false.into(),
        _ => cell.into(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all(format: Format, pieces: &[&[u8]]) -> Vec<Line> {
        let (mut reader, mut lines) = (Reader::new(format), Vec::new());
        pieces.iter().for_each(|piece| reader.feed(piece, &mut |line| lines.push(line)));
        reader.finish(&mut |line| lines.push(line));
        lines
    }

    fn said(format: Format, text: &str) -> Vec<String> {
        let said = |line: Line| match line.read {
            Ok((key, record)) => format!("{}: {}", line.number, json::show(&key, &record)),
            Err(error) => format!("{}! {error}", line.number),
        };
        all(format, &[text.as_bytes()]).into_iter().map(said).collect()
    }

    #[test]
    fn json_lines() {
        let text = "\u{feff}{\"domain\":\"d\",\"entries\":[{\"key\":\"a\",\"value\":\"\\u0000\"}],\"requests_per_unit\":5}\r\n\
            \n{}\n{\"domain\":\"d\",\"entries\":[{\"key\":\"a\",\"value\":\"b\"}],\"unlimited\":true}";
        assert_eq!(
            said(Format::JsonLines, text),
            [
                r#"1: {"domain":"d","entries":[{"key":"a","value":"\u0000"}],"requests_per_unit":5}"#,
                "3! domain: is missing (expected a text)",
                r#"4: {"domain":"d","entries":[{"key":"a","value":"b"}],"unlimited":true}"#,
            ]
        );
    }

    #[test]
    fn csv_with_quotes_shorter_paths_and_errors() {
        let text = "domain,entry.tenant,entry.plan,requests_per_unit,unit,shadow_mode\r\n\
            shop,\"a,\"\"b\"\"\",gold,5,day,\nshop,c,,7,,true\nshop,,gold,7,,\nshop,c,d,many,,\nshop,c\n\
            shop,c,d,1,fortnight,\nshop,c,d,1,,\"open\nshop,c,d,1,,open\nshop\rc,d\n,,\n{many}\nshop,c,d,1,,";
        let text = text.replace("{many}", &",".repeat(100));
        assert_eq!(
            said(Format::Csv, &text),
            [
                r#"2: {"domain":"shop","entries":[{"key":"tenant","value":"a,\"b\""},{"key":"plan","value":"gold"}],"requests_per_unit":5,"unit":"day"}"#,
                r#"3: {"domain":"shop","entries":[{"key":"tenant","value":"c"}],"requests_per_unit":7,"shadow_mode":true}"#,
                "4! entry.tenant is empty, and a later entry is not (expected a value)",
                "5! `requests_per_unit` is \"many\" (expected a whole number, 0 to 9007199254740991)",
                "6! 2 cells (expected 6, as in the heading)",
                "7! `unit` is \"fortnight\" (expected second, minute, hour, day, week, month, year)",
                "8! a quote is not closed in its line",
                "9! `shadow_mode` is \"open\" (expected true or false)",
                "10! a carriage return stands within the line (expected it in quotes)",
                "11! 3 cells (expected 6, as in the heading)",
                "12! too many cells (expected at most 44)",
                r#"13: {"domain":"shop","entries":[{"key":"tenant","value":"c"},{"key":"plan","value":"d"}],"requests_per_unit":1}"#,
            ]
        );
        let named = said(Format::Csv, "domain,entry.true,requests_per_unit\ntrue,false,1\nfalse,true,2\n");
        assert_eq!(
            named,
            [
                r#"2: {"domain":"true","entries":[{"key":"true","value":"false"}],"requests_per_unit":1}"#,
                r#"3: {"domain":"false","entries":[{"key":"true","value":"true"}],"requests_per_unit":2}"#,
            ]
        );
        let unknown = said(Format::Csv, "domain,tenant\nshop,a\ndomain,entry.a,requests_per_unit\n");
        assert!(unknown[0].starts_with("1! \"tenant\" is no column"), "{unknown:?}");
        let without = "there is no heading that says what the cells are";
        assert_eq!(unknown[1..], [format!("2! {without}"), format!("3! {without}")], "only the first is one");
    }

    #[test]
    fn what_stands_twice_is_refused() {
        for twice in ["requests_per_unit", "entry.tenant", "domain"] {
            let heading = format!("domain,entry.tenant,requests_per_unit,{twice}\nshop,a,1,2\n");
            let said = said(Format::Csv, &heading);
            let expected = format!("1! {twice:?} is the name of two columns (expected each once)");
            assert!(said[0] == expected && said.len() == 2, "{said:?}");
        }
        let line = r#"{"domain":"d","entries":[{"key":"a","value":"b"}],"requests_per_unit":5,"requests_per_unit":6}"#;
        let said = said(Format::JsonLines, line);
        assert!(said[0].contains("duplicate field \"requests_per_unit\""), "{said:?}");
    }

    #[test]
    fn a_line_that_is_too_long_spoils_no_other() {
        let long = "x".repeat(LINE_BYTES_MAX + 1);
        let good = r#"{"domain":"d","entries":[{"key":"a","value":"b"}],"requests_per_unit":5}"#;
        let text = format!("{long}\n{good}\n{long}{long}");
        let expected = all(Format::JsonLines, &[text.as_bytes()]);
        assert_eq!(
            expected.iter().map(|line| (line.number, line.read.is_ok())).collect::<Vec<_>>(),
            [(1, false), (2, true), (3, false)]
        );
        for size in [1, 7, LINE_BYTES_MAX, LINE_BYTES_MAX + 1] {
            let pieces: Vec<_> = text.as_bytes().chunks(size).collect();
            assert_eq!(all(Format::JsonLines, &pieces), expected, "{size}");
        }
    }

    /// The bound is that of the bytes before the line's end, a carriage return among them.
    #[test]
    fn a_line_at_the_bound_is_the_same_in_pieces_and_whole() {
        let good = r#"{"domain":"d","entries":[{"key":"a","value":"b"}],"requests_per_unit":5}"#;
        let padded = |bytes: usize| format!("{good:bytes$}");
        let (fits, too_long) = (padded(LINE_BYTES_MAX), padded(LINE_BYTES_MAX + 1));
        let (with_return, blank) = (format!("{fits}\r"), " ".repeat(LINE_BYTES_MAX + 1));
        let text = format!("{fits}\n{too_long}\n{with_return}\n{blank}\n{fits}\n");
        for size in [1, LINE_BYTES_MAX, usize::MAX] {
            let pieces: Vec<_> = text.as_bytes().chunks(size).collect();
            let read =
                all(Format::JsonLines, &pieces).into_iter().map(|line| (line.number, line.read.is_ok()));
            assert_eq!(
                read.collect::<Vec<_>>(),
                [(1, true), (2, false), (3, false), (4, false), (5, true)],
                "{size}"
            );
        }
    }

    proptest! {
        #[test]
        fn any_bytes_in_any_pieces_are_the_same_lines(
            bytes in proptest::collection::vec(prop_oneof![Just(b'\n'), Just(b'"'), Just(b','), any::<u8>()], 0..60),
            at in 0_usize..60,
        ) {
            let heading = b"domain,entry.a,requests_per_unit\n";
            let bytes = [heading.as_slice(), &bytes].concat();
            for format in Format::ALL {
                let (first, second) = bytes.split_at(at.min(bytes.len()));
                prop_assert_eq!(all(format, &[first, second]), all(format, &[&bytes]));
            }
        }
    }
}
