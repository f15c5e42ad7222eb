//! Ticket routes: requests that wait without an open answer.

use ade_app::locks::TicketState;
use ade_client::wire;
use ade_domain::lock::RequestKey;
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::answers::{Always, Guarded};
use super::extract::TicketPath;
use super::{App, convert};
use crate::caller::Caller;
use crate::problem::{Answer, Problem};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(show, cancel)).routes(routes!(claim))
}

/// How a ticket stands
///
/// A ticket that holds some of its locks and waits for others must be asked for at least every ten seconds.
#[utoipa::path(get, path = "/locks/tickets/{ticket}", operation_id = "show_ticket", tag = "locks", params(("ticket" = String, Path)), responses(
    (status = 200, description = "Waiting, ready to be claimed, or granted", body = wire::Ticket),
    Always,
    Guarded,
    (status = 404, description = "TICKET_NOT_FOUND", body = wire::Problem),
    (status = 409, description = "LOCK_LOST, SUPERSEDED or CANCELLED: it is over", body = wire::Problem),
    (status = 423, description = "LOCK_HELD: it waited long enough; DEADLOCK_DETECTED with the cycle", body = wire::Problem),
))]
async fn show(
    State(app): State<App>,
    caller: Caller,
    TicketPath(ticket): TicketPath,
) -> Answer<Json<wire::Ticket>> {
    own(&app, &caller, ticket).await?;
    let state = app.locks.ticket(ticket).await;
    let state = state.map_err(|error| Problem::of_lock(error, app.locks.coordination().now()))?;
    Ok(Json(convert::ticket(ticket, &state)))
}

/// Start the leases of a ticket that is ready
#[utoipa::path(post, path = "/locks/tickets/{ticket}/claim", operation_id = "claim_ticket", tag = "locks", params(("ticket" = String, Path)), responses(
    (status = 200, description = "Its locks are held, and the leases have begun", body = wire::Ticket),
    (status = 202, description = "It still waits", body = wire::Ticket),
    Always,
    Guarded,
    (status = 404, description = "TICKET_NOT_FOUND", body = wire::Problem),
    (status = 409, description = "LOCK_LOST, SUPERSEDED or CANCELLED: it is over", body = wire::Problem),
    (status = 423, description = "LOCK_HELD: it waited long enough; DEADLOCK_DETECTED with the cycle", body = wire::Problem),
))]
async fn claim(State(app): State<App>, caller: Caller, TicketPath(ticket): TicketPath) -> Answer<Response> {
    own(&app, &caller, ticket).await?;
    let state = app.locks.claim(ticket).await;
    let state = state.map_err(|error| Problem::of_lock(error, app.locks.coordination().now()))?;
    let status = if matches!(state, TicketState::Granted(_)) { StatusCode::OK } else { StatusCode::ACCEPTED };
    Ok((status, Json(convert::ticket(ticket, &state))).into_response())
}

/// Give a ticket up, and what it won
#[utoipa::path(delete, path = "/locks/tickets/{ticket}", operation_id = "cancel_ticket", tag = "locks", params(("ticket" = String, Path)), responses(
    (status = 204, description = "It is over"),
    Always,
    Guarded,
    (status = 404, description = "TICKET_NOT_FOUND", body = wire::Problem),
))]
async fn cancel(
    State(app): State<App>,
    caller: Caller,
    TicketPath(ticket): TicketPath,
) -> Answer<StatusCode> {
    own(&app, &caller, ticket).await?;
    let cancelled = app.locks.cancel(ticket).await;
    cancelled.map_err(|error| Problem::of_lock(error, app.locks.coordination().now()))?;
    Ok(StatusCode::NO_CONTENT)
}

/// A ticket is found by whoever acts for its holder; for others it is not there.
async fn own(app: &App, caller: &Caller, ticket: RequestKey) -> Answer<()> {
    if caller.user.is_none() {
        return Ok(());
    }
    let none = || Problem::new(StatusCode::NOT_FOUND, "TICKET_NOT_FOUND", "there is no such ticket");
    let known = app.locks.coordination().recall(ticket).await?.ok_or_else(none)?;
    let acts = app.agents.acts_for(caller, known.request.holder.agent_id()).await?;
    if acts { Ok(()) } else { Err(none()) }
}
