#!/usr/bin/env python3
"""The real Envoy Gateway with a real Envoy, and the limiter in place of the one that it deploys.

Envoy Gateway runs as it does outside of a cluster: it reads resources from files and starts Envoy itself. The limiter is
started as the container of the Deployment that Envoy Gateway would make (the one in its sources, with its environment and its
mounts), and later as the container of our chart. Arguments: a folder; the binaries of Envoy Gateway, Envoy, and the limiter; the
folder of Envoy Gateway's sources; helm.
"""

import pathlib
import re
import shutil
import sys

import yaml

import cases
from asking import ask, exact, expect, play, serve, statuses
from cases import ask_limiter, metric
from pods import CHROOT, LIMITER, Limiter, Network, Process, Secret, eventually, root, run
from policies import ROUTES, policies

HERE = pathlib.Path(__file__).parent
HOUSE = HERE.parents[3]
NAMES = {
    "10.77.0.1": "envoy-gateway redis.redis.svc",
    LIMITER: "envoy-ratelimit.envoy-gateway-system.svc.cluster.local",
}


class Gateway:
    """Envoy Gateway, and the Envoy that it starts."""

    def __init__(self, work, program, envoy, version):
        self.work, self.program, self.version = work, program, version
        self.home, self.resources = work / "gateway", work / "resources"
        for folder in [self.home, self.resources]:
            folder.mkdir()
        self.make_certificates()
        self.envoys_secret = Secret(work / "secrets/envoy", self.certificates("envoy"))
        placed = f"/gateway/data/envoy-versions/{version}/bin/envoy"
        mounts = {"/gateway": self.home, "/resources": self.resources, "/certs": self.envoys_secret.folder}
        mounts |= {"/bin/envoy-gateway": program, placed: envoy}
        self.root = root(work / "gateway-root", NAMES, mounts)
        (self.root / "tmp").mkdir()
        shutil.copy(HERE / "configuration.yaml", self.home)

    def make_certificates(self):
        run(self.program, "certgen", "--local", "--config-home", self.home / "config")

    def certificates(self, name):
        return self.home / "config/certs" / name

    def apply(self, made):
        """Puts these policies in force, with the resources that are always there."""
        fixed = (HERE / "gateway.yaml").read_text().replace("0.0.0", self.version)
        # Renamed, as editors do it, so that Envoy Gateway never reads half of a file.
        next_one = self.work / "next.yaml"
        next_one.write_text(fixed + "---\n" + yaml.safe_dump_all(ROUTES + list(made.values())))
        next_one.rename(self.resources / "all.yaml")

    def start(self):
        command = [CHROOT, self.root, "/bin/envoy-gateway", "server", "--config-path", "/gateway/configuration.yaml"]
        self.process = Process(self.work / "gateway.log", command, env={"HOME": "/gateway", "TMPDIR": "/tmp"})
        eventually("Envoy to serve", self.serves)

    def serves(self):
        self.process.assert_running()
        try:
            return ask("/open")[0] == 200
        except OSError:
            return False


class Trial:
    def __init__(self, work, gateway, envoy, limiter, sources, helm):
        self.work, self.program, self.helm = work, limiter, helm
        self.golden = sources / "internal/infrastructure/kubernetes/ratelimit/testdata"
        version = re.search(r"/(\d+\.\d+\.\d+)/", run(envoy, "--version"))[1]
        serve()
        self.network = Network()
        redis = ["redis-server", "--bind", "10.77.0.1", "--protected-mode", "no", "--save", "", "--dir", work]
        self.redis = Process(work / "redis.log", redis)
        self.gateway = Gateway(work, gateway, envoy, version)
        self.secret = Secret(work / "secrets/envoy-rate-limit", self.gateway.certificates("envoy-rate-limit"))
        (work / "mapping").mkdir()
        mapping = yaml.safe_load((self.golden / "envoy-ratelimit-configmap.yaml").read_text())["data"]["conf.yaml"]
        (work / "mapping/conf.yaml").write_text(mapping)

    def start_limiter(self, workload):
        files = {"envoy-rate-limit": self.secret.folder, "statsd-exporter-config": self.work / "mapping"}
        self.limiter = Limiter(self.work, self.network, NAMES, self.program, workload, files)

    def deployment(self):
        """The Deployment that Envoy Gateway would make."""
        return yaml.safe_load((self.golden / "deployments/default.yaml").read_text())

    def chart(self):
        """The Deployment of our chart."""
        chart = HOUSE / "packaging/helm/tidegate"
        values = ["--values", chart / "values-envoy-gateway.yaml", "--set", "store.redis.url=redis.redis.svc:6379"]
        command = [self.helm, "template", "tidegate", chart, "--kube-version", "1.31.0", *values]
        made = yaml.safe_load_all(run(*command, "--namespace", "envoy-gateway-system"))
        return next(document for document in made if document and document["kind"] == "Deployment")

    def finds(self, workload):
        """Whether Envoy Gateway's Service selects the pods of this Deployment, and finds their ports."""
        service = yaml.safe_load((self.golden / "services/envoy-ratelimit-service-default.yaml").read_text())["spec"]
        pod = workload["spec"]["template"]
        ports = [port["containerPort"] for port in pod["spec"]["containers"][0]["ports"]]
        by_port = all(port["targetPort"] in ports for port in service["ports"])
        return by_port and service["selector"].items() <= pod["metadata"]["labels"].items()

    def following(self, change):
        """Makes a change, and waits until the limiter has loaded rules after it."""
        loads = "ratelimit_service_config_load_success"
        before = metric(loads)
        change()
        eventually("rules", lambda: metric(loads) > before)

    def the_limiter_starts(self):
        """The limiter is the container that Envoy Gateway would deploy."""
        self.gateway.apply(policies())
        self.gateway.start()
        self.start_limiter(self.deployment())
        eventually("rules", lambda: metric("ratelimit_service_config_load_success") > 0)
        cases.each_kind_of_limit()

    def the_limiter_is_killed(self):
        """The container of our chart takes its place."""
        expect("dan uses 1 of 3", statuses(1, "/users", user="dan"), [200])
        self.limiter.process.kill()
        expect("without a limiter", statuses(1, "/users", user="dan"), [500])
        chart = self.chart()
        expect("the Service of Envoy Gateway finds it", self.finds(chart), True)
        self.start_limiter(chart)
        eventually("Envoy to be answered", lambda: ask("/shadow", user="ann")[0] == 200)
        cases.used_up()
        exact("dan has 2 left", 2, "/users", user="dan")

    def envoy_gateway_is_away(self):
        """Its limits stay in force meanwhile. It comes back with another limit."""
        self.gateway.process.stop()
        expect("the limiter alone, ann", ask_limiter("ann"), 429)
        expect("the limiter alone, eve", ask_limiter("eve"), 200)
        self.gateway.apply(policies(users=5))
        self.following(self.gateway.start)
        exact("5 an hour now, ann has 2 left", 2, "/users", user="ann")
        exact("eve has 4 left", 4, "/users", user="eve")
        cases.used_up()

    def a_policy_goes_and_comes(self):
        """The counters of the policy stay."""
        without = policies(users=5)
        del without["day"]
        self.following(lambda: self.gateway.apply(without))
        eventually("no limit a day", lambda: ask("/day", user="ann")[0] == 200)
        self.following(lambda: self.gateway.apply(policies(users=5)))
        eventually("the limit a day", lambda: ask("/day", user="ann")[0] == 429)
        exact("bob has 1 left", 1, "/day", user="bob")

    def certificates_rotate(self):
        """All certificates and their authority change. Envoy Gateway and its Envoy restart with them, the limiter does not."""
        self.gateway.make_certificates()
        authority = self.gateway.certificates("envoy-gateway") / "ca.crt"
        expect("the limiter shows a certificate of the new authority", cases.shows(authority), False)
        self.gateway.envoys_secret.update(self.gateway.certificates("envoy"))
        self.secret.update(self.gateway.certificates("envoy-rate-limit"))
        eventually("the limiter to show its new certificate", lambda: cases.shows(authority))
        cases.used_up()
        self.gateway.process.stop()
        self.gateway.apply(policies(users=6))
        self.following(self.gateway.start)
        exact("6 an hour now, ann has 1 left", 1, "/users", user="ann")
        cases.used_up()
        self.limiter.process.assert_running()


if __name__ == "__main__":
    trial = Trial(*map(pathlib.Path, sys.argv[1:]))
    stages = [
        trial.the_limiter_starts,
        trial.the_limiter_is_killed,
        trial.envoy_gateway_is_away,
        trial.a_policy_goes_and_comes,
        trial.certificates_rotate,
    ]
    play(trial.work, stages)
