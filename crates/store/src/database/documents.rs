//! The rules that reviews are decided by: policies, delegations, registered resources, settings and feature flags. There are few, and
//! they are read as a whole. Caches compare the rules version.

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::batch::Statement;
use super::sql::{Arg, Row, json};
use super::{Database, DatabaseError, StoredResponse};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DocumentKind {
    Policy,
    Delegation,
    /// How critical registered resources are.
    Resource,
    Setting,
    Feature,
}

impl DocumentKind {
    const ALL: [Self; 5] = [Self::Policy, Self::Delegation, Self::Resource, Self::Setting, Self::Feature];

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Policy => "policy",
            Self::Delegation => "delegation",
            Self::Resource => "resource",
            Self::Setting => "setting",
            Self::Feature => "feature",
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct StoredDocument {
    pub kind: DocumentKind,
    pub id: String,
    /// Grows with every change.
    pub revision: u64,
    pub body: Value,
}

impl StoredDocument {
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, DatabaseError> {
        serde_json::from_value(self.body.clone())
            .map_err(|error| DatabaseError::Corrupt(format!("{} {}: {error}", self.kind.as_str(), self.id)))
    }
}

/// Changes with every change of users, policies, delegations, resources, settings or feature flags, by any process. The database
/// itself changes it, in the same transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RulesVersion(String);

impl From<&str> for RulesVersion {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

pub(super) fn missing_rules_version() -> DatabaseError {
    DatabaseError::Corrupt("the table rules_version is empty".to_owned())
}

const SELECT: &str = "SELECT kind, document_id, revision, body::text FROM documents";

fn document(row: &Row) -> Result<StoredDocument, DatabaseError> {
    let name = row.text(0)?;
    let kind = DocumentKind::ALL.into_iter().find(|kind| kind.as_str() == name);
    let kind = kind.ok_or_else(|| DatabaseError::Corrupt(format!("unknown kind of document: {name}")))?;
    Ok(StoredDocument { kind, id: row.string(1)?, revision: row.number(2)?, body: row.json(3)? })
}

pub(super) fn put_document(
    document: &StoredDocument,
    expected: Option<u64>,
) -> Result<Statement, DatabaseError> {
    let StoredDocument { kind, id, revision, body } = document;
    let mut args: Vec<Arg> = vec![kind.as_str().into(), id.as_str().into(), (*revision).into(), json(body)?];
    Ok(match expected {
        None => {
            let sql =
                "INSERT INTO documents (kind, document_id, revision, body) VALUES ($1, $2, $3, $4::jsonb)";
            Statement::new(sql, args)
        }
        Some(expected) => {
            args.push(expected.into());
            let sql = "UPDATE documents SET revision = $3, body = $4::jsonb \
                       WHERE kind = $1 AND document_id = $2 AND revision = $5";
            Statement::new(sql, args).expect_one_row(format!("{} {id}", kind.as_str()))
        }
    })
}

pub(super) fn delete_document(kind: DocumentKind, id: &str, expected: u64) -> Statement {
    let args = [kind.as_str().into(), id.into(), expected.into()];
    let sql = "DELETE FROM documents WHERE kind = $1 AND document_id = $2 AND revision = $3";
    Statement::new(sql, args).expect_one_row(format!("{} {id}", kind.as_str()))
}

impl Database {
    pub async fn rules_version(&self) -> Result<RulesVersion, DatabaseError> {
        let version =
            self.fetch_first("SELECT version FROM rules_version", &[], |row| row.text(0).map(Into::into));
        version.await?.ok_or_else(missing_rules_version)
    }

    /// All documents of a kind, by id.
    pub async fn documents(&self, kind: DocumentKind) -> Result<Vec<StoredDocument>, DatabaseError> {
        let sql = format!("{SELECT} WHERE kind = $1 ORDER BY document_id");
        self.fetch_all(&sql, &[kind.as_str().into()], document).await
    }

    pub async fn document(
        &self,
        kind: DocumentKind,
        id: &str,
    ) -> Result<Option<StoredDocument>, DatabaseError> {
        let sql = format!("{SELECT} WHERE kind = $1 AND document_id = $2");
        self.fetch_first(&sql, &[kind.as_str().into(), id.into()], document).await
    }

    /// All settings and feature flags that were set.
    pub async fn settings(&self) -> Result<Vec<StoredDocument>, DatabaseError> {
        let args = [DocumentKind::Setting, DocumentKind::Feature].map(|kind| kind.as_str().into());
        let sql = format!("{SELECT} WHERE kind IN ($1, $2) ORDER BY kind, document_id");
        self.fetch_all(&sql, &args, document).await
    }

    /// The stored response to a request with this idempotency key.
    pub async fn stored_response(
        &self,
        owner: &str,
        key: &str,
    ) -> Result<Option<StoredResponse>, DatabaseError> {
        let sql = "SELECT body::text FROM stored_responses WHERE owner = $1 AND key = $2";
        self.fetch_first(sql, &[owner.into(), key.into()], |row| row.json(0)).await
    }
}
