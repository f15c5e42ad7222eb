//! A folder for tests with everything below it: written, and looked at byte for byte with names and permissions.

#![expect(clippy::expect_used, reason = "helpers of tests fail like tests")]

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// Every name below a folder, with its permissions, and with its content if it is a file.
pub type Everything = BTreeMap<String, (u32, Option<Vec<u8>>)>;

/// Writes a file, with the folders on the way to it.
pub fn write(path: &Path, content: &str, mode: u32) {
    fs::create_dir_all(path.parent().expect("a file in a folder")).expect("made");
    fs::write(path, content).expect("written");
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("set");
}

/// Everything below a folder as it is now.
#[must_use]
pub fn everything(folder: &Path) -> Everything {
    let (mut found, mut open) = (Everything::new(), vec![folder.to_owned()]);
    while let Some(inner) = open.pop() {
        for entry in fs::read_dir(&inner).expect("a folder") {
            let path = entry.expect("readable").path();
            let about = fs::symlink_metadata(&path).expect("there");
            let content = about.is_file().then(|| fs::read(&path).expect("readable"));
            let name = path.strip_prefix(folder).expect("below").display().to_string();
            if about.is_dir() {
                open.push(path);
            }
            found.insert(name, (about.permissions().mode(), content));
        }
    }
    found
}
