//! The bootstrap token: administers a server before the first user exists. It belongs to no user and cannot decide tasks.
//!
//! Only its hash is kept in memory, and it is compared in constant time. The file in the data folder is read again when it
//! changes, so that the operator can replace or disable the token while the server runs.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use uuid::Uuid;

/// The file in the data folder that holds the token.
pub(crate) const TOKEN_FILE: &str = "admin-token";
const MIN_TOKEN_BYTES: usize = 16;
/// In place of a token: there is none.
const DISABLED: &str = "disabled";

/// None if the token is disabled.
type TokenHash = Option<[u8; 32]>;

#[derive(Debug, Clone)]
pub(crate) enum BootstrapToken {
    /// From the environment.
    Given(TokenHash),
    File(TokenFile),
}

/// A file with a token, and what was last read from it.
#[derive(Debug, Clone)]
pub(crate) struct TokenFile {
    path: PathBuf,
    cached: Arc<Mutex<(FileVersion, TokenHash)>>,
}

/// Inode, size and time of the last change. None for a file that cannot be read.
type FileVersion = Option<(u64, u64, i64, i64)>;

fn file_version(path: &Path) -> FileVersion {
    let found = fs::metadata(path).ok()?;
    Some((found.ino(), found.size(), found.mtime(), found.mtime_nsec()))
}

fn parse(text: &str, source: &str) -> io::Result<TokenHash> {
    match text.trim() {
        DISABLED => Ok(None),
        token if token.len() >= MIN_TOKEN_BYTES => Ok(Some(Sha256::digest(token.as_bytes()).into())),
        _ => {
            let message =
                format!("{source} must have at least {MIN_TOKEN_BYTES} characters, or be {DISABLED}");
            Err(io::Error::new(io::ErrorKind::InvalidInput, message))
        }
    }
}

impl BootstrapToken {
    pub(crate) fn matches(&self, token: &str) -> bool {
        let expected = match self {
            Self::Given(hash) => *hash,
            Self::File(file) => file.current(),
        };
        let hash: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        expected.is_some_and(|expected| hash.ct_eq(&expected).into())
    }

    /// The given token, or the one in the data folder. If there is neither, a new one is written to the data folder, and
    /// the returned flag is true.
    pub(crate) fn load_or_create(given: Option<&str>, data: &Path) -> io::Result<(Self, bool)> {
        if let Some(token) = given {
            return Ok((Self::Given(parse(token, "ADE_ADMIN_TOKEN")?), false));
        }
        let path = data.join(TOKEN_FILE);
        let is_new = !path.exists();
        if is_new {
            write_token_file(data, &new_token())?;
        }
        let version = file_version(&path);
        let source = format!("the token in {}", path.display());
        let hash = parse(&fs::read_to_string(&path)?, &source)?;
        Ok((Self::File(TokenFile { path, cached: Arc::new(Mutex::new((version, hash))) }), is_new))
    }
}

impl TokenFile {
    /// The token in the file now. Without a readable one nobody is the operator.
    fn current(&self) -> TokenHash {
        let version = file_version(&self.path);
        let mut cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        if cached.0 != version {
            let text = fs::read_to_string(&self.path).unwrap_or_default();
            let hash = parse(&text, "the token").unwrap_or_else(|error| {
                tracing::error!(%error, path = %self.path.display(), "the bootstrap token cannot be used");
                None
            });
            *cached = (version, hash);
        }
        cached.1
    }
}

fn new_token() -> String {
    format!("ade_{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple())
}

/// Writes another file and renames it, so that a crash never leaves a partial token.
fn write_token_file(data: &Path, text: &str) -> io::Result<PathBuf> {
    let (temporary, path) = (data.join("admin-token.new"), data.join(TOKEN_FILE));
    let mut file = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&temporary)?;
    writeln!(file, "{text}")?;
    file.sync_all()?;
    fs::rename(&temporary, &path)?;
    Ok(path)
}

/// Replaces the bootstrap token of a data folder, and returns its file. A running server uses the new one at once.
pub fn rotate_bootstrap_token(data: &Path) -> io::Result<PathBuf> {
    write_token_file(data, &new_token())
}

/// Disables the bootstrap token of a data folder, and returns its file. A running server refuses it at once.
pub fn disable_bootstrap_token(data: &Path) -> io::Result<PathBuf> {
    write_token_file(data, DISABLED)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn first_start_creates_a_token_readable_by_its_owner_only() {
        let folder = tempfile::tempdir().expect("folder");
        let (first, is_new) = BootstrapToken::load_or_create(None, folder.path()).expect("created");
        assert!(is_new);
        let path = folder.path().join(TOKEN_FILE);
        assert_eq!(fs::metadata(&path).expect("exists").permissions().mode() & 0o777, 0o600);
        let text = fs::read_to_string(&path).expect("readable");
        assert!(first.matches(text.trim()));
        assert!(!first.matches("ade_other") && !first.matches(""));
        let (second, is_new) = BootstrapToken::load_or_create(None, folder.path()).expect("loaded");
        assert!(!is_new && second.matches(text.trim()));
    }

    #[test]
    fn given_token_takes_precedence_and_must_be_long_enough() {
        let folder = tempfile::tempdir().expect("folder");
        assert!(BootstrapToken::load_or_create(Some("short"), folder.path()).is_err());
        let given = "a-token-from-outside";
        let (token, _) = BootstrapToken::load_or_create(Some(given), folder.path()).expect("accepted");
        assert!(token.matches(given));
        assert!(!folder.path().join(TOKEN_FILE).exists());
        fs::write(folder.path().join(TOKEN_FILE), "\n").expect("written");
        assert!(BootstrapToken::load_or_create(None, folder.path()).is_err(), "an empty file is no token");
    }

    #[test]
    fn replaced_and_disabled_tokens_apply_without_a_restart() {
        let folder = tempfile::tempdir().expect("folder");
        let (token, _) = BootstrapToken::load_or_create(None, folder.path()).expect("created");
        let read = || fs::read_to_string(folder.path().join(TOKEN_FILE)).expect("readable").trim().to_owned();
        let first = read();
        rotate_bootstrap_token(folder.path()).expect("written");
        let second = read();
        assert!(first != second && token.matches(&second) && !token.matches(&first));
        disable_bootstrap_token(folder.path()).expect("written");
        assert!(!token.matches(&second) && !token.matches(DISABLED));
        let (token, is_new) = BootstrapToken::load_or_create(None, folder.path()).expect("loaded");
        assert!(!is_new && !token.matches(DISABLED));
        fs::remove_file(folder.path().join(TOKEN_FILE)).expect("removed");
        assert!(!token.matches(&second) && !token.matches(""), "without a file there is no operator");
        let (given, _) = BootstrapToken::load_or_create(Some(DISABLED), folder.path()).expect("accepted");
        assert!(!given.matches(DISABLED));
    }
}
