//! Values that contradict each other: each fails with a sentence that names the value and says what to change.

use std::collections::BTreeSet;
use std::fs;

use serde_json::{Value, json};

use crate::commands::tidegate;

use super::chart::{chart, render, with_rules};

/// Values over rules, and a part of the sentence that refuses them.
const REFUSED: &[(&str, &str)] = &[
    ("rules: {existingConfigMap: a}", "rules.files and rules.existingConfigMap: all are set (expected one"),
    ("rules: {xds: {server: 'a:1'}}", "rules.files and rules.xds.server: all are set (expected one"),
    ("rules: {xds: {tlsSecret: a}}", "rules.xds: has no effect without rules.xds.server (expected HOST:PORT"),
    (
        "replicas: 3",
        "replicas: with store.type memory 3 replicas admit 3 times N (expected 1, or store.type redis",
    ),
    ("autoscaling: {enabled: true}", "autoscaling.enabled: with store.type memory each replica counts alone"),
    (
        "store: {redis: {url: 'a:1'}}",
        "store.redis: has no effect with store.type memory (expected store.type redis",
    ),
    ("store: {redis: {type: cluster}}", "store.redis: has no effect with store.type memory"),
    ("store: {type: redis}", "store.redis.url: is empty (expected HOST:PORT, or store.redis.existingSecret"),
    (
        "store: {type: redis, redis: {url: 'a:1', existingSecret: {name: a, urlKey: b}}}",
        "store.redis.url and store.redis.existingSecret.urlKey: both are set (expected one",
    ),
    (
        "store: {type: redis, redis: {url: 'redis://:pw@a:1'}}",
        "store.redis.url: holds a password, which everybody",
    ),
    (
        "store: {type: redis, redis: {url: 'a:1', existingSecret: {name: a}}}",
        "store.redis.existingSecret.name: no key of it is read (expected urlKey or authKey)",
    ),
    (
        "store: {type: redis, redis: {url: 'a:1', existingSecret: {authKey: a}}}",
        "store.redis.existingSecret: has keys, but no Secret (expected its name)",
    ),
    (
        "store: {type: redis, redis: {url: 'a:1', existingSecret: {name: a, sentinelAuthKey: a}}}",
        "store.redis.existingSecret.sentinelAuthKey: there are no sentinels (expected store.redis.type sentinel)",
    ),
    (
        "store: {type: redis, redis: {url: 'a:1', tls: {caSecret: a}}}",
        "store.redis.tls: the connection is in clear text (expected store.redis.tls.enabled: true",
    ),
    (
        "{store: {type: sharded}, autoscaling: {enabled: true}}",
        "autoscaling.enabled: another number of pods moves users between them",
    ),
    (
        "store: {type: sharded, sharded: {addresses: [10.0.0.1]}}",
        "store.sharded.addresses: has 1 (expected 3, one for each pod, or none)",
    ),
    (
        "{replicas: 2, store: {type: sharded, sharded: {addresses: [10.0.0.1, 10.0.0.1]}}}",
        "store.sharded.addresses: names one twice (expected another one",
    ),
    (
        "store: {type: sharded, sharded: {grewFrom: 3}}",
        "store.sharded.grewFrom: is 3, with 3 replicas (expected fewer",
    ),
    (
        "{store: {type: sharded}, service: {headless: false}}",
        "service.headless: the pods of a StatefulSet have no names",
    ),
    (
        "store: {sharded: {grewFrom: 3}}",
        "store.sharded: has no effect with store.type memory (expected store.type sharded",
    ),
    (
        "{replicas: 2, store: {type: redis, redis: {url: 'a:1'}}, autoscaling: {enabled: true}}",
        "replicas: the autoscaler decides the number (expected null, and autoscaling.minReplicas)",
    ),
    (
        "autoscaling: {enabled: true, minReplicas: 7}",
        "autoscaling.minReplicas: is 7, and maxReplicas is 6 (expected no more",
    ),
    (
        "autoscaling: {enabled: true, cpu: null}",
        "autoscaling: there is nothing to scale by (expected cpu, memory",
    ),
    (
        "{autoscaling: {enabled: true, memory: 80}, resources: {requests: {memory: null}}}",
        "autoscaling.memory: is a share of resources.requests.memory, which is not set (expected both)",
    ),
    (
        "operators: {existingSecret: a, createSecret: true}",
        "operators.existingSecret and operators.createSecret: both are set (expected one",
    ),
    (
        "operators: {createSecret: true}",
        "kubectl --namespace limits create secret generic tidegate-admin --from-literal=token=\"$(openssl rand -hex 32)\"",
    ),
    ("operators: {createSecret: true}", "operators.createSecret: no cluster can be looked into"),
    (
        "operators: {certificates: {names: [a]}}",
        "operators.certificates: caSecret and names belong together (expected both)",
    ),
    (
        "operators: {certificates: {caSecret: a, names: [a]}}",
        "operators.certificates: the debug port speaks no TLS (expected debug among tls.ports)",
    ),
    (
        "tls: {ports: [grpc], existingSecret: a, certManager: {enabled: true, issuer: {name: a}}}",
        "tls.existingSecret and tls.certManager.enabled: both are set (expected one",
    ),
    (
        "tls: {ports: [http]}",
        "tls.ports: there is no certificate (expected tls.existingSecret or tls.certManager)",
    ),
    (
        "tls: {existingSecret: a}",
        "tls.ports: no port uses the certificate (expected some of grpc, http, debug)",
    ),
    (
        "tls: {ports: [grpc], certManager: {enabled: true}}",
        "tls.certManager.issuer.name: is empty (expected the name of an Issuer)",
    ),
    (
        "tls: {clients: {name: a}}",
        "tls.clients.name: would not be checked (expected tls.clients.caSecret too)",
    ),
    (
        "tls: {clients: {caSecret: a}}",
        "tls.clients: the gRPC port speaks no TLS (expected grpc among tls.ports)",
    ),
    (
        "records: {redis: {existingSecret: {name: a, authKey: a}}}",
        "records.redis.url: is empty (expected HOST:PORT",
    ),
    (
        "{store: {type: sharded}, records: {redis: {url: 'a:1'}, onVolume: true}}",
        "records.redis and records.onVolume: both are set (expected one",
    ),
    ("records: {onVolume: true}", "records.onVolume: there is no volume with store.type memory (expected"),
    (
        "networkPolicy: {enabled: true}",
        "networkPolicy.askers: is empty, so nobody could ask (expected the peers",
    ),
    (
        "networkPolicy: {scrapers: [{podSelector: {}}]}",
        "networkPolicy: has no effect (expected networkPolicy.enabled",
    ),
    (
        "networkPolicy: {enabled: true, askers: [{podSelector: {}}]}",
        "networkPolicy.scrapers: is empty, so nobody could scrape (expected the peers where Prometheus is",
    ),
    ("metrics: {port: 8080}", "metrics.port: 8080 is another port of the pod (expected a free one"),
    ("mountedSecrets: {tls: a}", "mountedSecrets.tls: something else is at /tls (expected another folder)"),
    (
        "image: {tag: a, digest: 'sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef'}",
        "image.tag and image.digest: both are set (expected one",
    ),
    ("rules: {xds: {nodeId: a}}", "rules.xds: has no effect without rules.xds.server (expected HOST:PORT"),
    (
        "settings: {REDIS_PERSECOND_URL: 'redis://:pw@a:1'}",
        "settings.REDIS_PERSECOND_URL: is a secret, which everybody who may read pods would see (expected settingsFromSecrets",
    ),
    (
        "settings: {HOST: 127.0.0.1}",
        "settings.HOST: is made from another value (expected none, a pod is asked over the network)",
    ),
    (
        "podLabels: {app.kubernetes.io/name: a}",
        "podLabels.app.kubernetes.io/name: pods are found by it (expected another label, or nameOverride)",
    ),
    ("settings: {MAX_ENTRY: '12'}", "settings.MAX_ENTRY: is no setting (expected one of docs/settings.md)"),
    (
        "store: {type: redis, redis: {type: sentinel, url: 'redis-0:26379,redis-1:26379'}}",
        "store.redis.url: is redis-0:26379,redis-1:26379, without the name of the master or without a sentinel (expected MASTER",
    ),
    (
        "records: {redis: {type: sentinel, url: master}}",
        "records.redis.url: is master, without the name of the master or without a sentinel (expected MASTER",
    ),
    ("autoscaling: {minReplicas: 3}", "autoscaling: has no effect (expected autoscaling.enabled: true"),
    ("settings: {REDIS_URL: a}", "settings.REDIS_URL: is made from another value (expected store.redis.url)"),
    (
        "settingsFromSecrets: {REDIS_AUTH: {secret: a, key: a}}",
        "settingsFromSecrets.REDIS_AUTH: is made from another value (expected store.redis.existingSecret.authKey)",
    ),
    (
        "settings: {EVENTS_WEBHOOK_SECRET: a}",
        "settings.EVENTS_WEBHOOK_SECRET: is a secret, which everybody who may read pods would see (expected settingsFromSecrets",
    ),
    (
        "{settings: {EVENTS_WEBHOOK_URL: a}, settingsFromSecrets: {EVENTS_WEBHOOK_URL: {secret: a, key: a}}}",
        "settings.EVENTS_WEBHOOK_URL and settingsFromSecrets.EVENTS_WEBHOOK_URL: both are set (expected one",
    ),
    // Not contradictions, but what the schema refuses.
    ("store: {type: memcache}", "at '/store/type': value must be one of 'memory', 'redis', 'sharded'"),
    ("replicaCount: 2", "additional properties 'replicaCount' not allowed"),
    ("resources: {limits: {memory: 512Mb}}", "at '/resources/limits/memory': '512Mb' does not match pattern"),
    ("resources: {limit: {memory: 1Gi}}", "additional properties 'limit' not allowed"),
    ("settings: {MAX_ENTRIES: 12}", "at '/settings/MAX_ENTRIES': got number, want string"),
];

/// The same without rules.
const REFUSED_ALONE: &[(&str, &str)] = &[
    ("{}", "rules: there are none (expected rules.files, such as `--set-file"),
    ("rules: {files: {a.txt: ''}}", "rules.files: no name ends with .yaml or .yml (expected"),
];

/// Everything that helm says of some values with others over them, which it has to refuse.
fn complaint(below: &Value, values: &str) -> String {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let [rules, over] = ["rules.yaml", "over.yaml"].map(|name| folder.path().join(name));
    fs::write(&rules, below.to_string()).expect("ours");
    fs::write(&over, values).expect("ours");
    render(&chart(), &[&rules, &over]).expect_err(values)
}

#[test]
fn values_that_contradict_each_other_are_refused_with_a_sentence() {
    for (below, refused) in [(with_rules(), REFUSED), (json!({}), REFUSED_ALONE)] {
        for (values, sentence) in refused {
            let said = complaint(&below, values);
            assert!(said.contains(sentence), "{values}: {said}");
        }
    }
}

#[test]
fn all_contradictions_are_reported_at_once() {
    let said = complaint(&with_rules(), "{replicas: 2, tls: {ports: [grpc]}, settings: {PORT: '1'}}");
    let [first, second, third] = ["replicas: with", "tls.ports: there", "settings.PORT: is"]
        .map(|part| said.find(part).unwrap_or_else(|| panic!("{part}: {said}")));
    assert!(first < second && second < third, "{said}");
}

/// The settings that other values of the chart make.
fn settings_of_values() -> BTreeSet<String> {
    let checks = fs::read_to_string(chart().join("templates/_check.tpl")).expect("it is there");
    let list = checks.split("define \"tidegate.settings.values\"").nth(1).expect("the list");
    let names = list.lines().filter_map(|line| line.split_once(": ")).map(|(name, _)| name.to_owned());
    names.collect()
}

/// A setting that a template makes cannot be made by `settings` too; and each that is refused there is one of the program.
#[test]
fn the_settings_that_are_refused_are_those_that_the_templates_make() {
    let refused = settings_of_values();
    let environment = fs::read_to_string(chart().join("templates/_environment.tpl")).expect("it is there");
    let parts = environment.split(|letter: char| !(letter.is_ascii_uppercase() || letter == '_'));
    let made: BTreeSet<_> = parts.filter(|part| part.contains('_') && part.len() > 4).collect();
    assert!(made.len() > 30, "{made:?}");
    // What is completed by the name of a port, and a value.
    for name in made.iter().filter(|name| !name.starts_with('_') && **name != "GRPC_XDS_SOTW") {
        assert!(refused.contains(*name), "settings.{name} would make it twice");
    }
    let (_, known, _) = tidegate(&["settings"], &[]);
    for name in refused {
        let is_known = known.lines().any(|line| line.starts_with(&format!("{name}=")));
        assert!(is_known, "{name}");
    }
}

/// No sentence of the chart is without an example here.
#[test]
fn every_sentence_is_tried() {
    let checks = fs::read_to_string(chart().join("templates/_check.tpl")).expect("it is there");
    let sentences: Vec<_> = checks.lines().filter(|line| line.contains("(expected ")).collect();
    assert!(sentences.len() > 30, "{}", sentences.len());
    for sentence in sentences {
        // Of what stands between values, the beginning of the longest part.
        let problem = sentence.split(" (expected").next().expect("a line");
        let parts = problem.split("{{").filter_map(|part| part.split("}}").last());
        let fixed = parts.max_by_key(|part| part.len()).expect("a line");
        let fixed = fixed.get(..24).unwrap_or(fixed);
        let mut tried = REFUSED.iter().chain(REFUSED_ALONE);
        assert!(tried.any(|(_, tried)| tried.contains(fixed)), "{fixed:?} of {sentence:?}");
    }
}
