"""grpcio (gRPC's C core) as a client: `mixed.py <port>` makes calls of every kind on one connection, side by side, and
says `ok` when each got the answer that is its own. Messages are written by hand: bytes in, bytes out."""

import sys
import threading

import grpc

CALL = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
HEALTH = "/grpc.health.v1.Health/"
UNKNOWN = "/no.Such/Method"
SERVING = b"\x08\x01"
# No call takes so long that is answered.
PATIENCE_SECONDS = 20


def field(number, payload):
    return bytes([number << 3 | 2, len(payload)]) + payload


def varint(number):
    out = b""
    while number >= 128:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


def question(user):
    """Users are from u1 to u7, and each has a limit of its own: so many millions."""
    return question_of(b"u%d" % user)


def question_of(name):
    entry = field(1, b"user") + field(2, name)
    return field(1, b"shop") + field(2, field(1, entry))


class Caller:
    """Makes one call after the other."""

    def __init__(self, channel):
        self.ask = channel.unary_unary(CALL)
        self.check = channel.unary_unary(HEALTH + "Check")
        self.watch = channel.unary_stream(HEALTH + "Watch")
        self.unknown = channel.unary_unary(UNKNOWN)
        self.unknown_stream = channel.stream_stream(UNKNOWN)
        self.kinds = [
            self.decided,
            self.healthy,
            self.decided,
            self.watched,
            self.decided,
            self.missing,
            self.decided,
            self.missing_stream,
            self.decided,
            self.compressed,
            self.decided,
            self.broken,
        ]

    def decided(self, number):
        user = number % 7 + 1
        answer = self.ask(question(user), timeout=PATIENCE_SECONDS)
        assert answer.startswith(SERVING) and varint(user * 1_000_000) in answer, answer

    def healthy(self, _):
        assert self.check(b"", timeout=PATIENCE_SECONDS) == SERVING

    def watched(self, _):
        watching = self.watch(b"", timeout=PATIENCE_SECONDS)
        assert next(watching) == SERVING
        watching.cancel()

    def missing(self, _):
        refused(lambda: self.unknown(question(1), timeout=PATIENCE_SECONDS), grpc.StatusCode.UNIMPLEMENTED)

    def missing_stream(self, _):
        """The call is answered though it is not ended."""
        answered = threading.Event()

        def requests():
            yield question(1)
            answered.wait()

        call = self.unknown_stream(requests(), timeout=PATIENCE_SECONDS)
        refused(lambda: next(call), grpc.StatusCode.UNIMPLEMENTED)
        answered.set()

    def compressed(self, _):
        # What gets no smaller is sent as it is.
        long = question_of(b"x" * 90)
        ask = lambda: self.ask(long, timeout=PATIENCE_SECONDS, compression=grpc.Compression.Gzip)
        refused(ask, grpc.StatusCode.UNIMPLEMENTED)

    def broken(self, _):
        refused(lambda: self.ask(b"\xff\xff", timeout=PATIENCE_SECONDS), grpc.StatusCode.INVALID_ARGUMENT)


def refused(call, expected):
    try:
        call()
    except grpc.RpcError as error:
        assert error.code() == expected, (error.code(), error.details(), expected)
        return
    raise AssertionError(f"{expected} expected")


def mix(port, callers, calls):
    """So many callers on one connection, each with its next call once the last is answered."""
    done = []

    def ask(channel, first):
        caller = Caller(channel)
        for number in range(calls):
            caller.kinds[(first + number) % len(caller.kinds)](number)
        done.append(first)

    # A channel with options of its own has a connection of its own.
    with grpc.insecure_channel(f"127.0.0.1:{port}", options=[("mix", callers)]) as channel:
        threads = [threading.Thread(target=ask, args=(channel, first)) for first in range(callers)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
    assert len(done) == callers, f"{callers - len(done)} of {callers} callers failed"


def main():
    for callers in (2, 3, 16, 48):
        mix(sys.argv[1], callers, 1_000 // callers)
    print("ok")


main()
