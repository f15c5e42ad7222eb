//! Encodes identifiers from outside into one segment of a key, and decodes them.
//!
//! Invariants: the encoded form never contains a separator, a brace, whitespace, a control character or a non-ASCII byte;
//! different identifiers of one kind have different encodings; the encoding depends only on the kind, never on the pattern,
//! so that an entity has the same hash tag in all keys.

use std::borrow::Cow;

use percent_encoding::{percent_decode_str, percent_encode_byte};
use sha2::{Digest, Sha256};

/// Hexadecimal digits of the SHA-256 in a hashed identifier: 160 bits.
pub const DIGEST_LENGTH: usize = 40;
/// Default for [`EncodingRules::max_bytes`].
pub const DEFAULT_MAX_BYTES: usize = 80;
/// Minimum of [`EncodingRules::max_bytes`]: room for separator and digest.
pub const MIN_MAX_BYTES: usize = DIGEST_LENGTH + 1;
const DIGEST_SEPARATOR: char = '~';

/// How identifiers of one kind are encoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncodingRules {
    /// Maximum length of the encoded form in bytes; longer identifiers are hashed.
    pub max_bytes: usize,
    /// Always hash, so that raw user input never becomes part of a key.
    pub hashed: bool,
    /// Leave out the readable slug of a hashed form.
    pub sensitive: bool,
    /// Words that are literal siblings of this identifier in some pattern; their first character is percent-encoded.
    pub reserved: Cow<'static, [Cow<'static, str>]>,
    /// Separators, besides the colon, of the patterns that contain this identifier.
    pub separators: Cow<'static, str>,
}

/// An identifier that was decoded from a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Identifier {
    /// The original text.
    Exact(String),
    /// Only its hash is known: the first 40 hexadecimal digits of the SHA-256 of the exact text.
    Hashed {
        /// Readable beginning in lower case; may be empty.
        slug: String,
        /// See [`digest`].
        digest: String,
    },
}

/// Why a text is not a valid identifier.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdentifierError {
    /// The text is empty.
    #[error("{kind} is empty: it needs at least one character")]
    Empty {
        /// The kind of identifier.
        kind: String,
    },
    /// The text is not a member of the closed set.
    #[error("{text:?} is not a valid {kind}: use one of {}", allowed.join(", "))]
    NotInSet {
        /// The kind of identifier.
        kind: String,
        /// The text, truncated.
        text: String,
        /// The members of the set.
        allowed: Vec<String>,
    },
}

impl IdentifierError {
    /// Creates a `NotInSet` error.
    #[must_use]
    pub fn not_in_set<'a>(kind: &str, text: &str, allowed: impl Iterator<Item = &'a str>) -> Self {
        let text = text.chars().take(60).collect();
        Self::NotInSet { kind: kind.to_owned(), text, allowed: allowed.map(str::to_owned).collect() }
    }
}

impl EncodingRules {
    /// Maximum length of the encoded form in bytes.
    #[must_use]
    pub fn max_len(&self) -> usize {
        if self.sensitive { MIN_MAX_BYTES } else { self.max_bytes }
    }

    /// Encodes a text. Only the empty text is rejected.
    pub fn encode(&self, kind: &str, text: &str) -> Result<String, IdentifierError> {
        if text.is_empty() {
            return Err(IdentifierError::Empty { kind: kind.to_owned() });
        }
        Ok(self.encode_readable(text).unwrap_or_else(|| self.hash(text)))
    }

    /// Decodes a text; `None` if it is not a canonical encoding.
    #[must_use]
    pub fn decode(&self, written: &str) -> Option<Identifier> {
        if let Some((slug, digest)) = split_hashed(written) {
            let fits = written.len() <= self.max_bytes && (!self.sensitive || slug.is_empty());
            return fits.then(|| Identifier::Hashed { slug: slug.to_owned(), digest: digest.to_owned() });
        }
        let text = percent_decode_str(written).decode_utf8().ok()?;
        let is_canonical = !text.is_empty() && self.encode_readable(&text).as_deref() == Some(written);
        is_canonical.then(|| Identifier::Exact(text.into_owned()))
    }

    /// The canonical encoding of an identifier that was written by hand or encoded differently.
    pub fn canonicalize(&self, kind: &str, written: &str) -> Result<String, IdentifierError> {
        let decoded = percent_decode_str(written).decode_utf8();
        self.encode(kind, decoded.as_deref().unwrap_or(written))
    }

    /// The reversible encoding, unless the identifier must be hashed.
    fn encode_readable(&self, text: &str) -> Option<String> {
        if self.hashed || text.len() > self.max_bytes {
            return None;
        }
        let is_ambiguous = self.reserved.iter().any(|word| word == text) || split_hashed(text).is_some();
        let mut written = String::with_capacity(text.len());
        for (position, byte) in text.bytes().enumerate() {
            if self.must_encode(byte) || (is_ambiguous && position == 0) {
                written.push_str(percent_encode_byte(byte));
            } else {
                written.push(char::from(byte));
            }
        }
        (written.len() <= self.max_bytes).then_some(written)
    }

    /// Whether an encoded form can contain this byte.
    pub(crate) fn can_contain(&self, byte: u8) -> bool {
        match byte {
            b'a'..=b'z' | b'0'..=b'9' | b'-' | b'~' => true,
            b'%' => !self.hashed,
            other => !self.hashed && !self.must_encode(other),
        }
    }

    fn must_encode(&self, byte: u8) -> bool {
        matches!(byte, b':' | b'{' | b'}' | b'%' | b' ' | 0x7f..)
            || byte.is_ascii_control()
            || self.separators.as_bytes().contains(&byte)
    }

    fn hash(&self, text: &str) -> String {
        let max_len = if self.sensitive { 0 } else { self.max_bytes.saturating_sub(MIN_MAX_BYTES) };
        format!("{}{DIGEST_SEPARATOR}{}", slug(text, max_len), digest(text))
    }
}

/// The hash of an identifier: `printf %s "$ID" | sha256sum | cut -c1-40`.
#[must_use]
pub fn digest(text: &str) -> String {
    let bytes = Sha256::digest(text.as_bytes());
    bytes.iter().take(DIGEST_LENGTH / 2).map(|byte| format!("{byte:02x}")).collect()
}

/// Lower-case words with dashes, for readability only: the digest identifies.
fn slug(text: &str, max_len: usize) -> String {
    let mut slug = String::new();
    for character in text.chars().flat_map(char::to_lowercase) {
        if slug.len() >= max_len {
            break;
        }
        if character.is_ascii_lowercase() || character.is_ascii_digit() {
            slug.push(character);
        } else if !slug.is_empty() && !slug.ends_with('-') {
            slug.push('-');
        }
    }
    slug.truncate(slug.trim_end_matches('-').len());
    slug
}

/// Splits a hashed form into slug and digest.
fn split_hashed(written: &str) -> Option<(&str, &str)> {
    let (slug, digest) = written.rsplit_once(DIGEST_SEPARATOR)?;
    let is_slug = slug.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'))
        && !slug.starts_with('-')
        && !slug.ends_with('-')
        && !slug.contains("--");
    let is_digest =
        digest.len() == DIGEST_LENGTH && digest.bytes().all(|byte| matches!(byte, b'a'..=b'f' | b'0'..=b'9'));
    (is_slug && is_digest).then_some((slug, digest))
}

#[cfg(test)]
mod tests {
    use ade_testkit::effort;
    use proptest::prelude::*;

    use super::*;

    fn plain_rules() -> EncodingRules {
        EncodingRules {
            max_bytes: DEFAULT_MAX_BYTES,
            hashed: false,
            sensitive: false,
            reserved: Cow::Borrowed(&[]),
            separators: Cow::Borrowed(""),
        }
    }

    fn rules() -> EncodingRules {
        EncodingRules { reserved: vec![Cow::Borrowed("index")].into(), ..plain_rules() }
    }

    fn any_rules() -> impl Strategy<Value = EncodingRules> {
        (MIN_MAX_BYTES..120, any::<bool>(), any::<bool>(), prop_oneof![Just(""), Just("."), Just("/")])
            .prop_map(|(max_bytes, hashed, sensitive, separators)| EncodingRules {
                max_bytes,
                hashed,
                sensitive,
                separators: Cow::Borrowed(separators),
                ..rules()
            })
    }

    /// Arbitrary text, and combinations of separators, reserved words and hash-like text.
    fn any_text() -> impl Strategy<Value = String> {
        let special = prop_oneof![
            Just(":"),
            Just("{"),
            Just("}"),
            Just("%"),
            Just("*"),
            Just("\n"),
            Just(" "),
            Just("~"),
            Just("."),
            Just("index"),
            Just("%69ndex"),
            Just("é"),
            Just("日本"),
            Just("a"),
            Just("A"),
            Just("0"),
            Just("0123456789abcdef0123456789abcdef01234567"),
        ];
        prop_oneof![
            any::<String>(),
            proptest::collection::vec(special, 1..6).prop_map(|parts| parts.concat()),
            ("[a-z]{1,3}", 1usize..4000).prop_map(|(part, times)| part.repeat(times)),
        ]
        .prop_filter("empty is rejected", |text| !text.is_empty())
    }

    proptest! {
        #![proptest_config(effort::property(256))]

        #[test]
        fn decoding_reverses_encoding_or_yields_the_hash(rules in any_rules(), text in any_text()) {
            let written = rules.encode("id", &text).expect("not empty");
            match rules.decode(&written).expect("canonical") {
                Identifier::Exact(read) => prop_assert_eq!(&read, &text),
                Identifier::Hashed { digest: read, .. } => prop_assert_eq!(read, digest(&text)),
            }
        }

        #[test]
        fn encoded_text_stays_within_its_segment(rules in any_rules(), text in any_text()) {
            let written = rules.encode("id", &text).expect("not empty");
            prop_assert!(!written.is_empty() && written.len() <= rules.max_bytes);
            let is_safe = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b':' | b'{' | b'}');
            prop_assert!(written.bytes().all(is_safe));
            prop_assert!(written.bytes().all(|byte| !rules.separators.as_bytes().contains(&byte)));
            prop_assert!(written.bytes().all(|byte| rules.can_contain(byte)));
            prop_assert_ne!(written, "index");
        }

        #[test]
        fn different_identifiers_have_different_encodings(rules in any_rules(), one in any_text(), other in any_text()) {
            prop_assume!(one != other);
            prop_assert_ne!(rules.encode("id", &one), rules.encode("id", &other));
        }

        #[test]
        fn decodes_only_canonical_encodings(rules in any_rules(), written in any_text()) {
            match rules.decode(&written) {
                Some(Identifier::Exact(text)) => prop_assert_eq!(rules.encode("id", &text), Ok(written)),
                Some(Identifier::Hashed { slug: read, .. }) => prop_assert_eq!(&slug(&read, rules.max_bytes), &read),
                None => {}
            }
        }
    }

    #[test]
    fn encodes_examples() {
        let encode = |text: &str| rules().encode("id", text).expect("not empty");
        assert_eq!(encode("550e8400-e29b"), "550e8400-e29b");
        assert_eq!(encode("a:b{c}%*"), "a%3Ab%7Bc%7D%25*");
        assert_eq!(encode("index"), "%69ndex");
        assert_eq!(encode("indexes"), "indexes");
        assert_eq!(encode("é\n"), "%C3%A9%0A");
        // The digest was computed with sha256sum.
        assert_eq!(
            encode(&"Long Name ".repeat(20)),
            "long-name-long-name-long-name-long-name~b34ed3b1e8e71d6284e3c42a922d1136da4b713b"
        );
        assert_eq!(rules().decode("%69ndexes"), None, "not canonical");
        assert_eq!(rules().decode("%zz"), None);
        assert_eq!(rules().canonicalize("id", "a%3ab"), Ok("a%3Ab".to_owned()));
        assert_eq!(rules().canonicalize("id", "a b%"), Ok("a%20b%25".to_owned()));
    }

    #[test]
    fn rejects_empty_text_and_names_its_kind() {
        let error = rules().encode("task_id", "").expect_err("empty");
        assert_eq!(error.to_string(), "task_id is empty: it needs at least one character");
    }

    #[test]
    fn hashed_kinds_show_a_slug_and_sensitive_kinds_nothing() {
        let hashed = EncodingRules { hashed: true, ..plain_rules() };
        assert_eq!(
            hashed.encode("id", "Order #17").expect("not empty"),
            format!("order-17~{}", digest("Order #17"))
        );
        let sensitive = EncodingRules { sensitive: true, ..hashed };
        assert_eq!(sensitive.encode("id", "a@b.c").expect("not empty"), format!("~{}", digest("a@b.c")));
    }
}
