//! The page of all settings in Markdown: docs/settings.md.

use std::fmt::Write as _;

use crate::settings::refused::REFUSED_VALUES;
use crate::settings::switching::{NO_EFFECT, compared, words};
use crate::settings::{Row, TABLE};

const INTRODUCTION: &str = "\
# Settings

<!-- Made by `tidegate settings --markdown`. -->

Each setting is an environment variable and a flag of the command line; the flag wins, then the variable, then the
default. `tidegate settings` shows the values that would be in force, and where each comes from. Bad ones are reported
all at once, each with its name, its value and what was expected; the exit code is 64.

| value | how it is written |
| --- | --- |
| BOOL | `1 t T TRUE true True` or `0 f F FALSE false False`; a flag alone is true |
| COUNT, PORT, NUMBER | decimal: no `0x1F`, no leading 0 |
| DURATION | `10s`, `150ms`, `1m30s`, `1.5h`; units `ns us µs ms s m h`; a bare number only as `0` |
| BYTES | a number, alone or with `KiB`, `MiB` or `GiB` |

A variable with an empty value counts as unset, unless its value is a text: then it is the empty text. A variable
that is not on this page is ignored; one that looks like a mistake is reported when the limiter starts, and
by `tidegate settings`: a name like one of these, or one that begins with REDIS_, GRPC_, LIMIT_ or CONFIG_.

The last column compares with the variable of the same name in `envoyproxy/ratelimit`; where it is empty, there is none.
";

/// The page of all settings.
pub fn markdown() -> String {
    let mut page = INTRODUCTION.to_owned();
    let mut group = "";
    for row in TABLE {
        if row.group != group {
            group = row.group;
            line(&mut page, format_args!("\n## {group}"));
            line(
                &mut page,
                format_args!("| variable | flag | value | default | meaning | envoyproxy/ratelimit |"),
            );
            line(&mut page, format_args!("| --- | --- | --- | --- | --- | --- |"));
        }
        setting(&mut page, row);
    }
    refused(&mut page);
    no_effect(&mut page);
    page
}

fn setting(page: &mut String, row: &Row) {
    let default = match row.default {
        Some("") => "empty".to_owned(),
        Some(default) => format!("`{default}`"),
        None => String::new(),
    };
    let (name, flag, value) = (row.name, row.flag(), row.value_name);
    let (help, compared) = (cell(row.help), cell(compared(row.name)));
    line(page, format_args!("| {name} | `--{flag}` | {value} | {default} | {help} | {compared} |"));
}

fn refused(page: &mut String) {
    line(page, format_args!("\n## Refused"));
    line(page, format_args!("The start fails, because the limiter would not do what was asked for.\n"));
    line(page, format_args!("| variable | why |\n| --- | --- |"));
    for (names, values, why) in REFUSED_VALUES {
        line(page, format_args!("| {} = {} | {} |", names.join(", "), values.join(", "), cell(why)));
    }
}

fn no_effect(page: &mut String) {
    line(page, format_args!("\n## Accepted without effect"));
    line(page, format_args!("| variable | why that is harmless |\n| --- | --- |"));
    for (names, why) in NO_EFFECT {
        line(
            page,
            format_args!("| {} | {} |", cell(&words(names).collect::<Vec<_>>().join(", ")), cell(why)),
        );
    }
}

fn line(page: &mut String, text: std::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _ = writeln!(page, "{text}");
}

/// A text that neither ends its cell in a table nor looks like a tag.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('<', "\\<").replace('*', "\\*")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_in_docs_is_the_page() {
        let page = include_str!("../../docs/settings.md");
        assert!(page == markdown(), "run: cargo run -- settings --markdown > docs/settings.md");
    }

    #[test]
    fn every_setting_and_every_variable_of_the_switch_is_on_the_page() {
        let page = markdown();
        for row in TABLE {
            assert!(page.contains(&format!("| {} | `--{}` |", row.name, row.flag())), "{}", row.name);
        }
        for (names, why) in NO_EFFECT {
            assert!(page.contains(&cell(why)) && words(names).all(|name| page.contains(&cell(name))));
        }
    }
}
