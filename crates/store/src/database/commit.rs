//! What is committed together, and how.

use ade_domain::Moment;
use ade_domain::approval::Approval;
use ade_domain::audit::AuditBody;
use ade_domain::people::UserId;
use ade_domain::task::{Phase, State};

use super::agents::{InboxMessage, StoredAgent};
use super::log::Event;
use super::people::{Session, StoredToken, StoredUser};
use super::rules::{DocumentKind, StoredDocument};
use super::sql::{Arg, Link, json};
use super::tasks::{Beside, Comment, StoredTask};
use super::together::{ROWS_OF_ONE, Statement, values};
use super::work::WorkKind;
use super::{DatabaseError, StoredResponse, agents, people};

/// Everything that one decision changes.
#[derive(Debug, Clone, Default)]
pub struct Commit {
    /// What becomes of the nouns.
    pub writes: Vec<Write>,
    /// What the audit log says about it.
    pub audit: Vec<AuditBody>,
    /// Who hears of it.
    pub events: Vec<Event>,
    /// What the request was answered: owner, key, when, answer.
    pub answer: Option<KeyedResponse>,
}

/// What a request was answered: owner, key, when, answer.
pub type KeyedResponse = (String, String, Moment, StoredResponse);

/// One change. `expected` is the revision that was seen; nothing if it is new.
#[derive(Debug, Clone)]
pub enum Write {
    /// A task with its review and its requests.
    Task {
        /// As it is now.
        task: Box<StoredTask>,
        /// As it was seen.
        expected: Option<u64>,
        /// When this was decided: another attempt takes its place only if nobody is at it any more by then.
        at: Moment,
    },
    /// A draft is deleted.
    DeleteTask {
        /// Which.
        task_id: String,
        /// As it was seen.
        expected: u64,
    },
    /// Somebody says something about a task.
    Comment(Comment),
    /// A person.
    User {
        /// As it is now.
        user: Box<StoredUser>,
        /// As it was seen.
        expected: Option<u64>,
    },
    /// Somebody signs in.
    Session(Session),
    /// A session is used. One that has ended stays so.
    TouchSession {
        /// Which.
        session_hash: String,
        /// When.
        last_active: Moment,
        /// Until when it is good now.
        expires_at: Moment,
    },
    /// Somebody signs out, or is signed out everywhere.
    EndSessions {
        /// This one; all of the user, if none is named.
        session_hash: Option<String>,
        /// Whose.
        user_id: String,
    },
    /// A token is made, or revoked. What was revoked stays so.
    Token(StoredToken),
    /// All tokens of somebody are revoked, except those that were before.
    EndTokens {
        /// Whose.
        user_id: UserId,
        /// When.
        at: Moment,
    },
    /// An agent.
    Agent {
        /// As it is now.
        agent: Box<StoredAgent>,
        /// As it was seen.
        expected: Option<u64>,
    },
    /// An agent is deleted with its inbox. Its tokens are not: revoke them beside it.
    DeleteAgent {
        /// Which.
        agent_id: String,
        /// As it was seen.
        expected: u64,
    },
    /// An agent is told something. Its oldest messages make room.
    Inbox(InboxMessage),
    /// A policy, a delegation, a registered resource, a setting, a flag.
    Thing {
        /// As it is now.
        thing: StoredDocument,
        /// As it was seen.
        expected: Option<u64>,
    },
    /// One of those is deleted.
    DeleteThing {
        /// What kind.
        kind: DocumentKind,
        /// Which.
        id: String,
        /// As it was seen.
        expected: u64,
    },
}

/// Nouns of a commit that is written in one go: for more of them, one by one costs little more.
const MOST_TOGETHER: usize = 4;

impl Commit {
    /// One statement after the other.
    pub(super) async fn apply(&self, link: &mut Link<'_>) -> Result<(), DatabaseError> {
        link.run_each(&self.statements()?).await
    }

    /// Whether it may be applied in one go.
    pub(super) fn fits_together(&self) -> bool {
        // What is numbered is numbered in the order in which it was written: in one statement that is its own.
        let in_order = self.audit.len() <= ROWS_OF_ONE && self.events.len() <= ROWS_OF_ONE;
        in_order && self.writes.len() <= MOST_TOGETHER && self.writes.iter().all(Write::is_independent)
    }

    /// All in one go; whether it was done. What it leaves behind if not: see [`Link::run_together`].
    pub(super) async fn apply_together(&self, link: &mut Link<'_>) -> Result<bool, DatabaseError> {
        link.run_together(&self.statements()?).await
    }

    fn statements(&self) -> Result<Vec<Statement>, DatabaseError> {
        let mut all = Vec::new();
        // First: of two that carry the same request, the later one waits here and is told so, whatever else it would meet.
        all.extend(self.answer.as_ref().map(keep_answer).transpose()?);
        for write in &self.writes {
            write.add(&mut all)?;
        }
        let rows = self.audit.iter().map(audit_columns).collect::<Result<Vec<_>, _>>()?;
        let into = "INSERT INTO audit (entry_id, at, actor, action, task_id, body) ";
        all.extend(values(into, "(?::uuid, moment(?), ?, ?, ?::uuid, ?)", "", &rows));
        let rows = self.events.iter().map(event_columns).collect::<Result<Vec<_>, _>>()?;
        all.extend(values("INSERT INTO events (event_id, body) ", "(?::uuid, ?::jsonb)", "", &rows));
        Ok(all)
    }
}

/// Keeps an answer; not, if there is one already.
pub(super) fn keep_answer((owner, key, at, answer): &KeyedResponse) -> Result<Statement, DatabaseError> {
    let args = [owner.as_str().into(), key.as_str().into(), (*at).into(), json(answer)?];
    let sql = "INSERT INTO stored_responses (owner, key, created_at, body) VALUES ($1, $2, moment($3), $4::jsonb) \
               ON CONFLICT DO NOTHING";
    Ok(Statement::new(sql, args).answers())
}

/// `entry_id, at, actor, action, task_id, body` of an entry without its number.
pub(super) fn audit_columns(body: &AuditBody) -> Result<Vec<Arg>, DatabaseError> {
    Ok(vec![
        body.entry_id.as_str().into(),
        body.at.into(),
        body.who.user_id.as_ref().map(ToString::to_string).into(),
        body.action.as_str().into(),
        body.task_id.clone().into(),
        // As text, exactly as it is hashed.
        json(body)?,
    ])
}

/// `event_id, body` of an event without its number.
pub(super) fn event_columns(event: &Event) -> Result<Vec<Arg>, DatabaseError> {
    Ok(vec![event.event_id.as_str().into(), json(event)?])
}

/// `task_id, state, type, author_id, revision, approval_expires_at, finished_at, body, work_kind, work_queue, work_priority, ready_at, attempt,
/// lease_until, closed_at`.
pub(super) fn task_columns(task: &StoredTask) -> Result<Vec<Arg>, DatabaseError> {
    let review = &task.task;
    let ended_at =
        [State::Completed, State::Failed].iter().find_map(|state| review.since.get(state)).copied();
    let ended_at = ended_at.filter(|_| matches!(review.state, State::Completed | State::Failed));
    let work = WorkKind::of(task);
    let present = review.execution.as_ref().filter(|execution| execution.phase != Phase::Ended);
    Ok(vec![
        review.task_id.as_str().into(),
        review.state.word().into(),
        review.config.task_type.as_str().into(),
        review.author_id.as_str().into(),
        review.revision.into(),
        task.approval_ends_at.filter(|_| review.state == State::Approved).into(),
        ended_at.into(),
        json(task)?,
        work.map(|work| work.word().to_owned()).into(),
        work.map(|_| review.config.place()).into(),
        work.map(|work| work.rank(review)).into(),
        work.map(|work| work.ready_at(review)).into(),
        review.execution.as_ref().map_or(0, |execution| execution.attempt).into(),
        present.map(|execution| execution.lease_until).into(),
        review.since.get(&review.state).copied().filter(|_| review.state.is_final()).into(),
    ])
}

/// `approval_id, task_id, reviewer_id, status, score, created_at, due_at, responded_at, revision, body`.
pub(super) fn approval_columns(approval: &Approval) -> Result<Vec<Arg>, DatabaseError> {
    let status = serde_json::to_value(approval.status).ok();
    let status = status.as_ref().and_then(serde_json::Value::as_str).unwrap_or_default().to_owned();
    Ok(vec![
        approval.approval_id.as_str().into(),
        approval.task_id.as_str().into(),
        approval.reviewer_id.as_str().into(),
        status.into(),
        u64::from(approval.score).into(),
        approval.created_at.into(),
        approval.due_at.into(),
        approval.responded_at.into(),
        approval.revision.into(),
        json(approval)?,
    ])
}

impl Write {
    /// Whether it neither goes by what others of its commit write, nor others by what it writes.
    fn is_independent(&self) -> bool {
        match self {
            // What is not known is written anew, after it was deleted.
            Self::Task { task, expected, .. } => {
                expected.is_none_or(|expected| task.as_read.at(expected).is_some())
            }
            Self::Comment(_) => true,
            _ => false,
        }
    }

    fn add(&self, all: &mut Vec<Statement>) -> Result<(), DatabaseError> {
        all.push(match self {
            Self::Task { task, expected, at } => {
                return put_task(all, task, *expected, *at);
            }
            Self::DeleteTask { task_id, expected } => {
                let args = [task_id.as_str().into(), (*expected).into()];
                Statement::new("DELETE FROM tasks WHERE task_id = $1::uuid AND revision = $2", args)
                    .meets(format!("task {task_id}"))
            }
            Self::Comment(comment) => {
                let args =
                    [comment.comment_id.as_str().into(), comment.task_id.as_str().into(), json(comment)?];
                let sql =
                    "INSERT INTO comments (comment_id, task_id, body) VALUES ($1::uuid, $2::uuid, $3::jsonb)";
                Statement::new(sql, args)
            }
            Self::User { user, expected } => people::put_user(user, *expected)?,
            Self::Session(session) => people::put_session(session)?,
            Self::TouchSession { session_hash, last_active, expires_at } => {
                people::touch_session(session_hash, *last_active, *expires_at)
            }
            Self::EndSessions { session_hash, user_id } => {
                people::end_sessions(session_hash.as_deref(), user_id)
            }
            Self::Token(token) => people::put_token(token)?,
            Self::EndTokens { user_id, at } => people::end_tokens(user_id, *at),
            Self::Agent { agent, expected } => agents::put_agent(agent, *expected)?,
            Self::DeleteAgent { agent_id, expected } => {
                all.extend(agents::delete_agent(agent_id, *expected));
                return Ok(());
            }
            Self::Inbox(message) => {
                all.extend(agents::put_message(message)?);
                return Ok(());
            }
            Self::Thing { thing, expected } => put_thing(thing, *expected)?,
            Self::DeleteThing { kind, id, expected } => {
                let args = [kind.word().into(), id.as_str().into(), (*expected).into()];
                let sql = "DELETE FROM documents WHERE kind = $1 AND document_id = $2 AND revision = $3";
                Statement::new(sql, args).meets(format!("{} {id}", kind.word()))
            }
        });
        Ok(())
    }
}

fn put_task(
    all: &mut Vec<Statement>,
    task: &StoredTask,
    expected: Option<u64>,
    at: Moment,
) -> Result<(), DatabaseError> {
    let review = &task.task;
    let id = || Arg::from(review.task_id.as_str());
    let mut args = task_columns(task)?;
    let nothing = Beside::default();
    let before = match expected {
        None => {
            let sql = "INSERT INTO tasks (task_id, state, type, author_id, revision, approval_expires_at, finished_at, body, \
                       work_kind, work_queue, work_priority, ready_at, attempt, lease_until, closed_at) \
                       VALUES ($1::uuid, $2, $3, $4, $5, moment($6), moment($7), $8::jsonb, $9, $10, $11, moment($12), \
                       $13, moment($14), moment($15))";
            all.push(Statement::new(sql, args));
            &nothing
        }
        Some(expected) => {
            args.extend([expected.into(), at.into()]);
            // Within an attempt the lease only grows: whoever decided may not have seen that it was renewed. Another attempt
            // takes its place only if nobody is at it any more.
            let sql = "UPDATE tasks SET state = $2, type = $3, author_id = $4, revision = $5, \
                       approval_expires_at = moment($6), finished_at = moment($7), body = $8::jsonb, \
                       work_kind = $9, work_queue = $10, work_priority = $11, ready_at = moment($12), attempt = $13, \
                       lease_until = CASE WHEN attempt = $13 AND lease_until > moment($14) THEN lease_until \
                       ELSE moment($14) END, claimed_by = NULL, claimed_until = NULL, closed_at = moment($15) \
                       WHERE task_id = $1::uuid AND revision = $16 \
                       AND (attempt = $13 OR lease_until IS NULL OR lease_until <= moment($17))";
            all.push(Statement::new(sql, args).meets(format!("task {}", review.task_id)));
            task.as_read.at(expected).unwrap_or_else(|| {
                all.push(Statement::new("DELETE FROM task_labels WHERE task_id = $1::uuid", [id()]));
                &nothing
            })
        }
    };
    let marks = task.marks();
    for (kind, mark) in before.marks.difference(&marks) {
        let sql = "DELETE FROM task_labels WHERE kind = $1 AND label = $2 AND task_id = $3::uuid";
        all.push(Statement::new(sql, [(*kind).into(), mark.as_str().into(), id()]));
    }
    let new = marks.difference(&before.marks);
    let rows: Vec<_> = new.map(|(kind, mark)| vec![(*kind).into(), mark.as_str().into(), id()]).collect();
    let into = "INSERT INTO task_labels (kind, label, task_id) ";
    all.extend(values(into, "(?, ?, ?::uuid)", " ON CONFLICT DO NOTHING", &rows));
    let changed =
        review.approvals.iter().filter(|one| before.approvals.get(&one.approval_id) != Some(&one.revision));
    let rows = changed.map(approval_columns).collect::<Result<Vec<_>, _>>()?;
    let into = "INSERT INTO approvals \
                (approval_id, task_id, reviewer_id, status, score, created_at, due_at, responded_at, revision, body) ";
    let row = "(?::uuid, ?::uuid, ?, ?, ?, moment(?), moment(?), moment(?), ?, ?::jsonb)";
    let then = " ON CONFLICT (approval_id) DO UPDATE SET status = excluded.status, score = excluded.score, \
                due_at = excluded.due_at, responded_at = excluded.responded_at, revision = excluded.revision, body = excluded.body \
                WHERE approvals.revision < excluded.revision";
    all.extend(values(into, row, then, &rows));
    Ok(())
}

fn put_thing(thing: &StoredDocument, expected: Option<u64>) -> Result<Statement, DatabaseError> {
    let mut args: Vec<Arg> =
        vec![thing.kind.word().into(), thing.id.as_str().into(), thing.revision.into(), json(&thing.body)?];
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
            Statement::new(sql, args).meets(format!("{} {}", thing.kind.word(), thing.id))
        }
    })
}
