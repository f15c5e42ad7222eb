//! Answers that many routes share, for the description of the API.

#![expect(dead_code, reason = "nobody makes these: they describe what extractors and problems answer")]

use ade_client::wire::Problem;
use utoipa::IntoResponses;

/// What every route with a caller may answer. A route that has more to say about a status lists it after this.
#[derive(IntoResponses)]
pub(super) enum Always {
    /// UNAUTHENTICATED
    #[response(status = 401)]
    NoToken(Problem),
    /// UNAVAILABLE
    #[response(status = 503)]
    Unavailable(Problem),
}

/// What every route may answer whose caller may not be allowed.
#[derive(IntoResponses)]
pub(super) enum Guarded {
    /// FORBIDDEN, SCOPE_MISSING or CSRF
    #[response(status = 403)]
    Forbidden(Problem),
    /// RATE_LIMITED
    #[response(status = 429)]
    TooMany(Problem),
}

/// What every route may answer that takes an Idempotency-Key.
#[derive(IntoResponses)]
pub(super) enum OfPost {
    /// INVALID_REQUEST or IDEMPOTENCY_KEY_REUSED
    #[response(status = 422)]
    Invalid(Problem),
    /// UNAVAILABLE or CONTENTION
    #[response(status = 503)]
    Unavailable(Problem),
}

/// What every route may answer that does something to what is there: with If-Match, only if that is what the caller saw.
#[derive(IntoResponses)]
pub(super) enum OfMatch {
    /// STALE: it was changed meanwhile
    #[response(status = 412)]
    Stale(Problem),
}

/// What every route may answer by which people decide.
#[derive(IntoResponses)]
pub(super) enum OfDecision {
    /// OWN_TASK, NOT_ASKED, SAME_ADMIN, FORBIDDEN, SCOPE_MISSING or CSRF
    #[response(status = 403)]
    Forbidden(Problem),
    /// TASK_NOT_FOUND or APPROVAL_NOT_FOUND
    #[response(status = 404)]
    NotFound(Problem),
    /// INVALID_TRANSITION, ALREADY_DECIDED, DIGEST_MISMATCH, NOT_ANSWERABLE, NO_OVERRIDE or IN_FLIGHT
    #[response(status = 409)]
    Conflict(Problem),
    /// STALE: it was changed meanwhile
    #[response(status = 412)]
    Stale(Problem),
    /// INVALID_REQUEST, REASON_REQUIRED, TICKET_REQUIRED, CANNOT_BE_ASKED or IDEMPOTENCY_KEY_REUSED
    #[response(status = 422)]
    Invalid(Problem),
}

/// What every route may answer that changes something and takes If-Match.
#[derive(IntoResponses)]
pub(super) enum OfChange {
    /// STALE: it was changed meanwhile
    #[response(status = 412)]
    Stale(Problem),
    /// INVALID_REQUEST
    #[response(status = 422)]
    Invalid(Problem),
    /// UNAVAILABLE or CONTENTION
    #[response(status = 503)]
    Unavailable(Problem),
}

/// What every route with a body may answer.
#[derive(IntoResponses)]
pub(super) enum OfBody {
    /// MALFORMED_JSON
    #[response(status = 400)]
    Malformed(Problem),
    /// BODY_TOO_SLOW
    #[response(status = 408)]
    Slow(Problem),
    /// BODY_TOO_LARGE
    #[response(status = 413)]
    Large(Problem),
}
