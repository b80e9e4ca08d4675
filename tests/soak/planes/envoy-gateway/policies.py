"""The resources of the trial: a route for each kind of limit, and its BackendTrafficPolicy."""

USERS = [{"headers": [{"name": "x-user-id", "type": "Distinct"}]}]


def route(name):
    """A route of all paths below `/name`."""
    return {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "parentRefs": [{"name": "eg"}],
            "rules": [
                {
                    "matches": [{"path": {"type": "PathPrefix", "value": f"/{name}"}}],
                    "backendRefs": [{"group": "gateway.envoyproxy.io", "kind": "Backend", "name": "application"}],
                }
            ],
        },
    }


def policy(name, rules, routes=None):
    """A policy with these limits, for the routes given or for the one of its own name."""
    targets = [{"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": route} for route in routes or [name]]
    return {
        "apiVersion": "gateway.envoyproxy.io/v1alpha1",
        "kind": "BackendTrafficPolicy",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"targetRefs": targets, "rateLimit": {"type": "Global", "global": {"rules": rules}}},
    }


def rule(requests, unit, selectors=None, of=None, **more):
    """A limit for these clients. With `of`, metadata of that name may replace its numbers."""
    limit = {"requests": requests, "unit": unit}
    if of:
        limit["fromMetadata"] = {"namespace": "limits", "key": of}
    return {"limit": limit, **({"clientSelectors": selectors} if selectors else {}), **more}


def network(cidr, kind="Exact", invert=False):
    return [{"sourceCIDR": {"type": kind, "value": cidr, "invert": invert}}]


def cost(*when):
    """A cost from metadata. A `number` would crash an Envoy Gateway that reads files (unsupported type: uint64)."""
    return {each: {"from": "Metadata", "metadata": {"namespace": "costs", "key": each}} for each in when}


def policies(users=3):
    """All policies by name. `users`: the requests an hour of each user on the route `users`."""
    writes = [{"methods": [{"value": "POST"}, {"value": "PUT"}], "path": {"type": "PathPrefix", "value": "/orders/a"}}]
    made = [
        policy("users", [rule(users, "Hour", USERS)]),
        policy("orders", [rule(2, "Hour", writes)]),
        policy("inside", [rule(4, "Hour", network("127.1.0.0/16")), rule(2, "Hour", network("127.2.0.0/16", "Distinct"))]),
        policy("outside", [rule(2, "Hour", network("127.1.0.0/16", invert=True))]),
        policy("both", [rule(4, "Hour", USERS, shared=True)], ["north", "south"]),
        policy("asked", [rule(10, "Hour", USERS, cost=cost("request"))]),
        policy("spent", [rule(20, "Hour", USERS, cost=cost("response"))]),
        policy("tokens", [rule(20, "Hour", USERS, cost=cost("request", "response"))]),
        policy("tenant", [rule(1, "Hour", USERS, of="tenant")]),
        policy("shadow", [rule(2, "Month", USERS, shadowMode=True)]),
        policy("day", [rule(2, "Day", USERS)]),
        policy("month", [rule(3, "Month")]),
        policy("query", [rule(2, "Week", [{"queryParams": [{"name": "key", "type": "Distinct"}]}])]),
        policy("nobody", [rule(0, "Hour")]),
    ]
    return {resource["metadata"]["name"]: resource for resource in made}


NAMES = "open users orders inside outside north south asked spent tokens tenant shadow day month query nobody"
ROUTES = [route(name) for name in NAMES.split()]
