//! `/json`: the gRPC call as protobuf JSON. Translates JSON to the bytes of a `RateLimitRequest` before the handler,
//! and the bytes of its answer to JSON, so that both fronts decide alike.
//!
//! Accepts camelCase and snake_case, enumerations by name and by number, 64-bit numbers as numbers and as strings. An
//! unknown field is an error that names it, because ignoring it would hide a typo. It interprets descriptors at run
//! time, which is slower than generated code, so it is used for nothing else.

use std::sync::LazyLock;

use http::StatusCode;
use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor};

use crate::front::{Handler, proto};
use crate::spans::CallSpan;
use tidegate_engine::decision::Code;
use tidegate_engine::explain::Explanation;
use tidegate_engine::text::json_line;
use tidegate_operate::debug::{Explain, Explained, Form};
use tidegate_operate::page::refused;
use tidegate_operate::page::{JSON, Page, page};
use tidegate_records::UniqueKeys;
use tidegate_serve::metrics::Front;
use tidegate_serve::refusal::Bounds;
use tidegate_serve::refusal::Refusal;

struct Messages {
    request: MessageDescriptor,
    response: MessageDescriptor,
}

static MESSAGES: LazyLock<Messages> = LazyLock::new(|| {
    let pool = DescriptorPool::decode(proto::DESCRIPTORS).expect("our own descriptors decode");
    let message = |name: &str| {
        let name = format!("envoy.service.ratelimit.v3.{name}");
        pool.get_message_by_name(&name).expect("our own descriptors hold it")
    };
    Messages { request: message("RateLimitRequest"), response: message("RateLimitResponse") }
});

pub(super) async fn respond(handler: &Handler, body: &[u8], span: Option<CallSpan>) -> Page {
    let answer = match to_request(body) {
        Ok(request) => handler.answer(Front::Json, &request, None, span).ready().await,
        Err(refusal) => Err(handler.refuse_call(Front::Json, refusal, span)),
    };
    match answer {
        Ok(answer) => {
            let status = match answer.code {
                Code::Ok => StatusCode::OK,
                Code::OverLimit => StatusCode::TOO_MANY_REQUESTS,
            };
            page(status, JSON, from_response(&answer.message))
        }
        Err(refusal) => refused(&refusal),
    }
}

impl Explain for Handler {
    fn bounds(&self) -> &Bounds {
        self.bounds()
    }

    fn explain<'q>(&'q self, question: &'q [u8], form: Form) -> Explained<'q> {
        let text = move |explanation: &Explanation<'_>| match form.is_json {
            true => format!("{}\n", json_line(&explanation.json().to_string())),
            false => explanation.to_string(),
        };
        let render = move |explanation: &Explanation<'_>| match form.is_for_bearer {
            true => text(explanation),
            false => text(&explanation.for_everybody()),
        };
        Box::pin(async move { self.explain(&to_request(question)?, render).await })
    }
}

/// Encodes this JSON as a `RateLimitRequest`.
fn to_request(json: &[u8]) -> Result<Vec<u8>, Refusal> {
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    let message = DynamicMessage::deserialize(MESSAGES.request.clone(), &mut deserializer);
    let message = message.and_then(|message| deserializer.end().map(|()| message));
    // An invalid message is reported before a field that occurs twice.
    let message = message.and_then(|message| serde_json::from_slice(json).map(|UniqueKeys| message));
    message.map(|message| message.encode_to_vec()).map_err(|error| Refusal::invalid(error.to_string()))
}

/// The JSON of an encoded `RateLimitResponse`.
fn from_response(response: &[u8]) -> Vec<u8> {
    let message = DynamicMessage::decode(MESSAGES.response.clone(), response)
        .expect("the handler encodes this message");
    serde_json::to_vec(&message).expect("a message has a JSON form")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::front::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
    use crate::front::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
        Entry, RateLimitOverride,
    };
    use crate::front::proto::envoy::service::ratelimit::v3::RateLimitRequest;

    fn parsed(json: &str) -> Result<RateLimitRequest, Refusal> {
        let bytes = to_request(json.as_bytes())?;
        Ok(RateLimitRequest::decode(&bytes[..]).expect("it was just encoded"))
    }

    fn every_field() -> RateLimitRequest {
        let limit = RateLimitOverride { requests_per_unit: 5, unit: 3, unit_multiplier: Some(2) };
        RateLimitRequest {
            domain: "shop".to_owned(),
            descriptors: vec![RateLimitDescriptor {
                entries: vec![Entry { key: "user".to_owned(), value: "alice".to_owned() }],
                limit: Some(limit),
                hits_addend: Some(7),
                is_negative_hits: true,
            }],
            hits_addend: 4,
        }
    }

    #[test]
    fn every_spelling_of_protobuf_json_is_taken() {
        let camel = r#"{"domain":"shop","hitsAddend":4,"descriptors":[{"entries":[{"key":"user","value":"alice"}],
            "limit":{"requestsPerUnit":5,"unit":"HOUR","unitMultiplier":2},"hitsAddend":"7","isNegativeHits":true}]}"#;
        let snake = r#"{"domain":"shop","hits_addend":"4","descriptors":[{"entries":[{"key":"user","value":"alice"}],
            "limit":{"requests_per_unit":5,"unit":3,"unit_multiplier":2},"hits_addend":7,"is_negative_hits":true}]}"#;
        assert_eq!(parsed(camel).expect("a request"), every_field());
        assert_eq!(parsed(snake).expect("a request"), every_field());
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (json, named) in [
            (r#"{"domian":"shop"}"#, "domian"),
            (r#"{"descriptors":[{"entries":[{"kee":"user"}]}]}"#, "kee"),
            (r#"{"descriptors":[{"limit":{"unit":"FORTNIGHT"}}]}"#, "FORTNIGHT"),
            (r#"{"domain":"shop"} x"#, "trailing"),
            (r#"{"domain":7}"#, "string"),
            (r#"{"domain":"a","domain":"a"}"#, "duplicate field \"domain\""),
            (r#"{"hits_addend":1,"descriptors":[],"hitsAddend":1}"#, "hitsAddend"),
            (
                r#"{"descriptors":[{"entries":[{"key":"a","value":"b","key":"c"}]}]}"#,
                "duplicate field \"key\"",
            ),
            (r#"{"hitsAddend":-1}"#, ""),
            ("", "EOF"),
            ("\u{feff}{}", ""),
        ] {
            let problem = parsed(json).expect_err(json).message;
            assert!(problem.contains(named), "{json}: {problem}");
        }
        assert!(to_request(b"{\"domain\":\"\xff\"}").is_err());
        assert!(to_request("[".repeat(60_000).as_bytes()).is_err());
    }
}
