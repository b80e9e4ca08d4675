//! The request of the benchmark, and what makes an answer a good one.
//!
//! The message is encoded once; from then on only the bytes of the key change. Every answer is looked at, and one in
//! so many is decoded whole.

use prost::Message;

use super::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use super::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use super::proto::envoy::service::ratelimit::v3::{
    RateLimitRequest, RateLimitResponse, rate_limit_response::Code,
};

/// The domain and the descriptor key that the rules of the benchmark limit.
pub(crate) const DOMAIN: &str = "bench";
pub(crate) const KEY: &str = "client";
/// Every key is a number of so many digits.
const KEY_DIGITS: usize = 7;
/// Bytes that gRPC puts in front of a message: not compressed, and its length.
const PREFIX_BYTES: usize = 5;
/// A power of two: one answer in so many is decoded whole.
const DECODED_EVERY: u64 = 64;

/// SplitMix64: good enough to spread keys, and nearly free.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }
}

/// Which client asks next.
#[derive(Clone, Copy)]
pub(crate) enum Keys {
    /// Any of so many.
    Random(u64),
    /// One after the other, from this one on.
    InTurn(u64),
}

/// The request, ready to be sent, with its prefix.
pub(crate) struct RequestMessage {
    message: Vec<u8>,
    keys: Keys,
}

impl RequestMessage {
    pub(crate) fn new(keys: Keys) -> RequestMessage {
        let entry = Entry { key: KEY.into(), value: "0".repeat(KEY_DIGITS) };
        let descriptor = RateLimitDescriptor { entries: vec![entry], ..Default::default() };
        let request =
            RateLimitRequest { domain: DOMAIN.into(), descriptors: vec![descriptor], hits_addend: 0 };
        let message = framed(&request);
        assert!(message.ends_with(b"0000000"), "the value is the last field of the last entry");
        RequestMessage { message, keys }
    }

    /// The message of the next client.
    pub(crate) fn next(&mut self, random: &mut Random) -> &[u8] {
        let mut key = match &mut self.keys {
            Keys::Random(count) => ((u128::from(random.next()) * u128::from(*count)) >> 64) as u64,
            Keys::InTurn(next) => {
                *next += 1;
                *next - 1
            }
        };
        for digit in self.message.iter_mut().rev().take(KEY_DIGITS) {
            *digit = b'0' + (key % 10) as u8;
            key /= 10;
        }
        &self.message
    }

    /// Bytes of every message.
    pub(crate) fn bytes(&self) -> usize {
        self.message.len()
    }
}

/// `message` with its prefix.
pub(crate) fn framed(message: &impl Message) -> Vec<u8> {
    let mut out = vec![0];
    out.extend_from_slice(&(message.encoded_len() as u32).to_be_bytes());
    message.encode(&mut out).expect("a vector grows");
    out
}

/// What makes an answer a good one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    /// OK, by a limit that has room left.
    Ok,
    /// OK, which does not say by which limit.
    BareOk,
    /// Over the limit.
    #[allow(dead_code, reason = "the benchmark of Redis asks what is over")]
    Over,
    /// A decision, whichever.
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

    /// An answer without a limit would mean that nothing was decided: the rules were not found.
    fn takes_message(self, message: &[u8]) -> bool {
        RateLimitResponse::decode(message).is_ok_and(|answer| {
            let [status] = &*answer.statuses else { return false };
            let has_room = self != Expected::Ok || status.limit_remaining > 0;
            answer.overall_code == status.code && status.current_limit.is_some() && has_room
        })
    }
}

/// Looks at answers.
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
    /// Whether `data` is one whole message that says what is expected and, where it is decoded, by which limit.
    pub(crate) fn passes(&mut self, data: &[u8]) -> bool {
        self.seen += 1;
        // field 1 comes first, whoever encoded it: overall_code
        let looks_good = data.len() > PREFIX_BYTES + 1
            && data[0] == 0
            && data[1..PREFIX_BYTES] == ((data.len() - PREFIX_BYTES) as u32).to_be_bytes()
            && data[PREFIX_BYTES] == 0x08
            && self.expected.takes(data[PREFIX_BYTES + 1]);
        let passes_unseen = self.expected == Expected::BareOk || self.seen % DECODED_EVERY != 1;
        looks_good && (passes_unseen || self.expected.takes_message(&data[PREFIX_BYTES..]))
    }
}
