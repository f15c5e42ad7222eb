//! How a call fails: whether to try again, and whether it may have happened.

use crate::wire::Problem;

/// A call that failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The server answered with a problem.
    #[error("{} ({})", .0.detail, .0.code)]
    Problem(Box<Problem>),
    /// The server could not be reached, or its answer did not arrive: what was asked may have happened.
    #[error("cannot reach {url}: {cause}")]
    Unreachable {
        /// Which server.
        url: String,
        /// Why.
        cause: String,
    },
    /// The answer is not what this client understands.
    #[error("{url} answered something else than ADE would: {cause}")]
    Foreign {
        /// Which server.
        url: String,
        /// The status of the answer, if it was one.
        status: Option<u16>,
        /// What was wrong.
        cause: String,
    },
}

/// What a failure means to a caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Trying again may help: the lock is held, the queue is full, a deadlock was ended, the server is away.
    Transient,
    /// Trying again does not help.
    Permanent,
}

impl Error {
    /// The problem's code, if the server answered with one.
    #[must_use]
    pub fn code(&self) -> Option<&str> {
        match self {
            Self::Problem(problem) => Some(&problem.code),
            _ => None,
        }
    }

    /// Whether trying again may help.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Self::Unreachable { .. } => Kind::Transient,
            // A proxy in between may fail for a while.
            Self::Foreign { status, .. } => of_status(status.unwrap_or(200)),
            Self::Problem(problem) => of_status(problem.status),
        }
    }

    /// How long the server asks to wait before the next try.
    #[must_use]
    pub fn retry_after_seconds(&self) -> Option<u64> {
        match self {
            Self::Problem(problem) => problem.fact("retry_after"),
            _ => None,
        }
    }
}

const fn of_status(status: u16) -> Kind {
    match status {
        408 | 423 | 429 | 500..=599 => Kind::Transient,
        _ => Kind::Permanent,
    }
}
