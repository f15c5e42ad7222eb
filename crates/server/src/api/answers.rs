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
