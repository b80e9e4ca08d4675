#!/usr/bin/env python3
"""A language model for tests: it streams words as server-sent events, and reports in the last event what they cost.

`POST /v1/chat/completions` with {"words": 20, "seconds": 2}: so many words in that time, 12 tokens each. `GET /log` shows the
calls in flight, the most at one time, and all tokens.
"""

import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TOKENS_PER_WORD = 12
LOCK = threading.Lock()
LOG = {"in_flight": 0, "most": 0, "tokens": 0}


class Model(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        with LOCK:
            body = json.dumps(LOG).encode() + b"\n"
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        words, seconds = asked.get("words", 20), asked.get("seconds", 2)
        with LOCK:
            LOG["in_flight"] += 1
            LOG["most"] = max(LOG["most"], LOG["in_flight"])
        try:
            self.stream(words, seconds / max(words, 1))
        except OSError:
            self.close_connection = True  # the client has left
            return
        finally:
            with LOCK:
                LOG["in_flight"] -= 1
        self.wfile.write(b"0\r\n\r\n")

    def stream(self, words, pause):
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for number in range(words):
            time.sleep(pause)
            self.event({"word": f"word {number + 1}"})
        tokens = words * TOKENS_PER_WORD
        with LOCK:
            LOG["tokens"] += tokens
        self.event({"usage": {"total_tokens": tokens}})

    def event(self, data):
        line = f"data: {json.dumps(data)}\n\n".encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 10080
    ThreadingHTTPServer(("127.0.0.1", port), Model).serve_forever()
