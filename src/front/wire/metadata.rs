//! Dynamic metadata for the next filters of the proxy: the request, the metadata of the rules that admitted it, the
//! exceptions that it met, the bans that deny it, and the slots that it took.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use prost_types::value::Kind;
use prost_types::{ListValue, Struct, Value};
use serde_json::{Map, Value as Json};

use tidegate_engine::decision::{Banned, Code, Decision, Status};
use tidegate_engine::overlay::Met;
use tidegate_engine::plan::Origin;
use tidegate_engine::request::{Descriptor, Override, Request};
use tidegate_engine::stamp;
use tidegate_engine::time::ceil_secs;

/// The metadata of an answer.
pub(super) fn render(request: &Request<'_>, decision: &Decision<'_>) -> Struct {
    let descriptors = request.descriptors().zip(&decision.statuses);
    let descriptors = descriptors.map(|(descriptor, status)| structure(of_descriptor(&descriptor, status)));
    let mut fields = vec![("domain", text(request.domain())), ("descriptors", list(descriptors))];
    if request.hits_addend() > 0 {
        fields.push(("hitsAddend", number(f64::from(request.hits_addend()))));
    }
    let metadata = of_rules(decision);
    if !metadata.fields.is_empty() {
        fields.push(("metadata", structure(metadata)));
    }
    let exceptions = decision.exceptions();
    if !exceptions.is_empty() {
        fields.push(("exceptions", list(exceptions.iter().map(|met| structure(of_exception(met))))));
    }
    if !decision.bans().is_empty() {
        fields.push(("bans", list(decision.bans().iter().map(|ban| structure(of_ban(ban))))));
    }
    fields.extend(slots(decision));
    of_fields(fields)
}

/// The metadata of an answer that has nothing but the slots that its request took: nobody else can release them.
pub(super) fn of_slots(decision: &Decision<'_>) -> Struct {
    of_fields(slots(decision).into_iter().collect())
}

/// The tokens of slots by the names of their bounds, or else by their rules' paths.
fn slots(decision: &Decision<'_>) -> Option<(&'static str, Value)> {
    let mut tokens = Struct::default();
    for (_, rule, slot) in decision.slots() {
        let name = if rule.name.is_empty() { rule.path() } else { rule.name.to_string() };
        let of_name = |number: usize| if number < 2 { name.clone() } else { format!("{name}#{number}") };
        let free = (1..).map(of_name).find(|name| !tokens.fields.contains_key(name));
        tokens.fields.insert(free.unwrap_or_default(), text(&slot.to_string()));
    }
    (!tokens.fields.is_empty()).then(|| ("slots", structure(tokens)))
}

/// An exception of an operator that a descriptor met.
fn of_exception(met: &Met) -> Struct {
    let mut fields = vec![("descriptor", number(met.descriptor as f64)), ("effect", text(met.effect.name()))];
    if let Some(label) = &met.label {
        fields.push(("id", text(&label.id)));
        fields.extend(label.until.map(|until| ("until", text(&stamp::show(until)))));
    }
    of_fields(fields)
}

/// A ban that denies a descriptor.
fn of_ban(ban: &Banned<'_>) -> Struct {
    of_fields(vec![
        ("descriptor", number(ban.descriptor as f64)),
        ("rule", text(&ban.rule.path())),
        ("seconds", number(ceil_secs(ban.nanos_left) as f64)),
    ])
}

fn of_descriptor(descriptor: &Descriptor<'_, '_>, status: &Status<'_>) -> Struct {
    let Descriptor { entries, options } = descriptor;
    let class = match status {
        Status::Limited(limited) => limited.origin.rule().and_then(|rule| rule.class_of(entries)),
        _ => None,
    };
    // Of other rules `envoyproxy/ratelimit` says nothing here.
    let pattern = status.rule().filter(|rule| rule.has_own_pattern);
    let entries = entries.iter().map(|entry| text(&format!("{}={}", entry.key, entry.value)));
    let mut fields = vec![("entries", list(entries))];
    fields.extend(options.limit.as_ref().map(|limit| ("limit", text(&of_override(limit)))));
    fields.extend(pattern.map(|rule| ("rule", text(&rule.path()))));
    fields.extend(class.map(|(name, _)| ("class", text(name))));
    fields.extend(options.hits_addend.map(|hits| ("hitsAddend", number(hits as f64))));
    of_fields(fields)
}

/// A limit in the request, as one line of protobuf text. Fields at their default are left out.
fn of_override(limit: &Override) -> String {
    let mut line = String::new();
    // Writing to a string cannot fail.
    if limit.requests_per_unit > 0 {
        let _ = write!(line, "requests_per_unit:{} ", limit.requests_per_unit);
    }
    let _ = write!(line, "unit:{}", limit.window.unit.name().to_uppercase());
    if limit.window.multiplier != 1 {
        let _ = write!(line, " unit_multiplier:{{value:{}}}", limit.window.multiplier);
    }
    line
}

/// Merges, deeply, the metadata of the rules whose counters admitted their descriptors.
fn of_rules(decision: &Decision<'_>) -> Struct {
    let mut merged = Struct::default();
    for status in &decision.statuses {
        let Status::Limited(limited) = status else { continue };
        let Origin::Rule { rule, .. } = limited.origin else { continue };
        if let (Code::Ok, Json::Object(more)) = (status.code(), &rule.metadata) {
            merge(&mut merged, more);
        }
    }
    merged
}

/// Adds what is not there yet. Only mappings are merged; of other values the first one wins. The depth of a rule file
/// bounds the recursion.
fn merge(into: &mut Struct, more: &Map<String, Json>) {
    for (key, value) in more {
        match (into.fields.get_mut(key), value) {
            (None, value) => drop(into.fields.insert(key.clone(), of_json(value))),
            (Some(Value { kind: Some(Kind::StructValue(inner)) }), Json::Object(more)) => merge(inner, more),
            (Some(_), _) => {}
        }
    }
}

fn of_json(json: &Json) -> Value {
    match json {
        Json::Null => Value { kind: Some(Kind::NullValue(0)) },
        Json::Bool(bool) => Value { kind: Some(Kind::BoolValue(*bool)) },
        Json::Number(json) => number(json.as_f64().unwrap_or_default()),
        Json::String(string) => text(string),
        Json::Array(items) => list(items.iter().map(of_json)),
        Json::Object(map) => {
            let fields = map.iter().map(|(key, value)| (key.clone(), of_json(value))).collect();
            structure(Struct { fields })
        }
    }
}

fn of_fields(fields: Vec<(&str, Value)>) -> Struct {
    let fields: BTreeMap<_, _> = fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    Struct { fields }
}

fn structure(fields: Struct) -> Value {
    Value { kind: Some(Kind::StructValue(fields)) }
}

fn list(values: impl Iterator<Item = Value>) -> Value {
    Value { kind: Some(Kind::ListValue(ListValue { values: values.collect() })) }
}

fn text(text: &str) -> Value {
    Value { kind: Some(Kind::StringValue(text.to_owned())) }
}

fn number(number: f64) -> Value {
    Value { kind: Some(Kind::NumberValue(number)) }
}
