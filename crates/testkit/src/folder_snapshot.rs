//! Files of tests: writes them, and takes snapshots of folders with names, permissions and content.

#![expect(clippy::expect_used, reason = "helpers of tests fail like tests")]

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// Every path below a folder, with its mode, and its content if it is a file.
pub type FolderSnapshot = BTreeMap<String, (u32, Option<Vec<u8>>)>;

/// Writes a file and creates its parent folders.
pub fn write_file(path: &Path, content: &str, mode: u32) {
    fs::create_dir_all(path.parent().expect("a file in a folder")).expect("created");
    fs::write(path, content).expect("written");
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("set");
}

#[must_use]
pub fn snapshot(folder: &Path) -> FolderSnapshot {
    let (mut found, mut pending) = (FolderSnapshot::new(), vec![folder.to_owned()]);
    while let Some(inner) = pending.pop() {
        for entry in fs::read_dir(&inner).expect("a folder") {
            let path = entry.expect("readable").path();
            let metadata = fs::symlink_metadata(&path).expect("there");
            let content = metadata.is_file().then(|| fs::read(&path).expect("readable"));
            let name = path.strip_prefix(folder).expect("below").display().to_string();
            if metadata.is_dir() {
                pending.push(path);
            }
            found.insert(name, (metadata.permissions().mode(), content));
        }
    }
    found
}
