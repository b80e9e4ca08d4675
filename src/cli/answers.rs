//! The answers of limiters, as commands print them.
//!
//! In: lines that limiters answered, and why some did not. Out: the same lines. With several limiters each says whose it is: a
//! name before it, or, with `--format json`, a field in it. There what failed is a line of JSON too.

use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgMatches};
use serde_json::{Value, json};

use super::debug_port::Limiter;
use super::print_error;
use tidegate_engine::text::{json_line, one_line};

const FORMAT: &str = "format";
const JSON: &str = "json";
/// The field that says whose a line is.
const LIMITER: &str = "limiter";

/// The option.
pub(super) fn argument() -> Arg {
    Arg::new(FORMAT)
        .long(FORMAT)
        .value_parser(PossibleValuesParser::new(["text", JSON]))
        .default_value("text")
        .help("json: what fails is a line of JSON too, and each line has a field for whose it is if there are several")
}

/// How answers are printed.
#[derive(Clone, Copy)]
pub(super) struct Answers {
    as_json: bool,
    are_several: bool,
}

impl Answers {
    /// As the option says, for so many limiters.
    pub(super) fn of(matches: &ArgMatches, limiters: usize) -> Self {
        let format = matches.get_one::<String>(FORMAT);
        Self { as_json: format.is_some_and(|format| format == JSON), ..Self::text(limiters) }
    }

    /// As text, for so many limiters.
    pub(super) fn text(limiters: usize) -> Self {
        Self { as_json: false, are_several: limiters > 1 }
    }

    /// A line of a limiter, with its end.
    pub(super) fn line(self, limiter: &Limiter, line: &str) -> String {
        let line = &*json_line(line);
        let name = limiter.name();
        match (self.are_several, self.as_json) {
            (false, _) => format!("{line}\n"),
            (true, false) => format!("{name}\t{line}\n"),
            (true, true) => match serde_json::from_str(line) {
                Ok(Value::Object(mut fields)) => {
                    fields.insert(LIMITER.to_owned(), name.into());
                    format!("{}\n", json_line(&Value::Object(fields).to_string()))
                }
                _ => format!("{}\n", json!({LIMITER: name, "answer": line})),
            },
        }
    }

    /// Tells people why a limiter did not answer. Returns what programs are told.
    pub(super) fn failure(self, limiter: &Limiter, why: &str) -> String {
        let (name, why) = (limiter.name(), one_line(why));
        print_error(format_args!("{name}: {why}"));
        if self.as_json { format!("{}\n", json!({LIMITER: name, "error": why})) } else { String::new() }
    }
}
