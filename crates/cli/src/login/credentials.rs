//! Tokens that `ade login` made, in one file for all servers: readable by its owner alone, written aside and renamed.
//!
//! A token is found only under the address that it was made at; it is never sent to another one.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use ade_client::wire::Time;
use ade_domain::permission::Scope;
use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;

use crate::failure::{Failure, Kind};

const FILE: &str = "credentials.toml";
/// Whoever writes holds this one, so that two sign-ins do not undo each other.
const LOCK: &str = "credentials.lock";

/// A token, and whose it is.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Credential {
    pub(crate) user_id: String,
    pub(crate) token_id: String,
    pub(crate) token: String,
    pub(crate) scopes: BTreeSet<Scope>,
    pub(crate) expires_at: Time,
}

/// Without the token: this may be printed.
impl std::fmt::Debug for Credential {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "token {} of {}", self.token_id, self.user_id)
    }
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Contents {
    #[serde(default)]
    servers: BTreeMap<String, Credential>,
}

/// Where tokens are kept.
#[derive(Debug, Clone)]
pub(crate) struct Credentials {
    folder: PathBuf,
}

impl Credentials {
    /// Those of whoever runs this; nothing if it has no home.
    pub(crate) fn usual() -> Option<Self> {
        let configs = folder_in("XDG_CONFIG_HOME").or_else(|| Some(folder_in("HOME")?.join(".config")))?;
        Some(Self { folder: configs.join("ade") })
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.folder.join(FILE)
    }

    /// The token for a server.
    pub(crate) fn get(&self, url: &str) -> Result<Option<Credential>, Failure> {
        Ok(self.read()?.servers.remove(&address(url)))
    }

    /// Keeps the token for a server, and gives the one that was kept before.
    pub(crate) fn put(&self, url: &str, credential: Credential) -> Result<Option<Credential>, Failure> {
        self.change(|servers| servers.insert(address(url), credential))
    }

    /// Forgets the token for a server, and gives it.
    pub(crate) fn forget(&self, url: &str) -> Result<Option<Credential>, Failure> {
        self.change(|servers| servers.remove(&address(url)))
    }

    fn read(&self) -> Result<Contents, Failure> {
        let file = self.file();
        let text = match fs::read_to_string(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Contents::default()),
            Err(error) => return Err(cannot("read", &file, &error)),
        };
        let mode = fs::metadata(&file).map_err(|error| cannot("read", &file, &error))?.mode();
        if mode & 0o077 != 0 {
            let told = format!("{} can be read by others, so its tokens are not used", file.display());
            return Err(Failure::new(Kind::Input, told)
                .hint(format!("chmod 600 {}; if others may have read it, sign in again", file.display())));
        }
        toml::from_str(&text).map_err(|error| {
            let told = format!("{} is not as ade wrote it: {}", file.display(), error.message());
            Failure::new(Kind::Input, told).hint("remove it and sign in again with ade login")
        })
    }

    fn change<T>(&self, change: impl FnOnce(&mut BTreeMap<String, Credential>) -> T) -> Result<T, Failure> {
        let failed = |error: io::Error| cannot("write", &self.file(), &error);
        DirBuilder::new().recursive(true).mode(0o700).create(&self.folder).map_err(failed)?;
        fs::set_permissions(&self.folder, Permissions::from_mode(0o700)).map_err(failed)?;
        let mut lock = File::options();
        let lock = lock.create(true).append(true).mode(0o600).open(self.folder.join(LOCK)).map_err(failed)?;
        lock.lock().map_err(failed)?;
        let mut contents = self.read()?;
        let changed = change(&mut contents.servers);
        let text = toml::to_string(&contents)
            .map_err(|error| Failure::new(Kind::Unavailable, format!("cannot write TOML: {error}")))?;
        self.write(&text).map_err(failed)?;
        Ok(changed)
    }

    /// Nobody ever sees a half, and nobody else ever sees anything: temporary files are made with 0600.
    fn write(&self, text: &str) -> io::Result<()> {
        let mut aside = NamedTempFile::new_in(&self.folder)?;
        aside.write_all(text.as_bytes())?;
        aside.as_file().sync_all()?;
        aside.persist(self.file())?;
        File::open(&self.folder)?.sync_all()
    }
}

fn cannot(verb: &str, file: &Path, error: &io::Error) -> Failure {
    Failure::new(Kind::Unavailable, format!("cannot {verb} {}: {error}", file.display()))
}

#[expect(clippy::disallowed_methods, reason = "where the files of whoever runs this are")]
fn folder_in(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).map(PathBuf::from).filter(|folder| folder.is_absolute())
}

/// One spelling for one server: hosts have no case, and what every client adds by itself is left out.
fn address(url: &str) -> String {
    let url = url.trim_end_matches('/');
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let (scheme, host) = (scheme.to_ascii_lowercase(), host.to_ascii_lowercase());
    let usual = match scheme.as_str() {
        "http" => ":80",
        "https" => ":443",
        _ => "",
    };
    format!("{scheme}://{}{path}", host.strip_suffix(usual).unwrap_or(&host))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: &str = "http://127.0.0.1:8300";

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
    fn a_token_is_given_to_the_server_it_was_made_for_and_to_no_other() {
        let home = tempfile::tempdir().expect("a folder");
        let kept = credentials(&home);
        assert_eq!(kept.get(HERE).expect("none"), None);
        assert_eq!(kept.put(HERE, credential("a")).expect("kept"), None);
        kept.put("https://ADE.example.com/", credential("b")).expect("kept");
        assert_eq!(kept.get("HTTP://127.0.0.1:8300/").expect("read"), Some(credential("a")));
        assert_eq!(kept.get("https://ade.example.com:443").expect("read"), Some(credential("b")));
        for other in [
            "http://127.0.0.1:8301",
            "https://127.0.0.1:8300",
            "http://127.0.0.1:8300@example.com",
            "http://127.0.0.1:8300.example.com",
            "http://ade.example.com",
            "https://ade.example.com/other",
            "http://127.0.0.1:8300/x",
        ] {
            assert_eq!(kept.get(other).expect("read"), None, "{other}");
        }
        assert_eq!(kept.put(HERE, credential("c")).expect("kept"), Some(credential("a")));
        assert_eq!(kept.forget(HERE).expect("forgotten"), Some(credential("c")));
        assert_eq!(kept.get(HERE).expect("none"), None);
        assert!(kept.get("https://ade.example.com").expect("read").is_some());
    }

    #[test]
    fn nobody_else_can_read_it_and_nothing_is_left_aside() {
        let home = tempfile::tempdir().expect("a folder");
        let kept = credentials(&home);
        kept.put(HERE, credential("a")).expect("kept");
        let mode = |path: &Path| fs::metadata(path).expect("there").mode() & 0o777;
        assert_eq!((mode(&kept.folder), mode(&kept.file())), (0o700, 0o600));
        let mut names: Vec<_> = fs::read_dir(&kept.folder)
            .expect("readable")
            .map(|entry| entry.expect("one").file_name())
            .collect();
        names.sort();
        assert_eq!(names, [LOCK, FILE]);
        fs::set_permissions(kept.file(), Permissions::from_mode(0o640)).expect("changed");
        let refused = kept.get(HERE).expect_err("others can read it");
        assert!(refused.message().contains("can be read by others"), "{}", refused.message());
        assert!(!format!("{:?}", credential("secret")).contains("secret"));
    }

    #[test]
    fn a_file_that_is_no_good_is_said_to_be_so_without_what_is_in_it() {
        let home = tempfile::tempdir().expect("a folder");
        let kept = credentials(&home);
        kept.put(HERE, credential("secret")).expect("kept");
        let text = fs::read_to_string(kept.file()).expect("readable").replace("expires_at", "expires");
        kept.write(&text).expect("written");
        let refused = kept.get(HERE).expect_err("not as it was");
        assert!(!refused.message().contains("secret"), "{}", refused.message());
    }
}
