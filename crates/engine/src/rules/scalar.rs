//! What plain scalars mean in YAML 1.1, as Go's yaml.v2 reads them: `0x10`, `010` (= 8), `1_000`, `yes`, `off`.

use serde_json::{Number, Value};

use tidegate_yaml::{Scalar, Typing};

pub(super) fn int(scalar: &Scalar<'_>) -> Option<i128> {
    if scalar.typing == Typing::Text {
        return None;
    }
    let (negative, magnitude) = match scalar.text.strip_prefix(['-', '+']) {
        Some(magnitude) => (scalar.text.starts_with('-'), magnitude),
        None => (false, &*scalar.text),
    };
    if !magnitude.starts_with(|first: char| first.is_ascii_digit()) {
        return None;
    }
    let value = radix_int(&magnitude.replace('_', ""))?;
    // What does not fit into 64 bits is no integer there.
    let range = i128::from(i64::MIN)..=i128::from(u64::MAX);
    Some(if negative { -value } else { value }).filter(|value| range.contains(value))
}

/// An integer without sign and underscores, in the base that its prefix says.
fn radix_int(digits: &str) -> Option<i128> {
    let prefixes = [("0x", 16), ("0X", 16), ("0o", 8), ("0O", 8), ("0b", 2), ("0B", 2), ("0", 8)];
    let prefixed = prefixes.iter().find_map(|&(prefix, radix)| Some((digits.strip_prefix(prefix)?, radix)));
    let (digits, radix) = prefixed.filter(|(rest, _)| !rest.is_empty()).unwrap_or((digits, 10));
    // from_str_radix would accept a sign.
    let is_number = digits.starts_with(|char: char| char.is_digit(radix));
    is_number.then(|| i128::from_str_radix(digits, radix).ok()).flatten()
}

pub(super) fn bool(scalar: &Scalar<'_>) -> Option<bool> {
    if scalar.typing == Typing::Text {
        return None;
    }
    match &*scalar.text {
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => Some(true),
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => Some(false),
        _ => None,
    }
}

/// A scalar of free data, typed by its look. Infinities and NaN, which JSON does not have, stay text.
pub(super) fn value(scalar: &Scalar<'_>) -> Value {
    if scalar.is_null() {
        return Value::Null;
    }
    if let Some(bool) = bool(scalar) {
        return Value::Bool(bool);
    }
    let number = int(scalar).and_then(Number::from_i128).or_else(|| Number::from_f64(float(scalar)?));
    number.map_or_else(|| Value::String(scalar.text.clone().into_owned()), Value::Number)
}

/// A number with a point or an exponent, or an integer that is too long for one.
pub(super) fn float(scalar: &Scalar<'_>) -> Option<f64> {
    if scalar.typing == Typing::Text {
        return None;
    }
    let digits: String = scalar.text.chars().filter(|&char| char != '_').collect();
    let is_number = digits.contains(|char: char| char.is_ascii_digit())
        && digits.chars().all(|char| char.is_ascii_digit() || matches!(char, '.' | 'e' | 'E' | '+' | '-'))
        && !digits.starts_with(['e', 'E']);
    is_number.then(|| digits.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn plain(text: &str) -> Scalar<'_> {
        Scalar { text: text.into(), typing: Typing::Plain }
    }

    #[test]
    fn integers_are_those_of_yaml_1_1() {
        for (text, expected) in [
            ("0", Some(0)),
            ("16", Some(16)),
            ("0x10", Some(16)),
            ("0b11", Some(3)),
            ("0o17", Some(15)),
            ("010", Some(8)),
            ("1_000", Some(1_000)),
            ("+5", Some(5)),
            ("-5", Some(-5)),
            ("-0x10", Some(-16)),
            ("18446744073709551615", Some(u64::MAX.into())),
            ("18446744073709551616", None),
            ("08", None),
            ("0x", None),
            ("0b12", None),
            ("0x-5", None),
            ("--5", None),
            ("1.0", None),
            ("1e3", None),
            ("", None),
            ("_", None),
            ("_1", None),
            ("0x_1", Some(1)),
            ("017_0", Some(120)),
            ("five", None),
            ("١", None),
        ] {
            assert_eq!(int(&plain(text)), expected, "{text}");
        }
        assert_eq!(int(&Scalar { text: "5".into(), typing: Typing::Text }), None);
        assert_eq!(int(&Scalar { text: "5".into(), typing: Typing::Tagged }), Some(5));
    }

    #[test]
    fn free_data_has_the_types_of_yaml_1_1() {
        for (text, expected) in [
            ("~", json!(null)),
            ("", json!(null)),
            ("yes", json!(true)),
            ("Off", json!(false)),
            ("yEs", json!("yEs")),
            ("0x1F", json!(31)),
            ("1.5", json!(1.5)),
            (".5", json!(0.5)),
            ("1e3", json!(1000.0)),
            ("-1.5e-3", json!(-0.0015)),
            (".inf", json!(".inf")),
            ("inf", json!("inf")),
            ("e5", json!("e5")),
            ("1.2.3", json!("1.2.3")),
            ("2001-01-01", json!("2001-01-01")),
            ("text", json!("text")),
        ] {
            assert_eq!(value(&plain(text)), expected, "{text}");
        }
    }
}
