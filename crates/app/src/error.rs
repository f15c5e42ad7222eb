//! The error type of all services that work on the database.

use std::fmt;

use ade_domain::people::UserId;
use ade_domain::permission::Scope;
use ade_domain::task::Refusal;
use ade_domain::text::counted;
use ade_domain::{InvalidField, Moment};
use ade_store::database::DocumentKind;
use ade_store::{CoordinationError, DatabaseError};

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an inbound hook accepts no messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HookSuspension {
    /// The author of its tasks is not active.
    Owner(UserId),
    /// Who got the secret that signed the message is not active.
    SecretHolder { hook_id: String, user_id: UserId },
}

impl HookSuspension {
    fn advice(&self) -> String {
        match self {
            Self::Owner(user_id) => format!(
                "its owner {user_id} is not active any more; an administrator activates the owner, or registers another hook"
            ),
            Self::SecretHolder { hook_id, user_id } => format!(
                "{user_id}, who got the secret that signed this message, is not active any more; an administrator makes a \
                 new secret: ade webhook inbound rotate {hook_id}"
            ),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The object does not exist, or the caller may not see it: the two cases are indistinguishable on purpose.
    #[error("{0} not found, or not visible to you; check its id")]
    NotFound(ObjectKind),
    #[error("agent {0} not found")]
    AgentNotFound(String),
    /// Dual control: the change was stored and waits for a second administrator.
    #[error(
        "this waits for a second administrator until {expires_at}: ask one to run ade change confirm {change_id}"
    )]
    AwaitsConfirmation { change_id: String, expires_at: Moment },
    #[error("what this would change has changed meanwhile; reject it and propose it again")]
    ChangeOutdated,
    #[error("too many of your changes wait for a second administrator; withdraw some: ade change ls")]
    TooManyChanges,
    #[error("{0} already exists")]
    Exists(String),
    #[error(
        "another process has a different configuration of {0}; give one of them another name or another worker.label, or \
         wait a minute if that process was killed"
    )]
    BindingConflict(String),
    #[error("agent {0} already exists; change it with PATCH /api/v1/agents/{0}")]
    AgentExists(String),
    #[error("agent {0} still holds or waits for locks; release or break them first")]
    AgentBusy(String),
    #[error("{0}")]
    Unauthenticated(String),
    #[error("the token lacks the scope {}; {}", .0.as_str(), how_to_get(*.0))]
    Scope(Scope),
    #[error(
        "the password was given too long ago to decide; give it again: POST /api/v1/sessions/reauthenticate"
    )]
    Reauthenticate,
    #[error("somebody else set your password; set your own before anything else: ade user passwd")]
    PasswordChangeRequired,
    #[error("the current password is wrong; try again, or ask an administrator")]
    WrongPassword,
    #[error("the invitation is wrong, has expired or was used already; ask an administrator for a new one")]
    InvalidInvitation,
    /// The message of an inbound hook was accepted before.
    #[error("the message {message_id} was accepted already: send a new one with another webhook-id")]
    Replayed { message_id: String },
    /// A person on whom an inbound hook depends was deactivated.
    #[error("the hook accepts no messages: {}", .0.advice())]
    HookSuspended(HookSuspension),
    #[error("{0}")]
    Forbidden(String),
    #[error("the request is invalid: {}", list(.0))]
    Invalid(Vec<InvalidField>),
    /// `domain` refused the command.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The revision in `If-Match` is not the current one.
    #[error("changed since you read it: the current revision is {now}. Reload it and try again")]
    Stale { now: u64 },
    #[error("the feature {0} is disabled; an administrator can enable it")]
    Disabled(&'static str),
    /// A remote worker has to compute the preview and has not done so yet.
    #[error(
        "the preview of the task is not ready: no worker has computed it yet. Make sure that a worker with its executor \
         is running, and try again"
    )]
    PreviewPending,
    /// Other previews took too long to finish.
    #[error("too many previews are running; try again in a few seconds")]
    PreviewBusy,
    #[error(
        "rate limit of {limit} requests per minute for {group} exceeded; retry in {retry_after_seconds} s"
    )]
    RateLimited { group: &'static str, limit: u32, retry_after_seconds: u64 },
    /// The attempt no longer holds the locks of its task.
    #[error("the locks of the task are lost: stop changing anything, and report how the task ended")]
    LocksLost,
    /// Concurrent changes won every attempt of an optimistic update.
    #[error("the object is being changed by others; try again")]
    Conflict,
    /// Some items of a batch were refused, so none was changed.
    #[error("{} refused, so nothing was changed", counted(.0.len(), "item of the batch was", "items of the batch were"))]
    Batch(Vec<(String, Self)>),
    #[error(transparent)]
    Database(#[from] DatabaseError),
    #[error(transparent)]
    Coordination(#[from] CoordinationError),
    /// What could not be done with a blob, and why.
    #[error("{0}")]
    Blobs(String),
    /// The archive is not the one that was written.
    #[error(
        "archive {archive_id} cannot be restored: {reason}. Restore its file from a backup, and find out who changed it"
    )]
    ForgedArchive { archive_id: String, reason: &'static str },
    /// What the operating system does not provide, such as randomness.
    #[error("{0}")]
    System(String),
}

/// What was not found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectKind {
    Task,
    Approval,
    User,
    Token,
    Session,
    Archive,
    Delivery,
    Document(DocumentKind),
}

impl fmt::Display for ObjectKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Task => "task",
            Self::Approval => "approval",
            Self::User => "user",
            Self::Token => "token",
            Self::Session => "session",
            Self::Archive => "archive",
            Self::Delivery => "delivery",
            Self::Document(kind) => kind.as_str(),
        })
    }
}

const fn how_to_get(scope: Scope) -> &'static str {
    match scope {
        Scope::Decide => "sign in with your password to decide; ade approval asks for it",
        Scope::Admin => "sign in with ade login --admin",
        Scope::Read | Scope::Propose | Scope::Lock => "create a token that has it",
    }
}

fn list(faults: &[InvalidField]) -> String {
    faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

impl Error {
    #[must_use]
    pub fn invalid(path: &str, detail: impl Into<String>) -> Self {
        Self::Invalid(vec![InvalidField::at(path, detail)])
    }

    /// The caller is known only from before the database became unavailable, which is enough for locks and nothing else.
    #[must_use]
    pub fn unverified_caller() -> Self {
        Self::Database(DatabaseError::Unavailable("the caller cannot be verified".to_owned()))
    }

    pub(crate) fn forbidden(detail: impl Into<String>) -> Self {
        Self::Forbidden(detail.into())
    }

    #[expect(clippy::needless_pass_by_value, reason = "used as a function in map_err")]
    pub(crate) fn system(reason: impl ToString) -> Self {
        Self::System(reason.to_string())
    }
}

/// Fails if there are faults.
pub(crate) fn require_valid(faults: Vec<InvalidField>) -> Result<()> {
    if faults.is_empty() { Ok(()) } else { Err(Error::Invalid(faults)) }
}
