//! Wire types of reviews: risk, preview, approvals required, overrides.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{LockMode, Time};

/// The risk of a task, with its factors.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Risk {
    /// Score from 0 to 100.
    pub score: u8,
    /// Level that the score belongs to.
    pub level: RiskLevel,
    /// Factors of the score.
    pub factors: Vec<RiskFactor>,
    /// Whether the task can be approved automatically.
    pub auto_approvable: bool,
    /// Time of the assessment.
    pub assessed_at: Time,
    /// Scoring method.
    pub assessed_by: String,
}

/// The level of a risk score.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[expect(missing_docs, reason = "the names say it")]
pub enum RiskLevel {
    Low,
    Medium,
    High,
    Critical,
}

/// A factor of the risk score.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RiskFactor {
    /// Name, such as `resource_criticality`.
    pub name: String,
    /// From 0 to 100.
    pub value: f64,
    /// Share of the score.
    pub weight: f64,
    /// Value times weight: what it adds to the score.
    pub contribution: f64,
    /// An explanation of the value.
    pub why: String,
}

/// What applying a task would change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Preview {
    /// Whether there is a preview.
    pub status: PreviewStatus,
    /// The changes.
    pub changes: Vec<PreviewChange>,
    /// Warnings for the reviewers.
    pub warnings: Vec<String>,
    /// What would fail.
    pub errors: Vec<String>,
    /// Identifies the changes. A different fingerprint means that applying the task would change something else.
    #[schema(pattern = "^[0-9a-f]{64}$")]
    pub fingerprint: Option<String>,
    /// The author declared the changes; the service could not verify them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unverifiable: bool,
    /// The changes were estimated without being executed. They count as the highest magnitude of risk.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub estimated: bool,
}

/// Whether there is a preview.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PreviewStatus {
    /// The executor offers no preview.
    None,
    /// A worker has to create it.
    Pending,
    /// It is complete.
    Ready,
    /// Creating it failed.
    Failed,
}

/// One item that would change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PreviewChange {
    /// Kind of the change.
    pub kind: ChangeKind,
    /// The item, such as a path or a table.
    pub what: String,
    /// A hash of the present content, if there is any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
    /// A hash of the new content, or the number of items, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// For people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diff: Option<String>,
}

/// Kind of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names say it")]
pub enum ChangeKind {
    Create,
    Update,
    Delete,
}

/// A preview that an agent supplies for its own task.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PreviewRequest {
    /// Changes; at most 1,000.
    #[serde(default)]
    #[schema(max_items = 1_000)]
    pub changes: Vec<PreviewChange>,
    /// Warnings for the reviewers.
    #[serde(default)]
    #[schema(max_items = 100)]
    pub warnings: Vec<String>,
    /// Errors that applying the task would cause.
    #[serde(default)]
    #[schema(max_items = 100)]
    pub errors: Vec<String>,
}

/// A lock that applying a task needs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LockPreview {
    /// Name of the lock.
    pub lock: String,
    /// Required mode.
    pub mode: LockMode,
    /// Current holders.
    pub holders: Vec<String>,
    /// Number of waiters.
    pub queue_length: usize,
    /// Estimated wait in seconds.
    pub expected_wait_seconds: f64,
    /// Whether the lock store was unavailable, so that the state is unknown.
    pub unavailable: bool,
}

/// A policy that was considered for a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ConsideredPolicy {
    /// The name of the policy.
    pub policy: String,
    /// Whether it applies.
    pub applies: bool,
    /// Why it applies, or why not.
    pub why: String,
}

/// The progress of a requirement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Requirement {
    /// The name of the policy.
    pub policy: String,
    /// Whether it is satisfied.
    pub status: RequirementStatus,
    /// How many more approvals are needed at least.
    pub needed: u32,
    /// Users whose approvals count.
    pub approved_by: Vec<String>,
    /// What is missing, or why it is satisfied.
    pub why: String,
}

/// Whether a requirement is satisfied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum RequirementStatus {
    /// The policy does not apply.
    NotApplicable,
    /// The required approvals are given.
    Satisfied,
    /// Approvals are missing.
    Unsatisfied,
    /// Two administrators overrode the policy.
    Overridden,
}

/// An override that waits for confirmation by a second administrator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PendingOverride {
    /// Administrator who requested it.
    pub by: String,
    /// Reason.
    pub reason: String,
    /// Incident ticket.
    pub incident_ticket: String,
    /// Time of the request. It must be confirmed within an hour.
    pub at: Time,
}

/// Why a review was restarted. Earlier decisions do not count.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Reopened {
    /// Reason: the preview changed after approval (`STALE_PREVIEW: …`), the approval expired (`EXPIRED: …`), or the
    /// task was changed.
    pub reason: String,
    /// Time of the restart.
    pub at: Time,
}
