//! `tidegate schema`: a validator of another language accepts what the program accepts.

use std::fs;
use std::path::Path;

use super::commands::{folder, tidegate};
use crate::harness::programs::{python, run};

/// Reads a schema, and YAML files that should follow it.
const VALIDATE: &str = "
import json, sys, yaml
from jsonschema import Draft7Validator
schema = json.load(open(sys.argv[1]))
Draft7Validator.check_schema(schema)
wrong = [f'{name}: {error.json_path}: {error.message}' for name in sys.argv[2:]
         for error in Draft7Validator(schema).iter_errors(yaml.safe_load(open(name)))]
sys.exit('\\n'.join(wrong))";

/// What is wrong with these files by the schema of their kind.
fn wrong(kind: &str, files: &[String]) -> String {
    let (code, schema, _) = tidegate(&["schema", kind], &[]);
    assert_eq!(code, 0);
    let (_folder, path) = folder(&[("schema.json", &schema)]);
    let (_, wrong) = run(python().args(["-c", VALIDATE, &format!("{path}/schema.json")]).args(files));
    wrong.trim().to_owned()
}

/// The YAML files in these folders of the repository.
fn yaml_in(folders: &[&str]) -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |folder: &&str| fs::read_dir(root.join(folder)).expect("it is there");
    let paths = folders.iter().flat_map(read).map(|file| file.expect("a file").path());
    paths
        .filter(|path| path.extension().is_some_and(|it| it == "yaml"))
        .map(|it| it.display().to_string())
        .collect()
}

#[test]
fn the_rules_and_cases_of_the_repository_follow_their_schemas() {
    let folders = ["envoy", "nginx", "inside", "redis", "sharded", "cluster"];
    let folders = folders.map(|example| format!("examples/{example}/rules"));
    let folders: Vec<_> = folders.iter().map(String::as_str).chain(["config"]).collect();
    let (rules, cases) = (yaml_in(&folders), yaml_in(&["tests/cases"]));
    assert!(rules.len() >= 7 && cases.len() >= 5, "{rules:?} {cases:?}");
    assert_eq!(wrong("rules", &rules), "");
    assert_eq!(wrong("cases", &cases), "");
}

/// The same rules are good and bad for both, key by key.
#[test]
fn the_schema_refuses_what_the_program_refuses() {
    let limit = |fields: &str| format!("domain: d\ndescriptors:\n  - {{key: a, rate_limit: {{{fields}}}}}\n");
    let valued = |value: &str| {
        format!(
            "domain: d\ndescriptors: [{{key: a, value: {value}, rate_limit: {{unit: day, requests_per_unit: 1}}}}]"
        )
    };
    let prefixed = |prefix: &str| {
        format!(
            "domain: d\ndescriptors: [{{key: a, prefix: {prefix}, rate_limit: {{unit: day, requests_per_unit: 1}}}}]"
        )
    };
    let action = |action: &str| format!("domain: d\nrate_limits: [{{actions: [{{{action}}}]}}]\n");
    let rules = [
        (limit("unit: minute, requests_per_unit: 5"), true),
        (limit("unit: HOUR, requests_per_unit: 5, unit_multiplier: 2"), true),
        (limit("window: 90s, requests_per_unit: 5, algorithm: token_bucket, burst: 9"), true),
        (limit("unlimited: true"), true),
        (limit("unit: minute, requests_per_unit: 5, candidate: {requests_per_unit: 6}, near: 0.5"), true),
        (limit("unit: minute, requests_per_unit: 5, replaces: [{name: other}], cost: asked"), true),
        (limit("unit: minute, requests_per_unit: 5, sync: leased, on_store_failure: local"), true),
        (valued("{cidr: 10.0.0.0/8}"), true),
        (valued("{in: [a, b]}"), true),
        (valued("{regex: '^a+$'}"), true),
        (valued("{prefix: a}"), false),
        (prefixed("{v4: 24, v6: 64, not_an_address: deny}"), true),
        (prefixed("{v6: 64, nat64: [2001:db8:64::/96, 2001:DB8:122::/48]}"), true),
        (prefixed("{v6: 64, nat64: 2001:db8:64::/96}"), false),
        (prefixed("{v6: 64, nat64: [2001:db8::/33]}"), false),
        (prefixed("{v6: 64, nat64: [10.0.0.0/8]}"), false),
        (prefixed("{v6: 129}"), false),
        (prefixed("{v4: 0}"), false),
        (prefixed("{v5: 1}"), false),
        (prefixed("{not_an_address: deny}"), false),
        (prefixed("{v4: 24, not_an_address: allow}"), false),
        (valued("{in: []}"), false),
        (limit("unit: minutes, requests_per_unit: 5"), false),
        (limit("unit: minute, requests_per_unit: five"), false),
        (limit("unit: minute"), false),
        (limit("requests_per_unit: 5"), false),
        (limit("unit: minute, requests_per_unit: 5, near: 2"), false),
        (limit("unit: minute, requests_per_unit: 5, algorithm: magic"), false),
        (limit("unit: minute, requests_per_unit: 5, candidate: {}"), false),
        (limit("unit: minute, requests_per_unit: 5, limits: 1"), false),
        (action("remote_address: {}"), true),
        (action("masked_remote_address: {v6_prefix_mask_len: 64}"), true),
        (action("request_headers: {header_name: x, descriptor_key: y, skip_if_absent: true}"), true),
        (action("metadata: {descriptor_key: k, metadata_key: {key: n, path: [{key: p}]}}"), true),
        (
            action(
                "header_value_match: {descriptor_value: v, headers: [{name: x, string_match: {prefix: p}}]}",
            ),
            true,
        ),
        (action("request_headers: {header_name: x}"), false),
        (action("masked_remote_address: {v6_prefix_mask_len: 129}"), false),
        (action("remote_address: {}, generic_key: {descriptor_value: v}"), false),
        (action("metadata: {descriptor_key: k, metadata_key: {key: n, path: []}}"), false),
    ];
    let names: Vec<_> = (0..rules.len()).map(|number| format!("{number}.yaml")).collect();
    let named: Vec<_> = names.iter().zip(&rules).map(|(name, (text, _))| (&**name, &**text)).collect();
    let (_folder, path) = folder(&named);
    let paths: Vec<_> = names.iter().map(|name| format!("{path}/{name}")).collect();
    let wrong = wrong("rules", &paths);
    for (path, (text, is_good)) in paths.iter().zip(rules) {
        let (code, report, _) = tidegate(&["check", path], &[]);
        assert_eq!(code == 0, is_good, "{text}{report}");
        assert_eq!(!wrong.contains(path), is_good, "{text}{wrong}");
    }
}
