//! Resets of one node without sockets: numbers, the file, and what is refused.

use std::fs;

use serde_json::{Value, json};

use super::*;
use tidegate_serve::service::fixture;

const NOW: Timestamp = Timestamp::from_secs(1_700_000_000);
const RULES: &str = "
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: day, requests_per_unit: 3}}
  - {key: tenant, rate_limit: {unit: day, requests_per_unit: 3}}
";

fn resets() -> Resets {
    let metrics = fixture::metrics();
    Resets::new(Arc::new(fixture::service(Some(RULES), &metrics)))
}

fn at(value: Value) -> ResetPath {
    path(&value).expect("a good path")
}

fn user() -> ResetPath {
    at(json!({"domain": "shop", "entries": [{"key": "user"}]}))
}

#[test]
fn a_path_is_read_as_it_is_written() {
    for path in [
        user(),
        at(json!({"domain": ""})),
        at(json!({"domain": "a", "entries": [{"key": "k", "value": "*"}]})),
        at(json!({"domain": "a", "entries": [{"key": "k", "value": "*"}], "counter": true})),
    ] {
        assert_eq!(super::path(&path_json(&path)), Ok(path));
    }
    for (bad, named) in [
        (json!([]), "the body: expected an object, not a list"),
        (json!({"entries": []}), "domain: is missing"),
        (json!({"domain": "a", "entries": {}}), "entries: expected a list"),
        (json!({"domain": "a", "entries": [{"value": "x"}]}), "entries[0].key: is missing"),
        (
            json!({"domain": "a", "entries": [{"key": "x"}, {"key": "x", "vlaue": "x"}]}),
            "entries[1].vlaue: is unknown",
        ),
        (json!({"domain": "a", "entries": [{"key": "x"}], "counter": true}), "entries: expected a list"),
        (json!({"domain": "a", "counter": 1}), "counter: expected true"),
        (json!({"domain": "x".repeat(2_000)}), "domain: expected a text of at most 1024 bytes, not of 2000"),
    ] {
        let problem = super::path(&bad).expect_err("bad").to_string();
        assert!(problem.starts_with(named), "{problem}");
    }
    assert_eq!(read_id(&id(0x18ab)), Some(0x18ab));
    for bad in ["", "18ab", "0000000000000000", "00000000000018AB", "+00000000000018a", "000000000000018ab"] {
        assert_eq!(read_id(bad), None, "{bad}");
    }
}

#[tokio::test]
async fn a_later_reset_takes_the_place_of_one_before_and_the_same_one_changes_nothing() {
    let resets = resets();
    let first = resets.plan(user(), None, NOW).expect("it may be done");
    assert_eq!((first.epoch, first.rules, first.is_done), (NOW.as_nanos(), 1, false));
    resets.begin(&first).await.expect("nothing keeps it");
    let again = resets.plan(user(), Some(first.epoch), NOW).expect("it is done");
    assert!(again.is_done);
    let next = resets.plan(user(), None, NOW).expect("it may be done");
    assert_eq!(next.epoch, first.epoch + 1, "the clock stands still");
    let older = resets.plan(user(), Some(first.epoch - 1), NOW);
    assert!(matches!(older, Err(ResetError::Older(last)) if last == first.epoch));
    let future = resets.plan(user(), Some(u64::MAX), NOW);
    assert!(matches!(future, Err(ResetError::Future)));
    let nowhere = at(json!({"domain": "shop", "entries": [{"key": "user", "value": "alice"}]}));
    assert!(matches!(resets.plan(nowhere, None, NOW), Err(ResetError::NoRule)));
    assert_eq!(resets.plan(at(json!({"domain": "shop"})), None, NOW).expect("all of it").rules, 2);
}

#[tokio::test]
async fn counters_and_paths_have_bounds_of_their_own() {
    let resets = resets();
    let one = |value: &str| {
        at(json!({"domain": "shop", "entries": [{"key": "user", "value": value}], "counter": true}))
    };
    let mut many = Epochs::default();
    (0..PATHS_MAX).for_each(|number| _ = many.raise(one(&number.to_string()), 1));
    resets.service.begin_epochs(&many);
    let refused = resets.plan(one("new"), None, NOW).expect_err("there are too many").to_string();
    assert!(refused.starts_with("10000 single counters were reset already (expected "), "{refused}");
    assert!(!resets.plan(one("7"), None, NOW).expect("it is there").is_done);
    assert_eq!(resets.plan(user(), None, NOW).expect("there are none").rules, 1);
    let other = json!([{"key": "other", "value": "x"}]);
    let unknown = path(&json!({"domain": "shop", "entries": other, "counter": true}));
    let nowhere = resets.plan(unknown.expect("good"), None, NOW);
    assert!(matches!(nowhere, Err(ResetError::NoCounter)));
}

#[tokio::test]
async fn resets_are_in_the_file_before_they_are_in_force() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let file = folder.path().join("resets");
    let first = resets().kept_in(file.clone()).expect("it is not there");
    for path in [user(), at(json!({"domain": "shop"}))] {
        let wanted = first.plan(path, None, NOW).expect("it may be done");
        first.begin(&wanted).await.expect("it can be written");
    }
    let second = resets().kept_in(file.clone()).expect("a good file");
    assert_eq!((second.all(), second.all().len()), (first.all(), 2));
    fs::remove_dir_all(folder.path()).expect("it is ours");
    let wanted = second.plan(user(), None, NOW).expect("it may be done");
    let refused = second.begin(&wanted).await.expect_err("there is no folder");
    assert!(matches!(refused, ResetError::File(_)));
    assert_eq!(second.all(), first.all(), "it is not in force");
}

/// The reset fails, so what is in force then came before it.
#[tokio::test]
async fn resets_of_other_nodes_are_in_force_before_the_own_one() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let resets = resets().kept_in(folder.path().join("resets")).expect("it is not there");
    fs::remove_dir_all(folder.path()).expect("it is ours");
    let (wanted, mut one) = (resets.plan(user(), None, NOW).expect("it may be done"), Epochs::default());
    one.raise(wanted.path.clone(), wanted.epoch);
    let tenant = at(json!({"domain": "shop", "entries": [{"key": "tenant"}]}));
    let of_others = vec![(path_json(&tenant).to_string(), id(7))];
    let kept = Kept { missing: None, found: vec![(of_others, NOW.as_nanos() / 1_000)] };
    let refused = resets.begin_kept(&wanted, one, kept).await.expect_err("there is no folder");
    assert!(matches!(refused, ResetError::File(_)));
    assert_eq!((resets.all().of(&tenant), resets.all().len()), (7, 1));
}

#[test]
fn a_broken_file_is_named_with_its_line() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let file = folder.path().join("resets");
    let good = "{\"domain\":\"shop\",\"entries\":[],\"id\":\"0000000000000001\"}\n";
    for bad in ["{}", "x", "{\"domain\":\"shop\"}", "{\"domain\":\"shop\",\"id\":\"1\"}"] {
        fs::write(&file, format!("{good}{bad}\n")).expect("writable");
        let error = resets().kept_in(file.clone()).err().expect("bad").to_string();
        assert!(error.contains("resets:2: "), "{error}");
    }
}

#[test]
fn what_redis_has_and_is_none_of_ours_is_left_out() {
    let field = path_json(&user()).to_string();
    let numbers = [(field.as_str(), "0000000000000007"), ("x", "0000000000000007"), (&field, "7")];
    let numbers = numbers.map(|(field, number)| (field.to_owned(), number.to_owned())).to_vec();
    let Theirs { epochs: read, left_out } = read_numbers(&numbers, 7);
    assert_eq!((read.len(), read.of(&user())), (1, 7));
    assert!(left_out.is_some_and(|it| it.starts_with("2 are ignored, because they cannot be read")));
    let early = read_numbers(&numbers, 6);
    assert!(early.epochs.is_empty() && early.left_out.is_some_and(|it| it.starts_with("3 ")));
    assert_eq!(greater(&read, &Epochs::default()), read);
    assert!(greater(&read, &read).is_empty());
}
