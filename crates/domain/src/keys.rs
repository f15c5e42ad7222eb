//! The keys of an installation, all derived from its one secret: for audit entries, attempt markers, archives, hashes of hidden content,
//! checkpoints, and secrets of others that the service keeps.
//!
//! A person who can write to a database but does not have the secret can forge none of them. A message authentication code (MAC) names the
//! key that made it, so that a secret can be replaced: previous secrets still verify, and never sign.

use std::fmt;
use std::sync::Arc;

use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::{hkdf, hmac};

/// The shortest secret that is accepted.
pub const MIN_SECRET_CHARACTERS: usize = 32;

const SALT: &[u8] = b"ade-secret-1";
const KEY_ID_BYTES: usize = 8;
/// Bytes of randomness that sealing a text needs.
pub const SEAL_NONCE_BYTES: usize = NONCE_LEN;

/// What a MAC is made for. A MAC of one purpose is never valid for another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyPurpose {
    AuditEntry,
    SqlMarker,
    Archive,
}

/// The result of verifying a MAC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MacCheck {
    Valid,
    Invalid,
    /// It names a key that this process does not have: that of a newer secret, of one that was dropped, or of a forger.
    UnknownKey,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSecret {
    #[error(
        "the secret has only {0} characters, and must have at least {MIN_SECRET_CHARACTERS}. Create one with: openssl rand -hex 32"
    )]
    TooShort(usize),
    #[error("the secret contains a space or a line break, which separates previous secrets")]
    Whitespace,
    #[error("cannot derive keys from the secret")]
    Underivable,
}

/// Why a sealed text cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnsealError {
    #[error(
        "it is encrypted with the key {0}, which this process does not have: start it with that secret as a previous one, or \
         set the value again"
    )]
    UnknownKey(String),
    #[error("it was changed in the database: set the value again, and find out who changed it")]
    Forged,
}

/// The keys of one secret.
struct DerivedKeys {
    id: String,
    audit_entry: hmac::Key,
    sql_marker: hmac::Key,
    archive: hmac::Key,
    hidden_content: hmac::Key,
    checkpoint_seed: [u8; 32],
    sealing: LessSafeKey,
}

/// The keys of the current secret and of previous ones. Clones share them.
#[derive(Clone)]
pub struct Keys(Arc<KeyRing>);

struct KeyRing {
    current: DerivedKeys,
    previous: Vec<DerivedKeys>,
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let previous: Vec<&str> = self.previous_ids().collect();
        f.debug_struct("Keys").field("id", &self.id()).field("previous", &previous).finish()
    }
}

/// A length of derived bytes.
struct Length(usize);

impl hkdf::KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

impl DerivedKeys {
    fn derive(secret: &str) -> Result<Self, InvalidSecret> {
        let secret = secret.trim();
        let characters = secret.chars().count();
        if characters < MIN_SECRET_CHARACTERS {
            return Err(InvalidSecret::TooShort(characters));
        }
        if secret.contains(char::is_whitespace) {
            return Err(InvalidSecret::Whitespace);
        }
        let root = hkdf::Salt::new(hkdf::HKDF_SHA256, SALT).extract(secret.as_bytes());
        let key = |label: &str| -> Result<hmac::Key, InvalidSecret> {
            let info = [label.as_bytes()];
            let derived = root.expand(&info, hmac::HMAC_SHA256).map_err(|_| InvalidSecret::Underivable)?;
            Ok(derived.into())
        };
        let fill = |label: &str, bytes: &mut [u8]| -> Result<(), InvalidSecret> {
            let info = [label.as_bytes()];
            let derived = root.expand(&info, Length(bytes.len())).and_then(|derived| derived.fill(bytes));
            derived.map_err(|_| InvalidSecret::Underivable)
        };
        let (mut id, mut checkpoint_seed, mut sealing) = ([0; KEY_ID_BYTES], [0; 32], [0; 32]);
        fill("key id", &mut id)?;
        fill("checkpoint", &mut checkpoint_seed)?;
        fill("sealed secrets", &mut sealing)?;
        let sealing =
            UnboundKey::new(&CHACHA20_POLY1305, &sealing).map_err(|_| InvalidSecret::Underivable)?;
        Ok(Self {
            id: hex::encode(id),
            audit_entry: key("audit entry")?,
            sql_marker: key("sql marker")?,
            archive: key("archive")?,
            hidden_content: key("hidden content")?,
            checkpoint_seed,
            sealing: LessSafeKey::new(sealing),
        })
    }

    const fn key(&self, purpose: KeyPurpose) -> &hmac::Key {
        match purpose {
            KeyPurpose::AuditEntry => &self.audit_entry,
            KeyPurpose::SqlMarker => &self.sql_marker,
            KeyPurpose::Archive => &self.archive,
        }
    }
}

impl Keys {
    /// Derives the keys of a secret, and of previous ones, which only verify: a text with spaces or line breaks between them.
    pub fn derive(secret: &str, previous: &str) -> Result<Self, InvalidSecret> {
        let previous = previous.split_whitespace().map(DerivedKeys::derive).collect::<Result<_, _>>()?;
        Ok(Self(Arc::new(KeyRing { current: DerivedKeys::derive(secret)?, previous })))
    }

    /// Identifies the secret and reveals nothing about it.
    pub fn id(&self) -> &str {
        &self.0.current.id
    }

    pub fn previous_ids(&self) -> impl Iterator<Item = &str> {
        self.0.previous.iter().map(|previous| previous.id.as_str())
    }

    fn all(&self) -> impl Iterator<Item = &DerivedKeys> {
        std::iter::once(&self.0.current).chain(&self.0.previous)
    }

    /// The MAC of a message: the id of the key and hexadecimal digits.
    pub fn mac(&self, purpose: KeyPurpose, message: &[u8]) -> String {
        let current = &self.0.current;
        let tag = hmac::sign(current.key(purpose), message);
        format!("{}:{}", current.id, hex::encode(tag))
    }

    /// Verifies a MAC of the current or a previous secret, in constant time.
    pub fn verify(&self, purpose: KeyPurpose, message: &[u8], mac: &str) -> MacCheck {
        let Some((id, tag)) = mac.split_once(':') else { return MacCheck::Invalid };
        let Some(known) = self.all().find(|keys| keys.id == id) else { return MacCheck::UnknownKey };
        let is_valid =
            hex::decode(tag).is_ok_and(|tag| hmac::verify(known.key(purpose), message, &tag).is_ok());
        if is_valid { MacCheck::Valid } else { MacCheck::Invalid }
    }

    /// A keyed hash in hexadecimal digits, for content that is not shown: equal content has equal hashes, and without the secret nobody
    /// can find out by guessing what the content is.
    pub fn hidden_content(&self, content: &[u8]) -> String {
        hex::encode(hmac::sign(&self.0.current.hidden_content, content))
    }

    /// Encrypts a text that is stored, such as the secret of a webhook. It can be read only in the same context, which names the object and
    /// the field: nobody can move it to another one. The nonce is random and never used twice. `None` if the text is too long.
    pub fn seal(&self, nonce: [u8; SEAL_NONCE_BYTES], context: &str, text: &str) -> Option<String> {
        let (current, mut bytes) = (&self.0.current, text.as_bytes().to_vec());
        let aad = Aad::from(context.as_bytes());
        let sealed =
            current.sealing.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), aad, &mut bytes);
        sealed.ok().map(|()| format!("{}:{}{}", current.id, hex::encode(nonce), hex::encode(bytes)))
    }

    /// Decrypts what [`seal`](Self::seal) encrypted with the current or a previous secret.
    pub fn unseal(&self, context: &str, sealed: &str) -> Result<String, UnsealError> {
        let (id, digits) = sealed.split_once(':').ok_or(UnsealError::Forged)?;
        let unknown = || UnsealError::UnknownKey(id.to_owned());
        let keys = self.all().find(|keys| keys.id == id).ok_or_else(unknown)?;
        let mut bytes = hex::decode(digits).map_err(|_| UnsealError::Forged)?;
        let (nonce, rest) = bytes.split_at_mut_checked(SEAL_NONCE_BYTES).ok_or(UnsealError::Forged)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| UnsealError::Forged)?;
        let text = keys.sealing.open_in_place(nonce, Aad::from(context.as_bytes()), rest);
        let text = text.map_err(|_| UnsealError::Forged)?;
        String::from_utf8(text.to_vec()).map_err(|_| UnsealError::Forged)
    }

    /// Whether a text is sealed with the current secret, and not with a previous one that may be dropped.
    pub fn is_current(&self, sealed: &str) -> bool {
        sealed.split_once(':').is_some_and(|(id, _)| id == self.id())
    }

    /// The seeds of the keys that sign checkpoints: first of the current secret, then of previous ones.
    pub fn checkpoint_seeds(&self) -> impl Iterator<Item = &[u8; 32]> {
        self.all().map(|keys| &keys.checkpoint_seed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &str = "an-old-secret-with-at-least-32-characters";
    const NEW: &str = "a-new-secret-that-has-enough-characters";

    #[test]
    fn verifies_macs_of_current_and_previous_secrets_only() {
        let old = Keys::derive(OLD, "").expect("long");
        let older = "x".repeat(MIN_SECRET_CHARACTERS);
        let new = Keys::derive(NEW, &format!("{older}\n{OLD}\n")).expect("long");
        let purposes = [KeyPurpose::AuditEntry, KeyPurpose::SqlMarker, KeyPurpose::Archive];
        for purpose in purposes {
            let (by_old, by_new) = (old.mac(purpose, b"message"), new.mac(purpose, b"message"));
            assert_ne!(by_old, by_new);
            assert_eq!(new.verify(purpose, b"message", &by_new), MacCheck::Valid);
            assert_eq!(
                new.verify(purpose, b"message", &by_old),
                MacCheck::Valid,
                "the previous one verifies"
            );
            assert_eq!(old.verify(purpose, b"message", &by_new), MacCheck::UnknownKey);
            assert_eq!(new.verify(purpose, b"another", &by_new), MacCheck::Invalid);
            for other in purposes.into_iter().filter(|other| *other != purpose) {
                assert_eq!(new.verify(other, b"message", &by_new), MacCheck::Invalid, "another purpose");
            }
            for forged in ["", ":", "x", &by_new[..by_new.len() - 2], &by_new.replace(':', "")] {
                assert_ne!(new.verify(purpose, b"message", forged), MacCheck::Valid, "{forged:?}");
            }
        }
        assert_eq!(new.previous_ids().nth(1), Some(old.id()));
        assert_ne!(new.checkpoint_seeds().next(), old.checkpoint_seeds().next());
        assert_eq!(new.checkpoint_seeds().nth(2), old.checkpoint_seeds().next());
    }

    #[test]
    fn hashes_of_hidden_content_depend_on_content_and_secret() {
        let (old, new) = (Keys::derive(OLD, "").expect("long"), Keys::derive(NEW, "").expect("long"));
        assert_eq!(old.hidden_content(b"a"), Keys::derive(OLD, "").expect("long").hidden_content(b"a"));
        assert_ne!(old.hidden_content(b"a"), old.hidden_content(b"b"));
        assert_ne!(old.hidden_content(b"a"), new.hidden_content(b"a"));
        assert_eq!(old.hidden_content(b"").len(), 64);
    }

    #[test]
    fn sealed_texts_are_read_in_their_context_with_current_and_previous_secrets() {
        let (old, new) = (Keys::derive(OLD, "").expect("long"), Keys::derive(NEW, OLD).expect("long"));
        let sealed = old.seal([7; SEAL_NONCE_BYTES], "webhook:1:secret", "whsec_c2VjcmV0").expect("short");
        assert!(!sealed.contains("whsec") && !sealed.contains(&hex::encode("whsec")));
        assert_ne!(
            old.seal([8; SEAL_NONCE_BYTES], "webhook:1:secret", "whsec_c2VjcmV0").as_ref(),
            Some(&sealed)
        );
        for keys in [&old, &new] {
            assert_eq!(keys.unseal("webhook:1:secret", &sealed).as_deref(), Ok("whsec_c2VjcmV0"));
            assert_eq!(keys.unseal("webhook:2:secret", &sealed), Err(UnsealError::Forged));
        }
        assert!(old.is_current(&sealed) && !new.is_current(&sealed));
        let alone = Keys::derive(NEW, "").expect("long");
        assert_eq!(
            alone.unseal("webhook:1:secret", &sealed),
            Err(UnsealError::UnknownKey(old.id().to_owned()))
        );
        let flipped =
            format!("{}{}", &sealed[..sealed.len() - 1], if sealed.ends_with('0') { '1' } else { '0' });
        for forged in ["", "x", &format!("{}:", old.id()), &format!("{}:00", old.id()), &flipped] {
            assert_eq!(old.unseal("webhook:1:secret", forged), Err(UnsealError::Forged), "{forged}");
        }
    }

    #[test]
    fn rejects_short_secrets_and_shows_none() {
        let short = "x".repeat(MIN_SECRET_CHARACTERS - 1);
        assert_eq!(Keys::derive(&short, "").err(), Some(InvalidSecret::TooShort(31)));
        assert_eq!(Keys::derive(&format!("{NEW} {NEW}"), "").err(), Some(InvalidSecret::Whitespace));
        assert!(Keys::derive(NEW, &short).is_err());
        let keys = Keys::derive(&format!("  {NEW}\n"), "").expect("long");
        assert_eq!(keys.id(), Keys::derive(NEW, "").expect("long").id(), "a file ends with a line break");
        assert!(!format!("{keys:?}").contains(NEW));
    }
}
