#!/usr/bin/env python3
"""Draws dashboard.json as a picture, without Grafana: from what a Prometheus answers to its queries.

    draw.py http://localhost:9090 15m > dashboard.svg

In: the address of a Prometheus, and how far to look back. Out: an SVG. It shows which panels there are and what is in
them; it is no copy of Grafana's look. Nothing but Python's own library is needed.
"""

import html
import json
import math
import pathlib
import sys
import time
import urllib.parse
import urllib.request

COLUMN, ROW, GAP = 56, 26, 6
POINTS = 90
COLOURS = ["#3b7dd8", "#e07b39", "#3a9d5d", "#c0477f", "#8a63d2", "#b58b00", "#1b9aaa", "#d64545", "#6b7785", "#5a8f29"]
UNITS = {"s": "s", "reqps": "/s", "cps": "/s", "bytes": "B", "percentunit": "%", "cores": " cores", "short": ""}
LINES_MAX = 10
LEGEND_MAX = 4


def seconds(text):
    return float(text[:-1]) * {"s": 1, "m": 60, "h": 3600}[text[-1]]


def ask(server, expression, start, end):
    """The series of an expression: labels, and points (time, value)."""
    for name, value in (("$__rate_interval", "1m"), ("$domain", ".*"), ("$instance", ".*")):
        expression = expression.replace(name, value)
    query = {"query": expression, "start": start, "end": end, "step": max(1, (end - start) / POINTS)}
    with urllib.request.urlopen(f"{server}/api/v1/query_range?{urllib.parse.urlencode(query)}") as answer:
        found = json.load(answer)["data"]["result"]
    series = [(one["metric"], [(float(at), float(value)) for at, value in one["values"]]) for one in found]
    return [(labels, [point for point in points if math.isfinite(point[1])]) for labels, points in series]


def legend(form, labels):
    for name in ("instance", "domain", "key1", "key2", "rule", "code", "err_type", "answer", "outcome", "store", "kind", "by", "port", "to", "event", "reason"):
        form = form.replace("{{" + name + "}}", labels.get(name, ""))
    return " ".join(form.split())


def written(value, unit):
    if unit == "s" and value >= 7200:
        return f"{value / 86400:.1f} d" if value >= 86400 else f"{value / 3600:.1f} h"
    if unit == "s" and 0 < value < 1:
        return f"{value * 1e3:.3g} ms" if value >= 1e-3 else f"{value * 1e6:.3g} µs"
    if unit == "percentunit":
        return f"{value * 100:.3g} %"
    for limit, sign in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:.3g} {sign}{UNITS.get(unit, '')}"
    return f"{value:.3g}{UNITS.get(unit, '')}"


def label(x, y, text, size=11, colour="#222", more=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{colour}" {more}>{html.escape(str(text))}</text>'


def drawn_plot(series, unit, box, span):
    """Lines over time with the largest value of the axis, and what the first of them are called."""
    x, y, width, height = box
    largest = max((value for _, points in series for _, value in points), default=0) or 1
    out = [f'<line x1="{x}" x2="{x + width}" y1="{at:.1f}" y2="{at:.1f}" stroke="#e4e7eb"/>' for at in (y, y + height / 2, y + height)]
    out.append(label(x, y - 3, written(largest, unit), 9, "#777"))
    for colour, (name, points) in zip(COLOURS, series):
        places = [(x + (at - span[0]) / (span[1] - span[0]) * width, y + height - value / largest * height) for at, value in points]
        path = " ".join(f"{left:.1f},{top:.1f}" for left, top in places)
        out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.4"/>')
    for place, (colour, (name, _)) in enumerate(list(zip(COLOURS, series))[:LEGEND_MAX]):
        left, top = x + place % 2 * width / 2, y + height + 14 + place // 2 * 13
        out.append(f'<rect x="{left:.1f}" y="{top - 7:.1f}" width="8" height="8" fill="{colour}"/>')
        out.append(label(left + 12, top, name[: int(width / 12)], 9.5, "#555"))
    if len(series) > LEGEND_MAX:
        out.append(label(x + width, y - 3, f"{len(series)} series", 9, "#999", 'text-anchor="end"'))
    return out


def drawn_table(panel, columns, box):
    """A row for each series with its labels, a column for each query, by the first of them."""
    x, y, width, _ = box
    rows = {}
    for at, series in enumerate(columns):
        for labels, points in series:
            name = " ".join(labels.get(key, "") for key in ("domain", "key1", "key2", "rule"))
            rows.setdefault(" ".join(name.split()), {})[at] = points[-1][1] if points else 0
    names = panel["transformations"][1]["options"]["renameByName"].values()
    heads = [(x + width * (0.5 + at / 8), name) for at, name in enumerate(names)]
    out = [label(left, y, name, 10, "#777", 'text-anchor="end"') for left, name in heads]
    for line, (name, values) in enumerate(sorted(rows.items(), key=lambda row: -row[1].get(0, 0))[:LINES_MAX]):
        top = y + 18 * (line + 1)
        out.append(label(x, top, name, 10.5))
        out += [label(left, top, written(values.get(at, 0), "short"), 10.5, "#222", 'text-anchor="end"') for at, (left, _) in enumerate(heads)]
    return out


def drawn(panel, server, span):
    place = panel["gridPos"]
    x, y = GAP + place["x"] * COLUMN, GAP + place["y"] * ROW
    width, height = place["w"] * COLUMN - GAP, place["h"] * ROW - GAP
    title = panel["title"]
    if panel["type"] == "row":
        return [label(x, y + 16, title, 14, "#222", 'font-weight="bold"')]
    out = [f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="3" fill="#fff" stroke="#d8dce1"/>']
    out.append(label(x + 8, y + 16, title, 11.5, "#222", 'font-weight="bold"'))
    unit = panel["fieldConfig"]["defaults"]["unit"]
    answers = [(target["legendFormat"], ask(server, target["expr"], *span)) for target in panel["targets"]]
    if panel["type"] == "table":
        return out + drawn_table(panel, [series for _, series in answers], (x + 10, y + 36, width, height))
    series = [(legend(form, labels) or title, points) for form, found in answers for labels, points in found if points]
    if panel["type"] == "stat":
        last = series[0][1][-1][1] if series else 0
        return out + [label(x + width / 2, y + height / 2 + 16, written(last, unit), 24, "#2b6cb0", 'text-anchor="middle"')]
    return out + drawn_plot(series[:LINES_MAX], unit, (x + 10, y + 36, width - 20, height - 74), span)


def picture(server, back):
    panels = json.loads(pathlib.Path(__file__).with_name("dashboard.json").read_text())["panels"]
    end = time.time()
    span = (end - seconds(back), end)
    bottom = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels)
    width, height = 24 * COLUMN + 2 * GAP, bottom * ROW + 2 * GAP
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">']
    lines.append(f'<rect width="{width}" height="{height}" fill="#f4f5f7"/>')
    for panel in panels:
        lines += drawn(panel, server, span)
    return "\n".join([*lines, "</svg>"])


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: draw.py URL-OF-PROMETHEUS SPAN, for example: draw.py http://localhost:9090 15m")
    try:
        print(picture(sys.argv[1].rstrip("/"), sys.argv[2]))
    except (OSError, ValueError, KeyError) as error:
        sys.exit(f"{sys.argv[1]}, {sys.argv[2]}: {error} (expected the URL of a Prometheus and a span such as 90s, 15m or 2h)")
