//! A server on this machine: its data folder contains its address and its bootstrap token. Both count only if they belong to the
//! caller, or if the caller named the folder: anybody can put such a folder where somebody else works. And only while the server
//! runs: a server that was killed leaves its address, and somebody else may listen there now.

use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use ade_config::{ADDRESS_FILE, DataFolder};
use rustix::process::geteuid;

use crate::commands::login::credentials::normalized;
use crate::failure::{Failure, Result};

const TOKEN_FILE: &str = "admin-token";
/// Bytes of either file.
const MAX_FILE_LEN: u64 = 4_096;

#[derive(Debug)]
pub(super) struct LocalServer {
    folder: PathBuf,
    is_named: bool,
}

impl LocalServer {
    /// A folder that the caller named.
    pub(super) const fn named(folder: PathBuf) -> Self {
        Self { folder, is_named: true }
    }

    /// A folder that a configuration file or the current folder names.
    pub(super) const fn found(folder: PathBuf) -> Self {
        Self { folder, is_named: false }
    }

    /// The address that the running server wrote; `None` if no server runs, or if the folder belongs to somebody else.
    pub(super) fn address(&self) -> Result<Option<String>> {
        let file = self.folder.join(ADDRESS_FILE);
        if !self.is_named && foreign(&[&self.folder, &file]).is_some() {
            return Ok(None);
        }
        let is_in_use = DataFolder::is_in_use(&self.folder);
        let is_in_use = is_in_use
            .map_err(|error| Failure::cannot(format_args!("read {}", self.folder.display()), error))?;
        match read(&file) {
            Ok(url) if is_in_use => Ok(Some(url)),
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(Failure::cannot(format_args!("read {}", file.display()), error))
            }
            _ if self.is_named => Err(self.not_running()),
            _ => Ok(None),
        }
    }

    fn not_running(&self) -> Failure {
        Failure::unavailable(format!("no server is running on {}", self.folder.display()))
            .hint("start it with ade serve, or name its data folder with --data")
    }

    /// The bootstrap token, for this address only.
    pub(super) fn token(&self, url: &str) -> Result<String> {
        const HINT: &str = "sign in with ade login, set ADE_TOKEN, or use --token";
        let (address, token) = (self.folder.join(ADDRESS_FILE), self.folder.join(TOKEN_FILE));
        if !self.is_named
            && let Some(path) = foreign(&[&self.folder, &address, &token])
        {
            let message = format!("{} belongs to another user, so its token is not used", path.display());
            let hint = format!("if you trust it, use --data {}; otherwise {HINT}", self.folder.display());
            return Err(Failure::invalid(message).hint(hint));
        }
        match self.address()? {
            Some(written) if normalized(&written) == normalized(url) => {}
            None if address.exists() => return Err(self.not_running()),
            _ => return Err(Failure::invalid(format!("no token for {url}")).hint(HINT)),
        }
        read(&token).map_err(|_| {
            let hint = format!("{HINT}, or use --data with the folder that contains {TOKEN_FILE}");
            Failure::invalid(format!("no token for {url}: cannot read {}", token.display())).hint(hint)
        })
    }
}

/// The first of these that exists and belongs to another user.
fn foreign<'a>(paths: &[&'a Path]) -> Option<&'a Path> {
    let own = geteuid().as_raw();
    let is_foreign = |path: &&&Path| fs::metadata(path).is_ok_and(|metadata| metadata.uid() != own);
    paths.iter().find(is_foreign).copied()
}

fn read(file: &Path) -> io::Result<String> {
    let mut text = String::new();
    fs::File::open(file)?.take(MAX_FILE_LEN).read_to_string(&mut text)?;
    Ok(text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_goes_to_the_written_address_only() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).expect("written");
        let found = LocalServer::found(folder.path().to_owned());
        write(TOKEN_FILE, "secret\n");
        assert_eq!(found.address().expect("readable"), None);
        assert!(found.token("http://127.0.0.1:8300").is_err(), "no server has written its address");
        assert!(LocalServer::named(folder.path().to_owned()).address().is_err());
        let running = DataFolder::lock(folder.path()).expect("locked");
        write(ADDRESS_FILE, "http://127.0.0.1:8301\n");
        assert_eq!(found.address().expect("readable").as_deref(), Some("http://127.0.0.1:8301"));
        assert_eq!(found.token("http://127.0.0.1:8301/").expect("read"), "secret");
        for other in
            ["http://127.0.0.1:8300", "http://localhost:8301", "http://example.com", "https://127.0.0.1:8301"]
        {
            assert!(found.token(other).is_err(), "{other}");
        }
        drop(running);
        assert_eq!(found.address().expect("readable"), None, "the server was killed");
        let failure = found.token("http://127.0.0.1:8301").expect_err("somebody else may listen there");
        assert!(format!("{failure:?}").contains("no server is running on"), "{failure:?}");
    }

    #[test]
    fn folder_of_another_user_must_be_named() {
        // The root folder belongs to root, and so do these files.
        let own = geteuid().as_raw() == 0;
        assert_eq!(foreign(&[Path::new("/")]).is_some(), !own);
        let folder = tempfile::tempdir().expect("a folder");
        assert_eq!(foreign(&[folder.path()]), None);
    }
}
