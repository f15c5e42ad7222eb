//! Wire types of background jobs, archives and projections.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Time;

/// A background job and its status.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Job {
    /// Unique name.
    pub name: String,
    /// What the job does.
    pub description: String,
    /// Interval in seconds; a daily job runs at midnight UTC.
    pub interval_seconds: u64,
    /// `never`, `running`, `ok` or `failing`.
    pub status: String,
    /// Time of the next run.
    pub due_at: Option<Time>,
    /// Server that runs it at the moment.
    pub running_by: Option<String>,
    /// Start of the last run.
    pub started_at: Option<Time>,
    /// End of the last run.
    pub ended_at: Option<Time>,
    /// Server of the last run.
    pub by: Option<String>,
    /// Items processed by the last run.
    pub processed: u64,
    /// Number of runs.
    pub runs: u64,
    /// Failures since the last success.
    pub failures: u32,
    /// Error of the last run, if it failed.
    pub error: Option<String>,
}

/// A blob with tasks or approval requests that were moved out of the database.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Archive {
    /// Unique id.
    pub archive_id: String,
    /// `approvals` or `tasks`.
    pub kind: String,
    /// Key of the blob.
    pub key: String,
    /// Number of archived tasks.
    pub items: u64,
    /// Size of the blob in bytes.
    pub bytes: u64,
    /// SHA-256 of the blob; the audit entry of the archive names it too.
    pub digest: String,
    /// Time of creation.
    pub created_at: Time,
    /// Time at which the oldest task in it ended.
    pub from: Time,
    /// Time at which the newest task in it ended.
    pub to: Time,
    /// Time of the last restore.
    pub restored_at: Option<Time>,
}

/// The result of restoring an archive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RestoreResult {
    /// The restored archive.
    pub archive: Archive,
    /// Number of tasks that were restored, themselves or their approval requests. They stay in the database for at
    /// least 30 days.
    pub restored: u64,
    /// Number of tasks that were skipped because a newer archive contains them.
    #[serde(default)]
    pub outdated: u64,
    /// Number of tasks that are archived themselves: their approval requests can be restored after the tasks.
    #[serde(default)]
    pub still_archived: u64,
}

/// Whether a server is ready.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Readiness {
    /// `ready` or `degraded`.
    pub status: String,
    /// Why it is degraded.
    #[serde(default)]
    pub reasons: Vec<String>,
}

/// The projections in Redis compared with the database.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct ProjectionCheck {
    /// Whether this installation has projections: only on Redis and PostgreSQL.
    pub enabled: bool,
    /// Whether everything was compared, or a sample.
    pub complete: bool,
    /// How many objects were compared.
    pub objects: u64,
    /// What differs, at most 1000.
    pub differences: Vec<ProjectionDifference>,
}

/// A key that does not contain what the database says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProjectionDifference {
    /// The key in Redis.
    pub key: String,
    /// What the key is about.
    pub object: String,
    /// What is wrong.
    pub detail: String,
}
