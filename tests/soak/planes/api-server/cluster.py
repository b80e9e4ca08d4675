"""A real API server of Kubernetes with its etcd, and nothing else: objects are checked and kept, and no pod runs."""

import json
import ssl
import urllib.error
import urllib.request

import yaml

from pods import Process, eventually, run

PORT, TOKEN = 6443, "trial"
HOST = f"https://127.0.0.1:{PORT}"


class Refused(Exception):
    """What the server says about an object that it does not accept."""


class Cluster:
    def __init__(self, work, programs):
        address = "http://127.0.0.1:2379"
        command = [programs / "server", "--data-dir", work / "etcd", "--listen-client-urls", address]
        command += ["--advertise-client-urls", address, "--unsafe-no-fsync"]
        self.etcd = Process(work / "etcd.log", command)
        key = work / "accounts.key"
        run("openssl", "genrsa", "-out", key, "2048")
        (work / "tokens").write_text(f"{TOKEN},admin,1,system:masters\n")
        settings = {
            "etcd-servers": address,
            "bind-address": "127.0.0.1",
            "advertise-address": "127.0.0.1",
            "endpoint-reconciler-type": "none",
            "secure-port": PORT,
            "cert-dir": work / "certificates",
            "token-auth-file": work / "tokens",
            "service-account-issuer": "https://kubernetes.default.svc",
            "service-account-key-file": key,
            "service-account-signing-key-file": key,
            # The range that the examples choose their addresses from.
            "service-cluster-ip-range": "10.96.0.0/16",
            "authorization-mode": "RBAC",
            # A controller would make the accounts of pods.
            "disable-admission-plugins": "ServiceAccount",
        }
        command = [programs / "kube-apiserver", *(f"--{name}={value}" for name, value in settings.items())]
        self.server = Process(work / "api-server.log", command)
        self.context = ssl.create_default_context()
        self.context.check_hostname, self.context.verify_mode = False, ssl.CERT_NONE
        eventually("the API server", self.is_ready)
        self.kubeconfig = work / "kubeconfig"
        self.kubeconfig.write_text(json.dumps(kubeconfig()))

    def is_ready(self):
        self.server.assert_running()
        self.etcd.assert_running()
        try:
            return self.request("GET", "/readyz") == b"ok"
        except (OSError, Refused):
            return False

    def request(self, method, path, body=None, form="application/json"):
        """The body of an answer. An error, or a warning, is an exception."""
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": form}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(HOST + path, data, headers, method=method)
        try:
            answer = urllib.request.urlopen(request, context=self.context, timeout=60)
        except urllib.error.HTTPError as error:
            raise Refused(f"{method} {path}: {error.read().decode()}") from None
        warnings = answer.headers.get_all("Warning")
        assert not warnings, f"{method} {path}: {warnings}"
        return answer.read()

    def ask(self, *request):
        return json.loads(self.request(*request))

    def path(self, namespace, document, name=True):
        """Where an object is, or all of its kind."""
        version = document["apiVersion"]
        group = f"/apis/{version}" if "/" in version else f"/api/{version}"
        resources = self.ask("GET", group)["resources"]
        resource = next(each for each in resources if each["kind"] == document["kind"] and "/" not in each["name"])
        namespace = f"/namespaces/{namespace}" if resource["namespaced"] else ""
        return f"{group}{namespace}/{resource['name']}" + (f"/{document['metadata']['name']}" if name else "")

    def get(self, namespace, document):
        return self.ask("GET", self.path(namespace, document))

    def apply(self, namespace, document, options=""):
        """What the server makes of an object. It refuses a field that it does not know."""
        namespace = document["metadata"].get("namespace", namespace)
        options = f"?fieldManager=trial&fieldValidation=Strict&force=true{options}"
        form = "application/apply-patch+yaml"
        return self.ask("PATCH", self.path(namespace, document) + options, document, form)

    def make_namespace(self, name):
        # The strictest rules for pods that Kubernetes has. A workload that breaks one gets a warning, a pod is refused.
        labels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ["enforce", "warn"]}
        metadata = {"name": name, "labels": labels}
        self.apply("", {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})

    def define(self, file):
        """Makes the kinds that a file defines."""
        for document in documents(file.read_text()):
            self.ask("POST", self.path("", document, name=False), document)
            eventually(document["metadata"]["name"], lambda: self.is_established(document))

    def is_established(self, document):
        conditions = self.get("", document).get("status", {}).get("conditions") or []
        established = any(each["type"] == "Established" and each["status"] == "True" for each in conditions)
        spec = document["spec"]
        version = next(each["name"] for each in spec["versions"] if each["served"])
        return established and any(
            each["kind"] == spec["names"]["kind"] for each in self.listed(f"/apis/{spec['group']}/{version}")
        )

    def listed(self, group):
        try:
            return self.ask("GET", group)["resources"]
        except Refused:
            return []


def documents(text):
    return [each for each in yaml.safe_load_all(text) if each]


def kubeconfig():
    """For helm."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "trial",
        "clusters": [{"name": "trial", "cluster": {"server": HOST, "insecure-skip-tls-verify": True}}],
        "users": [{"name": "trial", "user": {"token": TOKEN}}],
        "contexts": [{"name": "trial", "context": {"cluster": "trial", "user": "trial"}}],
    }
