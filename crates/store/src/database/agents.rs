//! Registered agents, and their inboxes.
//!
//! Whether an agent is alive is known to coordination only; `last_seen_at` is written from time to time and lags behind. An inbox keeps a
//! limited number of messages and drops the oldest.

use ade_domain::Moment;
use ade_domain::capability::ClaimRights;
use ade_domain::people::UserId;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::batch::{Statement, TableRow};
use super::sql::{Arg, Row, Select, json, json_text, uuid};
use super::{Database, DatabaseError, Result};

/// Messages per inbox.
pub const MAX_INBOX_MESSAGES: u32 = 1_000;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StoredAgent {
    pub agent_id: String,
    /// The user who is responsible for the agent; `None` for agents of the bootstrap token.
    pub sponsor_id: Option<UserId>,
    /// A display name.
    pub name: String,
    pub model: Option<String>,
    pub version: Option<String>,
    /// The agent that instructs it, as lineages may name it.
    pub parent_agent_id: Option<String>,
    /// The capabilities that were granted to it, and whose tasks it accepts.
    #[serde(flatten)]
    pub rights: ClaimRights,
    /// How many tasks it may work on at once.
    pub max_tasks: Option<u32>,
    /// Whether it takes no new tasks.
    pub draining: bool,
    pub config: Map<String, Value>,
    /// Whether nobody registered it, and it is known only because its name was used.
    pub is_auto_registered: bool,
    pub last_seen_at: Moment,
    /// Grows with every change.
    pub revision: u64,
}

/// The agents that were granted a capability.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CapableAgents {
    pub capability: String,
    pub agents: Vec<CapableAgent>,
    /// Whether these are all.
    pub is_complete: bool,
}

/// An agent that was granted a capability, with what decides about its claims.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CapableAgent {
    pub agent_id: String,
    pub sponsor_id: Option<UserId>,
    pub rights: ClaimRights,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InboxMessage {
    /// Later messages have greater ids.
    pub message_id: String,
    pub agent_id: String,
    /// As `lock:granted`.
    pub kind: String,
    pub at: Moment,
    pub data: Value,
}

pub(super) fn put_agent(agent: &StoredAgent, expected: Option<u64>) -> Result<Statement> {
    let columns = [
        ("agent_id", agent.agent_id.as_str().into()),
        ("sponsor_id", Arg::Text(agent.sponsor_id.as_ref().map(ToString::to_string))),
        ("revision", agent.revision.into()),
        ("auto_registered", agent.is_auto_registered.into()),
        ("last_seen", agent.last_seen_at.into()),
        ("body", json(agent)?),
    ];
    Ok(TableRow::new("agents", columns).put(1, expected, format!("agent {}", agent.agent_id)))
}

pub(super) fn delete_agent(agent_id: &str, expected: u64) -> [Statement; 2] {
    let args = [agent_id.into(), expected.into()];
    [
        Statement::new("DELETE FROM agents WHERE agent_id = $1 AND revision = $2", args)
            .or_conflict(format!("agent {agent_id}")),
        Statement::new("DELETE FROM inbox WHERE agent_id = $1", [agent_id.into()]),
    ]
}

pub(super) fn insert_message(message: &InboxMessage) -> Result<[Statement; 2]> {
    let columns = [
        ("message_id", uuid(&message.message_id)),
        ("agent_id", message.agent_id.as_str().into()),
        ("created_at", message.at.into()),
        ("body", json(message)?),
    ];
    let trim = format!(
        "DELETE FROM inbox WHERE agent_id = $1 AND message_id <= (SELECT message_id FROM inbox \
         WHERE agent_id = $1 ORDER BY message_id DESC LIMIT 1 OFFSET {MAX_INBOX_MESSAGES})"
    );
    let trim = Statement::new(trim, [message.agent_id.as_str().into()]);
    Ok([TableRow::new("inbox", columns).insert(""), trim])
}

fn capable_agent(row: &Row) -> Result<CapableAgent> {
    fn list<T: DeserializeOwned>(row: &Row, column: usize) -> Result<Vec<T>> {
        let Some(text) = row.get::<Option<String>>(column)? else { return Ok(Vec::new()) };
        serde_json::from_str(&text).map_err(|error| DatabaseError::Corrupt(error.to_string()))
    }
    Ok(CapableAgent {
        agent_id: row.get(0)?,
        sponsor_id: row.get::<Option<String>>(1)?.map(UserId::new),
        rights: ClaimRights { grants: list(row, 2)?, accepts: list(row, 3)? },
    })
}

impl Database {
    pub async fn agent(&self, agent_id: &str) -> Result<Option<StoredAgent>> {
        // PostgreSQL cannot store a name with NUL, although such an agent may hold locks: it is never in the database.
        if agent_id.contains('\0') {
            return Ok(None);
        }
        let sql = "SELECT body FROM agents WHERE agent_id = $1";
        self.fetch_first(sql, &[agent_id.into()], Row::body).await
    }

    /// The sponsor of an agent; `None` also if there is no such agent. Reads no document, which may be corrupt.
    pub async fn agent_sponsor(&self, agent_id: &str) -> Result<Option<UserId>> {
        if agent_id.contains('\0') {
            return Ok(None);
        }
        let sql = "SELECT sponsor_id FROM agents WHERE agent_id = $1";
        let sponsor = |row: &Row| Ok(row.get::<Option<String>>(0)?.map(UserId::new));
        Ok(self.fetch_first(sql, &[agent_id.into()], sponsor).await?.flatten())
    }

    /// Agents by id, after the id `after`.
    pub async fn agents(&self, after: Option<&str>, limit: u32) -> Result<Vec<StoredAgent>> {
        let sql = "SELECT body FROM agents WHERE agent_id > $1 ORDER BY agent_id";
        self.fetch_page(sql, &[after.unwrap_or_default().into()], limit, Row::body).await
    }

    /// The agents that were granted a capability, by id; at most `limit` of them.
    pub async fn agents_with_capability(&self, capability: &str, limit: u32) -> Result<CapableAgents> {
        // Finds the name as JSON text. Other grants may contain it as well, and SQLite ignores case: filtered below.
        let name = json_text(&capability)?;
        let mut pattern = String::from("%");
        for char in name.chars() {
            if matches!(char, '!' | '%' | '_') {
                pattern.push('!');
            }
            pattern.push(char);
        }
        pattern.push('%');
        let sql = "SELECT agent_id, sponsor_id, body::jsonb->>'grants', body::jsonb->>'accepts' FROM agents \
                   WHERE body::jsonb->>'grants' LIKE $1 ESCAPE '!' ORDER BY agent_id";
        let sql = format!("{sql} LIMIT {}", limit.saturating_add(1));
        let rows = self.scan(&sql, &[pattern.into()]).await?;
        let mut agents = rows.iter().map(capable_agent).collect::<Result<Vec<_>>>()?;
        let is_complete = agents.len() <= limit as usize;
        agents.truncate(limit as usize);
        agents.retain(|agent| agent.rights.grants.iter().any(|grant| grant.capability == capability));
        Ok(CapableAgents { capability: capability.to_owned(), agents, is_complete })
    }

    /// How many agents a user sponsors.
    pub async fn count_sponsored_agents(&self, sponsor: &UserId) -> Result<u64> {
        let sql = "SELECT count(*)::bigint FROM agents WHERE sponsor_id = $1";
        self.fetch_number(sql, &[sponsor.as_str().into()]).await
    }

    /// Agents that nobody registered and that were last seen before `before`, the longest idle first.
    pub async fn idle_agents(&self, before: Moment, limit: u32) -> Result<Vec<StoredAgent>> {
        let sql = "SELECT body FROM agents WHERE auto_registered = 1 AND last_seen < $1 \
                   ORDER BY last_seen";
        self.fetch_page(sql, &[before.into()], limit, Row::body).await
    }

    /// The messages of an agent, the oldest first, after the message id `after`.
    pub async fn inbox(&self, agent_id: &str, after: Option<&str>, limit: u32) -> Result<Vec<InboxMessage>> {
        let mut select = Select::new("SELECT body FROM inbox");
        select.and("agent_id = ?", [agent_id.into()]);
        select.and_if("message_id > ?", after.map(uuid));
        select.sql.push_str(" ORDER BY message_id");
        self.fetch_page(&select.sql, &select.args, limit, Row::body).await
    }
}
