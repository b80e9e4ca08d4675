//! A `RateLimitRequest`: read in place, or by prost if it is unusual, it is answered alike.

#![no_main]

use std::cell::OnceCell;

use libfuzzer_sys::fuzz_target;
use prost::Message as _;
use tidegate::answerer;
use tidegate::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tidegate_serve::service::fixture;

const RULES: &str = "
domain: d
descriptors:
  - {key: k, rate_limit: {unit: year, requests_per_unit: 4000000000}}
  - {key: k, value: v, rate_limit: {unit: year, requests_per_unit: 3, algorithm: fixed_window}}
";

type Answerer = Box<dyn Fn(&[u8]) -> Option<bytes::Bytes>>;

thread_local! {
    static ANSWERERS: OnceCell<[Answerer; 2]> = const { OnceCell::new() };
}

/// What does not depend on the moment.
fn codes(answer: Option<bytes::Bytes>) -> Option<Vec<(i32, u32)>> {
    let answer = RateLimitResponse::decode(answer?).expect("an answer");
    let own = answer.statuses.iter().map(|status| (status.code, status.limit_remaining));
    Some([(answer.overall_code, 0)].into_iter().chain(own).collect())
}

fuzz_target!(|data: &[u8]| {
    ANSWERERS.with(|answerers| {
        let [one, other] = answerers.get_or_init(|| {
            [(); 2].map(|()| {
                let metrics = fixture::metrics();
                Box::new(answerer(fixture::service(Some(RULES), &metrics), metrics)) as Answerer
            })
        });
        let answer = codes(one(data));
        match RateLimitRequest::decode(data) {
            Ok(message) => assert_eq!(codes(other(&message.encode_to_vec())), answer, "{message:?}"),
            Err(_) => assert_eq!(answer, None, "no message, but an answer"),
        }
    });
});
