#!/usr/bin/env python3
"""A client that reserves the most that a call may cost, calls the model, and commits what the call did cost.

`client.py CUSTOMER WORDS MOST [TIDEGATE MODEL]`: a call of so many words, which costs at most MOST tokens. The last two are ports.
"""

import json
import sys
import urllib.error
import urllib.request
import uuid


def post(port, path, body):
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", json.dumps(body).encode())
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as denied:
        return denied.code, denied.read()


def main(customer, words, most, tidegate=8080, model=10080):
    # Nobody else can choose this id. Both limits hold the tokens, or none.
    call = {
        "domain": "models",
        "id": str(uuid.uuid4()),
        "descriptors": [{"entries": [{"key": key, "value": customer}]} for key in ("month", "minute")],
    }
    status, said = post(tidegate, "/reserve", {**call, "amount": int(most)})
    if status != 200:
        sys.exit(f"{status}: {said.decode()}")
    try:
        _, stream = post(model, "/v1/chat/completions", {"words": int(words), "seconds": 0.1})
        usage = json.loads(stream.decode().strip().rsplit("data: ", 1)[1])["usage"]["total_tokens"]
    except Exception:
        # A call that failed costs nothing. If this client is killed instead, `ttl` of the rule ends the hold.
        post(tidegate, "/release", call)
        raise
    _, said = post(tidegate, "/commit", {**call, "amount": usage})
    print(json.dumps({"tokens": usage, "was": json.loads(said)["was"]}))


if __name__ == "__main__":
    main(*sys.argv[1:])
