//! The rules that reviews are decided by: policies, delegations, registered resources, settings and feature flags; also webhooks. There
//! are few, and they are read as a whole. Caches compare the rules version.

use ade_domain::agent::RemovedAgent;
use ade_domain::approval::assignment::RuleChange;
use ade_domain::approval::delegation::Delegation;
use ade_domain::approval::policy::PolicyVersions;
use ade_domain::dual_control::ProposedChange;
use ade_domain::risk::RegisteredPattern;
use ade_domain::task::PublishedBinding;
use ade_domain::webhook::Webhook;
use ade_domain::webhook::chat_secret::ChatSecret;
use ade_domain::webhook::inbound::InboundHook;
use ade_domain::webhook::slack_account::SlackAccount;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::batch::{Statement, TableRow};
use super::sql::{Row, json};
use super::{Database, DatabaseError, Result, StoredResponse};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum DocumentKind {
    Policy,
    Delegation,
    /// How critical registered resources are.
    Resource,
    Setting,
    Feature,
    /// What operators allow tasks to work on, as their processes published it.
    Binding,
    /// Recent changes of the rules.
    RuleChange,
    /// Changes that wait for a second administrator.
    Change,
    RemovedAgent,
    /// Where events are sent.
    Webhook,
    /// Hooks that propose tasks.
    InboundHook,
    /// What users have linked with Slack.
    SlackAccount,
    /// Who knows the secrets of chats.
    ChatSecret,
}

impl DocumentKind {
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// What the documents of one kind contain.
pub trait Document: Serialize + DeserializeOwned {
    const KIND: DocumentKind;
}

/// Its name determines which values are valid.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Setting(pub Value);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FeatureFlag(pub bool);

macro_rules! document {
    ($type:ident, $kind:ident) => {
        impl Document for $type {
            const KIND: DocumentKind = DocumentKind::$kind;
        }
    };
}
document!(PolicyVersions, Policy);
document!(Delegation, Delegation);
document!(RegisteredPattern, Resource);
document!(Setting, Setting);
document!(FeatureFlag, Feature);
document!(PublishedBinding, Binding);
document!(RuleChange, RuleChange);
document!(ProposedChange, Change);
document!(RemovedAgent, RemovedAgent);
document!(Webhook, Webhook);
document!(InboundHook, InboundHook);
document!(SlackAccount, SlackAccount);
document!(ChatSecret, ChatSecret);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Versioned<T> {
    pub id: String,
    /// Grows with every change.
    pub revision: u64,
    pub value: T,
}

impl<T> Versioned<T> {
    #[must_use]
    pub fn next(&self, value: T) -> Self {
        Self { id: self.id.clone(), revision: self.revision + 1, value }
    }
}

/// Changes with every change of users, policies, delegations, resources, settings or feature flags, by any process. The database
/// itself changes it, in the same transaction.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RulesVersion(pub(super) String);

pub(super) fn missing_rules_version() -> DatabaseError {
    DatabaseError::Corrupt("the table rules_version is empty".to_owned())
}

/// Without the reserved names of policies.
const SELECT: &str = "SELECT document_id, revision, body FROM documents \
                      WHERE kind = $1 AND (kind <> 'policy' OR document_id NOT LIKE 'name:%')";

/// The id of a document that reserves the name of a policy: the database decides between concurrent requests for it.
pub(super) fn policy_name_id(name: &str) -> String {
    format!("name:{name}")
}

fn document<T: Document>(row: &Row) -> Result<Versioned<T>> {
    Ok(Versioned { id: row.get(0)?, revision: row.get(1)?, value: row.json(2)? })
}

pub(super) fn put_document(
    kind: DocumentKind,
    document: &Versioned<Value>,
    expected: Option<u64>,
) -> Result<Statement> {
    let Versioned { id, revision, value } = document;
    let columns = [
        ("kind", kind.as_str().into()),
        ("document_id", id.as_str().into()),
        ("revision", (*revision).into()),
        ("body", json(value)?),
    ];
    Ok(TableRow::new("documents", columns).put(2, expected, format!("{} {id}", kind.as_str())))
}

pub(super) fn delete_document(kind: DocumentKind, id: &str, expected: u64) -> Statement {
    let args = [kind.as_str().into(), id.into(), expected.into()];
    let sql = "DELETE FROM documents WHERE kind = $1 AND document_id = $2 AND revision = $3";
    Statement::new(sql, args).or_conflict(format!("{} {id}", kind.as_str()))
}

impl Database {
    pub async fn rules_version(&self) -> Result<RulesVersion> {
        let version =
            self.fetch_first("SELECT version FROM rules_version", &[], |row| Ok(RulesVersion(row.get(0)?)));
        version.await?.ok_or_else(missing_rules_version)
    }

    /// All documents of a type, by id.
    pub async fn documents<T: Document>(&self) -> Result<Vec<Versioned<T>>> {
        let sql = format!("{SELECT} ORDER BY document_id");
        self.fetch_all(&sql, &[T::KIND.as_str().into()], document).await
    }

    pub async fn document<T: Document>(&self, id: &str) -> Result<Option<Versioned<T>>> {
        let sql = format!("{SELECT} AND document_id = $2");
        self.fetch_first(&sql, &[T::KIND.as_str().into(), id.into()], document).await
    }

    /// The stored response to a request with this idempotency key.
    pub async fn stored_response(&self, owner: &str, key: &str) -> Result<Option<StoredResponse>> {
        let sql = "SELECT body FROM stored_responses WHERE owner = $1 AND key = $2";
        self.fetch_first(sql, &[owner.into(), key.into()], Row::body).await
    }
}
