//! `--map`: the descriptors of a line.
//!
//! In: `user=$http_x_user,path=/$path[0]; remote_address=$remote_addr`, where `;` begins a descriptor, `,` an entry,
//! and `\` escapes the next character. Out: the descriptors of each line. As in Envoy, an entry without a value drops
//! its descriptor.

use tidegate_engine::request::RequestBuf;

use super::format::{Format, LogLine, UnknownVariable, Variable};

/// A map, compiled.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Map(Vec<Vec<EntryTemplate>>);

#[derive(Debug, PartialEq, Eq)]
struct EntryTemplate {
    key: String,
    value: Vec<Part>,
}

#[derive(Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Variable(Variable),
}

/// An entry of a rule's path: its key, and its value if it is always the same.
pub(super) type Level = (String, Option<String>);

/// Why a map cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// Its syntax is wrong.
    #[error("column {column} of the map: expected {expected}")]
    Syntax {
        /// In characters, from 1.
        column: usize,
        /// What was expected.
        expected: &'static str,
    },
    /// The log does not have this variable.
    #[error(transparent)]
    Unknown(#[from] UnknownVariable),
}

impl Map {
    /// Compiles a map for lines of this format.
    pub(super) fn parse(text: &str, format: &mut Format) -> Result<Self, MapError> {
        let mut reader = Reader { text, rest: text };
        let mut descriptors = vec![Vec::new()];
        loop {
            let entry = reader.entry(format)?;
            descriptors.last_mut().expect("there is one from the start").push(entry);
            match reader.next() {
                None => return Ok(Self(descriptors)),
                Some(';') => descriptors.push(Vec::new()),
                Some(_) => {}
            }
        }
    }

    /// The path of the rules for each descriptor: its keys, and the values that are the same for all lines.
    pub(super) fn levels(&self) -> Vec<Vec<Level>> {
        let level = |entry: &EntryTemplate| match &entry.value[..] {
            [Part::Text(text)] => (entry.key.clone(), Some(text.clone())),
            _ => (entry.key.clone(), None),
        };
        self.0.iter().map(|entries| entries.iter().map(level).collect()).collect()
    }

    /// Adds the descriptors of a line.
    pub(super) fn describe(&self, line: &LogLine<'_>, buf: &mut RequestBuf) {
        for descriptor in &self.0 {
            match descriptor.iter().all(|entry| entry.write(line, buf)) {
                true => buf.close(),
                false => buf.reopen(),
            }
        }
    }
}

impl EntryTemplate {
    /// Adds this entry; `false`: it has no value.
    fn write(&self, line: &LogLine<'_>, buf: &mut RequestBuf) -> bool {
        let write = |text: &mut String| {
            Ok::<_, std::convert::Infallible>(self.value.iter().all(|part| part.write(line, text)))
        };
        buf.entry(&self.key, write).unwrap_or(false)
    }
}

impl Part {
    #[inline]
    fn write(&self, line: &LogLine<'_>, into: &mut String) -> bool {
        match self {
            Self::Text(text) => into.push_str(text),
            Self::Variable(variable) => match variable.value(line) {
                Some(value) => into.push_str(&value),
                None => return false,
            },
        }
        true
    }
}

/// Literal text. Blanks at its end are dropped, unless they are escaped.
#[derive(Default)]
struct Text {
    text: String,
    /// How much of it stays in any case.
    kept: usize,
}

impl Text {
    fn push(&mut self, char: char, is_blank: bool) {
        self.text.push(char);
        if !is_blank {
            self.kept = self.text.len();
        }
    }

    fn trimmed(mut self) -> String {
        self.text.truncate(self.kept);
        self.text
    }
}

/// Reads a map from left to right.
struct Reader<'t> {
    text: &'t str,
    rest: &'t str,
}

impl<'t> Reader<'t> {
    fn next(&mut self) -> Option<char> {
        let char = self.rest.chars().next()?;
        self.rest = &self.rest[char.len_utf8()..];
        Some(char)
    }

    fn error(&self, expected: &'static str) -> MapError {
        let before = &self.text[..self.text.len() - self.rest.len()];
        MapError::Syntax { column: before.chars().count() + 1, expected }
    }

    /// `key=value`, up to the `,` or `;` after it.
    fn entry(&mut self, format: &mut Format) -> Result<EntryTemplate, MapError> {
        self.rest = self.rest.trim_start();
        let mut key = Text::default();
        loop {
            match self.rest.chars().next() {
                Some('=') if !key.text.is_empty() => break,
                None | Some('=' | ',' | ';' | '$') => return Err(self.error("KEY=VALUE")),
                Some(char) => key.push(self.literal()?, char == ' '),
            }
        }
        self.next();
        self.rest = self.rest.trim_start();
        Ok(EntryTemplate { key: key.trimmed(), value: self.value(format)? })
    }

    fn value(&mut self, format: &mut Format) -> Result<Vec<Part>, MapError> {
        let mut parts = Vec::new();
        let mut text = Text::default();
        loop {
            match self.rest.chars().next() {
                None | Some(',' | ';') => break,
                Some('$') => {
                    let before = std::mem::take(&mut text).text;
                    parts.extend((!before.is_empty()).then_some(Part::Text(before)));
                    parts.push(Part::Variable(self.variable(format)?));
                }
                Some(char) => text.push(self.literal()?, char == ' '),
            }
        }
        let rest = text.trimmed();
        parts.extend((!rest.is_empty()).then_some(Part::Text(rest)));
        if parts.is_empty() { Err(self.error("a value")) } else { Ok(parts) }
    }

    /// A character, or the one after a `\`.
    fn literal(&mut self) -> Result<char, MapError> {
        match self.next() {
            Some('\\') => self.next().ok_or_else(|| self.error("a character after `\\`")),
            Some(char) => Ok(char),
            None => Err(self.error("a character")),
        }
    }

    /// `$name`, `${name}`, `$name[2]`.
    fn variable(&mut self, format: &mut Format) -> Result<Variable, MapError> {
        self.next();
        let (name, rest) = match self.rest.strip_prefix('{') {
            Some(inside) => inside.split_once('}').ok_or_else(|| self.error("a name and `}`"))?,
            None => {
                let is_name = |char: char| char.is_ascii_alphanumeric() || char == '_';
                let end = self.rest.find(|char| !is_name(char)).unwrap_or(self.rest.len());
                self.rest.split_at(end)
            }
        };
        if name.is_empty() {
            return Err(self.error("the name of a variable"));
        }
        self.rest = rest;
        let segment = self.segment()?;
        Ok(format.variable(name, segment)?)
    }

    fn segment(&mut self) -> Result<Option<usize>, MapError> {
        let Some(inside) = self.rest.strip_prefix('[') else { return Ok(None) };
        let number = inside.split_once(']').and_then(|(number, rest)| Some((number.parse().ok()?, rest)));
        let (number, rest) = number.ok_or_else(|| self.error("`[0]`, the number of a segment"))?;
        self.rest = rest;
        Ok(Some(number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::format::Fields;

    const LINE: &[u8] = br#"10.1.2.3 - alice [17/May/2015:10:05:03 +0000] "GET //cart/%37?x=a%20b&y HTTP/1.1" 200 5 "-" "a \"b\"""#;

    fn described(map: &str) -> Result<String, MapError> {
        let mut format = Format::parse("combined", None).expect("known");
        let map = Map::parse(map, &mut format)?;
        let mut fields = Fields::default();
        let line = format.read(LINE, &mut fields).expect("good");
        let mut buf = RequestBuf::new("shop");
        map.describe(&line, &mut buf);
        let request = buf.as_request();
        let entry = |entry: &tidegate_engine::request::Entry<'_>| format!("{}={}", entry.key, entry.value);
        let one = |entries: &[_]| entries.iter().map(entry).collect::<Vec<_>>().join("|");
        Ok(request.descriptors().map(|it| one(it.entries)).collect::<Vec<_>>().join("\n"))
    }

    #[test]
    fn a_line_gets_the_descriptors_that_the_map_says() {
        for (map, expected) in [
            ("user=$remote_user", "user=alice"),
            (
                "user=$remote_user,path=/$path[0]; remote_address=$remote_addr",
                "user=alice|path=/cart\nremote_address=10.1.2.3",
            ),
            ("a = b", "a=b"),
            (r"a\ =\ b\ ", "a = b "),
            ("m=$method,p=$path,s=${path}[1] ;x=$arg_x,y=-$arg_y-", "m=GET|p=/cart/7|s=7\nx=a b|y=--"),
            ("t=$request_uri", "t=//cart/%37?x=a%20b&y"),
            (r"a\,b\;=\$\\ \=\ ,c=d", r"a,b;=$\ = |c=d"),
            ("none=$http_referer,k=v;k=w", "k=w"),
            ("far=$path[9];k=w", "k=w"),
            ("agent=$http_user_agent", r#"agent=a \"b\""#),
            ("status=$status", "status=200"),
        ] {
            assert_eq!(described(map).as_deref(), Ok(expected), "{map}");
        }
    }

    #[test]
    fn what_is_wrong_is_reported_with_its_place() {
        for (map, expected) in [
            ("", "column 1 of the map: expected KEY=VALUE"),
            ("a=b,", "column 5 of the map: expected KEY=VALUE"),
            ("a=b;=c", "column 5 of the map: expected KEY=VALUE"),
            ("a", "column 2 of the map: expected KEY=VALUE"),
            ("a=", "column 3 of the map: expected a value"),
            ("a=$", "column 4 of the map: expected the name of a variable"),
            ("a=${x", "column 4 of the map: expected a name and `}`"),
            ("a=$path[x]", "column 8 of the map: expected `[0]`, the number of a segment"),
            ("a=b\\", "column 5 of the map: expected a character after `\\`"),
        ] {
            assert_eq!(described(map).unwrap_err().to_string(), expected, "{map}");
        }
        let unknown = described("user=$http_x_user").unwrap_err().to_string();
        assert!(unknown.starts_with("the log has no `$http_x_user` (there are: remote_addr, "), "{unknown}");
        assert!(unknown.ends_with("method, request_uri, path, remote_address)"), "{unknown}");
    }
}
