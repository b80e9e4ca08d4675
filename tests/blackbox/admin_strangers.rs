//! Every endpoint of the admin API, by its own OpenAPI document: asked by those who may not, and with hostile names and
//! values. An endpoint that is added there is tried by itself.

use std::fs;
use std::net::Ipv4Addr;
use std::thread;

use serde_json::{Value, json};

use crate::admin::{TOKEN, call};
use crate::harness::http::Client;
use crate::harness::tidegate::{Setup, Tidegate};

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 3}
    limits_from: store
";
/// The domain and the key of the rule, so that good requests change something.
const KNOWN: [(&str, &str); 2] = [("domain", "shop"), ("key", "user")];

/// Names and values that somebody might hope to do something with.
const HOSTILE: [&str; 9] = [
    "\0",
    "\n{\"id\":\"forged\",\"outcome\":\"done\"}\n",
    "\r\nx-forged: 1\r\n\r\n",
    "\u{1b}[2J\u{7f}\u{85}",
    "<script>alert(1)</script>",
    "../../../etc/passwd",
    "\u{202e}\u{2028}\u{feff}",
    "'; DROP TABLE users; --",
    "*",
];

/// Bodies that are no good, whatever is asked.
fn bad_bodies() -> Vec<String> {
    let nested = |begin: &str, end: &str| format!("{}{}", begin.repeat(5_000), end.repeat(5_000));
    let mut bodies =
        ["", "null", "[]", "7", "{", "\0", "{\"who\":\"\\ud800\"}", "{\"a\":1,\"a\":2}", "1e999999"]
            .map(str::to_owned)
            .to_vec();
    bodies.extend([nested("[", "]"), nested("{\"a\":", "}").replace(":}", ":1}"), "9".repeat(60_000)]);
    bodies
}

/// One method of one path.
struct Endpoint {
    method: String,
    path: String,
    operation: Value,
}

fn setup() -> Setup {
    let setup = Setup::new().rules("shop.yaml", RULES).env("ADMIN_TOKEN", TOKEN);
    let [records, audit] = ["records", "audit"].map(|name| setup.outside().join(name).display().to_string());
    setup.env("LIMITS_DIR", &records).env("AUDIT_LOG", &audit)
}

fn document(limiter: &Tidegate) -> Value {
    serde_json::from_str(&call(limiter, "GET", "/admin/openapi.json", &Value::Null).body).expect("JSON")
}

fn endpoints(document: &Value) -> Vec<Endpoint> {
    let paths = document["paths"].as_object().expect("paths");
    let methods = paths.iter().flat_map(|(path, methods)| {
        let methods = methods.as_object().expect("methods").iter();
        methods.filter(|(_, it)| it.get("operationId").is_some()).map(move |(name, operation)| Endpoint {
            method: name.to_uppercase(),
            path: path.clone(),
            operation: operation.clone(),
        })
    });
    let endpoints: Vec<_> = methods.collect();
    assert!(endpoints.len() >= 16, "the document has lost some");
    endpoints
}

/// The schema that a `$ref` stands for.
fn resolved<'d>(document: &'d Value, schema: &'d Value) -> &'d Value {
    match schema["$ref"].as_str().and_then(|name| name.strip_prefix('#')) {
        Some(pointer) => resolved(document, document.pointer(pointer).expect("it is there")),
        None => schema,
    }
}

/// A value that a schema accepts, with `text` in all texts that are free. Without it, the known domain and key.
fn example(document: &Value, schema: &Value, name: &str, text: Option<&str>) -> Value {
    let schema = resolved(document, schema);
    if let Some(first) = schema["enum"].as_array().and_then(|all| all.first()) {
        return first.clone();
    }
    let known = || KNOWN.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
    match schema["type"].as_str() {
        Some("object") => {
            let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
            // One of those that have to say what they do.
            let effect =
                ["deny", "requests_per_unit"].into_iter().find(|it| schema["properties"].get(it).is_some());
            let names = required
                .chain(effect)
                .chain(["value"].into_iter().filter(|_| schema["properties"].get("value").is_some()));
            names
                .map(|name| (name.to_owned(), example(document, &schema["properties"][name], name, text)))
                .collect()
        }
        Some("array") => json!([example(document, &schema["items"], name, text)]),
        Some("integer") => schema.get("minimum").cloned().unwrap_or(json!(1)),
        Some("boolean") => json!(true),
        _ => text.or_else(known).unwrap_or("a").into(),
    }
}

impl Endpoint {
    /// The body that it takes, if it takes one.
    fn body(&self, document: &Value, text: Option<&str>) -> Option<String> {
        let content = self.operation["requestBody"]["content"].as_object()?;
        let schema = content.get("application/json").map(|json| &json["schema"]);
        let record = json!({"$ref": "#/components/schemas/Record"});
        Some(example(document, schema.unwrap_or(&record), "", text).to_string())
    }

    /// Its path, with `text` for all that is free in it.
    fn path(&self, text: &str) -> String {
        let encoded: String = text.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let parameters = self.operation["parameters"].as_array().into_iter().flatten();
        let query = parameters.filter(|it| it["in"] == "query").map(|it| {
            let value = it["schema"]["enum"][0].as_str().unwrap_or(&encoded);
            format!("{}={value}", it["name"].as_str().expect("a name"))
        });
        format!("{}?{}", self.path.replace("{id}", &encoded), query.collect::<Vec<_>>().join("&"))
    }

    /// Its answer to a bearer of the token has to be one that the document knows, in which every line is JSON.
    fn asked(&self, limiter: &Tidegate, path: &str, body: &str) -> u16 {
        let bearer = format!("Bearer {TOKEN}");
        let headers = [("host", "limiter"), ("authorization", bearer.as_str())];
        let answer = Client::new(limiter.ports().debug).send(&self.method, path, &headers, body);
        let answer = answer.unwrap_or_else(|error| panic!("{} {path}: {error}\n{body:.200}", self.method));
        let shown = format!("{} {path}: {} {:.300}\n{body:.200}", self.method, answer.status, answer.body);
        assert!(self.operation["responses"].get(answer.status.to_string()).is_some(), "{shown}");
        assert!(answer.status < 500 && answer.header("x-forged").is_none(), "{shown}");
        let is_json = |text: &str| serde_json::from_str::<Value>(text).is_ok();
        assert!(is_json(&answer.body) || answer.body.lines().all(is_json), "{shown}");
        assert!(answer.body.lines().all(|line| !line.contains(char::is_control)), "{shown}");
        answer.status
    }
}

#[test]
fn no_endpoint_answers_without_the_token_with_a_wrong_one_or_to_another_origin() {
    let (bare, limiter) =
        (Setup::new().rules("shop.yaml", RULES).env("LIMITS_DIR", "records"), setup().start());
    let records = bare.outside().join("records").display().to_string();
    let bare = bare.env("LIMITS_DIR", &records).start();
    let document = document(&limiter);
    let bearer = format!("Bearer {TOKEN}");
    thread::scope(|scope| {
        for (number, endpoint) in (2..).zip(endpoints(&document)) {
            let (document, bearer, limiter, bare) = (&document, &bearer, &limiter, &bare);
            scope.spawn(move || {
                let (path, body) = (endpoint.path("a"), endpoint.body(document, None).unwrap_or_default());
                // Wrong tokens are counted by address.
                let mut clients = [limiter, bare]
                    .map(|limiter| Client::at(Ipv4Addr::new(127, 0, 0, number), limiter.ports().debug));
                let mut refused = |at: usize, headers: &[(&str, &str)]| {
                    let headers = [&[("host", "limiter")], headers].concat();
                    let answer =
                        clients[at].send(&endpoint.method, &path, &headers, &body).expect("an answer");
                    assert_eq!(answer.status, 403, "{} {path} {headers:?}: {answer:?}", endpoint.method);
                };
                let own = [("authorization", bearer.as_str())];
                refused(0, &[]);
                refused(0, &[("authorization", "Bearer s3cres")]);
                refused(0, &[("authorization", "Basic s3cret")]);
                for origin in ["http://evil.example", "null", "http://limiter.evil.example"] {
                    refused(0, &[own[0], ("origin", origin)]);
                }
                refused(1, &own);
                refused(1, &[]);
            });
        }
    });
    assert_eq!(limiter.metric("tidegate_exceptions"), 0.0);
    let audit = fs::read_to_string(limiter.setup.outside().join("audit")).expect("an audit");
    assert_eq!(audit, "", "nobody was let in");
}

#[test]
fn hostile_names_values_and_bodies_are_refused_or_stay_text() {
    let limiter = setup().start();
    let document = document(&limiter);
    let mut done = 0;
    for endpoint in endpoints(&document) {
        let takes_body = endpoint.body(&document, None).is_some();
        done += usize::from(
            endpoint.asked(
                &limiter,
                &endpoint.path("a"),
                &endpoint.body(&document, None).unwrap_or_default(),
            ) < 300,
        );
        for text in HOSTILE {
            let body = endpoint.body(&document, Some(text)).unwrap_or_default();
            endpoint.asked(&limiter, &endpoint.path("a"), &body);
            endpoint.asked(&limiter, &endpoint.path(text), &body);
        }
        for body in bad_bodies().iter().filter(|_| takes_body) {
            let status = endpoint.asked(&limiter, &endpoint.path("a"), body);
            let is_empty_load = body.trim_matches('\0').is_empty() && endpoint.path.ends_with("/load");
            assert!((400..500).contains(&status) || is_empty_load, "{} {body:.100}: {status}", endpoint.path);
        }
    }
    assert!(done >= 10, "{done} of the good requests were done");
    let audit = fs::read_to_string(limiter.setup.outside().join("audit")).expect("an audit");
    for text in audit.lines() {
        let line: Value = serde_json::from_str(text).expect("each line is JSON");
        assert!(line["id"] != "forged" && !text.contains(char::is_control), "{text}");
    }
    let shown = audit.replace("\\\"", "\"");
    assert!(
        shown.contains("forged") && !audit.contains(['\u{2028}', '\u{1b}', '\u{7f}', '\u{85}']),
        "{audit}"
    );
}
