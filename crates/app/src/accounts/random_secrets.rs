//! Random secrets, which are shown once and stored as hashes only. Each has 256 bits, so a plain hash is enough.

use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::{Error, Result};

const SECRET_BYTES: usize = 32;

/// A new secret. The prefix tells people and secret scanners what it is.
pub(super) fn new(prefix: &str) -> Result<String> {
    let mut bytes = [0; SECRET_BYTES];
    let unavailable = |_| Error::system("the system provides no randomness");
    SystemRandom::new().fill(&mut bytes).map_err(unavailable)?;
    Ok(format!("{prefix}{}", hex::encode(bytes)))
}

#[must_use]
pub fn hash_secret(secret: &str) -> String {
    hex::encode(Sha256::digest(secret.as_bytes()))
}

/// The CSRF token of a session, derived from the secret of its cookie: nothing else is stored, and every page can compute it.
#[must_use]
pub fn csrf_token(session_secret: &str) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, session_secret.as_bytes());
    hex::encode(hmac::sign(&key, b"ade csrf token"))
}

/// Whether a CSRF token belongs to a session. The comparison takes constant time.
#[must_use]
pub fn matches_csrf_token(session_secret: &str, token: &str) -> bool {
    csrf_token(session_secret).as_bytes().ct_eq(token.as_bytes()).into()
}
