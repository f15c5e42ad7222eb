//! Signatures as in the Standard Webhooks specification, version 1: an HMAC over the id of the message, the time of the attempt and the
//! body, made with a secret that sender and receiver share. Secrets are compared in constant time, and never shown.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::hmac;

use crate::Moment;

/// How far the time of a message may be from the present: older ones could be replayed.
pub const TOLERANCE_MS: u64 = 300_000;
/// How long the previous secret still signs after a rotation.
pub const ROTATION_OVERLAP_MS: u64 = 86_400_000;
/// Bytes of a new secret.
pub const SECRET_BYTES: usize = 32;
pub const MAX_MESSAGE_ID_LEN: usize = 255;

const PREFIX: &str = "whsec_";
const VERSION: &str = "v1";
/// Sizes of secrets that the specification allows.
const SECRET_SIZES: std::ops::RangeInclusive<usize> = 24..=64;
/// Signatures of one message: a receiver checks a bounded number.
const MAX_SIGNATURES: usize = 8;

/// A secret that signs messages.
#[derive(Clone)]
pub struct SigningSecret {
    text: String,
    key: hmac::Key,
}

impl fmt::Debug for SigningSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SigningSecret(***)")
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be whsec_ and 24 to 64 bytes in base64")]
pub struct InvalidSigningSecret;

impl SigningSecret {
    pub fn new(random: [u8; SECRET_BYTES]) -> Self {
        let text = format!("{PREFIX}{}", STANDARD.encode(random));
        Self { text, key: hmac::Key::new(hmac::HMAC_SHA256, &random) }
    }

    pub fn parse(text: &str) -> Result<Self, InvalidSigningSecret> {
        let encoded = text.strip_prefix(PREFIX).ok_or(InvalidSigningSecret)?;
        let bytes = STANDARD.decode(encoded).map_err(|_| InvalidSigningSecret)?;
        if !SECRET_SIZES.contains(&bytes.len()) {
            return Err(InvalidSigningSecret);
        }
        Ok(Self { text: text.to_owned(), key: hmac::Key::new(hmac::HMAC_SHA256, &bytes) })
    }

    /// The secret itself: only for the person who creates it, and to store it encrypted.
    pub fn reveal(&self) -> &str {
        &self.text
    }

    fn message(id: &str, seconds: u64, body: &[u8]) -> Vec<u8> {
        [format!("{id}.{seconds}.").as_bytes(), body].concat()
    }

    fn sign(&self, message: &[u8]) -> String {
        format!("{VERSION},{}", STANDARD.encode(hmac::sign(&self.key, message)))
    }
}

/// The header `webhook-signature`: one signature for each secret.
pub fn signatures(secrets: &[SigningSecret], id: &str, seconds: u64, body: &[u8]) -> String {
    let message = SigningSecret::message(id, seconds, body);
    secrets.iter().map(|secret| secret.sign(&message)).collect::<Vec<_>>().join(" ")
}

/// The headers of a message that somebody sent, and its body.
#[derive(Debug, Clone, Copy)]
pub struct SignedMessage<'a> {
    pub id: &'a str,
    /// Seconds since the Unix epoch, as text.
    pub timestamp: &'a str,
    pub signatures: &'a str,
    pub body: &'a [u8],
}

/// Why a message is not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    #[error("webhook-id must be 1 to {MAX_MESSAGE_ID_LEN} visible ASCII characters without a dot")]
    Id,
    #[error("webhook-timestamp must be the seconds since 1970, at most 5 minutes from the present")]
    Timestamp,
    #[error("no signature in webhook-signature is valid for this secret")]
    Signature,
}

impl SignedMessage<'_> {
    /// Verifies that one of the secrets signed the message, and that it is recent.
    pub fn verify(&self, secrets: &[SigningSecret], now: Moment) -> Result<(), SignatureError> {
        let is_id = (1..=MAX_MESSAGE_ID_LEN).contains(&self.id.len())
            && self.id.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'.');
        if !is_id {
            return Err(SignatureError::Id);
        }
        let seconds = parse_recent(self.timestamp, now).ok_or(SignatureError::Timestamp)?;
        let message = SigningSecret::message(self.id, seconds, self.body);
        let is_valid = |signature: &str| {
            let tag = signature.strip_prefix(VERSION).and_then(|rest| rest.strip_prefix(','));
            let Some(tag) = tag.and_then(|tag| STANDARD.decode(tag).ok()) else { return false };
            secrets.iter().any(|secret| hmac::verify(&secret.key, &message, &tag).is_ok())
        };
        if self.signatures.split(' ').take(MAX_SIGNATURES).any(is_valid) {
            Ok(())
        } else {
            Err(SignatureError::Signature)
        }
    }
}

/// Seconds since the Unix epoch that are not far from the present.
pub fn parse_recent(timestamp: &str, now: Moment) -> Option<u64> {
    // Only the canonical form: the text is not signed, the number is.
    let seconds: u64 = timestamp.parse().ok().filter(|seconds: &u64| seconds.to_string() == timestamp)?;
    let at = Moment::from_micros(seconds.checked_mul(1_000_000)?);
    (at.ms_since(now).max(now.ms_since(at)) <= TOLERANCE_MS).then_some(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECONDS: u64 = 1_614_265_330;

    fn now() -> Moment {
        Moment::from_micros(SECONDS * 1_000_000)
    }

    #[test]
    fn signs_like_the_example_of_the_specification() {
        let secret = SigningSecret::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").expect("valid");
        let header =
            signatures(&[secret], "msg_p5jXN8AQM9LWM0D4loKWxJek", SECONDS, br#"{"test": 2432232314}"#);
        assert_eq!(header, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn accepts_recent_messages_of_its_secrets_only() {
        let secret = |byte| SigningSecret::new([byte; SECRET_BYTES]);
        let header = signatures(&[secret(1), secret(2)], "m1", SECONDS, b"body");
        let timestamp = SECONDS.to_string();
        let message = SignedMessage { id: "m1", timestamp: &timestamp, signatures: &header, body: b"body" };
        for accepted in [vec![secret(1)], vec![secret(2)], vec![secret(3), secret(2)]] {
            assert_eq!(message.verify(&accepted, now()), Ok(()));
        }
        let secrets = [secret(1)];
        let rejected = |message: SignedMessage<'_>, at| message.verify(&secrets, at).err();
        assert_eq!(message.verify(&[secret(3)], now()), Err(SignatureError::Signature));
        assert_eq!(message.verify(&[], now()), Err(SignatureError::Signature));
        let changed = Some(SignatureError::Signature);
        assert_eq!(rejected(SignedMessage { id: "m2", ..message }, now()), changed);
        assert_eq!(rejected(SignedMessage { body: b"bodY", ..message }, now()), changed);
        for signatures in ["", "v1,", "v1,AAAA", "v2,AAAA", &header.replace("v1,", "v1a,"), &header[3..]] {
            assert_eq!(rejected(SignedMessage { signatures, ..message }, now()), changed, "{signatures}");
        }
        let many = format!("{}{header}", "v1,AAAA ".repeat(MAX_SIGNATURES));
        assert_eq!(rejected(SignedMessage { signatures: &many, ..message }, now()), changed);
        let late = Some(SignatureError::Timestamp);
        assert_eq!(rejected(message, now().plus_ms(TOLERANCE_MS)), None);
        assert_eq!(rejected(message, now().plus_ms(TOLERANCE_MS + 1)), late);
        assert_eq!(rejected(message, Moment::from_micros((SECONDS - 301) * 1_000_000)), late);
        for timestamp in ["", "x", "+1614265330", "01614265330", "1614265330.0", "18446744073709551615"] {
            assert_eq!(rejected(SignedMessage { timestamp, ..message }, now()), late, "{timestamp}");
        }
        let long = "x".repeat(MAX_MESSAGE_ID_LEN + 1);
        for id in ["", "a.b", "a b", "ü", long.as_str()] {
            assert_eq!(rejected(SignedMessage { id, ..message }, now()), Some(SignatureError::Id), "{id}");
        }
    }

    #[test]
    fn parses_secrets_of_allowed_sizes_and_shows_none() {
        let created = SigningSecret::new([7; SECRET_BYTES]);
        let parsed = SigningSecret::parse(created.reveal()).expect("valid");
        assert_eq!(
            signatures(&[parsed], "m", 1, b""),
            signatures(std::slice::from_ref(&created), "m", 1, b"")
        );
        assert!(!format!("{created:?}").contains(created.reveal()));
        for text in ["", "whsec_", "whsec_AAAA", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_!!!"] {
            assert!(SigningSecret::parse(text).is_err(), "{text}");
        }
    }
}
