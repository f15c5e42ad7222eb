//! Why a benchmark failed, and what to do next.

use std::{fmt, io};

use ade_store::{CoordinationError, DatabaseError};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The arguments are invalid, or name a server that benchmarks must not use.
    Input,
    /// A server, a file or a connection failed.
    Unavailable,
}

#[derive(Debug)]
pub struct BenchError {
    pub kind: ErrorKind,
    pub message: String,
    pub hint: Option<String>,
}

impl BenchError {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), hint: None }
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl fmt::Display for BenchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for BenchError {}

macro_rules! from_unavailable {
    ($($error:ty),+) => {$(
        impl From<$error> for BenchError {
            fn from(error: $error) -> Self {
                Self::new(ErrorKind::Unavailable, error.to_string())
            }
        }
    )+};
}
from_unavailable!(
    io::Error,
    tokio::task::JoinError,
    sqlx::Error,
    rusqlite::Error,
    CoordinationError,
    DatabaseError
);
