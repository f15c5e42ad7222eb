//! Digests: SHA-256 over canonical JSON (RFC 8785).

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// The digest of a value, such as the config that an approval is bound to. Equal digests mean equal values.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Digest([u8; 32]);

impl Digest {
    /// The digest of the canonical form; none if the value has no JSON form, such as a number that is not finite.
    pub fn of(value: &impl Serialize) -> Option<Self> {
        let canonical = serde_json_canonicalizer::to_vec(value).ok()?;
        Some(Self(Sha256::digest(canonical).into()))
    }

    pub fn of_bytes(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = [0; 64];
        hex::encode_to_slice(self.0, &mut text).map_err(|_| fmt::Error)?;
        f.write_str(str::from_utf8(&text).map_err(|_| fmt::Error)?)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a digest must be 64 hexadecimal digits")]
pub struct InvalidDigest;

impl FromStr for Digest {
    type Err = InvalidDigest;

    fn from_str(text: &str) -> Result<Self, InvalidDigest> {
        let mut bytes = [0; 32];
        hex::decode_to_slice(text, &mut bytes).map_err(|_| InvalidDigest)?;
        Ok(Self(bytes))
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.to_string()
    }
}

impl TryFrom<String> for Digest {
    type Error = InvalidDigest;

    fn try_from(text: String) -> Result<Self, InvalidDigest> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ignores_key_order_and_number_format_only() {
        let of = |value: &serde_json::Value| Digest::of(value).map(|digest| digest.to_string());
        let digest = of(&json!({ "b": 1.0, "a": "é", "c": [1, 2] }));
        assert_eq!(digest, of(&json!({ "c": [1, 2], "a": "é", "b": 1 })));
        assert_ne!(digest, of(&json!({ "c": [2, 1], "a": "é", "b": 1 })));
        assert_ne!(digest, of(&json!({ "c": [1, 2], "a": "é", "b": "1" })));
        // SHA-256 of `{}`.
        let empty = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a";
        assert_eq!(of(&json!({})).as_deref(), Some(empty));
        assert_eq!(empty.parse::<Digest>().map(|digest| digest.to_string()).as_deref(), Ok(empty));
        assert_eq!("44".parse::<Digest>(), Err(InvalidDigest));
        assert_eq!("zz".repeat(32).parse::<Digest>(), Err(InvalidDigest));
        assert_eq!("é".repeat(32).parse::<Digest>(), Err(InvalidDigest));
    }
}
