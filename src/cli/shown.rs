//! The answers of limiters, for people: sentences for changes, tables for lists.
//!
//! In: a command, what was sent, and the lines of JSON that came back. Out: text. A line that is not understood is
//! shown unchanged, so that nothing is lost. Texts from requests and operators never break their line.

use serde_json::Value;
use tidegate_engine::text::{one_line, span};

use super::times;

/// How an answer is shown, from what was sent and what came back.
pub(super) type Form = fn(&Value, &[Value]) -> String;

/// A change: `launch: made, until Monday 2026-11-30 00:00:00 CET`.
pub(super) fn change(sent: &Value, lines: &[Value]) -> String {
    let line = |line: &Value| {
        let Some(done) = line["done"].as_str() else { return raw(line) };
        let mut text = format!("{}: {}", subject(sent, line), one_line(done));
        if let (Some(rules), Some(id)) = (line["rules"].as_u64(), line["id"].as_str()) {
            text += &format!(", counters of {rules} rules (--id {})", one_line(id));
        }
        for (word, name) in [("from", "from"), ("until", "until")] {
            text.extend(sent[name].as_str().map(|at| format!(", {word} {} ({at})", times::shown(at))));
        }
        if line["survives_restart"] == false && done != "ended" {
            text += "\nnote: it is gone when the limiter ends, because EXCEPTIONS_FILE is not set";
        }
        text.extend(line["warning"].as_str().map(|warning| format!("\nwarning: {}", one_line(warning))));
        text + "\n"
    };
    lines.iter().map(line).collect()
}

/// A counter that was reset: what it had before, and what it has now.
pub(super) fn reset(sent: &Value, lines: &[Value]) -> String {
    let contents = |it: &Value| {
        let error = || one_line(it["error"].as_str().unwrap_or("no counter")).into_owned();
        contents_of(it).unwrap_or_else(error)
    };
    let contents = |line: &Value| {
        format!("  before: {}\n  now: {}\n", contents(&line["before"]), contents(&line["after"]))
    };
    lines.iter().map(|line| change(sent, std::slice::from_ref(line)) + &contents(line)).collect()
}

/// What the counter of the only descriptor of an explanation contains.
fn contents_of(explained: &Value) -> Option<String> {
    let counter = counter_of(explained)?;
    let held = explained["descriptors"][0]["held"].as_u64().filter(|held| *held > 0);
    let held = held.map(|held| format!(", {held} of them held by reservations")).unwrap_or_default();
    Some(format!("{} counted{held}, {} left", text(&counter["counted"]), text(&counter["remaining"])))
}

/// The counter of the only descriptor of an explanation.
fn counter_of(explained: &Value) -> Option<&Value> {
    Some(&explained["descriptors"][0]["counter"]).filter(|counter| !counter.is_null())
}

/// The subject of a change.
fn subject(sent: &Value, line: &Value) -> String {
    let id = line["id"].as_str().filter(|_| line["rules"].is_null() && sent["id"].is_null());
    match id.filter(|id| id.len() != 16 || sent["entries"].is_null()) {
        Some(id) => one_line(id).into_owned(),
        None => path(sent),
    }
}

pub(super) fn exceptions(_: &Value, lines: &[Value]) -> String {
    let row = |it: &Value| {
        let state = match it["in_force"].as_bool() {
            Some(true) => "yes",
            _ => "no",
        };
        vec![
            text(&it["id"]),
            path(it),
            terms(it),
            state.to_owned(),
            time(&it["from"]),
            time(&it["until"]),
            text(&it["who"]),
            text(&it["why"]),
        ]
    };
    table(
        &["ID", "PATH", "LIMIT", "IN FORCE", "FROM", "UNTIL", "WHO", "WHY"],
        lines.iter().map(row),
        "no exceptions",
    )
}

pub(super) fn records(_: &Value, lines: &[Value]) -> String {
    let row = |it: &Value| vec![path(it), terms(it)];
    table(&["PATH", "LIMIT"], lines.iter().map(row), "no records")
}

/// The last resets of paths.
pub(super) fn resets(_: &Value, lines: &[Value]) -> String {
    let row = |it: &Value| vec![path(it), time(&it["at"]), text(&it["id"])];
    table(&["PATH", "WHEN", "ID"], lines.iter().map(row), "no resets")
}

/// The audit: each change with its outcome. The outcome is a line of its own, with the id of the change.
pub(super) fn audit(_: &Value, lines: &[Value]) -> String {
    let changes = lines.iter().filter(|line| !line["does"].is_null());
    let row = |it: &Value| {
        let outcome = lines.iter().find(|other| other["id"] == it["id"] && !other["outcome"].is_null());
        let outcome = outcome.map_or_else(
            || "under way".to_owned(),
            |outcome| [text(&outcome["outcome"]), text(&outcome["why"])].join(" ").trim_end().to_owned(),
        );
        let what = &it["what"];
        let about = [&what["after"], &what["before"], what].into_iter().find(|it| it["domain"].is_string());
        let id = [text(&what["id"]), about.map(path).unwrap_or_default()].join(" ");
        let who = match text(&it["certificate"]) {
            name if name.is_empty() => text(&it["peer"]),
            name => name,
        };
        vec![
            time(&it["at"]),
            text(&it["who"]),
            who,
            text(&it["does"]),
            id.trim().to_owned(),
            outcome,
            text(&what["why"]),
        ]
    };
    table(
        &["WHEN", "WHO", "FROM", "DID", "WHAT", "OUTCOME", "WHY"],
        changes.map(row),
        "no changes since the start",
    )
}

/// The fullest counters of rules, and those that deny most.
pub(super) fn top(_: &Value, lines: &[Value]) -> String {
    lines.iter().map(top_of_rule).collect()
}

fn top_of_rule(line: &Value) -> String {
    if let Some(left) = line["rules_left_out"].as_u64() {
        return format!("{left} more rules are not watched: name one (DOMAIN KEY …)\n");
    }
    let Some(rule) = line["rule"].as_str() else { return raw(line) };
    let list = |name: &str| line[name].as_array().cloned().unwrap_or_default();
    let name = |it: &Value| text(&it["entries"]);
    let fullest = list("fullest");
    let full =
        fullest.iter().map(|it| vec![text(&it["used"]), text(&it["limit"]), name(it), time(&it["at"])]);
    let denied = list("denied");
    let denied = denied.iter().map(|it| vec![text(&it["count"]), name(it)]);
    let since = line["watched_seconds"].as_u64().unwrap_or_default();
    let since = match since {
        0..=1 => "it has just begun to watch: ask again after some requests".to_owned(),
        seconds => format!("watched for {}", span(seconds)),
    };
    let full = table(&["USED", "OF", "COUNTER", "LAST SEEN"], full, "no requests since then");
    let denied = table(&["DENIED", "COUNTER"], denied, "no denials since then");
    format!("{}: {since}\n{full}{denied}\n", one_line(rule))
}

pub(super) fn peek(sent: &Value, lines: &[Value]) -> String {
    let line = |line: &Value| {
        let (Some(counter), Some(contents)) = (counter_of(line), contents_of(line)) else {
            let why = line["descriptors"][0]["reason"].as_str().unwrap_or("no counter");
            return format!("{}: {}\n", path(sent), one_line(why));
        };
        let fits = !counter["wait_for_one_seconds"].is_null();
        let seconds = counter["capacity_in_seconds"].as_u64().filter(|seconds| fits && *seconds > 0);
        let back = seconds.map(|seconds| format!(", room again in {}", span(seconds))).unwrap_or_default();
        format!("{}: {contents}{back}\n", path(sent))
    };
    lines.iter().map(line).collect()
}

/// An answer that is not understood.
fn raw(line: &Value) -> String {
    format!("{}\n", one_line(&line.to_string()))
}

/// A text or a number.
fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => one_line(text).into_owned(),
        other => one_line(&other.to_string()).into_owned(),
    }
}

fn time(value: &Value) -> String {
    value.as_str().map(|at| one_line(&times::short(at)).into_owned()).unwrap_or_default()
}

/// `shop user=alice`: a domain, and entries.
fn path(value: &Value) -> String {
    let entry = |entry: &Value| match entry["value"].as_str() {
        Some(value) => format!(" {}={}", text(&entry["key"]), one_line(value)),
        None => format!(" {}", text(&entry["key"])),
    };
    let entries = value["entries"].as_array().into_iter().flatten().map(entry);
    text(&value["domain"]) + &entries.collect::<String>()
}

/// The limit in an exception or a record.
fn terms(value: &Value) -> String {
    if value["deny"] == true {
        return "nothing passes".to_owned();
    }
    let mut words = Vec::new();
    if value["unlimited"] == true {
        words.push("unlimited".to_owned());
    }
    words.extend(value["requests_per_unit"].as_u64().map(|requests| {
        match (&value["unit"], &value["window"]) {
            (Value::String(unit), _) => {
                let several = value["unit_multiplier"].as_u64().map(|units| format!("{units} "));
                format!("{requests} per {}{}", several.unwrap_or_default(), one_line(unit))
            }
            (_, Value::String(window)) => format!("{requests} per {}", one_line(window)),
            _ => requests.to_string(),
        }
    }));
    for name in ["burst", "algorithm", "granularity", "anchor", "shadow_mode"] {
        words.extend(Some(text(&value[name])).filter(|it| !it.is_empty()).map(|it| format!("{name} {it}")));
    }
    words.join(", ")
}

/// Columns that are as wide as their widest cell; empty columns are left out. `nothing` is shown if there are no
/// rows.
fn table(heads: &[&str], rows: impl Iterator<Item = Vec<String>>, nothing: &str) -> String {
    let rows: Vec<_> = rows.collect();
    if rows.is_empty() {
        return format!("{nothing}\n");
    }
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<_> =
        (0..heads.len()).map(|column| (column, width(column))).filter(|it| it.1 > 0).collect();
    let line = |cell: &dyn Fn(usize) -> String| {
        let cells = widths
            .iter()
            .map(|&(column, width)| format!("{:1$}", cell(column), width.max(heads[column].len())));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    let rows = rows.iter().map(|row| line(&|column| row[column].clone()));
    line(&|column| heads[column].to_owned()) + &rows.collect::<String>()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn tables_have_columns_and_texts_of_others_stay_on_their_line() {
        let lines = [
            json!({"id": "a", "domain": "shop", "entries": [{"key": "user", "value": "x\u{1b}[2J\n"}], "deny": true, "in_force": true, "who": "jane", "why": "abuse"}),
            json!({"id": "launch", "domain": "shop", "entries": [{"key": "user"}], "requests_per_unit": 7, "in_force": false, "who": "bo", "why": "launch"}),
        ];
        let expected = "\
ID      PATH                    LIMIT           IN FORCE  WHO   WHY
a       shop user=x\\u{1b}[2J\\n  nothing passes  yes       jane  abuse
launch  shop user               7               no        bo    launch
";
        assert_eq!(exceptions(&Value::Null, &lines), expected);
        assert_eq!(exceptions(&Value::Null, &[]), "no exceptions\n");
        let record = json!({"domain": "d", "entries": [{"key": "a", "value": "b"}], "requests_per_unit": 5, "unit": "day", "unit_multiplier": 2, "burst": 9});
        assert_eq!(records(&Value::Null, &[record]), "PATH   LIMIT\nd a=b  5 per 2 day, burst 9\n");
    }

    #[test]
    fn what_reservations_hold_is_shown_with_what_is_counted() {
        let sent = json!({"domain": "d", "entries": [{"key": "a", "value": "b"}]});
        let counter =
            json!({"counted": 100, "remaining": 0, "wait_for_one_seconds": 2, "capacity_in_seconds": 2});
        let line = |held: u32| json!({"descriptors": [{"counter": counter, "held": held}]});
        assert_eq!(
            peek(&sent, &[line(90), line(0)]),
            "d a=b: 100 counted, 90 of them held by reservations, 0 left, room again in 2 s\n\
             d a=b: 100 counted, 0 left, room again in 2 s\n"
        );
    }

    #[test]
    fn a_change_says_when_it_ends() {
        let sent = json!({"domain": "shop", "entries": [{"key": "user", "value": "alice"}], "until": "soon"});
        let line = json!({"id": "x", "done": "made", "survives_restart": true, "warning": "no rule applies"});
        assert_eq!(change(&sent, &[line]), "x: made, until soon (soon)\nwarning: no rule applies\n");
        let line = json!({"done": "unchanged"});
        assert_eq!(
            change(&json!({"domain": "d", "entries": [{"key": "a", "value": "b"}]}), &[line]),
            "d a=b: unchanged\n"
        );
    }
}
