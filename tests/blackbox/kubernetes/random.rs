//! Random values for the chart, from one seed: whatever does not contradict itself renders, twice the same; follows the schemas
//! of Kubernetes; names only what is there; keeps what cannot change; the program accepts the settings of the pod, and where
//! all that it needs is on this machine, it is started with them and with the files, and answers.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::chart::{chart, render};
use super::started::Pod;
use super::{container, list, members, of_kind, workload};
use crate::envoy_descriptors::random::Random;
use crate::harness::http;
use crate::harness::pki::Authority;
use crate::harness::programs::{python, run, succeed};
use crate::harness::redis::Redis;
use crate::harness::tidegate::binary;

const RELEASES: u64 = 60;
const RULES: &str = "# first\ndomain: shop\ndescriptors:\n  - key: user\n    rate_limit: {unit: hour, requests_per_unit: 3}\n";

/// The value, one time in so many; else the one that stands for nothing.
fn perhaps(random: &mut Random, times: u64, value: Value, nothing: Value) -> Value {
    if random.one_in(times) { value } else { nothing }
}

/// As a Redis of this kind is named.
fn address(kind: &str) -> &'static str {
    match kind {
        "sentinel" => "master,redis-0:26379,redis-1:26379",
        "cluster" => "redis-0:6379,redis-1:6379",
        _ => "redis:6379",
    }
}

/// Where a Redis is: in the clear, or in a Secret.
fn redis(random: &mut Random, kind: &str) -> Value {
    let mut redis = json!({"type": kind, "url": address(kind)});
    if random.one_in(2) {
        redis["url"] = json!("");
        redis["existingSecret"] = json!({"name": random.pick(&["redis", "0123"]), "urlKey": "url"});
    }
    if random.one_in(3) {
        let name = redis["existingSecret"]["name"].as_str().unwrap_or("redis").to_owned();
        redis["existingSecret"]["name"] = json!(name);
        redis["existingSecret"]["authKey"] = json!("auth");
    }
    redis
}

fn store(random: &mut Random, values: &mut Value) {
    let kind = random.pick(&["memory", "redis", "sharded"]);
    let mut store = json!({"type": kind});
    match kind {
        "redis" => {
            let kind = random.pick(&["single", "sentinel", "cluster"]);
            store["redis"] = redis(random, kind);
            if random.one_in(2) {
                let names = ["", "redis-tls"].map(|name| json!(name));
                let [ca, client] = [random.below(2), random.below(2)].map(|index| &names[index as usize]);
                store["redis"]["tls"] = json!({"enabled": true, "caSecret": ca, "clientSecret": client});
            }
        }
        "sharded" => {
            let replicas = 2 + random.below(3);
            values["replicas"] = json!(replicas);
            let addresses: Vec<_> = (0..replicas).map(|number| format!("10.96.0.{}", 30 + number)).collect();
            store["sharded"] = json!({
                "key": random.pick(&["user", "remote_address", "yes"]),
                "coldStart": random.pick(&["deny", "allow"]),
                "grewFrom": perhaps(random, 2, json!(replicas - 1), Value::Null),
                "addresses": perhaps(random, 2, json!(addresses), json!([])),
                "storage": {"size": random.pick(&["1Gi", "500Mi"]), "className": perhaps(random, 2, json!("fast"), Value::Null)},
            });
            values["records"]["onVolume"] = json!(random.one_in(2));
        }
        _ => store["iKnowThatEachReplicaAdmitsN"] = json!(random.one_in(2)),
    }
    let may_grow = kind == "redis" || store["iKnowThatEachReplicaAdmitsN"] == true;
    match random.below(3) {
        0 if may_grow => {
            values["autoscaling"] =
                json!({"enabled": true, "memory": perhaps(random, 2, json!(80), Value::Null)});
        }
        1 if may_grow => values["replicas"] = json!(1 + random.below(4)),
        _ => {}
    }
    if values["records"]["onVolume"] != true && random.one_in(3) {
        values["records"] = json!({"redis": redis(random, "sentinel")});
    }
    values["store"] = store;
}

fn rules(random: &mut Random) -> Value {
    match random.below(4) {
        0 => json!({"files": {"shop.yaml": RULES}}),
        1 => json!({"files": {"shop.yml": RULES, "empty.yaml": "domain: empty", "people.txt": "a \nb\n\n"}}),
        2 => json!({"existingConfigMap": "my-rules"}),
        _ => json!({"xds": {
            "server": "plane:18001",
            "nodeId": random.pick(&["limiter", "a: b", "0123"]),
            "tlsSecret": random.pick(&["", "plane-tls"]),
            "serverName": random.pick(&["", "plane.example.com"]),
            "startWithoutRules": random.one_in(2),
        }}),
    }
}

fn tls_and_operators(random: &mut Random, values: &mut Value) {
    let mut ports: Vec<_> = ["grpc", "http", "debug"].into_iter().filter(|_| random.one_in(2)).collect();
    if random.one_in(3) {
        ports.clear();
    }
    let mut tls = json!({"ports": ports});
    if random.one_in(2) && !ports.is_empty() {
        let names = perhaps(random, 2, json!(["limiter.example.com"]), json!([]));
        tls["certManager"] = json!({"enabled": true, "issuer": {"name": "ours"}, "dnsNames": names});
    } else if !ports.is_empty() {
        tls["existingSecret"] = json!("limiter-tls");
    }
    if ports.contains(&"grpc") && random.one_in(2) {
        tls["clients"] = json!({"caSecret": random.pick(&["clients", "0123"]), "name": random.pick(&["", "envoy.example.com"])});
    }
    let mut operators = json!({"audit": random.one_in(2), "keepKeys": random.one_in(2)});
    operators["existingSecret"] = json!(random.pick(&["", "tidegate-admin"]));
    if ports.contains(&"debug") && random.one_in(2) {
        operators["certificates"] =
            json!({"caSecret": "people", "names": ["ops.example.com", "spiffe://a/b"]});
    }
    values["tls"] = tls;
    values["operators"] = operators;
}

/// Everything that stands in no relation to other values.
fn the_rest(random: &mut Random, values: &mut Value) {
    if random.one_in(2) {
        values["networkPolicy"] = json!({
            "enabled": true,
            "askers": [{"namespaceSelector": {"matchLabels": {"a": "b"}}}],
            "scrapers": perhaps(random, 2, json!([{"podSelector": {}}]), json!([])),
            "operators": perhaps(random, 2, json!([{"ipBlock": {"cidr": "10.0.0.0/8"}}]), json!([])),
        });
    }
    // Nobody may scrape then.
    let is_hidden = values["networkPolicy"]["scrapers"] == json!([]);
    let scrape = random.pick(&["annotations", "serviceMonitor", "podMonitor", "none"]);
    values["metrics"] = json!({
        "port": random.pick(&["9090", "9191"]).parse::<u16>().expect("a port"),
        "scrape": if is_hidden { "none" } else { scrape },
        "labels": {"release": random.pick(&["prometheus", "yes"])},
        "rules": random.one_in(4),
        "dashboard": random.one_in(4),
    });
    values["podDisruptionBudget"] = json!({"enabled": !random.one_in(4)});
    values["topologySpread"] = perhaps(random, 3, json!([]), json!(["kubernetes.io/hostname"]));
    values["drainSeconds"] = json!(random.below(60));
    values["settings"] =
        json!({"LOG_FORMAT": "json", "MAX_ENTRIES": "12", "TRACING_SERVICE_NAME": "yes: \"#\" 'x'"});
    values["mountedSecrets"] = perhaps(random, 3, json!({"webhook": "authority"}), json!({}));
    values["settingsFromSecrets"] =
        perhaps(random, 2, json!({"REDIS_PERSECOND_AUTH": {"secret": "1e3", "key": "on"}}), json!({}));
    values["podLabels"] = perhaps(random, 2, json!({"team": "on"}), json!({}));
    values["podAnnotations"] = perhaps(random, 2, json!({"note": "a: b\n"}), json!({}));
    values["image"] = json!({"tag": random.pick(&["", "1", "latest"]), "pullSecrets": ["registry"]});
    values["serviceAccountName"] = json!(random.pick(&["", "limiter"]));
    values["priorityClassName"] = json!(random.pick(&["", "high"]));
    values["tolerations"] = perhaps(random, 2, json!([{"key": "a", "operator": "Exists"}]), json!([]));
    values["nodeSelector"] = perhaps(random, 2, json!({"disk": "ssd"}), json!({}));
}

fn values(seed: u64) -> Value {
    let mut random = Random(seed);
    let mut values = json!({"records": {}});
    store(&mut random, &mut values);
    values["rules"] = rules(&mut random);
    tls_and_operators(&mut random, &mut values);
    the_rest(&mut random, &mut values);
    if values["store"]["type"] != "sharded" {
        values["service"] = json!({"headless": random.one_in(2)});
    }
    values
}

/// What no upgrade may change, because the cluster refuses that or would start from nothing.
fn assert_it_keeps_what_cannot_change(made: &[Value], values: &Value) {
    let labels = json!({"app.kubernetes.io/name": "tidegate", "app.kubernetes.io/instance": "tidegate"});
    let workload = workload(made);
    assert_eq!(workload["metadata"]["name"], "tidegate");
    assert_eq!(workload["spec"]["selector"], json!({"matchLabels": labels}));
    assert!(of_kind(made, "Service").iter().any(|service| service["metadata"]["name"] == "tidegate"));
    if workload["kind"] == "StatefulSet" {
        let storage = &values["store"]["sharded"]["storage"];
        let mut spec = json!({"accessModes": ["ReadWriteOncePod"], "resources": {"requests": {"storage": storage["size"]}}});
        if storage["className"].is_string() {
            spec["storageClassName"] = storage["className"].clone();
        }
        assert_eq!(
            workload["spec"]["volumeClaimTemplates"],
            json!([{"metadata": {"name": "state"}, "spec": spec}])
        );
        assert_eq!(workload["spec"]["serviceName"], "tidegate");
        assert_eq!(workload["spec"]["podManagementPolicy"], "Parallel");
    }
}

/// Whatever one document names of another one is there.
fn assert_what_it_names_is_there(made: &[Value]) {
    let workload = workload(made);
    let pod = &workload["spec"]["template"];
    let selector = workload["spec"]["selector"]["matchLabels"].as_object().expect("labels");
    let holds = |labels: &Value| selector.iter().all(|(name, value)| &labels[name] == value);
    assert!(holds(&pod["metadata"]["labels"]));
    for constraint in list(&pod["spec"]["topologySpreadConstraints"]) {
        assert_eq!(constraint["labelSelector"]["matchLabels"].as_object(), Some(selector));
    }
    let ports = members(&container(workload)["ports"], "name");
    for probe in ["startupProbe", "readinessProbe", "livenessProbe"] {
        assert!(ports.contains(container(workload)[probe]["httpGet"]["port"].as_str().expect("a name")));
    }
    for service in of_kind(made, "Service") {
        assert!(members(&service["spec"]["ports"], "targetPort").is_subset(&ports), "{service}");
    }
    for policy in of_kind(made, "NetworkPolicy") {
        assert!(holds(&policy["spec"]["podSelector"]["matchLabels"]));
        for rule in list(&policy["spec"]["ingress"]) {
            assert!(!list(&rule["from"]).is_empty(), "everybody is let in: {rule}");
            assert!(members(&rule["ports"], "port").is_subset(&ports), "{rule}");
        }
    }
    for monitor in of_kind(made, "PodMonitor") {
        assert!(members(&monitor["spec"]["podMetricsEndpoints"], "port").is_subset(&ports), "{monitor}");
        assert!(holds(&monitor["spec"]["selector"]["matchLabels"]));
    }
    for monitor in of_kind(made, "ServiceMonitor") {
        let service = of_kind(made, "Service");
        let of_all = service.iter().find(|service| service["metadata"]["name"] == "tidegate").expect("one");
        let named = members(&of_all["spec"]["ports"], "name");
        assert!(members(&monitor["spec"]["endpoints"], "port").is_subset(&named), "{monitor}");
        assert!(holds(&monitor["spec"]["selector"]["matchLabels"]) && holds(&of_all["metadata"]["labels"]));
    }
    let there = members(&pod["spec"]["volumes"], "name");
    let claims = list(&workload["spec"]["volumeClaimTemplates"]).iter();
    let claims = claims.filter_map(|claim| claim["metadata"]["name"].as_str());
    let there: BTreeSet<_> = there.into_iter().chain(claims).collect();
    assert_eq!(members(&container(workload)["volumeMounts"], "name"), there);
    let folders = members(&container(workload)["volumeMounts"], "mountPath");
    let paths = list(&container(workload)["env"]).iter().filter_map(|item| item["value"].as_str());
    for path in paths.filter(|value| value.starts_with('/')) {
        let folder = path.split('/').take(2).collect::<Vec<_>>().join("/");
        assert!(folders.contains(&*folder), "nothing is mounted at {path}");
    }
    for volume in list(&pod["spec"]["volumes"]) {
        let named =
            |kind: &str, name: &Value| of_kind(made, kind).iter().any(|it| &it["metadata"]["name"] == name);
        match volume["name"].as_str() {
            Some("rules") if volume["configMap"]["name"] != "my-rules" => {
                assert!(named("ConfigMap", &volume["configMap"]["name"]), "{volume}");
            }
            Some("tls") if volume["secret"]["secretName"] != "limiter-tls" => {
                let certificate = of_kind(made, "Certificate")[0];
                assert_eq!(certificate["spec"]["secretName"], volume["secret"]["secretName"]);
            }
            _ => {}
        }
    }
}

/// One pod at a time may be evicted; the autoscaler decides alone; nobody is root.
fn assert_it_is_sound(made: &[Value], values: &Value) {
    let workload = workload(made);
    let spec = &workload["spec"]["template"]["spec"];
    for budget in of_kind(made, "PodDisruptionBudget") {
        assert_eq!(budget["spec"]["maxUnavailable"], 1);
        assert!(budget["spec"]["minAvailable"].is_null());
    }
    let scalers = of_kind(made, "HorizontalPodAutoscaler");
    assert_eq!(scalers.is_empty(), workload["spec"]["replicas"].is_u64());
    assert_eq!(scalers.len(), usize::from(values["autoscaling"]["enabled"] == true));
    assert_eq!(spec["securityContext"]["runAsNonRoot"], true);
    assert_eq!(spec["automountServiceAccountToken"], false);
    assert_eq!(
        container(workload)["securityContext"],
        json!({"readOnlyRootFilesystem": true, "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}})
    );
    let drain = values["drainSeconds"].as_u64().expect("a number");
    let writes = if workload["kind"] == "StatefulSet" { 60 } else { 0 };
    assert!(spec["terminationGracePeriodSeconds"].as_u64() > Some(drain + 10 + writes));
}

/// The variables of the container, with a text in place of what is in a Secret, or is the pod's name.
fn variables<'m>(made: &'m [Value], values: &Value) -> Vec<(&'m str, &'m str)> {
    let url = |of: &Value| address(of["redis"]["type"].as_str().unwrap_or_default());
    let items = list(&container(workload(made))["env"]).iter();
    items
        .map(|item| {
            let name = item["name"].as_str().expect("a name");
            let elsewhere = match name {
                "REDIS_URL" => url(&values["store"]),
                "LIMITS_URL" => url(&values["records"]),
                _ => "tidegate-0",
            };
            assert!(item["value"].is_string() != item["valueFrom"].is_object(), "{item}");
            (name, item["value"].as_str().unwrap_or(elsewhere))
        })
        .collect()
}

/// The program has no problem with the settings, and none to warn of.
fn assert_the_program_accepts(made: &[Value], values: &Value) {
    let variables = variables(made, values);
    let names: BTreeSet<_> = variables.iter().map(|(name, _)| *name).collect();
    assert_eq!(names.len(), variables.len(), "{variables:?}");
    let (output, said) =
        run(Command::new(binary()).arg("settings").env_clear().envs(variables.iter().copied()));
    assert!(output.status.success() && output.stderr.is_empty(), "{variables:?}\n{said}");
    for (name, value) in
        variables.iter().filter(|(_, value)| !value.is_empty() && !value.contains("tidegate-0"))
    {
        let line = said.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        let from = line.and_then(|line| line.rsplit(" (").next());
        assert_eq!(from, Some("variable)"), "{name}={value}\n{said}");
    }
}

/// Whether such a pod can be started here: without a control plane, a certificate of Redis or a second Redis; its health is
/// asked in the clear.
fn is_complete_here(values: &Value) -> bool {
    let redis = &values["store"]["redis"];
    values["rules"]["xds"].is_null()
        && values["records"]["redis"].is_null()
        && (redis.is_null() || redis["type"] == "single" && redis["tls"]["enabled"] != true)
        && !list(&values["tls"]["ports"]).contains(&json!("http"))
}

/// The program starts with the variables and the files of the pod, and limits.
fn assert_it_starts(seed: u64, made: &[Value], values: &Value, redis: &Redis) {
    let names = list(&container(workload(made))["env"]).iter();
    let reads_a_secret = |name: &str| names.clone().any(|item| item["name"] == name);
    let mut pod = Pod::of(made);
    for (name, value) in [("REDIS_URL", redis.url()), ("REDIS_AUTH", String::new())] {
        if reads_a_secret(name) {
            pod = pod.env(name, &value);
        }
    }
    // A busy machine is not what is tested.
    let pod = pod.env("REDIS_TIMEOUT", "10s");
    pod.secrets(&Authority::new("everybody"), RULES);
    let limiter = pod.start();
    let body = json!({"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": format!("of {seed}")}]}]});
    let mut client = http::Client::new(limiter.ports().http);
    // A new volume is taken for one that was lost.
    let is_cold = values["store"]["sharded"]["coldStart"] == "deny";
    let expected: &[u16] = if is_cold { &[429] } else { &[200, 200, 200, 429] };
    for status in expected {
        let answer = client.send("POST", "/json", &[], &body.to_string()).expect("an answer");
        assert_eq!(answer.status, *status, "seed {seed}: {}\n{:#?}", answer.body, limiter.output());
    }
}

/// Renders one release, twice. Where its manifest is.
fn try_release(seed: u64, folder: &Path) -> PathBuf {
    let values = values(seed);
    let file = folder.join(format!("{seed}.values.yaml"));
    fs::write(&file, values.to_string()).expect("ours");
    let made = render(&chart(), &[&file]).unwrap_or_else(|said| panic!("seed {seed}: {values}\n{said}"));
    assert_eq!(render(&chart(), &[&file]).as_ref(), Ok(&made), "seed {seed}");
    let path = folder.join(format!("{seed}.yaml"));
    fs::write(&path, made).expect("ours");
    path
}

/// The documents of each of these files, by one process: it takes longer to start than to read them.
fn documents_of_all(paths: &[PathBuf]) -> Vec<Vec<Value>> {
    let read = "import json, sys, yaml; print(json.dumps([[document for document in yaml.load_all(open(path), \
                yaml.CSafeLoader) if document] for path in sys.argv[1:]]))";
    let json = succeed(python().args(["-c", read]).args(paths));
    serde_json::from_str(&json).expect("python writes it")
}

#[test]
fn random_values_make_manifests_that_hold_together() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let paths: Vec<_> = (0..RELEASES).map(|seed| try_release(seed, folder.path())).collect();
    let redis = Redis::start(&[]);
    let mut started = 0;
    for (seed, made) in (0..).zip(documents_of_all(&paths)) {
        let values = values(seed);
        println!("seed {seed}: {values}");
        assert_it_keeps_what_cannot_change(&made, &values);
        assert_what_it_names_is_there(&made);
        assert_it_is_sound(&made, &values);
        assert_the_program_accepts(&made, &values);
        if is_complete_here(&values) {
            assert_it_starts(seed, &made, &values, &redis);
            started += 1;
        }
    }
    assert!(started > 10, "{started}");
    let validate = Path::new(python().get_program()).with_file_name("kubernetes-validate");
    let shown = succeed(Command::new(&validate).arg("--strict").args(&paths));
    let passed = shown.lines().filter(|line| line.contains("INFO") && line.contains("passed")).count();
    assert!(passed as u64 > 3 * RELEASES, "{passed}");
}
