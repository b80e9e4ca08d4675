//! The folder compared with a map in memory, and its errors about folders that it cannot use.

use std::collections::BTreeMap;
use std::fs;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::fixture;

fn temporary() -> TempDir {
    tempfile::tempdir().expect("a folder for the test")
}

fn open(path: &Path) -> Folder {
    Folder::open(path).expect("a folder that may be used")
}

fn key(tenant: &str) -> RecordKey {
    RecordKey::of("d", [("tenant", tenant)]).expect("a key")
}

/// A few keys, of which some begin with others.
fn keys() -> impl Strategy<Value = RecordKey> {
    let entries = proptest::collection::vec(("[ab]", "[ab]{0,2}"), 1..3);
    ("[de]", entries).prop_map(|(domain, entries)| {
        RecordKey::of(&domain, entries.iter().map(|(key, value)| (&**key, &**value))).expect("a key")
    })
}

#[derive(Clone, Debug)]
enum Step {
    Put(RecordKey, Record),
    Delete(RecordKey),
    Load(Vec<(RecordKey, Record)>),
    Page(RecordKey, usize, Option<RecordKey>, usize),
    OpenAgain,
}

fn step() -> impl Strategy<Value = Step> {
    let batch = proptest::collection::vec((keys(), fixture::record()), 0..6);
    prop_oneof![
        3 => (keys(), fixture::record()).prop_map(|(key, record)| Step::Put(key, record)),
        2 => keys().prop_map(Step::Delete),
        2 => batch.prop_map(Step::Load),
        3 => (keys(), 0_usize..3, proptest::option::of(keys()), 0_usize..5)
            .prop_map(|(of, levels, after, most)| Step::Page(of, levels, after, most)),
        1 => Just(Step::OpenAgain),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn a_folder_holds_what_a_map_would(steps in proptest::collection::vec(step(), 1..24)) {
        let temporary = temporary();
        let mut folder = open(temporary.path());
        let mut map = BTreeMap::new();
        for step in steps {
            match step {
                Step::Put(key, record) => {
                    folder.put(&key, &record).expect("written");
                    map.insert(key, record);
                }
                Step::Delete(key) => {
                    prop_assert_eq!(folder.delete(&key).expect("written"), map.remove(&key).is_some());
                }
                Step::Load(batch) => {
                    folder.load(&batch).expect("written");
                    map.extend(batch);
                }
                Step::Page(of, levels, after, most) => {
                    let (domain, entries) = of.decode();
                    let entries = entries.iter().take(levels);
                    let entries = entries.map(|(key, value)| (&**key, Some(&**value)));
                    let prefix = KeyPrefix::of(&domain, entries).expect("a prefix");
                    let page = folder.page(&prefix, after.as_ref(), most).expect("read");
                    let is_in = |key: &RecordKey| {
                        after.as_ref().is_none_or(|after| key > after) && key.as_bytes().starts_with(prefix.as_bytes())
                    };
                    let expected = map.iter().filter(|(key, _)| is_in(key)).take(most);
                    prop_assert_eq!(page, expected.map(|(key, record)| (key.clone(), *record)).collect::<Vec<_>>());
                }
                Step::OpenAgain => {
                    drop(folder);
                    folder = open(temporary.path());
                }
            }
            for key in map.keys() {
                prop_assert_eq!(folder.get(key).expect("read"), map.get(key).copied());
            }
        }
        let all = folder.page(&KeyPrefix::everything(), None, usize::MAX).expect("read");
        prop_assert_eq!(all, map.into_iter().collect::<Vec<_>>());
    }
}

#[test]
fn a_folder_is_for_one_process() {
    let temporary = temporary();
    let _first = open(temporary.path());
    let second = Folder::open(temporary.path()).err().expect("it is in use");
    assert!(matches!(second, FolderError::InUse(_)), "{second}");
    let named = format!("LIMITS_DIR: another process has {}", temporary.path().display());
    assert!(second.to_string().starts_with(&named), "{second}");
}

#[test]
fn an_attempt_to_open_that_failed_does_not_count() {
    let temporary = temporary();
    let first = open(temporary.path());
    let second = Folder::closed(temporary.path());
    assert!(second.mend().is_err() && second.times_opened() == 0, "another has it");
    drop(first);
    assert!(second.mend().is_ok() && second.times_opened() == 1);
}

#[test]
fn a_page_that_goes_on_after_an_earlier_key_has_all_with_its_prefix() {
    let temporary = temporary();
    let folder = open(temporary.path());
    let batch = ["a", "b", "c"].map(|tenant| (key(tenant), Record::of(1)));
    folder.load(&batch).expect("written");
    let prefix = KeyPrefix::of("d", [("tenant", Some("b"))]).expect("a prefix");
    let page = |after| folder.page(&prefix, Some(&key(after)), 9).expect("read");
    assert_eq!((page("0"), page("b")), (batch[1..2].to_vec(), vec![]));
}

#[test]
fn a_folder_that_refuses_changes_is_opened_again_and_says_how_often() {
    let temporary = temporary();
    let folder = open(temporary.path());
    assert_eq!(folder.times_opened(), 1);
    folder.mend().expect("it is open");
    assert_eq!(folder.times_opened(), 1, "nothing to mend");
    folder.refuses.store(true, Relaxed);
    folder.mend().expect("it is opened again");
    assert_eq!(folder.times_opened(), 2);
}

/// It may be there when the folder is opened the next time, or not.
#[test]
fn a_folder_that_refuses_changes_confirms_none() {
    let (temporary, record) = (temporary(), Record::of(1));
    let folder = open(temporary.path());
    folder.put(&key("a"), &record).expect("written");
    assert!(folder.confirm(&key("a"), Some(record)).expect("it is open"));
    folder.refuses.store(true, Relaxed);
    let confirmed = folder.confirm(&key("a"), Some(record));
    assert!(matches!(confirmed, Err(FolderError::Closed(_))), "{confirmed:?}");
}

/// Trees on a disk that has no space any more.
struct FullDisk;

impl Trees for FullDisk {
    fn open(&self, folder: &Path) -> Result<Box<dyn Tree>, FolderError> {
        EmbeddedTrees.open(folder)
    }

    fn probe(&self, _: &Path) -> Result<(), FolderError> {
        Err(FolderError::Closed("the disk is full".to_owned()))
    }
}

/// If it was closed, perhaps nobody could open it.
#[test]
fn a_folder_stays_open_for_reads_until_there_is_space() {
    let (temporary, record) = (temporary(), Record::of(1));
    let folder = Folder::closed_on(temporary.path(), Arc::new(FullDisk));
    folder.mend().expect("it can be opened");
    folder.put(&key("a"), &record).expect("written");
    folder.refuses.store(true, Relaxed);
    folder.mend().expect_err("the disk is full");
    assert_eq!((folder.times_opened(), folder.is_open()), (1, true));
    assert_eq!(folder.get(&key("a")).expect("it is open"), Some(record));
}

/// A tree whose reads hang until somebody sends something.
struct HangingTree(Mutex<Receiver<()>>);

struct HangingTrees(Mutex<Option<HangingTree>>);

impl Trees for HangingTrees {
    fn open(&self, _: &Path) -> Result<Box<dyn Tree>, FolderError> {
        let tree = self.0.lock().take();
        tree.map(|tree| Box::new(tree) as _).ok_or(FolderError::Closed("it was opened once".to_owned()))
    }

    fn probe(&self, _: &Path) -> Result<(), FolderError> {
        Ok(())
    }
}

impl Tree for HangingTree {
    fn get(&self, _: &RecordKey) -> Result<Option<Record>, FolderError> {
        self.0.lock().recv().expect("the test ends it");
        Ok(None)
    }

    fn has(&self, _: &RecordKey) -> Result<bool, FolderError> {
        Ok(false)
    }

    fn page(
        &self,
        _: &KeyPrefix,
        _: Option<&RecordKey>,
        _: usize,
    ) -> Result<Vec<(RecordKey, Record)>, FolderError> {
        Ok(Vec::new())
    }

    fn count(&self) -> u64 {
        7
    }

    fn write(&self, _: &mut dyn Iterator<Item = Change<'_>>) -> Result<(), FolderError> {
        Ok(())
    }
}

/// The folder is to be opened again, and a read of it hangs. The thread that asks serves scrapes.
#[test]
fn whoever_asks_how_many_records_there_are_waits_for_no_read() {
    let temporary = temporary();
    let (go, gone) = channel();
    let tree = HangingTree(Mutex::new(gone));
    let folder = Folder::closed_on(temporary.path(), Arc::new(HangingTrees(Mutex::new(Some(tree)))));
    folder.mend().expect("it can be opened");
    assert_eq!((folder.count().ok(), folder.is_open()), (Some(7), true));
    thread::scope(|scope| {
        let folder = &folder;
        scope.spawn(|| folder.get(&key("a")));
        while folder.store.try_write().is_some() {
            thread::yield_now();
        }
        folder.refuses.store(true, Relaxed);
        scope.spawn(|| folder.mend());
        while folder.store.try_read().is_some() {
            thread::yield_now();
        }
        let (ask, asked) = channel();
        scope.spawn(move || ask.send((folder.count().is_err(), folder.is_open())));
        let asked = asked.recv_timeout(Duration::from_secs(10));
        go.send(()).expect("the read waits");
        assert_eq!(asked, Ok((true, false)));
    });
}

#[test]
fn a_path_that_is_no_folder_is_named() {
    let temporary = temporary();
    let file = temporary.path().join("file");
    fs::write(&file, "").expect("written");
    let error = Folder::open(&file.join("records")).err().expect("it is below a file").to_string();
    assert!(error.contains(&format!("{}", file.display())) && error.contains("may be written to"), "{error}");
}

/// Whatever is in the files: an error that names the folder, or what was stored.
#[test]
fn a_broken_file_is_an_error_or_nothing_at_all() {
    let temporary = temporary();
    let (whole, broken) = (temporary.path().join("whole"), temporary.path().join("broken"));
    let batch: Vec<_> = (0..200).map(|at| (key(&format!("t{at:03}")), Record::of(at))).collect();
    open(&whole).load(&batch).expect("written");
    for file in files(&whole) {
        for damage in [b"".as_slice(), b"no record"] {
            let _ = fs::remove_dir_all(&broken);
            copy(&whole, &broken);
            fs::write(broken.join(&file), damage).expect("written");
            let read = Folder::open(&broken)
                .and_then(|folder| folder.page(&KeyPrefix::everything(), None, usize::MAX));
            match read {
                Ok(records) => assert!(records.iter().all(|record| batch.contains(record)), "{file:?}"),
                Err(error) => assert!(error.to_string().contains("broken"), "{file:?}: {error}"),
            }
        }
    }
}

/// All files below a folder, by their paths in it.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = PathBuf::from(path.file_name().expect("a name"));
        match path.is_dir() {
            true => found.extend(files(&path).iter().map(|file| name.join(file))),
            false => found.push(name),
        }
    }
    found
}

fn copy(from: &Path, to: &Path) {
    for file in files(from) {
        fs::create_dir_all(to.join(&file).parent().expect("a folder")).expect("made");
        fs::copy(from.join(&file), to.join(&file)).expect("copied");
    }
}

#[test]
fn a_record_is_exchanged_only_if_it_is_the_one_that_is_known() {
    let temporary = temporary();
    let folder = open(temporary.path());
    let [one, two] = [1, 2].map(|requests| Some(Record::of(requests)));
    let exchange = |before, after| folder.exchange(&key("a"), before, after).expect("it is open");
    assert!(!exchange(one, two));
    assert!(exchange(None, one) && !exchange(None, two) && !exchange(two, None));
    assert_eq!(folder.get(&key("a")).expect("it is open"), one);
    assert!(exchange(one, two) && exchange(two, None));
    assert_eq!(folder.get(&key("a")).expect("it is open"), None);
}

/// Both wait for the disk, and nobody has written anything.
#[test]
fn of_two_exchanges_at_the_same_time_only_one_is_done() {
    let temporary = temporary();
    let folder = &open(temporary.path());
    let writing = folder.writing.lock();
    let done = std::thread::scope(|scope| {
        let exchanges = [5, 6].map(|requests| {
            scope
                .spawn(move || folder.exchange(&key("a"), None, Some(Record::of(requests))).expect("written"))
        });
        std::thread::sleep(Duration::from_millis(50));
        drop(writing);
        exchanges.map(|exchange| exchange.join().expect("no panic"))
    });
    assert_ne!(done[0], done[1], "the second one finds the record of the first");
}
