//! `tidegate check --records`: files of records, compared with the rules that read them.
//!
//! In: a file of JSON lines or CSV, and the sets of rules. Out: its bad lines, its records that no rule reads, and what of
//! them their rules cannot have.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use tidegate_engine::rules::RuleSet;
use tidegate_engine::text::one_line;
use tidegate_records::{Format, LINE_BYTES_MAX, Line, Reader, Record, RecordKey};

/// Problems of a file that are shown. All are counted.
const SHOWN_MAX: usize = 100;

/// What is wrong with a file of records.
#[derive(Default)]
pub(super) struct Problems {
    /// The first ones: the number of the line, and what is wrong with it.
    pub(super) shown: Vec<(u64, String)>,
    pub(super) all: u64,
}

/// Reads a file of records that these sets of rules should read.
pub(super) fn check(path: &Path, sets: &[RuleSet]) -> io::Result<Problems> {
    let (mut reader, mut problems) = (Reader::new(Format::of_file(path)), Problems::default());
    let mut take = |line: Line| {
        let number = line.number;
        match line.read {
            Err(error) => problems.add(number, || one_line(&error.to_string()).into_owned()),
            Ok((key, record)) => match sets.iter().find(|rules| reads(rules, &key)) {
                Some(rules) => unmet_part(rules, &key, &record)
                    .into_iter()
                    .for_each(|problem| problems.add(number, || problem)),
                None => problems.add(number, || why(&key, sets)),
            },
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
    Ok(problems)
}

fn reads(rules: &RuleSet, key: &RecordKey) -> bool {
    key.with_entries(|domain, entries| rules.reads_record(domain, entries))
}

/// What of a record its rule cannot have, if anything.
fn unmet_part(rules: &RuleSet, key: &RecordKey, record: &Record) -> Option<String> {
    key.with_entries(|domain, entries| {
        let anchor = record.anchor.and_then(|anchor| rules.why_not_anchored(domain, entries, anchor));
        let algorithm = || rules.why_not_by(domain, entries, record.algorithm?);
        anchor
            .or_else(algorithm)
            .or_else(|| rules.why_cut(domain, entries, record.requests, record.algorithm))
    })
}

/// Why no set reads a record: according to the first set that has its domain, else to the first set.
fn why(key: &RecordKey, sets: &[RuleSet]) -> String {
    let why = key.with_entries(|domain, entries| {
        let of_domain = sets.iter().find(|rules| rules.actions(domain).is_some());
        of_domain.or(sets.first()).and_then(|rules| rules.why_unread(domain, entries))
    });
    why.unwrap_or_else(|| "there are no rules to read it".to_owned())
}

impl Problems {
    fn add(&mut self, line: u64, what: impl FnOnce() -> String) {
        self.all += 1;
        if self.shown.len() < SHOWN_MAX {
            self.shown.push((line, what()));
        }
    }
}
