//! Regular expressions: which of many is the first, in file order, that matches a value.
//!
//! All expressions of one key are searched at once, in time linear in the value. Nothing in them can backtrack. An
//! expression is found anywhere in a value unless it has `^` and `$`.

use regex::{Error, Regex, RegexBuilder, RegexSet, RegexSetBuilder};

/// The longest value that is searched, in bytes. Longer ones match nothing, so a client cannot buy time with length.
const VALUE_BYTES_MAX: usize = 1024;

/// How large one compiled expression may be, in bytes. `\w{40}` still fits; names of paths need less.
const ONE_BYTES_MAX: usize = 2 << 20;

/// How large all compiled expressions of one key may be, in bytes: a thousand usual ones fit.
const KEY_BYTES_MAX: usize = 64 << 20;

/// The expressions of the patterns under one key. `T` is the target of a pattern.
#[derive(Clone, Debug)]
pub(super) struct Regexes<T> {
    /// `None`: there are none.
    set: Option<RegexSet>,
    targets: Vec<T>,
}

/// Compiles an expression by itself. `Err`: what is wrong with it, in words that go on after it.
pub(super) fn one(text: &str) -> Result<Regex, String> {
    let builder = RegexBuilder::new(text).size_limit(ONE_BYTES_MAX).build();
    builder.map_err(|error| match error {
        Error::CompiledTooBig(max) => {
            format!("is too large (expected at most {max} bytes when it is compiled)")
        }
        error => {
            // The lines before the last one show the place with a caret.
            let text = error.to_string();
            let why = text.lines().last().unwrap_or_default();
            format!("is no regular expression: {}", why.strip_prefix("error: ").unwrap_or(why))
        }
    })
}

/// Whether a single expression matches. Only explanations ask for it, so nothing is kept.
pub(super) fn matches(text: &str, value: &str) -> bool {
    value.len() <= VALUE_BYTES_MAX && one(text).is_ok_and(|regex| regex.is_match(value))
}

impl<T: Copy> Regexes<T> {
    /// Compiles expressions, given in file order, each of which compiles by itself. `Err` is the target of the first:
    /// all of them are too large together.
    pub(super) fn new<'a>(regexes: impl IntoIterator<Item = (&'a str, T)>) -> Result<Self, T> {
        let (texts, targets): (Vec<&str>, Vec<T>) = regexes.into_iter().unzip();
        let Some(&first) = targets.first() else { return Ok(Self { set: None, targets }) };
        let set = RegexSetBuilder::new(texts).size_limit(KEY_BYTES_MAX).dfa_size_limit(KEY_BYTES_MAX).build();
        set.map(|set| Self { set: Some(set), targets }).map_err(|_| first)
    }

    /// The target of the first expression that matches.
    pub(super) fn find(&self, value: &str) -> Option<T> {
        let set = self.set.as_ref().filter(|_| value.len() <= VALUE_BYTES_MAX)?;
        let first = set.matches(value).iter().next()?;
        self.targets.get(first).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(regexes: &[&str], value: &str) -> Option<usize> {
        Regexes::new(regexes.iter().copied().zip(0..)).expect("they compile").find(value)
    }

    #[test]
    fn the_first_in_file_order_is_found_wherever_it_matches() {
        assert_eq!(find(&["b+", "a", "^ab$"], "ab"), Some(0));
        assert_eq!(find(&["^b", "a$", "^ab$"], "ab"), Some(2));
        assert_eq!(find(&["^b", "a$"], "ab"), None);
        assert_eq!(find(&[], ""), None);
        assert_eq!(find(&["^$"], ""), Some(0));
    }

    #[test]
    fn the_first_of_many_is_the_one_that_a_search_one_by_one_finds() {
        let texts: Vec<String> =
            (0..200).map(|number| format!("^/api/v{}{{1,2}}/[a-f]+{}", number % 7, number % 13)).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let many = Regexes::new(texts.iter().copied().zip(0..)).expect("they compile");
        let alone: Vec<Regex> = texts.iter().map(|text| one(text).expect("it compiles")).collect();
        for number in 0..1_000 {
            let value = format!(
                "/api/v{}{}/{}{}",
                number % 9,
                if number % 2 == 0 { "3" } else { "" },
                "cafe",
                number % 14
            );
            assert_eq!(many.find(&value), alone.iter().position(|regex| regex.is_match(&value)), "{value}");
        }
    }

    #[test]
    fn a_value_over_1_kib_matches_none() {
        assert_eq!(find(&["a"], &"a".repeat(1024)), Some(0));
        assert_eq!(find(&["a"], &"a".repeat(1025)), None);
        assert!(matches("a", "a") && !matches("a", &"a".repeat(1025)));
    }

    #[test]
    fn what_is_wrong_is_one_sentence() {
        let why = |text| one(text).map(drop).expect_err("it is refused");
        assert_eq!(why("(a"), "is no regular expression: unclosed group");
        assert_eq!(
            why("(?=a)"),
            "is no regular expression: look-around, including look-ahead and look-behind, is not supported"
        );
        assert_eq!(why("\\w{1000}{10}"), "is too large (expected at most 2097152 bytes when it is compiled)");
    }

    /// Expressions that take exponential time elsewhere.
    #[test]
    fn a_hostile_value_ends() {
        let hostile = ["(a+)+$", "(a|aa)+$", "(a*)*b", "(.*a){20}$"];
        assert_eq!(find(&hostile, &format!("{}!", "a".repeat(1023))), None);
    }
}
