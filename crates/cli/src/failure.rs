//! How a command fails: a kind that selects the exit code, a message, and a hint what to do next.

use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

use owo_colors::OwoColorize;

use crate::output::safe;

/// Shown below the help.
pub(crate) const EXIT_CODES: &str = "Exit codes: 0 success, 1 refused, not found or negative result, 2 invalid arguments or input, 3 the task was rejected, 4 the task failed, 5 a file or server is unavailable, 6 a lock was lost, 7 the change waits for a second administrator";

pub(crate) type Result<T = (), E = Failure> = std::result::Result<T, E>;

/// The kinds of failures, with their exit codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FailureKind {
    /// Standard output was closed by its reader. Nothing is reported.
    OutputClosed = 0,
    /// The command worked and its result is negative: not found, refused, outdated.
    Negative = 1,
    /// The arguments or a file of the user are invalid.
    InvalidInput = 2,
    /// The awaited task was rejected.
    TaskRejected = 3,
    /// The awaited task failed.
    TaskFailed = 4,
    /// A file, a stream or a server is unavailable.
    Unavailable = 5,
    /// A lock was lost while it was needed.
    LockLost = 6,
    /// The change was stored, and waits for a second administrator.
    Waits = 7,
}

#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) kind: FailureKind,
    message: String,
    hints: Vec<String>,
}

impl Failure {
    pub(crate) fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), hints: Vec::new() }
    }

    pub(crate) fn negative(message: impl Into<String>) -> Self {
        Self::new(FailureKind::Negative, message)
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(FailureKind::InvalidInput, message)
    }

    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        Self::new(FailureKind::Unavailable, message)
    }

    /// A file, a stream or a server that is unavailable for an action.
    pub(crate) fn cannot(action: impl Display, error: impl Display) -> Self {
        Self::unavailable(format!("cannot {action}: {error}"))
    }

    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// Adds a hint, after those it has already.
    pub(crate) fn hint(self, hint: impl Into<String>) -> Self {
        self.hints([hint.into()])
    }

    pub(crate) fn hints(mut self, hints: impl IntoIterator<Item = String>) -> Self {
        self.hints.extend(hints);
        self
    }

    pub(crate) fn report(self) -> ExitCode {
        if self.kind != FailureKind::OutputClosed {
            let mut err = anstream::stderr().lock();
            // A closed standard error is ignored.
            let _ = match self.kind {
                FailureKind::Waits => writeln!(err, "{} {}", "waits:".yellow().bold(), safe(&self.message)),
                _ => writeln!(err, "{} {}", "error:".red().bold(), safe(&self.message)),
            };
            if !self.hints.is_empty() {
                let _ = writeln!(err, "{} {}", "hint:".cyan().bold(), safe(&self.hints.join("; ")));
            }
        }
        ExitCode::from(self.kind as u8)
    }
}

/// For errors of writing the output.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::new(FailureKind::OutputClosed, String::new()),
            _ => Self::cannot("write the output", error),
        }
    }
}
