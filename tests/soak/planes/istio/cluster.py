"""As much of a Kubernetes API server as istiod needs to start: it has no objects, and accepts those that are written."""

import http.server
import json
import threading

VERSIONS = {
    "/version": {"major": "1", "minor": "33", "gitVersion": "v1.33.0"},
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": []},
}
NOTHING = {"metadata": {"resourceVersion": "1"}, "items": []}


def is_list(path):
    """Whether a path is that of a list: `/api/v1/pods`, `/apis/GROUP/VERSION/leases`, or the same in `namespaces/NAME`."""
    parts = path.strip("/").split("/")
    parts = parts[2:] if parts[0] == "api" else parts[3:]
    return len(parts) == (3 if parts[0] == "namespaces" and len(parts) > 2 else 1)


class Server(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def respond(self, status, body):
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def refuse(self, status, reason):
        self.respond(status, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": status})

    def watch(self):
        """Never reports a change."""
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        threading.Event().wait()

    def do_GET(self):
        path, _, query = self.path.partition("?")
        of_metadata = {"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1"}
        if path in VERSIONS:
            self.respond(200, VERSIONS[path])
        elif "sendInitialEvents=true" in query:
            # After this refusal istiod lists the objects instead.
            self.refuse(422, "Invalid")
        elif "watch=" in query:
            self.watch()
        elif is_list(path):
            self.respond(200, NOTHING | (of_metadata if of_metadata["kind"] in self.headers["Accept"] else {}))
        else:
            self.refuse(404, "NotFound")

    def do_POST(self):
        written = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        written.setdefault("metadata", {})["resourceVersion"] = "1"
        self.respond(201, written)

    do_PUT = do_PATCH = do_POST

    def log_message(self, *_):
        pass


def serve():
    """Starts the server, and returns the kubeconfig of its clients."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
        "users": [{"name": "c", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
        "current-context": "c",
    }
