"""Reads header fields, one a line, as lists of RFC 9651. Writes each as JSON: [[name, {parameter: value}], …]."""

import base64
import json
import sys

import http_sfv


def plain(value):
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


for line in sys.stdin:
    fields = http_sfv.List()
    fields.parse(line.strip().encode())
    print(json.dumps([[item.value, {name: plain(value) for name, value in item.params.items()}] for item in fields]))
