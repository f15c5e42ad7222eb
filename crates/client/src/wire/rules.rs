//! What reviews are decided by, on the wire: policies, delegations, registered resources, settings, flags; and what would
//! happen if.

use ade_domain::approval::assignment::ConsideredPolicy;
use ade_domain::approval::delegation::{Conditions, Kind, Step};
use ade_domain::approval::policy::{AutoApprove, Priority};
use ade_domain::approval::window::Window;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{LockPreview, Risk, TaskRequest, Time, given};

/// What a policy asks for, and when.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PolicyRules {
    /// Types of tasks; none: all.
    pub task_types: Vec<String>,
    /// Patterns of resources; none: all.
    pub resource_patterns: Vec<String>,
    /// How many different people must agree.
    pub min_approvers: u32,
    /// Roles of which each must be represented.
    pub required_roles: Vec<String>,
    /// Exactly these are asked, if there are any.
    pub reviewers: Vec<String>,
    /// It applies from this risk on.
    pub risk_threshold: u8,
    /// When nobody needs to be asked.
    pub auto_approve_if: Option<AutoApprove>,
    /// Who is asked when reviewers without a manager do not answer.
    pub escalation_role: Option<String>,
    /// How many must say no.
    pub reject_threshold: u32,
    /// How urgent its requests are.
    pub priority: Priority,
    /// When it applies; outside it does not match.
    pub window: Option<Window>,
}

/// A policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Policy {
    /// What it is known by.
    pub policy_id: String,
    /// A name for people.
    pub name: String,
    /// Whether it is in force.
    pub active: bool,
    /// What is in force, or else what is drafted.
    #[serde(flatten)]
    pub rules: PolicyRules,
    /// What is drafted, if it is not what is in force.
    pub draft: Option<PolicyRules>,
    /// Grows with every change.
    pub revision: u64,
}

/// A policy to be made, or what changes about one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct PolicyRequest {
    /// A name for people, unlike any other. Needed for a new one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 128))]
    pub name: Option<String>,
    /// Types of tasks; none: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_items = 200))]
    pub task_types: Option<Vec<String>>,
    /// Patterns of resources, such as `database:*`, or `prod-*` for ids alone; none: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_items = 200))]
    pub resource_patterns: Option<Vec<String>>,
    /// How many different people must agree; one, unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 50))]
    pub min_approvers: Option<u32>,
    /// Roles of which each must be represented.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_items = 200))]
    pub required_roles: Option<Vec<String>>,
    /// Exactly these are asked, if there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_items = 200))]
    pub reviewers: Option<Vec<String>>,
    /// It applies from this risk on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 100))]
    pub risk_threshold: Option<u8>,
    /// When nobody needs to be asked; null for never.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<AutoApprove>))]
    pub auto_approve_if: Option<Option<AutoApprove>>,
    /// Who is asked when reviewers without a manager do not answer; null for administrators.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub escalation_role: Option<Option<String>>,
    /// How many must say no; one, unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 50))]
    pub reject_threshold: Option<u32>,
    /// How urgent its requests are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<Priority>,
    /// When it applies; null for always.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Window>))]
    pub window: Option<Option<Window>>,
    /// Whether it is in force at once; otherwise it is drafted. `false` on one that is in force takes it out of force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active: Option<bool>,
}

/// Who stands in for whom.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Delegation {
    /// What it is known by.
    pub delegation_id: String,
    /// Whose requests.
    pub owner_id: String,
    /// Go to whom, or follow whom.
    pub delegate_to: String,
    /// Which of both.
    pub kind: Kind,
    /// For which tasks.
    pub conditions: Conditions,
    /// Whether the delegate's own delegations count as well.
    pub cascade: bool,
    /// Whether it is in force at all.
    pub active: bool,
    /// From when on.
    pub valid_from: Option<Time>,
    /// Until before when.
    pub valid_until: Option<Time>,
    /// Grows with every change.
    pub revision: u64,
}

/// A delegation to be made, or what changes about one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct DelegationRequest {
    /// Whose requests; the caller's, unless an administrator says otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner_id: Option<String>,
    /// Go to whom, or follow whom. Needed for a new one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delegate_to: Option<String>,
    /// Which of both: `delegate`, unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<Kind>,
    /// For which tasks; all, unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conditions: Option<Conditions>,
    /// Whether the delegate's own delegations count as well; they do, unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cascade: Option<bool>,
    /// Whether it is in force; it is, unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active: Option<bool>,
    /// From when on; null for always.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Time>))]
    pub valid_from: Option<Option<Time>>,
    /// Until before when; null for ever.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Time>))]
    pub valid_until: Option<Option<Time>>,
}

/// How critical resources are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RegisteredResource {
    /// Which: a pattern on `type:id`, or on ids alone.
    pub pattern: String,
    /// From 0 to 100.
    pub criticality: u8,
    /// What depends on them, as `type:id`.
    pub dependents: Vec<String>,
    /// Grows with every change.
    pub revision: u64,
}

/// Resources to be registered, or what changes about them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ResourceRequest {
    /// Which. Needed for new ones, and never changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 512))]
    pub pattern: Option<String>,
    /// From 0 to 100. Needed for new ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 100))]
    pub criticality: Option<u8>,
    /// What depends on them, as `type:id`: at most 1,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_items = 1_000))]
    pub dependents: Option<Vec<String>>,
}

/// A setting that is changed while servers run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Setting {
    /// Its name, such as `approval:validity`.
    pub name: String,
    /// What it is.
    pub value: Value,
    /// What it does.
    pub about: String,
    /// Whether nobody changed it.
    pub is_default: bool,
    /// Grows with every change; 0 as long as nobody changed it.
    pub revision: u64,
}

/// What a setting becomes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct SettingRequest {
    /// What it becomes.
    pub value: Value,
}

/// Something that can be switched on and off.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Feature {
    /// Its name.
    pub flag: String,
    /// Whether it is on.
    pub enabled: bool,
    /// What it does.
    pub about: String,
    /// Grows with every change; 0 as long as nobody changed it.
    pub revision: u64,
}

/// Whether something is switched on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct FeatureRequest {
    /// Whether it is on.
    pub enabled: bool,
}

/// What would happen if.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct SimulationRequest {
    /// A task that is there, as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_id: Option<String>,
    /// An imagined one; one of both.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<TaskRequest>,
    /// When; now, unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Time>,
    /// Policies as if they were in force, each in the place of the one with its name.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(max_items = 100))]
    pub policies: Vec<PolicyRequest>,
}

/// What would happen.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Simulation {
    /// How dangerous it is.
    pub risk: Risk,
    /// `reviewing`, `auto_approved` or `no_quorum`.
    pub outcome: String,
    /// Why, for the last two.
    pub why: Option<String>,
    /// Which policies were looked at, and why they count or do not.
    pub policies: Vec<ConsideredPolicy>,
    /// What would have to be satisfied.
    pub requirements: Vec<SimulatedRequirement>,
    /// The least number of approvals that would satisfy all.
    pub required_count: u32,
    /// Who would be asked.
    pub reviewers: Vec<SimulatedReviewer>,
    /// Who or what would be passed by, and why.
    pub passed_by: Vec<String>,
    /// The locks that applying it needs, as they are now.
    pub lock_preview: Vec<LockPreview>,
}

/// What would have to be satisfied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SimulatedRequirement {
    /// Whose.
    pub policy: String,
    /// How many different people.
    pub min_approvers: u32,
    /// Roles of which each must be represented.
    pub required_roles: Vec<String>,
    /// Whose answers would count.
    pub reviewers: Vec<String>,
}

/// Somebody who would be asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SimulatedReviewer {
    /// Who.
    pub reviewer_id: String,
    /// For which policies.
    pub policies: Vec<String>,
    /// In whose place.
    pub stands_for: Vec<String>,
    /// How it came to that.
    pub delegation_chain: Vec<Step>,
    /// Why.
    pub why: Vec<String>,
}

/// Past tasks that would have gone another way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Replay {
    /// Which policy was replayed.
    pub policy_id: String,
    /// The tasks, the newest first.
    pub differs: Vec<ReplayedTask>,
}

/// A past task that would have gone another way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ReplayedTask {
    /// Which.
    pub task_id: String,
    /// What was asked for then, by the rules of today.
    pub was: String,
    /// What would be asked for.
    pub would_be: String,
}
