//! A text of a file in a message: cut, and with everything escaped that nobody would see.

/// The most characters of a text that a message quotes.
pub(super) const QUOTED_CHARS_MAX: usize = 60;

/// Characters that look like a space or like nothing. Joiners are not among them: scripts and emoji need them.
pub(super) const fn is_invisible(char: char) -> bool {
    matches!(char,
        '\u{a0}' | '\u{ad}' | '\u{1680}' | '\u{180e}' | '\u{2000}'..='\u{200b}' | '\u{200e}' | '\u{200f}'
        | '\u{2028}'..='\u{202f}' | '\u{205f}'..='\u{2064}' | '\u{2066}'..='\u{206f}' | '\u{3000}' | '\u{feff}')
}

/// The text in backquotes, for a message: cut when it is long, and with everything escaped that cannot be seen or that
/// controls a terminal.
pub(super) fn quote(text: &str) -> String {
    let mut quoted = "`".to_owned();
    for (at, char) in text.chars().enumerate() {
        match char {
            _ if at == QUOTED_CHARS_MAX => {
                quoted.push('…');
                break;
            }
            char if char.is_control() || is_invisible(char) => quoted.extend(char.escape_default()),
            char => quoted.push(char),
        }
    }
    quoted.push('`');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_cut() {
        assert_eq!(quote(&"é".repeat(1_000)).chars().count(), QUOTED_CHARS_MAX + 3);
    }

    #[test]
    fn a_quoted_text_steers_no_terminal_and_hides_nothing() {
        assert_eq!(quote("a\u{1b}[2K\u{a0}é\n"), "`a\\u{1b}[2K\\u{a0}é\\n`");
    }
}
