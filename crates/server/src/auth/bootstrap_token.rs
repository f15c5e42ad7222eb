//! The bootstrap token: administers a server before the first user exists. It belongs to no user and cannot decide tasks.
//!
//! Only its hash is kept in memory, and it is compared in constant time.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use uuid::Uuid;

/// The file in the data folder that holds the token.
pub(crate) const TOKEN_FILE: &str = "admin-token";
const MIN_TOKEN_BYTES: usize = 16;

#[derive(Debug, Clone)]
pub(crate) struct BootstrapToken {
    hash: [u8; 32],
}

impl BootstrapToken {
    fn new(token: &str) -> Self {
        Self { hash: Sha256::digest(token.as_bytes()).into() }
    }

    pub(crate) fn matches(&self, token: &str) -> bool {
        let hash: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        hash.ct_eq(&self.hash).into()
    }

    /// The given token, or the one in the data folder. If there is neither, a new one is written to the data folder, and
    /// the returned flag is true.
    pub(crate) fn load_or_create(given: Option<&str>, data: &Path) -> io::Result<(Self, bool)> {
        if let Some(token) = given {
            if token.len() < MIN_TOKEN_BYTES {
                let message = format!("ADE_ADMIN_TOKEN must have at least {MIN_TOKEN_BYTES} characters");
                return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
            }
            return Ok((Self::new(token), false));
        }
        let path = data.join(TOKEN_FILE);
        match fs::read_to_string(&path) {
            Ok(token) if token.trim().len() >= MIN_TOKEN_BYTES => Ok((Self::new(token.trim()), false)),
            Ok(_) => {
                let message =
                    format!("{} contains no valid token; remove the file to get a new one", path.display());
                Err(io::Error::new(io::ErrorKind::InvalidData, message))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let token = format!("ade_{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple());
                // Written to another file and renamed, so that a crash never leaves a partial token.
                let temporary = data.join("admin-token.new");
                let mut file = OpenOptions::new()
                    .create(true)
                    .truncate(true)
                    .write(true)
                    .mode(0o600)
                    .open(&temporary)?;
                writeln!(file, "{token}")?;
                file.sync_all()?;
                fs::rename(&temporary, &path)?;
                Ok((Self::new(&token), true))
            }
            Err(error) => Err(error),
        }
    }
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
}
