//! Executors: each previews what a task would change, applies it, and rolls it back.
//!
//! A preview changes nothing. An executor applies only what the parameters of its task say, within limits of time and size, and
//! never through a shell. Anything that the operator's configuration does not allow is refused.

mod command;
pub mod egress;
mod files;
mod http;
mod noop;
mod output;
mod parameters;
mod run;
mod sql;
pub mod watchdog;

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use ade_domain::Invalid;
use ade_domain::task::{Preview, PreviewChange};
use serde_json::{Map, Value};

pub use command::{Command, CommandLimits, InvalidTemplate, Template};
pub use files::{Files, InvalidRoot};
pub use http::{Http, client};
pub use noop::Noop;
pub use output::{Output, Secrets};
pub use run::{Halt, Halted, Run};
pub use sql::Sql;

/// The parameters of a task, as its author wrote them.
pub type Parameters = Map<String, Value>;

pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

pub const MAX_PREVIEW_CHANGES: usize = 1_000;
/// Bytes of diffs in one preview.
pub const MAX_DIFF_BYTES: usize = 262_144;

/// Whether a worker that lost its lease can still change something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fence {
    /// It cannot, once [`Executor::resolve_outcome`] has returned: that call waits for the worker or blocks it.
    Fenced,
    /// It may.
    Open,
}

/// What an attempt whose worker is lost has changed, judged by its effects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    Nothing,
    Everything,
    /// Never returned by executors that change everything or nothing.
    Part,
}

/// Why a preview, an apply or a rollback did not succeed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// For people. It contains no secrets of the configuration.
    pub message: String,
    pub changed: Changed,
    /// Whether a later attempt may succeed. Only meaningful if nothing was changed.
    pub again: bool,
    /// Set if the run was stopped from outside.
    pub halted: Option<Halt>,
}

/// What a failed operation has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Changed {
    Nothing,
    /// It changed something and has already rolled it back.
    Undone,
    /// It changed something that a rollback can undo.
    Something,
    Unknown,
}

impl Failure {
    /// Nothing was changed, and a retry would fail in the same way.
    #[must_use]
    pub fn refused(message: impl Into<String>) -> Self {
        Self { message: message.into(), changed: Changed::Nothing, again: false, halted: None }
    }

    /// Nothing was changed, and a retry may succeed.
    #[must_use]
    pub fn not_now(message: impl Into<String>) -> Self {
        Self { again: true, ..Self::refused(message) }
    }

    #[must_use]
    pub fn after(side_effects: Changed, message: impl Into<String>) -> Self {
        Self { changed: side_effects, ..Self::refused(message) }
    }

    /// After a lost lease the task may be retried if nothing was changed.
    #[must_use]
    pub fn stopped(reason: Halt, side_effects: Changed) -> Self {
        let is_retryable = reason == Halt::Lost && side_effects == Changed::Nothing;
        let failure = Self::after(side_effects, reason.message(None));
        Self { halted: Some(reason), again: is_retryable, ..failure }
    }

    /// The same failure of a rollback: what was applied is still there.
    pub(crate) fn not_rolled_back(self) -> Self {
        Self { changed: Changed::Something, ..self }
    }
}

/// One kind of task execution.
pub trait Executor: Send + Sync {
    /// Validates the parameters without I/O and returns every violation, each with a JSON pointer relative to the parameters, such
    /// as `/files/0/path`. Problems that depend on outside state are found by the preview.
    fn check(&self, parameters: &Parameters) -> Result<(), Vec<Invalid>>;

    /// Determines what would change. Returns an error only if that cannot be determined; changes that would fail are listed in the
    /// errors of the preview.
    fn preview<'a>(&'a self, parameters: &'a Parameters) -> BoxFuture<'a, Result<Preview, Failure>>;

    /// Collects everything that a rollback will need. The caller stores these bytes as the stash of the attempt before it calls
    /// [`Self::apply`].
    fn stash<'a>(&'a self, run: &'a Run) -> BoxFuture<'a, Result<Vec<u8>, Failure>>;

    /// Applies the task. Returns soon after the run is stopped, and then reports what was changed.
    fn apply<'a>(&'a self, run: &'a Run, rollback_data: &'a [u8]) -> BoxFuture<'a, Result<(), Failure>>;

    /// Undoes what was applied. It can be repeated after an interruption.
    fn roll_back<'a>(&'a self, run: &'a Run, rollback_data: &'a [u8]) -> BoxFuture<'a, Result<(), Failure>>;

    /// Determines what an attempt has changed whose worker is lost, or whose last response was lost, and blocks that attempt: it can
    /// change nothing afterwards. Unless nothing was changed, the caller must then call [`Self::roll_back`] or
    /// [`Self::clean_up`], because other attempts may wait for that. Only called for executors with [`Fencing::Fenced`].
    fn settle<'a>(&'a self, _: &'a Run, _: &'a [u8]) -> BoxFuture<'a, Result<Settled, Failure>> {
        Box::pin(async { Err(Failure::after(Changed::Unknown, "the effects cannot be determined")) })
    }

    /// Removes what an attempt has left for its own use besides its rollback data. Called once the attempt will change nothing more.
    fn forget<'a>(&'a self, _task_id: &'a str, _attempt: u64) -> BoxFuture<'a, ()> {
        Box::pin(async {})
    }

    fn fence(&self) -> Fence {
        Fence::Open
    }

    /// Whether [`Self::apply`] has no effects. Then no rollback data is stored and the start of the attempt is not recorded.
    fn changes_nothing(&self) -> bool {
        false
    }

    /// Whether a task with these parameters can be rolled back.
    fn can_roll_back(&self, parameters: &Parameters) -> bool;
}

/// The executors of this process by place. A place names an executor and what it works on, such as `files:/srv/www`; workers
/// claim work by place.
#[derive(Clone, Default)]
pub struct Executors {
    places: BTreeMap<String, Arc<dyn Executor>>,
}

impl std::fmt::Debug for Executors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.places.keys()).finish()
    }
}

impl Executors {
    pub fn add(&mut self, place: impl Into<String>, executor: Arc<dyn Executor>) {
        self.places.insert(place.into(), executor);
    }

    #[must_use]
    pub fn at(&self, place: &str) -> Option<&Arc<dyn Executor>> {
        self.places.get(place)
    }

    pub fn places(&self) -> impl Iterator<Item = &str> {
        self.places.keys().map(String::as_str)
    }
}

/// A preview in state READY. Its fingerprint covers the changes without their diffs, which are only for people; `before` and
/// `after` identify a change.
#[must_use]
pub fn preview_of(changes: Vec<PreviewChange>, warnings: Vec<String>, errors: Vec<String>) -> Preview {
    let fingerprint = Preview::fingerprint_of(&changes);
    Preview { changes, warnings, errors, fingerprint, ..Preview::ready() }
}

/// Fails a preview that exceeds its timeout.
pub(crate) async fn preview_within(
    timeout: Duration,
    preview: impl Future<Output = Result<Preview, Failure>>,
) -> Result<Preview, Failure> {
    let timed_out = || format!("the preview exceeded its timeout of {} s", timeout.as_secs());
    tokio::time::timeout(timeout, preview).await.unwrap_or_else(|_| Err(Failure::not_now(timed_out())))
}
