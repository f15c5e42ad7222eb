//! Agents as they were registered, and what they were told: their inboxes.
//!
//! Whether an agent is alive is not known here but in coordination; `seen_at` says only when it was last written down. An inbox
//! keeps the last messages, never more than [`MOST_MESSAGES`].

use ade_domain::Moment;
use ade_domain::people::UserId;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::sql::{Arg, json};
use super::together::Statement;
use super::{Database, DatabaseError};

/// Messages that are kept for one agent.
pub const MOST_MESSAGES: u32 = 1_000;

/// An agent as it is stored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StoredAgent {
    /// What it is known by.
    pub agent_id: String,
    /// Who answers for it; nobody for agents of the bootstrap token.
    pub sponsor_id: Option<UserId>,
    /// A name for people.
    pub name: String,
    /// The model behind it.
    pub model: Option<String>,
    /// Its version.
    pub version: Option<String>,
    /// What it can do.
    pub capabilities: Vec<String>,
    /// How many tasks at once, if that was said.
    pub max_tasks: Option<u32>,
    /// Whether it was told to take nothing new.
    #[serde(default)]
    pub draining: bool,
    /// Settings of its own.
    pub config: Map<String, Value>,
    /// Whether it is known only because somebody used its name.
    pub by_name: bool,
    /// When it was last seen, as far as that was written down.
    pub seen_at: Moment,
    /// Grows with every change.
    pub revision: u64,
}

/// Something that an agent was told.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InboxMessage {
    /// What it is known by; later ones have greater ids.
    pub message_id: String,
    /// Who was told.
    pub agent_id: String,
    /// What about, as `lock:granted`.
    pub kind: String,
    /// When.
    pub at: Moment,
    /// What.
    pub data: Value,
}

pub(super) fn put_agent(agent: &StoredAgent, expected: Option<u64>) -> Result<Statement, DatabaseError> {
    let mut args: Vec<Arg> = vec![
        agent.agent_id.as_str().into(),
        agent.sponsor_id.as_ref().map(ToString::to_string).into(),
        agent.revision.into(),
        u64::from(agent.by_name).into(),
        agent.seen_at.into(),
        json(agent)?,
    ];
    Ok(match expected {
        None => {
            let sql = "INSERT INTO agents (agent_id, sponsor_id, revision, auto_registered, last_seen, body) \
                       VALUES ($1, $2, $3, $4, moment($5), $6::jsonb)";
            Statement::new(sql, args)
        }
        Some(expected) => {
            args.push(expected.into());
            let sql = "UPDATE agents SET sponsor_id = $2, revision = $3, auto_registered = $4, last_seen = moment($5), \
                       body = $6::jsonb WHERE agent_id = $1 AND revision = $7";
            Statement::new(sql, args).meets(format!("agent {}", agent.agent_id))
        }
    })
}

pub(super) fn delete_agent(agent_id: &str, expected: u64) -> [Statement; 2] {
    let args = [agent_id.into(), expected.into()];
    [
        Statement::new("DELETE FROM agents WHERE agent_id = $1 AND revision = $2", args)
            .meets(format!("agent {agent_id}")),
        Statement::new("DELETE FROM inbox WHERE agent_id = $1", [agent_id.into()]),
    ]
}

pub(super) fn put_message(message: &InboxMessage) -> Result<[Statement; 2], DatabaseError> {
    let args = [
        message.message_id.as_str().into(),
        message.agent_id.as_str().into(),
        message.at.into(),
        json(message)?,
    ];
    let sql = "INSERT INTO inbox (message_id, agent_id, created_at, body) \
               VALUES ($1::uuid, $2, moment($3), $4::jsonb)";
    let room = format!(
        "DELETE FROM inbox WHERE agent_id = $1 AND message_id <= \
         (SELECT message_id FROM inbox WHERE agent_id = $1 ORDER BY message_id DESC LIMIT 1 OFFSET {MOST_MESSAGES})"
    );
    Ok([Statement::new(sql, args), Statement::new(room, [message.agent_id.as_str().into()])])
}

impl Database {
    /// An agent.
    pub async fn agent(&self, agent_id: &str) -> Result<Option<StoredAgent>, DatabaseError> {
        // Locks may be held by such a name, but PostgreSQL cannot store it, and so it is in neither record.
        if agent_id.contains('\0') {
            return Ok(None);
        }
        let args = [agent_id.into()];
        self.read(async |link| {
            let rows = link.rows("SELECT body::text FROM agents WHERE agent_id = $1", &args).await?;
            rows.first().map(|row| row.json(0)).transpose()
        })
        .await
    }

    /// Agents by id, from the first one after `after`.
    pub async fn agents(&self, after: Option<&str>, limit: u32) -> Result<Vec<StoredAgent>, DatabaseError> {
        let args = [after.unwrap_or_default().into()];
        let sql =
            format!("SELECT body::text FROM agents WHERE agent_id > $1 ORDER BY agent_id LIMIT {limit}");
        self.read(async |link| link.rows(&sql, &args).await?.iter().map(|row| row.json(0)).collect()).await
    }

    /// How many agents somebody answers for.
    pub async fn agents_of(&self, sponsor: &UserId) -> Result<u64, DatabaseError> {
        let args = [sponsor.as_str().into()];
        self.read(async |link| {
            let sql = "SELECT count(*)::bigint FROM agents WHERE sponsor_id = $1";
            link.rows(sql, &args).await?.first().map_or(Ok(0), |row| row.number(0))
        })
        .await
    }

    /// Agents that are known by their name only and were last seen before `before`, the longest unseen first.
    pub async fn idle_agents(&self, before: Moment, limit: u32) -> Result<Vec<StoredAgent>, DatabaseError> {
        let sql = format!(
            "SELECT body::text FROM agents WHERE auto_registered = 1 AND last_seen < moment($1) \
             ORDER BY last_seen LIMIT {limit}"
        );
        self.read(async |link| {
            link.rows(&sql, &[before.into()]).await?.iter().map(|row| row.json(0)).collect()
        })
        .await
    }

    /// What an agent was told, in order, from the first message after `after`.
    pub async fn inbox(
        &self,
        agent_id: &str,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<InboxMessage>, DatabaseError> {
        let mut args: Vec<Arg> = vec![agent_id.into()];
        let mut sql = "SELECT body::text FROM inbox WHERE agent_id = $1".to_owned();
        if let Some(after) = after {
            sql.push_str(" AND message_id > $2::uuid");
            args.push(after.into());
        }
        sql.push_str(&format!(" ORDER BY message_id LIMIT {limit}"));
        self.read(async |link| link.rows(&sql, &args).await?.iter().map(|row| row.json(0)).collect()).await
    }
}
