//! Conversions of agents and their inbox messages.

use ade_app::agents::AgentDetails;
use ade_client::wire;
use ade_domain::agent::AgentStatus;
use ade_domain::capability::{CapabilityGrant, GrantScope};
use ade_store::database::InboxMessage;

use super::{Convert, convert_enums, convert_structs};

convert_enums! {
    GrantScope = wire::GrantScope { Sponsor, Accepted }
}

convert_structs! {
    CapabilityGrant => wire::CapabilityGrant { capability, granted_by, scope, granted_at };
    InboxMessage => wire::InboxMessage { message_id, kind, at, data } without { agent_id };
}

pub(crate) fn agent(known: &AgentDetails) -> wire::Agent {
    let AgentDetails { sponsor_id, parent_agent_id, rights, view } = known;
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
        status: match view.status {
            AgentStatus::Active => "active",
            AgentStatus::Draining => "draining",
            AgentStatus::Offline => "offline",
        }
        .to_owned(),
        last_heartbeat: view.last_heartbeat.convert(),
        // Only valid JSON is ever stored.
        config: serde_json::from_str(&view.profile.config).unwrap_or_default(),
    }
}
