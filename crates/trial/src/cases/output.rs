//! The outcomes of cases: as text for people, as JUnit's XML, as JSON, and as annotations of a GitHub workflow.

use std::fmt::Write as _;

use serde_json::json;
use tidegate_engine::text::{json_line, one_line};

use super::{CaseResult, Failure, FileResult};

/// Cases and failures of all files; a problem of a file is a failure.
fn counts(files: &[FileResult]) -> (usize, usize) {
    let cases = files.iter().map(|file| file.cases.len()).sum();
    let failed = failures(files).count() + files.iter().map(|file| file.problems.len()).sum::<usize>();
    (cases, failed)
}

fn failures(files: &[FileResult]) -> impl Iterator<Item = (&FileResult, &CaseResult, &Failure)> {
    files
        .iter()
        .flat_map(|file| file.cases.iter().filter_map(move |case| Some((file, case, case.failure.as_ref()?))))
}

/// The failures, each with the explanation, and how many there are.
pub fn text(files: &[FileResult]) -> String {
    let mut text = String::new();
    for problem in files.iter().flat_map(|file| &file.problems) {
        let _ = writeln!(text, "{}", one_line(&problem.to_string()));
    }
    for (file, case, failure) in failures(files) {
        let Failure { line, column, expected, got, .. } = failure;
        let _ = write!(
            text,
            "{}:{line}:{column}: {} failed at {}\n  expected: {}\n  got:      {}\n",
            one_line(&file.file),
            one_line(&case.name),
            moment(failure),
            one_line(expected),
            one_line(got),
        );
        failure.explanation.lines().for_each(|line| text.extend(["  | ", line, "\n"]));
    }
    let (cases, failed) = counts(files);
    let requests: u64 = files.iter().flat_map(|file| &file.cases).map(|case| case.requests).sum();
    let word = if failed == 0 { "good" } else { "bad" };
    let _ =
        writeln!(text, "{word}: files {}, cases {cases}, requests {requests}, failed {failed}", files.len());
    text
}

/// `61s, request 3 of 100`.
fn moment(failure: &Failure) -> String {
    let seconds = failure.at_nanos as f64 / 1e9;
    match failure.number {
        (_, 1) => format!("{seconds}s"),
        (number, times) => format!("{seconds}s, request {number} of {times}"),
    }
}

/// One failure as one sentence.
fn sentence(case: &CaseResult, failure: &Failure) -> String {
    format!("{} at {}: expected {}, got {}", case.name, moment(failure), failure.expected, failure.got)
}

/// JUnit's XML: a suite for each file.
pub fn junit(files: &[FileResult]) -> String {
    let (cases, failed) = counts(files);
    // A problem of a file is written as a case that failed.
    let tests = cases + files.iter().map(|file| file.problems.len()).sum::<usize>();
    let mut xml = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites tests=\"{tests}\" failures=\"{failed}\">\n"
    );
    for file in files {
        let name = escaped(&file.file);
        let failed = file.problems.len() + file.cases.iter().filter(|case| case.failure.is_some()).count();
        let tests = file.cases.len() + file.problems.len();
        let _ = writeln!(xml, "  <testsuite name=\"{name}\" tests=\"{tests}\" failures=\"{failed}\">");
        for problem in &file.problems {
            let problem = escaped(&problem.to_string());
            let _ = writeln!(
                xml,
                "    <testcase classname=\"{name}\" name=\"the file\"><failure message=\"{problem}\"/></testcase>"
            );
        }
        file.cases.iter().for_each(|case| junit_case(&mut xml, &name, case));
        xml.push_str("  </testsuite>\n");
    }
    xml + "</testsuites>\n"
}

fn junit_case(xml: &mut String, class: &str, case: &CaseResult) {
    let _ = write!(xml, "    <testcase classname=\"{class}\" name=\"{}\"", escaped(&case.name));
    let _ = match &case.failure {
        None => writeln!(xml, "/>"),
        Some(failure) => {
            let message = escaped(&sentence(case, failure));
            let why = failure.explanation.lines().map(escaped).collect::<Vec<_>>().join("\n");
            writeln!(xml, "><failure message=\"{message}\">{why}</failure></testcase>")
        }
    };
}

/// Text, escaped for XML.
fn escaped(text: &str) -> String {
    let text = one_line(text);
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// One object, with a list of files.
pub fn json(files: &[FileResult]) -> String {
    let failure = |failure: &Failure| {
        json!({
            "line": failure.line, "column": failure.column, "request": failure.number.0,
            "at_seconds": failure.at_nanos as f64 / 1e9, "expected": failure.expected, "got": failure.got,
            "explanation": failure.explanation,
        })
    };
    let case = |case: &CaseResult| {
        json!({
            "name": case.name, "line": case.line, "requests": case.requests, "good": case.failure.is_none(),
            "failure": case.failure.as_ref().map(failure),
        })
    };
    let file = |file: &FileResult| {
        let cases: Vec<_> = file.cases.iter().map(case).collect();
        let problems: Vec<_> = file.problems.iter().map(ToString::to_string).collect();
        json!({"file": file.file, "good": file.is_good(), "problems": problems, "cases": cases})
    };
    let (cases, failed) = counts(files);
    let files: Vec<_> = files.iter().map(file).collect();
    let report = json!({"good": failed == 0, "cases": cases, "failed": failed, "files": files});
    format!("{}\n", json_line(&report.to_string()))
}

/// Workflow commands, one on each line, made by `annotation` of a place and a message.
pub fn github(files: &[FileResult], annotation: impl Fn(Option<(&str, u32, u32)>, &str) -> String) -> String {
    let problems = files.iter().flat_map(|file| &file.problems).map(|problem| {
        let at = problem.at.as_ref().map(|(file, line, column)| (file.as_str(), *line, *column));
        annotation(at, &problem.what)
    });
    let failed = failures(files).map(|(file, case, failure)| {
        annotation(Some((&file.file, failure.line, failure.column)), &sentence(case, failure))
    });
    problems.chain(failed).collect()
}
