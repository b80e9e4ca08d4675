//! No death leaves half a file under its name.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::mortal::{Left, MortalFolder};
use super::*;

/// A file that is replaced by one of another length, until the process dies after so many steps.
fn replaced(steps: usize) -> (MortalFolder, bool) {
    let folder = MortalFolder::new(&[("file".to_owned(), vec![b'o'; 150])].into());
    let disk: Arc<dyn Disk> = folder.disk(steps);
    let written = disk.replace(&folder.path().join("file"), |out| out.write_all(&[b'n'; 350]));
    (folder, written.is_ok())
}

#[test]
fn wherever_it_dies_a_file_is_the_old_one_or_the_new_one() {
    let steps = usize::MAX - replaced(usize::MAX).0.steps_left();
    assert_eq!(steps, 7, "make, three writes, sync, rename, sync");
    for steps in 0..=steps {
        let (folder, is_written) = replaced(steps);
        let now = fs::read(folder.path().join("file")).expect("one of both");
        let after = folder.after_a_crash().into_iter().map(|left| left["file"].clone());
        for bytes in after.chain([now]) {
            let (is_old, is_new) = (bytes == [b'o'; 150], bytes == [b'n'; 350]);
            assert!(if is_written { is_new } else { is_old || is_new }, "{steps} steps: {bytes:?}");
        }
    }
}

/// What the model is for: without the first sync, half a file has the name.
#[test]
fn a_file_that_is_renamed_before_it_is_synced_may_be_torn() {
    let folder = MortalFolder::new(&Left::new());
    let disk = folder.disk(usize::MAX);
    let [temporary, path] = ["file.new", "file"].map(|name| folder.path().join(name));
    disk.create(&temporary).and_then(|mut file| file.write_all(&[b'n'; 50])).expect("a disk");
    disk.rename(&temporary, &path).and_then(|()| disk.sync_folder(folder.path())).expect("a disk");
    let lengths: BTreeSet<_> = folder.after_a_crash().iter().map(|left| left["file"].len()).collect();
    assert_eq!(lengths, [0, 25, 50].into());
}

#[test]
fn what_cannot_be_written_leaves_no_temporary_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("file");
    let disk: &dyn Disk = &SystemDisk;
    let failed = disk.replace(&path, |out| {
        out.write_all(b"half")?;
        Err::<(), _>(io::Error::other("full"))
    });
    let error = failed.expect_err("it is full").to_string();
    assert_eq!(error, format!("cannot write {}.new: full", path.display()));
    assert_eq!(fs::read_dir(folder.path()).expect("ours").count(), 0);
}

#[test]
fn a_file_without_an_end_is_not_read_for_ever() {
    let error = read(Path::new("/dev/zero")).expect_err("it has no end").to_string();
    assert_eq!(error, "it is longer than 16777216 bytes");
}
