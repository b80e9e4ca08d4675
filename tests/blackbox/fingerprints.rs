//! The recipes in docs/proxies.md for fingerprints, networks and countries, through a real Envoy and a real NGINX: what
//! the proxy finds out counts, and what a client claims does not.

use std::process::Command;

use crate::harness::envoy::{Envoy, Upstream};
use crate::harness::pki::Authority;
use crate::harness::programs::succeed;
use crate::harness::proxy::Proxy;
use crate::harness::tidegate::Setup;
use crate::logins::{blocks, indented};

const TITLE: &str = "Fingerprints, networks and countries";
const RULES: &str = "
domain: edge
rate_limits:
  - actions: [{request_headers: {header_name: x-country, descriptor_key: country}}]
  - actions: [{request_headers: {header_name: x-asn, descriptor_key: asn}}]
descriptors:
  - key: ja4
    rate_limit: {unit: day, requests_per_unit: 3}
  - key: country
    value: DE
    rate_limit: {unit: day, requests_per_unit: 2}
  - key: asn
    value: AS64496
    rate_limit: {unit: day, requests_per_unit: 1}
";

#[test]
fn through_envoy_fingerprints_and_countries_count_and_cannot_be_forged() {
    let setup = Setup::new().rules("edge.yaml", RULES);
    let identity = Authority::new("tests").issue("localhost").write(setup.outside());
    let limiter = setup.start();
    let [listener, manager, filter, route] = &blocks(TITLE, "yaml")[..] else { panic!("four blocks") };
    let head =
        "    - name: edge\n      address: { socket_address: { address: 127.0.0.1, port_value: 10000 } }\n";
    let chain = "      filter_chains:\n        - filters:\n";
    let tls = format!(
        "      filter_chains:\n        - transport_socket:\n            name: tls\n            typed_config:\n              \
         \"@type\": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext\n              \
         common_tls_context: {{ tls_certificates: [{{ certificate_chain: {{ filename: {:?} }}, private_key: \
         {{ filename: {:?} }} }}] }}\n          filters:\n",
        identity.chain, identity.key
    );
    let (ratelimit, guarded, path) = (
        "                  # Stage 0: what most routes use.",
        "                        # Guarded: without Tidegate, no login.",
        "                normalize_path: true\n",
    );
    let shop = "                        - match: { prefix: /pages }\n                          route:\n                            \
                cluster: application\n";
    let changes = [
        (&*format!("{head}{chain}"), &*format!("{head}{}{tls}", indented(listener, 6))),
        (path, &format!("{path}{}", indented(manager, 16))),
        (ratelimit, &format!("{}{ratelimit}", indented(filter, 18))),
        (guarded, &format!("{shop}{}{guarded}", indented(route, 28))),
    ];
    let envoy = Envoy::start_changed(&Upstream::at(&limiter), &changes);
    let page = format!("https://127.0.0.1:{}/pages", envoy.port);
    let ask = |tls: &str, address: &str, forged: usize| {
        let headers = [
            format!("x-forwarded-for: {address}"),
            format!("x-ja4: {forged}"),
            format!("x-country: other-{forged}"),
            format!("x-asn: other-{forged}"),
        ];
        let headers = headers.iter().flat_map(|header| ["-H", header]);
        let quiet = ["-sSk", "--noproxy", "*", "-o", "/dev/null", "-w", "%{http_code}", "--tls-max"];
        let quiet = quiet.into_iter().chain(tls.split(' '));
        succeed(Command::new("curl").args(quiet).args(headers).arg(&page))
    };
    assert_eq!([0, 1, 2, 3].map(|forged| ask("1.3", "198.51.100.1", forged)), ["200", "200", "200", "429"]);
    assert_eq!([4, 5, 6].map(|forged| ask("1.2", "192.0.2.7", forged)), ["200", "200", "429"], "a country");
    assert_eq!(ask("1.2", "198.51.100.2", 7), "200", "another, by the same program");
    assert_eq!(ask("1.2", "198.51.100.3", 8), "429", "and its fingerprint");
    let other = "1.3 --tls13-ciphers TLS_AES_128_GCM_SHA256";
    assert_eq!([9, 10].map(|forged| ask(other, "203.0.113.5", forged)), ["200", "429"], "a network");
    assert_eq!(ask(other, "198.51.100.4", 11), "200", "another, by the same program");
}

#[test]
fn through_nginx_countries_count_and_cannot_be_forged() {
    let limiter = Setup::new().rules("edge.yaml", RULES).start();
    let [lists, header] = &blocks(TITLE, "nginx")[..] else { panic!("two blocks") };
    let (status, address) =
        ("# The status for the client when", "proxy_set_header X-Forwarded-For $remote_addr;");
    let changes = [(status, format!("{lists}{status}")), (address, format!("{header}{address}"))];
    let to = format!("127.0.0.1:{}", limiter.ports().http);
    let proxy = Proxy::start_nginx_changed(&to, crate::harness::application::start(), &changes);
    let ask = |host: u8| {
        let forged = [("x-country", "other"), ("x-asn", "other")];
        proxy.client(host).send("GET", "/", &forged, "").expect("an answer").status
    };
    assert_eq!([0; 3].map(|_| ask(2)), [200, 200, 429]);
    assert_eq!([0; 3].map(|_| ask(3)), [200; 3], "no country");
    assert_eq!([0; 2].map(|_| ask(4)), [200, 429], "a network");
}
