//! A folder as Kubernetes mounts a ConfigMap or a Secret: its files lead over the link `..data` to the version in
//! force, and a change is the swap of that link.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// A mounted folder.
pub struct Mount {
    path: PathBuf,
    version: u32,
}

impl Mount {
    /// Mounts these files, each (its name, its text), at this folder.
    pub fn new(path: &Path, files: &[(&str, String)]) -> Self {
        fs::create_dir_all(path).expect("the folder is ours");
        let mount = Self { path: path.to_owned(), version: 0 };
        mount.put_in_force(files);
        for (name, _) in files {
            symlink(Path::new("..data").join(name), path.join(name)).expect("the folder is ours");
        }
        mount
    }

    /// All files become these, in one step; the version before is removed.
    pub fn swap(&mut self, files: &[(&str, String)]) {
        let before = self.folder();
        self.version += 1;
        self.put_in_force(files);
        fs::remove_dir_all(before).expect("the folder is ours");
    }

    fn folder(&self) -> PathBuf {
        self.path.join(format!("..2026_11_21_{}", self.version))
    }

    fn put_in_force(&self, files: &[(&str, String)]) {
        let folder = self.folder();
        fs::create_dir(&folder).expect("the folder is ours");
        for (name, text) in files {
            fs::write(folder.join(name), text).expect("the folder is ours");
        }
        let next = self.path.join("..data_tmp");
        symlink(folder.file_name().expect("it has one"), &next).expect("the folder is ours");
        fs::rename(next, self.path.join("..data")).expect("the folder is ours");
    }
}
