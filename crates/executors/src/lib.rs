//! Executors: each previews what a task would change, applies it, and rolls it back.
//!
//! A preview changes nothing. Nothing is applied but what the parameters say, under limits of time and size, and no shell is ever
//! asked. What an operator has not allowed by configuration cannot be done.

mod command;
mod files;
pub mod guard;
mod http;
mod noop;
mod output;
mod run;
mod sql;
pub mod watchdog;

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use ade_domain::Invalid;
use ade_domain::task::{Preview, PreviewChange};
use serde_json::{Map, Value};

pub use command::{BadTemplate, Command, CommandLimits, Template};
pub use files::{BadRoot, Files};
pub use http::{Http, call};
pub use noop::Noop;
pub use output::{Output, Secrets};
pub use run::{Halt, Halted, Run};
pub use sql::Sql;

/// What an executor is told about a task.
pub type Parameters = Map<String, Value>;

/// Something that takes a while.
pub type Work<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The most changes that a preview lists.
pub const MOST_CHANGES: usize = 1_000;
/// The most bytes of text in a preview.
pub const LONGEST_PREVIEW: usize = 262_144;

/// Whether a worker that lost its lease can still change something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fence {
    /// It cannot, once [`Executor::settle`] has answered: that one waits for it, or shuts it out.
    Fenced,
    /// It can, as far as we know.
    Open,
}

/// What an attempt left behind, as far as its effects tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// Nothing of it was done.
    Nothing,
    /// All of it was done.
    Everything,
    /// Some of it was done. Executors whose sets are whole or not at all never say this.
    Part,
}

/// Why something was not done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// For people; secrets of the configuration are not in it.
    pub message: String,
    /// What was changed.
    pub changed: Changed,
    /// Whether trying again later might help, if nothing was changed.
    pub again: bool,
    /// It was halted from outside.
    pub halted: Option<Halt>,
}

/// What a failure has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Changed {
    /// Nothing.
    Nothing,
    /// Something, and it was changed back already.
    Undone,
    /// Something; rolling back undoes it.
    Something,
    /// Nobody knows.
    Unknown,
}

impl Failure {
    /// Nothing was changed, and it would fail the same way again.
    #[must_use]
    pub fn refused(message: impl Into<String>) -> Self {
        Self { message: message.into(), changed: Changed::Nothing, again: false, halted: None }
    }

    /// Nothing was changed, and another time it may work.
    #[must_use]
    pub fn not_now(message: impl Into<String>) -> Self {
        Self { again: true, ..Self::refused(message) }
    }

    /// Something was changed, or nobody knows.
    #[must_use]
    pub fn after(changed: Changed, message: impl Into<String>) -> Self {
        Self { changed, ..Self::refused(message) }
    }
}

/// One way to carry out tasks.
pub trait Executor: Send + Sync {
    /// Everything about the parameters that cannot be, each with a JSON pointer that begins at the parameters, as `/files/0/path`.
    /// Asks nobody: what depends on the world is found by the preview.
    fn check(&self, parameters: &Parameters) -> Result<(), Vec<Invalid>>;

    /// What would change. It fails only if nobody can tell; what would go wrong is among the errors of the preview.
    fn preview<'a>(&'a self, parameters: &'a Parameters) -> Work<'a, Result<Preview, Failure>>;

    /// Everything that is needed to undo what will be applied, as bytes that are kept before anything is changed.
    fn stash<'a>(&'a self, run: &'a Run) -> Work<'a, Result<Vec<u8>, Failure>>;

    /// Carries it out. It ends soon after the run was halted, and says what that left behind.
    fn apply<'a>(&'a self, run: &'a Run, stash: &'a [u8]) -> Work<'a, Result<(), Failure>>;

    /// Changes back what was applied. May be begun again after it was interrupted.
    fn roll_back<'a>(&'a self, run: &'a Run, stash: &'a [u8]) -> Work<'a, Result<(), Failure>>;

    /// Finds out what an attempt left whose worker is gone, or whose last answer was lost, and shuts that attempt out. Nothing
    /// of it can happen afterwards. Unless nothing was left, it is rolled back or [forgotten](Self::forget) then: others may have
    /// to wait for that. Only asked of executors with a fence.
    fn settle<'a>(&'a self, run: &'a Run, stash: &'a [u8]) -> Work<'a, Result<Settled, Failure>>;

    /// Nothing more comes of an attempt that has kept what it will change: whatever else it left for itself may go.
    fn forget<'a>(&'a self, _task_id: &'a str, _attempt: u64) -> Work<'a, ()> {
        Box::pin(async {})
    }

    /// Whether a worker that lost its lease can still change something.
    fn fence(&self) -> Fence;

    /// Whether there is nothing to be carried out: then nothing needs to be kept, and nobody needs to know that it began.
    fn changes_nothing(&self) -> bool {
        false
    }

    /// Whether there is a way back at all for these parameters.
    fn can_roll_back(&self, parameters: &Parameters) -> bool;
}

/// The executors of this process, each under its place: what has the same place can be carried out by the same workers.
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
    /// Adds one.
    pub fn add(&mut self, place: impl Into<String>, executor: Arc<dyn Executor>) {
        self.places.insert(place.into(), executor);
    }

    /// The one for a place.
    #[must_use]
    pub fn at(&self, place: &str) -> Option<&Arc<dyn Executor>> {
        self.places.get(place)
    }

    /// Every place.
    pub fn places(&self) -> impl Iterator<Item = &str> {
        self.places.keys().map(String::as_str)
    }
}

/// The parameters were checked when they were proposed; whoever carries them out checks them again.
pub(crate) fn unfit(faults: &[Invalid]) -> Failure {
    let each: Vec<String> =
        faults.iter().map(|fault| format!("{} {}", fault.pointer, fault.detail)).collect();
    Failure::refused(format!("the parameters cannot be: {}", each.join("; ")))
}

/// It was halted before anything was changed. Another time it is another attempt's turn, if this one lost its own.
pub(crate) fn halt_failure(halt: Halt) -> Failure {
    Failure { halted: Some(halt), again: halt == Halt::Lost, ..Failure::refused(halt.message(None)) }
}

/// A preview of changes. Its fingerprint is taken over the changes without their diffs, which are for people: what a change does
/// is told by what it begins with and ends with.
#[must_use]
pub fn preview_of(changes: Vec<PreviewChange>, warnings: Vec<String>, errors: Vec<String>) -> Preview {
    let fingerprint = Preview::fingerprint_of(&changes);
    Preview { changes, warnings, errors, fingerprint, ..Preview::ready() }
}
