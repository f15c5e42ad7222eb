//! What reviews are decided by: policies, delegations, registered resources, settings and flags. Few, and read whole. Whoever keeps
//! what it read compares marks.

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{Database, DatabaseError, StoredResponse};

/// What kind of thing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DocumentKind {
    /// Who must agree.
    Policy,
    /// Who stands in for whom.
    Delegation,
    /// How critical something is.
    Resource,
    /// A setting that is changed while the server runs.
    Setting,
    /// Whether something is switched on.
    Feature,
}

impl DocumentKind {
    /// As it is stored.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Policy => "policy",
            Self::Delegation => "delegation",
            Self::Resource => "resource",
            Self::Setting => "setting",
            Self::Feature => "feature",
        }
    }
}

/// One of them.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredDocument {
    /// What kind.
    pub kind: DocumentKind,
    /// Which.
    pub id: String,
    /// Grows with every change.
    pub revision: u64,
    /// What it says.
    pub body: Value,
}

impl StoredDocument {
    /// What it says.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, DatabaseError> {
        serde_json::from_value(self.body.clone())
            .map_err(|error| DatabaseError::Foreign(format!("{} {}: {error}", self.kind.word(), self.id)))
    }
}

/// What the record is marked with: another one after every change of people, policies, delegations, resources, settings or flags,
/// by whichever process. It is changed by the database itself, in the transaction of what it marks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RulesVersion(String);

impl From<&str> for RulesVersion {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

pub(super) fn without_mark() -> DatabaseError {
    DatabaseError::Foreign("the table facts, which is empty".to_owned())
}

impl Database {
    /// The mark that it has now.
    pub async fn mark(&self) -> Result<RulesVersion, DatabaseError> {
        self.read(async |link| {
            let rows = link.rows("SELECT version FROM rules_version", &[]).await?;
            rows.first().ok_or_else(without_mark)?.text(0).map(RulesVersion::from)
        })
        .await
    }

    /// All of a kind, by id.
    pub async fn things(&self, kind: DocumentKind) -> Result<Vec<StoredDocument>, DatabaseError> {
        let args = [kind.word().into()];
        self.read(async |link| {
            let sql = "SELECT document_id, revision, body::text FROM documents WHERE kind = $1 ORDER BY document_id";
            let rows = link.rows(sql, &args).await?;
            let thing = |row: &super::sql::Row| {
                Ok(StoredDocument {
                    kind,
                    id: row.text(0)?.to_owned(),
                    revision: row.number(1)?,
                    body: row.json(2)?,
                })
            };
            rows.iter().map(thing).collect()
        })
        .await
    }

    /// What a request was answered before.
    pub async fn answer(&self, owner: &str, key: &str) -> Result<Option<StoredResponse>, DatabaseError> {
        let args = [owner.into(), key.into()];
        self.read(async |link| {
            let sql = "SELECT body::text FROM stored_responses WHERE owner = $1 AND key = $2";
            link.rows(sql, &args).await?.first().map(|row| row.json(0)).transpose()
        })
        .await
    }
}
