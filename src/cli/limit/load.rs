//! `tidegate limit load`: a file of records, sent in pieces.
//!
//! In: a file of JSON lines or CSV. Out: how many records each limiter has stored. A file is read once before
//! anything is sent: if a line is bad, all bad lines are printed, and nothing is loaded.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Arg, ArgMatches, Command};
use serde_json::Value;

use super::super::logs::with_progress;
use super::super::{Done, Problem, print_error, sent};
use super::{Asking, author};
use crate::cli::admin::encoded;
use tidegate_engine::text::one_line;
use tidegate_records::{Format, LINE_BYTES_MAX, Reader};
use tidegate_trial::replay::Progress;

/// Bytes that are sent at once: some 50,000 records, of which the limiter stores 10,000 at a time.
const PIECE_BYTES: usize = 4 << 20;
/// Bad lines that are printed. All are counted.
const PROBLEMS_MAX: usize = 100;
/// Warnings that are shown.
const WARNINGS_MAX: usize = 10;
const STANDARD_INPUT: &str = "-";

pub(super) fn command() -> Command {
    let text = |(name, value, help)| Arg::new(name).long(name).value_name(value).help(help);
    let format =
        text(("format", "FORMAT", "json (a line each) or csv (with a heading) [default: as FILE ends]"));
    let file = Arg::new("file").value_name("FILE").required(true);
    Command::new("load")
        .about("Makes or replaces all records of a file")
        .arg(file.help("JSON lines, or CSV with a heading such as domain,entry.tenant,requests_per_unit; `-`: the standard input"))
        .arg(format.value_parser(Format::ALL.map(Format::name)))
        .args(author())
}

pub(super) fn run(own: &ArgMatches, asking: &Asking) -> Done {
    let path = PathBuf::from(sent::text(own, "file").unwrap_or_default());
    let named = sent::text(own, "format");
    let named = Format::ALL.into_iter().find(|format| named.as_deref() == Some(format.name()));
    let format = named.unwrap_or_else(|| Format::of_file(&path));
    let problem = |what: String| vec![Problem { name: path.display().to_string(), what }];
    if path == Path::new(STANDARD_INPUT) {
        if asking.limiters.len() > 1 {
            return Err(problem("can be sent to one limiter only (expected the name of a file)".to_owned()));
        }
    } else if !is_good(&path, format).map_err(|error| problem(error.to_string()))? {
        return Ok((String::new(), ExitCode::FAILURE));
    }
    let who = |name: &str| sent::text(own, name).unwrap_or_default();
    let to = format!(
        "/admin/records/load?format={}&who={}&why={}",
        format.name(),
        encoded(&who("who")),
        encoded(&who("why"))
    );
    let (mut out, mut code) = (String::new(), ExitCode::SUCCESS);
    for limiter in &asking.limiters {
        let mut send = |piece: String| Loaded::of(&asking.post(limiter, to.clone(), piece)?);
        match sent(&path, format, &mut send).map_err(|error| problem(error.to_string()))? {
            Some(loaded) => {
                loaded.warn(&path);
                out += &asking.answers.text_of(limiter, &format!("loaded {} records\n", loaded.records));
            }
            None => code = ExitCode::FAILURE,
        }
    }
    Ok((out, code))
}

/// How many records a limiter has stored.
#[derive(Default)]
struct Loaded {
    records: u64,
    /// The number of these that no rule reads.
    unread: u64,
    /// Why no rule reads the first of them.
    warnings: Vec<String>,
}

impl Loaded {
    fn of(answer: &str) -> Option<Self> {
        let answer: Value = serde_json::from_str(answer).ok()?;
        let records = answer["loaded"].as_u64()?;
        let warnings = answer["warnings"].as_array().into_iter().flatten();
        let warnings = warnings.filter_map(|it| it["warning"].as_str().map(str::to_owned)).collect();
        Some(Self { records, unread: answer["unread"].as_u64().unwrap_or_default(), warnings })
    }

    fn add(&mut self, piece: Self) {
        self.records += piece.records;
        self.unread += piece.unread;
        let room = WARNINGS_MAX.saturating_sub(self.warnings.len());
        self.warnings.extend(piece.warnings.into_iter().take(room));
    }

    /// Warns of records that no rule reads.
    fn warn(&self, path: &Path) {
        let path = path.display();
        for warning in &self.warnings {
            print_error(format_args!("warning: {path}: {}", one_line(warning)));
        }
        if self.unread > 0 {
            let Self { unread, records, .. } = self;
            print_error(format_args!("warning: {path}: no rule reads {unread} of {records} records"));
        }
    }
}

/// Whether all lines of a file are good. Prints those that are not.
fn is_good(path: &Path, format: Format) -> io::Result<bool> {
    let (mut reader, mut bad) = (Reader::new(format), 0);
    let mut take = |line: tidegate_records::Line| {
        if let Err(error) = line.read {
            bad += 1;
            if bad <= PROBLEMS_MAX {
                print_error(format_args!(
                    "{}:{}: {}",
                    path.display(),
                    line.number,
                    one_line(&error.to_string())
                ));
            }
        }
    };
    let (mut file, mut bytes) = (File::open(path)?, vec![0; LINE_BYTES_MAX]);
    loop {
        match file.read(&mut bytes)? {
            0 => break,
            read => reader.feed(&bytes[..read], &mut take),
        }
    }
    reader.finish(&mut take);
    if bad > 0 {
        print_error(format_args!("{bad} bad lines in {}, so nothing is loaded", path.display()));
    }
    Ok(bad == 0)
}

/// Sends a file, with its progress on a terminal. `None`: a piece was refused.
fn sent(
    path: &Path,
    format: Format,
    send: &mut dyn FnMut(String) -> Option<Loaded>,
) -> io::Result<Option<Loaded>> {
    let input: Box<dyn Read> = match path == Path::new(STANDARD_INPUT) {
        true => Box::new(io::stdin()),
        false => Box::new(File::open(path)?),
    };
    let mut pieces = Pieces { input, rest: Vec::new(), heading: None, has_heading: format == Format::Csv };
    with_progress(&[path.to_owned()], |progress| {
        let (mut all, mut bytes) = (Loaded::default(), 0);
        while let Some(piece) = pieces.next()? {
            bytes += piece.len() as u64;
            let Some(loaded) = send(piece) else { return Ok(None) };
            all.add(loaded);
            progress(Progress { bytes, lines: all.records });
        }
        Ok(Some(all))
    })
}

/// A text in pieces of complete lines. Each piece of CSV begins with the header line.
struct Pieces {
    input: Box<dyn Read>,
    /// What was read after the last line's end.
    rest: Vec<u8>,
    heading: Option<String>,
    has_heading: bool,
}

impl Pieces {
    fn next(&mut self) -> io::Result<Option<String>> {
        let room = PIECE_BYTES.saturating_sub(self.rest.len()) as u64;
        let mut bytes = std::mem::take(&mut self.rest);
        let read = self.input.by_ref().take(room).read_to_end(&mut bytes)?;
        if bytes.is_empty() {
            return Ok(None);
        }
        if read as u64 == room {
            // There may be more: what follows the last line's end belongs to the next piece.
            let end = bytes.iter().rposition(|&byte| byte == b'\n').map(|end| end + 1);
            let end =
                end.ok_or_else(|| io::Error::other("a line is too long (expected lines of records)"))?;
            self.rest = bytes.split_off(end);
        }
        let text = String::from_utf8(bytes).map_err(|_| io::Error::other("it is not UTF-8"))?;
        match &self.heading {
            Some(heading) => Ok(Some(format!("{heading}{text}"))),
            None => {
                let heading = text.split_inclusive('\n').next().filter(|_| self.has_heading);
                self.heading = Some(heading.unwrap_or_default().to_owned());
                Ok(Some(text))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_whole_lines_and_each_of_csv_has_the_heading() {
        let line = format!("d,{},5\n", "x".repeat(1_000));
        let text = format!("domain,entry.a,requests_per_unit\n{}", line.repeat(10_000));
        let input: Box<dyn Read> = Box::new(io::Cursor::new(text.clone().into_bytes()));
        let mut pieces = Pieces { input, rest: Vec::new(), heading: None, has_heading: true };
        let (mut whole, mut count) = (String::new(), 0);
        while let Some(piece) = pieces.next().expect("it is read") {
            let (heading, lines) = piece.split_once('\n').expect("a heading");
            assert_eq!(heading, "domain,entry.a,requests_per_unit");
            whole += lines;
            count += 1;
        }
        assert!(count > 2 && whole == line.repeat(10_000), "{count} pieces");
        assert_eq!(encoded("jané & co"), "jan%C3%A9%20%26%20co");
    }
}
