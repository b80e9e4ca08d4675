"""grpcio (gRPC's C core) as a client: `grpcio_client.py <port>` asks a limiter for which `shop` allows 10 a day to each
`user`, and says `ok` when every answer was the right one. Messages are written by hand: bytes in, bytes out."""

import sys
import threading

import grpc

CALL = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
HEALTH = "/grpc.health.v1.Health/"
OK, OVER_LIMIT = 1, 2


def length(number):
    """A number as protobuf writes it."""
    out = b""
    while number >= 128:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


def field(number, payload):
    return bytes([number << 3 | 2]) + length(len(payload)) + payload


def question(user):
    entry = field(1, b"user") + field(2, user.encode())
    return field(1, b"shop") + field(2, field(1, entry))


def code(answer):
    assert answer[0] == 8, answer
    return answer[1]


def refused(call, expected):
    try:
        call()
    except grpc.RpcError as error:
        assert error.code() == expected, (error.code(), error.details(), expected)
        return error
    raise AssertionError(f"{expected} expected")


def concurrent_calls(ask):
    """Of 40 calls of one user, and of many others beside them, 10 pass."""
    calls = [ask.future(question("many" if number % 25 == 0 else f"u{number}"), timeout=60) for number in range(1000)]
    codes = [code(call.result()) for call in calls]
    assert codes.count(OVER_LIMIT) == 30, codes.count(OVER_LIMIT)


def bodies(ask):
    assert code(ask(question("x" * 60_000))) == OK
    refused(lambda: ask(question("x" * 70_000)), grpc.StatusCode.RESOURCE_EXHAUSTED)
    refused(lambda: ask(b""), grpc.StatusCode.INVALID_ARGUMENT)
    refused(lambda: ask(b"\xff" * 100), grpc.StatusCode.INVALID_ARGUMENT)
    refused(lambda: ask(question("g" * 1_000), compression=grpc.Compression.Gzip), grpc.StatusCode.UNIMPLEMENTED)
    refused(lambda: ask(field(1, "café 100%".encode())), grpc.StatusCode.INVALID_ARGUMENT)


def cancels_and_deadlines(ask, channel):
    for number in range(300):
        ask.future(question(f"c{number}")).cancel()
    assert code(ask(question("d"), timeout=5)) == OK
    # A decision is faster than any deadline; a watch has no end.
    watch = channel.unary_stream(HEALTH + "Watch")
    refused(lambda: list(watch(b"", timeout=0.2)), grpc.StatusCode.DEADLINE_EXCEEDED)


def health(channel):
    check, watch = channel.unary_unary(HEALTH + "Check"), channel.unary_stream(HEALTH + "Watch")
    for name in (b"", b"ratelimit"):
        assert check(field(1, name)) == b"\x08\x01"
    refused(lambda: check(field(1, b"other")), grpc.StatusCode.NOT_FOUND)
    watching = watch(b"")
    assert next(watching) == b"\x08\x01"
    watching.cancel()
    refused(lambda: channel.unary_unary("/no.Such/Method")(b""), grpc.StatusCode.UNIMPLEMENTED)


def all_of_it(port, options):
    with grpc.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
        ask = channel.unary_unary(CALL)
        bodies(ask)
        cancels_and_deadlines(ask, channel)
        health(channel)
        assert code(ask(question("last"))) == OK
    return True


def main():
    port = sys.argv[1]
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        concurrent_calls(channel.unary_unary(CALL))
    variants = [
        [],
        [("grpc.http2.hpack_table_size.decoder", 0)],
        [("grpc.http2.hpack_table_size.encoder", 0)],
        [("grpc.http2.lookahead_bytes", 1), ("grpc.http2.max_frame_size", 16_384)],
    ]
    done = []
    # A channel with options of its own has a connection of its own.
    threads = [threading.Thread(target=lambda options=options: done.append(all_of_it(port, options))) for options in variants]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert len(done) == len(variants)
    print("ok")


main()
