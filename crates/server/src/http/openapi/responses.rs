//! Error responses that many routes share, for the OpenAPI document. A route that lists a status again overrides it.

#![expect(
    dead_code,
    reason = "never constructed: the types only describe responses of extractors and problems"
)]

use ade_client::wire::Problem;
use utoipa::IntoResponses;

/// Of every authenticated route.
#[derive(IntoResponses)]
pub(crate) enum CommonErrors {
    /// UNAUTHENTICATED
    #[response(status = 401)]
    Unauthenticated(Problem),
    /// FORBIDDEN, SCOPE_MISSING or CSRF
    #[response(status = 403)]
    Forbidden(Problem),
    /// RATE_LIMITED
    #[response(status = 429)]
    RateLimited(Problem),
    /// UNAVAILABLE
    #[response(status = 503)]
    Unavailable(Problem),
}

/// Of routes with a body.
#[derive(IntoResponses)]
pub(crate) enum BodyErrors {
    /// MALFORMED_JSON
    #[response(status = 400)]
    Malformed(Problem),
    /// BODY_TOO_SLOW
    #[response(status = 408)]
    TooSlow(Problem),
    /// BODY_TOO_LARGE
    #[response(status = 413)]
    TooLarge(Problem),
}

/// Of routes that accept an Idempotency-Key.
#[derive(IntoResponses)]
pub(crate) enum IdempotencyErrors {
    /// INVALID_REQUEST or IDEMPOTENCY_KEY_REUSED
    #[response(status = 422)]
    Invalid(Problem),
    /// UNAVAILABLE or CONTENTION
    #[response(status = 503)]
    Unavailable(Problem),
}

/// Of routes that act on an existing object and accept If-Match.
#[derive(IntoResponses)]
pub(crate) enum PreconditionErrors {
    /// STALE: the object has a newer revision
    #[response(status = 412)]
    Stale(Problem),
}

/// Of routes that update or delete an object and accept If-Match.
#[derive(IntoResponses)]
pub(crate) enum UpdateErrors {
    /// STALE: the object has a newer revision
    #[response(status = 412)]
    Stale(Problem),
    /// INVALID_REQUEST
    #[response(status = 422)]
    Invalid(Problem),
    /// UNAVAILABLE or CONTENTION
    #[response(status = 503)]
    Unavailable(Problem),
}

/// Of routes that decide about a task.
#[derive(IntoResponses)]
pub(crate) enum DecisionErrors {
    /// OWN_TASK, NOT_ASKED, SAME_ADMIN, FORBIDDEN, SCOPE_MISSING or CSRF
    #[response(status = 403)]
    Forbidden(Problem),
    /// TASK_NOT_FOUND or APPROVAL_NOT_FOUND
    #[response(status = 404)]
    NotFound(Problem),
    /// INVALID_TRANSITION, ALREADY_DECIDED, DIGEST_MISMATCH, NOT_ANSWERABLE, NO_OVERRIDE or IN_FLIGHT
    #[response(status = 409)]
    Conflict(Problem),
    /// STALE: the object has a newer revision
    #[response(status = 412)]
    Stale(Problem),
    /// INVALID_REQUEST, REASON_REQUIRED, TICKET_REQUIRED, CANNOT_BE_ASKED or IDEMPOTENCY_KEY_REUSED
    #[response(status = 422)]
    Invalid(Problem),
}
