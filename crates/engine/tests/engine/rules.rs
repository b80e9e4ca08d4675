//! What the tests of rules share: they load texts under the usual options.

use tidegate_engine::key::KeySecret;
use tidegate_engine::rules::{LoadOptions, Loaded, SourceFile, load};

/// The options that most tests load under.
pub(crate) fn options() -> LoadOptions {
    LoadOptions::new(KeySecret::new([7; 16]))
}

/// A file of this name.
pub(crate) fn file(name: &str, bytes: impl AsRef<[u8]>) -> SourceFile {
    SourceFile { name: name.to_owned(), bytes: bytes.as_ref().to_vec(), presumed: false }
}

/// One file that loads.
pub(crate) fn loaded(text: &str) -> Loaded {
    load(&[file("a.yaml", text)], &options()).unwrap_or_else(|errors| panic!("{text}\n{errors:#?}"))
}

/// The problems of one file that does not load: `line:column: message`.
pub(crate) fn refused(text: impl AsRef<[u8]>) -> Vec<String> {
    let errors = load(&[file("a.yaml", text)], &options()).expect_err("the file loads");
    errors.iter().map(|error| error.to_string().replacen("a.yaml:", "", 1)).collect()
}
