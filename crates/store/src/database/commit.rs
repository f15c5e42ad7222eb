//! What one commit contains, and the statements that write it.

use ade_domain::Moment;
use ade_domain::approval::Approval;
use ade_domain::audit::AuditBody;
use ade_domain::event::Event;
use ade_domain::people::UserId;
use ade_domain::task::{Phase, TaskState};
use serde_json::{Value, json};

use super::agents::{InboxMessage, StoredAgent};
use super::batch::{MAX_ROWS_OF_ONE_STATEMENT, Statement, values};
use super::documents::{Document, DocumentKind, Versioned};
use super::people::{Session, StoredToken, StoredUser};
use super::sql::{Arg, SqlConnection, json};
use super::tasks::{Comment, RelatedRows, StoredTask};
use super::work::WorkKind;
use super::{DatabaseError, Operation, StoredResponse, agents, documents, people};

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
    DeleteSessions {
        /// All sessions of the user if `None`.
        session_hash: Option<String>,
        user_id: String,
    },
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

impl Operation for Commit {
    type Output = ();

    async fn apply(&self, connection: &mut SqlConnection<'_>) -> Result<(), DatabaseError> {
        connection.execute_each(&self.statements()?).await.map(drop)
    }

    fn is_batchable(&self) -> bool {
        // Audit entries and events are numbered in insertion order, which only a single statement preserves within a batch.
        self.audit.len() <= MAX_ROWS_OF_ONE_STATEMENT
            && self.events.len() <= MAX_ROWS_OF_ONE_STATEMENT
            && self.writes.len() <= MAX_BATCHED_WRITES
            && self.writes.iter().all(Write::is_independent)
    }

    async fn apply_batch(&self, connection: &mut SqlConnection<'_>) -> Result<Option<()>, DatabaseError> {
        Ok(connection.execute_batch(&self.statements()?).await?.then_some(()))
    }
}

impl Commit {
    fn statements(&self) -> Result<Vec<Statement>, DatabaseError> {
        let mut statements = Vec::new();
        // First: of two requests with the same key, the later one waits here and fails as a duplicate, whatever else would
        // conflict.
        statements.extend(self.response.as_ref().map(insert_response).transpose()?);
        for write in &self.writes {
            write.push_statements(&mut statements)?;
        }
        let rows = self.audit.iter().map(audit_columns).collect::<Result<Vec<_>, _>>()?;
        let into = "INSERT INTO audit (entry_id, at, actor, action, task_id, body) ";
        statements.extend(values(into, "(?::uuid, moment(?), ?, ?, ?::uuid, ?)", "", &rows));
        let rows = self.events.iter().map(event_columns).collect::<Result<Vec<_>, _>>()?;
        statements.extend(values("INSERT INTO events (event_id, body) ", "(?::uuid, ?::jsonb)", "", &rows));
        Ok(statements)
    }
}

/// Inserts a response; fails if the key has one already.
pub(super) fn insert_response(keyed: &KeyedResponse) -> Result<Statement, DatabaseError> {
    let KeyedResponse { owner, key, at, response } = keyed;
    let args = [owner.as_str().into(), key.as_str().into(), (*at).into(), json(response)?];
    let sql = "INSERT INTO stored_responses (owner, key, created_at, body) VALUES ($1, $2, moment($3), $4::jsonb) \
               ON CONFLICT DO NOTHING";
    Ok(Statement::new(sql, args).expect_new_response())
}

/// `entry_id, at, actor, action, task_id, body` of an entry without its number.
pub(super) fn audit_columns(body: &AuditBody) -> Result<Vec<Arg>, DatabaseError> {
    Ok(vec![
        body.entry_id.as_str().into(),
        body.at.into(),
        body.who.user_id.as_ref().map(ToString::to_string).into(),
        body.action.as_str().into(),
        body.task_id.clone().into(),
        // The exact text that is hashed.
        json(body)?,
    ])
}

/// `event_id, body` of an event without its number.
pub(super) fn event_columns(event: &Event) -> Result<Vec<Arg>, DatabaseError> {
    Ok(vec![event.event_id.as_str().into(), json(event)?])
}

/// The columns of [`task_columns`], in the same order.
macro_rules! task_column_names {
    () => {
        "task_id, state, type, author_id, revision, approval_expires_at, finished_at, body, work_kind, work_queue, \
         work_priority, ready_at, attempt, lease_until, closed_at"
    };
}
/// The placeholders of [`task_columns`].
macro_rules! task_placeholders {
    () => {
        "$1::uuid, $2, $3, $4, $5, moment($6), moment($7), $8::jsonb, $9, $10, $11, moment($12), $13, moment($14), moment($15)"
    };
}
pub(super) use {task_column_names, task_placeholders};

pub(super) fn task_columns(stored: &StoredTask) -> Result<Vec<Arg>, DatabaseError> {
    let task = &stored.task;
    let closed_at = task.entered_at.get(&task.state).copied().filter(|_| task.state.is_final());
    let finished_at = closed_at.filter(|_| matches!(task.state, TaskState::Completed | TaskState::Failed));
    let work = WorkKind::of(stored);
    let running = task.execution.as_ref().filter(|execution| execution.phase != Phase::Ended);
    Ok(vec![
        task.task_id.as_str().into(),
        task.state.as_str().into(),
        task.config.task_type.as_str().into(),
        task.author_id.as_str().into(),
        task.revision.into(),
        task.approval_ends_at.filter(|_| task.state == TaskState::Approved).into(),
        finished_at.into(),
        json(stored)?,
        work.map(|work| work.as_str().to_owned()).into(),
        work.map(|_| task.config.work_queue()).into(),
        work.map(|work| work.priority(task)).into(),
        work.map(|work| work.ready_at(task)).into(),
        task.execution.as_ref().map_or(0, |execution| execution.attempt).into(),
        running.map(|execution| execution.lease_until).into(),
        closed_at.into(),
    ])
}

/// The columns of [`approval_columns`], in the same order.
pub(super) const INSERT_APPROVALS: &str = "INSERT INTO approvals \
    (approval_id, task_id, reviewer_id, status, score, created_at, due_at, responded_at, revision, body) ";
/// The placeholders of [`approval_columns`].
pub(super) const APPROVAL_ROW: &str =
    "(?::uuid, ?::uuid, ?, ?, ?, moment(?), moment(?), moment(?), ?, ?::jsonb)";

pub(super) fn approval_columns(approval: &Approval) -> Result<Vec<Arg>, DatabaseError> {
    Ok(vec![
        approval.approval_id.as_str().into(),
        approval.task_id.as_str().into(),
        approval.reviewer_id.as_str().into(),
        approval.status.as_str().into(),
        u64::from(approval.score).into(),
        approval.created_at.into(),
        approval.due_at.into(),
        approval.responded_at.into(),
        approval.revision.into(),
        json(approval)?,
    ])
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
                expected.is_none_or(|expected| task.loaded_version.rows_at(expected).is_some())
            }
            Self::Comment(_) => true,
            _ => false,
        }
    }

    fn push_statements(&self, statements: &mut Vec<Statement>) -> Result<(), DatabaseError> {
        statements.push(match self {
            Self::Task { task, expected, at } => return put_task(statements, task, *expected, *at),
            Self::DeleteTask { task_id, expected } => {
                let args = [task_id.as_str().into(), (*expected).into()];
                Statement::new("DELETE FROM tasks WHERE task_id = $1::uuid AND revision = $2", args)
                    .expect_one_row(format!("task {task_id}"))
            }
            Self::Comment(comment) => insert_comment(comment, "")?,
            Self::User { user, expected } => people::put_user(user, *expected)?,
            Self::Session(session) => people::insert_session(session)?,
            Self::TouchSession { session_hash, last_active, expires_at } => {
                people::touch_session(session_hash, *last_active, *expires_at)
            }
            Self::DeleteSessions { session_hash, user_id } => {
                people::delete_sessions(session_hash.as_deref(), user_id)
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

/// `suffix` says what happens to a comment that is there already.
pub(super) fn insert_comment(comment: &Comment, suffix: &str) -> Result<Statement, DatabaseError> {
    let args = [comment.comment_id.as_str().into(), comment.task_id.as_str().into(), json(comment)?];
    let sql = "INSERT INTO comments (comment_id, task_id, body) VALUES ($1::uuid, $2::uuid, $3::jsonb)";
    Ok(Statement::new(format!("{sql}{suffix}"), args))
}

/// Inserts labels of a task that are not there yet.
pub(super) fn insert_labels<'a>(
    task_id: &str,
    labels: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Vec<Statement> {
    let row = |(kind, label): (&str, &str)| vec![kind.into(), label.into(), task_id.into()];
    let rows: Vec<Vec<Arg>> = labels.into_iter().map(row).collect();
    let into = "INSERT INTO task_labels (kind, label, task_id) ";
    values(into, "(?, ?, ?::uuid)", " ON CONFLICT DO NOTHING", &rows)
}

fn put_task(
    statements: &mut Vec<Statement>,
    task: &StoredTask,
    expected: Option<u64>,
    at: Moment,
) -> Result<(), DatabaseError> {
    let task_id = task.task_id.as_str();
    let mut args = task_columns(task)?;
    let no_rows = RelatedRows::default();
    let before = match expected {
        None => {
            let sql =
                concat!("INSERT INTO tasks (", task_column_names!(), ") VALUES (", task_placeholders!(), ")");
            statements.push(Statement::new(sql, args));
            &no_rows
        }
        Some(expected) => {
            args.extend([expected.into(), at.into()]);
            // Within an attempt the lease only grows: the caller may not have seen its last renewal. Another attempt must wait
            // until the lease has expired.
            let sql = "UPDATE tasks SET state = $2, type = $3, author_id = $4, revision = $5, \
                       approval_expires_at = moment($6), finished_at = moment($7), body = $8::jsonb, \
                       work_kind = $9, work_queue = $10, work_priority = $11, ready_at = moment($12), attempt = $13, \
                       lease_until = CASE WHEN attempt = $13 AND lease_until > moment($14) THEN lease_until \
                       ELSE moment($14) END, claimed_by = NULL, claimed_until = NULL, closed_at = moment($15) \
                       WHERE task_id = $1::uuid AND revision = $16 \
                       AND (attempt = $13 OR lease_until IS NULL OR lease_until <= moment($17))";
            statements.push(Statement::new(sql, args).expect_one_row(format!("task {task_id}")));
            task.loaded_version.rows_at(expected).unwrap_or_else(|| {
                let sql = "DELETE FROM task_labels WHERE task_id = $1::uuid";
                statements.push(Statement::new(sql, [task_id.into()]));
                &no_rows
            })
        }
    };
    let labels = task.labels();
    for (kind, label) in before.labels.difference(&labels) {
        let sql = "DELETE FROM task_labels WHERE kind = $1 AND label = $2 AND task_id = $3::uuid";
        statements.push(Statement::new(sql, [(*kind).into(), label.as_str().into(), task_id.into()]));
    }
    let added = labels.difference(&before.labels).map(|(kind, label)| (*kind, label.as_str()));
    statements.extend(insert_labels(task_id, added));
    let is_changed = |approval: &&Approval| {
        before.approval_revisions.get(&approval.approval_id) != Some(&approval.revision)
    };
    let changed = task.approvals.iter().filter(is_changed);
    let rows = changed.map(approval_columns).collect::<Result<Vec<_>, _>>()?;
    let update = " ON CONFLICT (approval_id) DO UPDATE SET status = excluded.status, score = excluded.score, \
                  due_at = excluded.due_at, responded_at = excluded.responded_at, revision = excluded.revision, \
                  body = excluded.body WHERE approvals.revision < excluded.revision";
    statements.extend(values(INSERT_APPROVALS, APPROVAL_ROW, update, &rows));
    Ok(())
}
