//! A configuration of Envoy: the descriptors of a request, or the place of what is wrong; the same each time.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_trial::envoy::{EnvoyError, EnvoyRequest, Instance, describe};

fn asked() -> EnvoyRequest {
    let header = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    EnvoyRequest {
        path: "/api/things?page=2".to_owned(),
        host: "shop.example".to_owned(),
        headers: vec![header("x-user", "alice"), header("x-user", "bob"), header("cookie", "a=b; c=d")],
        is_external: Some(true),
        ..EnvoyRequest::default()
    }
}

fuzz_target!(|data: &str| {
    let described = describe(data, &asked(), &Instance::default());
    if let Err(EnvoyError::Bad { at, .. } | EnvoyError::Needs { at, .. }) = &described {
        // An empty line may follow the last one.
        let lines = data.split(['\n', '\r']).count() + 1;
        assert!((1..=lines).contains(&(at.line as usize)) && at.column > 0, "{described:?}");
    }
    assert_eq!(describe(data, &asked(), &Instance::default()), described);
});
