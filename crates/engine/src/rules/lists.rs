//! Lists of address ranges, which rules name (`cidr_file`): one range or address a line, in files of their own.
//!
//! In: the files of a set. Out: which of them are lists, and the ranges in each.

use std::collections::BTreeMap;
use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::pattern::Range;
use crate::rules::diagnostic::Diagnostics;
use crate::rules::hash::FileHash;
use crate::rules::quote::quote;
use crate::rules::{LoadOptions, SourceFile, text};
use tidegate_yaml::{Budget, Content, Document, Place};

/// The most ranges in one list: they take about 10 MB.
const RANGES_MAX: usize = 100_000;

/// The key that names a list.
const KEY: &str = "cidr_file";

/// A list.
#[derive(Debug)]
pub(super) struct List {
    pub(super) ranges: Arc<[Range]>,
    pub(super) hash: FileHash,
}

/// The lists of a set, by the names of their files.
pub(super) type Lists = BTreeMap<String, List>;

/// The names of the files that the rules in these files name as lists, each with the first place that names it, such as
/// `a.yaml:4:25`: a source has to read them too.
pub fn lists_of(files: &[SourceFile], max_file_bytes: usize) -> BTreeMap<String, String> {
    let mut lists = BTreeMap::new();
    for file in files {
        for (list, Place { line, column }) in of_file(file, max_file_bytes) {
            lists.entry(list).or_insert_with(|| format!("{}:{line}:{column}", file.name));
        }
    }
    lists
}

fn of_file(file: &SourceFile, max_file_bytes: usize) -> Vec<(String, Place)> {
    // Most rules name no list, and parsing many takes a while.
    if !file.bytes.windows(KEY.len()).any(|text| text == KEY.as_bytes()) || file.bytes.len() > max_file_bytes
    {
        return Vec::new();
    }
    let Ok(text) = text::decode(&file.bytes) else { return Vec::new() };
    let Ok(document) = Document::parse(&text, &mut Budget::of_set(max_file_bytes)) else { return Vec::new() };
    let field = |content: &Content<'_>, name: &str| match content {
        Content::Mapping(pairs) => pairs.iter().find_map(|&(key, value)| {
            matches!(&document.node(key).content, Content::Scalar(key) if key.text == name).then_some(value)
        }),
        _ => None,
    };
    let list = |content: &Content<'_>| {
        let named = document.node(field(&document.node(field(content, "value")?).content, KEY)?);
        match &named.content {
            Content::Scalar(name) => Some((path(&file.name, &name.text)?, named.at)),
            _ => None,
        }
    };
    document.nodes().filter_map(|node| list(&node.content)).collect()
}

/// The name of the file that rules in `file` call `name`: a path below its folder.
pub(super) fn path(file: &str, name: &str) -> Option<String> {
    let is_below = !name.split('/').any(|part| matches!(part, "" | "." | ".."));
    let folder = file.rfind('/').map_or("", |at| &file[..=at]);
    is_below.then(|| format!("{folder}{name}"))
}

/// Reads the lists with these names.
pub(super) fn read(
    names: &BTreeMap<String, String>,
    files: &[SourceFile],
    options: &LoadOptions,
    errors: &mut Diagnostics,
) -> Lists {
    let lists = files.iter().filter(|file| names.contains_key(&file.name));
    lists.map(|file| (file.name.clone(), read_list(file, options, errors))).collect()
}

fn read_list(file: &SourceFile, options: &LoadOptions, errors: &mut Diagnostics) -> List {
    let mut ranges = Vec::new();
    let text = super::is_short_enough(file, options, errors).then(|| text::decode(&file.bytes));
    let text =
        text.and_then(|text| text.map_err(|(at, message)| errors.add(&file.name, at, || message)).ok());
    for (number, line) in (1..).zip(text.as_deref().unwrap_or_default().lines()) {
        let range = line.split(['#', ';']).next().unwrap_or_default().trim();
        if range.is_empty() {
            continue;
        }
        match Range::read(range) {
            Ok(range) => ranges.push(range),
            Err(why) => {
                let column = line.len() - line.trim_start().len() + 1;
                errors.add(&file.name, Place { line: number, column: column as u32 }, || {
                    format!("{} {why}", quote(range))
                });
            }
        }
    }
    if ranges.len() > RANGES_MAX {
        errors.add(&file.name, Place::START, || {
            format!("{} ranges (expected at most {RANGES_MAX} in one list)", ranges.len())
        });
        ranges.truncate(RANGES_MAX);
    }
    List { ranges: ranges.into(), hash: Sha256::digest(&file.bytes).into() }
}
