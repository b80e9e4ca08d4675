//! The request of the benchmark, and what makes an answer a good one.
//!
//! The message is encoded once; after that only the bytes of the keys change. Every answer is checked, and one in
//! [`DECODED_EVERY`] is fully decoded.

use prost::Message;

use super::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use super::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use super::proto::envoy::service::ratelimit::v3::{
    RateLimitRequest, RateLimitResponse,
    rate_limit_response::{Code, DescriptorStatus},
};

/// The domain and the descriptor key that the rules of the benchmark limit.
pub(crate) const DOMAIN: &str = "bench";
pub(crate) const KEY: &str = "client";
/// The digits of a key's value, which is a number.
const KEY_DIGITS: usize = 7;
/// The rules of the route that the rules of the benchmark have.
const GATEWAY_RULES: usize = 8;
/// What stands where a key's value will be.
const NO_KEY: [u8; KEY_DIGITS] = [b'0'; KEY_DIGITS];
/// The entry that Envoy Gateway writes first into every descriptor of a route.
pub(crate) const ROUTE: &str = "httproute/default/shop/rule/0/match/0/shop_example_com";
/// Bytes of gRPC's prefix of a message: one for "not compressed", four for the length.
const PREFIX_BYTES: usize = 5;
/// One answer in this many is fully decoded. A power of two.
const DECODED_EVERY: u64 = 64;

/// SplitMix64: random enough to spread keys, and very fast.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// Less than this number.
    fn below(&mut self, count: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(count)) >> 64) as u64
    }
}

/// The order of the keys of requests.
#[derive(Clone, Copy)]
pub(crate) enum Keys {
    /// Random keys below this number.
    Random(u64),
    /// One after the other, starting with this one.
    InTurn(u64),
    /// Random ones of so many, so far apart, starting with this one.
    #[allow(dead_code, reason = "the benchmark of records asks")]
    Spread { below: u64, times: u64, plus: u64 },
}

/// The descriptors of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Descriptors {
    /// One of one entry.
    #[default]
    Plain,
    /// As many as a route of Envoy Gateway has rules: the route, and the client as the rule distinguishes it.
    Gateway(usize),
}

impl Descriptors {
    /// How many there are.
    pub(crate) fn count(self) -> usize {
        match self {
            Descriptors::Plain => 1,
            Descriptors::Gateway(rules) => rules,
        }
    }

    fn all(self) -> Vec<RateLimitDescriptor> {
        let client = |key: String| Entry { key, value: String::from_utf8_lossy(&NO_KEY).into_owned() };
        let of = |entries| RateLimitDescriptor { entries, ..Default::default() };
        let route = || Entry { key: ROUTE.into(), value: ROUTE.into() };
        match self {
            Descriptors::Plain => vec![of(vec![client(KEY.into())])],
            Descriptors::Gateway(rules) => {
                (0..rules).map(|rule| of(vec![route(), client(gateway_key(rule))])).collect()
            }
        }
    }
}

/// The key under which a rule of Envoy Gateway distinguishes clients.
fn gateway_key(rule: usize) -> String {
    format!("rule-{rule}-match-0")
}

/// Rules that give every key this limit.
pub(crate) fn rules_text(rate_limit: &str) -> String {
    let mut text = format!("domain: {DOMAIN}\ndescriptors:\n  - {{key: {KEY}, rate_limit: {rate_limit}}}\n");
    text += &format!("  - key: {ROUTE}\n    value: {ROUTE}\n    descriptors:\n");
    for rule in 0..GATEWAY_RULES {
        text += &format!("      - {{key: {}, rate_limit: {rate_limit}}}\n", gateway_key(rule));
    }
    text
}

/// The encoded request with its gRPC prefix.
pub(crate) struct RequestMessage {
    message: Vec<u8>,
    /// Where the key stands in it.
    places: Vec<usize>,
    keys: Keys,
}

impl RequestMessage {
    pub(crate) fn new(keys: Keys, descriptors: Descriptors) -> RequestMessage {
        let descriptors = descriptors.all();
        let count = descriptors.len();
        let message = framed(&RateLimitRequest { domain: DOMAIN.into(), descriptors, hits_addend: 0 });
        let places: Vec<usize> =
            (0..message.len()).filter(|&at| message[at..].starts_with(&NO_KEY)).collect();
        assert_eq!(places.len(), count, "each descriptor has its key, and nothing else looks like one");
        RequestMessage { message, places, keys }
    }

    /// The message with the next key.
    pub(crate) fn next(&mut self, random: &mut Random) -> &[u8] {
        let mut key = match &mut self.keys {
            Keys::Random(count) => random.below(*count),
            Keys::Spread { below, times, plus } => random.below(*below) * *times + *plus,
            Keys::InTurn(next) => {
                *next += 1;
                *next - 1
            }
        };
        let mut digits = NO_KEY;
        for digit in digits.iter_mut().rev() {
            *digit += (key % 10) as u8;
            key /= 10;
        }
        for &place in &self.places {
            self.message[place..place + KEY_DIGITS].copy_from_slice(&digits);
        }
        &self.message
    }

    /// The bytes of a message.
    pub(crate) fn bytes(&self) -> usize {
        self.message.len()
    }
}

/// The value of a key by its number, as requests have it.
#[allow(dead_code, reason = "only some benchmarks have records")]
pub(crate) fn value_of(key: u64) -> String {
    format!("{key:0KEY_DIGITS$}")
}

/// `message`, encoded with its gRPC prefix.
pub(crate) fn framed(message: &impl Message) -> Vec<u8> {
    let mut out = vec![0];
    out.extend_from_slice(&(message.encoded_len() as u32).to_be_bytes());
    message.encode(&mut out).expect("a vector grows");
    out
}

/// The answers that count as good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    /// OK, with a limit that has hits left.
    Ok,
    /// OK, without a limit in the answer.
    BareOk,
    /// Over the limit.
    #[allow(dead_code, reason = "the benchmark of Redis asks what is over")]
    Over,
    /// Any decision.
    #[allow(dead_code, reason = "the benchmark of Redis asks what is over")]
    Decision,
}

impl Expected {
    fn takes(self, code: u8) -> bool {
        match self {
            Expected::Ok | Expected::BareOk => code == Code::Ok as u8,
            Expected::Over => code == Code::OverLimit as u8,
            Expected::Decision => code == Code::Ok as u8 || code == Code::OverLimit as u8,
        }
    }

    /// An answer without a limit means that no rule was found, so nothing was decided.
    fn takes_message(self, message: &[u8]) -> bool {
        RateLimitResponse::decode(message).is_ok_and(|answer| {
            let has_room = |status: &DescriptorStatus| self != Expected::Ok || status.limit_remaining > 0;
            let is_good = |status: &DescriptorStatus| {
                answer.overall_code == status.code && status.current_limit.is_some() && has_room(status)
            };
            !answer.statuses.is_empty() && answer.statuses.iter().all(is_good)
        })
    }
}

/// Checks answers.
pub(crate) struct Examiner {
    seen: u64,
    pub(crate) expected: Expected,
}

impl Default for Examiner {
    fn default() -> Examiner {
        Examiner { seen: 0, expected: Expected::Ok }
    }
}

impl Examiner {
    /// Whether `data` is one whole message with the expected code and, if it is decoded, with the limit.
    pub(crate) fn passes(&mut self, data: &[u8]) -> bool {
        self.seen += 1;
        // field 1, overall_code, comes first in every encoder's output
        let looks_good = data.len() > PREFIX_BYTES + 1
            && data[0] == 0
            && data[1..PREFIX_BYTES] == ((data.len() - PREFIX_BYTES) as u32).to_be_bytes()
            && data[PREFIX_BYTES] == 0x08
            && self.expected.takes(data[PREFIX_BYTES + 1]);
        let passes_unseen = self.expected == Expected::BareOk || self.seen % DECODED_EVERY != 1;
        looks_good && (passes_unseen || self.expected.takes_message(&data[PREFIX_BYTES..]))
    }
}
