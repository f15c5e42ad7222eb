//! How carrying a task out stands. Whoever carries it out holds an attempt; what it says counts only while that attempt is the
//! present one.

use serde::{Deserialize, Serialize};

use super::ResourceMode;
use crate::Moment;
use crate::people::UserId;

/// How often a task is tried again that failed before anything was changed.
pub const MOST_RETRIES: u32 = 3;

/// The present attempt, or the last one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Execution {
    /// Grows with every attempt, and with every recovery from one.
    pub attempt: u64,
    /// Who carries it out.
    pub worker: String,
    /// How far it has come.
    pub phase: Phase,
    /// Until when it counts as alive without being heard of. Where it is stored, a column of its own is right.
    pub lease_until: Moment,
    /// When the first attempt began to change anything, or would have.
    pub started_at: Moment,
    /// When it ended.
    pub completed_at: Option<Moment>,
    /// How it ended.
    pub result: Option<ExecutionResult>,
    /// How it ended as its agent said it, if one did.
    pub reported: Option<ExecutionResult>,
    /// The locks that it holds, with their tokens.
    pub grants: Vec<HeldLock>,
    /// What it said, cut.
    pub output: Option<String>,
    /// Where all of what it said is kept, if it was cut.
    pub output_key: Option<String>,
    /// What went wrong.
    pub error: Option<String>,
    /// The same in a word.
    pub code: Option<FailureCode>,
    /// The attempt that began to change something, whose effects are meant: taking over from it raises the attempt, not this.
    pub effects_of: Option<u64>,
    /// Where that is kept from which it can be undone.
    pub stash_key: Option<String>,
    /// Whether what it changed was changed back; nothing while nobody tried.
    pub rolled_back: Option<bool>,
    /// Retries so far.
    pub retry_count: u32,
    /// Somebody wants it to end.
    pub stop: Option<Asked>,
    /// Somebody wants it undone.
    pub undo: Option<Asked>,
}

/// What somebody asked for, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    /// Who.
    pub by: UserId,
    /// Why.
    pub reason: String,
    /// When.
    pub at: Moment,
}

/// A lock that an attempt holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HeldLock {
    /// Its name, as `resource:database:users`.
    pub lock: String,
    /// How it is held.
    pub mode: ResourceMode,
    /// Grows with every grant of the lock.
    pub fencing_token: u64,
}

/// How far an attempt has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Phase {
    /// It holds its locks, and has changed nothing.
    Prepared,
    /// It may have changed something. What is needed to undo it is saved.
    Started,
    /// What it changed is changed back.
    RollingBack,
    /// It is over.
    Ended,
}

/// How carrying a task out ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ExecutionResult {
    /// It is done.
    Success,
    /// It is not, or nobody knows.
    Failure,
    /// It took too long.
    Timeout,
    /// An administrator stopped it.
    Cancelled,
}

/// Why it ended without being done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum FailureCode {
    /// Whatever carries it out said so.
    ExecutionFailed,
    /// It took longer than it may.
    TimedOut,
    /// An administrator stopped it.
    Stopped,
    /// Its locks were taken from it.
    LocksLost,
    /// Nobody heard of its worker any more; what was done meanwhile was undone.
    WorkerLost,
    /// Nobody knows what was done.
    OutcomeUnknown,
    /// What is stored is not what was approved; nothing of it was done.
    DigestMismatch,
}

/// What an attempt left behind when it failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Left {
    /// Nothing was changed.
    Nothing,
    /// Something was changed, and was changed back before anybody else could be at it.
    Undone,
    /// Something was changed, and what it was before is known.
    Something,
    /// Something was changed, and nothing here can undo it.
    Stays,
    /// Nobody knows.
    Unknown,
}

/// Why an attempt failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failed {
    /// In a word.
    pub code: FailureCode,
    /// For people.
    pub error: String,
    /// What it left behind.
    pub left: Left,
    /// Whether trying again might help.
    pub again: bool,
}

/// What was said while it was carried out.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Output {
    /// The beginning.
    pub text: Option<String>,
    /// Where all of it is kept, if that was not all.
    pub key: Option<String>,
}

impl FailureCode {
    /// How carrying it out ended, if it ended for this reason.
    #[must_use]
    pub const fn result(self) -> ExecutionResult {
        match self {
            Self::TimedOut => ExecutionResult::Timeout,
            Self::Stopped => ExecutionResult::Cancelled,
            Self::ExecutionFailed
            | Self::LocksLost
            | Self::WorkerLost
            | Self::OutcomeUnknown
            | Self::DigestMismatch => ExecutionResult::Failure,
        }
    }
}

/// How long to wait before a task is tried again: one second, then twice as long each time.
#[must_use]
pub const fn retry_after_ms(retries: u32) -> u64 {
    let doublings = if retries > 10 { 10 } else { retries };
    1_000 << doublings
}
