//! Execution routes: agents claim tasks and report on them; administrators stop them and roll them back.

use std::time::Duration;

use ade_app::tasks::ExecutionCommand;
use ade_app::worker::ClaimFilter;
use ade_domain::lock::Holder;

use super::prelude::*;

/// Of a claim that waits for a task.
const MAX_WAIT_SECONDS: f64 = 60.0;
const MAX_TASK_TYPES: usize = 50;
const MAX_LOG_TEXT_BYTES: usize = 65_536;
const DEFAULT_LOG_LINES: u32 = 200;
const MAX_LOG_LINES: u32 = 1_000;
const MAX_ERROR_BYTES: usize = 16_384;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(claim))
        .routes(routes!(heartbeat))
        .routes(routes!(logs, log))
        .routes(routes!(complete))
        .routes(routes!(stop))
        .routes(routes!(roll_back))
        .routes(routes!(show))
}

/// Claim a task as an agent.
///
/// Returns an approved task that names the agent or one of its capabilities, with its locks held for the agent. The agent
/// must then send heartbeats until it reports the result. With an `Idempotency-Key`, a repeated request returns the same
/// task. A task that was approved without a policy that names this agent is skipped; asking for it by `task_id` fails.
#[utoipa::path(post, path = "/tasks/claim", operation_id = "claim_task", tag = "tasks", request_body = wire::ClaimRequest, responses(
    (status = 200, description = "The claimed task", body = wire::TaskClaim),
    (status = 204, description = "There is no task for this agent"), PostErrors, TaskNotFound,
    (status = 409, description = "REVIEW_REQUIRED or IN_FLIGHT", body = wire::Problem),
    (status = 503, description = "UNAVAILABLE, CONTENTION or STOPPING", body = wire::Problem),
))]
async fn claim(app: App, request: IdempotentPost<wire::ClaimRequest>) -> ApiResult {
    let wire::ClaimRequest { agent_id, task_id, types, wait_seconds } = request.body.clone();
    // An unknown agent is registered by its claim, so its id must be valid.
    if let Some(id) = &agent_id {
        Holder::new(id, None).map_err(|error| Problem::invalid_at("/agent_id", error))?;
    }
    if types.len() > MAX_TASK_TYPES {
        return Err(Problem::invalid_at(
            "/types",
            format!("may have at most {MAX_TASK_TYPES} items, not {}", types.len()),
        ));
    }
    let wait_seconds = wait_seconds.unwrap_or(0.0);
    if !(0.0..=MAX_WAIT_SECONDS).contains(&wait_seconds) {
        let detail = format!("must be between 0 and {MAX_WAIT_SECONDS}, not {wait_seconds}");
        return Err(Problem::invalid_at("/wait_seconds", detail));
    }
    let claim = async {
        let wait = Duration::from_secs_f64(wait_seconds);
        let filter = ClaimFilter { task_id, types };
        Ok(app.agent_work.claim(agent_id.as_deref(), &filter, wait, &request.caller).await?)
    };
    Ok(match app.unless_stopping(claim).await? {
        Some(task) => request.respond(Outcome::Claim(request.view(&task))),
        None => StatusCode::NO_CONTENT.into_response(),
    })
}

/// Send a heartbeat for a claimed task.
#[utoipa::path(post, path = "/tasks/{id}/heartbeat", operation_id = "task_heartbeat", tag = "tasks", params(("id" = String, Path)), request_body = wire::TaskHeartbeatRequest, responses(
    (status = 200, description = "The lease and the locks are extended", body = wire::TaskLease), BodyErrors, TaskNotFound,
    (status = 409, description = "NOT_PRESENT: this is not the current attempt; TIMED_OUT or STOPPED: the attempt must end; LOCK_LOST: the locks are lost", body = wire::Problem),
))]
async fn heartbeat(
    app: App,
    caller: Caller,
    Param(id): Param,
    JsonBody(body): JsonBody<wire::TaskHeartbeatRequest>,
) -> JsonResult<wire::TaskLease> {
    let renewed = app.agent_work.heartbeat(&id, body.attempt, &caller).await?;
    Ok(Json(wire::TaskLease { lease_until: renewed.lease_until.convert(), stop: renewed.stop_requested }))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct LogParams {
    /// Only lines after the line with this number.
    #[param(minimum = 0)]
    after: Option<u64>,
    /// Number of lines; 200 by default, at most 1000.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// Only this many last lines, at most 1000; without `after` and `limit`.
    #[param(minimum = 1, maximum = 1000)]
    tail: Option<u32>,
}

/// List the log of a task's execution.
#[utoipa::path(get, path = "/tasks/{id}/logs", operation_id = "task_logs", tag = "tasks", params(("id" = String, Path), LogParams), responses(
    (status = 200, description = "Log lines in order; to follow the log, repeat the request with the last number as `after`, and begin with `tail` to leave out what was before", body = wire::Page<wire::LogLine>),
    ReadErrors, TaskNotFound,
))]
async fn logs(
    app: App,
    caller: Caller,
    Param(id): Param,
    Params(params): Params<LogParams>,
) -> PageResult<wire::LogLine> {
    let check = |name: &str, lines: u32| match lines {
        1..=MAX_LOG_LINES => Ok(()),
        _ => Err(Problem::invalid_at(name, format!("must be between 1 and {MAX_LOG_LINES}, not {lines}"))),
    };
    if let Some(tail) = params.tail {
        check("?tail", tail)?;
        if params.after.is_some() || params.limit.is_some() {
            return Err(Problem::invalid_at("?tail", "cannot be combined with after or limit"));
        }
        let (lines, _) = app.agent_work.log_end(&id, tail, &caller).await?;
        // Nothing follows the end.
        return Ok(Json(wire::Page { items: lines.convert(), next_cursor: None }));
    }
    let limit = params.limit.unwrap_or(DEFAULT_LOG_LINES);
    check("?limit", limit)?;
    let after = params.after.unwrap_or(0);
    if i64::try_from(after).is_err() {
        return Err(Problem::invalid_at("?after", "is too large for a line number"));
    }
    let (lines, _) = app.agent_work.logs(&id, after, limit, &caller).await?;
    let is_full = lines.len() == limit as usize;
    let next_cursor = lines.last().filter(|_| is_full).map(|line| line.number.to_string());
    Ok(Json(wire::Page { items: lines.convert(), next_cursor }))
}

/// Append to the log of a claimed task.
#[utoipa::path(post, path = "/tasks/{id}/logs", operation_id = "log_task", tag = "tasks", params(("id" = String, Path)), request_body = wire::LogRequest, responses(
    (status = 204, description = "Accepted; dropped if the log of the task is full"), PostErrors, TaskNotFound,
    (status = 409, description = "NOT_PRESENT: this is not the current attempt; or IN_FLIGHT", body = wire::Problem),
))]
async fn log(app: App, Param(id): Param, request: IdempotentPost<wire::LogRequest, 204>) -> ApiResult {
    let wire::LogRequest { attempt, text } = &request.body;
    if !(1..=MAX_LOG_TEXT_BYTES).contains(&text.len()) {
        return Err(Problem::invalid_at("/text", format!("must have 1 to {MAX_LOG_TEXT_BYTES} bytes")));
    }
    app.agent_work.log(&id, *attempt, text, &request.caller).await?;
    Ok(request.respond(Outcome::Done))
}

/// Report the result of a claimed task. Repeating the same report returns the same response.
#[utoipa::path(post, path = "/tasks/{id}/complete", operation_id = "complete_task", tag = "tasks", params(("id" = String, Path)), request_body = wire::CompleteRequest, responses(
    (status = 200, description = "The updated task", body = wire::Task), BodyErrors, TaskNotFound,
    (status = 409, description = "NOT_PRESENT: this is not the current attempt", body = wire::Problem),
))]
async fn complete(
    app: App,
    caller: Caller,
    Param(id): Param,
    JsonBody(body): JsonBody<wire::CompleteRequest>,
) -> JsonResult<wire::Task> {
    if body.error.as_ref().is_some_and(|error| error.len() > MAX_ERROR_BYTES) {
        return Err(Problem::invalid_at("/error", format!("may have at most {MAX_ERROR_BYTES} bytes")));
    }
    let task = app.agent_work.complete(&id, body.convert(), &caller).await?;
    Ok(Json(convert::task(*TaskView::new(&task, &caller, app.tasks.now()))))
}

async fn run_command(
    app: &AppState,
    id: &str,
    command: ExecutionCommand,
    request: &IdempotentPost<wire::ReasonRequest, 202>,
) -> ApiResult {
    let task =
        app.tasks.control_execution(id, command, request.body.reason.as_deref(), &request.caller).await?;
    Ok(request.respond_task(&task))
}

/// Stop a task that is being applied (admin).
///
/// The worker or agent is notified and stops. Its changes are rolled back if the rollback strategy of the task is
/// automatic. The task ends as FAILED with the result `cancelled`.
#[utoipa::path(post, path = "/tasks/{id}/stop", operation_id = "stop_task", tag = "tasks", params(("id" = String, Path)), request_body = wire::ReasonRequest, responses(
    (status = 202, description = "The worker or agent will be notified", body = wire::Task), DecisionErrors,
))]
async fn stop(app: App, Param(id): Param, request: IdempotentPost<wire::ReasonRequest, 202>) -> ApiResult {
    run_command(&app, &id, ExecutionCommand::Stop, &request).await
}

/// Roll back the changes of a failed task whose rollback strategy is `manual` (admin).
#[utoipa::path(post, path = "/tasks/{id}/rollback", operation_id = "roll_back_task", tag = "tasks", params(("id" = String, Path)), request_body = wire::ReasonRequest, responses(
    (status = 202, description = "A worker will roll it back", body = wire::Task), DecisionErrors,
    (status = 409, description = "INVALID_TRANSITION, RESTORED_TASK, NOTHING_TO_ROLL_BACK or IN_FLIGHT", body = wire::Problem),
))]
async fn roll_back(
    app: App,
    Param(id): Param,
    request: IdempotentPost<wire::ReasonRequest, 202>,
) -> ApiResult {
    run_command(&app, &id, ExecutionCommand::RollBack, &request).await
}

/// Get the execution of a task: the current attempt, or the last one.
#[utoipa::path(get, path = "/tasks/{id}/execution", operation_id = "task_execution", tag = "tasks", params(("id" = String, Path)), responses(
    (status = 200, description = "The execution", body = wire::Execution), ReadErrors,
    (status = 404, description = "TASK_NOT_FOUND, or NOT_EXECUTED: execution has not started", body = wire::Problem),
))]
async fn show(app: App, caller: Caller, Param(id): Param) -> JsonResult<wire::Execution> {
    let task = app.tasks.task(&id, &caller).await?;
    let not_executed = || {
        let detail = format!("execution of task {id} has not started");
        Problem::not_found("NOT_EXECUTED", detail)
    };
    task.execution.as_ref().map(|execution| Json(convert::execution(execution))).ok_or_else(not_executed)
}
