//! Lock routes: take, hold, give back, look, break.

#![expect(unused_qualifications, reason = "the macro that describes parameters qualifies them")]

use ade_app::locks::{Acquired, Held};
use ade_client::wire::{self, FieldError};
use ade_domain::lock::{Draft, Holder, InvalidName, LockKind, LockName, LockRequest, Mode, Token, ttl_ms};
use ade_domain::permission::Scope;
use ade_store::coordination::Filter;
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use uuid::Uuid;

use super::answers::{Always, Guarded, OfBody};
use super::extract::{Body, LockPath, Params};
use super::{App, convert};
use crate::caller::Caller;
use crate::metrics;
use crate::problem::{Answer, Problem};

/// Locks that one heartbeat, release or downgrade may carry: all locks of an agent.
const MAX_HELD: usize = 1_000;
/// Waits that the graph shows.
const MAX_GRAPH: usize = 1_000;
/// Bytes of a reason.
const MAX_REASON: usize = 1_024;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(acquire))
        .routes(routes!(heartbeat))
        .routes(routes!(release))
        .routes(routes!(downgrade))
        .routes(routes!(verify))
        .routes(routes!(graph))
        .routes(routes!(list))
        .routes(routes!(show, break_lock))
}

/// Take locks, all or none
///
/// Without `wait_seconds` and `queue` the answer comes at once. With `wait_seconds` it is held open until the locks are
/// granted; hanging up leaves the queue. With `queue` it is a ticket.
#[utoipa::path(post, path = "/locks/acquire", operation_id = "acquire_locks", tag = "locks", request_body = wire::AcquireRequest, responses(
    (status = 200, description = "All locks are held", body = wire::Grants),
    (status = 202, description = "The request waits with a ticket", body = wire::Ticket),
    OfBody,
    Always,
    Guarded,
    (status = 409, description = "LOCK_LOST, SUPERSEDED or CANCELLED: the repeated request is over", body = wire::Problem),
    (status = 422, description = "INVALID_REQUEST or REQUEST_ID_REUSED", body = wire::Problem),
    (status = 423, description = "LOCK_HELD with holders, or DEADLOCK_DETECTED with the cycle", body = wire::Problem),
    (status = 429, description = "RATE_LIMITED or TOO_MANY_AGENTS", body = wire::Problem),
    (status = 503, description = "QUEUE_FULL, CONTENTION, STOPPING or UNAVAILABLE, with Retry-After", body = wire::Problem),
))]
async fn acquire(
    State(app): State<App>,
    caller: Caller,
    Body(body): Body<wire::AcquireRequest>,
) -> Answer<Response> {
    let holder = app.holder(&caller, body.agent_id.as_deref(), body.holder_id.as_deref()).await?;
    let draft = Draft {
        locks: body.locks.iter().map(|ask| (ask.lock.as_str(), ask.mode.map(Into::into))).collect(),
        ttl_seconds: body.ttl_seconds,
        wait_seconds: body.wait_seconds,
        queue: body.queue,
        priority: body.priority,
        purpose: body.purpose.as_deref(),
        request_id: body.request_id.as_deref(),
    };
    let coordination = app.locks.coordination();
    let request = LockRequest::new(holder, &draft, coordination.rules(), Uuid::new_v4().as_u128())?;
    let work = async {
        let acquired = app.locks.acquire(request).await;
        acquired.map_err(|error| Problem::of_lock(error, coordination.now()))
    };
    match app.unless_stopping(work).await {
        Ok(Acquired::Granted(granted)) => {
            metrics::lock_request("granted");
            Ok(Json(convert::grants(&granted)).into_response())
        }
        Ok(Acquired::Waiting(waiting)) => {
            metrics::lock_request("queued");
            Ok((StatusCode::ACCEPTED, Json(convert::waiting(&waiting))).into_response())
        }
        Err(problem) => {
            metrics::lock_request(problem.code());
            Err(problem)
        }
    }
}

/// Extend the leases of all locks of a holder
#[utoipa::path(post, path = "/locks/heartbeat", operation_id = "lock_heartbeat", tag = "locks", request_body = wire::HeartbeatRequest, responses(
    (status = 200, description = "All are extended", body = wire::HoldResults),
    OfBody,
    Always,
    Guarded,
    (status = 409, description = "LOCK_LOST: some are not held by these tokens; `results` has all", body = wire::Problem),
    (status = 422, description = "INVALID_REQUEST", body = wire::Problem),
    (status = 429, description = "TOO_MANY_AGENTS", body = wire::Problem),
))]
async fn heartbeat(
    State(app): State<App>,
    caller: Caller,
    Body(body): Body<wire::HeartbeatRequest>,
) -> Answer<Response> {
    let holder = app.holder(&caller, body.agent_id.as_deref(), body.holder_id.as_deref()).await?;
    let held = held(&body.locks)?;
    let mut faults = Vec::new();
    let ms = ttl_ms("/ttl_extension", body.ttl_extension, app.locks.coordination().rules(), &mut faults);
    if !faults.is_empty() {
        return Err(faults.into());
    }
    let results = app.locks.heartbeat(&holder, &held, ms).await;
    answer(&app, results)
}

/// Give locks up
#[utoipa::path(post, path = "/locks/release", operation_id = "release_locks", tag = "locks", request_body = wire::HoldRequest, responses(
    (status = 200, description = "All are released", body = wire::HoldResults),
    OfBody,
    Always,
    Guarded,
    (status = 409, description = "LOCK_LOST: some were not held by these tokens; `results` has all", body = wire::Problem),
    (status = 422, description = "INVALID_REQUEST", body = wire::Problem),
    (status = 429, description = "TOO_MANY_AGENTS", body = wire::Problem),
))]
async fn release(
    State(app): State<App>,
    caller: Caller,
    Body(body): Body<wire::HoldRequest>,
) -> Answer<Response> {
    let holder = app.holder(&caller, body.agent_id.as_deref(), body.holder_id.as_deref()).await?;
    let results = app.locks.release(&holder, &held(&body.locks)?).await;
    answer(&app, results)
}

/// From exclusive to shared, with the same token
#[utoipa::path(post, path = "/locks/downgrade", operation_id = "downgrade_locks", tag = "locks", request_body = wire::HoldRequest, responses(
    (status = 200, description = "All are shared", body = wire::HoldResults),
    OfBody,
    Always,
    Guarded,
    (status = 409, description = "LOCK_LOST: some are not held by these tokens; `results` has all", body = wire::Problem),
    (status = 422, description = "INVALID_REQUEST", body = wire::Problem),
    (status = 429, description = "TOO_MANY_AGENTS", body = wire::Problem),
))]
async fn downgrade(
    State(app): State<App>,
    caller: Caller,
    Body(body): Body<wire::HoldRequest>,
) -> Answer<Response> {
    let holder = app.holder(&caller, body.agent_id.as_deref(), body.holder_id.as_deref()).await?;
    let held = held(&body.locks)?;
    if let Some(at) = held.iter().position(|held| !held.lock.kind().admits(Mode::Shared)) {
        return Err(Problem::invalid_at(&format!("/locks/{at}/lock"), "task locks are exclusive only"));
    }
    let results = app.locks.downgrade(&holder, &held).await;
    answer(&app, results)
}

/// Is this token a current holder's?
#[utoipa::path(post, path = "/locks/verify", operation_id = "verify_token", tag = "locks", request_body = wire::VerifyRequest, responses(
    (status = 200, description = "It is", body = wire::Verified),
    OfBody,
    Always,
    Guarded,
    (status = 409, description = "LOCK_LOST: it is not", body = wire::Problem),
    (status = 422, description = "INVALID_REQUEST", body = wire::Problem),
))]
async fn verify(
    State(app): State<App>,
    caller: Caller,
    Body(body): Body<wire::VerifyRequest>,
) -> Answer<Json<wire::Verified>> {
    caller.require(Scope::Read)?;
    let lock: LockName =
        body.lock.parse().map_err(|error: InvalidName| Problem::invalid_at("/lock", error.to_string()))?;
    let found = app.locks.verify(lock, Token::shown(body.fencing_token)).await?;
    let by = found.ok_or_else(|| Problem::lock_lost("the token is not a current holder's"))?;
    Ok(Json(wire::Verified { valid: true, holder: convert::holder(&by) }))
}

/// Who waits for whom
#[utoipa::path(get, path = "/locks/graph", operation_id = "lock_graph", tag = "locks", responses(
    (status = 200, description = "At most 1,000 waits", body = wire::Graph),
    Always,
    Guarded,
))]
async fn graph(State(app): State<App>, caller: Caller) -> Answer<Json<wire::Graph>> {
    caller.require(Scope::Read)?;
    let waits = app.locks.graph(MAX_GRAPH).await?;
    Ok(Json(wire::Graph { waits: waits.iter().map(convert::wait).collect() }))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListParams {
    /// Held or waited for by this agent.
    agent: Option<String>,
    /// Of resources of this type.
    resource_type: Option<String>,
    /// `task` or `resource`.
    #[param(pattern = "^(task|resource)$")]
    kind: Option<String>,
    /// At most 200; 50 unless said.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<usize>,
    /// Where the last page ended.
    cursor: Option<String>,
}

/// Locks that are held or waited for
#[utoipa::path(get, path = "/locks", operation_id = "list_locks", tag = "locks", params(ListParams), responses(
    (status = 200, description = "A page of locks: task locks, then resource locks, by name", body = wire::Page<wire::Lock>),
    Always,
    Guarded,
    (status = 422, description = "INVALID_REQUEST", body = wire::Problem),
))]
async fn list(
    State(app): State<App>,
    caller: Caller,
    Params(params): Params<ListParams>,
) -> Answer<Json<wire::Page<wire::Lock>>> {
    caller.require(Scope::Read)?;
    let kind = match params.kind.as_deref() {
        None => None,
        Some("task") => Some(LockKind::Task),
        Some("resource") => Some(LockKind::Resource),
        Some(_) => return Err(Problem::invalid_at("?kind", "must be task or resource")),
    };
    let limit = limit(params.limit)?;
    let after: Option<LockName> = match params.cursor.map(|cursor| cursor.parse()) {
        None => None,
        Some(Ok(after)) => Some(after),
        Some(Err(_)) => return Err(Problem::invalid_at("?cursor", "is not a cursor of this list")),
    };
    let filter = Filter { agent: params.agent, resource_type: params.resource_type, kind };
    let views = app.locks.list(filter, after, limit + 1).await?;
    Ok(Json(convert::page(views, limit, |view| view.lock.to_string(), convert::lock)))
}

/// One lock, with everybody who waits for it
#[utoipa::path(get, path = "/locks/{lock}", operation_id = "show_lock", tag = "locks", params(("lock" = String, Path, description = "Its name, percent-encoded")), responses(
    (status = 200, description = "A lock that nobody uses has no holders and no queue", body = wire::Lock),
    Always,
    Guarded,
    (status = 422, description = "INVALID_REQUEST: this is not the name of a lock", body = wire::Problem),
))]
async fn show(State(app): State<App>, caller: Caller, LockPath(lock): LockPath) -> Answer<Json<wire::Lock>> {
    caller.require(Scope::Read)?;
    Ok(Json(convert::lock(&app.locks.show(lock).await?)))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct BreakParams {
    /// Why; it is kept in the audit log.
    reason: Option<String>,
}

/// Take a lock from its holders (admin)
#[utoipa::path(delete, path = "/locks/{lock}", operation_id = "break_lock", tag = "locks", params(("lock" = String, Path, description = "Its name, percent-encoded"), BreakParams), responses(
    (status = 200, description = "Who held it; the queue goes on", body = wire::Broken),
    Always,
    Guarded,
    (status = 422, description = "INVALID_REQUEST: the reason is missing", body = wire::Problem),
))]
async fn break_lock(
    State(app): State<App>,
    caller: Caller,
    LockPath(lock): LockPath,
    Params(params): Params<BreakParams>,
) -> Answer<Json<wire::Broken>> {
    let reason = params.reason.as_deref().map(str::trim).filter(|reason| !reason.is_empty());
    let Some(reason) = reason else {
        return Err(Problem::invalid_at("?reason", "is needed: it is kept in the audit log"));
    };
    if reason.len() > MAX_REASON {
        return Err(Problem::invalid_at("?reason", format!("may have at most {MAX_REASON} bytes")));
    }
    let now = app.locks.coordination().now();
    app.audits.breaks(lock.as_str(), reason, now, &caller).await?;
    let actor = caller.user.as_ref().map_or("admin", |user| user.user_id.as_str());
    let holders = app.locks.break_lock(actor, lock.clone(), reason).await?;
    Ok(Json(wire::Broken { lock: lock.to_string(), holders: holders.iter().map(convert::holder).collect() }))
}

impl App {
    /// For whom the caller acts: itself, or the agent that it names and may act for.
    pub(super) async fn holder(
        &self,
        caller: &Caller,
        agent_id: Option<&str>,
        holder_id: Option<&str>,
    ) -> Answer<Holder> {
        let wrong = |error: InvalidName| {
            let pointer = if error.to_string().starts_with("holder_id") { "/holder_id" } else { "/agent_id" };
            Problem::invalid_at(pointer, error.to_string())
        };
        // What cannot be a name becomes no agent.
        if let Some(named) = agent_id {
            Holder::new(named, holder_id).map_err(wrong)?;
        }
        let agent = self.agents.acts_as(caller, agent_id).await?;
        Holder::new(&agent, holder_id).map_err(wrong)
    }
}

pub(super) fn limit(asked: Option<usize>) -> Answer<usize> {
    match asked.unwrap_or(50) {
        limit @ 1..=200 => Ok(limit),
        _ => Err(Problem::invalid_at("?limit", "must be between 1 and 200")),
    }
}

fn held(locks: &[wire::HeldLock]) -> Answer<Vec<Held>> {
    if locks.is_empty() || locks.len() > MAX_HELD {
        return Err(Problem::invalid_at("/locks", format!("must name between 1 and {MAX_HELD} locks")));
    }
    let mut faults = Vec::new();
    let mut held = Vec::with_capacity(locks.len());
    for (at, one) in locks.iter().enumerate() {
        match one.lock.parse() {
            Ok(lock) => held.push(Held { lock, token: Token::shown(one.fencing_token) }),
            Err(error) => {
                let error: InvalidName = error;
                faults.push(FieldError { pointer: format!("/locks/{at}/lock"), detail: error.to_string() });
            }
        }
    }
    if faults.is_empty() { Ok(held) } else { Err(Problem::invalid(faults)) }
}

/// All results, whether every lock was held or some were lost.
fn answer(
    app: &App,
    results: Result<Vec<ade_app::locks::HoldResult>, ade_app::locks::LockError>,
) -> Answer<Response> {
    let results = results.map_err(|error| Problem::of_lock(error, app.locks.coordination().now()))?;
    let lost = results.iter().filter(|result| result.result.is_err()).count();
    let all: Vec<wire::HoldResult> = results.iter().map(convert::hold_result).collect();
    if lost == 0 {
        return Ok(Json(wire::HoldResults { results: all }).into_response());
    }
    let detail =
        format!("{lost} of {} locks are not held by these tokens; stop what relies on them", all.len());
    Err(Problem::lock_lost(detail).fact("results", all))
}
