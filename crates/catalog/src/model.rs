//! The validated catalog that [`Catalog::parse`] returns.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use strum::{Display, IntoStaticStr};

use crate::ident::{EncodingRules, IdentifierError};
use crate::key::Layout;
use crate::pattern::Pattern;
use crate::ttl::Ttl;
use crate::{error::CatalogError, load};

/// Default for [`Catalog::key_limit`].
pub const DEFAULT_KEY_LIMIT: usize = 200;

/// All keys, channels and consumer groups of a keyspace.
#[derive(Debug, Clone)]
pub struct Catalog {
    /// Short name, as in `--catalog NAME`.
    pub name: String,
    /// Description of the keyspace.
    pub title: String,
    /// The document that it is based on.
    pub source: String,
    /// Keys are shorter than this many bytes.
    pub key_limit: usize,
    /// The segment (starting at 1) that names the owner. If set, there is one builder type per owner.
    pub owner_segment: Option<usize>,
    /// Kinds of identifiers.
    pub ids: Vec<IdKind>,
    /// Keys, channels and groups, in the order of the file.
    pub entries: Vec<Entry>,
    /// Rules for all keys with a prefix.
    pub families: Vec<Family>,
}

/// A kind of identifier, written `{name}` in patterns.
#[derive(Debug, Clone)]
pub struct IdKind {
    /// Name in patterns.
    pub name: String,
    /// What it identifies.
    pub about: String,
    /// An example.
    pub example: String,
    /// How it is encoded.
    pub form: IdForm,
}

/// How an identifier is encoded.
#[derive(Debug, Clone)]
pub enum IdForm {
    /// A closed set. Members are not encoded and may contain colons.
    OneOf(Vec<Member>),
    /// Any non-empty text.
    Text(EncodingRules),
}

/// A member of a closed set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Member {
    /// Text in keys.
    pub value: String,
    /// Whether it is missing in the source document.
    pub addition: bool,
}

/// One key pattern, channel pattern or consumer group.
#[derive(Debug, Clone)]
pub struct Entry {
    /// `group.name`, which is also the path of the builder.
    pub name: String,
    /// Pattern in the plain layout.
    pub plain: Pattern,
    /// Pattern in the cluster layout; equal to `plain` if it needs no hash tag.
    pub cluster: Pattern,
    /// Component that may write it.
    pub owner: String,
    /// What it is for, in one phrase.
    pub purpose: String,
    /// Whether it is missing in the source document.
    pub addition: bool,
    /// Former patterns.
    pub formerly: Vec<Pattern>,
    /// Key, channel or consumer group.
    pub kind: EntryKind,
}

/// What an entry describes.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
pub enum EntryKind {
    /// A key with a value.
    Key(KeyShape),
    /// A publish/subscribe channel.
    Channel {
        /// Messages that are published.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        messages: Vec<MessageDoc>,
    },
    /// Consumer groups of a stream. They are not keys.
    Group {
        /// Names of the groups.
        #[serde(rename = "groups")]
        names: Vec<String>,
        /// Entry of the stream.
        stream: String,
    },
}

/// The value of a key.
#[derive(Debug, Clone, Serialize)]
pub struct KeyShape {
    /// Redis type.
    #[serde(skip)]
    pub value_type: ValueType,
    /// Lifetime.
    #[serde(skip)]
    pub ttl: Ttl,
    /// How the value is serialised.
    pub format: Format,
    /// How sensitive the value is.
    pub sensitivity: Sensitivity,
    /// What removes the key besides its TTL.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cleanup: Option<String>,
    /// Fields of a hash or of stream entries.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub fields: Vec<Field>,
    /// Meaning of the score of a sorted set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub score: Option<String>,
    /// Meaning of the members of a list, set or sorted set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub members: Option<String>,
    /// Meaning of the value of a string.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
}

/// The Redis type of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, Display, IntoStaticStr)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum ValueType {
    /// String.
    String,
    /// Hash.
    Hash,
    /// List.
    List,
    /// Set.
    Set,
    /// Sorted set.
    Zset,
    /// Stream.
    Stream,
}

/// How a value is serialised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, Display)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Format {
    /// Plain text or number.
    Plain,
    /// Fields of a hash or stream entry.
    Hash,
    /// JSON text.
    Json,
    /// JSON with createdAt, expiresAt, version, payload and meta.
    Envelope,
}

/// How sensitive a value is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize, Display)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Sensitivity {
    /// Operational data without personal data.
    #[default]
    Internal,
    /// Personal data.
    Personal,
    /// Content that users work on.
    Confidential,
}

/// A field of a hash or of a stream entry.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Field {
    /// Name of the field.
    pub name: String,
    /// Type of its text.
    #[serde(rename = "type")]
    pub field_type: FieldType,
    /// Meaning of the field.
    pub about: String,
    /// Whether it is missing in the source document.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub addition: bool,
}

/// Type of the text of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, Display)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum FieldType {
    /// Text.
    String,
    /// Whole number.
    Integer,
    /// Decimal number.
    Float,
    /// `true` or `false`.
    Boolean,
    /// RFC 3339 time.
    Timestamp,
    /// JSON text.
    Json,
}

/// A message on a channel.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct MessageDoc {
    /// The message text.
    pub name: String,
    /// Meaning of the message.
    pub about: String,
}

/// A rule for all keys with a prefix.
#[derive(Debug, Clone)]
pub struct Family {
    /// Name of the family.
    pub name: String,
    /// Pattern in the catalog, ending in `*` or `{key}`.
    pub pattern: String,
    /// The pattern without its last segment.
    pub prefix: Pattern,
    /// What it is for.
    pub purpose: String,
    /// Whether all keys must expire.
    pub must_expire: bool,
    /// Format that all values must have.
    pub format: Option<Format>,
    /// Whether it is missing in the source document.
    pub addition: bool,
}

impl Catalog {
    /// Parses and validates a catalog. `file` is only used in error messages.
    pub fn parse(file: &str, source: &str) -> Result<Self, CatalogError> {
        load::load(source).map_err(|fault| fault.locate(file, source))
    }

    /// The entry with a name.
    #[must_use]
    pub fn entry(&self, name: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.name == name)
    }

    /// The family with a name.
    #[must_use]
    pub fn family(&self, name: &str) -> Option<&Family> {
        self.families.iter().find(|family| family.name == name)
    }

    /// The kind of identifier with an index.
    #[must_use]
    pub fn id(&self, number: usize) -> Option<&IdKind> {
        self.ids.get(number)
    }

    /// Builds a key of `entry`. `raw` returns the identifier for the name of a kind.
    pub fn build<'a>(
        &self,
        entry: &Entry,
        layout: Layout,
        raw: impl Fn(&str) -> Cow<'a, str>,
    ) -> Result<String, IdentifierError> {
        let kinds = entry.pattern(layout).ids().filter_map(|number| self.id(number));
        let written: Vec<String> =
            kinds.map(|kind| kind.encode(&raw(&kind.name))).collect::<Result<_, _>>()?;
        let mut written = written.iter();
        Ok(entry.pattern(layout).fill(|_| written.next().map_or("", String::as_str)))
    }

    /// An example key of `entry`.
    #[must_use]
    pub fn example(&self, entry: &Entry, layout: Layout) -> String {
        let examples = |name: &str| {
            let kind = self.ids.iter().find(|kind| kind.name == name);
            Cow::Borrowed(kind.map_or("", |kind| kind.example.as_str()))
        };
        // The loader has checked every example.
        self.build(entry, layout, examples).unwrap_or_default()
    }
}

impl IdKind {
    /// Encodes a raw identifier.
    pub fn encode(&self, raw: &str) -> Result<String, IdentifierError> {
        match &self.form {
            IdForm::Text(rules) => rules.encode(&self.name, raw),
            IdForm::OneOf(members) if members.iter().any(|member| member.value == raw) => Ok(raw.to_owned()),
            IdForm::OneOf(members) => Err(IdentifierError::not_in_set(
                &self.name,
                raw,
                members.iter().map(|member| member.value.as_str()),
            )),
        }
    }

    /// The canonical encoding of an identifier that was written by hand or encoded differently.
    pub fn canonicalize(&self, written: &str) -> Result<String, IdentifierError> {
        match &self.form {
            IdForm::Text(rules) => rules.canonicalize(&self.name, written),
            IdForm::OneOf(_) => self.encode(written),
        }
    }

    /// Maximum length of the encoded form in bytes.
    #[must_use]
    pub fn max_len(&self) -> usize {
        match &self.form {
            IdForm::Text(rules) => rules.max_len(),
            IdForm::OneOf(members) => members.iter().map(|member| member.value.len()).max().unwrap_or(0),
        }
    }
}

impl Entry {
    /// The pattern in a layout.
    #[must_use]
    pub fn pattern(&self, layout: Layout) -> &Pattern {
        match layout {
            Layout::Plain => &self.plain,
            Layout::Cluster => &self.cluster,
        }
    }

    /// `hash`, `stream`, …, `channel` or `group`.
    #[must_use]
    pub fn type_name(&self) -> &'static str {
        match &self.kind {
            EntryKind::Key(shape) => shape.value_type.as_str(),
            EntryKind::Channel { .. } => "channel",
            EntryKind::Group { .. } => "group",
        }
    }

    /// Module and function of the builder.
    #[must_use]
    pub fn group_and_name(&self) -> (&str, &str) {
        self.name.split_once('.').unwrap_or(("", &self.name))
    }
}

impl ValueType {
    /// The name that the Redis command `TYPE` returns.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}
