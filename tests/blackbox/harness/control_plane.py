"""A control plane for the tests: ADS, state of the world, over gRPC.

Written with Python's grpcio and the protocol's names and numbers, so that nothing of the client under test is in it.
Each line on stdin is a command as JSON, each line on stdout an event:

    {"send": {"version": "1", "nonce": "a", "configs": [...]}}    to the newest stream; configs as protobuf JSON
    {"end": true}                                                  ends the newest stream
    → {"listening": port}   {"stream": 1, "headers": {...}}   {"request": {...}}

Arguments: a port, and for TLS the files of a certificate, its key and (for client certificates) an authority.
"""

import json
import queue
import sys
import threading
from concurrent import futures

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from google.protobuf import any_pb2, struct_pb2  # noqa: F401 (the pool needs their files)

TYPE_URL = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig"
POOL = descriptor_pool.Default()
TYPES = descriptor_pb2.FieldDescriptorProto
SCALARS = {"string": TYPES.TYPE_STRING, "bool": TYPES.TYPE_BOOL, "uint32": TYPES.TYPE_UINT32, "int32": TYPES.TYPE_INT32}


def add_file(name, package, messages, enums=(), dependencies=()):
    """Adds messages, each {field: (number, type)}; a type is a scalar or `.package.Message`, `*` before it: repeated."""
    file = descriptor_pb2.FileDescriptorProto(name=name, package=package, syntax="proto3", dependency=dependencies)
    for enum, words in enums:
        values = [descriptor_pb2.EnumValueDescriptorProto(name=word, number=number) for number, word in enumerate(words)]
        file.enum_type.add(name=enum, value=values)
    for message, fields in messages.items():
        proto = file.message_type.add(name=message)
        for field, (number, kind) in fields.items():
            label = TYPES.LABEL_REPEATED if kind.startswith("*") else TYPES.LABEL_OPTIONAL
            kind = kind.lstrip("*")
            if kind in SCALARS:
                proto.field.add(name=field, number=number, label=label, type=SCALARS[kind])
            else:
                is_enum = kind.endswith("Unit")
                type_ = TYPES.TYPE_ENUM if is_enum else TYPES.TYPE_MESSAGE
                proto.field.add(name=field, number=number, label=label, type=type_, type_name=kind)
    POOL.Add(file)


add_file("status.proto", "google.rpc", {"Status": {"code": (1, "int32"), "message": (2, "string")}})
add_file(
    "node.proto",
    "envoy.config.core.v3",
    {"Node": {"id": (1, "string"), "cluster": (2, "string"), "metadata": (3, ".google.protobuf.Struct")}},
    dependencies=["google/protobuf/struct.proto"],
)
add_file(
    "ads.proto",
    "envoy.service.discovery.v3",
    {
        "DiscoveryRequest": {
            "version_info": (1, "string"),
            "node": (2, ".envoy.config.core.v3.Node"),
            "resource_names": (3, "*string"),
            "type_url": (4, "string"),
            "response_nonce": (5, "string"),
            "error_detail": (6, ".google.rpc.Status"),
        },
        "DiscoveryResponse": {
            "version_info": (1, "string"),
            "resources": (2, "*.google.protobuf.Any"),
            "canary": (3, "bool"),
            "type_url": (4, "string"),
            "nonce": (5, "string"),
        },
    },
    dependencies=["node.proto", "status.proto", "google/protobuf/any.proto"],
)
P = ".ratelimit.config.ratelimit.v3."
add_file(
    "rls_conf.proto",
    "ratelimit.config.ratelimit.v3",
    {
        "RateLimitConfig": {"name": (1, "string"), "domain": (2, "string"), "descriptors": (3, f"*{P}RateLimitDescriptor")},
        "RateLimitDescriptor": {
            "key": (1, "string"),
            "value": (2, "string"),
            "rate_limit": (3, f"{P}RateLimitPolicy"),
            "descriptors": (4, f"*{P}RateLimitDescriptor"),
            "shadow_mode": (5, "bool"),
            "detailed_metric": (6, "bool"),
            "quota_mode": (7, "bool"),
            "metadata": (8, ".google.protobuf.Struct"),
        },
        "RateLimitPolicy": {
            "unit": (1, f"{P}RateLimitUnit"),
            "requests_per_unit": (2, "uint32"),
            "unlimited": (3, "bool"),
            "name": (4, "string"),
            "replaces": (5, f"*{P}RateLimitReplace"),
        },
        "RateLimitReplace": {"name": (1, "string")},
    },
    enums=[("RateLimitUnit", ["UNKNOWN", "SECOND", "MINUTE", "HOUR", "DAY", "MONTH", "YEAR", "WEEK"])],
    dependencies=["google/protobuf/struct.proto"],
)


def message(name):
    return message_factory.GetMessageClass(POOL.FindMessageTypeByName(name))


Request = message("envoy.service.discovery.v3.DiscoveryRequest")
Response = message("envoy.service.discovery.v3.DiscoveryResponse")
Config = message("ratelimit.config.ratelimit.v3.RateLimitConfig")
END = object()


def emit(event):
    # In one piece: `print` writes the end of a line by itself, and other threads emit too.
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


class Plane:
    """The newest stream gets what is sent."""

    def __init__(self):
        self.streams = 0
        self.outbox = queue.Queue()

    def stream(self, requests, context):
        self.streams += 1
        self.outbox = outbox = queue.Queue()
        emit({"stream": self.streams, "headers": dict(context.invocation_metadata())})
        threading.Thread(target=self.read, args=(requests, outbox), daemon=True).start()
        while (response := outbox.get()) is not END:
            yield response

    @staticmethod
    def read(requests, outbox):
        try:
            for request in requests:
                emit({"request": json_format.MessageToDict(request)})
        except grpc.RpcError:
            pass
        outbox.put(END)

    def send(self, state):
        response = Response(version_info=state["version"], nonce=state["nonce"], type_url=TYPE_URL)
        for config in state["configs"]:
            resource = json_format.ParseDict(config, Config())
            response.resources.add(type_url=TYPE_URL, value=resource.SerializeToString())
        self.outbox.put(response)


def main():
    plane = Plane()
    server = grpc.server(futures.ThreadPoolExecutor(8))
    handler = grpc.stream_stream_rpc_method_handler(plane.stream, Request.FromString, Response.SerializeToString)
    service = "envoy.service.discovery.v3.AggregatedDiscoveryService"
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, {"StreamAggregatedResources": handler})])
    address = f"127.0.0.1:{sys.argv[1]}"
    if len(sys.argv) > 2:
        certificate, key, *authority = (open(path, "rb").read() for path in sys.argv[2:])
        credentials = grpc.ssl_server_credentials([(key, certificate)], *authority, bool(authority))
        port = server.add_secure_port(address, credentials)
    else:
        port = server.add_insecure_port(address)
    server.start()
    emit({"listening": port})
    for line in sys.stdin:
        command = json.loads(line)
        if "send" in command:
            plane.send(command["send"])
        if "end" in command:
            plane.outbox.put(END)
    server.stop(None)


main()
