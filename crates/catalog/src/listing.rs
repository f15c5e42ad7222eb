//! A catalog as rows and details, ready to be serialised or laid out by whoever shows it.

use serde::Serialize;

use crate::key::Layout;
use crate::model::{
    Catalog, Described, Entry, EntryKind, Family, Field, Format, IdForm, Member, Sensitivity,
};
use crate::slot::slot_of;

/// One line of a listing.
#[derive(Debug, Clone, Serialize)]
pub struct Row<'a> {
    /// Name of the entry.
    pub name: &'a str,
    /// Name of its catalog.
    pub catalog: &'a str,
    /// Plain layout.
    pub pattern: String,
    /// Cluster layout.
    pub cluster_pattern: String,
    /// Redis type, or `channel`, `group`, `family`.
    #[serde(rename = "type")]
    pub type_name: &'static str,
    /// Lifetime in words.
    pub ttl: String,
    /// Who may write it.
    pub owner: &'a str,
    /// Why it exists.
    pub purpose: &'a str,
    /// Not in the source document.
    pub addition: bool,
    /// Earlier spellings.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub formerly: Vec<&'a str>,
}

/// Everything the catalog knows about one entry.
#[derive(Debug, Clone, Serialize)]
pub struct Details<'a> {
    /// What the listing shows.
    #[serde(flatten)]
    pub row: Row<'a>,
    /// The document the catalog comes from.
    pub source: &'a str,
    /// How the value is serialised.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format: Option<Format>,
    /// How private it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sensitivity: Option<Sensitivity>,
    /// What removes it besides its TTL.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cleanup: Option<&'a str>,
    /// Hash or stream entry fields.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub fields: &'a [Field],
    /// Sorted set score.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub score: Option<&'a str>,
    /// Members of a collection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub members: Option<&'a str>,
    /// Value of a string.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<&'a str>,
    /// What is published on a channel.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub messages: &'a [Described],
    /// Names of consumer groups.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub groups: &'a [String],
    /// The stream they read, by the name of its entry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream: Option<&'a str>,
    /// Its identifiers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub identifiers: Vec<IdRow<'a>>,
    /// An example in the plain layout.
    pub example: Example,
    /// The same example in the cluster layout.
    pub cluster_example: Example,
}

/// A concrete key.
#[derive(Debug, Clone, Serialize)]
pub struct Example {
    /// As the server sees it.
    pub key: String,
    /// Its slot.
    pub slot: u16,
}

/// A kind of identifier.
#[derive(Debug, Clone, Serialize)]
pub struct IdRow<'a> {
    /// Its name in patterns.
    pub name: &'a str,
    /// What it identifies.
    pub about: &'a str,
    /// How it is written, in words.
    pub form: String,
    /// The members of a closed set.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub one_of: &'a [Member],
}

impl Catalog {
    /// All entries, then the families.
    #[must_use]
    pub fn rows(&self) -> Vec<Row<'_>> {
        let families = self.families.iter().map(|family| self.family_row(family));
        self.entries.iter().map(|entry| self.row(entry)).chain(families).collect()
    }

    /// The line of one family.
    #[must_use]
    pub fn family_row<'a>(&'a self, family: &'a Family) -> Row<'a> {
        Row {
            name: &family.name,
            catalog: &self.name,
            pattern: family.pattern.clone(),
            cluster_pattern: family.pattern.clone(),
            type_name: "family",
            ttl: if family.must_expire { "always, by key" } else { "by key" }.to_owned(),
            owner: "by key",
            purpose: &family.purpose,
            addition: family.addition,
            formerly: Vec::new(),
        }
    }

    /// The line of one entry.
    #[must_use]
    pub fn row<'a>(&'a self, entry: &'a Entry) -> Row<'a> {
        Row {
            name: &entry.name,
            catalog: &self.name,
            pattern: entry.plain.to_string(),
            cluster_pattern: entry.cluster.to_string(),
            type_name: entry.type_name(),
            ttl: match &entry.kind {
                EntryKind::Key(shape) => shape.ttl.to_string(),
                EntryKind::Channel { .. } | EntryKind::Group { .. } => "none".to_owned(),
            },
            owner: &entry.owner,
            purpose: &entry.purpose,
            addition: entry.addition,
            formerly: entry.formerly.iter().map(|pattern| pattern.text()).collect(),
        }
    }

    /// Everything about one entry.
    #[must_use]
    pub fn details<'a>(&'a self, entry: &'a Entry) -> Details<'a> {
        let example = |layout| {
            let key = self.example(entry, layout);
            Example { slot: slot_of(key.as_bytes()), key }
        };
        let mut details = Details {
            row: self.row(entry),
            source: &self.source,
            format: None,
            sensitivity: None,
            cleanup: None,
            fields: &[],
            score: None,
            members: None,
            value: None,
            messages: &[],
            groups: &[],
            stream: None,
            identifiers: entry.plain.ids().filter_map(|number| self.id_row(number)).collect(),
            example: example(Layout::Plain),
            cluster_example: example(Layout::Cluster),
        };
        match &entry.kind {
            EntryKind::Key(shape) => {
                details.format = Some(shape.format);
                details.sensitivity = Some(shape.sensitivity);
                details.cleanup = shape.cleanup.as_deref();
                details.fields = &shape.fields;
                details.score = shape.score.as_deref();
                details.members = shape.members.as_deref();
                details.value = shape.value.as_deref();
            }
            EntryKind::Channel { messages } => details.messages = messages,
            EntryKind::Group { names, stream } => {
                details.groups = names;
                details.stream = Some(stream);
            }
        }
        details
    }

    /// One kind of identifier, in words.
    #[must_use]
    pub fn id_row(&self, number: usize) -> Option<IdRow<'_>> {
        let kind = self.id(number)?;
        let (form, one_of): (String, &[Member]) = match &kind.form {
            IdForm::OneOf(members) => ("one of a closed set, written as it stands".to_owned(), members),
            IdForm::Text(rules) => {
                let how = match (rules.sensitive, rules.hashed) {
                    (true, _) => "always hashed, nothing readable".to_owned(),
                    (false, true) => {
                        format!("always normalised and hashed, at most {} bytes", rules.max_bytes)
                    }
                    _ => format!("encoded, hashed beyond {} bytes", rules.max_bytes),
                };
                let reserved = rules.reserved.join(", ");
                (if reserved.is_empty() { how } else { format!("{how}; reserved: {reserved}") }, &[])
            }
        };
        Some(IdRow { name: &kind.name, about: &kind.about, form, one_of })
    }
}
