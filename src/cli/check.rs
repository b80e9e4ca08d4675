//! `tidegate check`: checks rules without a server, and shows every problem with its place.
//!
//! In: folders and files, each a set of its own (none: those that the settings name), and files of records. Out:
//! findings as text, as JSON or as annotations of a GitHub workflow, and whether there are errors.

mod records;

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgMatches, Command};
use serde_json::json;

use super::{Done, arguments_of, read_only};
use crate::configuration::{RuleFiles, Rules, no_rules};
use crate::settings::Texts;
use crate::source::file::{FileSource, Layout};
use tidegate_engine::rules::{Diagnostic, Excerpt, Ink, Loaded, RuleSet, SourceFile, excerpts, load};
use tidegate_engine::text::{json_line, one_line};

/// The settings that name the rules and say how to read them.
const SETTINGS: &str = "
    CONFIG_PATH RUNTIME_ROOT RUNTIME_SUBDIRECTORY RUNTIME_APPDIRECTORY RUNTIME_WATCH_ROOT RUNTIME_IGNOREDOTFILES
    MERGE_DOMAIN_CONFIG RULES_MAY_BE_EMPTY STRICT_RULES DEFAULT_ALGORITHM DEFAULT_COST MAX_RULES_FILE_BYTES
    SHARD_KEY RULES_FORMAT";

/// The option that names files of records.
const RECORDS: &str = "records";

pub(super) fn command() -> Command {
    Command::new("check")
        .about("Checks rules without a server: every problem with its place")
        .arg(
            Arg::new("folders")
                .value_name("FOLDER")
                .num_args(0..)
                .help("folders (or files) of rules, each a set of its own; none: what the settings name"),
        )
        .arg(
            Arg::new("tree")
                .long("config-dir")
                .value_name("FOLDER")
                .num_args(1)
                .action(clap::ArgAction::Append)
                .help("a folder of which every file is rules, at any depth, as with RUNTIME_ROOT; also -config_dir"),
        )
        .arg(
            Arg::new(RECORDS)
                .long(RECORDS)
                .value_name("FILE")
                .num_args(1)
                .action(clap::ArgAction::Append)
                .help("records, as JSON lines or CSV: each has to be good, and read by one of these rules"),
        )
        .arg(
            Arg::new("format")
                .long("format")
                .value_parser(PossibleValuesParser::new(["text", "json", "github"]))
                .default_value("text")
                .help("the form of the findings; github: annotations of a workflow"),
        )
        .args(arguments_of(SETTINGS))
        .mut_arg("STRICT_RULES", |strict| strict.visible_alias("strict"))
        .after_help("Exit code: 0 good, 1 a problem, 64 a bad command line.")
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Severity {
    Error,
    Warning,
}

/// A finding in a set of rules.
struct Finding {
    severity: Severity,
    /// Where, if it has a place.
    at: Option<(String, u32, u32)>,
    message: String,
    /// The line that it is about, if there is one.
    excerpt: Option<Excerpt>,
}

impl Severity {
    fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
        }
    }

    /// Bold red and bold yellow.
    fn colour(self) -> &'static str {
        match self {
            Self::Error => "1;31",
            Self::Warning => "1;33",
        }
    }
}

/// The findings in all sets.
#[derive(Default)]
struct Report {
    findings: Vec<Finding>,
    files: usize,
    limits: usize,
    domains: usize,
    /// The sets without errors.
    sets: Vec<RuleSet>,
}

pub(super) fn run(matches: &ArgMatches, texts: Texts<'_>) -> Done {
    let mut rules = read_only(SETTINGS, matches, texts)?.rules;
    // The server only warns, because rules that are in use must not end it.
    rules.load.shard_key.iter_mut().for_each(|shard| shard.is_required = true);
    let mut report = Report::default();
    let named = layouts(matches);
    if named.is_empty() {
        report.check(rules.files.layout.clone(), &rules, Some(rules.files.remedy));
    }
    for layout in named {
        report.check(layout, &rules, None);
    }
    for file in matches.get_many::<String>(RECORDS).into_iter().flatten() {
        report.records(file);
    }
    let text = match matches.get_one::<String>("format").map(String::as_str) {
        Some("json") => report.json(),
        Some("github") => report.github(),
        _ => report.text(Ink::new(std::io::stdout().is_terminal(), texts.variable)),
    };
    Ok((text, if report.errors() == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }))
}

/// The folders and files that the command line names.
fn layouts(matches: &ArgMatches) -> Vec<Layout> {
    let paths = |name| matches.get_many::<String>(name).into_iter().flatten().map(PathBuf::from);
    let tree = |root| Layout::Runtime {
        root,
        subdirectory: PathBuf::new(),
        app_directory: PathBuf::new(),
        ignore_dot_files: false,
        watch_root: false,
    };
    paths("folders").map(Layout::Path).chain(paths("tree").map(tree)).collect()
}

impl Report {
    /// Checks one set. `remedy` names the setting with the place of the set, unless an argument does.
    fn check(&mut self, layout: Layout, rules: &Rules, remedy: Option<&str>) {
        let Rules { load: options, files: RuleFiles { may_be_empty, .. }, .. } = rules;
        let no_rules = no_rules(&layout);
        let contents = match FileSource::new(layout, options.max_file_bytes).read() {
            Ok(contents) => contents,
            Err(error) => {
                let remedy = remedy.map(|remedy| format!(" ({remedy})")).unwrap_or_default();
                return self.add(Severity::Error, format!("{error}{remedy}"));
            }
        };
        self.files += contents.files.len();
        for skipped in contents.warnings {
            self.add(if options.strict { Severity::Error } else { Severity::Warning }, skipped);
        }
        match load(&contents.files, options) {
            Ok(Loaded { rules, warnings }) => {
                if rules.domains().next().is_none() && !may_be_empty {
                    let remedy = remedy.map(|remedy| format!("; {remedy}")).unwrap_or_default();
                    self.add(Severity::Error, format!("{no_rules}{remedy}"));
                }
                self.limits += rules.limits().count();
                self.domains += rules.domains().count();
                self.sets.push(rules);
                self.diagnostics(Severity::Warning, warnings, &contents.files);
            }
            Err(errors) => self.diagnostics(Severity::Error, errors, &contents.files),
        }
    }

    /// Checks a file of records against all sets without errors.
    fn records(&mut self, file: &str) {
        self.files += 1;
        let problems = match records::check(Path::new(file), &self.sets) {
            Ok(problems) => problems,
            Err(error) => return self.add(Severity::Error, format!("{file}: {error}")),
        };
        let left = problems.all - problems.shown.len() as u64;
        for (line, message) in problems.shown {
            let at = Some((file.to_owned(), u32::try_from(line).unwrap_or(u32::MAX), 1));
            self.findings.push(Finding { severity: Severity::Error, at, message, excerpt: None });
        }
        if left > 0 {
            self.add(Severity::Error, format!("{file}: {left} more records are bad or are read by no rule"));
        }
    }

    fn diagnostics(&mut self, severity: Severity, diagnostics: Vec<Diagnostic>, files: &[SourceFile]) {
        let excerpts = excerpts(files, &diagnostics);
        for (diagnostic, excerpt) in diagnostics.into_iter().zip(excerpts) {
            let Diagnostic { file, line, column, message } = diagnostic;
            self.findings.push(Finding { severity, at: Some((file, line, column)), message, excerpt });
        }
    }

    fn add(&mut self, severity: Severity, message: String) {
        self.findings.push(Finding { severity, at: None, message, excerpt: None });
    }

    fn errors(&self) -> usize {
        self.findings.iter().filter(|finding| finding.severity == Severity::Error).count()
    }

    fn text(&self, ink: Ink) -> String {
        let line = |finding: &Finding| {
            let place = finding
                .at
                .as_ref()
                .map(|(file, line, column)| format!("{}:{line}:{column}: ", one_line(file)));
            let place = place.map(|place| ink.paint("1", &place)).unwrap_or_default();
            let colour = finding.severity.colour();
            let kind = match finding.severity {
                Severity::Error => String::new(),
                Severity::Warning => ink.paint(colour, "warning: "),
            };
            let excerpt =
                finding.excerpt.as_ref().map(|excerpt| excerpt.draw(ink, colour)).unwrap_or_default();
            format!("{place}{kind}{}\n{excerpt}", one_line(&finding.message))
        };
        let lines: String = self.findings.iter().map(line).collect();
        let (errors, warnings) = (self.errors(), self.findings.len() - self.errors());
        let Self { files, limits, domains, .. } = self;
        match errors {
            0 => format!(
                "{lines}good: files {files}, domains {domains}, limits {limits}, warnings {warnings}\n"
            ),
            _ => format!("{lines}bad: files {files}, problems {errors}, warnings {warnings}\n"),
        }
    }

    fn json(&self) -> String {
        let finding = |finding: &Finding| {
            let severity = finding.severity.name();
            match &finding.at {
                Some((file, line, column)) => json!({
                    "severity": severity, "file": file, "line": line, "column": column, "message": finding.message,
                }),
                None => json!({"severity": severity, "message": finding.message}),
            }
        };
        let findings: Vec<_> = self.findings.iter().map(finding).collect();
        let Self { files, limits, domains, .. } = self;
        let report = json!({
            "good": self.errors() == 0, "files": files, "domains": domains, "limits": limits, "findings": findings,
        });
        format!("{}\n", json_line(&report.to_string()))
    }

    /// The findings as workflow commands, one per line.
    fn github(&self) -> String {
        let line = |finding: &Finding| {
            let place = finding.at.as_ref().map(|(file, line, column)| (file.as_str(), *line, *column));
            workflow_command(finding.severity.name(), place, &finding.message)
        };
        self.findings.iter().map(line).collect()
    }
}

/// A command of a GitHub workflow, on a line of its own: an annotation of this kind, with its place if it has one.
pub(super) fn workflow_command(kind: &str, at: Option<(&str, u32, u32)>, message: &str) -> String {
    let place =
        at.map(|(file, line, column)| format!(" file={},line={line},col={column}", escape_property(file)));
    format!("::{kind}{}::{}\n", place.unwrap_or_default(), escape_data(message))
}

/// Escapes text for a workflow command, which is one line.
fn escape_data(text: &str) -> String {
    one_line(&text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")).into_owned()
}

/// Escapes a property of a workflow command, which ends at a comma or a colon.
fn escape_property(text: &str) -> String {
    escape_data(text).replace(':', "%3A").replace(',', "%2C")
}
