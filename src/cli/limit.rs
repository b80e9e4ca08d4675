//! `tidegate limit`: records of running limiters, as commands. A record is a limit for one key.
//!
//! In: one record, or a file of them, and the limiters to send it to. Out: the answers. Sending the same again
//! changes nothing, so a load that failed halfway is simply repeated.

mod load;

use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use http::{HeaderValue, Method};
use serde_json::Value;

use super::admin::{self, SETTINGS, author, author_who_may_say_why, counter_path, effect, everywhere, path};
use super::answers::{self, Answers};
use super::debug_port::{Call, Limiter};
use super::{Done, given, read_only, sent, shown};
use crate::settings::Texts;
use tidegate_operate::bodies::asked::{DomainEntries, ListRecords};
use tidegate_operate::bodies::{json, read};

/// Records of a page that is fetched.
const PAGE: u64 = 5_000;

/// The fields of a record that are text, by the names of the API.
const WORDS: [(&str, &str, &str); 5] = [
    ("unit", "UNIT", "another window: second, minute, hour, day, week, month or year"),
    ("window", "DURATION", "another window, such as 90s; instead of --unit"),
    ("algorithm", "NAME", "another algorithm"),
    ("granularity", "DURATION", "another width of the buckets of sliding_window"),
    ("anchor", "WHEN", "where the periods of a calendar budget begin: 15, sunday or 04-06"),
];
/// The fields of a record that are numbers.
const NUMBERS: [(&str, &str); 3] = [
    ("requests-per-unit", "N"),
    ("burst", "the capacity, if the limit is a bucket"),
    ("unit-multiplier", "the window is so many units"),
];

pub(super) fn command() -> Command {
    let text = |(name, value, help)| Arg::new(name).long(name).value_name(value).help(help);
    let number =
        |(name, help)| Arg::new(name).long(name).value_name("N").value_parser(value_parser!(u64)).help(help);
    let shadow = Arg::new("shadow-mode").long("shadow-mode").value_name("BOOL");
    let put = Command::new("put")
        .about("Makes a record, or replaces the one of its key")
        .args(counter_path())
        .args(NUMBERS.map(number))
        .args(WORDS.map(text))
        .arg(
            Arg::new("unlimited")
                .long("unlimited")
                .action(ArgAction::SetTrue)
                .help("counted, and never denied"),
        )
        .arg(shadow.value_parser(value_parser!(bool)).help("whether it only counts and reports"))
        .group(effect(&["requests-per-unit", "unlimited"]))
        .args(author());
    let get = Command::new("get").about("Shows the record of a key").args(counter_path());
    let delete = Command::new("delete").about("Removes the record of a key").args(counter_path());
    let delete = delete.args(author_who_may_say_why());
    let most = number(("most", "only the first so many")).default_value("1000");
    let list = Command::new("list").about("Lists records").args(prefix()).arg(most);
    let export =
        Command::new("export").about("Writes all records in a format that `load` reads").args(prefix());
    Command::new("limit")
        .about("Limits for single keys of running limiters: one, or millions")
        .subcommand_required(true)
        .subcommands([put, get, delete, list, export].map(|it| everywhere(it).arg(answers::argument())))
        .subcommand(everywhere(load::command()))
}

/// The prefix of the keys in a list.
fn prefix() -> [Arg; 2] {
    let help = "only those with these entries first, of which the last may be a key alone";
    path()
        .map(|arg| if arg.get_id() == "entries" { arg.num_args(0..).help(help) } else { arg }.required(false))
}

pub(super) fn run(matches: &ArgMatches, texts: Texts<'_>) -> Done {
    match matches.subcommand() {
        Some((command @ ("list" | "export" | "load"), own)) => {
            let configuration = read_only(SETTINGS, own, texts)?;
            let limiters = Limiter::named(own, &configuration.listeners)?;
            let is_load = command == "load";
            // `--format` of a load is that of its file.
            let answers = match is_load {
                true => Answers::text(limiters.len()),
                false => Answers::of(own, limiters.len()),
            };
            let is_export = command == "export";
            let asking = Asking { limiters, token: admin::token(&configuration)?, answers, is_export };
            match is_load {
                true => load::run(own, &asking),
                false => Ok((String::new(), list(own, &asking))),
            }
        }
        _ => admin::run(matches.subcommand(), texts, |command, own| {
            Ok(match command {
                "put" => (Method::PUT, "/admin/records".to_owned(), json(&sent::record(own)), shown::change),
                "delete" => {
                    (Method::DELETE, "/admin/records".to_owned(), json(&sent::delete(own)), shown::change)
                }
                _ => {
                    (Method::POST, "/admin/records/get".to_owned(), json(&sent::counter(own)), shown::records)
                }
            })
        }),
    }
}

/// Limiters that are asked several times.
struct Asking {
    limiters: Vec<Limiter>,
    token: Option<HeaderValue>,
    answers: Answers,
    is_export: bool,
}

impl Asking {
    /// The answer of one limiter. `None`: it did not answer, or refused, as standard error has it.
    fn post(&self, limiter: &Limiter, path: String, body: String) -> Option<String> {
        let call = Call { method: Method::POST, path, body, token: self.token.as_ref() };
        match admin::ask(limiter, &call) {
            Ok(body) => Some(body),
            Err(why) => {
                // The reader may have stopped.
                let _ = io::stdout().write_all(self.answers.failure(limiter, &why).as_bytes());
                None
            }
        }
    }
}

/// Prints records page by page, all of them or as many as are asked for. An export always has lines that `load`
/// reads.
fn list(own: &ArgMatches, asking: &Asking) -> ExitCode {
    let most = given::<u64>(own, "most").copied().unwrap_or(u64::MAX);
    let all = asking.limiters.iter().map(|limiter| list_one(sent::page(own, PAGE), most, asking, limiter));
    match all.fold(true, |all, one| all & one.is_some()) {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

fn list_one(mut asked: ListRecords, most: u64, asking: &Asking, limiter: &Limiter) -> Option<()> {
    let (mut left, mut out) = (most, io::stdout().lock());
    while left > 0 {
        asked.most = left.min(PAGE).into();
        let body = json(&asked).to_string();
        let page = asking.post(limiter, "/admin/records/list".to_owned(), body)?;
        let page: Value = serde_json::from_str(&page).unwrap_or_default();
        let records = page["records"].as_array().map(Vec::as_slice).unwrap_or_default();
        let lines: String = records.iter().map(|record| format!("{record}\n")).collect();
        let lines = match asking.is_export {
            true => lines.lines().map(|line| asking.answers.json_line(limiter, line)).collect(),
            false => asking.answers.lines(limiter, &Value::Null, &lines, shown::records),
        };
        // The reader may have stopped.
        out.write_all(lines.as_bytes()).ok()?;
        left -= (records.len() as u64).min(left);
        match &page["next"] {
            Value::Null => break,
            next => match read::<DomainEntries>(next) {
                Ok(next) => asked.after = Some(next),
                Err(mistake) => {
                    let why = format!("next: {mistake}");
                    let _ = out.write_all(asking.answers.failure(limiter, &why).as_bytes());
                    return None;
                }
            },
        }
    }
    Some(())
}
