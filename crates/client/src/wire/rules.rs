//! Wire types of policies, delegations, registered resources, settings, feature flags and simulations.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::{ConsideredPolicy, DelegationStep, LockPreview, Risk, ScopePart, TaskRequest, Time, nullable};

/// The rules of a policy: which tasks it applies to, and which approvals it requires.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PolicyRules {
    /// Task types that it applies to; empty for all.
    pub task_types: Vec<String>,
    /// Executors that it applies to; empty for all.
    pub executors: Vec<String>,
    /// Target patterns that it applies to; empty for all.
    pub targets: Vec<String>,
    /// Resource patterns that it applies to; empty for all.
    pub resource_patterns: Vec<String>,
    /// Number of different users who must approve.
    pub min_approvers: u32,
    /// Roles of which each must be represented among the approvers.
    pub required_roles: Vec<String>,
    /// The only reviewers who are asked; empty to choose them by role.
    pub reviewers: Vec<String>,
    /// Risk score from which the policy applies.
    pub risk_threshold: u8,
    /// Condition under which a task is approved automatically.
    pub auto_approve_if: Option<AutoApprove>,
    /// Role to which requests of reviewers without a manager escalate; null for administrators.
    pub escalation_role: Option<String>,
    /// Number of rejections that reject the task.
    pub reject_threshold: u32,
    /// Priority of its approval requests.
    pub priority: Priority,
    /// Time window in which the policy applies; null for always.
    pub window: Option<TimeWindow>,
}

/// Conditions for automatic approval. All given conditions must hold; without any, nothing is approved automatically.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AutoApprove {
    /// The risk score is lower.
    pub risk_below: Option<u8>,
    /// The author has one of these roles.
    pub author_has_role: Vec<String>,
    /// Every resource matches one of these patterns.
    pub resources_in_scope: Vec<String>,
    /// Also tasks that an agent wrote or changed.
    pub agents: bool,
}

/// The priority of an approval request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[expect(missing_docs, reason = "the names say it")]
pub enum Priority {
    Low,
    Normal,
    High,
    Urgent,
}

/// A weekly time window.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TimeWindow {
    /// Empty for every day.
    #[serde(default)]
    pub weekdays: Vec<Weekday>,
    /// The hours `[from, until)`. A window over midnight belongs to the day on which it starts.
    #[serde(default = "all_day")]
    #[schema(value_type = Vec<u8>, min_items = 2, max_items = 2)]
    pub hours: (u8, u8),
    /// An IANA time zone, such as `Europe/Berlin`.
    #[serde(default = "utc")]
    pub time_zone: String,
}

const fn all_day() -> (u8, u8) {
    (0, 24)
}

fn utc() -> String {
    "UTC".to_owned()
}

/// A day of the week.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "the names say it")]
pub enum Weekday {
    Mon,
    Tue,
    Wed,
    Thu,
    Fri,
    Sat,
    Sun,
}

/// A policy with its rules in force and its draft.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Policy {
    /// Unique id.
    pub policy_id: String,
    /// Unique display name.
    pub name: String,
    /// Whether it is in force.
    pub active: bool,
    /// The rules in force, or the draft if the policy is not active.
    #[serde(flatten)]
    pub rules: PolicyRules,
    /// The draft, if it differs from the rules in force.
    pub draft: Option<PolicyRules>,
    /// Why it approves nothing automatically although it has conditions for that; null if it can, or has none.
    pub never_automatic: Option<String>,
    /// Incremented with every change.
    pub revision: u64,
}

/// Creates a policy, or updates its draft. In an update, absent fields stay unchanged.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicyRequest {
    /// Unique display name. Required to create a policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 128)]
    pub name: Option<String>,
    /// Task types that it applies to; empty for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_items = 200)]
    pub task_types: Option<Vec<String>>,
    /// Patterns of executors; empty for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_items = 200)]
    pub executors: Option<Vec<String>>,
    /// Patterns of targets such as `files:handbook/*`; empty for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_items = 200)]
    pub targets: Option<Vec<String>>,
    /// Resource patterns such as `database:*`, or `prod-*` for ids of any type; empty for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_items = 200)]
    pub resource_patterns: Option<Vec<String>>,
    /// Number of different users who must approve; 1 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 50)]
    pub min_approvers: Option<u32>,
    /// Roles of which each must be represented among the approvers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_items = 200)]
    pub required_roles: Option<Vec<String>>,
    /// The only reviewers who are asked; empty to choose them by role.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_items = 200)]
    pub reviewers: Option<Vec<String>>,
    /// Risk score from which the policy applies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 100)]
    pub risk_threshold: Option<u8>,
    /// Condition under which a task is approved automatically; null for never.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "nullable")]
    #[schema(value_type = Option<AutoApprove>)]
    pub auto_approve_if: Option<Option<AutoApprove>>,
    /// Role to which requests of reviewers without a manager escalate; null for administrators.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "nullable")]
    #[schema(value_type = Option<String>)]
    pub escalation_role: Option<Option<String>>,
    /// Number of rejections that reject the task; 1 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 50)]
    pub reject_threshold: Option<u32>,
    /// Priority of its approval requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<Priority>,
    /// Time window in which the policy applies; null for always.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "nullable")]
    #[schema(value_type = Option<TimeWindow>)]
    pub window: Option<Option<TimeWindow>>,
    /// True puts the policy in force at once; otherwise the change is a draft. False takes an active policy out of
    /// force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active: Option<bool>,
}

/// What a delegation does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DelegationKind {
    /// The delegate is asked instead of the owner.
    Delegate,
    /// Both are asked, and the owner approves automatically when the other approves.
    Follow,
}

/// The tasks that a delegation applies to. All given conditions must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DelegationConditions {
    /// Patterns of task types; empty for all.
    pub task_types: Vec<String>,
    /// Only tasks with a higher risk score.
    #[schema(minimum = 0, maximum = 100)]
    pub risk_above: Option<u8>,
    /// Patterns of resources, of which one must match; empty for all.
    pub resource_patterns: Vec<String>,
}

/// A delegation: a delegate gets the owner's approval requests, or the owner follows the delegate's decisions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Delegation {
    /// Unique id.
    pub delegation_id: String,
    /// User whose approval requests are delegated.
    pub owner_id: String,
    /// The delegate, or the user whose decisions the owner follows.
    pub delegate_to: String,
    /// `delegate` or `follow`.
    pub kind: DelegationKind,
    /// Tasks that it applies to.
    pub conditions: DelegationConditions,
    /// Whether the delegate's own delegations apply as well.
    pub cascade: bool,
    /// Whether it is in force.
    pub active: bool,
    /// Time of creation.
    pub created_at: Time,
    /// Start of validity; null for no start.
    pub valid_from: Option<Time>,
    /// End of validity (exclusive); null for no end.
    pub valid_until: Option<Time>,
    /// Incremented with every change.
    pub revision: u64,
}

/// Creates a delegation, or updates one. In an update, absent fields stay unchanged.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DelegationRequest {
    /// User whose approval requests are delegated; the caller by default. Only administrators may name another user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner_id: Option<String>,
    /// The delegate, or the user whose decisions the owner follows. Required to create a delegation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delegate_to: Option<String>,
    /// `delegate` (default) or `follow`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<DelegationKind>,
    /// Tasks that it applies to; all by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conditions: Option<DelegationConditions>,
    /// Whether the delegate's own delegations apply as well; true by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cascade: Option<bool>,
    /// Whether it is in force; true by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active: Option<bool>,
    /// Start of validity; null for no start.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "nullable")]
    #[schema(value_type = Option<Time>)]
    pub valid_from: Option<Option<Time>>,
    /// End of validity (exclusive); null for no end.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "nullable")]
    #[schema(value_type = Option<Time>)]
    pub valid_until: Option<Option<Time>>,
}

/// Resources in the registry, with their criticality for the risk score.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RegisteredResource {
    /// Pattern of `type:id`, or of ids of any type.
    pub pattern: String,
    /// Criticality from 0 to 100.
    pub criticality: u8,
    /// Resources that depend on them, as `type:id`.
    pub dependents: Vec<String>,
    /// Incremented with every change.
    pub revision: u64,
}

/// Registers resources, or updates their registration. In an update, absent fields stay unchanged.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResourceRequest {
    /// Pattern of `type:id`, or of ids of any type. Required to register; cannot be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 512)]
    pub pattern: Option<String>,
    /// Criticality from 0 to 100. Required to register.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 100)]
    pub criticality: Option<u8>,
    /// Resources that depend on them, as `type:id`; at most 1,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_items = 1_000)]
    pub dependents: Option<Vec<String>>,
}

/// A setting that is shared by all servers and can be changed at runtime.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Setting {
    /// Unique name, such as `approval:validity`.
    pub name: String,
    /// Current value.
    pub value: Value,
    /// What it does.
    pub description: String,
    /// Whether it has its default value.
    pub is_default: bool,
    /// Whether it is changed in the configuration of each server only.
    #[serde(default)]
    pub read_only: bool,
    /// Incremented with every change; 0 for the default value.
    pub revision: u64,
}

/// Changes a setting.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SettingRequest {
    /// New value.
    pub value: Value,
}

/// A feature flag.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Feature {
    /// Unique name.
    pub flag: String,
    /// Whether the feature is enabled.
    pub enabled: bool,
    /// What it does.
    pub description: String,
    /// Incremented with every change; 0 for the default value.
    pub revision: u64,
}

/// Enables or disables a feature.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FeatureRequest {
    /// Whether the feature is enabled.
    pub enabled: bool,
}

/// Simulates the submission of a task. Either `task_id` or `task` is required.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SimulationRequest {
    /// An existing task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_id: Option<String>,
    /// A task that does not exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<TaskRequest>,
    /// Time of the submission; now by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Time>,
    /// Policies to assume in force, at most 20. Each replaces the active policy with the same name.
    #[serde(default)]
    #[schema(max_items = 20)]
    pub policies: Vec<PolicyRequest>,
}

/// The outcome of a simulation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Simulation {
    /// Risk of the task.
    pub risk: Risk,
    /// `reviewing`, `auto_approved` or `no_quorum`.
    pub outcome: String,
    /// Why it would be approved automatically, or why there is no quorum.
    pub why: Option<String>,
    /// Policies that were considered, and why they apply or not.
    pub policies: Vec<ConsideredPolicy>,
    /// Approvals that would be required.
    pub requirements: Vec<SimulatedRequirement>,
    /// Minimum number of approvals that would satisfy all requirements.
    pub required_count: u32,
    /// Reviewers who would be asked.
    pub reviewers: Vec<SimulatedReviewer>,
    /// Candidates who would be skipped, and why.
    pub skipped_reviewers: Vec<String>,
    /// Locks that applying the task needs, with their current state.
    pub lock_preview: Vec<LockPreview>,
    /// What the task could touch.
    pub scope: Vec<ScopePart>,
    /// Why it would not be approved automatically.
    pub not_automatic: Vec<String>,
}

/// A root, connection, template or host that operators allow tasks to work on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExecutorBinding {
    /// Name, such as `files:handbook`, or `files:handbook@eu` for workers with the label `eu`.
    pub name: String,
    /// Resources that every task has that uses it.
    pub resources: Vec<String>,
    /// Criticality of its targets.
    pub criticality: Option<u8>,
    /// Task types that may use it; empty for all.
    pub task_types: Vec<String>,
    /// Who may propose tasks that use it; empty for all.
    pub authors: Vec<String>,
    /// Workers that serve it now.
    pub workers: Vec<String>,
}

/// Approvals that a policy would require.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SimulatedRequirement {
    /// The policy.
    pub policy: String,
    /// Number of different users who must approve.
    pub min_approvers: u32,
    /// Roles of which each must be represented among the approvers.
    pub required_roles: Vec<String>,
    /// Users whose approvals would count.
    pub reviewers: Vec<String>,
}

/// A reviewer who would be asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SimulatedReviewer {
    /// The reviewer.
    pub reviewer_id: String,
    /// Policies that require the approval.
    pub policies: Vec<String>,
    /// Users on whose behalf the reviewer decides.
    pub on_behalf_of: Vec<String>,
    /// Delegations through which the request would reach the reviewer.
    pub delegation_chain: Vec<DelegationStep>,
    /// Why this reviewer would be chosen.
    pub why: Vec<String>,
}

/// Past tasks with a different outcome under the draft of a policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PolicyReplay {
    /// The replayed policy.
    pub policy_id: String,
    /// Number of submitted tasks that were replayed.
    #[serde(default)]
    pub replayed: u64,
    /// The tasks, newest first.
    pub differs: Vec<ReplayedTask>,
}

/// A past task with a different outcome.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReplayedTask {
    /// The task.
    pub task_id: String,
    /// Approvals required without the draft, by the current rules.
    pub before: String,
    /// Approvals required with the draft.
    pub after: String,
}

/// A change of who decides, or by which rules, that waits for a second administrator.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Change {
    /// Id of the change.
    pub change_id: String,
    /// What it does, such as `policy.update`.
    pub action: String,
    /// Kind of the object that it changes.
    pub object_type: String,
    /// Id of the object that it changes.
    pub object_id: String,
    /// Who proposed it; null for the bootstrap token.
    pub proposed_by: Option<String>,
    /// When it was proposed.
    pub proposed_at: Time,
    /// Until when it can be confirmed.
    pub expires_at: Time,
    /// What changes, as the audit log shows it.
    pub details: Map<String, Value>,
}
