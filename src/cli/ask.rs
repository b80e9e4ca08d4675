//! `tidegate ask`: shows which rule a request would meet, by which path, and the state of its counter. Counts
//! nothing.
//!
//! In: a domain and entries. Out: the explanation, from a running limiter (its debug port), from rules and the counters
//! in a Redis, or from rules alone, with all counters unused. With `--envoy` it is a client's request, from which Envoy
//! makes the descriptors: `envoy`.

mod envoy;

use std::io;
use std::path::Path;
use std::process::ExitCode;

use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgMatches, Command, value_parser};
use http::{HeaderValue, Method, StatusCode};
use serde_json::{Value, json};

use self::envoy::{Source, SourceError};
use super::debug_port::{self, Call, Limiter, send};
use super::{
    DECIDING, Done, RulesError, admin, arguments_of, flag, has_word, loaded, print_error, read_only,
};
use crate::app::inside::{Inside, Options, Refusal};
use crate::clock::wall;
use crate::configuration::Configuration;
use crate::settings::{Problem, Row, TABLE, Texts};
use tidegate_engine::explain::explain;
use tidegate_engine::memory::{MemoryOptions, MemoryStore};
use tidegate_engine::request::{Entry, Request};
use tidegate_engine::rules::BadCallId;
use tidegate_engine::text::{json_line, one_line};
use tidegate_trial::envoy::DescriptorBuf;

/// The settings that say where the limiter is.
const LIMITER: &str = "
    DEBUG_HOST DEBUG_PORT DEBUG_SERVER_TLS_CERT DEBUG_SERVER_TLS_KEY ADMIN_TOKEN ADMIN_TOKEN_FILE";

/// The setting that says where the counters are, if no limiter is asked. Only as a flag: the variable may be a server's.
const REDIS_URL: &str = "REDIS_URL";

/// The settings that say how counters and records are read there.
const REDIS: &str = "
    REDIS_URL REDIS_TYPE REDIS_SOCKET_TYPE REDIS_AUTH REDIS_SENTINEL_AUTH REDIS_TIMEOUT REDIS_KEY_HASH CACHE_KEY_PREFIX
    REDIS_TLS REDIS_TLS_SKIP_HOSTNAME_VERIFICATION REDIS_TLS_CACERT REDIS_TLS_CLIENT_CERT REDIS_TLS_CLIENT_KEY
    REDIS_PERSECOND REDIS_PERSECOND_TYPE REDIS_PERSECOND_URL REDIS_PERSECOND_SOCKET_TYPE REDIS_PERSECOND_AUTH
    REDIS_PERSECOND_SENTINEL_AUTH REDIS_PERSECOND_TLS REDIS_PERSECOND_TIMEOUT
    COLD_START COLD_START_MAX_WINDOW LIMITS_URL LIMITS_TYPE LIMITS_AUTH";

/// The word that separates two descriptors.
const NEXT_DESCRIPTOR: &str = "+";

pub(super) fn command() -> Command {
    Command::new("ask")
        .about("Shows which rule a request would meet, and why; counts nothing")
        .arg(Arg::new("domain").value_name("DOMAIN").required_unless_present("envoy").conflicts_with("envoy"))
        .arg(
            Arg::new("entries")
                .value_name("KEY=VALUE")
                .num_args(1..)
                .required_unless_present("envoy")
                .conflicts_with("envoy")
                .help("the entries of a descriptor, in order; a `+` by itself begins another descriptor"),
        )
        .arg(
            Arg::new("hits")
                .long("hits")
                .value_parser(value_parser!(u32).range(1..))
                .default_value("1")
                .help("how many hits would have to fit"),
        )
        .arg(
            Arg::new("format")
                .long("format")
                .value_parser(PossibleValuesParser::new(["text", "json"]))
                .default_value("text"),
        )
        .arg(
            Arg::new("rules")
                .long("rules")
                .value_name("FOLDER")
                .help("ask these rules, not a running limiter; without --redis-url all counters are unused then"),
        )
        .arg(Arg::new("to").long("to").value_name("HOST:PORT").conflicts_with("rules").help(
            "the debug port of the limiter; with TLS: https://HOST:PORT [default: DEBUG_HOST, DEBUG_PORT]",
        ))
        .args(debug_port::arguments())
        .args(envoy::arguments())
        .args(arguments_of(LIMITER).chain(arguments_of(DECIDING)))
        .args(arguments_of(REDIS).map(|argument| argument.hide_short_help(true)))
        .mut_arg(REDIS_URL, |argument| argument.hide_short_help(false).requires("rules"))
        .after_help(
            "Asks the debug port of a running limiter; with --rules and --redis-url the counters in Redis, as \
             modules inside Envoy use them. Exit code: 0 answered, 1 not, 2 the descriptors that \
             Envoy would make need more than its configuration, 64 a bad command line.",
        )
}

/// The request to explain.
struct Question {
    domain: String,
    descriptors: Vec<DescriptorBuf>,
    hits: u32,
    as_json: bool,
}

/// Who explains.
enum Explainer<'a> {
    /// A running limiter, as a bearer of this token.
    Limiter(Limiter, Option<HeaderValue>),
    /// Rules in a folder, and counters in Redis.
    Redis(&'a Path, Configuration, Options),
    /// Rules in a folder.
    Rules(&'a Path, Configuration),
}

pub(super) fn run(matches: &ArgMatches, texts: Texts<'_>) -> Done {
    let explainer = explainer(matches, texts)?;
    let ask = |question: &Question| match &explainer {
        Explainer::Limiter(limiter, token) => online(question, limiter, token.as_ref()),
        Explainer::Redis(folder, configuration, options) => {
            in_redis(question, folder, configuration, options)
        }
        Explainer::Rules(folder, configuration) => offline(question, folder, configuration),
    };
    let answer = match envoy::source(matches).map_err(|problem| vec![problem])? {
        Some(source) => of_client(matches, &source, ask),
        None => ask(&question(matches).map_err(|problem| vec![problem])?),
    };
    Ok(match answer {
        Ok(text) => (text, ExitCode::SUCCESS),
        Err(problem) => {
            print_error(format_args!("{}", one_line(&problem.to_string())));
            (String::new(), problem.exit_code())
        }
    })
}

fn explainer<'a>(matches: &'a ArgMatches, texts: Texts<'_>) -> Result<Explainer<'a>, Vec<Problem>> {
    let configuration = read_only(&[LIMITER, DECIDING].concat(), matches, texts)?;
    let Some(folder) = matches.get_one::<String>("rules") else {
        let limiter = Limiter::one(matches, &configuration.listeners)?;
        // Without a token the limiter shows less.
        return Ok(Explainer::Limiter(limiter, admin::token(&configuration).ok().flatten()));
    };
    let path = Path::new(folder);
    if matches.get_one::<String>(REDIS_URL).is_none() {
        return Ok(Explainer::Rules(path, configuration));
    }
    let given = |row: &Row| flag(matches, row).or_else(|| (texts.variable)(row.name));
    let rows = TABLE.iter().filter(|row| has_word(DECIDING, row.name) || has_word(REDIS, row.name));
    let settings = rows.filter_map(|row| Some((row.name.to_owned(), given(row)?)));
    let settings = settings.chain([("CONFIG_PATH".to_owned(), folder.clone())]).collect();
    let options = Options { settings, rules: None };
    options.resolve().map_err(|what| vec![Problem { name: "ask".to_owned(), what }])?;
    Ok(Explainer::Redis(path, configuration, options))
}

/// Explains the requests that Envoy would send for a client's request.
fn of_client(
    matches: &ArgMatches,
    source: &Source,
    ask: impl Fn(&Question) -> Result<String, AskError>,
) -> Result<String, AskError> {
    let described = source.described()?;
    let (hits, as_json) = (hits(matches), as_json(matches));
    let calls = described.calls.iter().filter(|_| !source.only_describes);
    let questions = calls.map(|call| Question {
        domain: call.domain.clone(),
        descriptors: call.descriptors.clone(),
        hits,
        as_json,
    });
    let answers = questions.map(|question| ask(&question)).collect::<Result<Vec<_>, _>>()?;
    if !as_json {
        return Ok([vec![envoy::head(&described)], answers].concat().join("\n"));
    }
    let mut shown = envoy::json(&described);
    let answer = |text: &String| serde_json::from_str::<Value>(text).unwrap_or(Value::Null);
    shown["answers"] = answers.iter().map(answer).collect();
    Ok(format!("{}\n", json_line(&shown.to_string())))
}

fn hits(matches: &ArgMatches) -> u32 {
    matches.get_one("hits").copied().unwrap_or(1)
}

fn as_json(matches: &ArgMatches) -> bool {
    matches.get_one::<String>("format").is_some_and(|format| format == "json")
}

fn question(matches: &ArgMatches) -> Result<Question, Problem> {
    let mut descriptors = vec![DescriptorBuf::default()];
    for word in matches.get_many::<String>("entries").into_iter().flatten() {
        match (word.as_str(), word.split_once('='), descriptors.last_mut()) {
            (NEXT_DESCRIPTOR, ..) => descriptors.push(DescriptorBuf::default()),
            (_, Some((key, value)), Some(last)) => last.entries.push((key.to_owned(), value.to_owned())),
            _ => {
                let what = format!("{word:?} is no entry (expected KEY=VALUE)");
                return Err(Problem { name: "ask".to_owned(), what });
            }
        }
    }
    Ok(Question {
        domain: matches.get_one::<String>("domain").cloned().unwrap_or_default(),
        descriptors,
        hits: hits(matches),
        as_json: as_json(matches),
    })
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
enum AskError {
    #[error(transparent)]
    Rules(#[from] RulesError),
    #[error(transparent)]
    CallId(#[from] BadCallId),
    #[error(transparent)]
    Envoy(#[from] SourceError),
    #[error("{0}")]
    Start(String),
    #[error(transparent)]
    NotExplained(#[from] Refusal),
    #[error("no limiter answers on the debug port {name}: {error} (DEBUG_HOST, DEBUG_PORT, --to)")]
    Silent { name: String, error: io::Error },
    #[error("{status}: {}", body.trim_end())]
    Refused { status: StatusCode, body: String },
}

impl AskError {
    fn exit_code(&self) -> ExitCode {
        match self {
            Self::Envoy(error) if error.needs_more() => ExitCode::from(2),
            _ => ExitCode::FAILURE,
        }
    }
}

/// Explains by these rules alone. All counters are unused.
fn offline(question: &Question, folder: &Path, configuration: &Configuration) -> Result<String, AskError> {
    let rules = loaded(folder, configuration)?;
    let store = MemoryStore::new(MemoryOptions::new(1 << 20));
    let mut request = Request::new(&question.domain, question.hits);
    for descriptor in &question.descriptors {
        let entries = descriptor.entries.iter().map(|(key, value)| Entry { key, value });
        request.push(entries, descriptor.options);
    }
    let request = rules.asked(&request);
    let plan = rules.plan(&request, configuration.modes);
    rules.check_calls(&request, &plan)?;
    let shown = explain(&rules, &request, &plan, store.look(&plan, wall()));
    Ok(if question.as_json {
        format!("{}\n", json_line(&shown.json().to_string()))
    } else {
        shown.to_string()
    })
}

/// Explains by these rules and the counters in Redis, under its exceptions, resets and records.
fn in_redis(
    question: &Question,
    folder: &Path,
    configuration: &Configuration,
    options: &Options,
) -> Result<String, AskError> {
    // For its errors: the limiter logs them, and a command has no log.
    loaded(folder, configuration)?;
    let inside = Inside::with(options).map_err(AskError::Start)?;
    Ok(inside.explain(question.body().as_bytes(), question.as_json)?)
}

/// Asks a running limiter.
fn online(question: &Question, limiter: &Limiter, token: Option<&HeaderValue>) -> Result<String, AskError> {
    let path = if question.as_json { "/ask?format=json" } else { "/ask" };
    let call = Call { method: Method::POST, path: path.to_owned(), body: question.body(), token };
    let (status, body) =
        send(limiter, &call).map_err(|error| AskError::Silent { name: limiter.name(), error })?;
    if status == StatusCode::OK { Ok(body) } else { Err(AskError::Refused { status, body }) }
}

impl Question {
    /// The body of the request, in the form of `/json`.
    fn body(&self) -> String {
        let entry = |(key, value): &(String, String)| json!({"key": key, "value": value});
        let descriptor = |descriptor: &DescriptorBuf| {
            let mut shown = json!({"entries": descriptor.entries.iter().map(entry).collect::<Vec<_>>()});
            let options = descriptor.options;
            if let Some(hits) = options.hits_addend {
                shown["hitsAddend"] = hits.into();
            }
            if let Some(limit) = options.limit {
                let unit = limit.window.unit.name().to_ascii_uppercase();
                shown["limit"] = json!({"requestsPerUnit": limit.requests_per_unit, "unit": unit});
            }
            shown["isNegativeHits"] = options.is_negative_hits.into();
            shown
        };
        let descriptors: Vec<_> = self.descriptors.iter().map(descriptor).collect();
        json!({"domain": self.domain, "hitsAddend": self.hits, "descriptors": descriptors}).to_string()
    }
}
