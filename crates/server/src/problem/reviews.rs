//! Failures of use cases on the record, as they are told.

use ade_app::Error;
use ade_domain::task::Refusal;
use ade_store::DatabaseError;
use axum::http::StatusCode;
use serde_json::json;

use super::Problem;

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        let detail = error.to_string();
        match error {
            Error::NotFound(what) => Self::new(StatusCode::NOT_FOUND, not_found(what), detail),
            Error::Exists(_) => Self::new(StatusCode::CONFLICT, "ALREADY_EXISTS", detail),
            Error::Unauthenticated(_) => Self::new(StatusCode::UNAUTHORIZED, "UNAUTHENTICATED", detail),
            Error::Scope(scope) => {
                Self::new(StatusCode::FORBIDDEN, "SCOPE_MISSING", detail).fact("scope", scope.word())
            }
            Error::Forbidden(_) => Self::new(StatusCode::FORBIDDEN, "FORBIDDEN", detail),
            Error::Invalid(faults) => faults.into(),
            Error::Refused(refusal) => refusal.into(),
            Error::Stale { now } => {
                Self::new(StatusCode::PRECONDITION_FAILED, "STALE", detail).fact("revision", now)
            }
            Error::Disabled(feature) => {
                Self::new(StatusCode::FORBIDDEN, "FEATURE_DISABLED", detail).fact("feature", feature)
            }
            Error::PreviewPending => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "PREVIEW_PENDING", detail).retry_after(5)
            }
            Error::LocksLost => Self::new(StatusCode::CONFLICT, "LOCK_LOST", detail),
            Error::Overtaken => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "CONTENTION", detail).retry_after(1)
            }
            Error::Batch(refused) => {
                let item = |(approval_id, error): (String, Error)| {
                    let problem = Self::from(error);
                    json!({ "approval_id": approval_id, "code": problem.code, "detail": problem.detail })
                };
                let items: Vec<_> = refused.into_iter().map(item).collect();
                Self::new(StatusCode::CONFLICT, "BATCH_REFUSED", detail).fact("items", items)
            }
            Error::Record(error) => error.into(),
        }
    }
}

const fn not_found(what: &str) -> &'static str {
    match what.as_bytes() {
        b"task" => "TASK_NOT_FOUND",
        b"approval" => "APPROVAL_NOT_FOUND",
        b"user" => "USER_NOT_FOUND",
        b"token" => "TOKEN_NOT_FOUND",
        b"session" => "SESSION_NOT_FOUND",
        b"policy" => "POLICY_NOT_FOUND",
        b"delegation" => "DELEGATION_NOT_FOUND",
        b"resource" => "RESOURCE_NOT_FOUND",
        b"setting" => "SETTING_NOT_FOUND",
        b"feature" => "FEATURE_NOT_FOUND",
        b"agent" => "AGENT_NOT_FOUND",
        b"archive" => "ARCHIVE_NOT_FOUND",
        _ => "NOT_FOUND",
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        let detail = refusal.to_string();
        let forbidden = |code| Self::new(StatusCode::FORBIDDEN, code, detail.clone());
        let conflict = |code| Self::new(StatusCode::CONFLICT, code, detail.clone());
        let invalid = |code| Self::new(StatusCode::UNPROCESSABLE_ENTITY, code, detail.clone());
        match refusal {
            Refusal::InvalidTransition(refused) => {
                conflict("INVALID_TRANSITION").fact("state", refused.state).fact("allowed", refused.allowed)
            }
            Refusal::NoQuorum(refused) => {
                invalid("NO_QUORUM").fact("policy", refused.policy).fact("passed_by", refused.passed_by)
            }
            Refusal::Forbidden => forbidden("FORBIDDEN"),
            Refusal::OwnTask { .. } => forbidden("OWN_TASK"),
            Refusal::ReasonRequired => invalid("REASON_REQUIRED"),
            Refusal::TicketRequired => invalid("TICKET_REQUIRED"),
            Refusal::DigestMismatch { current } => conflict("DIGEST_MISMATCH").fact("digest", current),
            Refusal::AlreadyDecided { state } => conflict("ALREADY_DECIDED").fact("state", state),
            Refusal::UnknownApproval => Self::new(StatusCode::NOT_FOUND, "APPROVAL_NOT_FOUND", detail),
            Refusal::NotAsked { reviewer } => forbidden("NOT_ASKED").fact("reviewer", reviewer),
            Refusal::NotAnswerable { status } => conflict("NOT_ANSWERABLE").fact("approval_status", status),
            Refusal::NoOverride => conflict("NO_OVERRIDE"),
            Refusal::SameAdmin { .. } => forbidden("SAME_ADMIN"),
            Refusal::CannotBeAsked { .. } => invalid("CANNOT_BE_ASKED"),
            Refusal::TooManyRequests { .. } => conflict("TOO_MANY_REQUESTS"),
            Refusal::NotPresent { current, .. } => conflict("NOT_PRESENT").fact("attempt", current),
            Refusal::Stopped => conflict("STOPPED"),
            Refusal::TimedOut => conflict("TIMED_OUT"),
            Refusal::NotLost => conflict("NOT_LOST"),
            Refusal::NothingToRollBack => conflict("NOTHING_TO_ROLL_BACK"),
        }
    }
}

impl From<DatabaseError> for Problem {
    fn from(error: DatabaseError) -> Self {
        match error {
            DatabaseError::AnsweredAlready => Self::in_flight(),
            DatabaseError::Exists { .. } => {
                Self::new(StatusCode::CONFLICT, "ALREADY_EXISTS", "there is one already")
            }
            DatabaseError::Conflict { .. } => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "CONTENTION", error.to_string()).retry_after(1)
            }
            DatabaseError::Unavailable(_) => {
                tracing::error!(%error, "the record failed");
                let detail = "the record cannot be reached now; what was asked may have happened: look, or repeat it with \
                              its Idempotency-Key";
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "UNAVAILABLE", detail).retry_after(1)
            }
            DatabaseError::Foreign(_) => {
                tracing::error!(%error, "the record holds something strange");
                let detail =
                    "the record holds something that ade did not write; the log of the server says what";
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, "INTERNAL", detail)
            }
        }
    }
}

impl Problem {
    /// Another request with the same key is served just now, here or elsewhere.
    pub(crate) fn in_flight() -> Self {
        let detail =
            "a request with this Idempotency-Key is being served; repeat it in a moment for its answer";
        Self::new(StatusCode::CONFLICT, "IN_FLIGHT", detail).retry_after(1)
    }
}
