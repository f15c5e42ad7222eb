//! A checked catalog: what [`Catalog::parse`] returns and everything else reads.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::ident::{IdentifierError, Rules};
use crate::key::Layout;
use crate::pattern::{Part, Pattern};
use crate::ttl::Ttl;
use crate::{error::CatalogError, load};

/// Longest key unless the catalog says otherwise: a key stays below this many bytes.
pub const DEFAULT_KEY_LIMIT: usize = 200;

/// One keyspace, complete.
#[derive(Debug, Clone)]
pub struct Catalog {
    /// Short name, as in `--catalog NAME`.
    pub name: String,
    /// What the keyspace is.
    pub title: String,
    /// The document it comes from.
    pub source: String,
    /// Keys stay below this many bytes.
    pub key_limit: usize,
    /// Which segment (from 1) names the owner; its builders then come as one type per owner.
    pub owner_segment: Option<usize>,
    /// Kinds of identifiers.
    pub ids: Vec<IdKind>,
    /// Keys, channels and groups in the order of the file.
    pub entries: Vec<Entry>,
    /// Rules for all keys below a prefix.
    pub families: Vec<Family>,
}

/// A kind of identifier: what may stand in `{name}`.
#[derive(Debug, Clone)]
pub struct IdKind {
    /// As in patterns.
    pub name: String,
    /// What it identifies.
    pub about: String,
    /// A typical value.
    pub example: String,
    /// How it is written.
    pub form: IdForm,
}

/// How an identifier is written.
#[derive(Debug, Clone)]
pub enum IdForm {
    /// One of these, exactly as they stand, colons included.
    OneOf(Vec<Member>),
    /// Any text but the empty one.
    Text(Rules),
}

/// A member of a closed set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Member {
    /// As written in keys.
    pub value: String,
    /// Not in the source document.
    pub addition: bool,
}

/// One key pattern, channel pattern or consumer group.
#[derive(Debug, Clone)]
pub struct Entry {
    /// `group.name`; the builder's path.
    pub name: String,
    /// Spelling on a standalone server.
    pub plain: Pattern,
    /// Spelling on a cluster; equal to `plain` where nothing has to share a slot.
    pub cluster: Pattern,
    /// Who may write it.
    pub owner: String,
    /// Why it exists, in one sentence.
    pub purpose: String,
    /// Not in the source document.
    pub addition: bool,
    /// Earlier spellings of the same thing.
    pub formerly: Vec<Pattern>,
    /// What it is.
    pub kind: EntryKind,
}

/// What an entry describes.
#[derive(Debug, Clone)]
pub enum EntryKind {
    /// A key with a value.
    Key(KeyShape),
    /// A publish/subscribe channel.
    Channel {
        /// What is published on it.
        messages: Vec<Described>,
    },
    /// Consumer groups of a stream: not a key.
    Group {
        /// The stream's entry.
        stream: String,
        /// The groups' names.
        names: Vec<String>,
    },
}

/// The shape of a key's value.
#[derive(Debug, Clone)]
pub struct KeyShape {
    /// Redis type.
    pub value_type: ValueType,
    /// Lifetime.
    pub ttl: Ttl,
    /// What removes it besides its TTL.
    pub cleanup: Option<String>,
    /// How the value is serialised.
    pub format: Format,
    /// How private it is.
    pub sensitivity: Sensitivity,
    /// Hash fields or stream entry fields.
    pub fields: Vec<Field>,
    /// What the score of a sorted set is.
    pub score: Option<String>,
    /// What the members of a list, set or sorted set are.
    pub members: Option<String>,
    /// What the value of a string is.
    pub value: Option<String>,
}

/// The Redis type of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
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

/// How private a value is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Sensitivity {
    /// For operators; says nothing about a person.
    #[default]
    Internal,
    /// Tells something about a person.
    Personal,
    /// Content of the users' work.
    Confidential,
}

/// A field of a hash or of a stream entry.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Field {
    /// Its name.
    pub name: String,
    /// How its text is to be read.
    #[serde(rename = "type")]
    pub field_type: FieldType,
    /// What it says.
    pub about: String,
    /// Not in the source document.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub addition: bool,
}

/// How a field's text is to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
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

/// Something named, with its meaning.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Described {
    /// As it appears on the wire.
    pub name: String,
    /// What it means.
    pub about: String,
}

/// A rule for all keys below a prefix.
#[derive(Debug, Clone)]
pub struct Family {
    /// Its name.
    pub name: String,
    /// As the catalog writes it, with the closing `*` or `{key}`.
    pub pattern: String,
    /// The same without the last segment.
    pub prefix: Pattern,
    /// What it is for.
    pub purpose: String,
    /// Each of its keys must expire.
    pub must_expire: bool,
    /// Each of its values must have this format.
    pub format: Option<Format>,
    /// Not in the source document.
    pub addition: bool,
}

impl Catalog {
    /// Reads and checks a catalog. `file` is only used to name the place of a fault.
    pub fn parse(file: &str, source: &str) -> Result<Self, CatalogError> {
        load::load(source).map_err(|fault| fault.locate(file, source))
    }

    /// The entry of that name.
    #[must_use]
    pub fn entry(&self, name: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.name == name)
    }

    /// The family of that name.
    #[must_use]
    pub fn family(&self, name: &str) -> Option<&Family> {
        self.families.iter().find(|family| family.name == name)
    }

    /// The kind of identifier with that number in a pattern.
    #[must_use]
    pub fn id(&self, number: usize) -> Option<&IdKind> {
        self.ids.get(number)
    }

    /// Builds a key of `entry` from raw identifiers, given by the name of their kind.
    pub fn build<'a>(
        &self,
        entry: &Entry,
        layout: Layout,
        raw: impl Fn(&str) -> Cow<'a, str>,
    ) -> Result<String, IdentifierError> {
        let pattern = entry.pattern(layout);
        let mut key = String::new();
        for part in pattern.parts() {
            match part {
                Part::Text(text) => key.push_str(text),
                Part::Id(number) => {
                    if let Some(kind) = self.id(*number) {
                        key.push_str(&kind.write(&raw(&kind.name))?);
                    }
                }
            }
        }
        Ok(key)
    }

    /// A key of `entry` with the examples of its identifiers.
    #[must_use]
    pub fn example(&self, entry: &Entry, layout: Layout) -> String {
        let examples = |name: &str| {
            let kind = self.ids.iter().find(|kind| kind.name == name);
            Cow::Borrowed(kind.map_or("", |kind| kind.example.as_str()))
        };
        // The loader has built every example once.
        self.build(entry, layout, examples).unwrap_or_default()
    }
}

impl IdKind {
    /// The written form of a raw identifier.
    pub fn write(&self, raw: &str) -> Result<String, IdentifierError> {
        match &self.form {
            IdForm::Text(rules) => rules.write(&self.name, raw),
            IdForm::OneOf(members) if members.iter().any(|member| member.value == raw) => Ok(raw.to_owned()),
            IdForm::OneOf(members) => Err(IdentifierError::not_in_set(
                &self.name,
                raw,
                members.iter().map(|member| member.value.as_str()),
            )),
        }
    }

    /// How a builder would write what somebody else wrote as `written`.
    pub fn respell(&self, written: &str) -> Result<String, IdentifierError> {
        match &self.form {
            IdForm::Text(rules) => rules.respell(&self.name, written),
            IdForm::OneOf(_) => self.write(written),
        }
    }

    /// Longest written form in bytes.
    #[must_use]
    pub fn longest(&self) -> usize {
        match &self.form {
            IdForm::Text(rules) => rules.longest(),
            IdForm::OneOf(members) => members.iter().map(|member| member.value.len()).max().unwrap_or(0),
        }
    }
}

impl Entry {
    /// Its pattern in a layout.
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

    /// Module and function of its builder.
    #[must_use]
    pub fn group_and_name(&self) -> (&str, &str) {
        self.name.split_once('.').unwrap_or(("", &self.name))
    }
}

impl ValueType {
    /// As in `TYPE key`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::String => "string",
            Self::Hash => "hash",
            Self::List => "list",
            Self::Set => "set",
            Self::Zset => "zset",
            Self::Stream => "stream",
        }
    }
}

impl Format {
    /// In one word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Hash => "hash",
            Self::Json => "json",
            Self::Envelope => "envelope",
        }
    }
}

impl Sensitivity {
    /// In one word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Internal => "internal",
            Self::Personal => "personal",
            Self::Confidential => "confidential",
        }
    }
}

impl FieldType {
    /// In one word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::String => "string",
            Self::Integer => "integer",
            Self::Float => "float",
            Self::Boolean => "boolean",
            Self::Timestamp => "timestamp",
            Self::Json => "json",
        }
    }
}
