//! Reading and watching on a real filesystem: every kind of change that editors, people and Kubernetes make.

#![allow(clippy::disallowed_methods, reason = "these tests watch a real filesystem, in real time")]

use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::{Contents, FileSource, Layout, SourceError, Watch};

/// Far shorter than the time after which contents are compared without an event.
const DEADLINE: Duration = Duration::from_secs(10);

fn runtime(root: &Path) -> Layout {
    Layout::Runtime {
        root: root.to_owned(),
        subdirectory: "sub".into(),
        app_directory: "config".into(),
        ignore_dot_files: false,
        watch_root: true,
    }
}

fn source(layout: Layout) -> FileSource {
    FileSource::new(layout, 1024)
}

fn write(path: impl AsRef<Path>, text: &str) {
    let path = path.as_ref();
    fs::create_dir_all(path.parent().expect("a file lies in a folder")).expect("folder");
    fs::write(path, text).expect("write");
}

/// Names without `root`, and texts.
fn texts(root: &Path, contents: &Contents) -> Vec<(String, String)> {
    let short =
        |name: &str| Path::new(name).strip_prefix(root).expect("below the root").display().to_string();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    contents.files.iter().map(|file| (short(&file.name), text(&file.bytes))).collect()
}

fn read(root: &Path, layout: Layout) -> Vec<(String, String)> {
    texts(root, &source(layout).read().expect("readable"))
}

fn pairs(files: &[(&str, &str)]) -> Vec<(String, String)> {
    files.iter().map(|&(name, text)| (name.to_owned(), text.to_owned())).collect()
}

#[test]
fn a_folder_is_its_yaml_files_in_name_order_and_a_warning_for_each_other() {
    let dir = TempDir::new().expect("temporary folder");
    for name in ["b.yml", "a.yaml", "notes.txt", ".#a.yaml", "nested/c.yaml", "..data/d.yaml"] {
        write(dir.path().join(name), name);
    }
    symlink("nobody@nowhere", dir.path().join(".#b.yaml")).expect("link");
    let contents = source(Layout::Path(dir.path().to_owned())).read().expect("readable");
    assert_eq!(texts(dir.path(), &contents), pairs(&[("a.yaml", "a.yaml"), ("b.yml", "b.yml")]));
    let warned: Vec<_> =
        [".#a.yaml", ".#b.yaml", "nested", "notes.txt"].map(|name| dir.path().join(name)).into();
    let path = |warning: &String| PathBuf::from(warning.split(": ").next().expect("a path first"));
    assert_eq!(contents.warnings.iter().map(path).collect::<Vec<_>>(), warned);
}

#[test]
fn one_file_is_loaded_whatever_its_name() {
    let dir = TempDir::new().expect("temporary folder");
    write(dir.path().join("rules.conf"), "x");
    write(dir.path().join("other.yaml"), "y");
    assert_eq!(read(dir.path(), Layout::Path(dir.path().join("rules.conf"))), pairs(&[("rules.conf", "x")]));
}

#[test]
fn a_runtime_folder_is_all_its_files_at_any_depth_and_config_files_beside_it() {
    let dir = TempDir::new().expect("temporary folder");
    let names = ["sub/config/deep/er/b", "sub/config/a.yaml", "sub/config/.dot", "sub/config/..data/a.yaml"];
    for name in names.iter().chain(&["sub/config.yaml", "sub/other.yaml"]) {
        write(dir.path().join(name), "x");
    }
    let mut layout = runtime(dir.path());
    let names =
        |layout: &Layout| read(dir.path(), layout.clone()).into_iter().map(|(name, _)| name).collect();
    let all: Vec<String> = names(&layout);
    assert_eq!(all, ["sub/config/.dot", "sub/config/a.yaml", "sub/config/deep/er/b", "sub/config.yaml"]);
    if let Layout::Runtime { ignore_dot_files, watch_root, .. } = &mut layout {
        (*ignore_dot_files, *watch_root) = (true, false);
    }
    let fewer: Vec<String> = names(&layout);
    assert_eq!(fewer, ["sub/config/a.yaml", "sub/config/deep/er/b"]);
}

#[test]
fn paths_below_the_root_stay_below_it_even_with_a_slash_in_front() {
    let dir = TempDir::new().expect("temporary folder");
    write(dir.path().join("sub/config/a"), "x");
    let layout = Layout::Runtime {
        root: dir.path().to_owned(),
        subdirectory: "/sub/".into(),
        app_directory: "/config".into(),
        ignore_dot_files: false,
        watch_root: false,
    };
    assert_eq!(read(dir.path(), layout), pairs(&[("sub/config/a", "x")]));
}

#[test]
fn what_is_not_there_is_an_error_and_an_empty_folder_is_not() {
    let dir = TempDir::new().expect("temporary folder");
    assert_eq!(read(dir.path(), Layout::Path(dir.path().to_owned())), []);
    let error = source(runtime(dir.path())).read().expect_err("missing");
    assert!(error.to_string().contains("sub/config"), "{error}");
    write(dir.path().join("sub/config.yaml"), "beside is enough");
    assert!(source(runtime(dir.path())).read().is_ok());
}

#[test]
fn a_fifo_is_refused_at_once() {
    let dir = TempDir::new().expect("temporary folder");
    let made =
        std::process::Command::new("mkfifo").arg(dir.path().join("a.yaml")).status().expect("mkfifo runs");
    assert!(made.success());
    let error = source(Layout::Path(dir.path().to_owned())).read().expect_err("a fifo");
    assert!(matches!(error, SourceError::NotAFile { .. }), "{error}");
    let opened = super::read_file(&dir.path().join("a.yaml"), 10).expect_err("a fifo");
    assert!(matches!(opened, SourceError::NotAFile { .. }), "even when it took a file's place: {opened}");
}

#[test]
fn links_that_lead_in_a_circle_end() {
    let dir = TempDir::new().expect("temporary folder");
    write(dir.path().join("sub/config/a"), "x");
    symlink("..", dir.path().join("sub/config/up")).expect("link");
    symlink(".", dir.path().join("sub/config/self")).expect("link");
    let contents = source(runtime(dir.path())).read().expect("readable");
    let found = texts(dir.path(), &contents);
    assert!(found.contains(&("sub/config/a".to_owned(), "x".to_owned())), "{found:?}");
    assert!(!contents.warnings.is_empty());
    symlink("loop", dir.path().join("sub/config/loop")).expect("link");
    let error = source(runtime(dir.path())).read().expect_err("a link to itself");
    assert!(matches!(error, SourceError::TooMuch { .. }), "{error}");
}

#[test]
fn files_are_bounded_in_size_together_and_in_number() {
    let dir = TempDir::new().expect("temporary folder");
    let path = Layout::Path(dir.path().to_owned());
    write(dir.path().join("a.yaml"), &"x".repeat(5000));
    let contents = source(path.clone()).read().expect("readable");
    assert_eq!(contents.files[0].bytes.len(), 1025, "one more than allowed, so that it shows");
    for index in 0..8 {
        write(dir.path().join(format!("{index}.yaml")), &"x".repeat(1024));
    }
    let error = source(path.clone()).read().expect_err("too many bytes");
    assert!(matches!(error, SourceError::TooMuch { max: 8192, .. }), "{error}");
    for index in 0..super::FILES_MAX {
        fs::File::create(dir.path().join(format!("{index}.txt"))).expect("create");
    }
    let error = source(path).read().expect_err("too many files");
    assert!(matches!(error, SourceError::TooMuch { max: 10_000, .. }), "{error}");
}

/// Rules that name this list.
fn naming(list: &str) -> String {
    format!("descriptors: [{{value: {{cidr_file: {list}}}}}]")
}

#[test]
fn lists_that_rules_name_are_read_wherever_they_lie_below_and_no_others() {
    let dir = TempDir::new().expect("temporary folder");
    let rules = [naming("lists/b.txt"), naming("a.txt")];
    write(dir.path().join("a.yaml"), &rules[0]);
    write(dir.path().join("b.yaml"), &rules[1]);
    for name in ["lists/b.txt", "lists/c.txt", "a.txt", "notes.txt"] {
        write(dir.path().join(name), name);
    }
    let layout = Layout::Path(dir.path().to_owned());
    let contents = source(layout.clone()).read().expect("readable");
    let [first, second] = [&rules[0], &rules[1]].map(String::as_str);
    let expected =
        [("a.yaml", first), ("b.yaml", second), ("a.txt", "a.txt"), ("lists/b.txt", "lists/b.txt")];
    assert_eq!(texts(dir.path(), &contents), pairs(&expected));
    assert_eq!(contents.warnings.len(), 1, "of the notes alone: {:?}", contents.warnings);
    fs::remove_file(dir.path().join("lists/b.txt")).expect("remove");
    let error = source(layout).read().expect_err("a list is missing");
    assert_eq!(error.path(), dir.path().join("lists/b.txt"));
    let place = format!("{}:1:35: `cidr_file`: ", dir.path().join("a.yaml").display());
    assert!(error.to_string().starts_with(&place), "{error}");
}

#[test]
fn a_list_in_a_runtime_folder_is_read_once() {
    let dir = TempDir::new().expect("temporary folder");
    write(dir.path().join("sub/config/a"), &naming("lists/b"));
    write(dir.path().join("sub/config/lists/b"), "x");
    let expected = [("sub/config/a", &*naming("lists/b")), ("sub/config/lists/b", "x")];
    assert_eq!(read(dir.path(), runtime(dir.path())), pairs(&expected));
}

/// A watched folder whose first contents were delivered. From here on only events deliver within the deadline.
struct Watched {
    root: TempDir,
    delivered: Receiver<Result<Contents, SourceError>>,
    clock_calls: Arc<AtomicUsize>,
    _watch: Watch,
}

impl Watched {
    fn start(prepare: impl FnOnce(&Path), layout: impl FnOnce(&Path) -> Layout) -> Self {
        let root = TempDir::new().expect("temporary folder");
        prepare(root.path());
        let (sender, delivered) = channel();
        let (start, clock_calls) = (Instant::now(), Arc::new(AtomicUsize::new(0)));
        let calls = Arc::clone(&clock_calls);
        let clock = move || {
            calls.fetch_add(1, Ordering::SeqCst);
            start.elapsed()
        };
        let deliver = move |contents| {
            let _ = sender.send(contents);
        };
        let watch = source(layout(root.path())).watch(None, clock, deliver).expect("a thread");
        let watched = Self { root, delivered, clock_calls, _watch: watch };
        watched.next().expect("the first contents are readable");
        watched
    }

    fn folder(files: &[(&str, &str)]) -> Self {
        let prepare =
            |root: &Path| files.iter().for_each(|(name, text)| write(root.join("rules").join(name), text));
        Self::start(prepare, |root| Layout::Path(root.join("rules")))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    fn next(&self) -> Result<Contents, SourceError> {
        self.delivered.recv_timeout(DEADLINE).expect("delivered in time")
    }

    /// Waits until these files are delivered. Earlier deliveries may be steps on the way.
    fn until(&self, files: &[(&str, &str)]) {
        let end = Instant::now() + DEADLINE;
        let mut last = None;
        while let Some(left) = end.checked_duration_since(Instant::now()) {
            let Ok(delivered) = self.delivered.recv_timeout(left) else { break };
            last = Some(delivered.map(|contents| texts(self.root.path(), &contents)));
            if matches!(&last, Some(Ok(found)) if *found == pairs(files)) {
                return;
            }
        }
        panic!("not delivered in time: {files:?}, but at last {last:?}");
    }

    fn nothing_for(&self, time: Duration) {
        if let Ok(delivered) = self.delivered.recv_timeout(time) {
            panic!("delivered without a change, or too early: {delivered:?}");
        }
    }
}

#[test]
fn a_plain_write_is_seen() {
    let watched = Watched::folder(&[("a.yaml", "1")]);
    write(watched.path("rules/a.yaml"), "2");
    watched.until(&[("rules/a.yaml", "2")]);
    write(watched.path("rules/a.yaml"), "3");
    watched.until(&[("rules/a.yaml", "3")]);
}

#[test]
fn a_change_of_a_list_is_seen() {
    let rules = naming("lists/b.txt");
    let watched = Watched::folder(&[("a.yaml", &rules), ("lists/b.txt", "1")]);
    for text in ["2", "3"] {
        write(watched.path("rules/lists/.b.tmp"), text);
        fs::rename(watched.path("rules/lists/.b.tmp"), watched.path("rules/lists/b.txt")).expect("rename");
        watched.until(&[("rules/a.yaml", &rules), ("rules/lists/b.txt", text)]);
    }
    fs::remove_file(watched.path("rules/lists/b.txt")).expect("remove");
    assert!(watched.next().is_err(), "a list is missing");
    write(watched.path("rules/lists/b.txt"), "4");
    watched.until(&[("rules/a.yaml", &rules), ("rules/lists/b.txt", "4")]);
}

#[test]
fn a_rename_over_is_seen() {
    let watched = Watched::folder(&[("a.yaml", "1")]);
    for text in ["2", "3"] {
        write(watched.path("rules/.a.yaml.tmp"), text);
        fs::rename(watched.path("rules/.a.yaml.tmp"), watched.path("rules/a.yaml")).expect("rename");
        watched.until(&[("rules/a.yaml", text)]);
    }
}

#[test]
fn created_renamed_and_removed_files_are_seen() {
    let watched = Watched::folder(&[("a.yaml", "1")]);
    write(watched.path("rules/b.yaml"), "2");
    watched.until(&[("rules/a.yaml", "1"), ("rules/b.yaml", "2")]);
    fs::rename(watched.path("rules/b.yaml"), watched.path("rules/c.yaml")).expect("rename");
    watched.until(&[("rules/a.yaml", "1"), ("rules/c.yaml", "2")]);
    fs::remove_file(watched.path("rules/a.yaml")).expect("remove");
    watched.until(&[("rules/c.yaml", "2")]);
}

#[test]
fn subfolders_are_seen_as_they_come_and_go() {
    let watched = Watched::start(|root| write(root.join("sub/config/a"), "1"), runtime);
    write(watched.path("sub/config/x/y/z/b"), "2");
    watched.until(&[("sub/config/a", "1"), ("sub/config/x/y/z/b", "2")]);
    write(watched.path("sub/config/x/y/z/b"), "3");
    watched.until(&[("sub/config/a", "1"), ("sub/config/x/y/z/b", "3")]);
    fs::rename(watched.path("sub/config/x/y"), watched.path("sub/config/y")).expect("rename");
    watched.until(&[("sub/config/a", "1"), ("sub/config/y/z/b", "3")]);
    write(watched.path("sub/config/y/z/b"), "4");
    watched.until(&[("sub/config/a", "1"), ("sub/config/y/z/b", "4")]);
    write(watched.path("sub/config.yaml"), "5");
    watched.until(&[("sub/config/a", "1"), ("sub/config/y/z/b", "4"), ("sub/config.yaml", "5")]);
}

/// What Kubernetes does: a new folder, a new link to it, the new link renamed over `..data`, the old folder removed.
fn publish(mount: &Path, version: &str, files: &[(&str, &str)]) {
    let old = fs::read_link(mount.join("..data")).ok();
    for (name, text) in files {
        write(mount.join(version).join(name), text);
        if fs::symlink_metadata(mount.join(name)).is_err() {
            symlink(Path::new("..data").join(name), mount.join(name)).expect("link");
        }
    }
    symlink(version, mount.join("..data_tmp")).expect("link");
    fs::rename(mount.join("..data_tmp"), mount.join("..data")).expect("rename");
    if let Some(old) = old {
        fs::remove_dir_all(mount.join(old)).expect("remove");
    }
}

#[test]
fn named_files_are_read_whatever_they_are_called_and_each_has_to_be_there() {
    let dir = TempDir::new().expect("temporary folder");
    let paths = ["tls.key", ".hidden", "deep/tls.crt"].map(|name| dir.path().join(name));
    paths.iter().for_each(|path| write(path, "text"));
    write(dir.path().join("other"), "not asked for");
    let named = || source(Layout::Files(paths.to_vec()));
    let found = texts(dir.path(), &named().read().expect("readable"));
    assert_eq!(found, pairs(&[(".hidden", "text"), ("deep/tls.crt", "text"), ("tls.key", "text")]));

    fs::remove_file(&paths[0]).expect("it is there");
    assert_eq!(named().read().expect_err("missing").path(), paths[0]);
    fs::create_dir(&paths[0]).expect("a folder");
    assert!(matches!(named().read(), Err(SourceError::NotAFile { path }) if path == paths[0]));
}

#[test]
fn a_config_map_that_is_swapped_is_seen_every_time() {
    let files = |text| [("a.yaml", text), ("b.yaml", "same")];
    let first = |root: &Path| publish(&root.join("rules"), "..2026_1", &files("1"));
    let watched = Watched::start(first, |root| Layout::Path(root.join("rules")));
    for (version, text) in [("..2026_2", "2"), ("..2026_3", "3"), ("..2026_4", "4")] {
        publish(&watched.path("rules"), version, &files(text));
        watched.until(&[("rules/a.yaml", text), ("rules/b.yaml", "same")]);
    }
}

#[test]
fn a_config_map_mounted_as_the_runtime_folder_is_loaded_once() {
    let first = |root: &Path| publish(&root.join("sub/config"), "..1", &[("a.yaml", "1")]);
    let watched = Watched::start(first, runtime);
    publish(&watched.path("sub/config"), "..2", &[("a.yaml", "2")]);
    watched.until(&[("sub/config/a.yaml", "2")]);
}

#[test]
fn a_runtime_root_that_is_a_swapped_link_is_seen() {
    let prepare = |root: &Path| {
        write(root.join("releases/1/sub/config/a"), "1");
        write(root.join("releases/2/sub/config/a"), "2");
        symlink("releases/1", root.join("current")).expect("link");
    };
    let watched = Watched::start(prepare, |root| runtime(&root.join("current")));
    symlink("releases/2", watched.path("next")).expect("link");
    fs::rename(watched.path("next"), watched.path("current")).expect("rename");
    watched.until(&[("current/sub/config/a", "2")]);
    write(watched.path("releases/2/sub/config/a"), "3");
    watched.until(&[("current/sub/config/a", "3")]);
}

#[test]
fn a_single_file_is_seen_however_it_is_replaced() {
    let prepare = |root: &Path| {
        write(root.join("elsewhere/real.yaml"), "1");
        symlink("elsewhere/real.yaml", root.join("a.yaml")).expect("link");
    };
    let watched = Watched::start(prepare, |root| Layout::Path(root.join("a.yaml")));
    write(watched.path("elsewhere/real.yaml"), "2");
    watched.until(&[("a.yaml", "2")]);
    write(watched.path("new"), "3");
    fs::rename(watched.path("new"), watched.path("a.yaml")).expect("rename");
    watched.until(&[("a.yaml", "3")]);
    write(watched.path("a.yaml"), "4");
    watched.until(&[("a.yaml", "4")]);
}

#[test]
fn a_folder_that_is_gone_for_a_while_is_an_error_once_and_seen_when_it_is_back() {
    let watched = Watched::folder(&[("a.yaml", "1")]);
    fs::remove_dir_all(watched.path("rules")).expect("remove");
    let error = watched.next().expect_err("the folder is gone");
    assert!(matches!(error, SourceError::Io { .. }), "{error}");
    watched.nothing_for(Duration::from_millis(300));
    write(watched.path("rules/a.yaml"), "2");
    watched.until(&[("rules/a.yaml", "2")]);
    write(watched.path("rules/a.yaml"), "3");
    watched.until(&[("rules/a.yaml", "3")]);
}

#[test]
fn a_folder_that_is_replaced_in_one_go_is_seen() {
    let watched = Watched::folder(&[("a.yaml", "1")]);
    for (text, aside) in [("2", "aside1"), ("3", "aside2")] {
        write(watched.path("new/a.yaml"), text);
        fs::rename(watched.path("rules"), watched.path(aside)).expect("rename");
        fs::rename(watched.path("new"), watched.path("rules")).expect("rename");
        watched.until(&[("rules/a.yaml", text)]);
    }
}

#[test]
fn a_file_is_not_delivered_while_it_is_being_written() {
    let watched = Watched::folder(&[("a.yaml", "1")]);
    let mut file = fs::File::create(watched.path("rules/a.yaml")).expect("create");
    file.write_all(b"first half,").expect("write");
    watched.nothing_for(Duration::from_millis(700));
    file.write_all(b" second half").expect("write");
    drop(file);
    let contents = watched.next().expect("readable");
    assert_eq!(texts(watched.root.path(), &contents), pairs(&[("rules/a.yaml", "first half, second half")]));
}

#[test]
fn nothing_is_delivered_without_a_change_and_reading_does_not_wake_itself() {
    let watched = Watched::folder(&[("a.yaml", "1")]);
    write(watched.path("rules/a.yaml"), "1");
    write(watched.path("unrelated"), "x");
    watched.nothing_for(Duration::from_millis(500));
    let before = watched.clock_calls.load(Ordering::SeqCst);
    watched.nothing_for(Duration::from_millis(500));
    let calls = watched.clock_calls.load(Ordering::SeqCst) - before;
    assert!(calls < 5, "the thread woke up {calls} times");
}

/// A start without rules reported and counted the error twice.
#[test]
fn an_error_that_the_receiver_has_is_not_delivered_again() {
    let root = TempDir::new().expect("temporary folder");
    let files = source(Layout::Path(root.path().join("rules")));
    let known = files.read().expect_err("missing");
    let (sender, delivered) = channel();
    // A clock that runs fast, so that a failure has lasted a second at once.
    let start = Instant::now();
    let deliver = move |contents| {
        let _ = sender.send(contents);
    };
    let clock = move || start.elapsed() * 20;
    let _watch = files.watch(Some(Err(&known)), clock, deliver).expect("a thread");
    assert!(delivered.recv_timeout(Duration::from_millis(500)).is_err(), "delivered again");
    write(root.path().join("rules/a.yaml"), "1");
    let contents = delivered.recv_timeout(DEADLINE).expect("delivered in time").expect("readable");
    assert_eq!(texts(root.path(), &contents), pairs(&[("rules/a.yaml", "1")]));
}

#[test]
fn what_the_receiver_has_is_not_delivered_again_and_stopping_drops_the_receiver() {
    let root = TempDir::new().expect("temporary folder");
    write(root.path().join("a.yaml"), "1");
    let files = source(Layout::Path(root.path().to_owned()));
    let known = files.read().expect("readable");
    let (sender, delivered) = channel();
    let start = Instant::now();
    let deliver = move |contents| {
        let _ = sender.send(contents);
    };
    let watch = files.watch(Some(Ok(&known)), move || start.elapsed(), deliver).expect("a thread");
    assert!(delivered.recv_timeout(Duration::from_millis(400)).is_err());
    drop(watch);
    let ended = delivered.recv_timeout(DEADLINE).expect_err("nothing is delivered any more");
    assert_eq!(ended, std::sync::mpsc::RecvTimeoutError::Disconnected);
}
