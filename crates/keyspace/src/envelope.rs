//! The envelope of mediation values (INFRA-004 §3): `createdAt`, `expiresAt` and `version`, with the business `payload`
//! apart from the transport's `meta`.
//!
//! Invariant: an envelope is sealed for a key together with that key's TTL, so that both always end at the same time.

use jiff::{SignedDuration, Timestamp};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::Writable;

/// A value as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[non_exhaustive]
pub struct Envelope<P, M = serde_json::Map<String, serde_json::Value>> {
    /// When it was sealed.
    pub created_at: Timestamp,
    /// From when on it counts as gone, whatever the server's own expiry does.
    pub expires_at: Timestamp,
    /// Version of the payload's format.
    pub version: u32,
    /// What the business cares about.
    pub payload: P,
    /// What only the transport cares about.
    pub meta: M,
}

/// Why an envelope cannot be sealed or opened.
#[derive(Debug, thiserror::Error)]
pub enum EnvelopeError {
    /// The key has no TTL, so the envelope has no end.
    #[error("{entry} does not expire: an envelope needs a key with a ttl")]
    NoTtl {
        /// The key's entry.
        entry: &'static str,
    },
    /// The end lies outside the calendar.
    #[error("a ttl of {ttl:?} from {created_at} leaves the calendar: choose a shorter one")]
    OutOfRange {
        /// Beginning.
        created_at: Timestamp,
        /// Asked for.
        ttl: std::time::Duration,
    },
    /// Not an envelope at all.
    #[error("not an envelope: {0}")]
    Malformed(#[from] serde_json::Error),
    /// It ends before it begins.
    #[error("the envelope expires at {expires_at}, before it was created at {created_at}")]
    Inverted {
        /// Beginning.
        created_at: Timestamp,
        /// End.
        expires_at: Timestamp,
    },
    /// It is over.
    #[error("the envelope expired at {expires_at}")]
    Expired {
        /// End.
        expires_at: Timestamp,
    },
}

impl<P: Serialize, M: Serialize> Envelope<P, M> {
    /// Wraps a payload for `key`: it expires when the key does.
    pub fn seal(
        key: &Writable<'_>,
        now: Timestamp,
        version: u32,
        payload: P,
        meta: M,
    ) -> Result<Self, EnvelopeError> {
        let ttl = key.ttl().ok_or(EnvelopeError::NoTtl { entry: key.entry() })?;
        let expires_at = SignedDuration::try_from(ttl)
            .ok()
            .and_then(|ttl| now.checked_add(ttl).ok())
            .ok_or(EnvelopeError::OutOfRange { created_at: now, ttl })?;
        Ok(Self { created_at: now, expires_at, version, payload, meta })
    }

    /// The stored text.
    pub fn to_json(&self) -> Result<String, EnvelopeError> {
        Ok(serde_json::to_string(self)?)
    }
}

impl<P: DeserializeOwned, M: DeserializeOwned> Envelope<P, M> {
    /// Reads a stored text and refuses what is malformed or over.
    pub fn open(json: &str, now: Timestamp) -> Result<Self, EnvelopeError> {
        let envelope: Self = serde_json::from_str(json)?;
        let (created_at, expires_at) = (envelope.created_at, envelope.expires_at);
        if expires_at < created_at {
            return Err(EnvelopeError::Inverted { created_at, expires_at });
        }
        if expires_at <= now {
            return Err(EnvelopeError::Expired { expires_at });
        }
        Ok(envelope)
    }
}
