//! `tidegate exception`, `tidegate counter` and `tidegate audit`: the admin API of running limiters, as commands.
//!
//! In: one change or question, and the limiters to send it to. Out: the answer of each. A change has an id, so
//! sending it again to the limiters that failed changes nothing at the others.

use std::process::ExitCode;

use clap::{Arg, ArgAction, ArgGroup, ArgMatches, Command, value_parser};
use http::{HeaderValue, Method};
use serde_json::Value;

use super::answers::{self, Answers};
use super::debug_port::{self, Call, Limiter, send};
use super::sent::{self, text};
use super::shown::{self, Form};
use super::{Done, arguments_of, given, read_only, times};
use crate::app::token_header;
use crate::clock::wall;
use crate::configuration::Configuration;
use crate::settings::{Problem, Texts};
use tidegate_operate::bodies::json;
use tidegate_operate::bodies::values::{ResetId, read_id};

/// The option, and the field, of the number of a reset.
const ID: &str = "id";

/// The settings that say where the limiter is, and the token.
pub(super) const SETTINGS: &str = "
    DEBUG_HOST DEBUG_PORT DEBUG_SERVER_TLS_CERT DEBUG_SERVER_TLS_KEY ADMIN_TOKEN ADMIN_TOKEN_FILE";

/// Who makes a change, and why; both go into the audit.
pub(super) fn author() -> [Arg; 2] {
    author_who_may_say_why().map(|argument| argument.required(true))
}

/// Who undoes a change, and, optionally, why.
pub(super) fn author_who_may_say_why() -> [Arg; 2] {
    let text = |name: &'static str, value: &'static str| Arg::new(name).long(name).value_name(value);
    [
        text("who", "NAME").required(true).help("who makes the change, for the audit"),
        text("why", "TEXT").help("why, for the audit"),
    ]
}

pub(super) fn exception_command() -> Command {
    let id = || Arg::new("id").value_name("ID").required(true).help("its name");
    let number = |name: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name("N").value_parser(value_parser!(u64)).help(help)
    };
    let switch = |name: &'static str, help: &'static str| {
        Arg::new(name).long(name).action(ArgAction::SetTrue).help(help)
    };
    let put = Command::new("put")
        .about("Makes an exception, or replaces the one with this id")
        .arg(id())
        .args(path())
        .arg(number("requests-per-unit", "another N"))
        .arg(number("burst", "another burst"))
        .arg(switch("unlimited", "counted, and never denied"))
        .arg(switch("deny", "nothing passes"))
        .group(effect(&["requests-per-unit", "burst", "unlimited", "deny"]))
        .args(times::arguments())
        .args(author());
    let end = Command::new("end").about("Ends an exception").arg(id()).args(author_who_may_say_why());
    let list = Command::new("list").about("Lists all exceptions");
    Command::new("exception")
        .about("Makes, ends or lists exceptions of running limiters")
        .subcommand_required(true)
        .subcommands([put, end, list].map(|command| everywhere(command).arg(answers::argument())))
}

pub(super) fn counter_command() -> Command {
    let peek = Command::new("peek").about("Shows what a counter holds").args(counter_path());
    let id = "the reset's number: nanoseconds since 1970 in 16 hex digits; without it: now. Repeated, it has no effect";
    let read = |text: &str| {
        let read = read_id(text).map(ResetId);
        read.ok_or("expected sixteen digits in hex, the nanoseconds since 1970")
    };
    let id = || Arg::new(ID).long(ID).value_name("HEX").value_parser(read).help(id);
    let reset = Command::new("reset").about("Sets a counter to zero").args(counter_path());
    let reset = reset.args(author()).arg(id());
    let [domain, entries] = path();
    let help = "the first entries of rules, as the rules have them; none: all rules of the domain";
    let reset_all = Command::new("reset-all")
        .about("Sets all counters of the rules at and below a path to zero")
        .args([domain, entries.num_args(0..).required(false).help(help)])
        .args(author())
        .arg(id());
    let [domain, entries] = path();
    let entries =
        entries.num_args(0..).help("the entries of the rule, as the rules have them; none: the first rules");
    let top = Command::new("top")
        .about("Shows the fullest counters of rules, and those that deny most, since the first question about them")
        .args([domain, entries].map(|argument| argument.required(false)))
        .arg(Arg::new("most").long("most").value_name("N").value_parser(value_parser!(u64)).help("so many at most"));
    let resets = Command::new("resets").about("Lists the last reset of each path");
    Command::new("counter")
        .about("Shows or resets counters of running limiters")
        .subcommand_required(true)
        .subcommands(
            [peek, top, reset, reset_all, resets].map(|command| everywhere(command).arg(answers::argument())),
        )
}

/// The command of the audit.
pub(super) fn audit_command() -> Command {
    let audit =
        Command::new("audit").about("Lists who changed what since the limiter started, the newest last");
    everywhere(audit).arg(answers::argument())
}

/// At least one of these options has to be given.
pub(super) fn effect(options: &'static [&'static str]) -> ArgGroup {
    ArgGroup::new("effect").args(options).required(true).multiple(true)
}

/// The entries of a descriptor.
pub(super) fn path() -> [Arg; 2] {
    let domain = Arg::new("domain").value_name("DOMAIN").required(true);
    let entries = Arg::new("entries").value_name("KEY[=VALUE]").num_args(1..).required(true);
    [domain, entries.help("the entries of a descriptor, in order; in exceptions, a `*` stands for any text")]
}

/// The entries of one counter: each has a value.
pub(super) fn counter_path() -> [Arg; 2] {
    let [domain, entries] = path();
    let entry = |word: &str| match word.contains('=') {
        true => Ok(word.to_owned()),
        false => Err("each key needs a value (expected KEY=VALUE)"),
    };
    let entries = entries.value_name("KEY=VALUE").value_parser(entry);
    [domain, entries.help("the entries of a descriptor, in order, each with its value")]
}

/// The arguments that each of these commands has.
pub(super) fn everywhere(command: Command) -> Command {
    let to = Arg::new("to").long("to").value_name("HOST:PORT").value_delimiter(',').action(ArgAction::Append);
    let help = "the debug ports of the limiters, separated by commas; with TLS: https://HOST:PORT [default: \
                DEBUG_HOST, DEBUG_PORT]";
    command
        .arg(to.help(help))
        .args(debug_port::arguments())
        .args(arguments_of(SETTINGS))
        .after_help("Exit code: 0 all answered, 1 one did not or refused, 64 a bad command line.")
}

/// Runs `tidegate exception`.
pub(super) fn exception(matches: &ArgMatches, texts: Texts<'_>) -> Done {
    run(matches.subcommand(), texts, |command, own| {
        let path = || format!("/admin/exceptions/{}", encoded(&text(own, "id").unwrap_or_default()));
        match command {
            "put" => {
                let times = times::given_times(own, wall())?;
                Ok((Method::PUT, path(), json(&sent::exception(own, times)), shown::change as Form))
            }
            "end" => Ok((Method::DELETE, path(), json(&sent::end(own)), shown::change)),
            _ => Ok((Method::GET, "/admin/exceptions".to_owned(), Value::Null, shown::exceptions)),
        }
    })
}

/// Runs `tidegate counter`.
pub(super) fn counter(matches: &ArgMatches, texts: Texts<'_>) -> Done {
    // One number for all limiters, so that sending it again to those that failed changes nothing at the others.
    let now = ResetId(wall().as_nanos());
    run(matches.subcommand(), texts, |command, own| {
        let id = given::<ResetId>(own, ID).copied().unwrap_or(now);
        let post = |path: &str, body: Value, form: Form| Ok((Method::POST, path.to_owned(), body, form));
        match command {
            "resets" => Ok((Method::GET, "/admin/resets".to_owned(), Value::Null, shown::resets as Form)),
            "reset" => post("/admin/counters/reset", json(&sent::reset(own, id)), shown::reset),
            "reset-all" => post("/admin/resets", json(&sent::reset_below(own, id)), shown::change),
            "peek" => post("/admin/counters/peek", json(&sent::counter(own)), shown::peek),
            _ => post("/admin/counters/top", json(&sent::rule(own)), shown::top),
        }
    })
}

/// Runs `tidegate audit`.
pub(super) fn audit(matches: &ArgMatches, texts: Texts<'_>) -> Done {
    run(Some(("audit", matches)), texts, |_, _| {
        Ok((Method::GET, "/admin/audit".to_owned(), Value::Null, shown::audit))
    })
}

/// Sends one request to every limiter, and shows the answers.
pub(super) fn run(
    command: Option<(&str, &ArgMatches)>,
    texts: Texts<'_>,
    request: impl Fn(&str, &ArgMatches) -> Result<(Method, String, Value, Form), Vec<Problem>>,
) -> Done {
    let Some((command, own)) = command else { return Ok((String::new(), ExitCode::FAILURE)) };
    let configuration = read_only(SETTINGS, own, texts)?;
    let limiters = Limiter::named(own, &configuration.listeners)?;
    let (method, path, sent, form) = request(command, own)?;
    let token = token(&configuration)?;
    let body = if sent.is_null() { String::new() } else { sent.to_string() };
    let call = Call { method, path, body, token: token.as_ref() };
    let answers = Answers::of(own, limiters.len());
    let (mut out, mut code) = (String::new(), ExitCode::SUCCESS);
    for limiter in &limiters {
        match ask(limiter, &call) {
            Ok(body) => out += &answers.lines(limiter, &sent, &body, form),
            Err(why) => {
                out += &answers.failure(limiter, &why);
                code = ExitCode::FAILURE;
            }
        }
    }
    Ok((out, code))
}

/// The header with the token of the settings, if they have one.
pub(super) fn token(configuration: &Configuration) -> Result<Option<HeaderValue>, Vec<Problem>> {
    let problem = |what| vec![Problem { name: "ADMIN_TOKEN_FILE".to_owned(), what }];
    token_header(&configuration.admin).map_err(problem)
}

/// The answer of one limiter, or why there is none.
pub(super) fn ask(limiter: &Limiter, call: &Call<'_>) -> Result<String, String> {
    match send(limiter, call) {
        Ok((status, body)) if status.is_success() => Ok(body),
        Ok((status, body)) => Err(format!("{status}: {}", said(body.trim_end()))),
        Err(error) => Err(error.to_string()),
    }
}

/// The text of a refusal: its `error`, if it is JSON that has one.
fn said(body: &str) -> String {
    let json = serde_json::from_str::<Value>(body).ok();
    json.and_then(|json| Some(json["error"].as_str()?.to_owned())).unwrap_or_else(|| body.to_owned())
}

/// A text as a part of a path or as a value in a query.
pub(super) fn encoded(text: &str) -> String {
    let encode = |byte: u8| match byte {
        b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' | b'-' | b'_' | b'.' => char::from(byte).to_string(),
        other => format!("%{other:02X}"),
    };
    text.bytes().map(encode).collect()
}
