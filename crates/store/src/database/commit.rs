//! What one commit contains, and the statements that write it.

use ade_domain::approval::Approval;
use ade_domain::audit::AuditBody;
use ade_domain::event::Event;
use ade_domain::people::UserId;
use ade_domain::{Keys, Moment};
use serde_json::{Value, json};

use super::agents::{InboxMessage, StoredAgent};
use super::batch::{MAX_ROWS_OF_ONE_STATEMENT, Statement, TableRow, insert_all};
use super::documents::{Document, DocumentKind, Versioned};
use super::people::{KnownDevice, Session, StoredToken, StoredUser};
use super::sql::{SqlConnection, json, uuid};
use super::tasks::{Comment, Loaded, StoredTask};
use super::{
    Backend, Database, DatabaseError, Operation, Result, StoredResponse, agents, documents, numbering,
    people, rows, work,
};

/// Everything that one decision changes.
#[derive(Debug, Clone, Default)]
pub struct Commit {
    pub writes: Vec<Write>,
    pub audit: Vec<AuditBody>,
    pub events: Vec<Event>,
    /// The response to the request, if it has an idempotency key.
    pub response: Option<KeyedResponse>,
}

/// A response with the idempotency key of its request.
#[derive(Debug, Clone)]
pub struct KeyedResponse {
    /// Keys of different owners are independent.
    pub owner: String,
    pub key: String,
    pub at: Moment,
    pub response: StoredResponse,
}

/// A change of one object. `expected` is the revision that the caller has loaded; `None` for a new object.
#[derive(Debug, Clone)]
pub enum Write {
    /// A task with its approval requests.
    Task {
        task: Box<StoredTask>,
        expected: Option<u64>,
        /// The time of the decision: a new attempt replaces another one only if the lease of that one has expired by then.
        at: Moment,
    },
    DeleteTask {
        task_id: String,
        expected: u64,
    },
    Comment(Comment),
    User {
        user: Box<StoredUser>,
        expected: Option<u64>,
    },
    Session(Session),
    /// Extends a session that is in use. A session that was deleted stays deleted.
    TouchSession {
        session_hash: String,
        last_active: Moment,
        expires_at: Moment,
    },
    /// Notes that the password was given again in a session.
    ReauthenticateSession {
        session_hash: String,
        password_at: Moment,
    },
    /// Deletes all sessions of a user but one.
    DeleteOtherSessions {
        user_id: String,
        kept_hash: String,
    },
    DeleteSessions {
        /// All sessions of the user if `None`.
        session_hash: Option<String>,
        user_id: String,
    },
    /// Remembers that a user signed in on a device, and forgets the user's oldest devices above the limit.
    KnownDevice(KnownDevice),
    /// Creates or revokes a token. A revoked token stays revoked.
    Token(StoredToken),
    /// Revokes all tokens of a user that are not revoked yet.
    RevokeTokens {
        user_id: UserId,
        at: Moment,
    },
    Agent {
        agent: Box<StoredAgent>,
        expected: Option<u64>,
    },
    /// Deletes an agent with its inbox, but not its tokens: revoke them in the same commit.
    DeleteAgent {
        agent_id: String,
        expected: u64,
    },
    /// Adds a message to the inbox of an agent, and drops its oldest messages above the limit.
    InboxMessage(InboxMessage),
    /// Made by [`document`](Self::document).
    Document {
        kind: DocumentKind,
        document: Versioned<Value>,
        expected: Option<u64>,
    },
    DeleteDocument {
        kind: DocumentKind,
        id: String,
        expected: u64,
    },
}

/// A larger commit is not sent as one batch: the gain is small.
const MAX_BATCHED_WRITES: usize = 4;

/// The statements of a commit, made before it waits for its turn.
pub(super) struct PreparedCommit {
    statements: Vec<Statement>,
    /// Entries with the MAC of this process that get their numbers when they are inserted.
    unnumbered: Vec<TableRow>,
    at: Moment,
    is_batchable: bool,
    keys: Keys,
}

impl Operation for PreparedCommit {
    type Output = ();

    async fn apply(&self, connection: &mut SqlConnection<'_>) -> Result<()> {
        connection.execute_each(&self.statements).await?;
        if !self.unnumbered.is_empty() {
            let rows = numbering::chain(connection, &self.unnumbered, self.at, &self.keys).await?;
            connection.execute_each(&insert_all(rows, "")).await?;
        }
        Ok(())
    }

    fn batch(&self) -> Option<(&[Statement], ())> {
        self.is_batchable.then_some((&self.statements, ()))
    }
}

impl Commit {
    fn is_batchable(&self) -> bool {
        // Audit entries are numbered in the order in which they are queued, which only a single statement preserves within a batch.
        self.audit.len() <= MAX_ROWS_OF_ONE_STATEMENT
            && self.writes.len() <= MAX_BATCHED_WRITES
            && self.writes.iter().all(Write::is_independent)
    }
}

impl Database {
    /// Prepares a commit for this database.
    pub(super) fn prepare(&self, commit: &Commit) -> Result<PreparedCommit> {
        let (is_batchable, keys) = (commit.is_batchable(), self.keys.clone());
        let mut statements = Vec::new();
        // First: of two requests with the same key, the later one waits here and fails as a duplicate, whatever else would
        // conflict.
        statements.extend(commit.response.as_ref().map(insert_response).transpose()?);
        for write in &commit.writes {
            write.push_statements(&mut statements)?;
        }
        let at = commit.audit.first().map_or_else(Moment::default, |body| body.at);
        let entries = commit.audit.iter().map(|body| rows::audit_entry(body, &keys));
        let mut unnumbered = entries.collect::<Result<Vec<_>>>()?;
        if let Backend::Postgres(_) = self.backend {
            let queued = commit.audit.iter().map(|body| TableRow::new("audit_queue", rows::audit_key(body)));
            statements.extend(insert_all(queued.collect(), ""));
            for row in &mut unnumbered {
                row.columns.push(("queued", true.into()));
            }
            statements.extend(insert_all(std::mem::take(&mut unnumbered), ""));
        }
        let events = commit.events.iter().map(rows::event).collect::<Result<_>>()?;
        statements.extend(insert_all(events, ""));
        Ok(PreparedCommit { statements, unnumbered, at, is_batchable, keys })
    }
}

/// Inserts a response; fails if the key has one already.
pub(super) fn insert_response(keyed: &KeyedResponse) -> Result<Statement> {
    let KeyedResponse { owner, key, at, response } = keyed;
    let columns = [
        ("owner", owner.as_str().into()),
        ("key", key.as_str().into()),
        ("created_at", (*at).into()),
        ("body", json(response)?),
    ];
    let insert = TableRow::new("stored_responses", columns).insert(" ON CONFLICT DO NOTHING");
    Ok(insert.or_fail(DatabaseError::DuplicateIdempotencyKey))
}

impl Write {
    #[must_use]
    pub fn document<T: Document>(document: &Versioned<T>, expected: Option<u64>) -> Self {
        let Versioned { id, revision, value } = document;
        let document = Versioned { id: id.clone(), revision: *revision, value: json!(value) };
        Self::Document { kind: T::KIND, document, expected }
    }

    #[must_use]
    pub fn reserve_policy_name(name: &str, policy_id: &str) -> Self {
        let id = documents::policy_name_id(name);
        let document = Versioned { id, revision: 1, value: json!({ "policy_id": policy_id }) };
        Self::Document { kind: DocumentKind::Policy, document, expected: None }
    }

    #[must_use]
    pub fn release_policy_name(name: &str) -> Self {
        let id = documents::policy_name_id(name);
        Self::DeleteDocument { kind: DocumentKind::Policy, id, expected: 1 }
    }

    /// Whether it neither depends on the other writes of its commit, nor they on it.
    fn is_independent(&self) -> bool {
        match self {
            // Without the loaded rows, all labels are deleted and inserted again.
            Self::Task { task, expected, .. } => {
                expected.is_none_or(|expected| task.loaded_version.at(expected).is_some())
            }
            Self::Comment(_) => true,
            _ => false,
        }
    }

    fn push_statements(&self, statements: &mut Vec<Statement>) -> Result<()> {
        statements.push(match self {
            Self::Task { task, expected, at } => return put_task(statements, task, *expected, *at),
            Self::DeleteTask { task_id, expected } => {
                let args = [uuid(task_id), (*expected).into()];
                let delete = Statement::new("DELETE FROM tasks WHERE task_id = $1 AND revision = $2", args);
                let delete = delete.or_conflict(format!("task {task_id}"));
                statements.extend([delete, work::delete_claim(task_id)]);
                return Ok(());
            }
            Self::Comment(comment) => rows::comment(comment)?.insert(""),
            Self::User { user, expected } => people::put_user(user, *expected)?,
            Self::Session(session) => people::insert_session(session)?,
            Self::TouchSession { session_hash, last_active, expires_at } => {
                people::touch_session(session_hash, *last_active, *expires_at)
            }
            Self::ReauthenticateSession { session_hash, password_at } => {
                people::reauthenticate_session(session_hash, *password_at)
            }
            Self::DeleteOtherSessions { user_id, kept_hash } => {
                people::delete_other_sessions(user_id, kept_hash)
            }
            Self::DeleteSessions { session_hash, user_id } => {
                people::delete_sessions(session_hash.clone(), user_id)
            }
            Self::KnownDevice(device) => {
                statements.extend(people::put_device(device));
                return Ok(());
            }
            Self::Token(token) => people::put_token(token)?,
            Self::RevokeTokens { user_id, at } => people::revoke_tokens(user_id, *at),
            Self::Agent { agent, expected } => agents::put_agent(agent, *expected)?,
            Self::DeleteAgent { agent_id, expected } => {
                statements.extend(agents::delete_agent(agent_id, *expected));
                return Ok(());
            }
            Self::InboxMessage(message) => {
                statements.extend(agents::insert_message(message)?);
                return Ok(());
            }
            Self::Document { kind, document, expected } => {
                documents::put_document(*kind, document, *expected)?
            }
            Self::DeleteDocument { kind, id, expected } => documents::delete_document(*kind, id, *expected),
        });
        Ok(())
    }
}

/// Inserts labels of a task that are not there yet.
pub(super) fn insert_labels<'a>(
    task_id: &str,
    labels: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Vec<Statement> {
    let row = |(kind, label)| rows::label(task_id, kind, label);
    insert_all(labels.into_iter().map(row).collect(), " ON CONFLICT DO NOTHING")
}

fn put_task(
    statements: &mut Vec<Statement>,
    task: &StoredTask,
    expected: Option<u64>,
    at: Moment,
) -> Result<()> {
    let task_id = task.task_id.as_str();
    let row = rows::task(task)?;
    let nothing = Loaded::default();
    let before = match expected {
        None => {
            statements.push(row.insert(""));
            &nothing
        }
        Some(expected) => {
            let mut args = row.into_args();
            args.extend([expected.into(), at.into()]);
            // Within an attempt the lease only grows: the caller may not have seen its last renewal. Another attempt must wait
            // until the lease has expired.
            let sql = "UPDATE tasks SET state = $2, type = $3, author_id = $4, revision = $5, \
                       approval_expires_at = $6, finished_at = $7, body = $8, work_kind = $9, work_queue = $10, \
                       work_priority = $11, ready_at = $12, attempt = $13, \
                       lease_until = CASE WHEN attempt = $13 AND lease_until > $14 THEN lease_until ELSE $14 END, \
                       closed_at = $15 \
                       WHERE task_id = $1 AND revision = $16 \
                       AND (attempt = $13 OR lease_until IS NULL OR lease_until <= $17)";
            statements.push(Statement::new(sql, args).or_conflict(format!("task {task_id}")));
            task.loaded_version.at(expected).unwrap_or_else(|| {
                statements
                    .push(Statement::new("DELETE FROM task_labels WHERE task_id = $1", [uuid(task_id)]));
                &nothing
            })
        }
    };
    let labels = task.labels();
    for (kind, label) in before.labels.difference(&labels) {
        let sql = "DELETE FROM task_labels WHERE kind = $1 AND label = $2 AND task_id = $3";
        statements.push(Statement::new(sql, [(*kind).into(), label.as_str().into(), uuid(task_id)]));
    }
    let added = labels.difference(&before.labels).map(|(kind, label)| (*kind, label.as_str()));
    statements.extend(insert_labels(task_id, added));
    let is_changed = |approval: &&Approval| {
        before.approval_revisions.get(&approval.approval_id) != Some(&approval.revision)
    };
    let changed = task.approvals.iter().filter(is_changed).map(rows::approval).collect::<Result<_>>()?;
    let update = " ON CONFLICT (approval_id) DO UPDATE SET status = excluded.status, score = excluded.score, \
                  due_at = excluded.due_at, raise_at = excluded.raise_at, responded_at = excluded.responded_at, \
                  revision = excluded.revision, body = excluded.body WHERE approvals.revision < excluded.revision";
    statements.extend(insert_all(changed, update));
    Ok(())
}
