//! The route that compares the projections in Redis with the database.

use std::pin::Pin;

use ade_domain::permission::Scope;
use ade_store::redis::projections::Difference;
use serde::Deserialize;
use utoipa::IntoParams;

use super::prelude::*;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(check))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct CheckParams {
    /// Compare everything instead of a sample.
    #[serde(default)]
    full: bool,
}

/// Compare the projections in Redis with the database (admin).
///
/// Projections may lag behind for a moment: what differs is read again after two seconds, and only what still differs is listed.
#[utoipa::path(get, path = "/projections/check", operation_id = "check_projections", tag = "operations", params(CheckParams), responses(
    (status = 200, description = "The differences, at most 1000", body = wire::ProjectionCheck), ReadErrors,
))]
async fn check(
    app: App,
    caller: Caller,
    Params(params): Params<CheckParams>,
) -> JsonResult<wire::ProjectionCheck> {
    caller.require_scope(Scope::Admin)?;
    if !caller.is_admin() {
        return Err(Problem::forbidden("FORBIDDEN", "only administrators may compare the projections"));
    }
    let Some(relay) = &app.relay else { return Ok(Json(wire::ProjectionCheck::default())) };
    // On the heap and behind a trait object: the future nests deeply.
    let check: Pin<Box<dyn Future<Output = _> + Send + '_>> = Box::pin(relay.check(params.full));
    let checked = app.unless_stopping(async { Ok(check.await?) }).await?;
    let difference = |found: Difference| wire::ProjectionDifference {
        key: found.key,
        object: found.object,
        detail: found.detail,
    };
    Ok(Json(wire::ProjectionCheck {
        enabled: true,
        complete: checked.is_complete,
        objects: checked.objects,
        differences: checked.differences.into_iter().map(difference).collect(),
    }))
}
