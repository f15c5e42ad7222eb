//! Verification of the audit log, and signed checkpoints of it.
//!
//! The signing key lies in the data folder, never in the database: write access to the database is not enough to sign.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use ade_domain::Moment;
use ade_domain::audit::{ChainError, ChainHead, ChainVerifier};
use ade_store::database::AuditFilter;
use ade_store::{Database, DatabaseError};
use ring::rand::SystemRandom;
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use serde::{Deserialize, Serialize};

use crate::Error;

type Result<T, E = AuditLogError> = std::result::Result<T, E>;

/// Entries that are read at once.
const PAGE_SIZE: u32 = 1_000;

/// The head of the log at some time, signed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Checkpoint {
    pub head: ChainHead,
    pub at: Moment,
    /// In hexadecimal digits.
    pub public_key: String,
    /// The signature over `head` and `at`, in hexadecimal digits.
    pub signature: String,
}

#[derive(Debug, thiserror::Error)]
pub enum AuditLogError {
    #[error(
        "cannot use the signing key for checkpoints: {0}. Restore the file {1}, or remove it to start with a new key"
    )]
    InvalidKey(String, String),
    #[error("the checkpoint is not signed by the key that it names")]
    InvalidSignature,
    /// The log does not match its hash chain or the checkpoint.
    #[error(transparent)]
    Broken(#[from] ChainError),
    #[error(transparent)]
    Database(#[from] DatabaseError),
    #[error(transparent)]
    Refused(Box<Error>),
    #[error("cannot write a checkpoint: {0}")]
    Io(#[from] io::Error),
}

fn signed_text(head: ChainHead, at: Moment) -> String {
    format!("ade-checkpoint-1 {} {} {}", head.number, head.entry_hash, at.micros())
}

impl Checkpoint {
    /// Whether the signature is by the key that the checkpoint names.
    #[must_use]
    pub fn is_signed(&self) -> bool {
        let (Ok(key), Ok(signature)) = (hex::decode(&self.public_key), hex::decode(&self.signature)) else {
            return false;
        };
        let text = signed_text(self.head, self.at);
        UnparsedPublicKey::new(&ED25519, key).verify(text.as_bytes(), &signature).is_ok()
    }
}

/// Signs checkpoints.
pub struct Signer {
    key: Ed25519KeyPair,
}

impl std::fmt::Debug for Signer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let public_key = hex::encode(self.key.public_key());
        f.debug_struct("Signer").field("public_key", &public_key).finish_non_exhaustive()
    }
}

impl Signer {
    /// Reads the key from a file; a missing file is created with a new key, readable by its owner only.
    pub fn open(file: &Path) -> Result<Self> {
        let unusable = |reason: String| AuditLogError::InvalidKey(reason, file.display().to_string());
        let bytes = match fs::read(file) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let generated = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new());
                let key = generated.map_err(|_| unusable("the system provides no randomness".to_owned()))?;
                let mut options = OpenOptions::new();
                let mut out = options.write(true).create_new(true).mode(0o600).open(file)?;
                out.write_all(key.as_ref())?;
                out.sync_all()?;
                key.as_ref().to_vec()
            }
            Err(error) => return Err(unusable(error.to_string())),
        };
        let key = Ed25519KeyPair::from_pkcs8(&bytes).map_err(|error| unusable(error.to_string()))?;
        Ok(Self { key })
    }

    /// Signs the current head. The log must be intact since the last checkpoint: signing a broken log would hide the break.
    /// Changes before the last checkpoint are found by [`verify`] only.
    pub async fn checkpoint(
        &self,
        database: &Database,
        last: Option<&Checkpoint>,
        now: Moment,
    ) -> Result<Checkpoint> {
        let head = match last {
            None => verify_against(database, None).await?,
            Some(last) if !last.is_signed() => return Err(AuditLogError::InvalidSignature),
            Some(last) => {
                // The chain must still contain the entry of the last checkpoint.
                let before = last.head.number.saturating_sub(1);
                let page = database.audit_rows(&AuditFilter::default(), before, 1).await?;
                let found = page.first().map(|row| row.entry()).transpose()?;
                if last.head.number > 0 && found.map(|entry| entry.entry_hash) != Some(last.head.entry_hash) {
                    let reason = "does not match the last checkpoint".to_owned();
                    return Err(ChainError { number: last.head.number, reason }.into());
                }
                walk_from(database, ChainVerifier::from_trusted(last.head), last.head.number).await?
            }
        };
        let signature = self.key.sign(signed_text(head, now).as_bytes());
        let public_key = hex::encode(self.key.public_key());
        Ok(Checkpoint { head, at: now, public_key, signature: hex::encode(signature) })
    }
}

/// Verifies the whole log, and that it contains the head of a signed checkpoint; returns the current head.
pub async fn verify(database: &Database, checkpoint: Option<&Checkpoint>) -> Result<ChainHead> {
    if checkpoint.is_some_and(|checkpoint| !checkpoint.is_signed()) {
        return Err(AuditLogError::InvalidSignature);
    }
    verify_against(database, checkpoint.map(|checkpoint| checkpoint.head)).await
}

/// Verifies the whole log, and that it contains a head that the caller trusts; returns the current head.
pub async fn verify_against(database: &Database, trusted: Option<ChainHead>) -> Result<ChainHead> {
    walk_from(database, ChainVerifier::new(trusted), 0).await
}

async fn walk_from(database: &Database, mut walk: ChainVerifier, mut after: u64) -> Result<ChainHead> {
    loop {
        let page = database.audit_rows(&AuditFilter::default(), after, PAGE_SIZE).await?;
        for row in &page {
            walk.verify(&row.entry()?)?;
        }
        match page.last() {
            Some(last) => after = last.number,
            None => return Ok(walk.finish()?),
        }
    }
}
