//! Rule sets: texts in, a compiled [`RuleSet`] or every problem out; and how a request finds its limits.
//!
//! Bytes become text (`text`), raw (the crate `tidegate-yaml`, read through `fields` and `scalar`), checked (`check`)
//! and compiled (`compile` into `set`, `tree`, `rule`, `actions`): a type and a file each. Either all of
//! a set is loaded, or nothing. Files of Limitador's limits become rules in `check`, and requests find them by
//! `selectors`. `lint` warns of rules that load but have no effect; `hint` recognises usual mistakes; `excerpt` shows
//! lines, `quote` texts; `hash` is what nodes compare.
//!
//! The rule sources read files, watch them and swap sets.

mod actions;
mod calendar;
mod calls;
mod check;
mod compile;
mod diagnostic;
mod duration;
mod epochs;
mod excerpt;
mod fields;
mod hash;
mod hint;
mod keys;
mod lint;
mod lists;
mod quote;
mod reservations;
mod url_path;
mod scalar;
mod selectors;
mod set;
mod text;
mod tree;
mod unmet;
mod walk;

pub use actions::{Actions, ClientRequest, Costs, Field, Metadata, MetadataSource, Need};
pub use calls::BadCallId;
pub use diagnostic::Diagnostic;
pub use duration::{parse_duration_nanos, shown_duration};
pub use epochs::{Epoch, Epochs, Reach, ResetPath};
pub use excerpt::{Excerpt, Ink, excerpts};
pub use lists::lists_of;
pub use set::{Example, RuleSet};
pub use url_path::normalized as normalized_path;
pub use walk::{End, Fit, Level, Met, NameList, Tried, Walk};

pub use crate::cost::Cost;
pub use crate::metric_name::{MetricName, MetricPath};
pub use crate::rule::{Rule, StoreFailure, Sync, Written};
pub use crate::unit::Unit;

use std::sync::Arc;

use crate::key::KeySecret;
use crate::limit::Algorithm;
use crate::rules::check::CheckedFile;
use crate::rules::diagnostic::Diagnostics;
use crate::rules::lists::Lists;
use tidegate_yaml::{Budget, Place};

/// The JSON Schema (draft 7) of rule files, for editors. [`load`] knows more.
pub const SCHEMA: &str = include_str!("rules/schema.json");

/// One file of rules, or a list that rules name ([`lists_of`]), as it was read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SourceFile {
    /// Its name, for diagnostics.
    pub name: String,
    /// Its contents: at most [`LoadOptions::max_file_bytes`] + 1 bytes need to be read, the rest is never used.
    pub bytes: Vec<u8>,
    /// It is presumed to be rules because of its folder, not its name. It is skipped with a warning unless it is a
    /// mapping with a `domain`.
    pub presumed: bool,
}

/// The form of files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RulesFormat {
    /// Rules, as `envoyproxy/ratelimit` has them, and more.
    #[default]
    Tidegate,
    /// Lists of limits, as Limitador's operator writes them. [`RuleSet::asked`] says which of them a request meets.
    Limitador,
}

/// How files are loaded.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LoadOptions {
    /// The form of all files.
    pub format: RulesFormat,
    /// The algorithm of rules that name none, and of overrides.
    pub default_algorithm: Algorithm,
    /// What descriptors' own costs mean to rules that do not say it, and to overrides.
    pub default_cost: Cost,
    /// Several files may have the same domain.
    pub merge_domains: bool,
    /// Warnings refuse the set.
    pub strict: bool,
    /// The longest file that is loaded, in bytes.
    pub max_file_bytes: usize,
    /// The secret under which counters' keys are made.
    pub secret: KeySecret,
    /// The names of these options in messages.
    pub names: OptionNames,
    /// The key by whose value a proxy chooses one of several nodes, if it does.
    pub shard_key: Option<ShardKey>,
    /// There is no store of records, so rules with `limits_from: store` are refused. Says what to set for one.
    pub no_records: Option<&'static str>,
}

/// The key by whose value a proxy chooses one of several nodes, each of which counts by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardKey {
    /// The key of an entry.
    pub key: Arc<str>,
    /// Limits that several nodes would count refuse the set. They are warned of otherwise.
    pub is_required: bool,
}

/// The names, in messages, of the options that raise a bound: the settings of a program, say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionNames {
    /// [`LoadOptions::merge_domains`].
    pub merge_domains: &'static str,
    /// [`LoadOptions::max_file_bytes`].
    pub max_file_bytes: &'static str,
}

impl Default for OptionNames {
    /// The names of the fields.
    fn default() -> Self {
        Self { merge_domains: "merge_domains", max_file_bytes: "max_file_bytes" }
    }
}

impl LoadOptions {
    /// One file a domain, of 32 MiB at most; warnings refuse nothing. Rules without an algorithm use a sliding
    /// window, and learn what descriptors' own costs mean. Keys of counters are made under `secret`.
    pub fn new(secret: KeySecret) -> Self {
        Self {
            format: RulesFormat::default(),
            default_algorithm: Algorithm::default(),
            default_cost: Cost::default(),
            merge_domains: false,
            strict: false,
            max_file_bytes: 32 << 20,
            secret,
            names: OptionNames::default(),
            shard_key: None,
            no_records: None,
        }
    }

    /// Sets [`format`](Self::format).
    #[must_use]
    pub fn format(self, format: RulesFormat) -> Self {
        Self { format, ..self }
    }

    /// Sets [`default_algorithm`](Self::default_algorithm).
    #[must_use]
    pub fn default_algorithm(self, default_algorithm: Algorithm) -> Self {
        Self { default_algorithm, ..self }
    }

    /// Sets [`default_cost`](Self::default_cost).
    #[must_use]
    pub fn default_cost(self, default_cost: Cost) -> Self {
        Self { default_cost, ..self }
    }

    /// Sets [`merge_domains`](Self::merge_domains).
    #[must_use]
    pub fn merge_domains(self, merge_domains: bool) -> Self {
        Self { merge_domains, ..self }
    }

    /// Sets [`strict`](Self::strict).
    #[must_use]
    pub fn strict(self, strict: bool) -> Self {
        Self { strict, ..self }
    }

    /// Sets [`max_file_bytes`](Self::max_file_bytes).
    #[must_use]
    pub fn max_file_bytes(self, max_file_bytes: usize) -> Self {
        Self { max_file_bytes, ..self }
    }

    /// Sets [`names`](Self::names).
    #[must_use]
    pub fn names(self, names: OptionNames) -> Self {
        Self { names, ..self }
    }

    /// Sets [`no_records`](Self::no_records).
    #[must_use]
    pub fn no_records(self, no_records: Option<&'static str>) -> Self {
        Self { no_records, ..self }
    }

    /// Sets [`shard_key`](Self::shard_key).
    #[must_use]
    pub fn shard_key(self, shard_key: Option<ShardKey>) -> Self {
        Self { shard_key, ..self }
    }
}

/// A set that was loaded.
#[derive(Debug)]
pub struct Loaded {
    /// The rules.
    pub rules: RuleSet,
    /// Valid but probably unintended; by file, line and column.
    pub warnings: Vec<Diagnostic>,
}

/// Loads a set of files, in this order: all of it or nothing. The lists that rules name are among them, at any place.
///
/// # Errors
/// Every problem of the set (at most the first 1,000), by file, line and column.
pub fn load(files: &[SourceFile], options: &LoadOptions) -> Result<Loaded, Vec<Diagnostic>> {
    let mut errors = Diagnostics::default();
    let mut warnings = Diagnostics::default();
    let mut budget = Budget::of_set(options.max_file_bytes).set_by(options.names.max_file_bytes);
    let names = lists_of(files, options.max_file_bytes);
    let lists = lists::read(&names, files, options, &mut errors);
    let checked: Vec<CheckedFile<'_>> = files
        .iter()
        .filter(|file| !names.contains_key(&file.name))
        .flat_map(|file| check_file(file, options, &lists, &mut budget, &mut errors, &mut warnings))
        .collect();
    let rules = compile::compile(&checked, &lists, options, &mut errors, &mut warnings);
    lint::texts(&checked, &mut warnings);
    if errors.is_empty() {
        lint::without_effect(&checked, &mut warnings);
        if let Some(ShardKey { key, is_required }) = &options.shard_key {
            lint::over_nodes(&checked, key, if *is_required { &mut errors } else { &mut warnings });
        }
    }
    if options.strict {
        errors.extend(std::mem::take(&mut warnings));
    }
    if errors.is_empty() {
        Ok(Loaded { rules, warnings: warnings.into_sorted() })
    } else {
        Err(errors.into_sorted())
    }
}

/// Whether a file is no longer than the bound, and the message if it is.
fn is_short_enough(file: &SourceFile, options: &LoadOptions, errors: &mut Diagnostics) -> bool {
    let max = options.max_file_bytes;
    let is_short = file.bytes.len() <= max;
    if !is_short {
        errors.add(&file.name, Place::START, || {
            let name = options.names.max_file_bytes;
            format!("the file is too long (expected at most {max} bytes; {name} sets the bound)")
        });
    }
    is_short
}

/// Checks one file: a part for each of its domains. None: nothing of it could be checked.
fn check_file<'f>(
    file: &'f SourceFile,
    options: &LoadOptions,
    lists: &Lists,
    budget: &mut Budget,
    errors: &mut Diagnostics,
    warnings: &mut Diagnostics,
) -> Vec<CheckedFile<'f>> {
    if !is_short_enough(file, options, errors) {
        return Vec::new();
    }
    if file.presumed && !check::is_rules(&file.bytes, budget) {
        warnings.add(&file.name, Place::START, || {
            "the file is skipped (expected a name in .yaml or .yml, or a mapping with a `domain`)".to_owned()
        });
        return Vec::new();
    }
    let document = text::decode(&file.bytes).and_then(|text| {
        let checked = check::check(&file.name, &text, options, budget, lists, errors, warnings);
        checked.map_err(|(at, message)| hint::of_syntax_error(&text, at, &message).unwrap_or((at, message)))
    });
    document.map_err(|(at, message)| errors.add(&file.name, at, || message)).unwrap_or_default()
}
