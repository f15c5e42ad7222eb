//! Wire types of the key catalogs: which keys exist in Redis, and which entry a key belongs to.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A catalog of keys.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct KeyCatalog {
    /// Name, such as `ade`.
    pub name: String,
    /// Description of the keyspace.
    pub title: String,
    /// The document that it is based on.
    pub source: String,
    /// All entries, in the order of the catalog, then the families.
    pub entries: Vec<KeyEntry>,
}

/// An entry of a catalog: a key, a channel, a consumer group, or a family of keys with the same beginning.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct KeyEntry {
    /// Name of the entry, such as `lock.task`.
    pub name: String,
    /// Name of its catalog.
    pub catalog: String,
    /// Pattern on standalone servers.
    pub pattern: String,
    /// Pattern in a cluster; the same as `pattern` if it needs no hash tag.
    pub cluster_pattern: String,
    /// Redis type, or `channel`, `group`, `family`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Lifetime rule in words.
    pub ttl: String,
    /// Component that may write it.
    pub owner: String,
    /// What it is for.
    pub purpose: String,
    /// Whether it is missing in the document that the catalog is based on.
    pub addition: bool,
    /// Former patterns, which are not written any more.
    #[serde(default)]
    pub formerly: Vec<String>,
}

/// All information about an entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct KeyDetails {
    /// The entry.
    pub entry: KeyEntry,
    /// How a value is serialised: `plain`, `hash`, `json` or `envelope`.
    pub format: Option<String>,
    /// How sensitive a value is: `internal`, `personal` or `confidential`.
    pub sensitivity: Option<String>,
    /// What removes the key besides its lifetime.
    pub cleanup: Option<String>,
    /// Meaning of the value of a string.
    pub value: Option<String>,
    /// Meaning of the members of a list, set or sorted set.
    pub members: Option<String>,
    /// Meaning of the score of a sorted set.
    pub score: Option<String>,
    /// Fields of a hash or of the entries of a stream.
    pub fields: Vec<KeyField>,
    /// Messages of a channel, or names of the consumer groups of a stream.
    pub messages: Vec<KeyField>,
    /// The entry of the stream of consumer groups.
    pub stream: Option<String>,
    /// The identifiers of the pattern.
    pub identifiers: Vec<KeyIdentifier>,
    /// An example on standalone servers; none for a family.
    pub example: Option<KeyExample>,
    /// An example in a cluster; none for a family.
    pub cluster_example: Option<KeyExample>,
}

/// A field, message or consumer group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct KeyField {
    /// Name.
    pub name: String,
    /// Type of the text of a field.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// Meaning.
    pub about: String,
    /// Whether it is missing in the document that the catalog is based on.
    pub addition: bool,
}

/// A kind of identifier.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct KeyIdentifier {
    /// Name in patterns.
    pub name: String,
    /// What it identifies.
    pub about: String,
    /// Encoding in words.
    pub form: String,
    /// Members of a closed set.
    pub one_of: Vec<String>,
}

/// An example of a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct KeyExample {
    /// The key as the server sees it.
    pub key: String,
    /// The cluster slot of the key.
    pub slot: u16,
}

/// Which entry a concrete key belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct KeyExplanation {
    /// The key.
    pub key: String,
    /// The entry.
    pub entry: KeyEntry,
    /// `plain`, `cluster`, `both` if they are the same, or `former` for a pattern that is not written any more.
    pub layout: String,
    /// Whether all identifiers are encoded as they must be.
    pub canonical: bool,
    /// The identifiers in the key.
    pub identifiers: Vec<ExplainedIdentifier>,
    /// The cluster slot of the key.
    pub slot: u16,
}

/// An identifier in a concrete key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExplainedIdentifier {
    /// Name in patterns.
    pub name: String,
    /// What it identifies.
    pub about: String,
    /// The text in the key.
    pub written: String,
    /// The identifier; null if the key contains only its hash, or it is not encoded canonically.
    pub value: Option<String>,
    /// The beginning of the SHA-256 of the identifier, if the key contains only that.
    pub digest: Option<String>,
    /// How it should be written, if it is not encoded canonically.
    pub should_be: Option<String>,
}
