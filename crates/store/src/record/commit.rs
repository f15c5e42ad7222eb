//! What is committed together, and how.

use ade_domain::Moment;
use ade_domain::audit::Body;
use ade_domain::people::UserId;
use ade_domain::review::Approval;
use ade_domain::task::{Phase, State};

use super::agents::{InboxMessage, StoredAgent};
use super::log::Event;
use super::people::{Session, StoredToken, StoredUser};
use super::rules::{Thing, ThingKind};
use super::sql::{Arg, Link, json};
use super::tasks::{Comment, StoredTask};
use super::work::WorkKind;
use super::{RecordError, StoredAnswer, agents, people};

/// Everything that one decision changes.
#[derive(Debug, Clone, Default)]
pub struct Commit {
    /// What becomes of the nouns.
    pub writes: Vec<Write>,
    /// What the audit log says about it.
    pub audit: Vec<Body>,
    /// Who hears of it.
    pub events: Vec<Event>,
    /// What the request was answered: owner, key, when, answer.
    pub answer: Option<(String, String, Moment, StoredAnswer)>,
}

/// One change. `expected` is the revision that was seen; nothing if it is new.
#[derive(Debug, Clone)]
pub enum Write {
    /// A task with its review and its requests.
    Task {
        /// As it is now.
        task: Box<StoredTask>,
        /// As it was seen.
        expected: Option<u64>,
        /// When its approval ends, if it is approved.
        approval_ends_at: Option<Moment>,
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
        thing: Thing,
        /// As it was seen.
        expected: Option<u64>,
    },
    /// One of those is deleted.
    DeleteThing {
        /// What kind.
        kind: ThingKind,
        /// Which.
        id: String,
        /// As it was seen.
        expected: u64,
    },
}

/// A change that must have met exactly one row.
pub(super) fn met(rows: u64, what: impl FnOnce() -> String) -> Result<(), RecordError> {
    if rows == 1 { Ok(()) } else { Err(RecordError::Conflict { what: what() }) }
}

impl Commit {
    pub(super) async fn apply(&self, link: &mut Link<'_>) -> Result<(), RecordError> {
        // First: of two that carry the same request, the later one waits here and is told so, whatever else it would meet.
        if let Some((owner, key, at, answer)) = &self.answer {
            let args = [owner.as_str().into(), key.as_str().into(), (*at).into(), json(answer)?];
            let sql = "INSERT INTO answers (owner, key, made_at, body) VALUES ($1, $2, moment($3), $4::jsonb) \
                       ON CONFLICT DO NOTHING";
            if link.run(sql, &args).await? == 0 {
                return Err(RecordError::AnsweredAlready);
            }
        }
        for write in &self.writes {
            write.apply(link).await?;
        }
        for body in &self.audit {
            let sql = "INSERT INTO audit (entry_id, at, actor, action, task_id, body) \
                       VALUES ($1::uuid, moment($2), $3, $4, $5::uuid, $6)";
            link.run(sql, &audit_columns(body)?).await?;
        }
        for event in &self.events {
            let sql = "INSERT INTO events (event_id, body) VALUES ($1::uuid, $2::jsonb)";
            link.run(sql, &event_columns(event)?).await?;
        }
        Ok(())
    }
}

/// `entry_id, at, actor, action, task_id, body` of an entry without its number.
pub(super) fn audit_columns(body: &Body) -> Result<Vec<Arg>, RecordError> {
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
pub(super) fn event_columns(event: &Event) -> Result<Vec<Arg>, RecordError> {
    Ok(vec![event.event_id.as_str().into(), json(event)?])
}

/// `task_id, state, type, author_id, revision, approval_ends_at, ended_at, body, work, place, rank, ready_at, attempt,
/// lease_until, closed_at`.
pub(super) fn task_columns(
    task: &StoredTask,
    approval_ends_at: Option<Moment>,
) -> Result<Vec<Arg>, RecordError> {
    let review = &task.review;
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
        approval_ends_at.filter(|_| review.state == State::Approved).into(),
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
pub(super) fn approval_columns(approval: &Approval) -> Result<Vec<Arg>, RecordError> {
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
    async fn apply(&self, link: &mut Link<'_>) -> Result<(), RecordError> {
        match self {
            Self::Task { task, expected, approval_ends_at, at } => {
                put_task(link, task, *expected, *approval_ends_at, *at).await
            }
            Self::DeleteTask { task_id, expected } => {
                let args = [task_id.as_str().into(), (*expected).into()];
                let rows =
                    link.run("DELETE FROM tasks WHERE task_id = $1::uuid AND revision = $2", &args).await?;
                met(rows, || format!("task {task_id}"))
            }
            Self::Comment(comment) => {
                let args =
                    [comment.comment_id.as_str().into(), comment.task_id.as_str().into(), json(comment)?];
                let sql =
                    "INSERT INTO comments (comment_id, task_id, body) VALUES ($1::uuid, $2::uuid, $3::jsonb)";
                link.run(sql, &args).await.map(drop)
            }
            Self::User { user, expected } => people::put_user(link, user, *expected).await,
            Self::Session(session) => people::put_session(link, session).await,
            Self::TouchSession { session_hash, last_active, expires_at } => {
                people::touch_session(link, session_hash, *last_active, *expires_at).await
            }
            Self::EndSessions { session_hash, user_id } => {
                people::end_sessions(link, session_hash.as_deref(), user_id).await
            }
            Self::Token(token) => people::put_token(link, token).await,
            Self::EndTokens { user_id, at } => people::end_tokens(link, user_id, *at).await,
            Self::Agent { agent, expected } => agents::put_agent(link, agent, *expected).await,
            Self::DeleteAgent { agent_id, expected } => agents::delete_agent(link, agent_id, *expected).await,
            Self::Inbox(message) => agents::put_message(link, message).await,
            Self::Thing { thing, expected } => put_thing(link, thing, *expected).await,
            Self::DeleteThing { kind, id, expected } => {
                let args = [kind.word().into(), id.as_str().into(), (*expected).into()];
                let sql = "DELETE FROM things WHERE kind = $1 AND thing_id = $2 AND revision = $3";
                let rows = link.run(sql, &args).await?;
                met(rows, || format!("{} {id}", kind.word()))
            }
        }
    }
}

async fn put_task(
    link: &mut Link<'_>,
    task: &StoredTask,
    expected: Option<u64>,
    approval_ends_at: Option<Moment>,
    at: Moment,
) -> Result<(), RecordError> {
    let review = &task.review;
    let mut args = task_columns(task, approval_ends_at)?;
    let what = || format!("task {}", review.task_id);
    match expected {
        None => {
            let sql = "INSERT INTO tasks (task_id, state, type, author_id, revision, approval_ends_at, ended_at, body, \
                       work, place, rank, ready_at, attempt, lease_until, closed_at) \
                       VALUES ($1::uuid, $2, $3, $4, $5, moment($6), moment($7), $8::jsonb, $9, $10, $11, moment($12), \
                       $13, moment($14), moment($15))";
            link.run(sql, &args).await?;
        }
        Some(expected) => {
            args.extend([expected.into(), at.into()]);
            // Within an attempt the lease only grows: whoever decided may not have seen that it was renewed. Another attempt
            // takes its place only if nobody is at it any more.
            let sql = "UPDATE tasks SET state = $2, type = $3, author_id = $4, revision = $5, \
                       approval_ends_at = moment($6), ended_at = moment($7), body = $8::jsonb, \
                       work = $9, place = $10, rank = $11, ready_at = moment($12), attempt = $13, \
                       lease_until = CASE WHEN attempt = $13 AND lease_until > moment($14) THEN lease_until \
                       ELSE moment($14) END, claimed_by = NULL, claimed_until = NULL, closed_at = moment($15) \
                       WHERE task_id = $1::uuid AND revision = $16 \
                       AND (attempt = $13 OR lease_until IS NULL OR lease_until <= moment($17))";
            met(link.run(sql, &args).await?, what)?;
            link.run("DELETE FROM task_marks WHERE task_id = $1::uuid", &[review.task_id.as_str().into()])
                .await?;
        }
    }
    for (kind, mark) in task.marks() {
        let args = [kind.into(), mark.into(), review.task_id.as_str().into()];
        let sql =
            "INSERT INTO task_marks (kind, mark, task_id) VALUES ($1, $2, $3::uuid) ON CONFLICT DO NOTHING";
        link.run(sql, &args).await?;
    }
    for approval in &review.approvals {
        let sql = "INSERT INTO approvals \
                   (approval_id, task_id, reviewer_id, status, score, created_at, due_at, responded_at, revision, body) \
                   VALUES ($1::uuid, $2::uuid, $3, $4, $5, moment($6), moment($7), moment($8), $9, $10::jsonb) \
                   ON CONFLICT (approval_id) DO UPDATE SET status = excluded.status, score = excluded.score, \
                   due_at = excluded.due_at, responded_at = excluded.responded_at, revision = excluded.revision, body = excluded.body \
                   WHERE approvals.revision < excluded.revision";
        link.run(sql, &approval_columns(approval)?).await?;
    }
    Ok(())
}

async fn put_thing(link: &mut Link<'_>, thing: &Thing, expected: Option<u64>) -> Result<(), RecordError> {
    let mut args: Vec<Arg> =
        vec![thing.kind.word().into(), thing.id.as_str().into(), thing.revision.into(), json(&thing.body)?];
    match expected {
        None => {
            let sql = "INSERT INTO things (kind, thing_id, revision, body) VALUES ($1, $2, $3, $4::jsonb)";
            link.run(sql, &args).await.map(drop)
        }
        Some(expected) => {
            args.push(expected.into());
            let sql = "UPDATE things SET revision = $3, body = $4::jsonb \
                       WHERE kind = $1 AND thing_id = $2 AND revision = $5";
            met(link.run(sql, &args).await?, || format!("{} {}", thing.kind.word(), thing.id))
        }
    }
}
