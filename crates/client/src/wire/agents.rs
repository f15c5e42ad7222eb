//! Agents on the wire.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Time;

/// An agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Agent {
    /// Its id.
    pub agent_id: String,
    /// A name for people.
    pub name: String,
    /// Who answers for it.
    pub sponsor_id: Option<String>,
    /// The model behind it.
    pub model: Option<String>,
    /// Its version.
    pub version: Option<String>,
    /// What it can do.
    pub capabilities: Vec<String>,
    /// How many tasks at once.
    pub max_tasks: u32,
    /// Tasks it is doing.
    pub active_tasks: u64,
    /// Tasks that wait for it.
    pub queued_tasks: u64,
    /// `active`, `draining` or `offline`.
    pub status: String,
    /// When it was last heard of.
    pub last_heartbeat: Time,
    /// Settings of its own.
    pub config: BTreeMap<String, Value>,
}

/// An agent to be registered, or what to change of one.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct AgentRequest {
    /// Its id; only when it is registered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<String>,
    /// Who answers for it; the caller, unless an administrator says otherwise. Only when it is registered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sponsor_id: Option<String>,
    /// A name for people; the id, unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 256))]
    pub name: Option<String>,
    /// The model behind it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_length = 256))]
    pub model: Option<String>,
    /// Its version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_length = 256))]
    pub version: Option<String>,
    /// What it can do: at most 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_items = 100))]
    pub capabilities: Option<Vec<String>>,
    /// How many tasks at once: between 1 and 1,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1_000))]
    pub max_tasks: Option<u32>,
    /// Whether it takes no new tasks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draining: Option<bool>,
    /// Settings of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<BTreeMap<String, Value>>,
}
