//! What gRPC puts into HTTP/2 headers: its content types, and percent-encoded error messages.

/// The text that answers a method other than POST.
pub const ONLY_POST: &str = "only POST\n";
/// The text that answers another content type.
pub const ONLY_GRPC: &str = "only application/grpc\n";

const CONTENT_TYPE: &[u8] = b"application/grpc";

/// Whether a `content-type` is that of gRPC, with any encoding of the messages.
pub fn is_content_type(value: &[u8]) -> bool {
    matches!(value.strip_prefix(CONTENT_TYPE), Some([] | [b'+' | b';', ..]))
}

/// A text for `grpc-message`: printable ASCII other than `%` stays, every other byte becomes `%XX`.
pub fn percent_encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b' '..=b'~' if byte != b'%' => encoded.push(char::from(byte)),
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_percent_encoded() {
        assert_eq!(percent_encoded("100% \u{e9}\n ok"), "100%25 %C3%A9%0A ok");
    }

    #[test]
    fn content_types_of_grpc_are_known() {
        for (value, expected) in [
            ("application/grpc", true),
            ("application/grpc+proto", true),
            ("application/grpc;charset=utf-8", true),
            ("application/grpc-web", false),
            ("application/json", false),
            ("", false),
        ] {
            assert_eq!(is_content_type(value.as_bytes()), expected, "{value}");
        }
    }
}
