//! The hash of a set of rules, by which nodes show whether they have the same.
//!
//! In: the contents of each file, and the options that change their meaning. Out: a short text. Names of files,
//! comments and layout do not count. Neither does the order of files, except for those of one domain, because it
//! decides which pattern is tried first. Everything else in the files counts: sets with one hash limit the same, but
//! sets that limit the same may have different hashes.

use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::rules::LoadOptions;
use tidegate_yaml::{Content, Document, NodeId};

/// Bytes of a set's hash: enough for any fleet, and short enough to be compared by eye.
const SHOWN_BYTES: usize = 6;

/// The hash of all values of a file.
pub(super) type FileHash = [u8; 32];

/// The hash of these files, in this order, each with its domain.
pub(super) fn of_files(mut files: Vec<(&str, &FileHash)>, options: &LoadOptions) -> Arc<str> {
    files.sort_by_key(|&(domain, _)| domain);
    let defaults = format!("{} {}", options.default_algorithm.name(), options.default_cost.name());
    let hash =
        files.iter().fold(Sha256::new_with_prefix(defaults), |hash, (_, file)| hash.chain_update(file));
    hash.finalize().iter().take(SHOWN_BYTES).map(|byte| format!("{byte:02x}")).collect::<String>().into()
}

/// The hash of all values of a document, from its root.
pub(super) fn of_values(document: &Document<'_>, root: NodeId) -> FileHash {
    let mut hash = Sha256::new();
    add(&mut hash, document, root);
    hash.finalize().into()
}

/// Adds the values at and below a node. Recursion is bounded by the depth that a document may have.
fn add(hash: &mut Sha256, document: &Document<'_>, node: NodeId) {
    let mut begin = |kind: u8, length: usize| {
        hash.update([kind]);
        hash.update((length as u64).to_le_bytes());
    };
    match &document.node(node).content {
        Content::Scalar(scalar) => {
            begin(scalar.typing as u8, scalar.text.len());
            hash.update(scalar.text.as_bytes());
        }
        Content::Sequence(values) => {
            begin(b'[', values.len());
            values.iter().for_each(|&value| add(hash, document, value));
        }
        Content::Mapping(fields) => {
            begin(b'{', fields.len());
            fields.iter().flat_map(|&(name, value)| [name, value]).for_each(|node| add(hash, document, node));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::key::KeySecret;
    use crate::limit::Algorithm;
    use crate::rules::{LoadOptions, SourceFile, load};

    const SHOP: &str =
        "domain: shop\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 5}}]\n";
    const BANK: &str = "domain: bank\ndescriptors: []\n";

    fn options(secret: u8) -> LoadOptions {
        LoadOptions::new(KeySecret::new([secret; 16]))
    }

    /// The hash of these files, by name and text.
    fn hash(files: &[(&str, &str)], options: &LoadOptions) -> Arc<str> {
        let file = |&(name, text): &(&str, &str)| SourceFile {
            name: name.to_owned(),
            bytes: text.into(),
            presumed: false,
        };
        let files: Vec<_> = files.iter().map(file).collect();
        load(&files, options).expect("good rules").rules.hash().clone()
    }

    #[test]
    fn names_and_order_of_files_comments_layout_and_secrets_do_not_count() {
        let expected = hash(&[("shop.yaml", SHOP), ("bank.yaml", BANK)], &options(1));
        assert_eq!(&*expected, "146a1c568277", "the same on all machines, in all versions");
        let laid_out = "# Five.\ndomain: shop\ndescriptors:\n- key: a # a user\n  rate_limit:\n    unit: day\n    requests_per_unit: 5\n";
        assert_eq!(hash(&[("0.yaml", BANK), ("1.yaml", laid_out)], &options(2)), expected);
    }

    #[test]
    fn all_that_rules_say_counts() {
        let hash = |text: &str| hash(&[("shop.yaml", text)], &options(1));
        for (from, to) in [
            ("5", "6"),
            ("day", "hour"),
            ("shop", "shops"),
            ("key: a", "key: b"),
            ("key: a", "key: a, value: x"),
            ("key: a", "key: a, shadow_mode: true"),
            ("[{", "[{key: b}, {"),
            ("descriptors", "rate_limits: [{actions: [{remote_address: {}}]}]\ndescriptors"),
        ] {
            assert_ne!(hash(&SHOP.replace(from, to)), hash(SHOP), "{from} -> {to}");
        }
    }

    #[test]
    fn what_rules_leave_to_options_counts() {
        let other = options(1).default_algorithm(Algorithm::FixedWindow);
        assert_ne!(hash(&[("shop.yaml", SHOP)], &options(1)), hash(&[("shop.yaml", SHOP)], &other));
    }

    #[test]
    fn the_order_of_files_of_one_domain_counts() {
        let hash = |files: &[(&str, &str)]| hash(files, &options(1).merge_domains(true));
        let other = "domain: shop\ndescriptors: [{key: b, rate_limit: {unit: day, requests_per_unit: 5}}]\n";
        assert_ne!(
            hash(&[("a.yaml", SHOP), ("b.yaml", other)]),
            hash(&[("a.yaml", other), ("b.yaml", SHOP)])
        );
    }
}
