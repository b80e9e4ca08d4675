//! `/reserve`, `/commit` and `/release`: hits are held before a call whose cost is known later, and the cost is charged after it.
//!
//! In: JSON, one object or a list of them: each is decided by itself, in order. Out: JSON, with a status for each.

use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::front::{ClientAnswer, ClientOptions, Handler};
use tidegate_engine::cost::Cost;
use tidegate_engine::decision::{Code, Decision, ReserveResult};
use tidegate_engine::limit::{AMOUNT_MAX, Found, Slot};
use tidegate_engine::request::{DescriptorOptions, ID_BYTES_MAX, Request, RequestBuf, Reservation};
use tidegate_engine::rules::{RuleSet, parse_duration_nanos};
use tidegate_operate::bodies::asked::Entry;
use tidegate_operate::bodies::values::Number;
use tidegate_operate::bodies::{self, Mistake};
use tidegate_operate::page::{JSON, Page, page};
use tidegate_records::UniqueKeys;
use tidegate_serve::metrics::Front;
use tidegate_serve::refusal::{Refusal, RefusalCode};

/// The most reservations in one body.
const BATCH_MAX: usize = 100;

/// What is asked: the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    /// Hits are held.
    Reserve,
    /// The hold ends, and the cost is charged.
    Commit,
    /// The hold ends, and nothing is charged.
    Release,
}

impl Verb {
    /// The verb of this path.
    pub(super) fn of(path: &str) -> Option<Self> {
        match path {
            "/reserve" => Some(Self::Reserve),
            "/commit" => Some(Self::Commit),
            "/release" => Some(Self::Release),
            _ => None,
        }
    }
}

/// A reservation, or its end.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object")]
struct ReserveBody {
    domain: String,
    id: String,
    amount: Option<Number<0, AMOUNT_MAX>>,
    ttl: Option<String>,
    descriptors: Vec<ReserveDescriptor>,
}

/// A descriptor. Its `hits` are for limits without `reserve`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object with `entries` and, maybe, `hits`")]
struct ReserveDescriptor {
    entries: Vec<Entry>,
    hits: Option<u32>,
}

/// What is answered to one.
struct Answered {
    status: StatusCode,
    body: Value,
    client: Option<ClientAnswer>,
}

impl Answered {
    fn into_page(self) -> Page {
        let mut page = page(self.status, JSON, self.body.to_string());
        if let Some(client) = self.client {
            client.headers(|name, value| drop(page.headers_mut().insert(name, value)));
        }
        page
    }
}

/// Answers a body.
pub(super) async fn respond(handler: &Handler, verb: Verb, body: &[u8]) -> Page {
    let value = serde_json::from_slice(body);
    let value = value.and_then(|value| serde_json::from_slice(body).map(|UniqueKeys| value));
    let all: Vec<Value> = match value {
        Ok(Value::Array(all)) if all.len() <= BATCH_MAX => all,
        Ok(Value::Array(all)) => {
            let message = format!("the body: expected a list of at most {BATCH_MAX}, not of {}", all.len());
            return failed(&handler.refuse(Front::Json, Refusal::invalid(message))).into_page();
        }
        Ok(one) => return answer(handler, verb, &one).await.into_page(),
        Err(error) => {
            return failed(&handler.refuse(Front::Json, Refusal::invalid(error.to_string()))).into_page();
        }
    };
    let mut answers = Vec::with_capacity(all.len());
    for one in &all {
        let Answered { status, mut body, .. } = answer(handler, verb, one).await;
        body["status"] = status.as_u16().into();
        answers.push(body);
    }
    page(StatusCode::OK, JSON, Value::from(answers).to_string())
}

async fn answer(handler: &Handler, verb: Verb, one: &Value) -> Answered {
    let mut question = match question(verb, one) {
        Ok(question) => question,
        Err(mistake) => {
            return failed(&handler.refuse(Front::Json, Refusal::invalid(mistake.to_string())));
        }
    };
    let render: fn(ClientOptions, &Request<'_>, &Decision<'_>) -> Answered = match verb {
        Verb::Reserve => reserved,
        Verb::Commit | Verb::Release => ended,
    };
    let is_said = one.get("amount").is_some_and(|amount| !amount.is_null());
    let has_amount = |rules: &RuleSet, question: &mut RequestBuf| match is_said || verb != Verb::Reserve {
        false if rules.needs_amount(&question.as_request()) => Err(Refusal::invalid(
            Mistake::of("amount", "is missing (only a rule with `hold` says what a call may cost)")
                .to_string(),
        )),
        _ => Ok(()),
    };
    let answer = handler.check(Front::Json, &mut question, has_amount, None, render).ready().await;
    answer.unwrap_or_else(|refusal| failed(&refusal))
}

/// The request that a reservation is.
fn question(verb: Verb, one: &Value) -> Result<RequestBuf, Mistake> {
    let asked: ReserveBody = bodies::read(one)?;
    if asked.domain.is_empty() {
        return Err(Mistake::of("domain", "is empty"));
    }
    if asked.id.is_empty() || asked.id.len() > ID_BYTES_MAX || asked.id.contains(char::is_control) {
        let expected = format!("expected 1 to {ID_BYTES_MAX} bytes without control characters");
        return Err(Mistake::of("id", expected));
    }
    if asked.descriptors.is_empty() {
        return Err(Mistake::of("descriptors", "is empty"));
    }
    let mut question = RequestBuf::new(&asked.domain);
    for (place, descriptor) in asked.descriptors.iter().enumerate() {
        if descriptor.entries.is_empty() {
            return Err(Mistake::of("entries", "is empty").within(&format!("descriptors[{place}]")));
        }
        descriptor.entries.iter().for_each(|entry| question.push(&entry.key, &entry.value));
        // Limits without `reserve` are asked when it is made, and left alone when it ends.
        let (hits_addend, cost) = (descriptor.hits.map(u64::from), Cost::Asked);
        question.close_with(DescriptorOptions { hits_addend, cost, ..DescriptorOptions::default() });
    }
    let (hits, ttl_nanos) = (amount(verb, &asked)?, ttl(verb, &asked)?);
    question.reserve(Reservation { id: &asked.id, hits, ttl_nanos, is_commit: verb != Verb::Reserve });
    Ok(question)
}

fn amount(verb: Verb, asked: &ReserveBody) -> Result<u64, Mistake> {
    match (verb, asked.amount.map(|amount| amount.as_usize() as u64)) {
        (Verb::Reserve, Some(amount @ 1..)) | (Verb::Commit, Some(amount)) => Ok(amount),
        (Verb::Release, None) => Ok(0),
        (Verb::Reserve, None) => Ok(Reservation::AMOUNT_OF_RULE),
        (Verb::Reserve, Some(_)) => {
            Err(Mistake::of("amount", "expected the most that the call may cost, not 0"))
        }
        (Verb::Commit, None) => Err(Mistake::of("amount", "is missing")),
        (Verb::Release, Some(_)) => {
            Err(Mistake::of("amount", "is unknown (a release costs nothing; /commit charges a cost)"))
        }
    }
}

fn ttl(verb: Verb, asked: &ReserveBody) -> Result<Option<u64>, Mistake> {
    let Some(text) = &asked.ttl else { return Ok(None) };
    if verb != Verb::Reserve {
        return Err(Mistake::of("ttl", "is unknown (expected one of domain, id, amount, descriptors)"));
    }
    let nanos = parse_duration_nanos(text).filter(|nanos| *nanos > 0);
    nanos
        .map(Some)
        .ok_or_else(|| Mistake::of("ttl", format!("expected a time such as `90s` or `5m`, not {text:?}")))
}

fn reserved(options: ClientOptions, request: &Request<'_>, decision: &Decision<'_>) -> Answered {
    let client = Some(ClientAnswer::of(options, request, decision));
    let status = match decision.reserve_result() {
        ReserveResult::Reserved => StatusCode::OK,
        ReserveResult::Denied => StatusCode::TOO_MANY_REQUESTS,
        ReserveResult::Conflict => {
            let error = match decision.found().any(|(_, found)| found == Found::Other) {
                true => "the id is that of a reservation of another amount",
                false => "the reservation of this id has ended",
            };
            return Answered { status: StatusCode::CONFLICT, body: json!({ "error": error }), client: None };
        }
    };
    let mut body = json!({ "reserved": decision.code == Code::Ok, "limits": limits(decision) });
    let slots: Vec<String> = decision.slots().map(|(.., slot): (_, _, Slot)| slot.to_string()).collect();
    if !slots.is_empty() {
        body["slots"] = slots.into();
    }
    Answered { status, body, client }
}

fn ended(_: ClientOptions, _: &Request<'_>, decision: &Decision<'_>) -> Answered {
    let body = json!({ "was": decision.ended_as().name(), "limits": limits(decision) });
    Answered { status: StatusCode::OK, body, client: None }
}

/// What each limit says.
fn limits(decision: &Decision<'_>) -> Value {
    let limits = decision.limits().map(|(descriptor, limited)| {
        let held = decision.held().iter().find(|held| held.descriptor == descriptor);
        json!({
            "descriptor": descriptor,
            "limit": limited.limit.requests(),
            "over": limited.verdict.over,
            "remaining": limited.remaining(),
            "reset_seconds": limited.reset_secs(),
            "held_by_others": held.map(|held| held.others),
        })
    });
    limits.collect::<Vec<Value>>().into()
}

fn failed(refusal: &Refusal) -> Answered {
    let status = match refusal.code {
        RefusalCode::InvalidArgument | RefusalCode::Unimplemented => StatusCode::BAD_REQUEST,
        RefusalCode::ResourceExhausted => StatusCode::PAYLOAD_TOO_LARGE,
        RefusalCode::DeadlineExceeded | RefusalCode::Unavailable | RefusalCode::StoreFailure => {
            StatusCode::SERVICE_UNAVAILABLE
        }
    };
    Answered { status, body: json!({ "error": refusal.to_string() }), client: None }
}
