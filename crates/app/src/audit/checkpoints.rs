//! Verification of the audit log, and signed checkpoints of it.
//!
//! The signing key is derived from the secret of the installation: all servers sign with the same key, and write access to the database
//! is not enough to sign.

use std::collections::BTreeSet;
use std::io;

use ade_domain::audit::{ChainError, ChainHead, ChainVerifier};
use ade_domain::{Keys, Moment};
use ade_store::database::AuditFilter;
use ade_store::{Database, DatabaseError};
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use serde::{Deserialize, Serialize};

use crate::Error;

type Result<T, E = AuditLogError> = std::result::Result<T, E>;

/// Entries that are read at once.
const PAGE_SIZE: u32 = 1_000;
/// The latest checkpoints that a verification compares.
const MAX_CHECKPOINTS: u32 = 2_000;

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
    #[error("cannot derive the signing key for checkpoints from the secret")]
    InvalidKey,
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
    /// The public keys of the current and of previous secrets, in hexadecimal digits.
    trusted_keys: BTreeSet<String>,
}

impl std::fmt::Debug for Signer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let public_key = hex::encode(self.key.public_key());
        f.debug_struct("Signer").field("public_key", &public_key).finish_non_exhaustive()
    }
}

impl Signer {
    pub fn new(keys: &Keys) -> Result<Self> {
        let pairs = keys.checkpoint_seeds().map(|seed| Ed25519KeyPair::from_seed_unchecked(seed));
        let pairs = pairs.collect::<Result<Vec<_>, _>>().map_err(|_| AuditLogError::InvalidKey)?;
        let trusted_keys = pairs.iter().map(|pair| hex::encode(pair.public_key())).collect();
        let key = pairs.into_iter().next().ok_or(AuditLogError::InvalidKey)?;
        Ok(Self { key, trusted_keys })
    }

    /// Whether a checkpoint names a key of this installation. Others prove nothing here.
    #[must_use]
    pub fn trusts(&self, checkpoint: &Checkpoint) -> bool {
        self.trusted_keys.contains(&checkpoint.public_key.to_ascii_lowercase())
    }

    /// The checkpoints of this installation among stored ones. One that names its key and is not signed by it is an error.
    pub fn trusted(&self, stored: &[String]) -> Result<Vec<Checkpoint>> {
        let parsed = stored.iter().filter_map(|text| serde_json::from_str::<Checkpoint>(text).ok());
        let own: Vec<Checkpoint> = parsed.filter(|checkpoint| self.trusts(checkpoint)).collect();
        if own.iter().all(Checkpoint::is_signed) { Ok(own) } else { Err(AuditLogError::InvalidSignature) }
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

/// A log that is intact.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifiedLog {
    pub head: ChainHead,
    /// The latest checkpoint that the log contains. Without one, it may have been truncated or rewritten as a whole.
    pub checkpoint: Option<ChainHead>,
}

/// Verifies the whole log: its hash chain, the MAC of every entry, that every entry is in the chain, and that the chain contains the
/// checkpoints of this installation and a head that the caller trusts.
pub async fn verify(
    database: &Database,
    signer: &Signer,
    local: &[Checkpoint],
    trusted: Option<ChainHead>,
) -> Result<VerifiedLog> {
    let stored = signer.trusted(&database.checkpoints(MAX_CHECKPOINTS).await?)?;
    let known = stored.iter().chain(local).map(|checkpoint| checkpoint.head).chain(trusted);
    let checkpoints: Vec<ChainHead> = known.collect();
    let head = verify_against(database, checkpoints.iter().copied()).await?;
    if let Some(entry_id) = database.entry_without_place().await? {
        let reason = format!("is the last one of the chain, but entry {entry_id} was taken out of it");
        return Err(ChainError { number: head.number, reason }.into());
    }
    Ok(VerifiedLog { head, checkpoint: checkpoints.into_iter().max_by_key(|checkpoint| checkpoint.number) })
}

/// Verifies the whole log, and that it contains these heads; returns the current head.
pub async fn verify_against(
    database: &Database,
    checkpoints: impl IntoIterator<Item = ChainHead>,
) -> Result<ChainHead> {
    walk_from(database, ChainVerifier::new(checkpoints), 0).await
}

async fn walk_from(database: &Database, mut walk: ChainVerifier, mut after: u64) -> Result<ChainHead> {
    loop {
        let page = database.audit_rows(&AuditFilter::default(), after, PAGE_SIZE).await?;
        for row in &page {
            walk.verify(&row.authentic_entry(database.keys())?)?;
        }
        match page.last() {
            Some(last) => after = last.number,
            None => break,
        }
    }
    // Elsewhere, a removed entry is a gap before the next one.
    match database.removed_entry(after).await? {
        Some(number) => Err(ChainError { number, reason: "was removed".to_owned() }.into()),
        None => Ok(walk.finish()?),
    }
}
