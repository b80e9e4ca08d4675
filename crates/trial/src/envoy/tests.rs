//! What a configuration cannot say alone is named; what it says is found. A real Envoy judges the rest: see
//! `tests/blackbox/envoy_descriptors.rs`.

use super::*;

/// A bootstrap with one listener, whose only route has these fields and these `rate_limits`.
fn bootstrap(options: &str, route: &str, rate_limits: &str) -> String {
    format!(
        "
node: {{cluster: front}}
static_resources:
  listeners:
  - name: ingress
    filterChains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          '@type': type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          {options}
          http_filters:
          - {{name: early, typed_config: {{'@type': type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua}}}}
          - name: limits
            typed_config:
              '@type': type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit
              domain: shop
          - {{name: late, typed_config: {{'@type': type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua}}}}
          route_config:
            virtual_hosts:
            - name: all
              domains: ['*']
              routes:
              - match: {{prefix: /}}
                {route}
                  rate_limits: {rate_limits}
"
    )
}

fn asked(path: &str) -> EnvoyRequest {
    EnvoyRequest {
        path: path.to_owned(),
        headers: vec![("x-user".to_owned(), "alice".to_owned())],
        ..EnvoyRequest::default()
    }
}

const TO_CLUSTER: &str = "route:\n                  cluster: cart";

/// The entries of the only descriptor that this action makes, or what it needs.
fn made(action: &str) -> Result<Vec<(String, String)>, String> {
    let text = bootstrap("", TO_CLUSTER, &format!("[{{actions: [{action}]}}]"));
    let described =
        describe(&text, &asked("/cart?q=7"), &Instance::default()).map_err(|error| error.to_string())?;
    let descriptor = described.calls.first().and_then(|call| call.descriptors.first());
    Ok(descriptor.map(|descriptor| descriptor.entries.clone()).unwrap_or_default())
}

#[test]
fn actions_make_entries_of_the_request_and_of_the_configuration() {
    for (action, key, value) in [
        ("{source_cluster: {}}", "source_cluster", "front"),
        ("{destinationCluster: {}}", "destination_cluster", "cart"),
        ("{requestHeaders: {headerName: X-User, descriptorKey: user}}", "user", "alice"),
        ("{query_parameters: {query_parameter_name: q, descriptor_key: q}}", "q", "7"),
        ("{remote_address: {}}", "remote_address", "127.0.0.1"),
        ("{masked_remote_address: {v4_prefix_mask_len: 8}}", "masked_remote_address", "127.0.0.0/8"),
        ("{generic_key: {descriptor_value: all}}", "generic_key", "all"),
    ] {
        assert_eq!(made(action), Ok(vec![(key.to_owned(), value.to_owned())]), "{action}");
    }
    assert_eq!(made("{request_headers: {header_name: x-none, descriptor_key: none}}"), Ok(Vec::new()));
}

#[test]
fn what_needs_more_is_named_with_its_place() {
    for (action, named) in [
        ("{dynamic_metadata: {descriptor_key: k, metadata_key: {key: a}}}", "the action `dynamic_metadata`"),
        ("{metadata: {descriptor_key: k, metadata_key: {key: a}}}", "metadata of the source DYNAMIC"),
        ("{extension: {name: expr}}", "the action `extension`"),
        ("{generic_key: {descriptor_value: '%REQ(X-USER)%'}}", "which Envoy may compute"),
        (
            "{request_headers: {header_name: x-request-id, descriptor_key: id}}",
            "Envoy sets or changes the header x-request-id",
        ),
        (
            "{header_value_match: {descriptor_value: v, headers: [{name: a, string_match: {custom: {}}}]}}",
            "by an extension",
        ),
    ] {
        let error = made(action).expect_err(action);
        assert!(
            error.contains(named) && error.ends_with("needs more than the file and the request"),
            "{error}"
        );
        assert!(error.starts_with(|char: char| char.is_ascii_digit()), "{error}");
    }
    let weighted = "route:\n                  weighted_clusters: {clusters: []}";
    let header = "route:\n                  cluster_header: x-user";
    let own = "typed_per_filter_config: {limits: {'@type': a.RateLimitPerRoute, new: 1}}\n                ";
    let own = format!("{own}{TO_CLUSTER}");
    let address = "[{actions: [{remote_address: {}}]}]";
    for (options, route, rate_limits, path, named) in [
        ("", weighted, "[{actions: [{destination_cluster: {}}]}]", "/", "does not lead to one cluster"),
        ("", header, address, "/", "a header names the cluster"),
        ("", &own, address, "/", "what the filter asks depends on `new`"),
        ("", TO_CLUSTER, "[{disable_key: off, actions: [{remote_address: {}}]}]", "/", "`disable_key`"),
        (
            "",
            TO_CLUSTER,
            "[{limit: {dynamic_metadata: {}}, actions: []}]",
            "/",
            "comes from `dynamic_metadata`",
        ),
        ("rds: {route_config_name: all}", TO_CLUSTER, "[]", "/", "`rds`: routes come from a control plane"),
        (
            "normalize_path: true",
            TO_CLUSTER,
            address,
            "/a/../b",
            "`normalize_path` may rewrite the path /a/../b",
        ),
        ("strip_any_host_port: true", TO_CLUSTER, address, "/", "may rewrite the host localhost:80"),
        (
            "via: me",
            TO_CLUSTER,
            "[{actions: [{request_headers: {header_name: via}}]}]",
            "/",
            "the header via",
        ),
    ] {
        let text = bootstrap(options, route, rate_limits);
        let asked = EnvoyRequest { host: "localhost:80".to_owned(), ..asked(path) };
        let error = describe(&text, &asked, &Instance::default()).expect_err(named);
        assert!(matches!(error, EnvoyError::Needs { .. }), "{error}");
        assert!(error.to_string().contains(named), "{error}");
    }
    let runtime = "layered_runtime: {layers: [{name: a, static_layer: {ratelimit.http_filter_enabled: 0}}]}";
    let runtime = bootstrap("", TO_CLUSTER, address) + runtime;
    assert!(matches!(describe(&runtime, &asked("/"), &Instance::default()), Err(EnvoyError::Needs { .. })));
    let normal = bootstrap("normalize_path: true", TO_CLUSTER, address);
    assert!(describe(&normal, &asked("/a/b?c=/../"), &Instance::default()).is_ok());
}

#[test]
fn filters_before_that_may_change_the_request_are_listed() {
    let text = bootstrap("", TO_CLUSTER, "[{actions: [{remote_address: {}}]}]");
    let described = describe(&text, &asked("/"), &Instance::default()).expect("a good configuration");
    assert_eq!(
        (described.listener.as_str(), &described.filters_before[..]),
        ("ingress", &["early".to_owned()][..])
    );
    assert!(
        describe(
            &text,
            &asked("/"),
            &Instance { listener: Some("egress".to_owned()), ..Instance::default() }
        )
        .is_err()
    );
}

#[test]
fn a_file_that_is_no_configuration_is_refused() {
    for text in ["", "[]", "domain: shop", "a: [", "static_resources: {listeners: 5}"] {
        assert!(
            matches!(describe(text, &asked("/"), &Instance::default()), Err(EnvoyError::Bad { .. })),
            "{text}"
        );
    }
}
