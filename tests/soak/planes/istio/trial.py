#!/usr/bin/env python3
"""The real istiod with real Envoys, an ingress gateway and a sidecar, and the limiter in place of Istio's sample.

istiod reads resources from files, and its cluster is empty (cluster.py). The EnvoyFilters are those in Istio's sources,
unchanged, and ours (examples/kubernetes/istio.yaml). The limiter is started as the container of Istio's sample. The Envoys
are builds of the Envoy project, so filters that only Istio's own build has are switched off. Arguments: a folder; the
binaries of istiod, Envoy, and the limiter; the folder of Istio's sources.
"""

import json
import pathlib
import shutil
import sys
import urllib.request

import yaml

import cluster
from asking import ask, exact, expect, play, serve, statuses
from pods import CHROOT, LIMITER, Limiter, Network, Process, eventually, root

HERE = pathlib.Path(__file__).parent
HOUSE = HERE.parents[3]
NAMES = {"10.77.0.1": "redis", LIMITER: "ratelimit.default.svc.cluster.local"}
GATEWAY = "router~10.77.0.1~ingressgateway.istio-system~istio-system.svc.cluster.local", {
    "NAMESPACE": "istio-system",
    "LABELS": {"istio": "ingressgateway"},
}
# Connections are not redirected to it by iptables: it listens on the address of the application.
SIDECAR = "sidecar~127.0.0.1~clt.default~default.svc.cluster.local", {
    "NAMESPACE": "default",
    "LABELS": {"app": "clt"},
    "INTERCEPTION_MODE": "NONE",
}
# No mutual TLS: there is no agent that hands out certificates.
MESH = {"configSources": [{"address": "fs:///config"}], "enableAutoMtls": False}
SWITCHED_OFF = {"PILOT_ENABLE_METADATA_EXCHANGE": "false", "PILOT_ENABLE_ALPN_FILTER": "false"}
PAGE = """domain: productpage-ratelimit
descriptors:
  - {key: PATH, value: /productpage, rate_limit: {unit: hour, requests_per_unit: 1}}
  - {key: PATH, rate_limit: {unit: hour, requests_per_unit: 100}}
"""


def documents(path):
    return [each for each in yaml.safe_load_all(path.read_text()) if each]


def dump(admin):
    """The configuration of an Envoy."""
    return urllib.request.urlopen(f"http://127.0.0.1:{admin}/config_dump", timeout=60).read().decode()


class Trial:
    def __init__(self, work, istiod, envoy, limiter, sources, *_):
        self.work, self.program, self.sources = work, limiter, sources
        serve()
        self.network = Network()
        redis = ["redis-server", "--bind", "10.77.0.1", "--protected-mode", "no", "--save", "", "--dir", work]
        self.redis = Process(work / "redis.log", redis)
        self.config, self.rules = work / "config", work / "rules"
        for folder in [self.config, self.rules, work / "proxies"]:
            folder.mkdir()
        shutil.copy(HERE / "mesh.yaml", self.config)
        (work / "istio.yaml").write_text(yaml.safe_dump(MESH))
        (work / "kubeconfig").write_text(json.dumps(cluster.serve()))
        mounts = {"/bin/istiod": istiod, "/bin/envoy": envoy, "/config": self.config, "/proxies": work / "proxies"}
        mounts |= {"/etc/istio/mesh": work / "istio.yaml", "/etc/kubeconfig": work / "kubeconfig"}
        self.root = root(work / "root", NAMES, mounts)
        (self.root / "tmp").mkdir()

    def start_istiod(self):
        command = [CHROOT, self.root, "/bin/istiod", "discovery", "--kubeconfig=/etc/kubeconfig", "--meshConfig=/etc/istio/mesh"]
        environment = {"HOME": "/tmp", "POD_NAMESPACE": "istio-system", **SWITCHED_OFF}
        self.istiod = Process(self.work / "istiod.log", command, env=environment)

    def start_proxy(self, name, node, admin):
        who, metadata = node
        text = (HERE / "envoy.yaml").read_text().replace("NODE", who).replace("ADMIN", str(admin))
        metadata = metadata | {"ISTIO_VERSION": "1.31.0", "CLUSTER_ID": "Kubernetes"}
        text = text.replace("METADATA", json.dumps(metadata))
        (self.work / f"proxies/{name}.yaml").write_text(text)
        command = [CHROOT, self.root, "/bin/envoy", "-c", f"/proxies/{name}.yaml", "--base-id", admin]
        return Process(self.work / f"{name}.log", command)

    def start_limiter(self):
        deployments = documents(self.sources / "samples/ratelimit/rate-limit-service.yaml")
        of_limiter = [each for each in deployments if each["kind"] == "Deployment" and each["metadata"]["name"] != "redis"]
        files = {"ratelimit-config": self.rules}
        self.limiter = Limiter(self.work, self.network, NAMES, self.program, of_limiter[0], files)

    def write_rules(self):
        """Rules of Istio's page about limits (an hour in place of a minute), of its integration test, and of our manifests."""
        test = self.sources / "tests/integration/telemetry/policy/testdata/rate-limit-configmap.yaml"
        manifest = documents(HOUSE / "examples/kubernetes/tidegate.yaml")
        ours = next(each for each in manifest if each["kind"] == "ConfigMap")
        files = {"page.yaml": PAGE, "test.yaml": documents(test)[0]["data"]["config.yaml"], **ours["data"]}
        for name, text in files.items():
            (self.rules / name).write_text(text)

    def apply(self, text):
        """Replaces the EnvoyFilters by these."""
        (self.work / "next.yaml").write_text(text)
        (self.work / "next.yaml").rename(self.config / "filters.yaml")

    def sample(self):
        return (self.sources / "samples/bookinfo/policy/productpage_envoy_ratelimit.yaml").read_text()

    def serves(self, port, **request):
        for process in [self.istiod, self.limiter.process]:
            process.assert_running()
        try:
            return ask("/login", port=port, **request)[0] == 200
        except OSError:
            return False

    def a_gateway_with_the_sample_of_istio(self):
        """The EnvoyFilter and the Deployment of the sample, unchanged but for the image."""
        self.write_rules()
        self.apply(self.sample())
        self.start_istiod()
        self.start_limiter()
        self.gateway = self.start_proxy("gateway", GATEWAY, 15000)
        eventually("the gateway", lambda: self.serves(8888))
        exact("1 of /productpage", 1, "/productpage")
        exact("100 of /api", 100, "/api")

    def a_gateway_with_our_example(self):
        """100 a minute for each address. Timeouts are long, as the machine may be busy; nothing passes without an answer."""
        text = (HOUSE / "examples/kubernetes/istio.yaml").read_text()
        self.apply(text.replace("0.05s", "10s").replace("failure_mode_deny: false", "failure_mode_deny: true"))
        eventually("our filter", lambda: "x-ratelimit-limit" in ask("/", address="127.0.0.2")[1])
        exact("100 of an address", 100, "/", address="127.0.0.3")
        expect("… another one", statuses(1, "/", address="127.0.0.4"), [200])

    def the_limiter_is_killed(self):
        self.limiter.process.kill()
        expect("without a limiter", statuses(1, "/", address="127.0.0.4"), [500])
        self.start_limiter()
        eventually("Envoy to be answered", lambda: ask("/", address="127.0.0.4")[0] == 200)
        expect("the address that has no more", statuses(2, "/", address="127.0.0.3"), [429] * 2)

    def istiod_is_away(self):
        """It comes back with the sample, whose counters continue."""
        self.istiod.stop()
        expect("the address that has no more", statuses(2, "/", address="127.0.0.3"), [429] * 2)
        self.apply(self.sample())
        self.start_istiod()
        eventually("the sample", lambda: "x-ratelimit-limit" not in ask("/login", address="127.0.0.4")[1])
        expect("/productpage, /api", [ask("/productpage")[0], ask("/api")[0]], [429] * 2)

    def a_sidecar_with_the_test_of_istio(self):
        """Limits of Istio's integration test: one request of `/`, a hundred of each other path."""
        text = (self.sources / "tests/integration/telemetry/policy/testdata/enable_envoy_ratelimit.yaml").read_text()
        self.apply(text.replace("{{ .RateLimitNamespace }}", "default").replace("{{ .EchoNamespace }}", "echo"))
        self.sidecar = self.start_proxy("sidecar", SIDECAR, 15001)
        of_echo = {"port": 80, "host": "srv.echo.svc.cluster.local"}
        eventually("the sidecar", lambda: self.serves(**of_echo))
        eventually("its filter", lambda: all(part in dump(15001) for part in ["echo-ratelimit", "descriptor_key"]))
        exact("1 of /", 1, "/", **of_echo)
        exact("100 of /other", 100, "/other", **of_echo)


if __name__ == "__main__":
    trial = Trial(*map(pathlib.Path, sys.argv[1:]))
    stages = [
        trial.a_gateway_with_the_sample_of_istio,
        trial.a_gateway_with_our_example,
        trial.the_limiter_is_killed,
        trial.istiod_is_away,
        trial.a_sidecar_with_the_test_of_istio,
    ]
    play(trial.work, stages)
