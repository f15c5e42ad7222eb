//! Jobs and archives on the wire.

use serde::{Deserialize, Serialize};

use super::Time;

/// A job, and how it stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Job {
    /// What it is called.
    pub name: String,
    /// What it does.
    pub about: String,
    /// How often, in seconds; a day means at midnight UTC.
    pub every_seconds: u64,
    /// `never`, `running`, `ok` or `failing`.
    pub status: String,
    /// When it is due.
    pub due_at: Option<Time>,
    /// Who is at it.
    pub running_by: Option<String>,
    /// When it was last begun.
    pub started_at: Option<Time>,
    /// When it last ended.
    pub ended_at: Option<Time>,
    /// Who did it then.
    pub by: Option<String>,
    /// How much there was to do then.
    pub done: u64,
    /// How often it was done.
    pub runs: u64,
    /// How often it failed since it last worked.
    pub failures: u32,
    /// Why it failed the last time, unless it worked since.
    pub error: Option<String>,
}

/// What was taken out of the record, and where it is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Archive {
    /// What it is known by.
    pub archive_id: String,
    /// `approvals` or `tasks`.
    pub kind: String,
    /// The blob.
    pub key: String,
    /// Tasks that left the record for it.
    pub items: u64,
    /// Bytes of the blob.
    pub bytes: u64,
    /// When it was made.
    pub created_at: Time,
    /// When the oldest task in it ended.
    pub from: Time,
    /// When the youngest did.
    pub to: Time,
    /// When it was last brought back.
    pub restored_at: Option<Time>,
}

/// What came back from an archive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Restored {
    /// From which.
    pub archive: Archive,
    /// How many tasks were not there any more, themselves or their requests, and are again. They stay for 30 days at least.
    pub restored: u64,
    /// Tasks that were archived once more since, and did not come back from this archive.
    #[serde(default)]
    pub outdated: u64,
    /// Tasks that are archived themselves: their requests come back once they are here.
    #[serde(default)]
    pub away: u64,
}
