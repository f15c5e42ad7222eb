//! Secrets: random, told once, and known afterwards by their hash alone. Each has 256 bits, so a plain hash is enough.

use ring::rand::{SecureRandom, SystemRandom};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::Error;

const BYTES: usize = 32;

/// A new secret, which begins so that people and scanners know what it is.
pub(super) fn new(prefix: &str) -> Result<String, Error> {
    let mut bytes = [0; BYTES];
    let none = |_| ade_store::DatabaseError::Unavailable("the system gives no randomness".to_owned());
    SystemRandom::new().fill(&mut bytes).map_err(none)?;
    Ok(format!("{prefix}{}", hex(&bytes)))
}

/// What a secret is known by.
#[must_use]
pub fn hash(secret: &str) -> String {
    hex(&Sha256::digest(secret.as_bytes()))
}

/// Whether a secret is the one with this hash. Hashes are compared, so that time tells nothing about the secret.
#[must_use]
pub fn same(secret: &str, known: &str) -> bool {
    hash(secret).as_bytes().ct_eq(known.as_bytes()).into()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
