//! A configuration as a tree: fields by their names in either spelling, texts, flags, numbers.
//!
//! In: a YAML (or JSON) document. Out: values with their places. Protobuf's JSON accepts a field as `snake_case` and
//! as `camelCase`, and numbers and booleans as text too.

use tidegate_yaml::{Content, Document, NodeId, Place, Typing};

use super::EnvoyError;

/// From here on a double does not hold every whole number.
const EXACT_MAX: i64 = 1 << 53;

/// A value of the configuration.
#[derive(Clone, Copy)]
pub(super) struct Node<'n, 't> {
    document: &'n Document<'t>,
    id: NodeId,
}

impl<'n, 't> Node<'n, 't> {
    /// The outermost value, which has to be a mapping.
    pub(super) fn root(document: &'n Document<'t>) -> Result<Self, EnvoyError> {
        let empty =
            EnvoyError::Bad { at: Place::START, what: "the file is empty (expected a bootstrap)".to_owned() };
        let node = Self { document, id: document.root.ok_or(empty)? };
        match node.content() {
            Content::Mapping(_) => Ok(node),
            _ => Err(node.bad("no mapping stands here (expected a bootstrap)")),
        }
    }

    fn content(self) -> &'n Content<'t> {
        &self.document.node(self.id).content
    }

    pub(super) fn at(self) -> Place {
        self.document.node(self.id).at
    }

    /// An error here.
    pub(super) fn bad(self, what: impl Into<String>) -> EnvoyError {
        EnvoyError::Bad { at: self.at(), what: what.into() }
    }

    /// This value needs more than the file and the request.
    pub(super) fn needs(self, what: impl Into<String>) -> EnvoyError {
        EnvoyError::Needs { at: self.at(), what: what.into() }
    }

    /// The fields, by their names as they are written. Null values count as absent.
    pub(super) fn fields(self) -> impl Iterator<Item = (&'n str, Self)> {
        let pairs = match self.content() {
            Content::Mapping(pairs) => &pairs[..],
            Content::Scalar(_) | Content::Sequence(_) => &[],
        };
        let document = self.document;
        pairs.iter().filter_map(move |&(key, value)| {
            let Content::Scalar(name) = &document.node(key).content else { return None };
            let value = Self { document, id: value };
            let is_null = matches!(value.content(), Content::Scalar(scalar) if scalar.is_null());
            (!is_null).then_some((&*name.text, value))
        })
    }

    /// The field of this name, which is given in `snake_case`.
    pub(super) fn get(self, name: &str) -> Option<Self> {
        self.fields().find(|(written, _)| is_name(written, name)).map(|(_, value)| value)
    }

    /// The field of exactly this name, which users chose.
    pub(super) fn named(self, name: &str) -> Option<Self> {
        self.fields().find(|(known, _)| *known == name).map(|(_, value)| value)
    }

    /// The items of the list in a field; none if it is not there.
    pub(super) fn items(self, name: &str) -> Vec<Self> {
        let document = self.document;
        match self.get(name).map(Self::content) {
            Some(Content::Sequence(ids)) => ids.iter().map(|&id| Self { document, id }).collect(),
            _ => Vec::new(),
        }
    }

    /// The text of a field.
    pub(super) fn text(self, name: &str) -> Option<String> {
        self.get(name)?.own_text()
    }

    /// Its own text.
    pub(super) fn own_text(self) -> Option<String> {
        match self.content() {
            Content::Scalar(scalar) => Some(scalar.text.clone().into_owned()),
            Content::Sequence(_) | Content::Mapping(_) => None,
        }
    }

    /// A flag; false if it is not there.
    pub(super) fn flag(self, name: &str) -> bool {
        self.flag_or(name, false)
    }

    /// A flag, with this default.
    pub(super) fn flag_or(self, name: &str, default: bool) -> bool {
        self.text(name).map_or(default, |text| truth(&text) == Some(true))
    }

    /// The field, unless it has its default: false, the first value of an enum, an empty list.
    pub(super) fn switched_on(self, name: &str) -> Option<Self> {
        self.get(name).filter(|field| match field.content() {
            Content::Scalar(scalar) => {
                truth(&scalar.text) != Some(false) && !matches!(&*scalar.text, "" | "0" | "NONE")
            }
            Content::Sequence(items) => !items.is_empty(),
            Content::Mapping(_) => true,
        })
    }

    /// The text of a value that may be of any type, if Envoy's reader of YAML treats it as text.
    pub(super) fn typed_text(self) -> Option<String> {
        let Content::Scalar(scalar) = self.content() else { return None };
        let is_text =
            scalar.typing == Typing::Text || (truth(&scalar.text).is_none() && !is_whole(&scalar.text));
        is_text.then(|| scalar.text.clone().into_owned())
    }

    /// Refuses fields that are none of these: they may change the calls. `whose` begins the sentence.
    pub(super) fn knows(self, names: &[&str], whose: &str) -> Result<(), EnvoyError> {
        let is_known = |written: &str| names.iter().any(|name| is_name(written, name));
        match self.fields().find(|(written, _)| !is_known(written)) {
            Some((written, field)) => Err(field.needs(format!("{whose} `{written}`"))),
            None => Ok(()),
        }
    }

    /// A whole number.
    pub(super) fn number<N: std::str::FromStr>(self, name: &str) -> Result<Option<N>, EnvoyError> {
        let Some(field) = self.get(name) else { return Ok(None) };
        let number = field.own_text().and_then(|text| text.parse().ok());
        number
            .map(Some)
            .ok_or_else(|| field.bad(format!("`{name}` is no number (expected one in its range)")))
    }

    /// Whether its `@type` ends with this.
    pub(super) fn is_of_type(self, name: &str) -> bool {
        self.text("@type").is_some_and(|written| written.ends_with(name))
    }
}

/// The flag that a text means in YAML 1.1, which Envoy reads.
fn truth(text: &str) -> Option<bool> {
    let (first, rest) = text.split_at_checked(1)?;
    let one_case = |text: &str| text == text.to_ascii_lowercase() || text == text.to_ascii_uppercase();
    if !(one_case(text) || (first == first.to_ascii_uppercase() && rest == rest.to_ascii_lowercase())) {
        return None;
    }
    match &*text.to_ascii_lowercase() {
        "true" | "yes" | "on" | "y" => Some(true),
        "false" | "no" | "off" | "n" => Some(false),
        _ => None,
    }
}

/// Whether Envoy reads a text as a whole number: decimal, `0x` or octal, as long as a double can hold it exactly. A
/// number with a point or an exponent is text.
fn is_whole(text: &str) -> bool {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let number = match digits.split_at_checked(1) {
        Some(("0", rest)) if rest.starts_with(['x', 'X']) => i64::from_str_radix(&rest[1..], 16),
        Some(("0", rest)) if !rest.is_empty() => i64::from_str_radix(rest, 8),
        _ => digits.parse::<i64>(),
    };
    digits.starts_with(|first: char| first.is_ascii_digit()) && number.is_ok_and(|it| it < EXACT_MAX)
}

/// Whether a field's name, as it is written, is this one in `snake_case` or `camelCase`.
fn is_name(written: &str, name: &str) -> bool {
    written == name || snake(written) == name
}

/// A field's name in `snake_case`.
pub(super) fn snake(name: &str) -> String {
    let mut snake = String::new();
    for char in name.chars() {
        if char.is_ascii_uppercase() {
            snake.push('_');
        }
        snake.push(char.to_ascii_lowercase());
    }
    snake
}
