//! The bootstrap token: it administers before anybody else is known, counts as nobody, and decides nothing.
//!
//! Only its hash is kept in memory, and it is compared in constant time.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use uuid::Uuid;

/// The file in the data folder that holds the administrator's token.
const TOKEN_FILE: &str = "admin-token";
/// Tokens that are easily guessed are refused.
const MIN_TOKEN_BYTES: usize = 16;

/// The administrator's token, as a hash.
#[derive(Debug, Clone)]
pub(crate) struct AdminToken {
    hash: [u8; 32],
}

impl AdminToken {
    pub(crate) fn new(token: &str) -> Self {
        Self { hash: Sha256::digest(token.as_bytes()).into() }
    }

    pub(crate) fn admits(&self, token: &str) -> bool {
        let hash: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        hash.ct_eq(&self.hash).into()
    }

    /// The token that was given, or the one of the data folder, or a new one that is written there.
    pub(crate) fn find(given: Option<&str>, data: &Path) -> io::Result<(Self, bool)> {
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
                let message = format!("{} does not hold a token; remove it to get a new one", path.display());
                Err(io::Error::new(io::ErrorKind::InvalidData, message))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let token = format!("ade_{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple());
                // Written aside and moved, so that a crash leaves a whole token or none.
                let new = data.join("admin-token.new");
                let mut file =
                    OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&new)?;
                writeln!(file, "{token}")?;
                file.sync_all()?;
                fs::rename(&new, &path)?;
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
    fn the_first_start_writes_a_token_for_its_owner_only() {
        let folder = tempfile::tempdir().expect("folder");
        let (first, new) = AdminToken::find(None, folder.path()).expect("made");
        assert!(new);
        let path = folder.path().join(TOKEN_FILE);
        assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
        let text = fs::read_to_string(&path).expect("readable");
        assert!(first.admits(text.trim()));
        assert!(!first.admits("ade_other") && !first.admits(""));
        let (second, new) = AdminToken::find(None, folder.path()).expect("found");
        assert!(!new && second.admits(text.trim()));
    }

    #[test]
    fn a_given_token_wins_and_must_not_be_short() {
        let folder = tempfile::tempdir().expect("folder");
        assert!(AdminToken::find(Some("short"), folder.path()).is_err());
        let (token, _) = AdminToken::find(Some("a-token-from-outside"), folder.path()).expect("taken");
        assert!(token.admits("a-token-from-outside"));
        assert!(!folder.path().join(TOKEN_FILE).exists());
        fs::write(folder.path().join(TOKEN_FILE), "\n").expect("written");
        assert!(AdminToken::find(None, folder.path()).is_err(), "an empty file admits nobody");
    }
}
