//! How a command fails: a kind that decides the exit code, one sentence, and a hint what to do next.

use std::io;
use std::process::ExitCode;

use owo_colors::OwoColorize;

/// Shown below the help.
pub(crate) const EXIT_CODES: &str = "Exit codes: 0 done, 1 the answer is no, 2 wrong use or wrong input, 3 a task was rejected, 4 a task failed, 5 a file or server could not be used, 6 a lock was lost";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The question was understood and the answer is no: nothing found, something stale.
    No,
    /// The arguments or a file given by the user are wrong.
    Input,
    /// A task that was waited for was rejected.
    Rejected,
    /// A task that was waited for failed.
    Failed,
    /// A file, a stream or a server could not be used.
    Unavailable,
    /// A lock was lost while it was needed.
    Lost,
    /// The reader went away; nobody is left to be told.
    Hangup,
}

#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) kind: Kind,
    message: String,
    hint: Option<String>,
}

impl Failure {
    pub(crate) fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), hint: None }
    }

    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// One more hint, after the others.
    pub(crate) fn also(self, hint: impl Into<String>) -> Self {
        let hint = hint.into();
        let all = self.hint.as_deref().map_or(hint.clone(), |before| format!("{before}; {hint}"));
        self.hint(all)
    }

    pub(crate) fn report(self) -> ExitCode {
        use std::io::Write;
        if self.kind != Kind::Hangup {
            let mut err = anstream::stderr().lock();
            // If standard error is gone as well there is nobody left to tell.
            let _ = writeln!(err, "{} {}", "error:".red().bold(), printable(&self.message));
            if let Some(hint) = self.hint {
                let _ = writeln!(err, "{} {}", "hint:".cyan().bold(), printable(&hint));
            }
        }
        ExitCode::from(match self.kind {
            Kind::Hangup => 0,
            Kind::No => 1,
            Kind::Input => 2,
            Kind::Rejected => 3,
            Kind::Failed => 4,
            Kind::Unavailable => 5,
            Kind::Lost => 6,
        })
    }
}

/// What was given from outside must not steer the terminal, nor read otherwise than it is: what turns the direction of
/// text, or takes no room, is shown for what it is.
pub(crate) fn printable(text: &str) -> String {
    let shown = |c: char| match c {
        '\u{200b}'
        | '\u{200e}'
        | '\u{200f}'
        | '\u{202a}'..='\u{202e}'
        | '\u{2060}'..='\u{2069}'
        | '\u{feff}' => false,
        c => !c.is_control(),
    };
    text.chars().flat_map(|c| if shown(c) { vec![c] } else { c.escape_default().collect() }).collect()
}

/// Failures of writing the output itself.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::new(Kind::Hangup, String::new()),
            _ => Self::new(Kind::Unavailable, format!("cannot write the output: {error}")),
        }
    }
}
