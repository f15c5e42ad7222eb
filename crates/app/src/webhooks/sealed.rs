//! Secrets of webhooks: made at random, stored encrypted. What is stored can be read only for the same object and field.

use ade_domain::Keys;
use ade_domain::keys::{SEAL_NONCE_BYTES, UnsealError};
use ade_domain::webhook::signature::{SECRET_BYTES, SigningSecret};
use ring::rand::{SecureRandom, SystemRandom};

use crate::{Error, Result};

fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    let unavailable = |_| Error::system("the system provides no randomness");
    SystemRandom::new().fill(&mut bytes).map_err(unavailable)?;
    Ok(bytes)
}

/// Any number, for jitter.
pub(super) fn random_number() -> u32 {
    random().map(u32::from_be_bytes).unwrap_or_default()
}

pub(super) fn new_secret() -> Result<SigningSecret> {
    Ok(SigningSecret::new(random::<SECRET_BYTES>()?))
}

fn context(id: &str, field: &str) -> String {
    format!("webhook:{id}:{field}")
}

pub(super) fn seal(keys: &Keys, id: &str, field: &str, text: &str) -> Result<String> {
    let sealed = keys.seal(random::<SEAL_NONCE_BYTES>()?, &context(id, field), text);
    sealed.ok_or_else(|| Error::system("the secret is too long to be encrypted"))
}

pub(super) fn unseal(keys: &Keys, id: &str, field: &str, sealed: &str) -> Result<String, UnsealError> {
    keys.unseal(&context(id, field), sealed)
}

/// The secrets that sign at a time: the present one, and for a while after a rotation the previous one.
pub(super) fn signing_secrets(
    keys: &Keys,
    id: &str,
    sealed: impl IntoIterator<Item = impl AsRef<str>>,
) -> Result<Vec<SigningSecret>, UnsealError> {
    let parse = |sealed: &str| {
        let text = unseal(keys, id, "secret", sealed)?;
        SigningSecret::parse(&text).map_err(|_| UnsealError::Forged)
    };
    sealed.into_iter().map(|sealed| parse(sealed.as_ref())).collect()
}
