"""As much of a Kubernetes API server as helm's `lookup` asks for: one ServiceAccount, and perhaps one Secret. Nobody may
look into other namespaces.

Arguments: the port; the namespace, the name and the token (in base64) of the Secret.
"""

import http.server
import json
import sys

port, *secret = sys.argv[1:]
RESOURCES = [
    {"name": name, "singularName": "", "namespaced": True, "kind": kind, "verbs": ["get", "list"]}
    for name, kind in [("serviceaccounts", "ServiceAccount"), ("secrets", "Secret")]
]
ANSWERS = {
    "/version": {"major": "1", "minor": "31", "gitVersion": "v1.31.0"},
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": []},
    "/api/v1": {"kind": "APIResourceList", "groupVersion": "v1", "resources": RESOURCES},
    "/api/v1/namespaces/limits/serviceaccounts/default": {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": "default", "namespace": "limits"},
    },
}
if secret:
    namespace, name, token = secret
    ANSWERS[f"/api/v1/namespaces/{namespace}/secrets/{name}"] = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": namespace},
        "data": {"token": token},
    }


class Server(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        answer = ANSWERS.get(self.path.split("?")[0])
        missing = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}
        body = json.dumps(answer or missing).encode()
        self.send_response(200 if answer else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


http.server.ThreadingHTTPServer(("127.0.0.1", int(port)), Server).serve_forever()
