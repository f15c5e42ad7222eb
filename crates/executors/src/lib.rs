//! Executors: each previews what a task would change, applies it, and rolls it back.
//!
//! A preview changes nothing. An executor applies only what the parameters of its task say, within limits of time and size, and
//! never through a shell. Anything that the operator's configuration does not allow is refused.

mod command;
pub mod egress;
mod files;
mod http;
pub mod limited_process;
mod noop;
mod normal_form;
mod output;
mod parameters;
mod preview_bounds;
mod run;
mod sql;
mod targets;
pub mod watchdog;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ade_domain::InvalidField;
use ade_domain::task::{Preview, PreviewChange};
use async_trait::async_trait;
use serde_json::{Map, Value};
use tokio::time::{Instant, sleep_until};

pub use command::{CommandExecutor, CommandLimits, CommandTemplate, InvalidTemplate};
pub use files::{FilesExecutor, InvalidRoot, KeyedHash, Visibility};
pub use http::{HttpExecutor, client};
pub use noop::NoopExecutor;
pub use output::{RunOutput, Secrets};
pub use preview_bounds::bounded;
pub use run::{Run, StopReason, StopSender, StopSignal};
pub use sql::{PreviewMode, SqlExecutor};
pub use targets::derive_scope;

/// The parameters of a task, as its author wrote them.
pub type Parameters = Map<String, Value>;

pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;
/// Every violation in the parameters of a task.
pub(crate) type Validated<T> = Result<T, Vec<InvalidField>>;

pub const MAX_PREVIEW_CHANGES: usize = 1_000;
/// Bytes of diffs in one preview.
pub const MAX_DIFF_BYTES: usize = 262_144;

/// Whether a worker that lost its lease can still change something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fencing {
    /// It cannot, once [`Executor::resolve_outcome`] has returned: that call waits for the worker or blocks it.
    Fenced,
    /// It may.
    Unfenced,
}

/// What an attempt whose worker is lost has changed, judged by its effects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttemptOutcome {
    NotApplied,
    Applied,
    /// Never returned by executors that change everything or nothing.
    PartiallyApplied,
}

/// Why a preview, an apply or a rollback did not succeed.
#[derive(Debug, Clone, Default, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// For people. It contains no secrets of the configuration.
    pub message: String,
    pub side_effects: SideEffects,
    /// Whether a later attempt may succeed. Only meaningful if nothing was changed.
    pub is_retryable: bool,
    /// Set if the run was stopped from outside.
    pub stop_reason: Option<StopReason>,
}

/// What a failed operation has changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SideEffects {
    #[default]
    None,
    /// It changed something and has already rolled it back.
    RolledBack,
    /// It changed something that a rollback can undo.
    Remaining,
    Unknown,
}

impl Failure {
    /// Nothing was changed, and a retry would fail in the same way.
    #[must_use]
    pub fn permanent(message: impl Into<String>) -> Self {
        Self { message: message.into(), ..Self::default() }
    }

    /// Nothing was changed, and a retry may succeed.
    #[must_use]
    pub fn retryable(message: impl Into<String>) -> Self {
        Self { is_retryable: true, ..Self::permanent(message) }
    }

    #[must_use]
    pub fn with_side_effects(side_effects: SideEffects, message: impl Into<String>) -> Self {
        Self { side_effects, ..Self::permanent(message) }
    }

    /// After a lost lease the task may be retried if nothing was changed.
    #[must_use]
    pub fn stopped(reason: StopReason, side_effects: SideEffects) -> Self {
        let is_retryable = reason == StopReason::LeaseLost && side_effects == SideEffects::None;
        let failure = Self::with_side_effects(side_effects, reason.to_string());
        Self { stop_reason: Some(reason), is_retryable, ..failure }
    }

    /// The same failure of a rollback: what was applied is still there, unless that is unknown.
    pub(crate) fn not_rolled_back(self) -> Self {
        match self.side_effects {
            SideEffects::None => Self { side_effects: SideEffects::Remaining, ..self },
            _ => self,
        }
    }
}

/// One kind of task execution.
#[async_trait]
pub trait Executor: Send + Sync {
    /// Validates the parameters without I/O and returns every violation, each with a path relative to the parameters, such as
    /// `files.0.path`. Problems that depend on outside state are found by the preview.
    fn validate(&self, parameters: &Parameters) -> Validated<()>;

    /// Determines what would change. Returns an error only if that cannot be determined; changes that would fail are listed in the
    /// errors of the preview.
    async fn preview(&self, parameters: &Parameters) -> Result<Preview>;

    /// Collects everything that a rollback will need. The caller stores these bytes as the rollback data of the attempt before it calls
    /// [`Self::apply`].
    async fn prepare_rollback(&self, run: &Run) -> Result<Vec<u8>>;

    /// Applies the task. Returns soon after the run is stopped, and then reports what was changed.
    async fn apply(&self, run: &Run, rollback_data: &[u8]) -> Result<()>;

    /// Undoes what was applied. It can be repeated after an interruption.
    async fn roll_back(&self, run: &Run, rollback_data: &[u8]) -> Result<()>;

    /// Determines what an attempt has changed after its worker or its last response was lost, and blocks that attempt: it can
    /// change nothing afterwards. Unless nothing was changed, the caller must then call [`Self::roll_back`] or
    /// [`Self::clean_up`], because other attempts may wait for that. Only called for executors with [`Fencing::Fenced`].
    async fn resolve_outcome(&self, _: &Run, _: &[u8]) -> Result<AttemptOutcome> {
        Err(Failure::with_side_effects(SideEffects::Unknown, "the effects cannot be determined"))
    }

    /// Removes what an attempt has left for its own use besides its rollback data. Called once the attempt will change nothing more.
    async fn clean_up(&self, _task_id: &str, _attempt: u64) {}

    fn fencing(&self) -> Fencing {
        Fencing::Unfenced
    }

    /// Whether [`Self::apply`] has no effects. Then no rollback data is stored and the start of the attempt is not recorded.
    fn is_noop(&self) -> bool {
        false
    }

    /// Whether a task with these parameters can be rolled back.
    fn can_roll_back(&self, parameters: &Parameters) -> bool;
}

/// The executors of this process by work queue. A work queue names an executor and what it works on, such as `files:/srv/www`; workers
/// claim work by work queue.
#[derive(Clone, Default)]
pub struct Executors {
    work_queues: BTreeMap<String, Arc<dyn Executor>>,
}

impl std::fmt::Debug for Executors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.work_queues.keys()).finish()
    }
}

impl Executors {
    pub fn insert(&mut self, work_queue: impl Into<String>, executor: Arc<dyn Executor>) {
        self.work_queues.insert(work_queue.into(), executor);
    }

    #[must_use]
    pub fn get(&self, work_queue: &str) -> Option<&Arc<dyn Executor>> {
        self.work_queues.get(work_queue)
    }

    /// The same executors for the work queues of a worker label.
    #[must_use]
    pub fn with_label(self, label: &str) -> Self {
        let labelled = self.work_queues.into_iter();
        Self { work_queues: labelled.map(|(name, executor)| (format!("{label}/{name}"), executor)).collect() }
    }

    pub fn work_queues(&self) -> impl Iterator<Item = &str> {
        self.work_queues.keys().map(String::as_str)
    }
}

/// A preview in state READY. Its fingerprint covers the changes without their diffs, which are only for people; `before` and
/// `after` identify a change.
#[must_use]
pub fn ready_preview(changes: Vec<PreviewChange>, warnings: Vec<String>, errors: Vec<String>) -> Preview {
    let fingerprint = Preview::fingerprint_of(&changes);
    Preview { changes, warnings, errors, fingerprint, ..Preview::ready() }
}

/// Fails a preview that exceeds its timeout.
pub(crate) async fn preview_within(
    timeout: Duration,
    preview: impl Future<Output = Result<Preview>>,
) -> Result<Preview> {
    let timed_out = || format!("the preview exceeded its timeout of {} s", timeout.as_secs());
    tokio::time::timeout(timeout, preview).await.unwrap_or_else(|_| Err(Failure::retryable(timed_out())))
}

/// Waits until a time; forever without one.
pub(crate) async fn elapsed(until: Option<Instant>) {
    match until {
        Some(until) => sleep_until(until).await,
        None => std::future::pending().await,
    }
}
