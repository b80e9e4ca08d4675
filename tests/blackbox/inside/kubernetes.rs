//! The filters of `examples/inside/envoy-gateway.yaml` and `istio.yaml`, in a real Envoy with the rules of their ConfigMap.
//! No cluster runs, no Envoy Gateway and no Istio.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{ALICE, EXAMPLE, statuses};
use crate::harness::envoy::{Envoy, Launch, binary};
use crate::harness::redis::Redis;
use crate::kubernetes::documents;

const FILTER: &str =
    "type.googleapis.com/envoy.extensions.filters.http.dynamic_modules.v3.DynamicModuleFilter";

/// The name of the filter.
const NAME: &str = "tidegate";

/// What a pod of the examples has: a library, rules, and a Redis.
struct Pod {
    redis: Redis,
    rules: TempDir,
}

impl Pod {
    fn new(documents: &[Value]) -> Self {
        let rules = tempfile::tempdir().expect("a folder can be made");
        let map = of_kind(documents, "ConfigMap");
        for (name, text) in map["data"].as_object().expect("it has rules") {
            fs::write(rules.path().join(name), text.as_str().expect("a text")).expect("the folder is ours");
        }
        Self { redis: Redis::start(&[]), rules }
    }

    /// An Envoy with this filter, where the routes say so if it is `disabled`.
    fn envoy(&self, program: PathBuf, filter: &Value) -> Envoy {
        let module = std::env::current_exe().expect("a test has a path").with_file_name("libtidegate.so");
        let filter = [
            ("/usr/local/lib/libtidegate.so", &*module.to_string_lossy()),
            ("/etc/tidegate/rules", &*self.rules.path().to_string_lossy()),
            ("redis.redis-system.svc.cluster.local:6379", &*self.redis.url()),
        ]
        .iter()
        .fold(filter.to_string(), |filter, (theirs, own)| {
            assert!(filter.contains(theirs), "{filter} has no {theirs}");
            filter.replace(theirs, own)
        });
        let (before, rest) = EXAMPLE.split_once("- name: tidegate").expect("the example has a filter");
        let (_, after) = rest.split_once("- name: envoy.filters.http.router").expect("and the next one");
        let (routes, other_routes) = after.split_once("- match: { prefix: /login }").expect("and a route");
        let (_, other_routes) =
            other_routes.split_once("- match: { prefix: / }").expect("and one for the rest");
        let config = format!(
            "{before}- {filter}\n                  - name: envoy.filters.http.router{routes}- match: {{ prefix: / }}
                          typed_per_filter_config: {{ THEIRS: {{ \"@type\": type.googleapis.com/envoy.config.route.v3.FilterConfig, config: {{}} }} }}{other_routes}"
        );
        Envoy::launch(Launch { program, ..Launch::default() }, &config.replace("THEIRS", NAME))
    }
}

fn example(name: &str) -> Vec<Value> {
    documents(&Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/inside").join(name))
}

fn of_kind<'a>(documents: &'a [Value], kind: &str) -> &'a Value {
    let mut found = documents.iter().filter(|document| document["kind"] == kind);
    let document = found.next().unwrap_or_else(|| panic!("there is no {kind}"));
    assert!(found.next().is_none(), "there is one {kind}");
    document
}

/// The filter that Envoy Gateway 1.9 makes of its resources (`internal/xds/translator/dynamicmodule.go`). It is disabled;
/// each route of the policy enables it.
fn made_by_envoy_gateway(documents: &[Value]) -> Value {
    let module = &of_kind(documents, "EnvoyProxy")["spec"]["dynamicModules"][0];
    let used = &of_kind(documents, "EnvoyExtensionPolicy")["spec"]["dynamicModule"][0];
    assert_eq!(module["name"], used["name"]);
    assert_eq!(module["source"]["type"], "Local");
    json!({
        "name": NAME,
        "disabled": true,
        "typed_config": {
            "@type": FILTER,
            "dynamic_module_config": {
                "do_not_close": module["doNotClose"],
                "module": {"local": {"filename": module["source"]["local"]["path"]}},
            },
            "filter_name": used["filterName"],
            "filter_config": {
                "@type": "type.googleapis.com/google.protobuf.StringValue",
                "value": used["config"].to_string(),
            },
        },
    })
}

fn limits(pod: &Pod, filter: &Value) {
    for (program, user) in [(binary(), "ann"), (binary().with_file_name("envoy-1.39"), "ben")] {
        let envoy = pod.envoy(program, filter);
        assert_eq!(statuses(&envoy, "/", ALICE, user, 6), [200, 200, 200, 200, 200, 429], "{user}");
        assert!(envoy.stat("dynamicmodulescustom.tidegate_waited") > 0, "somebody asked Redis");
    }
}

#[test]
fn the_filter_that_envoy_gateway_makes_limits() {
    let documents = example("envoy-gateway.yaml");
    limits(&Pod::new(&documents), &made_by_envoy_gateway(&documents));
    // What names another resource.
    let refers = &of_kind(&documents, "Gateway")["spec"]["infrastructure"]["parametersRef"]["name"];
    assert_eq!(refers, &of_kind(&documents, "EnvoyProxy")["metadata"]["name"]);
    let target = &of_kind(&documents, "EnvoyExtensionPolicy")["spec"]["targetRefs"][0]["name"];
    assert_eq!(target, &of_kind(&documents, "Gateway")["metadata"]["name"]);
}

#[test]
fn the_filter_of_istios_patch_limits() {
    let documents = example("istio.yaml");
    let patch = &of_kind(&documents, "EnvoyFilter")["spec"]["configPatches"][0]["patch"];
    limits(&Pod::new(&documents), &patch["value"]);
}
