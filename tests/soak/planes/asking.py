"""An application behind a gateway, its clients, and what they expect."""

import collections
import http.client
import http.server
import threading
import time

# How many requests the application got, and how many clients got a 200, by path.
GOT, SERVED = collections.Counter(), collections.Counter()


class Application(http.server.BaseHTTPRequestHandler):
    """Counts requests, and reports the cost that a request names."""

    protocol_version = "HTTP/1.1"

    def answer(self):
        GOT[self.path] += 1
        self.send_response(200)
        self.send_header("content-length", "0")
        if "x-app-cost" in self.headers:
            self.send_header("x-app-cost", self.headers["x-app-cost"])
        self.end_headers()

    do_GET = do_POST = do_PUT = answer

    def log_message(self, *_):
        pass


def serve():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 3000), Application)
    threading.Thread(target=server.serve_forever, daemon=True).start()


def ask(path, user=None, method="GET", address="127.0.0.1", port=8888, **headers):
    """The answer of the gateway: its status, and its headers."""
    sent = {name.replace("_", "-"): str(value) for name, value in headers.items()}
    if user:
        sent["x-user-id"] = user
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60, source_address=(address, 0))
    connection.request(method, path, headers=sent)
    answer = connection.getresponse()
    answer.read()
    connection.close()
    SERVED[path] += answer.status == 200
    return answer.status, dict(answer.getheaders())


def statuses(times, path, **request):
    return [ask(path, **request)[0] for _ in range(times)]


def expect(what, got, wanted):
    assert got == wanted, f"{what}: {got}, not {wanted}"
    print(f"  {what}: {got}", flush=True)


def exact(what, limit, path, **request):
    """`limit` requests pass, and the next one is denied."""
    got = statuses(limit + 1, path, **request)
    assert got == [200] * limit + [429], f"{what}: {got}"
    print(f"  {what}: {limit} pass, then 429", flush=True)


def play(work, stages):
    """Runs the stages in order. After each, the application must have got exactly the requests that passed."""
    began = time.monotonic()
    try:
        for stage in stages:
            print(f"{time.monotonic() - began:.0f} s: {stage.__name__.replace('_', ' ')}", flush=True)
            stage()
            assert +GOT == +SERVED, f"the application got {GOT}, clients {SERVED}"
    except BaseException:
        for log in work.glob("*.log"):
            print(f"--- the end of {log.name}\n{log.read_text()[-3000:]}")
        raise
    print(f"{time.monotonic() - began:.0f} s: every answer is as promised")
