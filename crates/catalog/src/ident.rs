//! How an identifier given from outside is written into one segment of a key, and read back.
//!
//! Invariants: the written form never contains a separator, a brace, whitespace, a control character or a non-ASCII
//! byte; different identifiers of one kind are written differently; how an identifier is written depends on its kind
//! alone, never on the pattern it stands in, so that one entity has one hash tag everywhere.

use std::borrow::Cow;

use percent_encoding::{percent_decode_str, percent_encode_byte};
use sha2::{Digest, Sha256};

/// Hexadecimal digits kept of the SHA-256: 160 bits.
pub const DIGEST_LENGTH: usize = 40;
/// Longest written form of an identifier unless its kind says otherwise.
pub const DEFAULT_MAX_BYTES: usize = 80;
/// Shortest bound a kind may set: room for the mark and the digest.
pub const LEAST_MAX_BYTES: usize = DIGEST_LENGTH + 1;
/// Stands between slug and digest.
const DIGEST_MARK: char = '~';

/// The writing rules of one kind of identifier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    /// Longest written form in bytes; a longer identifier is hashed.
    pub max_bytes: usize,
    /// Always hashed, however short (raw user strings never become a key body).
    pub hashed: bool,
    /// The readable part is left out of a hashed form.
    pub sensitive: bool,
    /// Words that are literal siblings of this identifier in some pattern: their first character is encoded.
    pub reserved: Cow<'static, [Cow<'static, str>]>,
    /// Separators, besides the colon, of the patterns this identifier stands in.
    pub separators: Cow<'static, str>,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            max_bytes: DEFAULT_MAX_BYTES,
            hashed: false,
            sensitive: false,
            reserved: Cow::Borrowed(&[]),
            separators: Cow::Borrowed(""),
        }
    }
}

/// An identifier as read back from a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Identifier {
    /// The exact text that was written.
    Exact(String),
    /// Only its hash is known: the first 40 hexadecimal digits of the SHA-256 of the exact text.
    Hashed {
        /// Readable beginning, normalised to lower case; may be empty.
        slug: String,
        /// See [`digest`].
        digest: String,
    },
}

/// Why a text cannot be an identifier.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdentifierError {
    /// Nothing would stand between two separators.
    #[error("{kind} is empty: give at least one character")]
    Empty {
        /// The kind of identifier.
        kind: String,
    },
    /// The kind is a closed set and the text is not in it.
    #[error("{kind} cannot be {text:?}: it is one of {}", allowed.join(", "))]
    NotInSet {
        /// The kind of identifier.
        kind: String,
        /// What was given, cut to a printable length.
        text: String,
        /// What could have been given.
        allowed: Vec<String>,
    },
}

impl IdentifierError {
    /// A refusal by a closed set.
    #[must_use]
    pub fn not_in_set<'a>(kind: &str, text: &str, allowed: impl Iterator<Item = &'a str>) -> Self {
        let text = text.chars().take(60).collect();
        Self::NotInSet { kind: kind.to_owned(), text, allowed: allowed.map(str::to_owned).collect() }
    }
}

impl Rules {
    /// Longest written form in bytes.
    #[must_use]
    pub fn longest(&self) -> usize {
        if self.sensitive { LEAST_MAX_BYTES } else { self.max_bytes }
    }

    /// The written form of `text`. The only refusal is the empty text.
    pub fn write(&self, kind: &str, text: &str) -> Result<String, IdentifierError> {
        if text.is_empty() {
            return Err(IdentifierError::Empty { kind: kind.to_owned() });
        }
        Ok(self.encode(text).unwrap_or_else(|| self.hash(text)))
    }

    /// The identifier behind a written form, if a builder could have written it.
    #[must_use]
    pub fn read(&self, written: &str) -> Option<Identifier> {
        if let Some((slug, digest)) = split_hashed(written) {
            let fits = written.len() <= self.max_bytes && (!self.sensitive || slug.is_empty());
            return fits.then(|| Identifier::Hashed { slug: slug.to_owned(), digest: digest.to_owned() });
        }
        let text = percent_decode_str(written).decode_utf8().ok()?;
        let canonical = !text.is_empty() && self.encode(&text).as_deref() == Some(written);
        canonical.then(|| Identifier::Exact(text.into_owned()))
    }

    /// How a builder would write what somebody else wrote as `written`, by hand or with another encoding.
    pub fn respell(&self, kind: &str, written: &str) -> Result<String, IdentifierError> {
        let decoded = percent_decode_str(written).decode_utf8();
        self.write(kind, decoded.as_deref().unwrap_or(written))
    }

    /// The lossless form, unless this kind or the length calls for a hash.
    fn encode(&self, text: &str) -> Option<String> {
        if self.hashed || text.len() > self.max_bytes {
            return None;
        }
        let mistakable = self.reserved.iter().any(|word| word == text) || split_hashed(text).is_some();
        let mut written = String::with_capacity(text.len());
        for (position, byte) in text.bytes().enumerate() {
            if self.must_encode(byte) || (mistakable && position == 0) {
                written.push_str(percent_encode_byte(byte));
            } else {
                written.push(char::from(byte));
            }
        }
        (written.len() <= self.max_bytes).then_some(written)
    }

    /// Whether this byte can stand in a written form.
    pub(crate) fn may_write(&self, byte: u8) -> bool {
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
        let room = if self.sensitive { 0 } else { self.max_bytes.saturating_sub(LEAST_MAX_BYTES) };
        let mut written = slug(text, room);
        written.push(DIGEST_MARK);
        written.push_str(&digest(text));
        written
    }
}

/// The documented hash of an identifier: `printf %s "$ID" | sha256sum | cut -c1-40`.
#[must_use]
pub fn digest(text: &str) -> String {
    use std::fmt::Write;
    let mut hex = String::with_capacity(64);
    for byte in Sha256::digest(text.as_bytes()) {
        // Writing to a String cannot fail.
        let _ = write!(hex, "{byte:02x}");
    }
    hex.truncate(DIGEST_LENGTH);
    hex
}

/// The text normalised to lower-case words with dashes, for the eye only: the digest is what identifies.
fn slug(text: &str, room: usize) -> String {
    let mut slug = String::new();
    for character in text.chars().flat_map(char::to_lowercase) {
        if slug.len() >= room {
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

/// Slug and digest of something written like a hashed identifier.
fn split_hashed(written: &str) -> Option<(&str, &str)> {
    let (slug, digest) = written.rsplit_once(DIGEST_MARK)?;
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
    use proptest::prelude::*;

    use super::*;

    fn rules() -> Rules {
        Rules { reserved: vec![Cow::Borrowed("index")].into(), ..Rules::default() }
    }

    fn any_rules() -> impl Strategy<Value = Rules> {
        (LEAST_MAX_BYTES..120, any::<bool>(), any::<bool>(), prop_oneof![Just(""), Just("."), Just("/")])
            .prop_map(|(max_bytes, hashed, sensitive, separators)| Rules {
                max_bytes,
                hashed,
                sensitive,
                separators: Cow::Borrowed(separators),
                ..rules()
            })
    }

    /// Arbitrary text, and text made of exactly what could break out or be mistaken.
    fn any_text() -> impl Strategy<Value = String> {
        let nasty = prop_oneof![
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
            proptest::collection::vec(nasty, 1..6).prop_map(|parts| parts.concat()),
            ("[a-z]{1,3}", 1usize..4000).prop_map(|(part, times)| part.repeat(times)),
        ]
        .prop_filter("empty is refused", |text| !text.is_empty())
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back_or_is_its_hash(rules in any_rules(), text in any_text()) {
            let written = rules.write("id", &text).expect("not empty");
            match rules.read(&written).expect("canonical") {
                Identifier::Exact(read) => prop_assert_eq!(&read, &text),
                Identifier::Hashed { digest: read, .. } => prop_assert_eq!(read, digest(&text)),
            }
        }

        #[test]
        fn nothing_breaks_out_of_its_segment(rules in any_rules(), text in any_text()) {
            let written = rules.write("id", &text).expect("not empty");
            prop_assert!(!written.is_empty() && written.len() <= rules.max_bytes);
            let harmless = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b':' | b'{' | b'}');
            prop_assert!(written.bytes().all(harmless));
            prop_assert!(written.bytes().all(|byte| !rules.separators.as_bytes().contains(&byte)));
            prop_assert!(written.bytes().all(|byte| rules.may_write(byte)));
            prop_assert_ne!(written, "index");
        }

        #[test]
        fn no_two_identifiers_collide(rules in any_rules(), one in any_text(), other in any_text()) {
            prop_assume!(one != other);
            prop_assert_ne!(rules.write("id", &one), rules.write("id", &other));
        }

        #[test]
        fn only_what_a_builder_writes_is_read(rules in any_rules(), written in any_text()) {
            match rules.read(&written) {
                Some(Identifier::Exact(text)) => prop_assert_eq!(rules.write("id", &text), Ok(written)),
                Some(Identifier::Hashed { slug: read, .. }) => prop_assert_eq!(&slug(&read, rules.max_bytes), &read),
                None => {}
            }
        }
    }

    #[test]
    fn examples() {
        let write = |text: &str| rules().write("id", text).expect("not empty");
        assert_eq!(write("550e8400-e29b"), "550e8400-e29b");
        assert_eq!(write("a:b{c}%*"), "a%3Ab%7Bc%7D%25*");
        assert_eq!(write("index"), "%69ndex");
        assert_eq!(write("indexes"), "indexes");
        assert_eq!(write("é\n"), "%C3%A9%0A");
        // The digest was computed with sha256sum.
        assert_eq!(
            write(&"Long Name ".repeat(20)),
            "long-name-long-name-long-name-long-name~b34ed3b1e8e71d6284e3c42a922d1136da4b713b"
        );
        assert_eq!(rules().read("%69ndexes"), None, "not what a builder writes");
        assert_eq!(rules().read("%zz"), None);
        assert_eq!(rules().respell("id", "a%3ab"), Ok("a%3Ab".to_owned()));
        assert_eq!(rules().respell("id", "a b%"), Ok("a%20b%25".to_owned()));
    }

    #[test]
    fn the_empty_text_is_refused_with_its_kind() {
        let error = rules().write("task_id", "").expect_err("empty");
        assert_eq!(error.to_string(), "task_id is empty: give at least one character");
    }

    #[test]
    fn a_hashed_kind_never_shows_the_raw_text_and_a_sensitive_one_shows_nothing() {
        let hashed = Rules { hashed: true, ..Rules::default() };
        assert_eq!(
            hashed.write("id", "Order #17").expect("not empty"),
            format!("order-17~{}", digest("Order #17"))
        );
        let sensitive = Rules { sensitive: true, ..hashed };
        assert_eq!(sensitive.write("id", "a@b.c").expect("not empty"), format!("~{}", digest("a@b.c")));
    }
}
