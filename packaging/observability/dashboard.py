#!/usr/bin/env python3
"""Writes dashboard.json, a dashboard for Grafana 10 and later.

In: the panels below, a line or two each. Out: dashboard.json beside this file; with --check nothing is written, and the
exit code is 1 if the file is another one. Nothing but Python's own library is needed.

Queries of the rows `Overview` and `By rule` use names that `envoyproxy/ratelimit` has too wherever it has any, so a
fleet that is half switched shows up whole. $__rate_interval is Grafana's.
"""

import json
import pathlib
import sys

FILE = pathlib.Path(__file__).with_name("dashboard.json")
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
COLUMNS = 24

# Labels that every query filters by.
ON = 'instance=~"$instance"'
IN = 'domain=~"$domain", instance=~"$instance"'
RULE = "domain, key1, key2, rule"
RULE_NAME = "{{domain}} {{key1}} {{key2}} {{rule}}"
LIMIT = "ratelimit_service_rate_limit_"
FAILED = 'code=~"UNAVAILABLE|STORE_FAILURE|DEADLINE_EXCEEDED"'


def rate(metric, labels=ON):
    """The increase of a counter by the second."""
    return f"rate({metric}{{{labels}}}[$__rate_interval])"


def quantile(share, metric, labels=ON):
    """A quantile over all instances."""
    return f"histogram_quantile({share}, sum by (le) ({rate(metric + '_bucket', labels)}))"


def top(expression, count=10):
    """The largest series by rule."""
    return f"topk({count}, sum by ({RULE}) ({expression}))"


def plot(title, *queries, unit="short", about="", stack=False, max_1=False):
    """Lines over time. A query is (expression, legend)."""
    custom = {"fillOpacity": 30 if stack else 8, "lineWidth": 1, "showPoints": "never"}
    custom["stacking"] = {"mode": "normal" if stack else "none", "group": "A"}
    defaults = {"unit": unit, "min": 0, "custom": custom}
    if max_1:
        defaults["max"] = 1
    options = {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    return panel("timeseries", title, about, queries, defaults, options, (8, 8))


def stat(title, expression, unit="short", about="", levels=()):
    """One number, and its line. `levels` are (from, colour)."""
    steps = [{"color": "green", "value": None}] + [{"color": colour, "value": at} for at, colour in levels]
    defaults = {"unit": unit, "thresholds": {"mode": "absolute", "steps": steps}}
    options = {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "colorMode": "value" if levels else "none",
        "graphMode": "area",
    }
    return panel("stat", title, about, [(expression, "")], defaults, options, (4, 4))


def table(title, about, *queries):
    """A row for each series, a column for each query. A query is (expression, heading)."""
    made = panel("table", title, about, queries, {"unit": "short"}, {"showHeader": True}, (COLUMNS, 9))
    for target in made["targets"]:
        target.update(format="table", instant=True, range=False)
    headings = {f"Value #{target['refId']}": heading for target, (_, heading) in zip(made["targets"], queries)}
    made["transformations"] = [
        {"id": "merge", "options": {}},
        {"id": "organize", "options": {"excludeByName": {"Time": True}, "renameByName": headings}},
    ]
    return made


def panel(kind, title, about, queries, defaults, options, size):
    targets = [
        {"refId": chr(ord("A") + at), "expr": expression, "legendFormat": legend, "datasource": DATASOURCE}
        for at, (expression, legend) in enumerate(queries)
    ]
    return {
        "type": kind,
        "title": title,
        "description": about,
        "datasource": DATASOURCE,
        "targets": targets,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
        "gridPos": {"w": size[0], "h": size[1]},
    }


ALL_REQUESTS = f"sum({rate('tidegate_requests_total')}) or sum({rate('ratelimit_service_total_requests')})"
OVERVIEW = [
    stat("Requests", ALL_REQUESTS, "reqps"),
    stat(
        "Denied hits",
        f"sum({rate(LIMIT + 'over_limit', IN)}) / sum({rate(LIMIT + 'total_hits', IN)})",
        "percentunit",
        "The share of all hits that was over a limit.",
    ),
    stat(
        "No decision",
        f"sum({rate('tidegate_requests_total', ON + ', ' + FAILED)}) / sum({rate('tidegate_requests_total')})",
        "percentunit",
        "The share of requests that got an error instead of a decision. The objective of the alerts is 0.1 %.",
        [(0.001, "orange"), (0.0144, "red")],
    ),
    stat(
        "p99 of answers",
        quantile(0.99, "ratelimit_service_response_time_seconds"),
        "s",
        "From the message of a gRPC call to its answer.",
    ),
    stat(
        "Breakers open",
        f"sum(tidegate_redis_breaker_open{{{ON}}}) or vector(0)",
        about="Instances that do not ask Redis, because it does not answer.",
        levels=[(1, "red")],
    ),
    stat(
        "Refused reloads",
        f"count(tidegate_config_last_reload_successful{{{ON}}} == 0) or vector(0)",
        about="Instances that refused the last rules that they were given.",
        levels=[(1, "orange")],
    ),
    plot(
        "Requests by outcome",
        (f"sum by (code) ({rate('tidegate_requests_total')}) > 0", "{{code}}"),
        unit="reqps",
        stack=True,
    ),
    plot(
        "Time to answer",
        *((quantile(q, "ratelimit_service_response_time_seconds"), f"p{100 * q:g}") for q in (0.5, 0.9, 0.99)),
        unit="s",
    ),
    plot(
        "Errors by cause",
        (f"sum by (err_type) ({rate('ratelimit_service_should_rate_limit_error')})", "{{err_type}}"),
        unit="reqps",
    ),
    plot(
        "Hits by domain",
        (f"sum by (domain) ({rate(LIMIT + 'total_hits', IN)})", "{{domain}}"),
        unit="cps",
        stack=True,
    ),
    plot(
        "Denied hits by domain",
        (f"sum by (domain) ({rate(LIMIT + 'over_limit', IN)})", "{{domain}}"),
        unit="cps",
        stack=True,
    ),
    plot(
        "Without a rule",
        (f"sum by (domain) ({rate('tidegate_unmatched_total', IN)})", "{{domain}}: no rule"),
        (f"sum by (domain) ({rate(LIMIT + 'domain_not_found')})", "{{domain}}: no such domain"),
        unit="cps",
        about="Descriptors that met no rule, and those of domains without rules. All of them pass.",
    ),
]

BY_RULE = [
    plot("Hits (top 10)", (top(rate(LIMIT + "total_hits", IN)), RULE_NAME), unit="cps"),
    plot("Denied (top 10)", (top(rate(LIMIT + "over_limit", IN)), RULE_NAME), unit="cps"),
    plot(
        "Near the limit (top 10)",
        (top(rate(LIMIT + "near_limit", IN)), RULE_NAME),
        unit="cps",
        about="Hits within the limit, but beyond NEAR_LIMIT_RATIO of it.",
    ),
    plot(
        "Share that is denied (top 10)",
        (
            f"topk(10, sum by ({RULE}) ({rate(LIMIT + 'over_limit', IN)})"
            f" / sum by ({RULE}) ({rate(LIMIT + 'total_hits', IN)}))",
            RULE_NAME,
        ),
        unit="percentunit",
        max_1=True,
    ),
    plot(
        "Let pass by shadow mode",
        (top(rate(LIMIT + "shadow_mode", IN)), RULE_NAME),
        (f"sum({rate('ratelimit_service_global_shadow_mode')})", "requests, by SHADOW_MODE"),
        unit="cps",
    ),
    plot(
        "Denied from the local cache",
        (top(rate(LIMIT + "over_limit_with_local_cache", IN)), RULE_NAME),
        unit="cps",
        about="Without asking Redis (LOCAL_CACHE_SIZE_IN_BYTES).",
    ),
    table(
        "Rules, by the second",
        "",
        (f"sum by ({RULE}) ({rate(LIMIT + 'total_hits', IN)})", "hits"),
        (f"sum by ({RULE}) ({rate(LIMIT + 'within_limit', IN)})", "within"),
        (f"sum by ({RULE}) ({rate(LIMIT + 'near_limit', IN)})", "near"),
        (f"sum by ({RULE}) ({rate(LIMIT + 'over_limit', IN)})", "over"),
    ),
]

BUDGETS = [
    plot(
        "Reservations",
        (f"sum by (result) ({rate('tidegate_reservations_total')})", "{{result}}"),
        (f"sum by (was) ({rate('tidegate_commits_total')})", "committed: {{was}}"),
        unit="cps",
    ),
    plot(
        "Held for a call",
        (f"max by (rule) (tidegate_hold{{{ON}}})", "{{rule}}"),
        unit="short",
        about="Hits that a reservation holds by a rule with `hold`, learnt from what calls cost.",
    ),
    plot(
        "Commits above the hold",
        (f"sum by (rule) ({rate('tidegate_commits_above_hold_total')})", "{{rule}}"),
        (f"sum by (rule) ({rate('tidegate_commits_above_max_total')})", "{{rule}}: above max"),
        unit="cps",
        about="What a commit costs above `max` may exceed the overdraft of its rule.",
    ),
    plot(
        "Denied by bans",
        (f"sum({rate('tidegate_banned_total')})", "descriptors"),
        unit="cps",
    ),
    plot(
        "Bans",
        (f"sum(tidegate_bans{{{ON}}})", "in force"),
        (f"sum(increase(tidegate_bans_seen_total{{{ON}}}[$__rate_interval]))", "begun"),
        (f"sum(increase(tidegate_bans_not_listed_total{{{ON}}}[$__rate_interval]))", "not listed"),
        about="As far as each instance has seen them.",
    ),
]

LEASES = "tidegate_redis_lease_hits_"
STORE = [
    plot(
        "Counters in memory",
        (f"tidegate_counters{{{ON}}}", "{{instance}}"),
    ),
    plot(
        "Bytes of counters",
        (f"tidegate_counters_bytes{{{ON}}}", "{{instance}}"),
        (f"max(tidegate_counters_bytes_max{{{ON}}})", "bound"),
        unit="bytes",
        about="At the bound (MAX_COUNTER_BYTES), descriptors that need a new counter get STORE_FULL_MODE.",
    ),
    plot(
        "Found no room, expired",
        (f"sum by (answer) ({rate('tidegate_store_full_total')})", "no room: {{answer}}"),
        (f"sum({rate('tidegate_counters_expired_total')})", "expired"),
        unit="cps",
    ),
    plot(
        "Reported costs that did not fit",
        (f"sum({rate('tidegate_reported_beyond_limit_hits_total')})", "charged beyond a limit"),
        (f"sum({rate('tidegate_reported_dropped_hits_total')})", "dropped"),
        (f"sum({rate('tidegate_redis_reported_beyond_limit_hits_total')})", "Redis: charged beyond a limit"),
        (f"sum({rate('tidegate_redis_reported_dropped_hits_total')})", "Redis: dropped"),
        unit="cps",
    ),
    plot(
        "Counters on disk",
        (f"sum by (outcome) ({rate('tidegate_state_checkpoints_total')})", "checkpoints {{outcome}}"),
        (f"max(tidegate_cold_seconds{{{ON}}})", "seconds until no counter is cold"),
        about="STATE_DIR and COLD_START.",
    ),
    plot(
        "Redis: calls",
        (f"sum by (store) ({rate('tidegate_redis_round_trips_total')})", "{{store}}: calls"),
        (f"sum by (store) (tidegate_redis_in_flight{{{ON}}})", "{{store}}: waiting now"),
    ),
    plot(
        "Redis: round trip",
        *((quantile(q, "tidegate_redis_round_trip_seconds"), f"p{100 * q:g}") for q in (0.5, 0.99)),
        unit="s",
    ),
    plot(
        "Redis: failures",
        (f"sum by (store, kind) ({rate('tidegate_redis_failures_total')})", "{{store}} {{kind}}"),
        (f"sum by (store) ({rate('tidegate_redis_memory_lost_total')})", "{{store}}: memory lost"),
        unit="cps",
    ),
    plot(
        "Redis: breaker and connections",
        (f"sum by (store) (tidegate_redis_breaker_open{{{ON}}})", "{{store}}: breakers open"),
        (f"sum by (store) (tidegate_redis_connections{{{ON}}})", "{{store}}: connections"),
        (f"sum by (store) ({rate('tidegate_redis_connections_opened_total')})", "{{store}}: opened by the second"),
    ),
    plot(
        "Redis: leases",
        (f"sum({rate('tidegate_redis_leases_total')})", "taken"),
        (f"sum({rate(LEASES + 'taken_total')})", "hits taken"),
        (f"sum({rate(LEASES + 'spent_total')})", "hits spent"),
        (f"sum({rate(LEASES + 'given_back_total')})", "hits given back"),
        unit="cps",
        about="Hits that are neither spent nor given back are lost until their window ends.",
    ),
    plot(
        "Redis: local cache",
        (f"sum({rate('ratelimit_localcache_hitCount')})", "hits by the second"),
        (f"sum(ratelimit_localcache_entryCount{{{ON}}})", "entries"),
    ),
    plot(
        "Redis: pool, by the names of envoyproxy/ratelimit",
        (f"sum(ratelimit_redis_pool_cx_active{{{ON}}})", "open"),
        (f"sum({rate('ratelimit_redis_pool_cx_total')})", "opened by the second"),
        (f"sum({rate('ratelimit_redis_pool_cx_local_close')})", "closed by the second"),
    ),
]

PROCESS = [
    plot(
        "CPU",
        (f"{rate('process_cpu_seconds_total')} and on (job, instance) tidegate_build_info", "{{instance}}"),
        unit="cores",
    ),
    plot(
        "Memory",
        (f"process_resident_memory_bytes{{{ON}}} and on (job, instance) tidegate_build_info", "{{instance}}"),
        unit="bytes",
    ),
    plot(
        "Open files",
        (f"process_open_fds{{{ON}}} and on (job, instance) tidegate_build_info", "{{instance}}"),
        (f"min(process_max_fds{{{ON}}} and on (job, instance) tidegate_build_info)", "bound"),
    ),
    plot(
        "Time of a decision",
        *((quantile(q, "tidegate_decision_seconds"), f"p{100 * q:g}") for q in (0.5, 0.99)),
        unit="s",
        about="In the engine alone.",
    ),
    plot("Connections", (f"sum by (instance) (tidegate_lane_connections{{{ON}}})", "{{instance}}"), about="Of the gRPC port."),
    plot(
        "Connections and streams that ended badly",
        (f"sum by (by) ({rate('tidegate_lane_resets_total')})", "streams reset by {{by}}"),
        (f"sum({rate('tidegate_lane_misbehaved_total')})", "clients that misbehaved"),
        (f"sum by (port) ({rate('tidegate_tls_handshakes_failed_total')})", "TLS handshakes failed: {{port}}"),
        unit="cps",
    ),
    plot(
        "Reloads",
        (f"sum(increase(ratelimit_service_config_load_success{{{ON}}}[$__rate_interval]))", "taken"),
        (f"sum(increase(ratelimit_service_config_load_error{{{ON}}}[$__rate_interval]))", "refused"),
        (f"sum(increase(tidegate_tls_reloads_failed_total{{{ON}}}[$__rate_interval]))", "certificates refused"),
    ),
    plot(
        "Rules",
        (f"tidegate_rules{{{ON}}}", "{{instance}}: rules"),
        (f"tidegate_rules_warnings{{{ON}}}", "{{instance}}: warnings"),
    ),
    plot(
        "Rules: nodes by hash",
        (f"count by (hash) (tidegate_rules_info{{{ON}}})", "{{hash}}"),
    ),
    plot(
        "Certificates end in",
        (f"tidegate_tls_certificate_not_after_timestamp_seconds{{{ON}}} - time()", "{{instance}} {{port}}"),
        unit="s",
    ),
    plot(
        "Not logged",
        (f"sum({rate('tidegate_denials_not_logged_total')})", "denials without a line in the log"),
        (f"sum({rate('tidegate_statsd_timers_dropped_total')})", "durations that StatsD did not take"),
        unit="cps",
    ),
    plot(
        "Events",
        (f"sum by (event) ({rate('tidegate_events_total')})", "{{event}}"),
        (f"sum({rate('tidegate_events_left_out_total')})", "left out"),
        unit="cps",
        about="EVENTS_LOG and EVENTS_WEBHOOK_URL.",
    ),
    plot(
        "Events by outlet",
        (f"sum by (to) ({rate('tidegate_events_sent_total')})", "{{to}}: sent"),
        (f"sum by (to, reason) ({rate('tidegate_events_dropped_total')})", "{{to}}: dropped ({{reason}})"),
        (f"sum by (to) ({rate('tidegate_events_failures_total')})", "{{to}}: attempts that failed"),
        (f"sum by (to) (tidegate_events_waiting{{{ON}}})", "{{to}}: waiting now"),
    ),
    plot(
        "Up for",
        (f"time() - process_start_time_seconds{{{ON}}} and on (job, instance) tidegate_build_info", "{{instance}}"),
        unit="s",
    ),
    plot(
        "Rules in force for",
        (f"time() - tidegate_config_last_reload_success_timestamp_seconds{{{ON}}} > 0", "{{instance}}"),
        unit="s",
    ),
]


def variable(name, query):
    """A choice of values of a label, all of them at first."""
    return {
        "name": name,
        "label": name,
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }


VARIABLES = [
    {"name": "datasource", "label": "data source", "type": "datasource", "query": "prometheus"},
    variable("domain", f"label_values({LIMIT}total_hits, domain)"),
    variable("instance", "label_values(ratelimit_service_total_requests, instance)"),
]


def placed(rows):
    """All panels with their numbers and places: a heading for each row, then its panels from left to right."""
    panels, top = [], 0
    for title, members in rows:
        panels.append({"type": "row", "title": title, "collapsed": False, "panels": [], "gridPos": {"x": 0, "y": top, "w": COLUMNS, "h": 1}})
        left, top = 0, top + 1
        for member in members:
            size = member["gridPos"]
            if left + size["w"] > COLUMNS:
                left, top = 0, top + height
            height = size["h"]
            member["gridPos"] = {"x": left, "y": top, **size}
            panels.append(member)
            left += size["w"]
        top += height
    return [{"id": at, **panel} for at, panel in enumerate(panels, start=1)]


def dashboard():
    rows = [("Overview", OVERVIEW), ("By rule", BY_RULE), ("Budgets and bans", BUDGETS), ("Store", STORE), ("Process", PROCESS)]
    return {
        "uid": "tidegate",
        "title": "Tidegate",
        "description": "The rate limiter: what it answers, by rule, its store, its process.",
        "tags": ["tidegate", "ratelimit"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "30s",
        "templating": {"list": VARIABLES},
        "annotations": {"list": []},
        "panels": placed(rows),
    }


if __name__ == "__main__":
    text = json.dumps(dashboard(), indent=1, ensure_ascii=False) + "\n"
    if "--check" in sys.argv:
        sys.exit(0 if FILE.read_text() == text else "dashboard.json is another one: run dashboard.py")
    FILE.write_text(text)
