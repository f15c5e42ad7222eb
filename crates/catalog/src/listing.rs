//! Rows and details of a catalog, for tables and JSON.

use serde::Serialize;

use crate::key::Layout;
use crate::model::{Catalog, Entry, EntryKind, Family, IdForm, Member};
use crate::slot::slot_of;

/// One line of a listing.
#[derive(Debug, Clone, Serialize)]
pub struct Row<'a> {
    /// Name of the entry.
    pub name: &'a str,
    /// Name of its catalog.
    pub catalog: &'a str,
    /// Pattern in the plain layout.
    pub pattern: String,
    /// Pattern in the cluster layout.
    pub cluster_pattern: String,
    /// Redis type, or `channel`, `group`, `family`.
    #[serde(rename = "type")]
    pub type_name: &'static str,
    /// Lifetime rule in words.
    pub ttl: String,
    /// Component that may write it.
    pub owner: &'a str,
    /// What it is for.
    pub purpose: &'a str,
    /// Whether it is missing in the source document.
    pub addition: bool,
    /// Former patterns.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub formerly: Vec<&'a str>,
}

/// All information about an entry.
#[derive(Debug, Clone, Serialize)]
pub struct Details<'a> {
    /// The row of the listing.
    #[serde(flatten)]
    pub row: Row<'a>,
    /// The document that the catalog is based on.
    pub source: &'a str,
    /// The value of a key, the messages of a channel, or the consumer groups of a stream.
    #[serde(flatten)]
    pub kind: &'a EntryKind,
    /// The identifiers of the pattern.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub identifiers: Vec<IdRow<'a>>,
    /// Example in the plain layout.
    pub example: Example,
    /// Example in the cluster layout.
    pub cluster_example: Example,
}

/// An example of a key.
#[derive(Debug, Clone, Serialize)]
pub struct Example {
    /// The key as the server sees it.
    pub key: String,
    /// The cluster slot of the key.
    pub slot: u16,
}

/// A kind of identifier.
#[derive(Debug, Clone, Serialize)]
pub struct IdRow<'a> {
    /// Name in patterns.
    pub name: &'a str,
    /// What it identifies.
    pub about: &'a str,
    /// Encoding in words.
    pub form: String,
    /// Members of a closed set.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub one_of: &'a [Member],
}

impl Catalog {
    /// The rows of all entries, then of all families.
    #[must_use]
    pub fn rows(&self) -> Vec<Row<'_>> {
        let families = self.families.iter().map(|family| self.family_row(family));
        self.entries.iter().map(|entry| self.row(entry)).chain(families).collect()
    }

    /// The row of a family.
    #[must_use]
    pub fn family_row<'a>(&'a self, family: &'a Family) -> Row<'a> {
        Row {
            name: &family.name,
            catalog: &self.name,
            pattern: family.pattern.clone(),
            cluster_pattern: family.pattern.clone(),
            type_name: "family",
            ttl: format!("{}depends on the key", if family.must_expire { "always, " } else { "" }),
            owner: "depends on the key",
            purpose: &family.purpose,
            addition: family.addition,
            formerly: Vec::new(),
        }
    }

    /// The row of an entry.
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

    /// The details of an entry.
    #[must_use]
    pub fn details<'a>(&'a self, entry: &'a Entry) -> Details<'a> {
        let example = |layout| {
            let key = self.example(entry, layout);
            Example { slot: slot_of(key.as_bytes()), key }
        };
        Details {
            row: self.row(entry),
            source: &self.source,
            kind: &entry.kind,
            identifiers: entry.plain.ids().filter_map(|number| self.id_row(number)).collect(),
            example: example(Layout::Plain),
            cluster_example: example(Layout::Cluster),
        }
    }

    /// The row of a kind of identifier, by its index.
    #[must_use]
    pub fn id_row(&self, number: usize) -> Option<IdRow<'_>> {
        let kind = self.id(number)?;
        let (form, one_of): (String, &[Member]) = match &kind.form {
            IdForm::OneOf(members) => ("member of a closed set, not encoded".to_owned(), members),
            IdForm::Text(rules) => {
                let mut form = match (rules.sensitive, rules.hashed, rules.max_bytes) {
                    (true, ..) => "always hashed, without a slug".to_owned(),
                    (false, true, max) => format!("always hashed, with a slug, at most {max} bytes"),
                    (false, false, max) => format!("encoded; hashed if longer than {max} bytes"),
                };
                if !rules.reserved.is_empty() {
                    form += &format!("; reserved: {}", rules.reserved.join(", "));
                }
                (form, &[])
            }
        };
        Some(IdRow { name: &kind.name, about: &kind.about, form, one_of })
    }
}
