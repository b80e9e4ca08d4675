"""An OTLP receiver: prints every span that it gets, a line of JSON each.

`otlp_receiver.py grpc|http PORT`, and for TLS the files of its certificate, its key and its clients' authority.
"""

import gzip
import json
import ssl
import sys
from concurrent import futures
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as service
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as service_grpc


def plain(value):
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [plain(item) for item in value.array_value.values]
    return getattr(value, kind)


def attributes(pairs):
    return {pair.key: plain(pair.value) for pair in pairs}


def emit(request, headers):
    batch = sum(len(scope.spans) for resource in request.resource_spans for scope in resource.scope_spans)
    for resource in request.resource_spans:
        for scope in resource.scope_spans:
            for span in scope.spans:
                line = {
                    "name": span.name,
                    "kind": span.kind,
                    "trace": span.trace_id.hex(),
                    "span": span.span_id.hex(),
                    "parent": span.parent_span_id.hex(),
                    "state": span.trace_state,
                    "nanos": span.end_time_unix_nano - span.start_time_unix_nano,
                    "status": span.status.code,
                    "why": span.status.message,
                    "attributes": attributes(span.attributes),
                    "resource": attributes(resource.resource.attributes),
                    "headers": headers,
                    "batch": batch,
                }
                # In one piece: `print` writes the end of a line by itself, and other threads emit too.
                sys.stdout.write("span " + json.dumps(line, sort_keys=True) + "\n")
                sys.stdout.flush()


class Grpc(service_grpc.TraceServiceServicer):
    def Export(self, request, context):
        emit(request, {key: str(value) for key, value in context.invocation_metadata()})
        return service.ExportTraceServiceResponse()


class Http(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        headers = {key.lower(): value for key, value in self.headers.items()}
        if self.path != "/v1/traces" or headers["content-type"] != "application/x-protobuf":
            self.send_error(404)
            return
        emit(service.ExportTraceServiceRequest.FromString(body), headers)
        self.send_response(200)
        self.send_header("content-type", "application/x-protobuf")
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


def read(path):
    with open(path, "rb") as file:
        return file.read()


def main(protocol, port, tls):
    if protocol == "http":
        server = ThreadingHTTPServer(("127.0.0.1", port), Http)
        if tls:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=tls[2])
            context.load_cert_chain(tls[0], tls[1])
            context.verify_mode = ssl.CERT_REQUIRED
            server.socket = context.wrap_socket(server.socket, server_side=True)
        print("ready", flush=True)
        server.serve_forever()
    server = grpc.server(futures.ThreadPoolExecutor(4))
    service_grpc.add_TraceServiceServicer_to_server(Grpc(), server)
    if tls:
        pair = (read(tls[1]), read(tls[0]))
        credentials = grpc.ssl_server_credentials([pair], read(tls[2]), require_client_auth=True)
        server.add_secure_port(f"127.0.0.1:{port}", credentials)
    else:
        server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    print("ready", flush=True)
    server.wait_for_termination()


main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
