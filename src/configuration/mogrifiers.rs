//! Rules that rewrite the names of DogStatsD. Each name in USE_DOG_STATSD_MOGRIFIERS has three variables, so they are
//! in no row of the table.

use regex::Regex;

use crate::settings::Problem;
use crate::settings::value::{Map, Value};
use crate::statsd::Mogrifier;

/// Reads the rules of these names. Adds what is wrong to `problems`.
pub(super) fn read(
    names: &[String],
    variable: &dyn Fn(&str) -> Option<String>,
    problems: &mut Vec<Problem>,
) -> Vec<Mogrifier> {
    let mut read = |name: &String| match mogrifier(name, variable) {
        Ok(mogrifier) => Some(mogrifier),
        Err(problem) => {
            problems.push(problem);
            None
        }
    };
    names.iter().filter_map(&mut read).collect()
}

fn mogrifier(name: &str, variable: &dyn Fn(&str) -> Option<String>) -> Result<Mogrifier, Problem> {
    let name_of = |part: &str| format!("DOG_STATSD_MOGRIFIER_{}_{part}", name.to_uppercase());
    let problem = |part: &str, what: String| Problem { name: name_of(part), what };
    let text = |part: &str| {
        let unset =
            || problem(part, format!("is not set (expected for {name} in USE_DOG_STATSD_MOGRIFIERS)"));
        variable(&name_of(part)).filter(|text| !text.is_empty()).ok_or_else(unset)
    };
    let pattern = text("PATTERN")?;
    let bad_pattern =
        |error: regex::Error| problem("PATTERN", format!("{pattern:?} is not a pattern: {error}"));
    let tags = variable(&name_of("TAGS")).unwrap_or_default();
    let bad_tags = || problem("TAGS", format!("{tags:?} is not {}", Map::EXPECTED));
    Ok(Mogrifier {
        pattern: Regex::new(&pattern).map_err(bad_pattern)?,
        name: text("NAME")?,
        tags: Map::parse(&tags).ok_or_else(bad_tags)?.0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_from(pairs: &[(&str, &str)]) -> Result<Vec<Mogrifier>, Problem> {
        let variable = |name: &str| {
            let pair = pairs.iter().find(|pair| format!("DOG_STATSD_MOGRIFIER_HITS_{}", pair.0) == name);
            pair.map(|pair| pair.1.to_owned())
        };
        let mut problems = Vec::new();
        let read = read(&["hits".to_owned()], &variable, &mut problems);
        problems.pop().map_or(Ok(read), Err)
    }

    #[test]
    fn each_name_has_three_variables_in_upper_case() {
        let read = read_from(&[("PATTERN", r"^a\.(.*)$"), ("NAME", "b"), ("TAGS", "c:$1")]).expect("good");
        assert!(read[0].pattern.is_match("a.x"));
        assert_eq!((read[0].name.as_str(), read[0].tags.len()), ("b", 1));
        assert!(read_from(&[("PATTERN", "a"), ("NAME", "b")]).is_ok(), "tags may be missing");
    }

    #[test]
    fn what_is_missing_or_bad_is_named() {
        for (pairs, part) in [
            (&[("NAME", "b")][..], "PATTERN: is not set"),
            (&[("PATTERN", "a"), ("NAME", "")], "NAME: is not set"),
            (&[("PATTERN", "("), ("NAME", "b")], "PATTERN: \"(\" is not a pattern"),
            (&[("PATTERN", "a"), ("NAME", "b"), ("TAGS", "c")], "TAGS: \"c\" is not a map"),
        ] {
            let problem = read_from(pairs).expect_err(part).to_string();
            assert!(problem.starts_with(&format!("DOG_STATSD_MOGRIFIER_HITS_{part}")), "{problem}");
        }
    }
}
