//! Secrets of webhooks: made at random, stored encrypted. What is stored can be read only for the same object and field.

use ade_domain::Keys;
use ade_domain::keys::{SEAL_NONCE_BYTES, UnsealError};
use ade_domain::webhook::Webhook;
use ade_domain::webhook::chat_secret::ChatSecret;
use ade_domain::webhook::inbound::InboundHook;
use ade_domain::webhook::signature::{SECRET_BYTES, SigningSecret};
use ade_store::database::{Commit, Write};
use ring::rand::{SecureRandom, SystemRandom};

use super::chat_secrets;
use crate::{Context, Error, Result};

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

/// The secret of a code with which a user links an account of Slack.
pub(super) fn new_link_secret() -> Result<String> {
    Ok(format!("adel_{}", hex::encode(random::<SECRET_BYTES>()?)))
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

/// Encrypts with the present secret of the installation what a previous one encrypted, so that the previous one can be dropped. Returns
/// how many objects were changed.
pub async fn reseal_secrets(context: &Context) -> Result<u64> {
    let (database, mut changed) = (&context.database, 0);
    let keys = database.keys();
    for stored in database.documents::<Webhook>().await? {
        let mut webhook = stored.value.clone();
        let previous = webhook.previous_secret.as_mut().map(|previous| &mut previous.secret);
        let secrets = webhook.secret.as_mut().into_iter().chain(previous).map(|sealed| ("secret", sealed));
        let credential = webhook.credential.as_mut().map(|sealed| ("credential", sealed));
        let app = webhook.slack_app.as_mut().map(|app| ("signing_secret", &mut app.signing_secret));
        let all = secrets.chain(credential).chain(app).chain([("url", &mut webhook.url)]);
        if reseal(keys, &stored.id, all)? {
            let write = Write::document(&stored.next(webhook), Some(stored.revision));
            changed += u64::from(commit(context, write).await?);
        }
    }
    for stored in database.documents::<ChatSecret>().await? {
        let mut secret = stored.value.clone();
        if reseal(keys, &stored.id, [(chat_secrets::FIELD, &mut secret.secret)].into_iter())? {
            let write = Write::document(&stored.next(secret), Some(stored.revision));
            changed += u64::from(commit(context, write).await?);
        }
    }
    for stored in database.documents::<InboundHook>().await? {
        let mut hook = stored.value.clone();
        let previous = hook.previous_secret.as_mut().map(|previous| &mut previous.secret);
        let all = [&mut hook.secret].into_iter().chain(previous).map(|sealed| ("secret", sealed));
        if reseal(keys, &stored.id, all)? {
            let write = Write::document(&stored.next(hook), Some(stored.revision));
            changed += u64::from(commit(context, write).await?);
        }
    }
    Ok(changed)
}

/// After a conflict the next run tries again.
async fn commit(context: &Context, write: Write) -> Result<bool> {
    context.commit(Commit { writes: vec![write], ..Commit::default() }).await
}

/// Whether a text was sealed anew. What cannot be read stays as it is: its owner sees why when it is used.
fn reseal<'a>(keys: &Keys, id: &str, all: impl Iterator<Item = (&'a str, &'a mut String)>) -> Result<bool> {
    let mut is_changed = false;
    for (field, sealed) in all.filter(|(_, sealed)| !keys.is_current(sealed)) {
        if let Ok(text) = unseal(keys, id, field, sealed) {
            *sealed = seal(keys, id, field, &text)?;
            is_changed = true;
        }
    }
    Ok(is_changed)
}
