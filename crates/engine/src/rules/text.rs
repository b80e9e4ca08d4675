//! Bytes of a file → its text: UTF-8, or UTF-16 with a byte order mark. Lines and columns are left as they are.
//!
//! Control characters are refused here, as YAML does, because a parser may take a zero for the end of the text.

use std::borrow::Cow;

use tidegate_yaml::Place;

/// Decodes a file; `Err` is a place and what is wrong there.
pub(super) fn decode(bytes: &[u8]) -> Result<Cow<'_, str>, (Place, String)> {
    let text = match bytes {
        [0xFF, 0xFE, rest @ ..] => decode_utf16(rest, u16::from_le_bytes)?,
        [0xFE, 0xFF, rest @ ..] => decode_utf16(rest, u16::from_be_bytes)?,
        [0xEF, 0xBB, 0xBF, rest @ ..] => decode_utf8(rest)?,
        _ => decode_utf8(bytes)?,
    };
    match text.char_indices().find(|&(_, char)| is_refused(char)) {
        None => Ok(text),
        Some((at, char)) => Err((
            place_after(&text[..at]),
            format!("control character U+{:04X} (expected printable text)", u32::from(char)),
        )),
    }
}

fn decode_utf8(bytes: &[u8]) -> Result<Cow<'_, str>, (Place, String)> {
    str::from_utf8(bytes).map(Cow::Borrowed).map_err(|error| {
        let valid = str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or_default();
        let byte = bytes.get(error.valid_up_to()).copied().unwrap_or_default();
        let message =
            format!("byte 0x{byte:02X} is not UTF-8 (expected UTF-8, or UTF-16 with a byte order mark)");
        (place_after(valid), message)
    })
}

fn decode_utf16(bytes: &[u8], unit: fn([u8; 2]) -> u16) -> Result<Cow<'_, str>, (Place, String)> {
    let (pairs, rest) = bytes.as_chunks::<2>();
    let mut text = String::with_capacity(pairs.len());
    for char in char::decode_utf16(pairs.iter().copied().map(unit)) {
        match char {
            Ok(char) => text.push(char),
            Err(_) => return Err((place_after(&text), not_utf16())),
        }
    }
    if rest.is_empty() { Ok(Cow::Owned(text)) } else { Err((place_after(&text), not_utf16())) }
}

fn not_utf16() -> String {
    "half a character (expected UTF-16, as the byte order mark says)".to_owned()
}

/// Characters that YAML does not allow: controls but tab, line feed, carriage return and next line.
fn is_refused(char: char) -> bool {
    char.is_control() && !matches!(char, '\t' | '\n' | '\r' | '\u{85}')
}

fn place_after(text: &str) -> Place {
    let line = text.bytes().filter(|&byte| byte == b'\n').count() + 1;
    let column = text.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    Place { line: line as u32, column: column as u32 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn utf16(text: &str, unit: fn(u16) -> [u8; 2]) -> Vec<u8> {
        "\u{FEFF}".encode_utf16().chain(text.encode_utf16()).flat_map(unit).collect()
    }

    #[test]
    fn every_encoding_gives_the_same_text() {
        let text = "domain: \"é𝄞\"\r\n";
        assert_eq!(decode(text.as_bytes()).unwrap(), text);
        assert_eq!(decode(format!("\u{FEFF}{text}").as_bytes()).unwrap(), text);
        assert_eq!(decode(&utf16(text, u16::to_le_bytes)).unwrap(), text);
        assert_eq!(decode(&utf16(text, u16::to_be_bytes)).unwrap(), text);
    }

    #[test]
    fn what_is_no_text_is_refused_with_its_place() {
        let place =
            |bytes: &[u8]| decode(bytes).map_err(|(Place { line, column }, _)| (line, column)).unwrap_err();
        assert_eq!(place(b"a: b\nc: \xFF"), (2, 4));
        assert_eq!(place("é: \0".as_bytes()), (1, 4));
        assert_eq!(place(&[0xFF, 0xFE, b'a', 0, b'b']), (1, 2));
        assert_eq!(place(&[0xFE, 0xFF, 0xD8, 0x00, 0, b'b']), (1, 1));
    }
}
