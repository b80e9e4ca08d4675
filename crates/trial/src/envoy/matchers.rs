//! Conditions on texts, headers and parameters of the query, as Envoy's routes and actions have them.
//!
//! In: a condition of the configuration, and a request. Out: whether it is true.

use regex::bytes::{Regex, RegexBuilder};

use super::EnvoyError;
use super::seen::Seen;
use super::tree::Node;

/// Whether all conditions on headers are true.
pub(super) fn headers_hold(matchers: &[Node<'_, '_>], seen: &Seen<'_>) -> Result<bool, EnvoyError> {
    for &matcher in matchers {
        if !header_holds(matcher, seen)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Of several values, one that matches is enough. A condition on the text of an absent header is false, inverted or
/// not.
fn header_holds(matcher: Node<'_, '_>, seen: &Seen<'_>) -> Result<bool, EnvoyError> {
    let mut values = seen.all(&matcher.text("name").unwrap_or_default(), matcher)?;
    if values.is_empty() && matcher.flag("treat_missing_header_as_empty") {
        values.push(String::new());
    }
    let is_inverted = matcher.flag("invert_match");
    let any = |test: &dyn Fn(&str) -> bool| values.iter().any(|value| test(value));
    if let Some(range) = matcher.get("range_match") {
        let (start, end) = (range.number("start")?.unwrap_or(0), range.number("end")?.unwrap_or(0));
        let is_in = |value: &str| value.parse::<i64>().is_ok_and(|number| (start..end).contains(&number));
        return Ok(!values.is_empty() && any(&is_in) != is_inverted);
    }
    Ok(match old_or_new_text_test(matcher)? {
        Some(test) => !values.is_empty() && any(&|value| test.holds(value)) != is_inverted,
        None => (values.is_empty() != matcher.flag_or("present_match", true)) != is_inverted,
    })
}

/// The condition on a header's text: `string_match`, or one of the older fields.
fn old_or_new_text_test(matcher: Node<'_, '_>) -> Result<Option<TextTest>, EnvoyError> {
    match matcher.get("string_match") {
        Some(test) => TextTest::of(test).map(Some),
        None => Ok(MatcherKind::of(matcher, "_match")?.map(|kind| TextTest { kind, ignore_case: false })),
    }
}

/// Whether all conditions on parameters of the query are true. `value` reads a parameter.
pub(super) fn parameters_hold(
    matchers: &[Node<'_, '_>],
    value: impl Fn(&str) -> Option<String>,
) -> Result<bool, EnvoyError> {
    for matcher in matchers {
        let value = value(&matcher.text("name").unwrap_or_default());
        let holds = match matcher.get("string_match") {
            Some(test) => {
                let test = TextTest::of(test)?;
                value.is_some_and(|value| test.holds(&value))
            }
            None => value.is_some() == matcher.flag_or("present_match", true),
        };
        if !holds {
            return Ok(false);
        }
    }
    Ok(true)
}

/// A condition on a text.
struct TextTest {
    kind: MatcherKind,
    ignore_case: bool,
}

enum MatcherKind {
    Exact(String),
    Prefix(String),
    Suffix(String),
    Contains(String),
    Regex(Regex),
}

impl MatcherKind {
    /// The one field of `exact`, `prefix` and so on that is set, each name with this suffix.
    fn of(matcher: Node<'_, '_>, ending: &str) -> Result<Option<Self>, EnvoyError> {
        let text = |name: &str| matcher.text(&format!("{name}{ending}"));
        let regex = matcher.get(&format!("safe_regex{ending}")).map(full_match).transpose()?;
        let kinds = [
            text("exact").map(Self::Exact),
            text("prefix").map(Self::Prefix),
            text("suffix").map(Self::Suffix),
            text("contains").map(Self::Contains),
            regex.map(Self::Regex),
        ];
        Ok(kinds.into_iter().flatten().next())
    }
}

impl TextTest {
    /// A `StringMatcher`.
    fn of(matcher: Node<'_, '_>) -> Result<Self, EnvoyError> {
        let kind = MatcherKind::of(matcher, "")?;
        let kind = kind.ok_or_else(|| matcher.needs("a text is matched by an extension"))?;
        Ok(Self { kind, ignore_case: matcher.flag("ignore_case") })
    }

    /// Whether it is true. A regular expression is always case-sensitive.
    fn holds(&self, value: &str) -> bool {
        let fold = |text: &str| if self.ignore_case { text.to_ascii_lowercase() } else { text.to_owned() };
        match &self.kind {
            MatcherKind::Exact(text) => fold(value) == fold(text),
            MatcherKind::Prefix(text) => fold(value).starts_with(&fold(text)),
            MatcherKind::Suffix(text) => fold(value).ends_with(&fold(text)),
            MatcherKind::Contains(text) => fold(value).contains(&fold(text)),
            MatcherKind::Regex(regex) => regex.is_match(value.as_bytes()),
        }
    }
}

/// A `RegexMatcher`, which has to match all of a text. As in Envoy's RE2, classes such as `\d` are those of ASCII.
pub(super) fn full_match(matcher: Node<'_, '_>) -> Result<Regex, EnvoyError> {
    let pattern = matcher.text("regex").unwrap_or_default();
    let regex = RegexBuilder::new(&format!("^(?:{pattern})$")).unicode(false).build();
    regex.map_err(|_| matcher.needs(format!("the regular expression {pattern:?} is not understood")))
}
