#!/usr/bin/env python3
"""The chart, installed and upgraded by the real helm in a real API server, and the example manifests.

An object is accepted if the server knows each of its fields, keeps what was sent, and warns of nothing. The pods of a
workload have to follow the strictest of Kubernetes' rules for pods. No pod runs. Arguments: a folder; the folder with
kube-apiserver and etcd; helm; files with definitions of other projects' kinds.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import time

from cluster import Cluster, Refused, documents

HOUSE = pathlib.Path(__file__).parents[4]
CHART = HOUSE / "packaging/helm/tidegate"
EXAMPLES = HOUSE / "examples/kubernetes"
REDIS = {"store": {"type": "redis", "redis": {"url": "redis:6379"}}}
RULES = {"rules": {"files": {"shop.yaml": "domain: shop\ndescriptors: [{key: user}]\n"}}}
PEER = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "edge"}}}]
# What the chart can make, as much of it as goes together.
MUCH = {
    "store": {"type": "redis", "redis": {"url": "redis:6379", "tls": {"enabled": True, "caSecret": "redis-ca"}}},
    "records": {"redis": {"url": "records:6379"}},
    "operators": {"createSecret": True},
    "tls": {"ports": ["grpc", "debug"], "certManager": {"enabled": True, "issuer": {"name": "ours"}}},
    "autoscaling": {"enabled": True, "memory": 70, "behavior": {"scaleDown": {"stabilizationWindowSeconds": 60}}},
    "networkPolicy": {"enabled": True, "askers": PEER, "scrapers": PEER, "operators": PEER},
    "metrics": {"scrape": "serviceMonitor", "rules": True, "dashboard": True},
    "mountedSecrets": {"webhook": "our-authority"},
    "settingsFromSecrets": {"EVENTS_WEBHOOK_SECRET": {"secret": "webhook", "key": "secret"}},
}
SHARDED = {"rules": {"files": {"shop.yaml": (HOUSE / "examples/sharded/rules/shop.yaml").read_text()}}}
ADDRESSES = ["10.96.0.40", "10.96.0.41", "10.96.0.42", "10.96.0.43"]


def values_file(name):
    folder = CHART if name.startswith("values-") else EXAMPLES / "values"
    return documents((folder / f"{name}.yaml").read_text())[0]


def merge(one, other):
    """The values of one, with the other's over them, as helm does it."""
    merged = dict(one)
    for name, value in other.items():
        both = isinstance(value, dict) and isinstance(one.get(name), dict)
        merged[name] = merge(one[name], value) if both else value
    return merged


def without_change(sent, kept, where):
    """The server keeps what was sent. What is empty it may leave out, and it may add to an object."""
    if isinstance(sent, dict):
        for name, value in sent.items():
            missing = value in (None, {}, [], "") and isinstance(kept, dict) and name not in kept
            if not missing:
                assert isinstance(kept, dict) and name in kept, f"{where}.{name}: was sent, and is not kept: {kept}"
                without_change(value, kept[name], f"{where}.{name}")
    elif isinstance(sent, list):
        assert isinstance(kept, list) and len(sent) == len(kept), f"{where}: {sent} is kept as {kept}"
        for number, (one, other) in enumerate(zip(sent, kept)):
            without_change(one, other, f"{where}[{number}]")
    else:
        assert quantity(sent) == quantity(kept), f"{where}: {sent!r} is kept as {kept!r}"


def quantity(value):
    """A number of Kubernetes with its suffix: the server writes 20000 as 20k."""
    return value[:-1] + "000" if re.fullmatch("[0-9]+k", str(value)) else value


class Release:
    """A release of the chart in a namespace."""

    def __init__(self, trial, namespace, name="tidegate"):
        self.trial, self.cluster, self.namespace, self.name = trial, trial.cluster, namespace, name

    def helm(self, *words):
        words = [self.trial.helm, *words, "--namespace", self.namespace]
        environment = os.environ | {"KUBECONFIG": str(self.cluster.kubeconfig), "HOME": str(self.trial.work)}
        made = subprocess.run([str(word) for word in words], capture_output=True, text=True, env=environment)
        if made.returncode:
            raise Refused(made.stderr)
        return made.stdout

    def set(self, values):
        """Installs or upgrades, and returns the objects that the server has then."""
        file = self.trial.work / "values.json"
        file.write_text(json.dumps(values))
        self.helm("upgrade", "--install", self.name, CHART, "--values", file)
        return self.objects()

    def refused(self, values, said):
        try:
            self.set(values)
        except Refused as refused:
            assert said in str(refused), f"{refused}: expected {said}"
            print(f"    refused, as documented: {said}", flush=True)
        else:
            raise AssertionError(f"{values}: is accepted")

    def objects(self):
        """The objects of the release, by kind and name."""
        made = {}
        for sent in documents(self.helm("get", "manifest", self.name)):
            kept = self.cluster.get(self.namespace, sent)
            key = f"{sent['kind']}/{sent['metadata']['name']}"
            without_change(sent, kept, key)
            self.cluster.apply(self.namespace, sent, "&dryRun=All")
            if "template" in sent.get("spec", {}):
                self.try_pod(sent)
            made[key] = kept
        print(f"  {self.namespace}: {' '.join(sorted(made))}", flush=True)
        return made

    def try_pod(self, workload):
        """Asks the server for a pod of the workload. A StatefulSet adds the volumes of its pods."""
        template = workload["spec"]["template"]
        spec = dict(template["spec"])
        for claim in workload["spec"].get("volumeClaimTemplates", []):
            volume = {"name": claim["metadata"]["name"], "persistentVolumeClaim": {"claimName": "state-0"}}
            spec["volumes"] = [*spec.get("volumes", []), volume]
        metadata = template["metadata"] | {"name": "pod-0"}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        self.cluster.ask("POST", f"/api/v1/namespaces/{self.namespace}/pods?dryRun=All&fieldValidation=Strict", pod)


def assert_kept(before, after):
    """An upgrade changes objects where they are. What cannot change without a new object has not changed."""
    both = before.keys() & after.keys()
    assert any(name.startswith(("Deployment/", "StatefulSet/")) for name in both), f"{before.keys()}, {after.keys()}"
    for name in both:
        one, other = before[name], after[name]
        assert one["metadata"]["uid"] == other["metadata"]["uid"], f"{name} is another object"
        for field in ["selector", "volumeClaimTemplates", "serviceName", "clusterIP"]:
            assert one.get("spec", {}).get(field) == other.get("spec", {}).get(field), f"{name}: {field} has changed"


class Trial:
    def __init__(self, work, programs, helm, *definitions):
        self.work, self.helm = work, helm
        self.cluster = Cluster(work, programs)
        for file in definitions:
            self.cluster.define(file)

    def release(self, namespace, name="tidegate"):
        self.cluster.make_namespace(namespace)
        return Release(self, namespace, name)

    def run(self):
        for stage in [
            self.values_files_of_gateways,
            self.upgrades_of_a_deployment,
            self.a_token_stays,
            self.a_statefulset_that_grows,
            self.what_a_cluster_refuses,
            self.example_manifests,
        ]:
            print(stage.__name__.replace("_", " "), flush=True)
            stage()

    def values_files_of_gateways(self):
        for name, release in [("values-ai-gateway", "envoy-ai-gateway-ratelimit"), ("values-envoy-gateway", "tidegate")]:
            values = merge(values_file(name), REDIS)
            release = self.release("envoy-gateway-system", release)
            before = release.set(values)
            more = {"image": {"tag": "next"}, "metrics": {"scrape": "podMonitor", "rules": True}, "topologySpread": []}
            assert_kept(before, release.set(merge(values, more)))

    def upgrades_of_a_deployment(self):
        first, shared = values_file("first"), values_file("tidegate")
        release = self.release("limits")
        last = release.set(first)
        # Each to each other one, and back by helm's own rollback.
        for values in [shared, first, merge(RULES, MUCH), shared, merge(RULES, MUCH), first]:
            made = release.set(values)
            assert_kept(last, made)
            replicas = made["Deployment/tidegate"]["spec"]["replicas"]
            # There is no autoscaler that would change it.
            assert replicas == 1, replicas
            last = made
        release.helm("rollback", release.name)
        rolled_back = release.objects()
        assert_kept(last, rolled_back)
        assert "Certificate/tidegate" in rolled_back

    def a_token_stays(self):
        release = self.release("tokens")
        values = merge(RULES, {"operators": {"createSecret": True}})
        token = release.set(values)["Secret/tidegate-admin"]["data"]
        assert release.set(merge(values, REDIS))["Secret/tidegate-admin"]["data"] == token
        release.helm("uninstall", release.name)
        kept = self.cluster.ask("GET", "/api/v1/namespaces/tokens/secrets")["items"]
        assert [each["data"] for each in kept if each["metadata"]["name"] == "tidegate-admin"] == [token], kept
        assert not self.cluster.ask("GET", "/apis/apps/v1/namespaces/tokens/deployments")["items"]
        assert release.set(values)["Secret/tidegate-admin"]["data"] == token

    def a_statefulset_that_grows(self):
        release = self.release("sharded")
        # The addresses of the example are those of its manifest.
        here = {"store": {"sharded": {"addresses": ADDRESSES[:3]}}}
        values = merge(merge(values_file("stateful"), SHARDED), here)
        three = release.set(values)
        assert "Service/tidegate-2" in three and "Service/tidegate-3" not in three
        values = merge(values, {"replicas": 4, "store": {"sharded": {"grewFrom": 3, "addresses": ADDRESSES}}})
        four = release.set(values)
        assert_kept(three, four)
        assert four["Service/tidegate-3"]["spec"]["clusterIP"] == ADDRESSES[3]
        more = {"tls": MUCH["tls"], "records": {"onVolume": True}, "resources": {"limits": {"memory": "1Gi"}}}
        assert_kept(four, release.set(merge(values, more)))

    def what_a_cluster_refuses(self):
        """As docs/kubernetes.md says. A good upgrade is possible after each."""
        release = self.release("refused")
        values = merge(merge(values_file("stateful"), SHARDED), {"store": {"sharded": {"addresses": []}}})
        before = release.set(values)
        for other, said in [
            # The names of objects stay, and their selector does not.
            ({"nameOverride": "tide"}, "field is immutable"),
            ({"store": {"sharded": {"storage": {"size": "8Gi"}}}}, "spec.volumeClaimTemplates"),
            ({"store": {"sharded": {"addresses": ["10.96.0.50", "10.96.0.51", "10.96.0.52"]}}}, "may not change once set"),
            ({"service": {"headless": False}}, "the pods of a StatefulSet have no names without it"),
        ]:
            release.refused(merge(values, other), said)
            assert_kept(before, release.set(values))

    def example_manifests(self):
        for name in ["tidegate", "stateful", "envoy-gateway", "istio"]:
            self.cluster.make_namespace(f"example-{name}")
            # The autoscaler of tidegate.yaml has another form there.
            files = [f"{name}.yaml", *(["autoscaling.yaml"] if name == "tidegate" else [])]
            sent = [document for file in files for document in documents((EXAMPLES / file).read_text())]
            for document in sent:
                namespace = document["metadata"].get("namespace", f"example-{name}")
                self.cluster.make_namespace(namespace)
                without_change(document, self.cluster.apply(namespace, document), document["kind"])
            print(f"  {' '.join(files)}: {len(sent)} objects", flush=True)


def main():
    work, *programs = (pathlib.Path(argument) for argument in sys.argv[1:])
    began = time.monotonic()
    try:
        Trial(work, *programs).run()
    except BaseException:
        for log in work.glob("*.log"):
            print(f"--- the end of {log.name}\n{log.read_text()[-2000:]}")
        raise
    print(f"{time.monotonic() - began:.0f} s: the server accepts everything, and refuses what is documented")


main()
