//! `examples/kubernetes`: the manifests follow the schemas of Kubernetes, what they name is there, and Envoy's ring has the
//! pods of the StatefulSet. The modules below: the chart that they are rendered from. No cluster runs.

mod ai_gateway;
mod ai_gateway_answers;
mod chart;
mod cluster;
mod istio;
mod random;
mod refused;
mod started;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::harness::envoy;
use crate::harness::grpc::question;
use crate::harness::programs::{python, run, succeed};
use crate::harness::tidegate::{Setup, binary};

/// Each file of Kubernetes' own kinds, and how many documents it has.
const MANIFESTS: [(&str, usize); 3] = [("tidegate.yaml", 5), ("stateful.yaml", 7), ("autoscaling.yaml", 2)];

fn example(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(path)
}

/// The documents of a YAML file, as PyYAML reads them.
pub fn documents(path: &Path) -> Vec<Value> {
    let read =
        "import json, sys, yaml; print(json.dumps(list(yaml.safe_load_all(open(sys.argv[1]))), default=str))";
    let json = succeed(python().args(["-c", read]).arg(path));
    serde_json::from_str(&json).expect("python writes it")
}

fn manifest(name: &str) -> Vec<Value> {
    documents(&example("kubernetes").join(name))
}

/// The documents of a kind.
fn of_kind<'a>(documents: &'a [Value], kind: &str) -> Vec<&'a Value> {
    documents.iter().filter(|document| document["kind"] == kind).collect()
}

/// The one workload of a manifest.
fn workload(documents: &[Value]) -> &Value {
    let workloads = [of_kind(documents, "Deployment"), of_kind(documents, "StatefulSet")].concat();
    assert_eq!(workloads.len(), 1);
    workloads[0]
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// What this member of each item says.
fn members<'a>(items: &'a Value, member: &str) -> BTreeSet<&'a str> {
    list(items).iter().filter_map(|item| item[member].as_str()).collect()
}

fn container(workload: &Value) -> &Value {
    &workload["spec"]["template"]["spec"]["containers"][0]
}

/// The environment of the workload's container. What is taken from the pod stands as its path.
fn environment(workload: &Value) -> Vec<(&str, &str)> {
    let items = list(&container(workload)["env"]).iter();
    items
        .map(|item| {
            let value = item["value"].as_str().or(item["valueFrom"]["fieldRef"]["fieldPath"].as_str());
            (item["name"].as_str().expect("a name"), value.expect("text"))
        })
        .collect()
}

#[test]
fn the_manifests_follow_kubernetes_schemas() {
    let validate = Path::new(python().get_program()).with_file_name("kubernetes-validate");
    for (name, documents) in MANIFESTS {
        let path = example("kubernetes").join(name);
        let shown = succeed(Command::new(&validate).arg("--strict").arg(path));
        let passed = shown.lines().filter(|line| line.contains("INFO") && line.contains("passed")).count();
        assert_eq!(passed, documents, "{shown}");
    }
}

/// Whatever one document names of another one is there.
#[test]
fn what_a_manifest_names_is_there() {
    for name in ["tidegate.yaml", "stateful.yaml"] {
        let documents = manifest(name);
        let workload = workload(&documents);
        let (spec, pod) = (&workload["spec"], &workload["spec"]["template"]);
        let labels = &pod["metadata"]["labels"];
        assert_eq!(&spec["selector"]["matchLabels"], labels);
        for constraint in list(&pod["spec"]["topologySpreadConstraints"]) {
            assert_eq!(&constraint["labelSelector"]["matchLabels"], labels);
        }
        assert_eq!(&of_kind(&documents, "PodDisruptionBudget")[0]["spec"]["selector"]["matchLabels"], labels);

        let ports = members(&container(workload)["ports"], "name");
        for probe in ["startupProbe", "readinessProbe", "livenessProbe"] {
            let port = &container(workload)[probe]["httpGet"]["port"];
            assert!(ports.contains(port.as_str().expect("by name")), "{name}: {probe}");
        }
        for service in of_kind(&documents, "Service") {
            let targets = members(&service["spec"]["ports"], "targetPort");
            assert!(!targets.is_empty() && targets.is_subset(&ports), "{name}: {service}");
        }

        let maps: BTreeSet<_> = of_kind(&documents, "ConfigMap")
            .into_iter()
            .map(|map| map["metadata"]["name"].as_str().expect("a name"))
            .collect();
        let volumes = &pod["spec"]["volumes"];
        for volume in list(volumes) {
            match volume["configMap"]["name"].as_str() {
                Some(map) => assert!(maps.contains(map), "{volume}"),
                // Made by hand, with a token; the pod starts without.
                None => {
                    assert_eq!(volume["secret"], json!({"secretName": "tidegate-admin", "optional": true}))
                }
            }
        }
        let claims = list(&spec["volumeClaimTemplates"]).iter();
        let claims = claims.filter_map(|claim| claim["metadata"]["name"].as_str());
        let there: BTreeSet<_> = members(volumes, "name").into_iter().chain(claims).collect();
        assert_eq!(members(&container(workload)["volumeMounts"], "name"), there, "{name}");
    }
}

/// Ten seconds for calls under way and sixty for writing counters are bounds of the program.
#[test]
fn a_pod_has_the_time_to_end() {
    for (name, needed) in [("tidegate.yaml", 10), ("stateful.yaml", 70)] {
        let documents = manifest(name);
        let workload = workload(&documents);
        let environment = environment(workload);
        let drain = environment.iter().find(|(name, _)| *name == "DRAIN_GRACE").expect("it is set").1;
        let drain: u64 = drain.trim_end_matches('s').parse().expect("seconds");
        let grace = workload["spec"]["template"]["spec"]["terminationGracePeriodSeconds"].as_u64();
        assert!(grace.expect("it is set") > drain + needed, "{name}");
    }
}

#[test]
fn only_what_shares_its_counters_is_scaled() {
    let mut scaled = 0;
    for (name, _) in MANIFESTS {
        for scaler in of_kind(&manifest(name), "HorizontalPodAutoscaler") {
            assert_eq!(scaler["spec"]["scaleTargetRef"]["kind"], "Deployment", "{name}");
            assert_eq!(scaler["spec"]["scaleTargetRef"]["name"], "tidegate", "{name}");
            scaled += 1;
        }
    }
    assert_eq!(scaled, 2);
    let environment = |name| {
        let documents = manifest(name);
        let pairs = environment(workload(&documents)).into_iter();
        pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect::<Vec<_>>()
    };
    assert!(environment("tidegate.yaml").iter().any(|(name, _)| name == "REDIS_URL"));
    assert!(environment("stateful.yaml").iter().all(|(name, _)| !name.starts_with("REDIS_")));
}

/// The program takes the settings of the StatefulSet, and has the ports that the manifest names.
#[test]
fn the_stateful_set_starts_as_it_is_configured() {
    let documents = manifest("stateful.yaml");
    let workload = workload(&documents);
    let rules = of_kind(&documents, "ConfigMap")[0]["data"]["shop.yaml"].as_str().expect("rules").to_owned();
    assert_eq!(rules, fs::read_to_string(example("sharded/rules/shop.yaml")).expect("it is there"));

    let mut setup = Setup::new().rules("shop.yaml", &rules).keeping_counters();
    for (name, value) in environment(workload) {
        // Paths of a container.
        if !value.starts_with('/') {
            setup = setup.env(name, value);
        }
    }
    let mut limiter = setup.env("DRAIN_GRACE", "0s").start();
    assert_eq!(limiter.lines_with("has no effect"), 0, "{:#?}", limiter.output());
    assert_eq!(limiter.lines_with("requests with different values"), 0, "{:#?}", limiter.output());
    limiter.signal(rustix::process::Signal::TERM);
    assert_eq!(limiter.exit_code(), 0);

    let defaults = succeed(Command::new(binary()).arg("settings").env_clear());
    for port in list(&container(workload)["ports"]) {
        let number = port["containerPort"].to_string();
        assert!(defaults.contains(&number), "{number}: {defaults}");
    }
    let mut check = Command::new(binary());
    succeed(check.args(["check", "--shard-key", "user"]).arg(example("sharded/rules")).env_clear());
}

#[test]
fn envoys_ring_has_the_pods_of_the_stateful_set() {
    let documents = manifest("stateful.yaml");
    let set = workload(&documents);
    let replicas = set["spec"]["replicas"].as_u64().expect("it is set");
    assert!(environment(set).contains(&("SHARD_MEMBERS", &*replicas.to_string())));

    let path = example("kubernetes/stateful-envoy.yaml");
    let cluster = &documents_of_envoy(&path)[0];
    let points = cluster["ring_hash_lb_config"]["minimum_ring_size"].as_u64();
    assert_eq!(points, Some(1024 * replicas));
    let endpoints = list(&cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]).iter();
    let ring: Vec<_> = endpoints
        .map(|endpoint| {
            let name = &endpoint["metadata"]["filter_metadata"]["envoy.lb"]["hash_key"];
            let address = &endpoint["endpoint"]["address"]["socket_address"];
            assert_eq!(address["port_value"], 8081);
            (name.as_str().expect("a name"), address["address"].as_str().expect("an address"))
        })
        .collect();
    let services = of_kind(&documents, "Service").into_iter();
    let services: Vec<_> = services
        .filter_map(|service| {
            let pod = service["spec"]["selector"]["statefulset.kubernetes.io/pod-name"].as_str()?;
            Some((pod, service["spec"]["clusterIP"].as_str().expect("an address")))
        })
        .collect();
    assert_eq!(ring, services);
    let pods: Vec<_> = (0..replicas).map(|number| format!("tidegate-{number}")).collect();
    assert_eq!(services.iter().map(|(pod, _)| *pod).collect::<Vec<_>>(), pods);

    let tested = documents_of_envoy(&example("sharded/envoy.yaml"));
    let tested = tested.iter().find(|cluster| cluster["name"] == "tidegate").expect("the cluster");
    assert_eq!(without_addresses(cluster), without_addresses(tested), "the one that other tests try");
    let (output, said) = run(Command::new(envoy::binary()).args(["--mode", "validate", "-c"]).arg(&path));
    assert!(output.status.success(), "{said}");
}

/// The clusters of a configuration of Envoy.
fn documents_of_envoy(path: &Path) -> Vec<Value> {
    list(&documents(path)[0]["static_resources"]["clusters"]).to_vec()
}

fn without_addresses(cluster: &Value) -> Value {
    let mut cluster = cluster.clone();
    cluster["type"] = "STATIC".into();
    let endpoints = &mut cluster["load_assignment"]["endpoints"][0]["lb_endpoints"];
    for endpoint in endpoints.as_array_mut().expect("endpoints") {
        endpoint["endpoint"] = Value::Null;
    }
    cluster
}

/// The limits of tidegate.yaml, as cases.
#[test]
fn the_rules_of_the_deployment_do_what_they_say() {
    let documents = manifest("tidegate.yaml");
    let rules = of_kind(&documents, "ConfigMap")[0]["data"]["shop.yaml"].as_str().expect("rules").to_owned();
    let folder = tempfile::tempdir().expect("a folder can be made");
    let cases = folder.path().join("cases.yaml");
    fs::create_dir(folder.path().join("rules")).expect("ours");
    fs::write(folder.path().join("rules/shop.yaml"), rules).expect("ours");
    let steps = "
rules: rules
cases:
  - name: a hundred requests a minute of each address
    steps:
      - {every: 100ms x 100, request: {remote_address: 10.0.0.1}, expect: OK}
      - {request: {remote_address: 10.0.0.1}, expect: OVER_LIMIT}
      - {request: {remote_address: 10.0.0.2}, expect: OK}
      - {at: 62s, request: {remote_address: 10.0.0.1}, expect: OK}
";
    fs::write(&cases, steps).expect("ours");
    succeed(Command::new(binary()).arg("test").arg(cases).env_clear());
}

/// Each metric that replicas are scaled by is made of one that the program has, by a query that Prometheus can read.
#[test]
fn replicas_are_scaled_by_metrics_that_there_are() {
    let documents = manifest("autoscaling.yaml");
    let folder = tempfile::tempdir().expect("a folder can be made");
    let config = folder.path().join("config.yaml");
    let text = of_kind(&documents, "ConfigMap")[0]["data"]["config.yaml"].as_str().expect("a configuration");
    fs::write(&config, text).expect("ours");
    let rules = documents_at(&config, "rules");

    let limiter = Setup::new().rules("shop.yaml", "domain: shop\ndescriptors: [{key: user}]\n").start();
    limiter.client().ask(question("shop", &[&[("user", "alice")]]));
    let page = crate::harness::http::Client::new(limiter.ports().metrics).get("/metrics").body;
    let mut recorded = "groups:\n- name: autoscaling\n  rules:\n".to_owned();
    for rule in &rules {
        let series = rule["seriesQuery"].as_str().and_then(|query| query.split('{').next()).expect("a query");
        assert!(page.contains(&format!("\n{series}{{")), "{series} is no metric");
        let query = rule["metricsQuery"].as_str().expect("a query");
        let query =
            query.replace("<<.Series>>", series).replace("<<.LabelMatchers>>", "namespace=\"limits\"");
        let query = query.replace("<<.GroupBy>>", "pod");
        let name = rule["name"]["as"].as_str().expect("a name");
        recorded += &format!("  - {{record: {name}, expr: '{query}'}}\n");
    }
    assert!(page.contains("grpc_method=\"ShouldRateLimit\""));
    fs::write(&config, recorded).expect("ours");
    succeed(Command::new("promtool").args(["check", "rules"]).arg(&config));

    let scaler = of_kind(&documents, "HorizontalPodAutoscaler")[0];
    let metrics = list(&scaler["spec"]["metrics"]).iter();
    let by: BTreeSet<_> = metrics.filter_map(|metric| metric["pods"]["metric"]["name"].as_str()).collect();
    assert_eq!(by, rules.iter().filter_map(|rule| rule["name"]["as"].as_str()).collect());
}

fn documents_at(path: &Path, member: &str) -> Vec<Value> {
    list(&documents(path)[0][member]).to_vec()
}

/// The lines that name the limiter in docs/kubernetes.md are those of the manifests.
#[test]
fn the_page_shows_the_lines_of_the_manifests() {
    let page = fs::read_to_string(example("../docs/kubernetes.md")).expect("it is there");
    let blocks: Vec<_> =
        page.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert!(blocks.len() > 5);
    for (begins, name) in [("rate_limit_service:", "istio.yaml"), ("provider:", "envoy-gateway.yaml")] {
        let block = blocks.iter().find(|block| block.starts_with(begins)).expect("it is shown");
        let manifest = fs::read_to_string(example("kubernetes").join(name)).expect("it is there");
        for line in block.lines().map(|line| line.split(" #").next().unwrap_or(line).trim()) {
            let line = line.replace("REGISTRY/tidegate:0.1.0", "tidegate:latest");
            assert!(manifest.lines().any(|of_manifest| of_manifest.trim() == line), "{name}: {line}");
        }
    }
}
