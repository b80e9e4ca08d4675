"""Requests of clients through the gateway, each with the answer that its policy promises."""

import http.client
import json
import socket
import ssl

from asking import ask, exact, expect, statuses
from pods import LIMITER, eventually


def metric(name, **labels):
    """A metric of the limiter: the sum of all series that have these labels."""
    connection = http.client.HTTPConnection(LIMITER, 19001, timeout=60)
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    wanted = [f'{label}="{value}"' for label, value in labels.items()]
    of_name = [line for line in lines if line.split("{")[0].split(" ")[0] == name]
    return sum(float(line.rsplit(" ", 1)[1]) for line in of_name if all(label in line for label in wanted))


def descriptor(route):
    """The key that Envoy Gateway gives the descriptor of a route."""
    return f"httproute/default/{route}/rule/0/match/0/*"


def of_rule(stat, route):
    return metric(f"ratelimit_service_rate_limit_{stat}", key1=f"{descriptor(route)}_{descriptor(route)}")


def each_kind_of_limit():
    """Every policy, with counters that begin at zero: N requests pass, and the next one is a 429."""
    expect("no policy", statuses(5, "/open"), [200] * 5)
    for user in ["ann", "bob"]:
        exact(f"3 an hour of each user, {user}", 3, "/users", user=user)
    status, headers = ask("/users", user="cat")
    shown = status, headers["x-ratelimit-limit"], headers["x-ratelimit-remaining"]
    expect("what headers say, cat", shown, (200, "3, 3;w=3600", "2"))
    expect("without the header", statuses(5, "/users"), [200] * 5)

    written = [ask("/orders/a/1", method=method)[0] for method in ["POST", "PUT", "POST"]]
    expect("2 an hour by POST or PUT to /orders/a", written, [200, 200, 429])
    expect("… and PUT", statuses(1, "/orders/a/2", method="PUT"), [429])
    expect("… another method", statuses(4, "/orders/a/1"), [200] * 4)
    expect("… another path", statuses(4, "/orders/b", method="POST"), [200] * 4)

    together = [ask("/inside", address=address)[0] for address in ["127.1.0.1", "127.1.9.9"] * 2]
    expect("4 an hour of a network", together, [200] * 4)
    expect("… and no address of it gets more", [ask("/inside", address=a)[0] for a in ["127.1.0.1", "127.1.7.7"]], [429, 429])
    for address in ["127.2.0.1", "127.2.0.2"]:
        exact(f"2 an hour of each address of a network, {address}", 2, "/inside", address=address)
    expect("another address", statuses(5, "/inside", address="127.3.0.1"), [200] * 5)
    outside = [ask("/outside", address=address)[0] for address in ["127.3.0.1", "127.4.0.1", "127.3.0.1"]]
    expect("2 an hour outside of a network", outside, [200, 200, 429])
    expect("… inside of it", statuses(5, "/outside", address="127.1.0.1"), [200] * 5)

    shared = [ask(path, user="ann")[0] for path in ["/north", "/south"] * 2]
    expect("4 an hour for two routes together", shared, [200] * 4)
    expect("… then neither", [ask(path, user="ann")[0] for path in ["/north", "/south"]], [429, 429])
    expect("… another user", [ask(path, user="bob")[0] for path in ["/north", "/south"]], [200, 200])

    asked = [ask("/asked", user="ann", x_cost=cost)[0] for cost in [4, 4, 2, 1]]
    expect("requests that cost 4, 4, 2 and 1 of 10", asked, [200, 200, 200, 429])
    for _ in range(100):
        ask("/asked", user="many", x_cost=1)
    asked = [ask("/asked", user="bob", x_cost=cost)[0] for cost in [8, 3, 2, 1]]
    expect("… 8, 3, 2 and 1, when a rule knows that its costs are asked for", asked, [200, 429, 200, 429])
    spend("20 an hour, a request costs 1 and its response 8", "spent", 3, 9, x_app_cost=8)
    spend("20 tokens an hour, a request costs 0 and its response 10", "tokens", 2, 10, x_cost=0, x_app_cost=10)

    exact("1 an hour, if metadata has no other limit", 1, "/tenant", user="ann")
    exact("… 3, if it has that", 3, "/tenant", user="bob", x_limit=3)
    expect("2 a month in shadow mode", statuses(4, "/shadow", user="ann"), [200] * 4)
    expect("… over it, in metrics", [of_rule(stat, "shadow") for stat in ["over_limit", "shadow_mode"]], [2, 2])
    for unit, limit in [("day", 2), ("month", 3)]:
        exact(f"{limit} a {unit}", limit, f"/{unit}", user="ann")
    expect("… a day, another user", statuses(1, "/day", user="bob"), [200])
    for key in ["a", "b"]:
        exact(f"2 a week for each value of a query parameter, {key}", 2, f"/query?key={key}")
    exact("none at all", 0, "/nobody")


def spend(what, route, passes, each, **headers):
    """This many responses pass, because their costs are charged when they are sent. Then nothing passes."""
    for number in range(1, passes + 1):
        expect(f"{what}, response {number}", statuses(1, f"/{route}", user="ann", **headers), [200])
        eventually("the cost", lambda: of_rule("total_hits", route) == each * number)
    expect("… then none", statuses(1, f"/{route}", user="ann", **headers), [429])
    expect("… another user", statuses(1, f"/{route}", user="bob", **headers), [200])


def used_up():
    """Limits that were used up stay used up: nobody gets one request too many."""
    expect("users, ann", statuses(2, "/users", user="ann"), [429] * 2)
    expect("orders", statuses(2, "/orders/a/1", method="PUT"), [429] * 2)
    expect("inside", statuses(2, "/inside", address="127.1.3.3"), [429] * 2)
    expect("outside", statuses(2, "/outside", address="127.5.0.1"), [429] * 2)
    expect("shared", [ask(path, user="ann")[0] for path in ["/north", "/south"]], [429] * 2)
    expect("asked", statuses(1, "/asked", user="ann", x_cost=1), [429])
    expect("spent, tokens", [ask(path, user="ann", x_cost=0)[0] for path in ["/spent", "/tokens"]], [429] * 2)
    expect("shadow", statuses(1, "/shadow", user="ann"), [200])
    expect("day, month", [ask("/day", user="ann")[0], ask("/month")[0]], [429] * 2)


def ask_limiter(user):
    """Asks the limiter itself, over HTTP, about a request of this user to the route `users`. Returns the status."""
    entries = [{"key": descriptor("users"), "value": descriptor("users")}, {"key": "rule-0-match-0", "value": user}]
    body = json.dumps({"domain": "default/eg/http", "descriptors": [{"entries": entries}]})
    connection = http.client.HTTPConnection(LIMITER, 8080, timeout=60)
    connection.request("POST", "/json", body, {"content-type": "application/json"})
    return connection.getresponse().status


def shows(authority):
    """Whether the limiter's gRPC port shows a certificate of this authority."""
    context = ssl.create_default_context(cafile=str(authority))
    context.check_hostname = False
    try:
        context.wrap_socket(socket.create_connection((LIMITER, 8081), 60)).close()
    except ssl.SSLCertVerificationError:
        return False
    return True
