//! The envelope of the values in the `mediation` catalog: `createdAt`, `expiresAt`, `version`, the business data in `payload` and
//! the transport data in `meta`.
//!
//! Invariant: an envelope expires together with the key it is sealed for.

use jiff::{SignedDuration, Timestamp};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::Writable;

/// A stored value with its lifetime.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[non_exhaustive]
pub struct Envelope<P, M = serde_json::Map<String, serde_json::Value>> {
    /// Time of sealing.
    pub created_at: Timestamp,
    /// Time of expiry. An expired envelope is rejected even if Redis still has the key.
    pub expires_at: Timestamp,
    /// Version of the payload's format.
    pub version: u32,
    /// Business data.
    pub payload: P,
    /// Transport data.
    pub meta: M,
}

/// Why an envelope cannot be sealed or opened.
#[derive(Debug, thiserror::Error)]
pub enum EnvelopeError {
    /// The key has no TTL.
    #[error("{entry} does not expire: an envelope needs a key with a ttl")]
    NoTtl {
        /// Entry of the key.
        entry: &'static str,
    },
    /// The expiry is outside the supported range of timestamps.
    #[error("a ttl of {ttl:?} from {created_at} exceeds the range of timestamps: choose a shorter one")]
    OutOfRange {
        /// Time of sealing.
        created_at: Timestamp,
        /// The TTL of the key.
        ttl: std::time::Duration,
    },
    /// The text is not an envelope.
    #[error("not an envelope: {0}")]
    Malformed(#[from] serde_json::Error),
    /// The envelope expires before its creation.
    #[error("the envelope expires at {expires_at}, before it was created at {created_at}")]
    Inverted {
        /// Time of sealing.
        created_at: Timestamp,
        /// Time of expiry.
        expires_at: Timestamp,
    },
    /// The envelope has expired.
    #[error("the envelope expired at {expires_at}")]
    Expired {
        /// Time of expiry.
        expires_at: Timestamp,
    },
}

impl<P: Serialize, M: Serialize> Envelope<P, M> {
    /// Wraps a payload for `key`. Both expire at the same time.
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

    /// Serialises the envelope.
    pub fn to_json(&self) -> Result<String, EnvelopeError> {
        Ok(serde_json::to_string(self)?)
    }
}

impl<P: DeserializeOwned, M: DeserializeOwned> Envelope<P, M> {
    /// Parses a stored text. Malformed and expired envelopes are rejected.
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
