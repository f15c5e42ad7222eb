//! Tasks on the wire: what is to be done, how dangerous it is, and who must agree.

use std::collections::BTreeMap;

use ade_domain::approval::assignment::ConsideredPolicy;
use ade_domain::approval::quorum::Progress;
use ade_domain::risk::{Factor, Level};
use ade_domain::task::{Config, Lineage, Preview, PreviewChange, Resource, RollbackStrategy, State};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Execution, Mode, Time, given};

/// A task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Task {
    /// What it is known by.
    pub task_id: String,
    /// How far it has come.
    pub state: State,
    /// Grows with every change.
    pub revision: u64,
    /// What an approval is given for: SHA-256 over the canonical form of config.
    pub digest: String,
    /// What is to be done.
    pub config: Config,
    /// What is said about it besides.
    pub metadata: Metadata,
    /// How dangerous it is.
    pub risk: Option<Risk>,
    /// What it would change.
    pub preview: Preview,
    /// The locks that applying it needs, as they were when it was submitted.
    pub lock_preview: Vec<LockPreview>,
    /// What must be satisfied, and how far that has come.
    pub requirements: Vec<Progress>,
    /// The least number of approvals that would satisfy all requirements from the beginning.
    pub required_count: u32,
    /// The archive that has its requests, once they left the record: 30 days after it ended.
    #[serde(default)]
    pub requests_archive: Option<String>,
    /// Which policies were looked at, and why they count or do not.
    pub policies: Vec<ConsideredPolicy>,
    /// Who or what was passed by when reviewers were chosen, and why.
    pub passed_by: Vec<String>,
    /// Why nobody had to be asked, if so.
    pub auto_approved: Option<String>,
    /// An override that waits for a second administrator.
    pub override_asked: Option<OverrideAsked>,
    /// Why its review began anew the last time, if it did.
    #[serde(default)]
    pub reopened: Option<Reopened>,
    /// Whether it goes before all others.
    pub forced: bool,
    /// What the caller can do with it now.
    pub allowed: Vec<String>,
    /// Who tries to carry it out, or tried last since it changed last.
    #[serde(default)]
    pub claimed_by: Option<String>,
    /// How carrying it out stands, once somebody began to.
    pub execution: Option<Execution>,
    /// The task that it was made of.
    pub predecessor: Option<String>,
}

/// What is said about a task besides what is to be done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Metadata {
    /// Who wants it.
    pub author_id: String,
    /// The author's name when it was made.
    pub author_name: String,
    /// For which team.
    pub team: Option<String>,
    /// For which ticket.
    pub ticket_ref: Option<String>,
    /// Words to find it by.
    pub tags: Vec<String>,
    /// Through whom it came.
    pub lineage: Lineage,
    /// When it came into each state for the last time.
    pub since: BTreeMap<String, Time>,
}

/// How dangerous a task is, and why.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Risk {
    /// From 0 to 100.
    pub score: u8,
    /// In a word.
    pub level: Level,
    /// What it is made of.
    pub factors: Vec<Factor>,
    /// Whether nobody needs to be asked.
    pub auto_approvable: bool,
    /// When.
    pub assessed_at: Time,
    /// By which way of scoring.
    pub assessed_by: String,
}

/// A lock that applying a task needs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LockPreview {
    /// Which.
    pub lock: String,
    /// How.
    pub mode: Mode,
    /// Who holds it.
    pub holders: Vec<String>,
    /// How many wait for it.
    pub queue_length: usize,
    /// How long it would take to get it, as far as anybody can tell.
    pub expected_wait_seconds: f64,
    /// Whether nobody could tell: the locks were away.
    pub unavailable: bool,
}

/// An override that waits for a second administrator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct OverrideAsked {
    /// By whom.
    pub by: String,
    /// Why.
    pub reason: String,
    /// For which incident.
    pub incident_ticket: String,
    /// When; a second administrator has an hour.
    pub at: Time,
}

/// Why a review began anew: what was said before does not count.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Reopened {
    /// Why: what would change is not what was approved (`STALE_PREVIEW: …`), the approval grew too old (`EXPIRED: …`), or
    /// somebody changed the task.
    pub why: String,
    /// When.
    pub at: Time,
}

/// What an agent says about what its task would change.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct PreviewRequest {
    /// What would change: at most 1,000.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(max_items = 1_000))]
    pub changes: Vec<PreviewChange>,
    /// What to look at twice.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(max_items = 100))]
    pub warnings: Vec<String>,
    /// What would go wrong.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(max_items = 100))]
    pub errors: Vec<String>,
}

/// A task to be made, or what changes about one: there each field is optional.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct TaskRequest {
    /// What kind of task it is: policies and the history of failures go by it. Needed for a new one.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 256))]
    pub task_type: Option<String>,
    /// Which version of that kind; `1`, unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 256))]
    pub version: Option<String>,
    /// What it is, for people. Needed for a new one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 16_384))]
    pub description: Option<String>,
    /// Who carries it out: `agent` or `noop`; `agent`, unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(pattern = "^(agent|command|files|http|noop|sql)$"))]
    pub executor: Option<String>,
    /// What the executor needs to know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub parameters: Option<Map<String, Value>>,
    /// What it touches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_items = 100))]
    pub resources: Option<Vec<Resource>>,
    /// What happens when it fails; automatic, unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollback_strategy: Option<RollbackStrategy>,
    /// How long carrying it out may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 86_400))]
    pub timeout_seconds: Option<u32>,
    /// 0 to 100; 50, unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 100))]
    pub priority: Option<u8>,
    /// For which team; null for none.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, min_length = 1, max_length = 256))]
    pub team: Option<Option<String>>,
    /// For which ticket; null for none.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, min_length = 1, max_length = 256))]
    pub ticket_ref: Option<Option<String>>,
    /// Words to find it by: at most 50.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_items = 50))]
    pub tags: Option<Vec<String>>,
    /// Through whom it came; every human in it belongs to its authors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lineage: Option<Lineage>,
    /// What it would change, as its agent says; for the executor `agent`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preview: Option<PreviewRequest>,
}

/// Why something is done.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Reason {
    /// Why; it is kept in the audit log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A decision past the policies.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct OverrideRequest {
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// For which incident.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incident_ticket: Option<String>,
}

/// Something to be said about a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct CommentRequest {
    /// What: 1 to 16,384 bytes.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 16_384))]
    pub text: String,
}

/// Something that was said about a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Comment {
    /// What it is known by.
    pub comment_id: String,
    /// About which task.
    pub task_id: String,
    /// By whom.
    pub author_id: String,
    /// What.
    pub text: String,
    /// When.
    pub created_at: Time,
}

/// How long a task took on its way.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TaskStats {
    /// Which.
    pub task_id: String,
    /// Seconds from its submission until it was decided; null if it was not.
    pub decided_after_seconds: Option<f64>,
    /// People who were asked.
    pub asked: usize,
    /// People who answered.
    pub answered: usize,
    /// How often somebody else had to be asked.
    pub escalations: u64,
    /// What was said about it.
    pub comments: usize,
}
