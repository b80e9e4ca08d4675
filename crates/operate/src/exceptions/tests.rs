//! The book of exceptions, its file and its audit, without a limiter around them.

use std::fs;

use serde_json::{Value, json};
use tempfile::TempDir;
use tidegate_engine::stamp;

use super::*;
use crate::audit::Caller;

const NOW: Timestamp = Timestamp::from_secs(1_700_000_000);

impl Book {
    fn put(
        &self,
        record: Authored,
        may_replace: bool,
        author: &Author,
        now: Timestamp,
    ) -> Result<Change, ChangeError> {
        self.change_here(&WantedChange::Put { record, may_replace }, author, now)
    }

    fn end(&self, id: &str, why: &str, author: &Author, now: Timestamp) -> Result<Change, ChangeError> {
        self.change_here(&WantedChange::End { id: id.to_owned(), why: why.to_owned() }, author, now)
    }
}

fn author() -> Author {
    let caller = Caller { peer: "10.0.0.1".to_owned(), certificate: None };
    Author { who: "jane".to_owned(), caller }
}

fn record(id: &str, more: Value) -> Authored {
    let mut fields = json!({
        "domain": "shop", "entries": [{"key": "user", "value": "alice"}], "who": "jane", "why": "a launch",
    });
    for (name, value) in more.as_object().expect("an object") {
        fields[name] = value.clone();
    }
    Authored::of_client(id, &fields).expect("good")
}

fn audit() -> Audit {
    Audit::in_memory(NOW)
}

fn lines(audit: &Audit) -> Vec<Value> {
    audit.recent().iter().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[test]
fn what_is_wrong_with_an_exception_is_named() {
    let good = json!({
        "domain": "shop", "entries": [{"key": "user"}], "requests_per_unit": 5, "who": "jane", "why": "a launch",
    });
    assert!(Authored::of_client("a", &good).is_ok());
    let long = "x".repeat(2_000);
    for (field, value, named) in [
        ("domain", json!(""), "domain: is missing"),
        ("domain", json!(7), "domain: expected a text of at most 1024 bytes, not 7"),
        ("domain", json!(long), "domain: expected a text of at most 1024 bytes, not of 2000"),
        ("entries", json!([]), "entries: expected"),
        ("entries", json!([{"value": "x"}]), "entries[0].key: is missing"),
        ("entries", json!([{"key": "x", "vlaue": "x"}]), "entries[0].vlaue: is unknown"),
        (
            "requests_per_unit",
            json!(-1),
            "requests_per_unit: expected a whole number, 0 to 9007199254740991, not -1",
        ),
        (
            "requests_per_unit",
            json!(1_u64 << 53),
            "requests_per_unit: expected a whole number, 0 to 9007199254740991, not 9007199254740992",
        ),
        ("unlimited", json!(true), "effect: expected exactly one of"),
        ("deny", json!("yes"), "deny: expected true or false"),
        ("from", json!("tomorrow"), "from: expected a time such as 2026-11-30T08:00:00Z, not \"tomorrow\""),
        ("why", json!(""), "why: is missing"),
        ("id", json!("b"), "id: is \"b\" (expected \"a\" as in the path"),
        ("untill", json!("x"), "untill: is unknown"),
    ] {
        let mut bad = good.clone();
        bad[field] = value;
        let problem = Authored::of_client("a", &bad).expect_err("bad").to_string();
        assert!(problem.starts_with(named), "{problem}");
    }
    assert!(Authored::of_client("a/b", &good).is_err() && Authored::of_client("", &good).is_err());
    let times = json!({"from": "2026-11-30T08:00:00Z", "until": "2026-11-30T09:00:00+01:00"});
    let mut bad = good;
    bad["from"] = times["from"].clone();
    bad["until"] = times["until"].clone();
    assert_eq!(Authored::of_client("a", &bad).expect_err("bad").to_string(), "until: is not after `from`");
}

#[test]
fn a_change_is_audited_before_and_after_and_doing_it_again_changes_nothing() {
    let book = Book::new(audit());
    let put = |more| book.put(record("a", more), true, &author(), NOW).expect("done");
    assert_eq!(put(json!({"requests_per_unit": 5})), Change::Made);
    assert_eq!(put(json!({"requests_per_unit": 5})), Change::Unchanged);
    assert_eq!(put(json!({"requests_per_unit": 6})), Change::Replaced);
    assert_eq!(book.end("a", "", &author(), NOW).expect("done"), Change::Ended);
    assert!(matches!(book.end("a", "", &author(), NOW), Err(ChangeError::Unknown(_))));
    let lines = lines(book.audit());
    assert_eq!(lines.len(), 6, "{lines:#?}");
    for pair in lines.chunks(2) {
        assert_eq!((&pair[0]["id"], &pair[0]["who"]), (&pair[1]["id"], &json!("jane")));
        assert_eq!(pair[1]["outcome"], "done");
    }
    let replaced = &lines[2]["what"];
    assert_eq!(
        (&replaced["before"]["requests_per_unit"], &replaced["after"]["requests_per_unit"]),
        (&json!(5), &json!(6))
    );
    assert_eq!(lines[4]["does"], "exception_end");
}

#[test]
fn an_exception_with_one_other_field_replaces_the_one_before() {
    let book = Book::new(audit());
    let put = |more: Value| book.put(record("a", more), true, &author(), NOW).expect("done");
    assert_eq!(put(json!({"deny": true})), Change::Made);
    let mut fields = json!({"deny": true});
    for (name, value) in [
        ("until", json!(stamp_of(NOW, 60))),
        ("until", json!(stamp_of(NOW, 61))),
        ("from", json!(stamp_of(NOW, 1))),
        ("who", json!("joe")),
        ("why", json!("another reason")),
        ("domain", json!("another")),
    ] {
        fields[name] = value;
        assert_eq!(
            [put(fields.clone()), put(fields.clone())],
            [Change::Replaced, Change::Unchanged],
            "{fields}"
        );
    }
}

#[test]
fn exceptions_begin_and_end_by_themselves() {
    let book = Book::new(audit());
    let times = json!({"deny": true, "from": stamp_of(NOW, 10), "until": stamp_of(NOW, 20)});
    book.put(record("a", times), true, &author(), NOW).expect("done");
    let at = |secs: u64| book.compile(Timestamp::from_nanos(NOW.as_nanos() + secs * 1_000_000_000));
    for (secs, in_force, until) in
        [(0, false, Some(10)), (10, true, Some(20)), (19, true, Some(20)), (20, false, None)]
    {
        let compiled = at(secs);
        let until = until.map(|secs: u64| Timestamp::from_nanos(NOW.as_nanos() + secs * 1_000_000_000));
        assert_eq!((!compiled.exceptions.is_empty(), compiled.until), (in_force, until), "{secs}");
    }
}

fn stamp_of(at: Timestamp, later_secs: u64) -> String {
    stamp::show(Timestamp::from_nanos(at.as_nanos() + later_secs * 1_000_000_000))
}

#[test]
fn a_file_keeps_them_and_their_order() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("exceptions");
    let open = || Book::open(path.clone(), audit()).expect("readable");
    let book = open();
    book.put(record("b", json!({"requests_per_unit": 5})), true, &author(), NOW).expect("done");
    book.put(record("a", json!({"burst": 7})), true, &author(), NOW).expect("done");
    drop(book);
    let book = open();
    assert_eq!(book.version().count, 2);
    let shown = |book: &Book| book.all().iter().map(|record| record.json().to_string()).collect::<Vec<_>>();
    let before = shown(&book);
    book.put(record("c", json!({"deny": true})), true, &author(), NOW).expect("done");
    let numbers: Vec<_> = book.all().iter().map(|record| (record.id.clone(), record.number)).collect();
    assert_eq!(numbers, [("a".to_owned(), 1), ("b".to_owned(), 0), ("c".to_owned(), 2)]);
    assert_eq!(shown(&open())[..2], before[..]);
}

/// Lines are kept together with exceptions, and read from a file that a person may have written.
#[test]
fn a_file_holds_what_the_book_does_after_every_change() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("exceptions");
    let by_hand = r#"  {"id": "hand", "domain": "shop", "entries": [{"key": "user"}], "deny": true, "who": "joe", "why": "-"}"#;
    fs::write(&path, format!("{by_hand}\r\n")).expect("writable");
    let book = Book::open(path.clone(), audit()).expect("readable");
    let holds_the_same = |count: usize| {
        let lines = fs::read_to_string(&path).expect("readable");
        let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        let kept = Book::open(path.clone(), audit()).expect("readable").all();
        assert_eq!((lines.len(), &kept), (count, &book.all()));
        lines
    };
    let put = |id: &str, requests: u32| {
        book.put(record(id, json!({"requests_per_unit": requests})), true, &author(), NOW)
    };
    put("a", 5).expect("done");
    put("b", 5).expect("done");
    holds_the_same(3);
    put("a", 6).expect("done");
    assert_eq!(holds_the_same(3)[0]["requests_per_unit"], 6);
    put("hand", 7).expect("done");
    assert_eq!(holds_the_same(3)[2]["who"], "jane");
    book.end("b", "", &author(), NOW).expect("done");
    holds_the_same(2);
    // A folder has the name of the temporary file: the old contents stay, in memory too, until a change succeeds.
    let beside = folder.path().join("exceptions.new");
    fs::create_dir(&beside).expect("a folder");
    assert!(matches!(put("a", 8), Err(ChangeError::File(_))));
    assert_eq!(holds_the_same(2)[0]["requests_per_unit"], 6);
    fs::remove_dir(&beside).expect("empty");
    put("c", 9).expect("done");
    assert_eq!(holds_the_same(3)[0]["requests_per_unit"], 6);
}

/// Patterns are counted, because there is a bound on them.
#[test]
fn a_pattern_whose_replacement_could_not_be_stored_is_counted_as_before() {
    let folder = TempDir::new().expect("a folder");
    let book = Book::open(folder.path().join("exceptions"), audit()).expect("readable");
    let wild = json!({"deny": true, "entries": [{"key": "user", "value": "a*"}]});
    book.put(record("a", wild), true, &author(), NOW).expect("done");
    let beside = folder.path().join("exceptions.new");
    fs::create_dir(&beside).expect("a folder");
    let exact = book.put(record("a", json!({"deny": true})), true, &author(), NOW);
    assert!(matches!(exact, Err(ChangeError::File(_))));
    fs::remove_dir(&beside).expect("empty");
    assert_eq!(book.end("a", "", &author(), NOW).expect("done"), Change::Ended, "none is left");
}

/// With Redis, numbers are times: one of this node alone must not come back from the file.
#[test]
fn a_file_keeps_the_numbers_that_shared_exceptions_have() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("exceptions");
    let open = || Book::open(path.clone(), audit()).expect("readable");
    open().put(record("a", json!({"requests_per_unit": 5})), true, &author(), NOW).expect("done");
    let book = open();
    book.pages.lock().number_by_time();
    book.put(record("b", json!({"requests_per_unit": 5})), true, &author(), NOW).expect("done");
    let numbers = |book: Book| book.all().iter().map(|record| record.number).collect::<Vec<_>>();
    assert_eq!(numbers(open())[0], NOW.as_nanos());
    assert_eq!(numbers(open()), numbers(book));
}

/// The clock of who made it was behind that of who had made the one before.
#[test]
fn a_number_that_is_later_than_the_time_of_its_exception_stays() {
    let later = NOW.as_nanos() + 1;
    let line = format!(
        r#"{{"id": "a", "domain": "shop", "entries": [{{"key": "user"}}], "deny": true, "who": "joe", "why": "-", "made": "{}", "number": {later}}}"#,
        stamp_of(NOW, 0)
    );
    let book = Book::new(audit());
    book.replace_all("exceptions".as_ref(), &line).expect("good");
    book.pages.lock().number_by_time();
    assert_eq!(book.all()[0].number, later);
}

/// Another program wrote it: what is made later decides all the same, and the process goes on.
#[test]
fn a_file_may_have_the_greatest_number_of_all() {
    let book = Book::new(audit());
    let line = format!("{}\n", Authored { number: u64::MAX, ..record("a", json!({"deny": true})) }.line());
    book.replace_all(Path::new("exceptions"), &line).expect("good");
    book.put(record("b", json!({"unlimited": true})), false, &author(), NOW).expect("done");
    let numbers: Vec<u64> = book.all().iter().map(|record| record.number).collect();
    assert_eq!(numbers, [u64::MAX; 2]);
}

#[test]
fn a_file_that_is_broken_is_refused_with_its_line() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("exceptions");
    let book = Book::open(path.clone(), audit()).expect("readable");
    book.put(record("a", json!({"deny": true})), true, &author(), NOW).expect("done");
    let whole = fs::read(&path).expect("readable");
    for cut in 1..whole.len() - 1 {
        fs::write(&path, &whole[..cut]).expect("writable");
        let problem = Book::open(path.clone(), audit()).err().expect("refused").to_string();
        assert!(problem.contains("exceptions:1: "), "{problem}");
    }
}

#[test]
fn what_cannot_be_kept_or_audited_is_not_done() {
    let folder = TempDir::new().expect("a folder");
    let gone = folder.path().join("gone");
    fs::create_dir(&gone).expect("a folder");
    let book = Book::open(gone.join("exceptions"), audit()).expect("readable");
    fs::remove_dir(&gone).expect("empty");
    let put = |book: &Book| book.put(record("a", json!({"deny": true})), true, &author(), NOW);
    assert!(matches!(put(&book), Err(ChangeError::File(_))));
    assert!(book.all().is_empty());
    let lines = lines(book.audit());
    assert_eq!((lines.len(), &lines[1]["outcome"]), (2, &json!("failed")));

    // A full disk.
    let book = Book::new(Audit::to("/dev/full".as_ref(), NOW).expect("it opens"));
    let error = put(&book).expect_err("refused").to_string();
    assert!(
        error.starts_with("not done, because it cannot be audited: AUDIT_LOG: cannot write /dev/full"),
        "{error}"
    );
    assert!(book.all().is_empty());
}

#[test]
fn there_is_a_bound_on_patterns_and_it_is_one_for_all() {
    let book = Book::new(audit());
    let wild = json!({"deny": true, "entries": [{"key": "user", "value": "a*"}]});
    let put = |number: usize| book.put(record(&format!("p{number}"), wild.clone()), true, &author(), NOW);
    assert!((0..PATTERNS_MAX).all(|number| put(number).is_ok()));
    assert!(matches!(put(PATTERNS_MAX), Err(ChangeError::FullOfPatterns)));
    assert_eq!(put(0).expect("it is there"), Change::Unchanged);
    let other = json!({"unlimited": true, "entries": wild["entries"]});
    assert_eq!(book.put(record("p0", other), true, &author(), NOW).expect("its place"), Change::Replaced);
    assert!(book.put(record("exact", json!({"deny": true})), true, &author(), NOW).is_ok());
    assert_eq!(book.end("p1", "", &author(), NOW).expect("it is there"), Change::Ended);
    assert_eq!(put(PATTERNS_MAX).expect("one was ended"), Change::Made);
}

#[test]
fn what_is_over_is_not_made_and_leaves_when_there_is_no_room() {
    let book = Book::new(audit());
    let over = json!({"deny": true, "until": stamp_of(NOW, 0)});
    assert!(matches!(book.put(record("a", over), true, &author(), NOW), Err(ChangeError::Past)));
    let wild = json!({"deny": true, "entries": [{"key": "user"}], "until": stamp_of(NOW, 10)});
    let put = |number: usize, now: Timestamp, more: &Value| {
        book.put(record(&format!("p{number}"), more.clone()), true, &author(), now)
    };
    assert!((0..PATTERNS_MAX).all(|number| put(number, NOW, &wild).is_ok()));
    let later = Timestamp::from_nanos(NOW.as_nanos() + 10_000_000_000);
    assert_eq!(put(0, later, &wild).expect("it is there"), Change::Unchanged);
    let endless = json!({"deny": true, "entries": [{"key": "user"}]});
    assert_eq!(put(PATTERNS_MAX, later, &endless).expect("the others are over"), Change::Made);
    assert_eq!(book.version().count, 1);
}

#[test]
fn an_audit_that_is_taken_away_is_begun_anew_and_no_line_goes_on_in_a_torn_one() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("audit");
    let book = Book::new(Audit::to(&path, NOW).expect("it opens"));
    let put = |book: &Book, n: u32| {
        book.put(record("a", json!({"requests_per_unit": n})), true, &author(), NOW).is_ok()
    };
    assert!(put(&book, 1));
    let aside = folder.path().join("audit.1");
    fs::rename(&path, &aside).expect("it is there");
    assert!(put(&book, 2));
    fs::remove_file(&path).expect("it is there");
    assert!(put(&book, 3));
    for (path, n) in [(&aside, "1"), (&path, "3")] {
        let text = fs::read_to_string(path).expect("an audit");
        assert!(text.lines().count() == 2 && text.contains(&format!("\"requests_per_unit\":{n}")), "{text}");
    }
    fs::remove_file(&path).expect("it is there");
    fs::create_dir(&path).expect("its name is free");
    assert!(!put(&book, 4), "what cannot be audited is not done");
    fs::remove_dir(&path).expect("empty");
    assert!(put(&book, 5));
    let text = fs::read_to_string(&path).expect("an audit");
    assert!(text.lines().count() == 2 && text.starts_with('{'), "{text}");
}

#[test]
fn a_file_that_cannot_be_written_any_more_is_noticed_before_somebody_needs_it() {
    let folder = TempDir::new().expect("a folder for the test");
    let disk = folder.path().join("disk");
    fs::create_dir(&disk).expect("made");
    let book = Book::open(disk.join("exceptions"), audit()).expect("it need not be there");
    assert_eq!((book.is_file_up(), book.trouble()), (Some(true), None));
    fs::remove_dir(&disk).expect("nothing is left in it");
    book.check_file();
    let trouble = book.trouble().expect("it is said");
    assert!(trouble.contains("neither made nor ended. EXCEPTIONS_FILE: cannot write "), "{trouble}");
    assert_eq!(book.is_file_up(), Some(false));
    fs::create_dir(&disk).expect("made");
    book.check_file();
    assert_eq!((book.is_file_up(), book.trouble()), (Some(true), None));
    assert_eq!(Book::new(audit()).is_file_up(), None);
}

/// A disk may have room for the small file of a check, and not for all exceptions.
#[test]
fn a_file_that_could_not_be_written_is_well_when_it_has_all_exceptions() {
    let folder = TempDir::new().expect("a folder");
    let book = Book::open(folder.path().join("exceptions"), audit()).expect("it need not be there");
    let temporary = folder.path().join("exceptions.new");
    fs::create_dir(&temporary).expect("its name is free");
    assert!(book.put(record("a", json!({"deny": true})), true, &author(), NOW).is_err());
    book.check_file();
    assert_eq!(book.is_file_up(), Some(false));
    fs::remove_dir(&temporary).expect("empty");
    book.check_file();
    assert_eq!(book.is_file_up(), Some(true));
}

/// Who puts them in force waits for another version.
#[test]
fn what_another_program_writes_is_another_version_if_it_is_good() {
    let line = r#"{"id": "a", "domain": "shop", "entries": [{"key": "user"}], "deny": true, "who": "joe", "why": "-"}"#;
    let book = Book::new(audit());
    let mut changes = book.changes();
    book.replace_all("exceptions".as_ref(), line).expect("good");
    assert!(changes.has_changed().expect("the book is there"));
    assert_eq!(changes.borrow_and_update().count, 1);
    assert!(book.replace_all("exceptions".as_ref(), "{").is_err());
    assert_eq!((changes.has_changed().ok(), book.version().count), (Some(false), 1));
}

/// Otherwise a node that was away would bring back what was ended last.
#[test]
fn of_too_many_ends_the_first_are_forgotten() {
    let mut pages = Pages::new(Vec::new(), false);
    for number in 0..=EXCEPTIONS_MAX as u64 {
        pages.put_shared(KnownException::Ended { id: number.to_string(), number });
    }
    let remembered = [0, EXCEPTIONS_MAX / 2, EXCEPTIONS_MAX].map(|id| pages.entry(&id.to_string()).is_some());
    assert_eq!(remembered, [false, true, true]);
}

#[tokio::test]
async fn the_audit_has_when_a_change_began_and_when_it_ended() {
    let audit = Arc::new(audit());
    let clock = std::sync::atomic::AtomicU64::new(1_700_000_000);
    let now = || Timestamp::from_secs(clock.fetch_add(5, std::sync::atomic::Ordering::Relaxed));
    let change = async { ((), Ok(DONE.to_owned())) };
    let made = audit.around(&Tokio, author(), now, Does::ExceptionEnd, json!({}), change).await;
    made.expect("it is audited in memory");
    let times: Vec<_> = lines(&audit).iter().map(|line| line["at"].clone()).collect();
    assert_eq!(
        times,
        [1_700_000_000, 1_700_000_005].map(|secs| json!(stamp::show(Timestamp::from_secs(secs))))
    );
}
