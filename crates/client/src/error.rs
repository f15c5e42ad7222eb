//! Errors of the client: whether a retry can help, and whether the request may have been applied.

use crate::wire::Problem;

/// A failed request.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The server responded with a problem.
    #[error("{} ({})", .0.detail, .0.code)]
    Problem(Box<Problem>),
    /// No response arrived. The request may have been applied.
    #[error("cannot reach {url}: {cause}")]
    Unreachable {
        /// Address of the server.
        url: String,
        /// Cause of the failure.
        cause: String,
    },
    /// The response is not one of an ADE server, or of an incompatible version.
    #[error("unexpected response from {url}: {cause}; check that this is the address of an ADE server")]
    UnexpectedResponse {
        /// Address of the server.
        url: String,
        /// Status of the response, if the status itself is unexpected.
        status: Option<u16>,
        /// What is unexpected.
        cause: String,
    },
}

/// Whether a retry can help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// A retry can help: a lock is held, a queue is full, a deadlock was resolved, a server is unavailable.
    Transient,
    /// A retry fails again.
    Permanent,
}

impl Error {
    /// The code of the problem, if the server responded with one.
    #[must_use]
    pub fn code(&self) -> Option<&str> {
        match self {
            Self::Problem(problem) => Some(&problem.code),
            _ => None,
        }
    }

    /// Whether a retry can help.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Unreachable { .. } => ErrorKind::Transient,
            // A proxy may fail temporarily.
            Self::UnexpectedResponse { status, .. } => kind_of_status(status.unwrap_or(200)),
            Self::Problem(problem) => kind_of_status(problem.status),
        }
    }

    /// What an approval lacked, if it was refused with `FRICTION_REQUIRED`: `digest`, `scope_digest`, `reason` or `confirm`, all at
    /// once. Empty for any other error.
    #[must_use]
    pub fn approval_needs(&self) -> Vec<String> {
        match self {
            Self::Problem(problem) if problem.code == "FRICTION_REQUIRED" => {
                problem.extension("needs").unwrap_or_default()
            }
            _ => Vec::new(),
        }
    }

    /// Minimum delay before a retry, if the server requests one.
    #[must_use]
    pub fn retry_after_seconds(&self) -> Option<u64> {
        match self {
            Self::Problem(problem) => problem.extension("retry_after"),
            _ => None,
        }
    }
}

const fn kind_of_status(status: u16) -> ErrorKind {
    match status {
        408 | 423 | 429 | 500..=599 => ErrorKind::Transient,
        _ => ErrorKind::Permanent,
    }
}
