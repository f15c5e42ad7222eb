//! Ticket routes: queued lock requests that wait without an open connection.

use ade_app::locks::TicketState;
use ade_domain::lock::RequestKey;

use super::prelude::*;
use crate::http::extract::TicketPath;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(show, cancel)).routes(routes!(claim))
}

/// Get a ticket.
///
/// A ticket that holds some of its locks and waits for others must be polled at least every ten seconds.
#[utoipa::path(get, path = "/locks/tickets/{ticket}", operation_id = "show_ticket", tag = "locks", params(("ticket" = String, Path)), responses(
    (status = 200, description = "The ticket: waiting, ready to be claimed, or granted", body = wire::Ticket), CommonErrors, TicketNotFound,
    (status = 409, description = "LOCK_LOST, SUPERSEDED or CANCELLED: the request has ended", body = wire::Problem),
    (status = 423, description = "LOCK_HELD: the wait timed out; DEADLOCK_DETECTED with the cycle", body = wire::Problem),
))]
async fn show(app: App, caller: Caller, TicketPath(ticket): TicketPath) -> JsonResult<wire::Ticket> {
    check_access(&app, &caller, ticket).await?;
    let state = app.locks.ticket(ticket).await.map_err(|error| app.lock_problem(error))?;
    Ok(Json(convert::ticket(ticket, &state, &app.locks.limits())))
}

/// Claim a ready ticket: its leases start now.
#[utoipa::path(post, path = "/locks/tickets/{ticket}/claim", operation_id = "claim_ticket", tag = "locks", params(("ticket" = String, Path)), responses(
    (status = 200, description = "All locks are granted, and the leases have started", body = wire::Ticket),
    (status = 202, description = "The ticket is still waiting", body = wire::Ticket), CommonErrors, TicketNotFound,
    (status = 409, description = "LOCK_LOST, SUPERSEDED or CANCELLED: the request has ended", body = wire::Problem),
    (status = 423, description = "LOCK_HELD: the wait timed out; DEADLOCK_DETECTED with the cycle", body = wire::Problem),
))]
async fn claim(app: App, caller: Caller, TicketPath(ticket): TicketPath) -> ApiResult {
    check_access(&app, &caller, ticket).await?;
    let state = app.locks.claim(ticket).await.map_err(|error| app.lock_problem(error))?;
    let status = if matches!(state, TicketState::Granted(_)) { StatusCode::OK } else { StatusCode::ACCEPTED };
    Ok((status, Json(convert::ticket(ticket, &state, &app.locks.limits()))).into_response())
}

/// Cancel a ticket and release the locks that it holds.
#[utoipa::path(delete, path = "/locks/tickets/{ticket}", operation_id = "cancel_ticket", tag = "locks", params(("ticket" = String, Path)), responses(
    (status = 204, description = "The ticket is cancelled"), CommonErrors, TicketNotFound,
))]
async fn cancel(app: App, caller: Caller, TicketPath(ticket): TicketPath) -> ApiResult<StatusCode> {
    check_access(&app, &caller, ticket).await?;
    app.locks.cancel(ticket).await.map_err(|error| app.lock_problem(error))?;
    Ok(StatusCode::NO_CONTENT)
}

/// Tickets of other agents are answered like unknown ones.
async fn check_access(app: &AppState, caller: &Caller, ticket: RequestKey) -> ApiResult<()> {
    if caller.user.is_none() {
        return Ok(());
    }
    let holder = app.locks.ticket_holder(ticket).await.map_err(|error| app.lock_problem(error))?;
    let holder = holder.ok_or_else(Problem::ticket_not_found)?;
    let may_act = app.agents.can_act_for(caller, holder.agent_id()).await?;
    if may_act { Ok(()) } else { Err(Problem::ticket_not_found()) }
}
