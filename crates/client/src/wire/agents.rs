//! Wire types of agents.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::Time;

/// A registered agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Agent {
    /// Unique id.
    pub agent_id: String,
    /// Display name.
    pub name: String,
    /// User on whose behalf the agent acts; null for an agent without sponsor.
    pub sponsor_id: Option<String>,
    /// Model that the agent runs on.
    pub model: Option<String>,
    /// Version of the agent.
    pub version: Option<String>,
    /// Capabilities by which tasks select agents.
    pub capabilities: Vec<String>,
    /// Maximum number of tasks at the same time.
    pub max_tasks: u32,
    /// Number of tasks that the agent is applying.
    pub active_tasks: u64,
    /// Number of tasks that wait for the agent.
    pub queued_tasks: u64,
    /// `active`, `draining` or `offline`.
    pub status: String,
    /// Time of the last heartbeat.
    pub last_heartbeat: Time,
    /// The agent's own settings; the server does not interpret them.
    pub config: BTreeMap<String, Value>,
}

/// Registers an agent, or updates one. In an update, absent fields stay unchanged.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AgentRequest {
    /// Unique id. Required to register an agent; cannot be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<String>,
    /// Sponsor of a new agent; the caller by default. Only administrators may name another user. Cannot be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sponsor_id: Option<String>,
    /// Display name; the id by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 256)]
    pub name: Option<String>,
    /// Model that the agent runs on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 256)]
    pub model: Option<String>,
    /// Version of the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 256)]
    pub version: Option<String>,
    /// Capabilities by which tasks select agents; at most 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_items = 100)]
    pub capabilities: Option<Vec<String>>,
    /// Maximum number of tasks at the same time, from 1 to 1,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1_000)]
    pub max_tasks: Option<u32>,
    /// Whether the agent gets no new tasks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draining: Option<bool>,
    /// The agent's own settings; the server does not interpret them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<BTreeMap<String, Value>>,
}
