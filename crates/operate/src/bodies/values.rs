//! The values of which bodies are made: texts, numbers, times and lists, each within its bounds.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserializer, Error, SeqAccess, Unexpected, Visitor};
use serde::{Deserialize, Serialize, Serializer};

use tidegate_engine::limit::COUNT_REQUESTS_MAX;
use tidegate_engine::rules::Epoch;
use tidegate_engine::stamp;
use tidegate_engine::time::Timestamp;

/// The longest text of a body, in bytes.
pub const TEXT_BYTES_MAX: usize = 1_024;
/// The most entries of a path: rules have no more levels.
pub const LEVELS_MAX: usize = 32;
/// Digits of the number of a reset.
const DIGITS: usize = 16;

/// A text of at most [`TEXT_BYTES_MAX`] bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Text(String);

/// A text that says something: of one to [`TEXT_BYTES_MAX`] bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Words(String);

/// A whole number from `MIN` to `MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Number<const MIN: u64, const MAX: u64>(u64);

/// N of a limit.
pub type Requests = Number<0, COUNT_REQUESTS_MAX>;

/// The `burst` of a limit.
pub type Burst = Number<0, { u32::MAX as u64 }>;

/// One that has to be above 0.
pub type Positive = Number<1, { u32::MAX as u64 }>;

/// A time, as RFC 3339 has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Time(pub Timestamp);

/// The number of a reset, as [`id`] writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResetId(pub Epoch);

/// `MIN` to [`LEVELS_MAX`] items.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct List<T, const MIN: usize>(pub Vec<T>);

/// What lists hold.
pub trait Item {
    /// Some of them, in words.
    const SOME: &str;
}

/// The number of a reset as a text: sixteen digits in hex, so that texts sort as numbers do.
pub fn id(epoch: Epoch) -> String {
    format!("{epoch:016x}")
}

/// Reads what [`id`] writes. 0 is no number.
pub fn read_id(text: &str) -> Option<Epoch> {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let is_number = text.len() == DIGITS && text.bytes().all(is_digit);
    u64::from_str_radix(text, 16).ok().filter(|&epoch| is_number && epoch > 0)
}

impl Text {
    /// The text itself.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The text itself.
    pub fn into_string(self) -> String {
        self.0
    }
}

impl Words {
    /// The text itself.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The text itself.
    pub fn into_string(self) -> String {
        self.0
    }
}

impl<const MIN: u64, const MAX: u64> Number<MIN, MAX> {
    /// The number itself.
    pub fn get(self) -> u64 {
        self.0
    }

    /// The number itself. The greatest one stands for those that this machine cannot count to.
    pub fn as_usize(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

impl<const MIN: u64, const MAX: u64> From<u64> for Number<MIN, MAX> {
    fn from(number: u64) -> Self {
        Self(number)
    }
}

impl From<String> for Text {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl From<String> for Words {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl<T, const MIN: usize> Default for List<T, MIN> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Bounded;
        impl Visitor<'_> for Bounded {
            type Value = Text;
            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(out, "a text of at most {TEXT_BYTES_MAX} bytes")
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<Text, E> {
                match text.len() {
                    ..=TEXT_BYTES_MAX => Ok(Text(text.to_owned())),
                    bytes => Err(E::invalid_length(bytes, &self)),
                }
            }
        }
        deserializer.deserialize_str(Bounded)
    }
}

impl<'de> Deserialize<'de> for Words {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Text(text) = Text::deserialize(deserializer)?;
        if text.is_empty() { Err(D::Error::custom("is missing")) } else { Ok(Self(text)) }
    }
}

impl<'de, const MIN: u64, const MAX: u64> Deserialize<'de> for Number<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Bounded<const MIN: u64, const MAX: u64>;
        impl<const MIN: u64, const MAX: u64> Visitor<'_> for Bounded<MIN, MAX> {
            type Value = Number<MIN, MAX>;
            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                match MAX {
                    u64::MAX => write!(out, "a whole number"),
                    _ => write!(out, "a whole number, {MIN} to {MAX}"),
                }
            }
            fn visit_u64<E: Error>(self, number: u64) -> Result<Self::Value, E> {
                match (MIN..=MAX).contains(&number) {
                    true => Ok(Number(number)),
                    false => Err(E::invalid_value(Unexpected::Unsigned(number), &self)),
                }
            }
        }
        deserializer.deserialize_u64(Bounded::<MIN, MAX>)
    }
}

/// Reads a text that stands for something else.
struct Meaning<T> {
    expected: &'static str,
    read: fn(&str) -> Option<T>,
}

impl<T> Visitor<'_> for Meaning<T> {
    type Value = T;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.expected)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        (self.read)(text).ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let expected = "a time such as 2026-11-30T08:00:00Z";
        deserializer.deserialize_str(Meaning { expected, read: stamp::rfc_3339 }).map(Self)
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&stamp::show(self.0))
    }
}

impl<'de> Deserialize<'de> for ResetId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let expected = "sixteen digits in hex, the nanoseconds since 1970";
        deserializer.deserialize_str(Meaning { expected, read: read_id }).map(Self)
    }
}

impl Serialize for ResetId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&id(self.0))
    }
}

impl<'de, T: Deserialize<'de> + Item, const MIN: usize> Deserialize<'de> for List<T, MIN> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Bounded<T, const MIN: usize>(PhantomData<T>);
        impl<'de, T: Deserialize<'de> + Item, const MIN: usize> Visitor<'de> for Bounded<T, MIN> {
            type Value = List<T, MIN>;
            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                match MIN {
                    0 => write!(out, "a list of at most {LEVELS_MAX} {}", T::SOME),
                    _ => write!(out, "a list of {MIN} to {LEVELS_MAX} {}", T::SOME),
                }
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
                let mut list = Vec::new();
                while let Some(item) = items.next_element()? {
                    list.push(item);
                }
                if !(MIN..=LEVELS_MAX).contains(&list.len()) {
                    return Err(A::Error::invalid_length(list.len(), &self));
                }
                Ok(List(list))
            }
        }
        deserializer.deserialize_seq(Bounded(PhantomData))
    }
}
