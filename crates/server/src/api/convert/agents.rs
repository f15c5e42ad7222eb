//! Conversions of agents and their inbox messages.

use ade_app::agents::{AgentDetails, AgentHealth};
use ade_client::wire;
use ade_domain::agent::AgentStatus;
use ade_domain::capability::{CapabilityGrant, GrantScope};
use ade_store::database::{AgentOutcome, InboxMessage};

use super::{Convert, convert_enums, convert_structs};

convert_enums! {
    GrantScope = wire::GrantScope { Sponsor, Accepted }
}

convert_structs! {
    CapabilityGrant => wire::CapabilityGrant { capability, granted_by, scope, granted_at };
    InboxMessage => wire::InboxMessage { message_id, kind, at, data } without { agent_id };
}

pub(crate) fn agent(known: &AgentDetails) -> wire::Agent {
    let AgentDetails { sponsor_id, parent_agent_id, rights, revision, view } = known;
    wire::Agent {
        agent_id: view.agent_id.clone(),
        name: view.profile.name.clone(),
        sponsor_id: sponsor_id.clone().convert(),
        model: view.profile.model.clone(),
        version: view.profile.version.clone(),
        parent_agent_id: parent_agent_id.clone(),
        capabilities: view.profile.capabilities.clone(),
        grants: rights.grants.clone().convert(),
        accepts: rights.accepts.iter().map(ToString::to_string).collect(),
        max_tasks: view.max_tasks,
        active_tasks: view.active_tasks as u64,
        queued_tasks: view.queued_tasks as u64,
        status: status_name(view.status).to_owned(),
        last_heartbeat: view.last_heartbeat.convert(),
        // Only valid JSON is ever stored.
        config: serde_json::from_str(&view.profile.config).unwrap_or_default(),
        revision: *revision,
    }
}

/// The word for a status.
pub(crate) const fn status_name(status: AgentStatus) -> &'static str {
    match status {
        AgentStatus::Active => "active",
        AgentStatus::Draining => "draining",
        AgentStatus::Offline => "offline",
    }
}

pub(crate) fn agent_health(known: &AgentHealth) -> wire::AgentHealth {
    let outcome = |outcome: &AgentOutcome| wire::AgentOutcome {
        task_id: outcome.task_id.clone(),
        task_type: outcome.task_type.clone(),
        state: outcome.state.convert(),
        at: outcome.at.convert(),
    };
    wire::AgentHealth {
        agent: agent(&known.agent),
        held_locks: known.held_locks as u64,
        outcomes: known.outcomes.iter().map(outcome).collect(),
    }
}
