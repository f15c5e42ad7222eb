//! The secret of an installation: a file in the data folder that only its owner can read, created at the first start, or a text that
//! the operator provides. It never lies in a database: write access to a database is not enough to forge anything.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use ade_domain::Keys;
use ade_domain::keys::InvalidSecret;
use ring::rand::{SecureRandom, SystemRandom};

/// Name of the secret file in the data folder.
pub const SECRET_FILE: &str = "secret";
/// Name of the file with previous secrets, one in each line, which only verify.
pub const PREVIOUS_SECRET_FILE: &str = "secret.previous";

const SECRET_BYTES: usize = 32;

#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    #[error("cannot use the secret in {path}: {source}")]
    Unusable { path: PathBuf, source: io::Error },
    #[error("{from}: {source}")]
    Invalid { from: String, source: InvalidSecret },
}

/// The keys of the secret in a data folder, which is created if it is missing.
pub fn open_secret_file(folder: &Path) -> Result<Keys, SecretError> {
    let (current, previous) = (folder.join(SECRET_FILE), folder.join(PREVIOUS_SECRET_FILE));
    let secret = match read(&current)? {
        Some(secret) => secret,
        None => create(&current).map_err(|source| SecretError::Unusable { path: current.clone(), source })?,
    };
    let invalid = |source| SecretError::Invalid { from: current.display().to_string(), source };
    Keys::derive(&secret, &read(&previous)?.unwrap_or_default()).map_err(invalid)
}

fn read(path: &Path) -> Result<Option<String>, SecretError> {
    match fs::read_to_string(path) {
        Ok(secret) => Ok(Some(secret)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(SecretError::Unusable { path: path.to_owned(), source }),
    }
}

fn create(path: &Path) -> io::Result<String> {
    let mut bytes = [0; SECRET_BYTES];
    let no_randomness = |_| io::Error::other("the system provides no randomness");
    SystemRandom::new().fill(&mut bytes).map_err(no_randomness)?;
    let secret = hex::encode(bytes);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    writeln!(file, "{secret}")?;
    file.sync_all()?;
    Ok(secret)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn creates_a_private_file_once_and_accepts_a_previous_one() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let first = open_secret_file(folder.path()).expect("created");
        let file = folder.path().join(SECRET_FILE);
        assert_eq!(fs::metadata(&file).expect("exists").permissions().mode() & 0o777, 0o600);
        assert_eq!(open_secret_file(folder.path()).expect("read").id(), first.id());
        // Replaced: the old one moves to the previous file.
        fs::rename(&file, folder.path().join(PREVIOUS_SECRET_FILE)).expect("renamed");
        let second = open_secret_file(folder.path()).expect("created");
        assert_ne!(second.id(), first.id());
        assert!(second.previous_ids().eq([first.id()]));
        fs::write(&file, "short").expect("written");
        let error = open_secret_file(folder.path()).expect_err("short").to_string();
        assert!(error.contains("at least 32"), "{error}");
    }
}
