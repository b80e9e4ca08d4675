//! What an answer says to the client of the proxy: which limits its request met, and why it was denied.
//!
//! In: a decision. Out: header fields, and the body of a denial. There are two families of fields. The first has the
//! numbers of the tightest limit, each in a header of its own. The second has all limits, in `RateLimit-Policy` and
//! `RateLimit` of draft-ietf-httpapi-ratelimit-headers-11; with it, denials have problem details (RFC 9457) as a body.

use std::ptr;

use http::header::RETRY_AFTER;
use http::{HeaderName, HeaderValue};
use ring::digest::{SHA256, digest};
use serde_json::json;
use sfv::{Integer, ItemSerializer, KeyRef, StringRef};

use crate::front::CheckAnswer;
use tidegate_engine::decision::{Code, Decision, Limited};
use tidegate_engine::key::Key;
use tidegate_engine::limit::{Algorithm, Slot};
use tidegate_engine::overlay::Effect;
use tidegate_engine::prefix::CountedAs;
use tidegate_engine::request::{Entry, Request};
use tidegate_engine::time::SECOND_NANOS;
use tidegate_grpc::message::percent_encoded;

const LIMIT: HeaderName = HeaderName::from_static("ratelimit-limit");
const REMAINING: HeaderName = HeaderName::from_static("ratelimit-remaining");
const RESET: HeaderName = HeaderName::from_static("ratelimit-reset");
const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const SERVICE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");

/// The type of a body of problem details.
pub const PROBLEM_JSON: &str = "application/problem+json";

/// The most bytes of one field: clients and proxies refuse much larger headers. Items that do not fit are left out.
const FIELD_BYTES_MAX: usize = 1_500;

/// Which families of fields an answer has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HeadersFormat {
    /// The numbers of the tightest limit.
    #[default]
    Legacy,
    /// `RateLimit-Policy` and `RateLimit`.
    Draft11,
    /// Both.
    Both,
}

/// What an answer says about limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientOptions {
    /// Which families of fields.
    pub format: HeadersFormat,
    /// Items of `RateLimit-Policy` and `RateLimit` have a partition key.
    pub partition_key: bool,
    /// Nothing is denied: no limit is a client's concern.
    pub shadow: bool,
}

impl HeadersFormat {
    /// It has the numbers of the tightest limit.
    pub fn is_legacy(self) -> bool {
        self != Self::Draft11
    }
}

impl ClientOptions {
    /// Problem details of a request that cannot be decided now, if the format has them.
    pub(super) fn undecided(self) -> Option<String> {
        let title = "Request cannot be satisfied because its limits cannot be checked now";
        (self.format != HeadersFormat::Legacy).then(|| details("temporary-reduced-capacity", title, &[]))
    }
}

/// What an answer over HTTP says.
#[derive(Clone, Debug)]
pub struct ClientAnswer {
    /// The code, and the numbers of the tightest limit.
    pub numbers: CheckAnswer,
    is_legacy: bool,
    draft: Option<Box<Draft>>,
    /// The slots that the request took, for the proxy alone.
    pub(super) slots: Vec<Slot>,
}

impl ClientAnswer {
    /// The answer of a decision.
    pub(crate) fn of(options: ClientOptions, request: &Request<'_>, decision: &Decision<'_>) -> Self {
        Self {
            numbers: CheckAnswer::of(decision),
            is_legacy: options.format.is_legacy(),
            draft: Draft::of(options, request, decision).map(Box::new),
            slots: decision.slots().map(|(.., slot)| slot).collect(),
        }
    }

    /// Calls `add` with each header field.
    pub fn headers(&self, mut add: impl FnMut(HeaderName, HeaderValue)) {
        let CheckAnswer { limit, remaining, reset_secs, retry_after_secs, .. } = self.numbers;
        let mut number = |name, number: Option<u64>| {
            if let Some(number) = number {
                add(name, number.into());
            }
        };
        if self.is_legacy {
            number(LIMIT, limit);
            number(REMAINING, remaining);
            number(RESET, reset_secs);
        }
        number(RETRY_AFTER, retry_after_secs);
        if let Some(draft) = &self.draft {
            draft.headers().for_each(|(name, field)| add(name, field));
        }
    }

    /// Problem details, if the request is denied and the format has them. They are JSON.
    pub fn problem(&self) -> Option<&str> {
        self.draft.as_ref()?.problem.as_deref()
    }
}

/// The parts of an answer that the draft defines.
#[derive(Clone, Debug, Default)]
pub(super) struct Draft {
    /// `RateLimit-Policy`; empty if no limit applied.
    policy: String,
    /// `RateLimit`; empty if no limit applied.
    limit: String,
    /// The body of a denial.
    pub(super) problem: Option<String>,
}

impl Draft {
    /// The parts about all limits that can deny the request; those that do come first. A limit in shadow mode denies
    /// nothing, so it is left out. `None`: the format has no such parts.
    pub(super) fn of(options: ClientOptions, request: &Request<'_>, decision: &Decision<'_>) -> Option<Self> {
        if options.format == HeadersFormat::Legacy {
            return None;
        }
        let enforced = decision.limits().filter(|(_, limited)| !limited.shadow && !options.shadow);
        let mut limited: Vec<_> = enforced.collect();
        limited.sort_by_key(|(_, limited)| !limited.is_denied());
        let (mut draft, mut policies, mut violated) = (Self::default(), Vec::new(), Vec::new());
        for (descriptor, limited) in limited {
            let rule = limited.origin.rule().filter(|_| options.partition_key);
            let entries =
                request.descriptors().nth(descriptor).map_or(&[][..], |descriptor| descriptor.entries);
            let mut name = name(limited, entries);
            let key = rule.map(|rule| partition(rule.key(entries)));
            // The periods of a calendar are not equally long, and slots have no window.
            let is_slots = limited.limit.algorithm() == Algorithm::Concurrency;
            if is_slots && decision.limits().any(|(of, other)| of == descriptor && !ptr::eq(other, limited)) {
                name += "/slots";
            }
            let is_window = limited.limit.periods().is_none() && !is_slots;
            let window = is_window.then(|| limited.limit.window_nanos().div_ceil(SECOND_NANOS));
            let unit = is_slots.then_some("concurrent-requests");
            let quota = [("q", limited.limit.requests())].into_iter();
            let policy = item(&name, quota.chain(window.map(|window| ("w", window))), unit, key);
            let limit = item(&name, [("r", limited.remaining()), ("t", limited.reset_secs())], None, key);
            if draft.policy.len().max(draft.limit.len()) + policy.len().max(limit.len()) > FIELD_BYTES_MAX {
                break;
            }
            if !policies.contains(&policy) {
                append(&mut draft.policy, &policy);
                policies.push(policy);
            }
            append(&mut draft.limit, &limit);
            if limited.is_denied() && !violated.contains(&name) {
                violated.push(name);
            }
        }
        draft.problem = (decision.code == Code::OverLimit).then(|| problem(decision, &violated));
        Some(draft)
    }

    pub(super) fn headers(&self) -> impl Iterator<Item = (HeaderName, HeaderValue)> + use<> {
        let fields = [(POLICY, &self.policy), (SERVICE_LIMIT, &self.limit)];
        let fields = fields.map(|(name, field)| (name, HeaderValue::try_from(field).expect("it is ASCII")));
        fields.into_iter().filter(|(_, field)| !field.is_empty())
    }
}

/// A key that clients may see: a hash of the counter's key, which is secret. With it, one can choose keys that collide.
fn partition(key: Key) -> [u8; 12] {
    let hash = digest(&SHA256, &[b"tidegate: partition key".as_slice(), &key.0.to_le_bytes()].concat());
    *hash.as_ref().first_chunk().expect("a hash has 32 bytes")
}

/// The name of a limit: that of its rule, else the rule's path; as ASCII. Of several limits of a rule each has a name of its
/// own, because clients find a policy by its name: those for prefixes of several lengths have the length.
fn name(limited: &Limited<'_>, entries: &[Entry<'_>]) -> String {
    let Some(rule) = limited.origin.rule() else { return "override".to_owned() };
    let mut name = if rule.name.is_empty() { rule.path() } else { rule.name.to_string() };
    if rule.factor.is_some() {
        let ranges = rule.counted(entries).filter_map(|(_, counted)| match counted {
            CountedAs::Range(range) => Some(range),
            CountedAs::Value(_) => None,
        });
        ranges.for_each(|range| name += range.find('/').map_or("", |slash| &range[slash..]));
    }
    percent_encoded(&name)
}

/// An item of a field: a name, numbers, the unit of a quota that is not requests, and the partition key.
fn item(
    name: &str,
    numbers: impl IntoIterator<Item = (&'static str, u64)>,
    unit: Option<&'static str>,
    key: Option<[u8; 12]>,
) -> String {
    let name = StringRef::from_str(name).expect("it is ASCII");
    let mut item = ItemSerializer::new().bare_item(name);
    for (parameter, number) in numbers {
        let number = Integer::try_from(number).unwrap_or(Integer::MAX);
        item = item.parameter(KeyRef::constant(parameter), number);
    }
    if let Some(unit) = unit {
        item = item.parameter(KeyRef::constant("qu"), StringRef::constant(unit));
    }
    if let Some(key) = key {
        item = item.parameter(KeyRef::constant("pk"), key.as_slice());
    }
    item.finish()
}

/// Adds an item to a list.
fn append(list: &mut String, item: &str) {
    if !list.is_empty() {
        list.push_str(", ");
    }
    list.push_str(item);
}

/// Problem details of a denial. An exception that denies and a ban have another type: the usage of now is not the reason.
fn problem(decision: &Decision<'_>, violated: &[String]) -> String {
    let mut denied =
        decision.statuses.iter().enumerate().filter(|(_, status)| status.code() == Code::OverLimit);
    let is_barred = |descriptor| {
        let excepted = decision
            .exceptions()
            .iter()
            .any(|met| met.descriptor == descriptor && met.effect == Effect::Deny);
        excepted || decision.bans().iter().any(|ban| ban.descriptor == descriptor)
    };
    if denied.any(|(descriptor, _)| is_barred(descriptor)) {
        let title = "Request not satisfied because its usage was found to be abnormal";
        return details("abnormal-usage-detected", title, violated);
    }
    details("quota-exceeded", "Request cannot be satisfied because a quota is exceeded", violated)
}

/// Problem details of a type that the draft defines.
fn details(kind: &str, title: &str, violated: &[String]) -> String {
    let kind = format!("https://iana.org/assignments/http-problem-types#{kind}");
    json!({"type": kind, "title": title, "violated-policies": violated}).to_string()
}
