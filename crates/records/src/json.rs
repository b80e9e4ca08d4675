//! A record as people write it: a JSON object with a domain, entries, and the fields of a rule's limit.

use serde_json::{Map, Value, json};

use tidegate_engine::Algorithm;
use tidegate_engine::limit::COUNT_REQUESTS_MAX;
use tidegate_engine::overlay::Record;
use tidegate_engine::rules::{parse_duration_nanos, shown_duration};
use tidegate_engine::time::SECOND_NANOS;
use tidegate_engine::unit::{Anchor, AnchorKind, Unit, Window};

use crate::checks::{BadRecord, bad, checked};
use crate::key::RecordKey;

/// The fields of a record.
pub(crate) const FIELDS: [&str; 12] = [
    "domain",
    "entries",
    "requests_per_unit",
    "burst",
    "unit",
    "unit_multiplier",
    "window",
    "algorithm",
    "granularity",
    "anchor",
    "shadow_mode",
    "unlimited",
];

/// The largest `burst` and multiplier of a unit.
const NUMBER_MAX: u64 = u32::MAX as u64;

/// Reads a record with its key. Null counts as absent.
///
/// # Errors
/// The first field that is wrong, with what was expected.
pub fn read(value: &Value) -> Result<(RecordKey, Record), BadRecord> {
    let Some(fields) = value.as_object() else { return bad("not a JSON object") };
    if let Some(unknown) = fields.keys().find(|name| !FIELDS.contains(&name.as_str())) {
        return bad(format!("{unknown:?}: is unknown (expected one of {})", FIELDS.join(", ")));
    }
    Ok((key_of(value)?, record(fields)?))
}

/// Reads the domain and the entries, whatever other fields there are.
///
/// # Errors
/// What is wrong with them.
pub fn key_of(value: &Value) -> Result<RecordKey, BadRecord> {
    const EXPECTED: &str = "entries: expected a list of objects with `key` and `value`, both texts";
    let domain = match value.get("domain") {
        Some(Value::String(domain)) => domain,
        _ => return bad("domain: is missing (expected a text)"),
    };
    let Some(entries) = value.get("entries").and_then(Value::as_array) else { return bad(EXPECTED) };
    let text = |entry: &'_ Value, name| entry.get(name).and_then(Value::as_str).map(str::to_owned);
    let entry = |entry: &Value| {
        let is_whole = entry.as_object().is_some_and(|fields| fields.len() == 2);
        text(entry, "key").zip(text(entry, "value")).filter(|_| is_whole)
    };
    let Some(entries) = entries.iter().map(entry).collect::<Option<Vec<_>>>() else { return bad(EXPECTED) };
    let entries = entries.iter().map(|(key, value)| (&**key, &**value));
    RecordKey::of(domain, entries).map_err(|error| BadRecord(error.to_string()))
}

/// A record as JSON; [`read`] reads the same from it.
pub fn show(key: &RecordKey, record: &Record) -> Value {
    let (domain, entries) = key.decode();
    let entry = |(key, value): &(String, String)| json!({"key": key, "value": value});
    let mut shown = json!({"domain": domain, "entries": entries.iter().map(entry).collect::<Vec<_>>()});
    let mut show = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            shown[name] = value;
        }
    };
    show("requests_per_unit", (!record.unlimited).then(|| record.requests.into()));
    show("burst", record.burst.map(Value::from));
    show("unit", record.window.map(|window| window.unit.name().into()));
    let multiplier = record.window.map(|window| window.multiplier).filter(|&multiplier| multiplier > 1);
    show("unit_multiplier", multiplier.map(Value::from));
    show("algorithm", record.algorithm.map(|algorithm| algorithm.name().into()));
    show("granularity", record.granularity_nanos.map(|nanos| shown_duration(nanos).into()));
    show("anchor", record.anchor.map(shown_anchor));
    show("shadow_mode", record.shadow.map(Value::from));
    show("unlimited", record.unlimited.then_some(true.into()));
    shown
}

fn record(fields: &Map<String, Value>) -> Result<Record, BadRecord> {
    let unlimited = flag(fields, "unlimited")?.unwrap_or_default();
    let requests = number(fields, "requests_per_unit", COUNT_REQUESTS_MAX)?;
    if requests.is_none() && !unlimited {
        return bad("`requests_per_unit` is missing (expected a whole number, or `unlimited: true`)");
    }
    let record = Record {
        requests: requests.unwrap_or_default(),
        burst: number(fields, "burst", NUMBER_MAX)?,
        window: window(fields)?,
        algorithm: algorithm(fields)?,
        granularity_nanos: granularity(fields)?,
        anchor: anchor(fields)?,
        shadow: flag(fields, "shadow_mode")?,
        unlimited,
    };
    checked(record)
}

fn given<'v>(fields: &'v Map<String, Value>, name: &str) -> Option<&'v Value> {
    fields.get(name).filter(|value| !value.is_null())
}

fn text<'v>(fields: &'v Map<String, Value>, name: &str) -> Result<Option<&'v str>, BadRecord> {
    match given(fields, name) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(other) => bad(format!("`{name}` is {} (expected a text)", cut(&other.to_string()))),
    }
}

fn number<T: TryFrom<u64>>(
    fields: &Map<String, Value>,
    name: &str,
    most: u64,
) -> Result<Option<T>, BadRecord> {
    let Some(value) = given(fields, name) else { return Ok(None) };
    match value.as_u64().filter(|number| *number <= most).and_then(|number| T::try_from(number).ok()) {
        Some(number) => Ok(Some(number)),
        None => {
            let shown = cut(&value.to_string());
            bad(format!("`{name}` is {shown} (expected a whole number, 0 to {most})"))
        }
    }
}

fn flag(fields: &Map<String, Value>, name: &str) -> Result<Option<bool>, BadRecord> {
    match given(fields, name) {
        None => Ok(None),
        Some(Value::Bool(flag)) => Ok(Some(*flag)),
        Some(other) => bad(format!("`{name}` is {} (expected true or false)", cut(&other.to_string()))),
    }
}

fn algorithm(fields: &Map<String, Value>) -> Result<Option<Algorithm>, BadRecord> {
    let Some(name) = text(fields, "algorithm")? else { return Ok(None) };
    match Algorithm::NAMED.into_iter().find(|algorithm| algorithm.name() == name) {
        Some(algorithm) => Ok(Some(algorithm)),
        None => bad(format!("`algorithm` is {:?}, not {}", cut(name), Algorithm::EXPECTED)),
    }
}

fn granularity(fields: &Map<String, Value>) -> Result<Option<u64>, BadRecord> {
    let Some(text) = text(fields, "granularity")? else { return Ok(None) };
    match parse_duration_nanos(text) {
        Some(nanos) => Ok(Some(nanos)),
        None => bad(format!(
            "`granularity` is {:?} (expected a time above 0, such as `1s` or `500ms`)",
            cut(text)
        )),
    }
}

/// A day of the month is a number or a text, so that a column of CSV may have anchors of all kinds.
fn anchor(fields: &Map<String, Value>) -> Result<Option<Anchor>, BadRecord> {
    let Some(value) = given(fields, "anchor") else { return Ok(None) };
    let read = match value {
        Value::String(text) => Anchor::parse(text),
        other => other.as_u64().and_then(|day| u16::try_from(day).ok()).and_then(Anchor::day),
    };
    match read {
        Some(anchor) => Ok(Some(anchor)),
        None => bad(format!("`anchor` is {} ({})", cut(&value.to_string()), Anchor::EXPECTED)),
    }
}

fn window(fields: &Map<String, Value>) -> Result<Option<Window>, BadRecord> {
    let (unit, multiplier) = (text(fields, "unit")?, number(fields, "unit_multiplier", NUMBER_MAX)?);
    if let Some(text) = text(fields, "window")? {
        if unit.is_some() || multiplier.is_some() {
            return bad("`window` with `unit` or `unit_multiplier` (expected one of the two)");
        }
        return window_of_duration(text).map(Some);
    }
    let Some(name) = unit else {
        return match multiplier {
            Some(_) => bad("`unit_multiplier` without `unit` (expected both)"),
            None => Ok(None),
        };
    };
    let Some(unit) = Unit::from_name(name) else {
        let names = Unit::ALL.map(Unit::name).join(", ");
        return bad(format!("`unit` is {:?} (expected {names})", cut(name)));
    };
    match multiplier {
        Some(0) => bad("`unit_multiplier` is 0 (expected 1 or more)"),
        _ => Ok(Some(Window { unit, multiplier: multiplier.unwrap_or(1) })),
    }
}

fn window_of_duration(text: &str) -> Result<Window, BadRecord> {
    let nanos = parse_duration_nanos(text).filter(|nanos| nanos % SECOND_NANOS == 0);
    match nanos.and_then(Window::of_nanos) {
        Some(window) => Ok(window),
        None => bad(format!(
            "`window` is {:?} (expected whole seconds, such as `90s`, `5m` or `1h30m`)",
            cut(text)
        )),
    }
}

fn shown_anchor(anchor: Anchor) -> Value {
    match anchor.kind() {
        AnchorKind::Day(day) => day.into(),
        _ => anchor.to_string().into(),
    }
}

/// The part of a text that an error repeats; the text may be long.
fn cut(text: &str) -> String {
    tidegate_engine::text::cut(text, 64).into_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use tidegate_engine::Limiter;

    use super::*;
    use crate::fixture;

    fn said(fields: &Value) -> Result<(RecordKey, Record), String> {
        let mut whole = json!({"domain": "d", "entries": [{"key": "a", "value": "b"}]});
        whole.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
        read(&whole).map_err(|error| error.to_string())
    }

    #[test]
    fn the_largest_number_is_read() {
        let (_, record) = said(&json!({"requests_per_unit": 9_007_199_254_740_991_u64})).expect("a record");
        assert_eq!(record.requests, 9_007_199_254_740_991);
    }

    /// Fields that say everything, some of them badly, so that a rule can say the same.
    fn whole_limit() -> impl Strategy<Value = Map<String, Value>> {
        let requests =
            prop_oneof![Just(json!(0)), Just(json!(7)), Just(json!(100_001)), Just(json!(1_u64 << 32))];
        let algorithms = Algorithm::NAMED.map(|algorithm| json!(algorithm.name()));
        let names = algorithms.into_iter().chain([json!("none")]).collect::<Vec<_>>();
        let algorithm = proptest::sample::select(names);
        let window = proptest::sample::select(vec![
            json!({"unit": "second"}),
            json!({"unit": "YEAR"}),
            json!({"unit": "year", "unit_multiplier": 2}),
            json!({"unit": "day", "unit_multiplier": 0}),
            json!({"unit": "fortnight"}),
            json!({"window": "90s"}),
            json!({"window": "1.5s"}),
            json!({"window": "0"}),
            json!({"window": "10000h"}),
            json!({"window": "1m", "unit": "day"}),
        ]);
        let durations = ["0s", "1ms", "1s", "90s", "24h", "9000h", "soon"].map(|text| json!(text));
        let granularity = proptest::option::weighted(0.4, proptest::sample::select(durations.to_vec()));
        let burst = proptest::option::weighted(
            0.4,
            proptest::sample::select(vec![json!(0), json!(9), json!(u32::MAX), json!(-1)]),
        );
        (requests, algorithm, window, granularity, burst).prop_map(
            |(requests, algorithm, window, granularity, burst)| {
                let mut fields = window.as_object().expect("an object").clone();
                fields.insert("requests_per_unit".to_owned(), requests);
                fields.insert("algorithm".to_owned(), algorithm);
                fields.extend(granularity.map(|value| ("granularity".to_owned(), value)));
                fields.extend(burst.map(|value| ("burst".to_owned(), value)));
                fields
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

        #[test]
        fn a_record_is_refused_where_a_rule_is(fields in whole_limit()) {
            let fields = Value::Object(fields);
            let rules = format!("domain: d\ndescriptors:\n  - key: a\n    rate_limit: {fields}\n");
            let rule = Limiter::builder().file("rules.yaml", rules.as_str()).build();
            let record = said(&fields);
            prop_assert_eq!(record.is_ok(), rule.is_ok(), "{}: {:?}", fields, record);
        }

        #[test]
        fn what_is_shown_is_read_as_the_same(record in fixture::record()) {
            let key = RecordKey::of("d", [("a", "\u{0}\u{2028}é"), ("b", "")]).expect("a key");
            prop_assert_eq!(read(&show(&key, &record)), Ok((key, record)));
        }
    }

    #[test]
    fn a_record_may_leave_out_all_but_n() {
        let record = Record::of(5);
        assert_eq!(said(&json!({"requests_per_unit": 5})).map(|(_, record)| record), Ok(record));
        let burst = said(&json!({"requests_per_unit": 5, "burst": 9, "unit": null}));
        assert_eq!(burst.map(|(_, record)| record), Ok(Record { burst: Some(9), ..record }));
    }

    #[test]
    fn errors_say_what_was_expected() {
        for (fields, what) in [
            (json!({}), "`requests_per_unit` is missing (expected a whole number, or `unlimited: true`)"),
            (
                json!({"requests_per_unit": "5"}),
                "`requests_per_unit` is \"5\" (expected a whole number, 0 to 9007199254740991)",
            ),
            (json!({"requests": 5}), "\"requests\": is unknown (expected one of domain, "),
            (
                json!({"unlimited": true, "burst": 5}),
                "`burst` with `unlimited: true` (expected one of the two)",
            ),
            (json!({"unlimited": 1}), "`unlimited` is 1 (expected true or false)"),
            (
                json!({"requests_per_unit": 5, "unit_multiplier": 5}),
                "`unit_multiplier` without `unit` (expected both)",
            ),
            (
                json!({"requests_per_unit": 5, "unit": "day", "unit_multiplier": 0}),
                "`unit_multiplier` is 0 (expected 1 or more)",
            ),
            (json!({"domain": 5}), "domain: is missing (expected a text)"),
            (
                json!({"entries": [{"key": "a"}]}),
                "entries: expected a list of objects with `key` and `value`",
            ),
            (
                json!({"requests_per_unit": 5, "anchor": 32}),
                "`anchor` is 32 (expected a day of the month from 1 to 31, a weekday such as `sunday`, or a date",
            ),
            (json!({"requests_per_unit": 5, "anchor": "02-30"}), "`anchor` is \"02-30\" (expected a day"),
            (
                json!({"requests_per_unit": 5, "anchor": 3, "unit": "day"}),
                "`unit` or `window` with `anchor`, which is for calendar budgets (expected one of the two)",
            ),
            (
                json!({"unlimited": true, "anchor": 3}),
                "`anchor` with `unlimited: true` (expected one of the two)",
            ),
            (json!({"entries": []}), "entries: 0 (expected 1 to 32)"),
            (json!({"algorithm": "x".repeat(999), "requests_per_unit": 5}), "`algorithm` is \"xxxx"),
        ] {
            let error = said(&fields).expect_err("it is bad");
            assert!(error.starts_with(what) && error.len() < 400, "{fields}: {error}");
        }
    }
}
