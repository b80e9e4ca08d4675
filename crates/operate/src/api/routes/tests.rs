//! `openapi.json` compared with the API: each route has its description there, and the schemas are those of the
//! types.
//!
//! The prose of the document (summaries, parameters, the meaning of a status) is written by hand. Schemas, and the
//! bodies of each operation, are written by the test here: `TIDEGATE_WRITE_OPENAPI=1 cargo test -p tidegate-operate
//! openapi`.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::*;

/// The document with the types as they are now.
fn written(mut document: Value) -> String {
    let mut schemas = Schemas::new();
    let left_out = schemas.answered::<answered::LeftOut>();
    for route in ROUTES {
        let operation = &mut document["paths"][route.path][route.method.as_str().to_lowercase()];
        let (taken, given) = (route.bodies)(&mut schemas);
        if let Some(taken) = taken {
            let content = json!({"application/json": {"schema": {"$ref": taken}}});
            operation["requestBody"] = json!({"required": true, "content": content});
        }
        let responses = operation["responses"].as_object_mut().expect("the responses of an operation");
        let done = responses.iter_mut().filter(|(status, _)| status.starts_with('2'));
        for content in done.filter_map(|(_, response)| response["content"].as_object_mut()) {
            for (kind, content) in content.iter_mut() {
                match (&given, kind.as_str(), route.name) {
                    (None, ..) => {}
                    (Some(given), "application/x-ndjson", "topCounters") => {
                        content["schema"] = json!({"anyOf": [{"$ref": given}, {"$ref": left_out}]});
                    }
                    (Some(given), ..) => content["schema"] = json!({"$ref": given}),
                }
            }
        }
    }
    document["components"]["schemas"] = schemas.all().into();
    format!("{document:#}\n")
}

#[test]
fn the_openapi_document_has_all_that_is_served_and_the_types_as_they_are() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/api/openapi.json");
    let file = fs::read_to_string(&path).expect("the document is there");
    let document: Value = serde_json::from_str(&file).expect("it is JSON");
    let described = document["paths"].as_object().expect("paths").iter().flat_map(|(path, methods)| {
        let methods = methods.as_object().expect("methods").iter();
        methods.map(move |(method, operation)| {
            let name = operation["operationId"].as_str().unwrap_or_default().to_owned();
            (path.clone(), method.to_uppercase(), name)
        })
    });
    let mut described: Vec<_> = described.collect();
    let mut served: Vec<_> = ROUTES
        .iter()
        .map(|route| (route.path.to_owned(), route.method.to_string(), route.name.to_owned()))
        .collect();
    described.sort();
    served.sort();
    assert_eq!(described, served, "first what openapi.json describes, then what is served");

    let written = written(document);
    if std::env::var_os("TIDEGATE_WRITE_OPENAPI").is_some() {
        fs::write(&path, &written).expect("writable");
        return;
    }
    let differs = file.lines().zip(written.lines()).find(|(file, now)| file != now);
    assert_eq!(differs, None, "first the file, then what the types say (TIDEGATE_WRITE_OPENAPI=1 writes it)");
    assert_eq!(file, written);
}

/// Each schema that the document refers to is in it, and none is left over.
#[test]
fn the_openapi_document_refers_to_each_of_its_schemas() {
    let document: Value = serde_json::from_str(OPENAPI).expect("it is JSON");
    let mut named: Vec<_> =
        OPENAPI.split("#/components/schemas/").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    named.sort_unstable();
    named.dedup();
    let known = document["components"]["schemas"].as_object().expect("schemas").keys();
    assert_eq!(named, known.collect::<Vec<_>>());
}

#[test]
fn a_request_finds_its_route_or_the_methods_that_there_are() {
    let at =
        |method: Method, path: &'static str| asked_for(&method, path).map(|(route, id)| (route.name, id));
    assert_eq!(at(Method::HEAD, "/admin/audit"), Ok(("audit", "")));
    assert_eq!(at(Method::PUT, "/admin/exceptions/a"), Ok(("putException", "a")));
    assert_eq!(at(Method::GET, "/admin/exceptions/a/b"), Ok(("getException", "a/b")));
    assert_eq!(at(Method::DELETE, "/admin/exceptions/"), Ok(("endException", "")));
    for path in ["/admin/", "/admin/exceptions2", "/admin/records/", "/admin/records/get/more", "/admin/{id}"]
    {
        assert_eq!(at(Method::GET, path), Err(NoRoute::Path), "{path}");
    }
    for (path, methods) in [
        ("/admin/exceptions", "GET, HEAD"),
        ("/admin/exceptions/a", "GET, HEAD, PUT, DELETE"),
        ("/admin/resets", "GET, HEAD, POST"),
        ("/admin/records", "PUT, DELETE"),
        ("/admin/counters/top", "POST"),
    ] {
        assert_eq!(at(Method::PATCH, path), Err(NoRoute::Method(methods.to_owned())), "{path}");
    }
}
