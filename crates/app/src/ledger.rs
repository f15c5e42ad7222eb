//! The audit log as somebody who trusts nobody reads it: entry by entry from the first, past a checkpoint that was signed and
//! kept elsewhere.
//!
//! The key lies beside the data, never in the database: whoever can write there cannot sign.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::Error;
use ade_domain::Moment;
use ade_domain::audit::{Broken, Head, Walk};
use ade_store::database::AuditFilter;
use ade_store::{Database, DatabaseError};
use ring::rand::SystemRandom;
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use serde::{Deserialize, Serialize};

/// Entries that are read at once.
const PAGE: u32 = 1_000;

/// Where the log was at some time, signed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Checkpoint {
    /// The last entry.
    pub head: Head,
    /// When.
    pub at: Moment,
    /// Whose signature, in hexadecimal digits.
    pub public_key: String,
    /// The signature over both, in hexadecimal digits.
    pub signature: String,
}

/// Why there is no verdict.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// The key cannot be used.
    #[error(
        "the key that signs checkpoints cannot be used: {0}; restore {1}, or remove it to begin with a new one"
    )]
    Key(String, String),
    /// A checkpoint that nobody signed.
    #[error("the checkpoint is not signed by the key that it names")]
    Forged,
    /// The log is not as it was.
    #[error(transparent)]
    Broken(#[from] Broken),
    /// The record is away.
    #[error(transparent)]
    Record(#[from] DatabaseError),
    /// The caller may not.
    #[error(transparent)]
    Refused(Box<Error>),
    /// A file cannot be written.
    #[error("a checkpoint cannot be written: {0}")]
    Io(#[from] io::Error),
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes().as_chunks::<2>();
    let (pairs, []) = digits else { return None };
    pairs.iter().map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}

/// What is signed.
fn signed(head: Head, at: Moment) -> String {
    format!("ade-checkpoint-1 {} {} {}", head.number, head.entry_hash, at.micros())
}

impl Checkpoint {
    /// Whether the key that it names signed it.
    #[must_use]
    pub fn is_signed(&self) -> bool {
        let (Some(key), Some(signature)) = (unhex(&self.public_key), unhex(&self.signature)) else {
            return false;
        };
        let text = signed(self.head, self.at);
        UnparsedPublicKey::new(&ED25519, key).verify(text.as_bytes(), &signature).is_ok()
    }
}

/// Signs checkpoints.
pub struct Signer {
    key: Ed25519KeyPair,
}

impl std::fmt::Debug for Signer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Signer")
            .field("public_key", &hex(self.key.public_key().as_ref()))
            .finish_non_exhaustive()
    }
}

impl Signer {
    /// With the key in a file, which is made if there is none; nobody else may read it.
    pub fn open(file: &Path) -> Result<Self, LedgerError> {
        let fault = |why: String| LedgerError::Key(why, file.display().to_string());
        let bytes = match fs::read(file) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let made = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new());
                let made = made.map_err(|_| fault("no randomness".to_owned()))?;
                let mut new = OpenOptions::new();
                let mut out = new.write(true).create_new(true).mode(0o600).open(file)?;
                out.write_all(made.as_ref())?;
                out.sync_all()?;
                made.as_ref().to_vec()
            }
            Err(error) => return Err(fault(error.to_string())),
        };
        let key = Ed25519KeyPair::from_pkcs8(&bytes).map_err(|error| fault(error.to_string()))?;
        Ok(Self { key })
    }

    /// Where the log is now, signed. It must be whole since the last checkpoint: a signature under a broken log would hide it.
    /// What was changed before that is found by whoever verifies all of it.
    pub async fn checkpoint(
        &self,
        record: &Database,
        last: Option<&Checkpoint>,
        now: Moment,
    ) -> Result<Checkpoint, LedgerError> {
        let head = match last {
            None => walk(record, None).await?,
            Some(last) if !last.is_signed() => return Err(LedgerError::Forged),
            Some(last) => {
                // The last entry once more: the chain must still lead through it.
                let before = last.head.number.saturating_sub(1);
                let page = record.audit(&AuditFilter::default(), before, 1).await?;
                let found = page.first().map(|row| row.entry()).transpose()?;
                if last.head.number > 0 && found.map(|entry| entry.entry_hash) != Some(last.head.entry_hash) {
                    let why = "is not the one that the last checkpoint was made for".to_owned();
                    return Err(LedgerError::Broken(Broken { number: last.head.number, reason: why }));
                }
                go_on(record, Walk::from(last.head), last.head.number).await?
            }
        };
        let signature = self.key.sign(signed(head, now).as_bytes());
        let public_key = hex(self.key.public_key().as_ref());
        Ok(Checkpoint { head, at: now, public_key, signature: hex(signature.as_ref()) })
    }
}

/// Walks along the whole log, past a checkpoint that somebody signed; where it ends.
pub async fn verify(record: &Database, checkpoint: Option<&Checkpoint>) -> Result<Head, LedgerError> {
    if checkpoint.is_some_and(|checkpoint| !checkpoint.is_signed()) {
        return Err(LedgerError::Forged);
    }
    walk(record, checkpoint.map(|checkpoint| checkpoint.head)).await
}

/// The same past a place that the caller trusts.
pub async fn walk(record: &Database, trusted: Option<Head>) -> Result<Head, LedgerError> {
    go_on(record, Walk::new(trusted), 0).await
}

async fn go_on(record: &Database, mut walk: Walk, mut after: u64) -> Result<Head, LedgerError> {
    loop {
        let page = record.audit(&AuditFilter::default(), after, PAGE).await?;
        for row in &page {
            walk.step(&row.entry()?)?;
        }
        match page.last() {
            Some(last) => after = last.number,
            None => return Ok(walk.end()?),
        }
    }
}
