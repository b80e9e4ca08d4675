//! The limiter of Envoy AI Gateway, as `values-ai-gateway.yaml` starts it: its control plane is played, with a state of the kind
//! that a QuotaPolicy becomes, and its filter runs in a real Envoy, where headers stand for what its processor knows.

use std::ops::Deref;

use serde_json::{Value, json};

use super::chart::{chart, render};
use super::started::Pod;
use super::{documents, environment, workload};
use crate::harness::control_plane::ControlPlane;
use crate::harness::envoy::Envoy;
use crate::harness::eventually_true;
use crate::harness::grpc::ask_only;
use crate::harness::pki::write;
use crate::harness::redis::Redis;
use crate::harness::tidegate::Tidegate;

pub const DOMAIN: &str = "ai-gateway-quota";

/// Each answer costs 19 tokens, and each request 1 in addition.
const ENVOY: &str = r#"
admin: { address: { socket_address: { address: 127.0.0.1, port_value: 9901 } } }
static_resources:
  listeners:
    - address: { socket_address: { address: 127.0.0.1, port_value: 10000 } }
      filter_chains:
        - filters:
            - name: envoy.filters.network.http_connection_manager
              typed_config:
                "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: gateway
                http_filters:
                  - name: envoy.filters.http.header_to_metadata
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.header_to_metadata.v3.Config
                      request_rules:
                        - { header: x-backend, on_header_present: { metadata_namespace: io.envoy.ai_gateway, key: ai_service_backend_name } }
                        - { header: x-model, on_header_present: { metadata_namespace: io.envoy.ai_gateway, key: model_name_override } }
                      response_rules:
                        - { header: x-cost, on_header_present: { metadata_namespace: io.envoy.ai_gateway, key: quota_cost, type: NUMBER } }
                  - name: envoy.filters.http.ratelimit/ai-gateway-quota
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit
                      domain: ai-gateway-quota
                      timeout: 10s
                      disable_x_envoy_ratelimited_header: true
                      enable_x_ratelimit_headers: DRAFT_VERSION_03
                      rate_limit_service:
                        transport_api_version: V3
                        grpc_service: { envoy_grpc: { cluster_name: ai_gateway_ratelimit_cluster } }
                  - name: envoy.filters.http.router
                    typed_config: { "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router }
                route_config:
                  virtual_hosts:
                    - name: models
                      domains: ["*"]
                      routes:
                        - match: { prefix: / }
                          route: { cluster: model }
                          typed_per_filter_config:
                            envoy.filters.http.ratelimit/ai-gateway-quota:
                              "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute
                              domain: ai-gateway-quota
                              rate_limits: RATE_LIMITS
    - address: { socket_address: { address: 127.0.0.1, port_value: 10080 } }
      filter_chains:
        - filters:
            - name: envoy.filters.network.http_connection_manager
              typed_config:
                "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: model
                http_filters:
                  - name: envoy.filters.http.router
                    typed_config: { "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router }
                route_config:
                  virtual_hosts:
                    - name: model
                      domains: ["*"]
                      response_headers_to_add: [{ header: { key: x-cost, value: "19" } }]
                      routes: [{ match: { prefix: / }, direct_response: { status: 200 } }]
  clusters:
    - name: model
      connect_timeout: 10s
      load_assignment:
        cluster_name: model
        endpoints: [{ lb_endpoints: [{ endpoint: { address: { socket_address: { address: 127.0.0.1, port_value: 10080 } } } }] }]
    - name: ai_gateway_ratelimit_cluster
      connect_timeout: 10s
      typed_extension_protocol_options:
        envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
          "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
          explicit_http_config: { http2_protocol_options: {} }
      load_assignment:
        cluster_name: ai_gateway_ratelimit_cluster
        endpoints: [{ lb_endpoints: [{ endpoint: { address: { socket_address: { address: 127.0.0.1, port_value: LIMITER } } } }] }]
"#;

/// What the control plane makes of a policy: 20 a unit for the model `small`; for `large` 100 with a header, 40 for each user,
/// and 60 for all. Each is in quota mode.
pub fn state(unit: &str) -> Value {
    let leaf = |key: &str, value: Option<&str>, requests: u32| {
        let limit = json!({"unit": unit, "requests_per_unit": requests});
        json!({"key": key, "value": value.unwrap_or_default(), "rate_limit": limit, "quota_mode": true})
    };
    let buckets = json!([
        leaf("rule-0-x-tier|gold-match-0", Some("rule-0-x-tier|gold-match-0"), 100),
        leaf("rule-1-x-user-match-0", None, 40),
        leaf("rule-2-match--1", Some("rule-2-match--1"), 60),
    ]);
    let models = json!([
        leaf("model_name_override", Some("small"), 20),
        {"key": "model_name_override", "value": "large", "descriptors": buckets},
    ]);
    let backend = json!({"key": "backend_name", "value": "default/openai", "descriptors": models});
    json!([{"name": DOMAIN, "domain": DOMAIN, "descriptors": [backend]}])
}

/// What the filter asks: each bucket before the request, and again with the tokens when the stream is done.
fn rate_limits() -> Value {
    let metadata = |key: &str, name: &str| {
        json!({"metadata": {"descriptor_key": key, "source": "DYNAMIC",
            "metadata_key": {"key": "io.envoy.ai_gateway", "path": [{"key": name}]}}})
    };
    let base = [
        metadata("backend_name", "ai_service_backend_name"),
        metadata("model_name_override", "model_name_override"),
    ];
    let tier = json!({"header_value_match": {"descriptor_key": "rule-0-x-tier|gold-match-0",
        "descriptor_value": "rule-0-x-tier|gold-match-0", "expect_match": true,
        "headers": [{"name": "x-tier", "string_match": {"exact": "gold"}}]}});
    let user =
        json!({"request_headers": {"header_name": "x-user", "descriptor_key": "rule-1-x-user-match-0"}});
    let all =
        json!({"generic_key": {"descriptor_key": "rule-2-match--1", "descriptor_value": "rule-2-match--1"}});
    let buckets = [None, Some(tier), Some(user), Some(all)];
    let limits = buckets.iter().flat_map(|bucket| {
        let actions: Vec<_> = base.iter().chain(bucket).collect();
        let cost = json!({"format": "%DYNAMIC_METADATA(io.envoy.ai_gateway:quota_cost)%"});
        [
            json!({"actions": actions}),
            json!({"actions": actions, "hits_addend": cost, "apply_on_stream_done": true}),
        ]
    });
    limits.collect()
}

/// The limiter that the chart's values make, with the rules of its control plane.
pub struct Limiter {
    limiter: Tidegate,
    _plane: ControlPlane,
    _redis: Redis,
}

impl Limiter {
    /// With more settings, and with these rules.
    pub fn start(settings: &[(&str, &str)], state: &Value) -> Self {
        let redis = Redis::start(&[]);
        let mut plane = ControlPlane::start();
        let folder = tempfile::tempdir().expect("a folder can be made");
        let values = json!({"store": {"redis": {"url": redis.url()}}}).to_string();
        let values = write(folder.path(), "values.yaml", &values);
        let made =
            render(&chart(), &[&chart().join("values-ai-gateway.yaml"), &values]).expect("good values");
        let made = documents(&write(folder.path(), "made.yaml", &made));
        assert!(environment(workload(&made)).contains(&("REDIS_URL", &*redis.url())));
        let server = format!("127.0.0.1:{}", plane.port);
        let pod = Pod::of(&made).env("CONFIG_GRPC_XDS_SERVER_URL", &server).env("REDIS_TIMEOUT", "10s");
        // Ready, although the plane has sent nothing yet.
        let limiter = settings.iter().fold(pod, |pod, (name, value)| pod.env(name, value)).start();
        assert_eq!(plane.event(0, "request").pointer("/node/id"), Some(&json!("envoy-ai-gateway-ratelimit")));
        plane.send("1", "n1", state);
        assert_eq!(plane.event(1, "request")["versionInfo"], "1");
        Self { limiter, _plane: plane, _redis: redis }
    }
}

impl Deref for Limiter {
    type Target = Tidegate;

    fn deref(&self) -> &Tidegate {
        &self.limiter
    }
}

struct Gateway {
    limiter: Limiter,
    envoy: Envoy,
}

impl Gateway {
    fn start() -> Self {
        let limiter = Limiter::start(&[], &state("HOUR"));
        let config = ENVOY.replace("RATE_LIMITS", &rate_limits().to_string());
        let envoy = Envoy::start_config(&config.replace("LIMITER", &limiter.ports().grpc.to_string()));
        Self { limiter, envoy }
    }

    fn call(&self, headers: &[(&str, &str)]) -> u16 {
        let headers = [headers, &[("x-backend", "default/openai")]].concat();
        self.envoy.client().send("POST", "/v1/chat/completions", &headers, "").expect("Envoy answers").status
    }

    /// So many calls pass, each of which takes 20 of this bucket, and the next one is denied.
    fn exactly(&self, passes: u32, headers: &[(&str, &str)], bucket: &[(&str, &str)], limit: u32) {
        for pass in 1..=passes {
            assert_eq!(self.call(headers), 200, "{headers:?}, {pass}");
            let left = limit.saturating_sub(20 * pass);
            let asked = ask_only(DOMAIN, &[&[&[("backend_name", "default/openai")], bucket].concat()]);
            eventually_true("its tokens", || {
                self.limiter.client().ask(asked.clone()).statuses[0].limit_remaining == left
            });
        }
        assert_eq!(self.call(headers), 429, "{headers:?}");
    }
}

#[test]
fn tokens_are_charged_to_every_bucket_and_a_call_is_denied_when_none_has_room() {
    let gateway = Gateway::start();
    gateway.exactly(1, &[("x-model", "small")], &[("model_name_override", "small")], 20);

    // Her own bucket is empty after two calls; then that of all has room for one.
    let all = [("model_name_override", "large"), ("rule-2-match--1", "rule-2-match--1")];
    gateway.exactly(3, &[("x-model", "large"), ("x-user", "ann")], &all, 60);
    // That of all is empty.
    let ben = [("model_name_override", "large"), ("rule-1-x-user-match-0", "ben")];
    gateway.exactly(2, &[("x-model", "large"), ("x-user", "ben")], &ben, 40);
    // With gold there is a third one.
    let gold =
        [("model_name_override", "large"), ("rule-0-x-tier|gold-match-0", "rule-0-x-tier|gold-match-0")];
    gateway.exactly(5, &[("x-model", "large"), ("x-user", "cid"), ("x-tier", "gold")], &gold, 100);
    // No policy is for this model.
    assert_eq!([(); 3].map(|()| gateway.call(&[("x-model", "other")])), [200; 3]);
}
