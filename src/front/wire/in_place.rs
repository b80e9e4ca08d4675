//! Reads a `RateLimitRequest` in place, without decoding it into messages first.
//!
//! It reads only what proxies send: known fields with their own wire types, in any order, within the bounds, with
//! nothing to refuse. `None` is not a refusal: the caller then uses prost, which also finds the reason to refuse.

use smallvec::SmallVec;

use tidegate_engine::request::{DescriptorOptions, Entry, Request};
use tidegate_serve::refusal::Bounds;

/// Wire types.
const VARINT: u8 = 0;
const LENGTH: u8 = 2;

/// Bytes of a varint that are read here. prost takes longer ones, but nobody sends them.
const VARINT_BYTES_MAX: usize = 9;

/// Reads the encoded request into `request`, if it has the usual form and is within `bounds`.
pub fn parse<'a>(message: &'a [u8], bounds: &Bounds, request: &mut Request<'a>) -> Option<()> {
    if message.len() > bounds.request_bytes_max {
        return None;
    }
    let texts = Texts::of(message);
    let mut domain = "";
    let mut hits_addend = 0;
    let mut fields = Fields(message);
    // The domain and the hits may come last, but a request begins with them.
    let mut descriptors: SmallVec<[&[u8]; 8]> = SmallVec::new();
    while let Some(field) = fields.next()? {
        match field {
            Field { number: 1, value: Value::Bytes(text) } => domain = texts.text(text)?,
            Field { number: 2, value: Value::Bytes(descriptor) } => descriptors.push(descriptor),
            Field { number: 3, value: Value::Number(number) } => hits_addend = u32::try_from(number).ok()?,
            _ => return None,
        }
    }
    if domain.is_empty() || descriptors.is_empty() || descriptors.len() > bounds.descriptors_max {
        return None;
    }
    request.begin(domain, hits_addend);
    for descriptor in descriptors {
        parse_descriptor(descriptor, &texts, bounds, request)?;
    }
    Some(())
}

/// Reads one descriptor. `None` for one with a limit of its own: it is rare, and may have to be refused.
fn parse_descriptor<'a>(
    descriptor: &'a [u8],
    texts: &Texts<'a>,
    bounds: &Bounds,
    request: &mut Request<'a>,
) -> Option<()> {
    let mut options = DescriptorOptions::default();
    let mut fields = Fields(descriptor);
    while let Some(field) = fields.next()? {
        match field {
            Field { number: 1, value: Value::Bytes(entry) } => request.entry(parse_entry(entry, texts)?),
            Field { number: 3, value: Value::Bytes(hits) } if options.hits_addend.is_none() => {
                options.hits_addend = Some(parse_wrapped(hits)?);
            }
            Field { number: 4, value: Value::Number(flag) } => options.is_negative_hits = flag != 0,
            _ => return None,
        }
    }
    if request.open_entries() > bounds.entries_max {
        return None;
    }
    request.close(options);
    Some(())
}

fn parse_entry<'a>(entry: &'a [u8], texts: &Texts<'a>) -> Option<Entry<'a>> {
    let (mut key, mut value) = ("", "");
    let mut fields = Fields(entry);
    while let Some(field) = fields.next()? {
        match field {
            Field { number: 1, value: Value::Bytes(text) } => key = texts.text(text)?,
            Field { number: 2, value: Value::Bytes(text) } => value = texts.text(text)?,
            _ => return None,
        }
    }
    Some(Entry { key, value })
}

/// The number in a `UInt64Value`, which omits 0.
fn parse_wrapped(message: &[u8]) -> Option<u64> {
    let mut number = 0;
    let mut fields = Fields(message);
    while let Some(field) = fields.next()? {
        match field {
            Field { number: 1, value: Value::Number(wrapped) } => number = wrapped,
            _ => return None,
        }
    }
    Some(number)
}

/// The texts in a message. Usually the complete message is UTF-8, its tags and lengths too. Then it is checked once
/// instead of once for each text, which saves a tenth of a decision's instructions.
struct Texts<'a> {
    message: &'a [u8],
    /// The message, if it is UTF-8.
    whole: Option<&'a str>,
}

impl<'a> Texts<'a> {
    fn of(message: &'a [u8]) -> Self {
        Self { message, whole: std::str::from_utf8(message).ok() }
    }

    /// This part of the message as text, if it is UTF-8 by itself.
    #[inline]
    fn text(&self, part: &'a [u8]) -> Option<&'a str> {
        let Some(whole) = self.whole else { return std::str::from_utf8(part).ok() };
        let begin = part.as_ptr().addr() - self.message.as_ptr().addr();
        // A part that cuts a character in two is not UTF-8: `get` finds that.
        whole.get(begin..begin + part.len())
    }
}

/// A field of a message.
struct Field<'a> {
    number: u8,
    value: Value<'a>,
}

enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// The remaining fields of a message.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    /// The next field. `Some(None)` at the end, `None` if it does not have the usual form.
    #[inline]
    fn next(&mut self) -> Option<Option<Field<'a>>> {
        let Some((&tag, rest)) = self.0.split_first() else { return Some(None) };
        self.0 = rest;
        let value = match (tag & 7, tag < 0x80) {
            (VARINT, true) => Value::Number(self.varint()?),
            (LENGTH, true) => Value::Bytes(self.bytes()?),
            _ => return None,
        };
        Some(Some(Field { number: tag >> 3, value }))
    }

    #[inline]
    fn varint(&mut self) -> Option<u64> {
        let mut number = 0;
        for (at, &byte) in self.0.iter().take(VARINT_BYTES_MAX).enumerate() {
            number |= u64::from(byte & 0x7f) << (7 * at);
            if byte < 0x80 {
                self.0 = &self.0[at + 1..];
                return Some(number);
            }
        }
        None
    }

    #[inline]
    fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.varint()?).ok()?;
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::Index;
    use prost::Message;

    use super::*;
    use crate::front::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
    use crate::front::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
        Entry as ProtoEntry, RateLimitOverride,
    };
    use crate::front::proto::envoy::service::ratelimit::v3::RateLimitRequest;
    use crate::front::wire;

    const BOUNDS: Bounds = Bounds { descriptors_max: 3, entries_max: 3, request_bytes_max: 65_536 };

    /// Everything in a request.
    fn described(request: &Request<'_>) -> String {
        let descriptors: Vec<_> = request.descriptors().collect();
        format!("{} {} {descriptors:?}", request.domain(), request.hits_addend())
    }

    /// Checks that this reads the same as prost and the checks after it. Returns whether it read the message.
    fn agrees(bytes: &[u8]) -> bool {
        // The previous contents must not matter.
        let mut here = Request::new("before", 1).descriptor(&[("key", "value")]);
        if parse(bytes, &BOUNDS, &mut here).is_none() {
            return false;
        }
        let message = RateLimitRequest::decode(bytes).expect("prost takes it too");
        wire::check_asked(&message).expect("something is asked");
        assert_eq!(described(&here), described(&wire::parse(&message, &BOUNDS).expect("nothing is refused")));
        true
    }

    fn entry() -> impl Strategy<Value = ProtoEntry> {
        ("[a-z\u{e9}]{0,9}", ".{0,9}").prop_map(|(key, value)| ProtoEntry { key, value })
    }

    fn descriptor() -> impl Strategy<Value = RateLimitDescriptor> {
        let limit =
            proptest::option::weighted(0.1, Just(RateLimitOverride { unit: 1, ..Default::default() }));
        (vec(entry(), 0..5), limit, any::<Option<u64>>(), any::<bool>()).prop_map(
            |(entries, limit, hits_addend, is_negative_hits)| RateLimitDescriptor {
                entries,
                limit,
                hits_addend,
                is_negative_hits,
            },
        )
    }

    fn request() -> impl Strategy<Value = RateLimitRequest> {
        ("[a-z]{0,5}", vec(descriptor(), 0..5), any::<u32>()).prop_map(
            |(domain, descriptors, hits_addend)| RateLimitRequest { domain, descriptors, hits_addend },
        )
    }

    #[test]
    fn what_proxies_send_is_read_here() {
        let entry = ProtoEntry { key: "user".to_owned(), value: "\u{e9}".to_owned() };
        let descriptor = RateLimitDescriptor {
            entries: vec![entry; 3],
            hits_addend: Some(u64::MAX >> 1),
            is_negative_hits: true,
            ..RateLimitDescriptor::default()
        };
        let request =
            RateLimitRequest { domain: "shop".to_owned(), descriptors: vec![descriptor; 3], hits_addend: 7 };
        let bytes = request.encode_to_vec();
        assert!(agrees(&bytes));
        // The fields in another order.
        let (domain, rest) = bytes.split_at(6);
        assert!(agrees(&[rest, domain].concat()));
        // A number that is present, but 0.
        assert!(agrees(b"\x0a\x04shop\x12\x02\x1a\x00"));
    }

    #[test]
    fn what_is_odd_is_left_to_prost() {
        for bytes in [
            &b""[..],
            b"\x0a\x04shop",                         // nothing is asked
            b"\x12\x00",                             // of no domain
            b"\x0a\x01\xff\x12\x00",                 // no text
            b"\x0a\x04shop\x12\x00\x20\x00",         // an unknown field
            b"\x0a\x04shop\x12\x00\x1a\x00",         // a field of another type
            b"\x0a\x04shop\x12\x02\x12\x00",         // a limit
            b"\x0a\x04shop\x12\x04\x1a\x00\x1a\x00", // a message twice, which are merged
            b"\x0a\x04shop\x12\x00\x12\x00\x12\x00\x12\x00",
            b"\x0a\x04shop\x12\x01",
        ] {
            assert!(parse(bytes, &BOUNDS, &mut Request::default()).is_none(), "{bytes:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

        #[test]
        fn it_agrees_with_prost_on_every_message(request in request()) {
            let usual = !request.domain.is_empty()
                && (1..=3).contains(&request.descriptors.len())
                && request.descriptors.iter().all(|descriptor| {
                    descriptor.limit.is_none()
                        && descriptor.entries.len() <= 3
                        && descriptor.hits_addend.is_none_or(|hits| hits >> 63 == 0)
                });
            prop_assert_eq!(agrees(&request.encode_to_vec()), usual);
        }

        #[test]
        fn it_agrees_with_prost_on_damaged_messages(
            request in request(),
            damage in vec((any::<Index>(), any::<u8>()), 1..4),
        ) {
            let mut bytes = request.encode_to_vec();
            prop_assume!(!bytes.is_empty());
            for (place, byte) in damage {
                let place = place.index(bytes.len());
                bytes[place] = byte;
            }
            agrees(&bytes);
        }
    }
}
