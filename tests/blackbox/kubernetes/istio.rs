//! The EnvoyFilters of `examples/kubernetes/istio.yaml`, put into a real Envoy as Istio puts them into a gateway, and into a
//! sidecar with what the page changes. No Istio runs.

use serde_json::{Value, json};

use super::{list, manifest, of_kind};
use crate::harness::envoy::Envoy;
use crate::harness::tidegate::{Setup, Tidegate};
use crate::harness::{application, http};

/// What Istio makes of a gateway or of a sidecar, as far as it matters here.
const PROXY: &str = r#"
admin: { address: { socket_address: { address: 127.0.0.1, port_value: 9901 } } }
static_resources:
  listeners:
    - address: { socket_address: { address: 127.0.0.1, port_value: 10000 } }
      filter_chains:
        - filters:
            - name: envoy.filters.network.http_connection_manager
              typed_config:
                "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: istio
                use_remote_address: IS_GATEWAY
                http_filters:
                  - HTTP_FILTER
                  - name: envoy.filters.http.router
                    typed_config: { "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router }
                route_config: { virtual_hosts: [VIRTUAL_HOST] }
  clusters: [APPLICATION, CLUSTER]
"#;

/// The Service of the chart, as the EnvoyFilter names it.
const SERVICE: &str = "tidegate.limits.svc.cluster.local";

/// The patches of both EnvoyFilters.
fn patches() -> Vec<Value> {
    let documents = manifest("istio.yaml");
    let filters = of_kind(&documents, "EnvoyFilter").into_iter();
    filters.flat_map(|filter| list(&filter["spec"]["configPatches"]).to_vec()).collect()
}

/// The only patch of this kind, and what it does.
fn patch<'a>(patches: &'a [Value], applies_to: &str, operation: &str) -> &'a Value {
    let mut found = patches.iter().filter(|patch| patch["applyTo"] == applies_to);
    let patch = found.next().unwrap_or_else(|| panic!("nothing applies to {applies_to}"));
    assert!(found.next().is_none(), "{applies_to}");
    assert_eq!(patch["match"]["context"], "GATEWAY");
    assert_eq!(patch["patch"]["operation"], operation);
    &patch["patch"]["value"]
}

/// An object with the members of another one.
fn merged(mut into: Value, value: &Value) -> Value {
    let members = value.as_object().expect("an object").clone();
    into.as_object_mut().expect("an object").extend(members);
    into
}

fn cluster(name: &str, port: u16) -> Value {
    json!({"name": name, "connect_timeout": "10s", "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": [
        {"endpoint": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": port}}}}]}]}})
}

/// A proxy with these patches in front of an application, whose limiter is this one.
fn proxy(patches: &[Value], limiter: &Tidegate, is_gateway: bool) -> Envoy {
    let filter = patch(patches, "HTTP_FILTER", "INSERT_BEFORE");
    let host = json!({"name": "*:80", "domains": ["*"], "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "application"}}]});
    let host = merged(host, patch(patches, "VIRTUAL_HOST", "MERGE"));
    // Istio's name of the cluster. A port with the name `grpc` speaks HTTP/2.
    let name = format!("outbound|8081||{SERVICE}");
    assert_eq!(
        filter.pointer("/typed_config/rate_limit_service/grpc_service/envoy_grpc/cluster_name"),
        Some(&json!(name))
    );
    let options = "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
    let http2 = json!({"typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions":
        {"@type": options, "explicit_http_config": {"http2_protocol_options": {}}}}});
    let limiters = merged(cluster(&name, limiter.ports().grpc), &http2);
    let limiters = merged(limiters, patch(patches, "CLUSTER", "MERGE"));
    let parts = [
        ("IS_GATEWAY", json!(is_gateway)),
        // A busy machine is not what is tested.
        ("HTTP_FILTER", filter.clone()),
        ("VIRTUAL_HOST", host),
        ("APPLICATION", cluster("application", application::start())),
        ("CLUSTER", limiters),
    ];
    let config = parts
        .iter()
        .fold(PROXY.to_owned(), |config, (place, value)| config.replacen(place, &value.to_string(), 1));
    Envoy::start_config(&config.replace("\"0.05s\"", "\"10s\""))
}

/// The limiter of `tidegate.yaml`, with its rules: 100 requests a minute of each address.
fn limiter() -> Tidegate {
    let documents = manifest("tidegate.yaml");
    let rules = of_kind(&documents, "ConfigMap")[0]["data"]["shop.yaml"].as_str().expect("rules").to_owned();
    Setup::new().rules("shop.yaml", &rules).start()
}

fn statuses(client: &mut http::Client, from: &str, times: usize) -> Vec<u16> {
    let mut ask = || client.send("GET", "/", &[("x-forwarded-for", from)], "").expect("Envoy answers").status;
    (0..times).map(|_| ask()).collect()
}

#[test]
fn a_gateway_limits_the_addresses_of_its_connections() {
    let limiter = limiter();
    let envoy = proxy(&patches(), &limiter, true);
    let mut client = http::Client::at([127, 0, 0, 1].into(), envoy.port);
    // What clients claim does not count.
    assert_eq!(statuses(&mut client, "203.0.113.1", 60), [200; 60]);
    assert_eq!(statuses(&mut client, "203.0.113.2", 41), [&[200; 40][..], &[429]].concat());
    let mut other = http::Client::at([127, 0, 0, 2].into(), envoy.port);
    assert_eq!(statuses(&mut other, "203.0.113.1", 1), [200]);
}

/// With another context, and the address that the gateway has seen.
#[test]
fn a_sidecar_limits_the_addresses_that_its_gateway_names() {
    let limiter = limiter();
    let envoy = proxy(&patches(), &limiter, false);
    let mut client = envoy.client();
    assert_eq!(statuses(&mut client, "203.0.113.1", 101), [&[200; 100][..], &[429]].concat());
    assert_eq!(statuses(&mut client, "203.0.113.2", 1), [200]);
}

/// As in Istio's documentation: by path, denied when there is no answer. Without `authority` the name of the cluster takes its
/// place, which is no host name.
#[test]
fn the_name_of_istios_cluster_may_be_the_authority() {
    let rules = "domain: shop\ndescriptors:\n  - {key: PATH, value: /productpage, rate_limit: {unit: minute, requests_per_unit: 1}}\n  \
                 - {key: PATH, rate_limit: {unit: minute, requests_per_unit: 100}}\n";
    let limiter = Setup::new().rules("shop.yaml", rules).env("GRPC_FRONT", "lane").start();
    let mut patches = patches();
    for patch in &mut patches {
        let value = &mut patch["patch"]["value"];
        if let Some(envoy) = value.pointer_mut("/typed_config/rate_limit_service/grpc_service/envoy_grpc") {
            envoy.as_object_mut().expect("an object").remove("authority").expect("it was there");
            value["typed_config"]["failure_mode_deny"] = true.into();
        }
        if let Some(actions) = value.pointer_mut("/rate_limits/0/actions") {
            *actions = json!([{"request_headers": {"header_name": ":path", "descriptor_key": "PATH"}}]);
        }
    }
    let envoy = proxy(&patches, &limiter, true);
    let paths = ["/productpage", "/productpage", "/login", "/login"];
    assert_eq!(paths.map(|path| envoy.client().get(path).status), [200, 429, 200, 200]);
}
