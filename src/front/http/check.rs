//! `/check`: may this request pass? For proxies that send subrequests, and for people with curl. `/renew`: it still runs,
//! and keeps its slots. `/release`: it is done, and its slots are free.
//!
//! In: a domain in the path, and either descriptors in the query (`query`), or headers in which the proxy describes a
//! client's request (`client`): the domain's `rate_limits` make descriptors of it. Out: a status, and the numbers of
//! the tightest limit in headers. A body is ignored.

mod client;
mod query;

use std::net::IpAddr;

use http::request::Parts;
use http::{HeaderName, HeaderValue, Method, StatusCode};

use self::client::Described;
use self::query::{Form, Question};
use crate::front::{ClientAnswer, Handler, PROBLEM_JSON, trace};
use tidegate_engine::decision::Code;
use tidegate_engine::limit::Slot;
use tidegate_engine::request::RequestBuf;
use tidegate_engine::rules::{Actions, ClientRequest, RuleSet};
use tidegate_operate::page::{Page, empty, not_allowed, page, text};
use tidegate_serve::metrics::Front;
use tidegate_serve::refusal::{Refusal, RefusalCode};

/// What is asked: the beginning of the path. The rest of it is the domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    /// May a request pass?
    Check,
    /// The slots whose tokens are named are held for another `ttl`.
    Renew,
    /// They are free again.
    Release,
}

impl Verb {
    /// The verb of this path, and the domain in it, as it is written.
    pub(super) fn of(path: &str) -> Option<(Self, &str)> {
        let verbs = [("/check/", Self::Check), ("/renew/", Self::Renew), ("/release/", Self::Release)];
        verbs.into_iter().find_map(|(begin, verb)| Some((verb, path.strip_prefix(begin)?)))
    }
}

/// The header with the tokens of the slots that a request took. It is for the proxy alone.
const SLOTS: HeaderName = HeaderName::from_static("tidegate-slots");

const GONE: &str =
    "no slot was renewed: no rule counts calls here, or the slot has ended and all others are taken\n";

/// How `/check` reads requests and answers.
#[derive(Clone, Copy, Debug)]
pub struct CheckOptions {
    /// Whose headers describe the client's request.
    pub proxy: Proxy,
    /// The status of a denial: 400 to 599.
    pub deny_status: StatusCode,
    /// How many entries at the end of `x-forwarded-for` are skipped, because they name proxies that are trusted about
    /// the entry before.
    pub trusted_hops: usize,
}

/// A family of headers. Only one is trusted: a proxy passes headers that it does not know on as the client sent them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proxy {
    /// `x-original-uri`, `x-original-method`, `host`.
    Nginx,
    /// `x-forwarded-uri`, `x-forwarded-method`, `x-forwarded-host`.
    Forwarded,
}

/// Answers one call. `peer` is `None` on a unix socket.
pub(super) async fn respond(
    handler: &Handler,
    options: CheckOptions,
    verb: Verb,
    domain: &str,
    head: &Parts,
    peer: Option<IpAddr>,
) -> Page {
    match verb {
        Verb::Check if ![Method::GET, Method::HEAD, Method::POST].contains(&head.method) => {
            return not_allowed("GET, HEAD, POST");
        }
        Verb::Renew | Verb::Release if head.method != Method::POST => return not_allowed("POST"),
        Verb::Check | Verb::Renew | Verb::Release => {}
    }
    let mut span = handler.begin_span(Front::Check, trace::headers_in(&head.headers));
    match query::parse(domain, head.uri.query(), handler.bounds()) {
        Ok(Question { mut buf, form, deny_status }) => {
            trace::asked(&mut span, buf.domain());
            let client = Described { head, peer, options };
            let bytes_max = handler.bounds().request_bytes_max;
            let ask = |rules: &RuleSet, buf: &mut RequestBuf| {
                if form == Form::Headers {
                    describe(rules, None, &client, buf, bytes_max)?;
                }
                match verb {
                    Verb::Check => {}
                    Verb::Renew => buf.renew(),
                    Verb::Release => buf.release(),
                }
                Ok(())
            };
            match handler.check(Front::Check, &mut buf, ask, span, ClientAnswer::of).ready().await {
                Ok(_) if verb == Verb::Release => empty(StatusCode::OK),
                Ok(answer) if verb == Verb::Renew && answer.slots.is_empty() => {
                    text(StatusCode::NOT_FOUND, GONE)
                }
                Ok(answer) => answered(&answer, deny_status.unwrap_or(options.deny_status)),
                Err(refusal) => refused(handler, &refusal),
            }
        }
        Err(refusal) => refused(handler, &handler.refuse_call(Front::Check, refusal, span)),
    }
}

/// Makes descriptors of a client's request, by these actions, or else by those of its domain.
pub(crate) fn describe(
    rules: &RuleSet,
    own: Option<&Actions>,
    client: &impl ClientRequest<Error = Refusal>,
    buf: &mut RequestBuf,
    bytes_max: usize,
) -> Result<(), Refusal> {
    match own.or_else(|| rules.actions(buf.domain())) {
        Some(actions) if actions.is_empty() => {
            let message =
                "the domain has no `rate_limits` (expected them in its rules, or descriptors in the query)";
            return Err(Refusal::unimplemented(message));
        }
        Some(actions) => actions.describe(client, buf, bytes_max)?,
        // The domain is unknown, so its descriptors are unknown too: they count as one.
        None => buf.close(),
    }
    Ok(())
}

fn answered(answer: &ClientAnswer, deny_status: StatusCode) -> Page {
    let mut page = match (answer.numbers.code, answer.problem()) {
        (Code::Ok, _) => empty(StatusCode::OK),
        (Code::OverLimit, None) => text(deny_status, "rate limited"),
        (Code::OverLimit, Some(problem)) => page(deny_status, PROBLEM_JSON, problem.to_owned()),
    };
    answer.headers(|name, value| drop(page.headers_mut().insert(name, value)));
    if !answer.slots.is_empty() {
        let tokens: Vec<String> = answer.slots.iter().map(Slot::to_string).collect();
        let tokens = HeaderValue::try_from(tokens.join(", ")).expect("a token is ASCII");
        page.headers_mut().insert(SLOTS, tokens);
    }
    page
}

fn refused(handler: &Handler, refusal: &Refusal) -> Page {
    let status = match refusal.code {
        RefusalCode::InvalidArgument | RefusalCode::Unimplemented => StatusCode::BAD_REQUEST,
        RefusalCode::ResourceExhausted => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
        RefusalCode::DeadlineExceeded | RefusalCode::Unavailable | RefusalCode::StoreFailure => {
            if let Some(problem) = handler.client_options().undecided() {
                return page(StatusCode::SERVICE_UNAVAILABLE, PROBLEM_JSON, problem);
            }
            StatusCode::SERVICE_UNAVAILABLE
        }
    };
    text(status, format!("{refusal}\n"))
}
