//! Why nothing happened: one type for every use case on the record.

use ade_domain::Invalid;
use ade_domain::permission::Scope;
use ade_domain::task::Refusal;
use ade_store::DatabaseError;

/// Why nothing happened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// There is no such thing, or the caller may not see it.
    #[error("there is no such {0}")]
    NotFound(&'static str),
    /// There is one already.
    #[error("{0} exists already")]
    Exists(String),
    /// Nobody knows who calls.
    #[error("{0}")]
    Unauthenticated(String),
    /// The token is not good for this.
    #[error("the token lacks the scope {}; {}", .0.word(), how_to_get(*.0))]
    Scope(Scope),
    /// Not by this caller.
    #[error("{0}")]
    Forbidden(String),
    /// What was sent cannot be.
    #[error("what was sent cannot be")]
    Invalid(Vec<Invalid>),
    /// `domain` refused.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// It is not the revision that the caller saw.
    #[error("it was changed meanwhile: its revision is {now}; look again")]
    Stale {
        /// The revision that it has.
        now: u64,
    },
    /// Somebody switched this off.
    #[error("the feature {0} is switched off; an administrator may switch it on")]
    Disabled(&'static str),
    /// Nobody has found out yet what a task would change.
    #[error(
        "no worker has found out yet what the task would change; see that one runs that can, and try again"
    )]
    PreviewPending,
    /// What somebody held for a task is not held any more.
    #[error("the locks of the task are lost: change nothing more, and report how it ended")]
    LocksLost,
    /// Others were faster, again and again.
    #[error("others keep changing it; try again")]
    Overtaken,
    /// One or more of a batch were refused, so nothing happened to any.
    #[error("{} of the batch were refused, so nothing was changed", .0.len())]
    Batch(Vec<(String, Self)>),
    /// The record did not do it.
    #[error(transparent)]
    Record(DatabaseError),
}

const fn how_to_get(scope: Scope) -> &'static str {
    match scope {
        Scope::Decide => "sign in for it with ade login --decide",
        Scope::Admin => "sign in for it with ade login --admin",
        Scope::Read | Scope::Propose | Scope::Lock => "make a token that has it",
    }
}

impl From<DatabaseError> for Error {
    fn from(error: DatabaseError) -> Self {
        Self::Record(error)
    }
}

impl Error {
    /// One part of what was sent cannot be.
    #[must_use]
    pub fn invalid(pointer: &str, detail: impl Into<String>) -> Self {
        Self::Invalid(vec![Invalid::at(pointer, detail)])
    }
}
