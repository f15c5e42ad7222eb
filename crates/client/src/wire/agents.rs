//! Wire types of agents.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::{TaskState, Time, nullable};

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
    /// Agent that instructs this one; the only parent that lineages may name.
    #[serde(default)]
    pub parent_agent_id: Option<String>,
    /// Capabilities by which tasks select agents.
    pub capabilities: Vec<String>,
    /// Who granted each capability, and for whose tasks it counts.
    #[serde(default)]
    pub grants: Vec<CapabilityGrant>,
    /// Whose tasks the agent accepts besides those of its sponsor and the sponsor's team: `user:ID`, `role:NAME` or
    /// `team:NAME`.
    #[serde(default)]
    pub accepts: Vec<String>,
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
    /// Incremented with every change of the registration; null for an agent that is known by its name only. Send it back as
    /// `If-Match` to change the agent only if nobody else did meanwhile.
    #[serde(default)]
    pub revision: Option<u64>,
}

/// How an agent is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AgentHealth {
    /// The agent.
    pub agent: Agent,
    /// Number of locks that it holds.
    pub held_locks: u64,
    /// How the last tasks that it proposed or applied ended, newest first; at most 20, of those that the caller may see.
    pub outcomes: Vec<AgentOutcome>,
}

/// How a task of an agent ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AgentOutcome {
    /// The task.
    pub task_id: String,
    /// Its type.
    #[serde(rename = "type")]
    pub task_type: String,
    /// Its final state.
    pub state: TaskState,
    /// When it ended.
    pub at: Time,
}

/// A capability that somebody granted to an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CapabilityGrant {
    /// The capability.
    pub capability: String,
    /// User who granted it; null for the bootstrap token.
    pub granted_by: Option<String>,
    /// For whose tasks it counts.
    pub scope: GrantScope,
    /// Time of the grant.
    pub granted_at: Time,
}

/// For whose tasks a capability counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum GrantScope {
    /// Tasks of the sponsor and of the sponsor's team.
    Sponsor,
    /// These, and tasks of everybody whom the agent accepts (granted by administrators).
    Accepted,
}

/// Grants a capability to an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GrantRequest {
    /// The capability.
    #[schema(min_length = 1, max_length = 256)]
    pub capability: String,
    /// For whose tasks it counts; by default the widest scope that you can grant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<GrantScope>,
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
    /// Agent that instructs this one: one that you sponsor, or any if you are an administrator; null for none.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "nullable")]
    #[schema(value_type = Option<String>)]
    pub parent_agent_id: Option<Option<String>>,
    /// Capabilities by which tasks select agents; at most 100. The agent keeps the grants of those that it has; you grant the
    /// others: as sponsor for your tasks and those of your team, as administrator for everybody whom the agent accepts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_items = 100)]
    pub capabilities: Option<Vec<String>>,
    /// The same with scopes, instead of `capabilities`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_items = 100)]
    pub grants: Option<Vec<GrantRequest>>,
    /// Whose tasks the agent accepts: `user:ID`, `role:NAME` or `team:NAME`; at most 100. Only administrators add entries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_items = 100)]
    pub accepts: Option<Vec<String>>,
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
