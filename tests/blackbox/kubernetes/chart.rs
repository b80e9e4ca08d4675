//! The chart (`packaging/helm`), rendered by the real helm: it packs, its schema describes it, and the manifests, alerts and
//! values files that come from it are what they say.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::{documents, environment, example, list, of_kind, workload};
use crate::harness::programs::{installed, run, succeed};
use crate::switching::ENVOY_GATEWAY;

pub fn chart() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/helm/tidegate")
}

/// Values with rules, which every release needs, and nothing else.
pub fn with_rules() -> Value {
    json!({"rules": {"files": {"shop.yaml": "domain: shop\ndescriptors: [{key: user}]\n"}}})
}

/// What `helm template` makes of a chart with values, one over the other; or what it complains of.
pub fn render(chart: &Path, values: &[&Path]) -> Result<String, String> {
    let mut helm = installed("helm");
    helm.args(["template", "tidegate"]).arg(chart).args([
        "--kube-version",
        "1.31.0",
        "--namespace",
        "limits",
    ]);
    for file in values {
        helm.arg("--values").arg(file);
    }
    let (output, said) = run(&mut helm);
    if output.status.success() { Ok(String::from_utf8_lossy(&output.stdout).into_owned()) } else { Err(said) }
}

/// The documents that the chart makes of these values.
pub fn rendered(values: &Value) -> Vec<Value> {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let file = folder.path().join("values.yaml");
    fs::write(&file, values.to_string()).expect("ours");
    let text = render(&chart(), &[&file]).unwrap_or_else(|said| panic!("{values}: {said}"));
    fs::write(&file, text).expect("ours");
    documents(&file)
}

#[test]
fn it_is_well_formed_and_a_packed_one_renders_the_same() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    succeed(installed("helm").args(["lint", "--strict", "--kube-version", "1.31.0"]).arg(chart()));
    succeed(installed("helm").arg("package").arg(chart()).arg("--destination").arg(folder.path()));
    let values = folder.path().join("values.yaml");
    let all = json!({"metrics": {"rules": true, "dashboard": true, "scrape": "podMonitor"}});
    fs::write(&values, all.to_string()).expect("ours");
    let rules = folder.path().join("rules.yaml");
    fs::write(&rules, with_rules().to_string()).expect("ours");
    let packed = folder.path().join(concat!("tidegate-", env!("CARGO_PKG_VERSION"), ".tgz"));
    let text = render(&packed, &[&values, &rules]).expect("good values");
    assert_eq!(text, render(&chart(), &[&values, &rules]).expect("good values"));
    assert!(text.contains("kind: PrometheusRule") && text.contains("tidegate.json: |"));
    assert!(text.contains(concat!("image: \"tidegate:", env!("CARGO_PKG_VERSION"), "\"")));
}

/// Each member of `values` is a property of `schema` with a sentence, and the other way round.
fn described(path: &str, values: &Value, schema: &Value) {
    let sentence = schema["description"].as_str().unwrap_or_else(|| panic!("{path} has no sentence"));
    assert!(sentence.ends_with('.') && sentence.len() > 10, "{path}: {sentence}");
    let Some(properties) = schema["properties"].as_object() else { return };
    assert_eq!(schema["additionalProperties"], false, "{path}");
    let values = values.as_object().unwrap_or_else(|| panic!("{path} has members"));
    // Two values are those of a chart that has this one as a part.
    let named = |name: &&String| !["enabled", "global"].contains(&name.as_str()) || !path.is_empty();
    assert!(properties.keys().filter(named).eq(values.keys()), "{path}: {values:?}");
    for (name, property) in properties.iter().filter(|(name, _)| named(name)) {
        described(&format!("{path}.{name}"), &values[name], property);
    }
}

#[test]
fn every_value_has_a_default_and_a_sentence() {
    let schema = fs::read_to_string(chart().join("values.schema.json")).expect("it is there");
    let schema = serde_json::from_str(&schema).expect("JSON");
    described("", &documents(&chart().join("values.yaml"))[0], &schema);
}

#[test]
fn the_example_manifests_are_what_the_chart_renders() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let helm = installed("helm").get_program().to_owned();
    let tools = Path::new(&helm).parent().expect("it is in a folder").display().to_string();
    let path = format!("{tools}:{}", std::env::var("PATH").expect("there is one"));
    succeed(Command::new(example("kubernetes/render")).arg(folder.path()).env("PATH", path));
    for name in ["tidegate.yaml", "stateful.yaml"] {
        let [made, kept] = [folder.path().join(name), example("kubernetes").join(name)];
        let [made, kept] = [made, kept].map(|path| fs::read_to_string(path).expect("it is there"));
        assert_eq!(made, kept, "{name} is not what examples/kubernetes/render writes");
    }
}

#[test]
fn the_alerts_and_the_dashboard_are_those_of_packaging() {
    let mut values = with_rules();
    values["metrics"] = json!({"rules": true, "dashboard": true, "labels": {"release": "prometheus"}});
    let made = rendered(&values);
    let observability = chart().join("../../observability");
    let alerts = of_kind(&made, "PrometheusRule")[0];
    assert_eq!(alerts["metadata"]["labels"]["release"], "prometheus");
    assert_eq!(alerts["spec"], documents(&observability.join("tidegate.rules.yml"))[0]);
    let folder = tempfile::tempdir().expect("a folder can be made");
    let file = folder.path().join("rules.yml");
    fs::write(&file, alerts["spec"].to_string()).expect("ours");
    succeed(Command::new("promtool").args(["check", "rules"]).arg(&file));

    let maps = of_kind(&made, "ConfigMap");
    let map = maps.iter().find(|map| map["metadata"]["labels"]["grafana_dashboard"] == "1").expect("one");
    let dashboard = fs::read_to_string(observability.join("dashboard.json")).expect("it is there");
    assert_eq!(map["data"]["tidegate.json"], dashboard);
}

/// The documents of a values file of the chart, with a Redis.
fn of_a_values_file(name: &str) -> Vec<Value> {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let redis = folder.path().join("redis.yaml");
    fs::write(&redis, json!({"store": {"redis": {"url": "redis:6379"}}}).to_string()).expect("ours");
    let text = render(&chart(), &[&chart().join(name), &redis]).expect("good values");
    fs::write(&redis, text).expect("ours");
    documents(&redis)
}

/// The names and numbers are fixed in Envoy AI Gateway (docs/kubernetes.md says where).
#[test]
fn the_values_for_ai_gateway_have_its_names() {
    let made = of_a_values_file("values-ai-gateway.yaml");
    assert_eq!(workload(&made)["metadata"]["name"], "envoy-ai-gateway-ratelimit");
    let service = of_kind(&made, "Service")[0];
    assert_eq!(service["metadata"]["name"], "envoy-ai-gateway-ratelimit");
    assert!(list(&service["spec"]["ports"]).iter().any(|port| port["port"] == 8081));
    let environment = environment(workload(&made));
    for expected in [
        ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
        ("CONFIG_GRPC_XDS_NODE_ID", "envoy-ai-gateway-ratelimit"),
        ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true"),
    ] {
        assert!(environment.contains(&expected), "{expected:?} {environment:?}");
    }
    let server = environment.iter().find(|(name, _)| *name == "CONFIG_GRPC_XDS_SERVER_URL").expect("set").1;
    assert!(server.starts_with("ai-gateway-controller.") && server.ends_with(":18002"), "{server}");
}

/// As Envoy Gateway starts its own limiter, and found by the Service that it makes for that one.
#[test]
fn the_values_for_envoy_gateway_are_what_it_sets_itself() {
    let made = of_a_values_file("values-envoy-gateway.yaml");
    let environment = environment(workload(&made));
    let sets = |name: &str| {
        let line = ENVOY_GATEWAY.lines().filter_map(|line| line.trim().split_once('='));
        line.into_iter().find(|(set, _)| *set == name).unwrap_or_else(|| panic!("{name} is not set")).1
    };
    for name in [
        "CONFIG_TYPE",
        "CONFIG_GRPC_XDS_SERVER_URL",
        "CONFIG_GRPC_XDS_NODE_ID",
        "CONFIG_GRPC_XDS_SERVER_USE_TLS",
        "GRPC_SERVER_USE_TLS",
        "FORCE_START_WITHOUT_INITIAL_CONFIG",
        "PROMETHEUS_ADDR",
    ] {
        assert!(environment.contains(&(name, sets(name))), "{name}: {environment:?}");
    }
    for name in
        ["CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "GRPC_SERVER_TLS_KEY"]
    {
        let set = environment.iter().find(|(set, _)| *set == name).expect("set").1;
        assert_eq!(Path::new(set).file_name(), Path::new(sets(name)).file_name(), "{name}");
    }
    let labels = &workload(&made)["spec"]["template"]["metadata"]["labels"];
    for (label, value) in [
        ("app.kubernetes.io/name", "envoy-ratelimit"),
        ("app.kubernetes.io/component", "ratelimit"),
        ("app.kubernetes.io/managed-by", "envoy-gateway"),
    ] {
        assert_eq!(labels[label], value);
    }
    let volumes = &workload(&made)["spec"]["template"]["spec"]["volumes"];
    assert!(!list(volumes).is_empty());
    assert!(list(volumes).iter().all(|volume| volume["secret"]["secretName"] == "envoy-rate-limit"));
}

/// What helm says after an installation with these values.
fn notes(values: &Value) -> String {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let copy = folder.path().join("tidegate");
    succeed(Command::new("cp").arg("-rL").arg(chart()).arg(&copy));
    // `helm template` shows manifests alone, so the notes become one.
    let notes = fs::read_to_string(copy.join("templates/NOTES.txt")).expect("it is there");
    let shown = format!(
        "{{{{ define \"notes\" }}}}{notes}{{{{ end }}}}notes: {{{{ include \"notes\" . | toJson }}}}"
    );
    fs::write(copy.join("templates/notes.yaml"), shown).expect("ours");
    let file = folder.path().join("values.yaml");
    fs::write(&file, values.to_string()).expect("ours");
    fs::write(&file, render(&copy, &[&file]).expect("good values")).expect("ours");
    let made = documents(&file);
    let notes = made.iter().find_map(|document| document["notes"].as_str());
    notes.expect("they are there").to_owned()
}

#[test]
fn the_notes_say_what_to_type_next() {
    let said = notes(&with_rules());
    assert!(said.contains("kubectl --namespace limits rollout status deployment/tidegate\n"), "{said}");
    assert!(said.contains("Counters are in the memory of one pod: a restart sets them to zero."), "{said}");
    assert!(!said.contains("token"), "{said}");
    let mut values = with_rules();
    values["operators"] = json!({"existingSecret": "admin"});
    values["store"] = json!({"type": "sharded"});
    let said = notes(&values);
    assert!(
        said.contains("kubectl --namespace limits create secret generic admin --from-literal=token="),
        "{said}"
    );
    assert!(
        said.contains("kubectl --namespace limits exec statefulset/tidegate -- tidegate exception list"),
        "{said}"
    );
    assert!(said.contains("get service --selector app.kubernetes.io/instance=tidegate"), "{said}");
}
