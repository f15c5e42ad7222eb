//! Carrying tasks out: what agents ask for and say, what administrators do to tasks under way, and how they stand.

#![expect(unused_qualifications, reason = "the macro that describes parameters qualifies them")]

use std::time::Duration;

use ade_app::Outcome;
use ade_app::tasks::Command;
use ade_app::worker::Report;
use ade_client::wire;
use ade_domain::lock::Holder;
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::App;
use super::answers::{Always, Guarded, OfBody, OfDecision, OfPost};
use super::convert::execution as told;
use super::extract::{Params, Segment};
use crate::caller::Caller;
use crate::posted::Posted;
use crate::problem::{Answer, Problem};

/// How long an open answer waits for work, at most.
const LONGEST_WAIT: f64 = 60.0;
const MOST_TYPES: usize = 50;
/// Bytes of what is said at once.
const LONGEST_LINE: usize = 65_536;
const MOST_LINES: u32 = 1_000;
/// Bytes of an error.
const LONGEST_ERROR: usize = 16_384;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(claim))
        .routes(routes!(heartbeat))
        .routes(routes!(logs, log))
        .routes(routes!(complete))
        .routes(routes!(stop))
        .routes(routes!(roll_back))
        .routes(routes!(show))
}

/// Ask for work as an agent
///
/// A task that names the agent, or something that it can, with its locks held for it. From then on the agent says every few
/// seconds that it is alive, and at the end how it went. With an `Idempotency-Key` a repeated request gets the same task.
#[utoipa::path(post, path = "/tasks/claim", operation_id = "claim_task", tag = "tasks", request_body = wire::ClaimRequest, responses(
    (status = 200, description = "The agent carries it out from now on", body = wire::Claim),
    (status = 204, description = "There is no work for this agent now"),
    OfBody,
    Always,
    Guarded,
    OfPost,
    (status = 409, description = "IN_FLIGHT", body = wire::Problem),
    (status = 503, description = "UNAVAILABLE, CONTENTION or STOPPING", body = wire::Problem),
))]
async fn claim(State(app): State<App>, posted: Posted<wire::ClaimRequest>) -> Answer<Response> {
    let wire::ClaimRequest { agent_id, types, wait_seconds } = posted.body.clone();
    // Whoever is named for the first time is known from now on: by a name that an agent can have.
    if let Some(id) = &agent_id {
        Holder::new(id, None).map_err(|error| Problem::invalid_at("/agent_id", error.to_string()))?;
    }
    if types.len() > MOST_TYPES {
        return Err(Problem::invalid_at("/types", format!("may be at most {MOST_TYPES}")));
    }
    let wait = wait_seconds.unwrap_or(0.0);
    if !(0.0..=LONGEST_WAIT).contains(&wait) {
        return Err(Problem::invalid_at("/wait_seconds", format!("must be between 0 and {LONGEST_WAIT}")));
    }
    let work = async {
        let wait = Duration::from_secs_f64(wait);
        Ok(app.pulls.claim(agent_id.as_deref(), &types, wait, &posted.caller).await?)
    };
    Ok(match app.unless_stopping(work).await? {
        Some(task) => posted.answer(Outcome::Claim(&task)),
        None => StatusCode::NO_CONTENT.into_response(),
    })
}

/// An agent says that it is alive
#[utoipa::path(post, path = "/tasks/{id}/heartbeat", operation_id = "task_heartbeat", tag = "tasks", params(("id" = String, Path)), request_body = wire::AttemptRequest, responses(
    (status = 200, description = "Its lease and its locks go on", body = wire::Alive),
    OfBody,
    Always,
    Guarded,
    (status = 404, description = "TASK_NOT_FOUND", body = wire::Problem),
    (status = 409, description = "NOT_PRESENT: the attempt does not count any more; TIMED_OUT or STOPPED: its time is over; or LOCK_LOST", body = wire::Problem),
    (status = 422, description = "INVALID_REQUEST", body = wire::Problem),
))]
async fn heartbeat(
    State(app): State<App>,
    caller: Caller,
    Segment(id): Segment,
    super::extract::Body(body): super::extract::Body<wire::AttemptRequest>,
) -> Answer<Json<wire::Alive>> {
    let alive = app.pulls.heartbeat(&id, body.attempt, &caller).await?;
    Ok(Json(wire::Alive { lease_until: alive.lease_until.into(), stop: alive.stop }))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct LogParams {
    /// Only what was said after the line with this number.
    #[param(minimum = 0)]
    after: Option<u64>,
    /// At most 1000; 200 unless said.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
}

/// What was said while a task was carried out
#[utoipa::path(get, path = "/tasks/{id}/logs", operation_id = "task_logs", tag = "tasks", params(("id" = String, Path), LogParams), responses(
    (status = 200, description = "In order; whoever follows asks again for what comes after the last", body = wire::Page<wire::LogLine>),
    Always,
    Guarded,
    (status = 404, description = "TASK_NOT_FOUND", body = wire::Problem),
    (status = 422, description = "INVALID_REQUEST", body = wire::Problem),
))]
async fn logs(
    State(app): State<App>,
    caller: Caller,
    Segment(id): Segment,
    Params(params): Params<LogParams>,
) -> Answer<Json<wire::Page<wire::LogLine>>> {
    let limit = params.limit.unwrap_or(200);
    if !(1..=MOST_LINES).contains(&limit) {
        return Err(Problem::invalid_at("?limit", format!("must be between 1 and {MOST_LINES}")));
    }
    let after = params.after.unwrap_or(0);
    if i64::try_from(after).is_err() {
        return Err(Problem::invalid_at("?after", "is not the number of a line"));
    }
    let (lines, _) = app.pulls.logs(&id, after, limit, &caller).await?;
    let full = lines.len() == limit as usize;
    let next_cursor = lines.last().filter(|_| full).map(|line| line.number.to_string());
    Ok(Json(wire::Page { items: lines.iter().map(told::line).collect(), next_cursor }))
}

/// An agent says what it does
#[utoipa::path(post, path = "/tasks/{id}/logs", operation_id = "log_task", tag = "tasks", params(("id" = String, Path)), request_body = wire::LogRequest, responses(
    (status = 204, description = "Kept, as long as there is room"),
    OfBody,
    Always,
    Guarded,
    OfPost,
    (status = 404, description = "TASK_NOT_FOUND", body = wire::Problem),
    (status = 409, description = "NOT_PRESENT: the attempt does not count any more; or IN_FLIGHT", body = wire::Problem),
))]
async fn log(
    State(app): State<App>,
    Segment(id): Segment,
    posted: Posted<wire::LogRequest, 204>,
) -> Answer<Response> {
    let wire::LogRequest { attempt, text } = &posted.body;
    if !(1..=LONGEST_LINE).contains(&text.len()) {
        return Err(Problem::invalid_at("/text", format!("must have 1 to {LONGEST_LINE} bytes")));
    }
    app.pulls.log(&id, *attempt, text, &posted.caller).await?;
    Ok(posted.answer(Outcome::Said))
}

/// An agent says how it ended; saying the same again is answered the same
#[utoipa::path(post, path = "/tasks/{id}/complete", operation_id = "complete_task", tag = "tasks", params(("id" = String, Path)), request_body = wire::CompleteRequest, responses(
    (status = 200, description = "The task as it is now", body = wire::Task),
    OfBody,
    Always,
    Guarded,
    (status = 404, description = "TASK_NOT_FOUND", body = wire::Problem),
    (status = 409, description = "NOT_PRESENT: the attempt does not count any more", body = wire::Problem),
    (status = 422, description = "INVALID_REQUEST", body = wire::Problem),
))]
async fn complete(
    State(app): State<App>,
    caller: Caller,
    Segment(id): Segment,
    super::extract::Body(body): super::extract::Body<wire::CompleteRequest>,
) -> Answer<Json<wire::Task>> {
    let wire::CompleteRequest { attempt, result, output, error } = body;
    if error.as_ref().is_some_and(|error| error.len() > LONGEST_ERROR) {
        return Err(Problem::invalid_at("/error", format!("may have at most {LONGEST_ERROR} bytes")));
    }
    let report = Report { attempt, result, output, error };
    let task = app.pulls.complete(&id, report, &caller).await?;
    Ok(Json(super::convert::reviews::task(&task, &caller, app.reviews.now())))
}

async fn command(
    app: &App,
    id: &str,
    command: Command,
    posted: &Posted<wire::Reason, 202>,
) -> Answer<Response> {
    let task = app.reviews.command(id, command, posted.body.reason.as_deref(), &posted.caller).await?;
    Ok(posted.answer(Outcome::Task(&task)))
}

/// Stop a task that is carried out (admin)
///
/// Whoever carries it out is told, ends, and what it changed is changed back if the task wants that. It ends as FAILED, with the
/// result `cancelled`.
#[utoipa::path(post, path = "/tasks/{id}/stop", operation_id = "stop_task", tag = "tasks", params(("id" = String, Path)), request_body = wire::Reason, responses(
    (status = 202, description = "Whoever carries it out will be told", body = wire::Task),
    OfBody, Always, Guarded, OfPost, OfDecision,
))]
async fn stop(
    State(app): State<App>,
    Segment(id): Segment,
    posted: Posted<wire::Reason, 202>,
) -> Answer<Response> {
    command(&app, &id, Command::Stop, &posted).await
}

/// Undo what a failed task left behind (admin), for the rollback strategy `manual`
#[utoipa::path(post, path = "/tasks/{id}/rollback", operation_id = "roll_back_task", tag = "tasks", params(("id" = String, Path)), request_body = wire::Reason, responses(
    (status = 202, description = "A worker will undo it", body = wire::Task),
    OfBody, Always, Guarded, OfPost, OfDecision,
    (status = 409, description = "INVALID_TRANSITION, NOTHING_TO_ROLL_BACK or IN_FLIGHT", body = wire::Problem),
))]
async fn roll_back(
    State(app): State<App>,
    Segment(id): Segment,
    posted: Posted<wire::Reason, 202>,
) -> Answer<Response> {
    command(&app, &id, Command::RollBack, &posted).await
}

/// How carrying a task out stands
#[utoipa::path(get, path = "/tasks/{id}/execution", operation_id = "task_execution", tag = "tasks", params(("id" = String, Path)), responses(
    (status = 200, description = "The present attempt, or the last one", body = wire::Execution),
    Always,
    Guarded,
    (status = 404, description = "TASK_NOT_FOUND, or NOT_EXECUTED: nobody began to carry it out", body = wire::Problem),
    (status = 422, description = "INVALID_REQUEST", body = wire::Problem),
))]
async fn show(State(app): State<App>, caller: Caller, Segment(id): Segment) -> Answer<Json<wire::Execution>> {
    let task = app.reviews.task(&id, &caller).await?;
    let none = || Problem::new(StatusCode::NOT_FOUND, "NOT_EXECUTED", "nobody began to carry this task out");
    task.execution.as_ref().map(|one| Json(told::execution(one))).ok_or_else(none)
}
