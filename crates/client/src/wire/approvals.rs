//! Requests to reviewers on the wire, and their answers.

use ade_domain::approval::delegation::Step;
use ade_domain::approval::policy::Priority;
use ade_domain::approval::{ApprovalStatus, DecisionKind};
use ade_domain::task::State;
use serde::{Deserialize, Serialize};

use super::Time;

/// A request to one person to decide about one task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Approval {
    /// What it is known by.
    pub approval_id: String,
    /// About which task.
    pub task_id: String,
    /// What the task is about: the first line of its description, at most 200 characters.
    #[serde(default)]
    pub task_description: String,
    /// Who is asked.
    pub reviewer_id: String,
    /// Its name.
    pub reviewer_name: String,
    /// What became of it.
    pub status: ApprovalStatus,
    /// How urgent it is.
    pub priority: Priority,
    /// Its place in the queue: the highest comes first.
    pub score: u32,
    /// Who is asked in its place.
    pub delegated_to: Option<String>,
    /// How it came to this reviewer.
    pub delegation_chain: Vec<Step>,
    /// With whom the reviewer agrees without being asked.
    pub follows: Option<String>,
    /// When it was made.
    pub created_at: Time,
    /// When somebody else is asked.
    pub due_at: Time,
    /// How often somebody else was asked already.
    pub escalation_level: u8,
    /// When it was answered.
    pub responded_at: Option<Time>,
    /// With what.
    pub response_action: Option<DecisionKind>,
    /// Why.
    pub response_reason: Option<String>,
    /// By whom.
    pub reviewed_by: Option<String>,
    /// For what exactly.
    pub digest: String,
    /// For which policies.
    pub policies: Vec<String>,
    /// Why this reviewer was chosen.
    pub why: Vec<String>,
    /// How far the task has come; told where the task was looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_state: Option<State>,
    /// Grows with every change.
    pub revision: u64,
}

/// An answer to a request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ResponseRequest {
    /// Why; needed to reject and to request changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What was looked at: refused if it is not what is proposed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(pattern = "^[0-9a-fA-F]{64}$"))]
    pub digest: Option<String>,
}

/// A request is handed on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct DelegateRequest {
    /// To whom.
    pub to: String,
}

/// The same answer to many requests: all of them, or none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct BatchRequest {
    /// Which: at most 500.
    #[cfg_attr(feature = "openapi", schema(min_items = 1, max_items = 500))]
    pub approval_ids: Vec<String>,
    /// What to each of them.
    pub action: DecisionKind,
    /// Why; needed to reject and to request changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// How.
    #[serde(default)]
    pub options: BatchOptions,
}

/// How a batch is answered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct BatchOptions {
    /// Past warnings about freshness (admin); never past digest, state or one's own task.
    pub skip_validation: bool,
    /// What is approved goes to the head of the apply queue.
    pub apply_immediately: bool,
}

/// What became of a batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BatchAnswer {
    /// Each request as it is now, in the order in which they were named.
    pub items: Vec<Approval>,
}
