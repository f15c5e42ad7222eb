//! Carrying tasks out, on the wire: how it stands, what agents are given, and what they say.

use ade_domain::task::{ExecutionResult, FailureCode, HeldLock, Phase};
use serde::{Deserialize, Serialize};

use super::{Task, Time};

/// How carrying a task out stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Execution {
    /// Grows with every attempt, and with every recovery from one.
    pub attempt: u64,
    /// Who carries it out, or did.
    pub agent_id: String,
    /// How far it has come.
    pub phase: Phase,
    /// Until when it counts as alive without being heard of; nothing once it is over.
    pub lease_until: Option<Time>,
    /// When it began.
    pub started_at: Time,
    /// When it ended.
    pub completed_at: Option<Time>,
    /// How it ended.
    pub result: Option<ExecutionResult>,
    /// What it said, at most 64 KiB of it.
    pub output: Option<String>,
    /// Where all of what it said is kept, if that was more.
    pub output_key: Option<String>,
    /// What went wrong.
    pub error: Option<String>,
    /// The same in a word.
    pub code: Option<FailureCode>,
    /// Whether what it changed was changed back; nothing while nobody tried.
    pub rolled_back: Option<bool>,
    /// Retries so far.
    pub retry_count: u32,
    /// The locks that it holds, with their tokens.
    pub grants: Vec<HeldLock>,
    /// An administrator wants it to end.
    pub stop: Option<Asked>,
    /// An administrator wants it undone.
    pub undo: Option<Asked>,
}

/// What an administrator asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Asked {
    /// Who.
    pub by: String,
    /// Why.
    pub reason: String,
    /// When.
    pub at: Time,
}

/// An agent asks for work.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ClaimRequest {
    /// Which agent; the caller itself unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<String>,
    /// Only tasks of these types.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "openapi", schema(max_items = 50))]
    pub types: Vec<String>,
    /// How long the answer may be held open, at most 60.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 60))]
    pub wait_seconds: Option<f64>,
}

/// A task that an agent carries out from now on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Claim {
    /// The task.
    pub task: Task,
    /// What everything that is said about it must name.
    pub attempt: u64,
    /// The locks that are held for it.
    pub grants: Vec<HeldLock>,
    /// Until when the agent counts as alive without a heartbeat.
    pub lease_until: Time,
}

/// An agent is alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct AttemptRequest {
    /// Its attempt.
    pub attempt: u64,
}

/// The answer to a sign of life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Alive {
    /// Until when the agent counts as alive.
    pub lease_until: Time,
    /// Whether an administrator wants it to end: then change nothing more, and report `cancelled`.
    pub stop: bool,
}

/// An agent says what it does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct LogRequest {
    /// Its attempt.
    pub attempt: u64,
    /// What.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 65_536))]
    pub text: String,
}

/// Something that was said while a task was carried out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LogLine {
    /// Its place; the first is 1.
    pub number: u64,
    /// By which attempt.
    pub attempt: u64,
    /// When.
    pub at: Time,
    /// What.
    pub text: String,
}

/// An agent says how it ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct CompleteRequest {
    /// Its attempt.
    pub attempt: u64,
    /// How.
    pub result: ExecutionResult,
    /// What it said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// What went wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}
