//! Stores the tokens of `ade login` in one file that only its owner can read. The file is replaced atomically.
//!
//! A token is stored under the address of its server and is never sent to another address.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use ade_client::wire::{Scope, Time};
use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;
use url::Url;

use crate::failure::{Failure, Result};

const FILE_NAME: &str = "credentials.toml";
/// Locked while the file is rewritten, so that concurrent sign-ins do not overwrite each other.
const LOCK_FILE_NAME: &str = "credentials.lock";

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Credential {
    pub(crate) user_id: String,
    pub(crate) token_id: String,
    pub(crate) token: String,
    pub(crate) scopes: BTreeSet<Scope>,
    pub(crate) expires_at: Time,
}

/// Leaves out the token.
impl std::fmt::Debug for Credential {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "token {} of {}", self.token_id, self.user_id)
    }
}

#[derive(Default, Serialize, Deserialize)]
struct Contents {
    #[serde(default)]
    servers: BTreeMap<String, Credential>,
    /// The secrets of this device by server and user: where a user signed in before, failed attempts of others delay nothing.
    #[serde(default)]
    devices: BTreeMap<String, BTreeMap<String, String>>,
}

#[derive(Debug, Clone)]
pub(crate) struct Credentials {
    folder: PathBuf,
}

impl Credentials {
    /// The credentials of the current user; `None` without a home folder.
    pub(crate) fn default_location() -> Option<Self> {
        let config_home =
            absolute_path("XDG_CONFIG_HOME").or_else(|| Some(absolute_path("HOME")?.join(".config")))?;
        Some(Self { folder: config_home.join("ade") })
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.folder.join(FILE_NAME)
    }

    pub(crate) fn get(&self, url: &str) -> Result<Option<Credential>> {
        Ok(self.read()?.servers.remove(&normalized(url)))
    }

    /// Stores the token of a server and returns the one it replaces.
    pub(crate) fn put(&self, url: &str, credential: Credential) -> Result<Option<Credential>> {
        self.change(|contents| contents.servers.insert(normalized(url), credential))
    }

    /// Removes the token of a server and returns it.
    pub(crate) fn remove(&self, url: &str) -> Result<Option<Credential>> {
        self.change(|contents| contents.servers.remove(&normalized(url)))
    }

    /// The secret of this device for a user of a server.
    pub(crate) fn device(&self, url: &str, user: &str) -> Result<Option<String>> {
        Ok(self.read()?.devices.remove(&normalized(url)).and_then(|mut users| users.remove(user)))
    }

    pub(crate) fn put_device(&self, url: &str, user: &str, secret: &str) -> Result<()> {
        self.change(|contents| {
            contents.devices.entry(normalized(url)).or_default().insert(user.to_owned(), secret.to_owned());
        })
    }

    fn read(&self) -> Result<Contents> {
        let file = self.file();
        let text = match fs::read_to_string(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Contents::default()),
            Err(error) => return Err(cannot("read", &file, &error)),
        };
        let mode = fs::metadata(&file).map_err(|error| cannot("read", &file, &error))?.mode();
        if mode & 0o077 != 0 {
            let message =
                format!("{} is readable by other users, so its tokens are not used", file.display());
            let hint = format!("run chmod 600 {}; if others may have read it, sign in again", file.display());
            return Err(Failure::invalid(message).hint(hint));
        }
        toml::from_str(&text).map_err(|error| {
            Failure::invalid(format!("{} is corrupt: {}", file.display(), error.message()))
                .hint("remove it and sign in again with ade login")
        })
    }

    fn change<T>(&self, change: impl FnOnce(&mut Contents) -> T) -> Result<T> {
        let failed = |error: io::Error| cannot("write", &self.file(), &error);
        DirBuilder::new().recursive(true).mode(0o700).create(&self.folder).map_err(failed)?;
        fs::set_permissions(&self.folder, Permissions::from_mode(0o700)).map_err(failed)?;
        let lock_file = self.folder.join(LOCK_FILE_NAME);
        let lock = File::options().create(true).append(true).mode(0o600).open(lock_file).map_err(failed)?;
        lock.lock().map_err(failed)?;
        let mut contents = self.read()?;
        let result = change(&mut contents);
        let text = toml::to_string(&contents).map_err(|error| Failure::cannot("write TOML", error))?;
        self.write(&text).map_err(failed)?;
        Ok(result)
    }

    /// Replaces the file atomically. Temporary files are created with mode 0600.
    fn write(&self, text: &str) -> io::Result<()> {
        let mut temporary = NamedTempFile::new_in(&self.folder)?;
        temporary.write_all(text.as_bytes())?;
        temporary.as_file().sync_all()?;
        temporary.persist(self.file())?;
        File::open(&self.folder)?.sync_all()
    }
}

fn cannot(verb: &str, file: &Path, error: &io::Error) -> Failure {
    Failure::cannot(format_args!("{verb} {}", file.display()), error)
}

#[expect(clippy::disallowed_methods, reason = "the home folder of the current user")]
fn absolute_path(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).map(PathBuf::from).filter(|folder| folder.is_absolute())
}

/// Normalizes a URL: scheme and host in lower case, without the default port and a trailing slash.
pub(crate) fn normalized(url: &str) -> String {
    let url = Url::parse(url).map_or_else(|_| url.to_owned(), String::from);
    url.trim_end_matches('/').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVER: &str = "http://127.0.0.1:8300";

    fn credential(token: &str) -> Credential {
        Credential {
            user_id: "ann".to_owned(),
            token_id: "1".to_owned(),
            token: token.to_owned(),
            scopes: BTreeSet::from([Scope::Read, Scope::Decide]),
            expires_at: Time("2026-07-01T00:00:00Z".parse().expect("a time")),
        }
    }

    fn credentials(home: &tempfile::TempDir) -> Credentials {
        Credentials { folder: home.path().join("config/ade") }
    }

    #[test]
    fn returns_a_token_only_for_its_own_server() {
        let home = tempfile::tempdir().expect("a folder");
        let stored = credentials(&home);
        assert_eq!(stored.get(SERVER).expect("none"), None);
        assert_eq!(stored.put(SERVER, credential("a")).expect("stored"), None);
        stored.put("https://ADE.example.com/", credential("b")).expect("stored");
        assert_eq!(stored.get("HTTP://127.0.0.1:8300/").expect("read"), Some(credential("a")));
        assert_eq!(stored.get("https://ade.example.com:443").expect("read"), Some(credential("b")));
        for other in [
            "http://127.0.0.1:8301",
            "https://127.0.0.1:8300",
            "http://127.0.0.1:8300@example.com",
            "http://127.0.0.1:8300.example.com",
            "http://ade.example.com",
            "https://ade.example.com/other",
            "http://127.0.0.1:8300/x",
        ] {
            assert_eq!(stored.get(other).expect("read"), None, "{other}");
        }
        assert_eq!(stored.put(SERVER, credential("c")).expect("stored"), Some(credential("a")));
        assert_eq!(stored.remove(SERVER).expect("removed"), Some(credential("c")));
        assert_eq!(stored.get(SERVER).expect("none"), None);
        assert!(stored.get("https://ade.example.com").expect("read").is_some());
        stored.put_device("http://127.0.0.1:8300/", "ann", "aded_1").expect("stored");
        assert_eq!(stored.device(SERVER, "ann").expect("read").as_deref(), Some("aded_1"));
        assert_eq!(stored.device(SERVER, "ben").expect("read"), None);
        assert_eq!(stored.device("https://ade.example.com", "ann").expect("read"), None);
    }

    #[test]
    fn file_is_private_and_leaves_no_temporary_files() {
        let home = tempfile::tempdir().expect("a folder");
        let stored = credentials(&home);
        stored.put(SERVER, credential("a")).expect("stored");
        let mode = |path: &Path| fs::metadata(path).expect("there").mode() & 0o777;
        assert_eq!((mode(&stored.folder), mode(&stored.file())), (0o700, 0o600));
        let mut names: Vec<_> = fs::read_dir(&stored.folder)
            .expect("readable")
            .map(|entry| entry.expect("one").file_name())
            .collect();
        names.sort();
        assert_eq!(names, [LOCK_FILE_NAME, FILE_NAME]);
        fs::set_permissions(stored.file(), Permissions::from_mode(0o640)).expect("changed");
        let failure = stored.get(SERVER).expect_err("readable by others");
        assert!(failure.message().contains("readable by other users"), "{}", failure.message());
        assert!(!format!("{:?}", credential("secret")).contains("secret"));
    }

    #[test]
    fn reports_a_corrupt_file_without_its_secrets() {
        let home = tempfile::tempdir().expect("a folder");
        let stored = credentials(&home);
        stored.put(SERVER, credential("secret")).expect("stored");
        let text = fs::read_to_string(stored.file()).expect("readable").replace("expires_at", "expires");
        stored.write(&text).expect("written");
        let failure = stored.get(SERVER).expect_err("corrupt");
        assert!(!failure.message().contains("secret"), "{}", failure.message());
    }
}
