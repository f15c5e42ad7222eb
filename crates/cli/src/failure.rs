//! How a command fails: a kind that selects the exit code, a message, and a hint what to do next.

use std::io::{self, Write};
use std::process::ExitCode;

use owo_colors::OwoColorize;

use crate::output::safe;

/// Shown below the help.
pub(crate) const EXIT_CODES: &str = "Exit codes: 0 success, 1 refused, not found or negative result, 2 invalid arguments or input, 3 the task was rejected, 4 the task failed, 5 a file or server is unavailable, 6 a lock was lost";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FailureKind {
    /// The command worked and its result is negative: not found, refused, outdated.
    Negative,
    /// The arguments or a file of the user are invalid.
    InvalidInput,
    /// The awaited task was rejected.
    TaskRejected,
    /// The awaited task failed.
    TaskFailed,
    /// A file, a stream or a server is unavailable.
    Unavailable,
    /// A lock was lost while it was needed.
    LockLost,
    /// Standard output was closed by its reader. Nothing is reported.
    OutputClosed,
}

#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) kind: FailureKind,
    message: String,
    hint: Option<String>,
}

impl Failure {
    pub(crate) fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), hint: None }
    }

    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// Adds a hint, after those it has already.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        let hint = hint.into();
        self.hint = Some(self.hint.map_or(hint.clone(), |before| format!("{before}; {hint}")));
        self
    }

    pub(crate) fn report(self) -> ExitCode {
        if self.kind != FailureKind::OutputClosed {
            let mut err = anstream::stderr().lock();
            // A closed standard error is ignored.
            let _ = writeln!(err, "{} {}", "error:".red().bold(), safe(&self.message));
            if let Some(hint) = self.hint {
                let _ = writeln!(err, "{} {}", "hint:".cyan().bold(), safe(&hint));
            }
        }
        ExitCode::from(match self.kind {
            FailureKind::OutputClosed => 0,
            FailureKind::Negative => 1,
            FailureKind::InvalidInput => 2,
            FailureKind::TaskRejected => 3,
            FailureKind::TaskFailed => 4,
            FailureKind::Unavailable => 5,
            FailureKind::LockLost => 6,
        })
    }
}

/// For errors of writing the output.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::new(FailureKind::OutputClosed, String::new()),
            _ => Self::new(FailureKind::Unavailable, format!("cannot write the output: {error}")),
        }
    }
}
