//! Turns a resource of a control plane, a `RateLimitConfig`, into a rules file with the same content.
//!
//! Rules from every source are checked by the same code. So a resource is written as a file (JSON, which is YAML)
//! with one line per descriptor, and a problem in a line is reported with the path of its descriptor.

use prost::Message;
use prost_types::{Any, Struct, Value, value::Kind};
use serde_json::{Map, Value as Json, json};

use super::proto::ratelimit::config::ratelimit::v3::{
    RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitUnit,
};
use tidegate_engine::rules::{Diagnostic, SourceFile};

/// The type of the resources.
pub const TYPE_URL: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

/// A resource that cannot be decoded.
#[derive(Debug, thiserror::Error)]
#[error("resource {index}: {problem}")]
pub struct ResourceError {
    /// Its place in the response.
    index: usize,
    problem: DecodeError,
}

/// Why a resource cannot be decoded.
#[derive(Debug, thiserror::Error)]
enum DecodeError {
    #[error("its type is {0:?} (expected {TYPE_URL})")]
    Type(String),
    #[error(transparent)]
    Message(#[from] prost::DecodeError),
}

/// All resources of a state of the world, as files.
#[derive(Debug, Default)]
pub struct Resources {
    /// One file per resource, with the resource's name.
    pub files: Vec<SourceFile>,
    /// For each file, the path of the descriptor in each line.
    paths: Vec<Vec<String>>,
}

impl Resources {
    /// Decodes all resources.
    /// Fails with every resource that cannot be decoded.
    pub fn decode(resources: &[Any]) -> Result<Self, Vec<ResourceError>> {
        let (mut decoded, mut problems) = (Self::default(), Vec::new());
        for (index, resource) in resources.iter().enumerate() {
            match decode(resource) {
                Ok(config) => decoded.push(&config, index),
                Err(problem) => problems.push(ResourceError { index, problem }),
            }
        }
        if problems.is_empty() { Ok(decoded) } else { Err(problems) }
    }

    fn push(&mut self, config: &RateLimitConfig, index: usize) {
        let mut lines = Lines::default();
        lines.config(config);
        // A resource without a name is named by its index, so that two of them differ.
        let name = if config.name.is_empty() { format!("resource {index}") } else { config.name.clone() };
        self.files.push(SourceFile { name, bytes: lines.text.into_bytes(), presumed: false });
        self.paths.push(lines.paths);
    }

    /// A problem in one of the files, as a problem of its resource: `<name>: <descriptor>: <problem>`.
    pub fn problem(&self, diagnostic: &Diagnostic) -> String {
        let Diagnostic { file, line, message, .. } = diagnostic;
        let index = self.files.iter().position(|known| known.name == *file);
        let path = index.and_then(|index| self.paths[index].get(*line as usize - 1));
        match path.filter(|path| !path.is_empty()) {
            Some(path) => format!("{file}: {path}: {message}"),
            None => format!("{file}: {message}"),
        }
    }
}

fn decode(resource: &Any) -> Result<RateLimitConfig, DecodeError> {
    match resource.type_url.as_str() {
        TYPE_URL => Ok(RateLimitConfig::decode(&*resource.value)?),
        other => Err(DecodeError::Type(other.to_owned())),
    }
}

/// The text of a file so far, and the path of the descriptor in each of its lines.
#[derive(Default)]
struct Lines {
    text: String,
    paths: Vec<String>,
}

impl Lines {
    fn config(&mut self, config: &RateLimitConfig) {
        self.text.push_str(&format!("{{\"domain\":{}", json!(config.domain)));
        self.descriptors(&config.descriptors, "");
        self.text.push('}');
        self.end(String::new());
    }

    /// Writes `descriptors`, each starting on a line of its own. Protobuf bounds how deep they are nested.
    fn descriptors(&mut self, descriptors: &[RateLimitDescriptor], above: &str) {
        if descriptors.is_empty() {
            return;
        }
        self.text.push_str(",\"descriptors\":[");
        self.end(above.to_owned());
        let dot = if above.is_empty() { "" } else { "." };
        for (index, descriptor) in descriptors.iter().enumerate() {
            let path = format!("{above}{dot}descriptors[{index}]");
            self.text.push_str(&format!("{{\"key\":{}", json!(descriptor.key)));
            for (name, value) in own_fields(descriptor) {
                self.text.push_str(&format!(",\"{name}\":{value}"));
            }
            self.descriptors(&descriptor.descriptors, &path);
            self.text.push_str("},");
            self.end(path);
        }
        self.text.push(']');
    }

    fn end(&mut self, path: String) {
        self.text.push('\n');
        self.paths.push(path);
    }
}

/// The fields of a descriptor besides its key. Fields that are not set are left out.
fn own_fields(descriptor: &RateLimitDescriptor) -> Vec<(&'static str, Json)> {
    let flags = [
        ("shadow_mode", descriptor.shadow_mode),
        ("quota_mode", descriptor.quota_mode),
        ("detailed_metric", descriptor.detailed_metric),
    ];
    let mut fields: Vec<_> =
        flags.into_iter().filter(|&(_, flag)| flag).map(|(name, flag)| (name, json!(flag))).collect();
    fields.extend((!descriptor.value.is_empty()).then(|| ("value", json!(descriptor.value))));
    fields.extend(descriptor.rate_limit.as_ref().map(|policy| ("rate_limit", limit(policy))));
    fields.extend(descriptor.metadata.as_ref().map(|metadata| ("metadata", object(metadata))));
    fields
}

fn limit(policy: &RateLimitPolicy) -> Json {
    let mut limit = Map::new();
    let mut field = |name: &str, value| limit.insert(name.to_owned(), value);
    match RateLimitUnit::try_from(policy.unit) {
        Ok(RateLimitUnit::Unknown) => None,
        Ok(unit) => field("unit", json!(unit.as_str_name())),
        // A unit without a name: the check of the rules reports it and lists the units.
        Err(_) => field("unit", json!(policy.unit.to_string())),
    };
    if policy.unlimited {
        field("unlimited", json!(true));
    } else {
        field("requests_per_unit", json!(policy.requests_per_unit));
    }
    if !policy.name.is_empty() {
        field("name", json!(policy.name));
    }
    let replaces: Vec<_> = policy.replaces.iter().map(|other| json!({"name": other.name})).collect();
    field("replaces", json!(replaces));
    limit.into()
}

fn object(fields: &Struct) -> Json {
    fields.fields.iter().map(|(name, field)| (name.clone(), value(field))).collect::<Map<_, _>>().into()
}

fn value(field: &Value) -> Json {
    match &field.kind {
        None | Some(Kind::NullValue(_)) => Json::Null,
        Some(Kind::BoolValue(value)) => json!(value),
        Some(Kind::NumberValue(number)) => json!(number),
        Some(Kind::StringValue(text)) => json!(text),
        Some(Kind::StructValue(fields)) => object(fields),
        Some(Kind::ListValue(list)) => list.values.iter().map(value).collect::<Vec<_>>().into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn any(config: &RateLimitConfig) -> Any {
        Any { type_url: TYPE_URL.to_owned(), value: config.encode_to_vec() }
    }

    fn text(config: &RateLimitConfig) -> String {
        let mut resources = Resources::decode(&[any(config)]).expect("a resource");
        String::from_utf8(resources.files.remove(0).bytes).expect("JSON is UTF-8")
    }

    fn policy(unit: i32, requests_per_unit: u32) -> RateLimitPolicy {
        RateLimitPolicy { unit, requests_per_unit, ..RateLimitPolicy::default() }
    }

    fn descriptor(key: &str, descriptors: Vec<RateLimitDescriptor>) -> RateLimitDescriptor {
        RateLimitDescriptor { key: key.to_owned(), descriptors, ..RateLimitDescriptor::default() }
    }

    #[test]
    fn everything_in_a_resource_is_in_its_file() {
        let full = RateLimitDescriptor {
            value: "\"quoted\"".to_owned(),
            shadow_mode: true,
            quota_mode: true,
            detailed_metric: true,
            rate_limit: Some(RateLimitPolicy {
                name: "one".to_owned(),
                replaces: vec![super::super::proto::ratelimit::config::ratelimit::v3::RateLimitReplace {
                    name: "two".to_owned(),
                }],
                ..policy(7, 3)
            }),
            metadata: Some(Struct {
                fields: [(
                    "list".to_owned(),
                    Value {
                        kind: Some(Kind::ListValue(prost_types::ListValue {
                            values: vec![
                                Value { kind: Some(Kind::NumberValue(1.5)) },
                                Value { kind: Some(Kind::BoolValue(true)) },
                                Value { kind: None },
                            ],
                        })),
                    },
                )]
                .into(),
            }),
            ..descriptor("user", vec![descriptor("path", Vec::new())])
        };
        let config =
            RateLimitConfig { name: "a".to_owned(), domain: "shop".to_owned(), descriptors: vec![full] };
        assert_eq!(
            text(&config),
            "{\"domain\":\"shop\",\"descriptors\":[\n\
             {\"key\":\"user\",\"shadow_mode\":true,\"quota_mode\":true,\"detailed_metric\":true,\
             \"value\":\"\\\"quoted\\\"\",\
             \"rate_limit\":{\"name\":\"one\",\"replaces\":[{\"name\":\"two\"}],\"requests_per_unit\":3,\"unit\":\"WEEK\"},\
             \"metadata\":{\"list\":[1.5,true,null]},\"descriptors\":[\n\
             {\"key\":\"path\"},\n\
             ]},\n\
             ]}\n"
        );
    }

    #[test]
    fn a_problem_names_its_resource_and_descriptor() {
        let config = RateLimitConfig {
            name: "gateway".to_owned(),
            domain: "shop".to_owned(),
            descriptors: vec![
                descriptor("a", Vec::new()),
                descriptor("b", vec![descriptor("c", Vec::new())]),
            ],
        };
        let resources = Resources::decode(&[any(&config)]).expect("a resource");
        let reported = |line| {
            let message = "bad".to_owned();
            resources.problem(&Diagnostic { file: "gateway".to_owned(), line, column: 1, message })
        };
        assert_eq!(reported(1), "gateway: bad");
        assert_eq!(reported(2), "gateway: descriptors[0]: bad");
        assert_eq!(reported(3), "gateway: descriptors[1]: bad");
        assert_eq!(reported(4), "gateway: descriptors[1].descriptors[0]: bad");
        assert_eq!(reported(99), "gateway: bad");
    }

    #[test]
    fn what_is_no_resource_is_reported_by_its_index() {
        let other = Any { type_url: "type.googleapis.com/other".to_owned(), value: Vec::new() };
        let broken = Any { type_url: TYPE_URL.to_owned(), value: vec![0xff] };
        let problems =
            Resources::decode(&[other, any(&RateLimitConfig::default()), broken]).expect_err("bad");
        let problems: Vec<_> = problems.iter().map(ToString::to_string).collect();
        assert_eq!(problems.len(), 2, "{problems:?}");
        assert!(problems[0].starts_with("resource 0: its type is"), "{problems:?}");
        assert!(problems[1].starts_with("resource 2: "), "{problems:?}");
    }
}
