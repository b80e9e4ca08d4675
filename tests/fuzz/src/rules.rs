//! Files of rules: read or refused, never a panic; and a file means the same each time.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_engine::key::KeySecret;
use tidegate_engine::rules::{LoadOptions, SourceFile, load};

/// What a file means: the hash of its rules and the warnings, or the errors.
fn meaning(bytes: &[u8]) -> (String, Vec<String>) {
    let file = SourceFile { name: "rules.yaml".to_owned(), bytes: bytes.into(), presumed: false };
    let (hash, diagnostics) = match load(&[file], &LoadOptions::new(KeySecret::new([1; 16]))) {
        Ok(loaded) => (loaded.rules.hash().to_string(), loaded.warnings),
        Err(errors) => (String::new(), errors),
    };
    (hash, diagnostics.iter().map(ToString::to_string).collect())
}

fuzz_target!(|data: &[u8]| assert_eq!(meaning(data), meaning(data)));
