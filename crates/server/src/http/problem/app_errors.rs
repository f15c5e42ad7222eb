//! Problems of use cases: the errors of `app`, refusals of the task domain, and an unavailable database.

use ade_app::{Error, ObjectKind, RelayError};
use ade_domain::task::Refusal;
use ade_store::DatabaseError;
use ade_store::database::DocumentKind;
use axum::http::StatusCode;
use serde_json::json;

use super::Problem;

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        let detail = error.to_string();
        match error {
            Error::NotFound(object) => Self::not_found(not_found_code(object), detail),
            Error::AgentNotFound(_) => Self::not_found("AGENT_NOT_FOUND", detail),
            Error::AwaitsConfirmation { change_id, expires_at } => {
                Self::new(StatusCode::ACCEPTED, "AWAITS_CONFIRMATION", detail)
                    .with("change_id", change_id)
                    .with("expires_at", expires_at.to_string())
            }
            Error::ChangeOutdated => Self::conflict("CHANGE_OUTDATED", detail),
            Error::TooManyChanges => Self::new(StatusCode::TOO_MANY_REQUESTS, "TOO_MANY_CHANGES", detail),
            Error::Exists(_) | Error::BindingConflict(_) => Self::conflict("ALREADY_EXISTS", detail),
            Error::AgentExists(_) => Self::conflict("AGENT_EXISTS", detail),
            Error::AgentBusy(_) => Self::conflict("AGENT_BUSY", detail),
            Error::Unauthenticated(_) => Self::unauthenticated(detail),
            Error::Scope(scope) => Self::forbidden("SCOPE_MISSING", detail).with("scope", scope.as_str()),
            Error::Reauthenticate => Self::forbidden("REAUTHENTICATE", detail),
            Error::PasswordChangeRequired => Self::forbidden("PASSWORD_CHANGE_REQUIRED", detail),
            Error::WrongPassword => Self::forbidden("WRONG_PASSWORD", detail),
            Error::InvalidInvitation => Self::forbidden("INVALID_INVITATION", detail),
            Error::Replayed { .. } => Self::conflict("REPLAYED", detail),
            Error::HookSuspended(_) => Self::forbidden("HOOK_SUSPENDED", detail),
            Error::Forbidden(_) => Self::forbidden("FORBIDDEN", detail),
            Error::Invalid(faults) => faults.into(),
            Error::Refused(refusal) => refusal.into(),
            Error::Stale { now } => {
                Self::new(StatusCode::PRECONDITION_FAILED, "STALE", detail).with("revision", now)
            }
            Error::Disabled(feature) => Self::forbidden("FEATURE_DISABLED", detail).with("feature", feature),
            Error::PreviewPending => Self::unavailable("PREVIEW_PENDING", detail).retry_after(5),
            Error::PreviewBusy => Self::unavailable("PREVIEW_BUSY", detail).retry_after(5),
            Error::RateLimited { retry_after_seconds, .. } => {
                Self::new(StatusCode::TOO_MANY_REQUESTS, "RATE_LIMITED", detail)
                    .retry_after(retry_after_seconds)
            }
            Error::LocksLost => Self::lock_lost(detail),
            Error::Conflict => Self::unavailable("CONTENTION", detail).retry_after(1),
            Error::Batch(refused) => {
                let item = |(approval_id, error): (String, Error)| {
                    // With its extensions, such as what an approval lacks.
                    let problem = Self::from(error).with("approval_id", approval_id);
                    let (code, detail) = (problem.code, problem.detail.clone());
                    problem.with("code", code).with("detail", detail).extensions
                };
                let items: Vec<_> = refused.into_iter().map(item).collect();
                Self::conflict("BATCH_REFUSED", detail).with("items", items)
            }
            Error::Database(error) => error.into(),
            Error::Coordination(error) => error.into(),
            Error::Blobs(_) => {
                tracing::error!(error = detail, "blob request failed");
                let detail =
                    "the blob folder is unavailable; try again. A change may have been applied: check first";
                Self::unavailable("UNAVAILABLE", detail).retry_after(1)
            }
            Error::ForgedArchive { .. } => Self::conflict("FORGED_ARCHIVE", detail),
            Error::System(_) => {
                tracing::error!(error = detail, "the operating system failed");
                let detail = "the server lacks a resource of its operating system; retry the request";
                Self::unavailable("UNAVAILABLE", detail).retry_after(1)
            }
        }
    }
}

const fn not_found_code(object: ObjectKind) -> &'static str {
    match object {
        ObjectKind::Task => "TASK_NOT_FOUND",
        ObjectKind::Approval => "APPROVAL_NOT_FOUND",
        ObjectKind::User => "USER_NOT_FOUND",
        ObjectKind::Token => "TOKEN_NOT_FOUND",
        ObjectKind::Session => "SESSION_NOT_FOUND",
        ObjectKind::Archive => "ARCHIVE_NOT_FOUND",
        ObjectKind::Document(DocumentKind::Policy) => "POLICY_NOT_FOUND",
        ObjectKind::Document(DocumentKind::Delegation) => "DELEGATION_NOT_FOUND",
        ObjectKind::Document(DocumentKind::Resource) => "RESOURCE_NOT_FOUND",
        ObjectKind::Document(DocumentKind::Setting) => "SETTING_NOT_FOUND",
        ObjectKind::Document(DocumentKind::Feature) => "FEATURE_NOT_FOUND",
        ObjectKind::Document(DocumentKind::Change) => "CHANGE_NOT_FOUND",
        ObjectKind::Document(DocumentKind::Webhook) => "WEBHOOK_NOT_FOUND",
        ObjectKind::Document(DocumentKind::InboundHook) => "HOOK_NOT_FOUND",
        ObjectKind::Delivery => "DELIVERY_NOT_FOUND",
        ObjectKind::Document(
            DocumentKind::Binding
            | DocumentKind::RuleChange
            | DocumentKind::RemovedAgent
            | DocumentKind::SlackAccount
            | DocumentKind::ChatSecret,
        ) => "NOT_FOUND",
    }
}

impl From<RelayError> for Problem {
    fn from(error: RelayError) -> Self {
        match error {
            RelayError::Database(error) => error.into(),
            RelayError::Redis(error) => error.into(),
        }
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        let detail = refusal.to_string();
        let forbidden = |code| Self::forbidden(code, detail.clone());
        let conflict = |code| Self::conflict(code, detail.clone());
        let invalid = |code| Self::new(StatusCode::UNPROCESSABLE_ENTITY, code, detail.clone());
        match refusal {
            Refusal::InvalidTransition(refused) => {
                conflict("INVALID_TRANSITION").with("state", refused.state).with("allowed", refused.allowed)
            }
            Refusal::QuorumUnreachable(refused) => {
                invalid("NO_QUORUM").with("policy", refused.policy).with("skipped_reviewers", refused.skipped)
            }
            Refusal::Forbidden => forbidden("FORBIDDEN"),
            Refusal::OwnTask { .. } => forbidden("OWN_TASK"),
            Refusal::RoleLost { .. } => forbidden("FORBIDDEN"),
            Refusal::NotIndependent(why) => {
                let until = why.until.map(|until| until.to_string());
                let acts: Vec<_> = why
                    .links
                    .iter()
                    .map(|link| {
                        json!({ "by": link.by, "kind": link.kind, "of": link.of, "at": link.at.to_string() })
                    })
                    .collect();
                forbidden("NOT_INDEPENDENT").with("with", &why.with).with("until", until).with("acts", acts)
            }
            Refusal::ReasonRequired => invalid("REASON_REQUIRED"),
            Refusal::TicketRequired => invalid("TICKET_REQUIRED"),
            Refusal::ScopeMismatch => conflict("STALE_SCOPE"),
            Refusal::DigestMismatch => conflict("DIGEST_MISMATCH"),
            Refusal::FrictionRequired(lacking) => {
                let needs: Vec<String> = lacking.needs.iter().map(ToString::to_string).collect();
                invalid("FRICTION_REQUIRED").with("needs", needs).with("level", lacking.level)
            }
            Refusal::NotInBatch { level } => conflict("NOT_IN_BATCH").with("level", level),
            Refusal::PasswordTooOld => forbidden("REAUTHENTICATE"),
            Refusal::AlreadyDecided { state } => conflict("ALREADY_DECIDED").with("state", state),
            Refusal::PreviewChanged => conflict("PREVIEW_CHANGED"),
            Refusal::NotLowRisk => forbidden("NOT_LOW_RISK"),
            Refusal::ChatSecretHolder { .. } | Refusal::ApprovedInChat { .. } => forbidden("NOT_INDEPENDENT"),
            Refusal::UnknownApproval => Self::not_found("APPROVAL_NOT_FOUND", detail),
            Refusal::NotReviewer { reviewer } => forbidden("NOT_A_REVIEWER").with("reviewer", reviewer),
            Refusal::ApprovalClosed { status } => conflict("APPROVAL_CLOSED").with("approval_status", status),
            Refusal::NoOverrideRequest => conflict("NO_OVERRIDE"),
            Refusal::SameAdmin { .. } => forbidden("SAME_ADMIN"),
            Refusal::EditedTask => conflict("EDITED_TASK"),
            Refusal::InvalidReviewer { .. } => invalid("INVALID_REVIEWER"),
            Refusal::TooManyApprovalRequests { .. } => conflict("TOO_MANY_REQUESTS"),
            Refusal::NotCurrentAttempt { current, .. } => conflict("NOT_PRESENT").with("attempt", current),
            Refusal::Stopped => conflict("STOPPED"),
            Refusal::TimedOut => conflict("TIMED_OUT"),
            Refusal::WorkerNotLost => conflict("NOT_LOST"),
            Refusal::Held { until } => conflict("HELD").with("held_until", until.to_string()),
            Refusal::NothingToRollBack => conflict("NOTHING_TO_ROLL_BACK"),
            Refusal::ReviewRequired { agent, policy } => {
                conflict("REVIEW_REQUIRED").with("agent_id", agent).with("policy", policy)
            }
            Refusal::RestoredTask => conflict("RESTORED_TASK"),
        }
    }
}

impl From<DatabaseError> for Problem {
    fn from(error: DatabaseError) -> Self {
        match error {
            DatabaseError::DuplicateIdempotencyKey => Self::in_flight(),
            DatabaseError::AlreadyExists { .. } => {
                Self::conflict("ALREADY_EXISTS", "an object with this id already exists; use another id")
            }
            DatabaseError::Conflict { .. } => {
                Self::unavailable("CONTENTION", error.to_string()).retry_after(1)
            }
            DatabaseError::Unavailable(_) => {
                tracing::error!(%error, "database request failed");
                let detail = "the database is unavailable; try again. A change may have been applied: check, or repeat it with the same \
                              Idempotency-Key";
                Self::unavailable("UNAVAILABLE", detail).retry_after(1)
            }
            DatabaseError::Corrupt(_) | DatabaseError::Superseded(_) => {
                tracing::error!(%error, "corrupt data in the database");
                let detail = "the database contains data that this version cannot read; see the server log";
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, "INTERNAL", detail)
            }
        }
    }
}
