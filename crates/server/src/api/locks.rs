//! Lock routes: acquire, renew, release, downgrade, verify, inspect and break locks.

use std::collections::BTreeSet;

use ade_app::Error;
use ade_app::locks::{Acquisition, HeldLockResult, HeldToken, LockError, ReleaseOutcome};
use ade_client::wire::FieldError;
use ade_domain::Validator;
use ade_domain::lock::{
    FencingToken, Holder, InvalidName, LockKind, LockMode, LockName, LockRequest, LockRequestDraft,
    parse_ttl_ms,
};
use ade_domain::normal_form::fold;
use ade_domain::permission::Scope;
use ade_domain::task::is_reserved_type;
use ade_domain::text::counted;
use ade_store::coordination::LockFilter;
use uuid::Uuid;

use super::prelude::*;
use crate::http::extract::LockPath;
use crate::process::metrics;

/// Of one heartbeat, release or downgrade; an agent cannot hold more.
const MAX_HELD_LOCKS: usize = 1_000;
const MAX_GRAPH_WAITS: usize = 1_000;
const MAX_REASON_BYTES: usize = 1_024;

pub(super) fn routes() -> OpenApiRouter<AppState> {
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

/// Acquire one or more locks: all of them, or none.
///
/// Without `wait_seconds` and `queue`, the server responds at once. With `wait_seconds`, the response is held open until the
/// locks are granted; closing the connection cancels the request. With `queue`, the response is a ticket.
#[utoipa::path(post, path = "/locks/acquire", operation_id = "acquire_locks", tag = "locks", request_body = wire::AcquireRequest, responses(
    (status = 200, description = "All locks are granted", body = wire::Grants),
    (status = 202, description = "The request is queued with a ticket, or `stored` with one while Redis is unavailable", body = wire::Ticket), BodyErrors, TaskNotFound,
    (status = 409, description = "LOCK_LOST, SUPERSEDED or CANCELLED: the repeated request has ended", body = wire::Problem),
    (status = 422, description = "INVALID_REQUEST or REQUEST_ID_REUSED", body = wire::Problem),
    (status = 423, description = "LOCK_HELD with the holders, or DEADLOCK_DETECTED with the cycle", body = wire::Problem),
    (status = 429, description = "RATE_LIMITED or TOO_MANY_AGENTS", body = wire::Problem),
    (status = 503, description = "QUEUE_FULL, CONTENTION, STOPPING, TOO_MANY_STORED or UNAVAILABLE, with Retry-After", body = wire::Problem),
))]
async fn acquire(app: App, caller: Caller, JsonBody(body): JsonBody<wire::AcquireRequest>) -> ApiResult {
    let holder = app.holder(&caller, body.agent_id.as_deref(), body.holder_id.as_deref()).await?;
    let draft = LockRequestDraft {
        locks: body.locks.iter().map(|spec| (spec.lock.as_str(), spec.mode.convert())).collect(),
        ttl_seconds: body.ttl_seconds,
        wait_seconds: body.wait_seconds,
        queue: body.queue,
        priority: body.priority,
        purpose: body.purpose.as_deref(),
        request_id: body.request_id.as_deref(),
    };
    let limits = app.locks.limits();
    let request = LockRequest::new(holder, &draft, &limits, Uuid::new_v4().as_u128())?;
    let is_reserved = |lock: &LockName| lock.resource_type().is_some_and(is_reserved_type);
    if request.locks.iter().any(|requested| is_reserved(&requested.lock)) && !caller.is_admin() {
        let detail = "locks of targets are taken by workers; only an administrator can take them directly";
        return Err(Error::Forbidden(detail.to_owned()).into());
    }
    for requested in &request.locks {
        app.check_task_visible(&requested.lock, &caller).await?;
    }
    let given: Vec<&str> = body.locks.iter().map(|spec| spec.lock.as_str()).collect();
    let acquire = async { app.locks.acquire(request).await.map_err(|error| app.lock_problem(error)) };
    match app.unless_stopping(acquire).await {
        Ok(Acquisition::Granted(granted)) => {
            metrics::record_lock_request("granted");
            let mut granted = convert::grants(&granted, &limits);
            granted.grants.iter_mut().for_each(|grant| restore_spelling(&mut grant.lock, &given));
            Ok(Json(granted).into_response())
        }
        Ok(Acquisition::Waiting(waiting)) => {
            metrics::record_lock_request("queued");
            let mut ticket = convert::waiting_ticket(&waiting);
            ticket.waiting_for.iter_mut().for_each(|lock| restore_spelling(lock, &given));
            Ok((StatusCode::ACCEPTED, Json(ticket)).into_response())
        }
        Ok(Acquisition::Stored(stored)) => {
            metrics::record_lock_request("stored");
            Ok((StatusCode::ACCEPTED, Json(convert::stored_ticket(stored))).into_response())
        }
        Err(problem) => {
            metrics::record_lock_request(problem.code());
            Err(problem)
        }
    }
}

/// Extend the leases of held locks.
#[utoipa::path(post, path = "/locks/heartbeat", operation_id = "lock_heartbeat", tag = "locks", request_body = wire::HeartbeatRequest, responses(
    (status = 200, description = "All leases are extended", body = wire::HeldLockResults), BodyErrors,
    (status = 409, description = "LOCK_LOST: some locks are not held with these tokens; `results` has all", body = wire::Problem),
    (status = 429, description = "TOO_MANY_AGENTS", body = wire::Problem),
))]
async fn heartbeat(app: App, caller: Caller, JsonBody(body): JsonBody<wire::HeartbeatRequest>) -> ApiResult {
    let holder = app.holder(&caller, body.agent_id.as_deref(), body.holder_id.as_deref()).await?;
    let held = held_locks(&body.locks)?;
    let mut input = Validator::default();
    let ms = parse_ttl_ms("ttl_extension", body.ttl_extension, &app.locks.limits(), &mut input);
    if !input.errors.is_empty() {
        return Err(input.errors.into());
    }
    let results = app.locks.heartbeat(&holder, &held, ms).await;
    held_lock_response(&app, results, &body.locks)
}

/// Release held locks.
#[utoipa::path(post, path = "/locks/release", operation_id = "release_locks", tag = "locks", request_body = wire::HeldLocksRequest, responses(
    (status = 200, description = "All locks are released", body = wire::HeldLockResults), BodyErrors,
    (status = 202, description = "Redis is unavailable: the release is stored, and executed under its tokens once Redis is back", body = wire::HeldLockResults),
    (status = 409, description = "LOCK_LOST: some locks were not held with these tokens; `results` has all", body = wire::Problem),
    (status = 429, description = "TOO_MANY_AGENTS", body = wire::Problem),
    (status = 503, description = "TOO_MANY_STORED, STOPPING or UNAVAILABLE, with Retry-After", body = wire::Problem),
))]
async fn release(app: App, caller: Caller, JsonBody(body): JsonBody<wire::HeldLocksRequest>) -> ApiResult {
    let holder = app.holder(&caller, body.agent_id.as_deref(), body.holder_id.as_deref()).await?;
    match app.locks.release(&holder, &held_locks(&body.locks)?).await {
        Ok(ReleaseOutcome::Released(results)) => held_lock_response(&app, Ok(results), &body.locks),
        Ok(ReleaseOutcome::Stored) => {
            let results = body.locks.iter().map(|held| convert::stored_release(&held.lock)).collect();
            Ok((StatusCode::ACCEPTED, Json(wire::HeldLockResults { results, stored: true })).into_response())
        }
        Err(error) => Err(app.lock_problem(error)),
    }
}

/// Downgrade held locks from exclusive to shared, keeping their tokens.
#[utoipa::path(post, path = "/locks/downgrade", operation_id = "downgrade_locks", tag = "locks", request_body = wire::HeldLocksRequest, responses(
    (status = 200, description = "All locks are shared", body = wire::HeldLockResults), BodyErrors,
    (status = 409, description = "LOCK_LOST: some locks are not held with these tokens; `results` has all", body = wire::Problem),
    (status = 429, description = "TOO_MANY_AGENTS", body = wire::Problem),
))]
async fn downgrade(app: App, caller: Caller, JsonBody(body): JsonBody<wire::HeldLocksRequest>) -> ApiResult {
    let holder = app.holder(&caller, body.agent_id.as_deref(), body.holder_id.as_deref()).await?;
    let held = held_locks(&body.locks)?;
    if let Some(index) = held.iter().position(|held| !held.lock.kind().supports(LockMode::Shared)) {
        let detail = "task locks are always exclusive and cannot be downgraded";
        return Err(Problem::invalid_at(&format!("/locks/{index}/lock"), detail));
    }
    let results = app.locks.downgrade(&holder, &held).await;
    held_lock_response(&app, results, &body.locks)
}

/// Verify that a fencing token belongs to a current holder.
#[utoipa::path(post, path = "/locks/verify", operation_id = "verify_token", tag = "locks", request_body = wire::VerifyTokenRequest, responses(
    (status = 200, description = "The token is valid", body = wire::VerifiedToken), BodyErrors, TaskNotFound,
    (status = 409, description = "LOCK_LOST: the token is not valid", body = wire::Problem),
))]
async fn verify(
    app: App,
    caller: Caller,
    JsonBody(body): JsonBody<wire::VerifyTokenRequest>,
) -> JsonResult<wire::VerifiedToken> {
    caller.require_scope(Scope::Read)?;
    let lock: LockName =
        body.lock.parse().map_err(|error: InvalidName| Problem::invalid_at("/lock", error))?;
    app.check_task_visible(&lock, &caller).await?;
    let holder = app.locks.verify(lock, FencingToken::from_number(body.fencing_token)).await?;
    let invalid = || {
        let detail =
            format!("no current holder of {} has the fencing token {}", body.lock, body.fencing_token);
        Problem::lock_lost(detail)
    };
    let holder = holder.ok_or_else(invalid)?;
    Ok(Json(wire::VerifiedToken { valid: true, holder: convert::lock_holder(&holder) }))
}

/// Get the wait graph: which request waits for which holders.
#[utoipa::path(get, path = "/locks/graph", operation_id = "lock_graph", tag = "locks", responses(
    (status = 200, description = "At most 1,000 waiting requests", body = wire::WaitGraph), CommonErrors,
))]
async fn graph(app: App, caller: Caller) -> JsonResult<wire::WaitGraph> {
    caller.require_scope(Scope::Read)?;
    let mut waits = app.locks.coordination().waits(MAX_GRAPH_WAITS).await?;
    let hidden = app.hidden_tasks(waits.iter().map(|wait| &wait.lock), &caller).await?;
    waits.retain(|wait| !hidden.contains(wait.lock.as_str()));
    Ok(Json(wire::WaitGraph { waits: waits.iter().map(convert::wait_graph_edge).collect() }))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListParams {
    /// Agent that holds the lock or waits for it.
    agent: Option<String>,
    /// Type of the locked resource.
    resource_type: Option<String>,
    /// `task` or `resource`.
    #[param(pattern = "^(task|resource)$")]
    kind: Option<String>,
    /// Part of the name.
    name: Option<String>,
    /// Page size; 50 by default, at most 200.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<usize>,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
}

/// List the locks that are held or waited for.
#[utoipa::path(get, path = "/locks", operation_id = "list_locks", tag = "locks", params(ListParams), responses(
    (status = 200, description = "A page of locks: task locks first, then resource locks, each ordered by name. Locks of tasks that the caller cannot see are left out, so a page may have fewer items", body = wire::Page<wire::Lock>),
    ReadErrors,
))]
async fn list(app: App, caller: Caller, Params(params): Params<ListParams>) -> PageResult<wire::Lock> {
    caller.require_scope(Scope::Read)?;
    let ListParams { agent, resource_type, kind, name, limit, cursor } = params;
    let kind = match kind.as_deref() {
        None => None,
        Some("task") => Some(LockKind::Task),
        Some("resource") => Some(LockKind::Resource),
        Some(other) => {
            return Err(Problem::invalid_at("?kind", format!("must be task or resource, not {other:?}")));
        }
    };
    let page = PageParams::new(limit, cursor);
    let after: Option<LockName> = page.parse_cursor(|cursor| cursor.parse().ok())?;
    let name_part = name.map(|part| fold(&part).into_owned());
    let filter = LockFilter { agent, resource_type, kind, name_part };
    app.lock_page(&page, filter, after, &caller).await
}

/// Get a lock with its holders and all waiters.
#[utoipa::path(get, path = "/locks/{lock}", operation_id = "show_lock", tag = "locks", params(("lock" = String, Path, description = "Lock name, percent-encoded")), responses(
    (status = 200, description = "The lock; a free lock has no holders and no queue", body = wire::Lock), CommonErrors, TaskNotFound,
    (status = 422, description = "INVALID_REQUEST: the path is not a lock name", body = wire::Problem),
))]
async fn show(app: App, caller: Caller, LockPath(lock, given): LockPath) -> JsonResult<wire::Lock> {
    caller.require_scope(Scope::Read)?;
    app.check_task_visible(&lock, &caller).await?;
    let mut shown = convert::lock(&app.locks.coordination().lock_view(lock).await?);
    restore_spelling(&mut shown.lock, &[&given]);
    Ok(Json(shown))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct BreakParams {
    /// Reason, recorded in the audit log. Required.
    reason: Option<String>,
}

/// Break a lock: take it from its holders (admin).
#[utoipa::path(delete, path = "/locks/{lock}", operation_id = "break_lock", tag = "locks", params(("lock" = String, Path, description = "Lock name, percent-encoded"), BreakParams), responses(
    (status = 200, description = "The former holders; the lock is granted to the next waiters", body = wire::BrokenLock), CommonErrors,
    (status = 422, description = "INVALID_REQUEST: the reason is missing", body = wire::Problem),
))]
async fn break_lock(
    app: App,
    caller: Caller,
    LockPath(lock, given): LockPath,
    Params(params): Params<BreakParams>,
) -> JsonResult<wire::BrokenLock> {
    let reason = params.reason.as_deref().map(str::trim).filter(|reason| !reason.is_empty());
    let Some(reason) = reason else {
        return Err(Problem::invalid_at("?reason", "is required; it is recorded in the audit log"));
    };
    if reason.len() > MAX_REASON_BYTES {
        return Err(Problem::invalid_at("?reason", format!("may have at most {MAX_REASON_BYTES} bytes")));
    }
    let now = app.locks.coordination().now();
    let lost_by = app.locks.coordination().lock_view(lock.clone()).await?.holders;
    app.audits.audit_lock_break(lock.as_str(), &lost_by, reason, now, &caller).await?;
    let actor = caller.user.as_ref().map_or("admin", |user| user.user_id.as_str());
    let holders = app.locks.break_lock(actor, lock, reason).await?;
    let holders = holders.iter().map(convert::lock_holder).collect();
    Ok(Json(wire::BrokenLock { lock: given, holders }))
}

impl AppState {
    /// A page of locks without those of tasks that the caller may not see.
    pub(super) async fn lock_page(
        &self,
        page: &PageParams,
        filter: LockFilter,
        after: Option<LockName>,
        caller: &Caller,
    ) -> PageResult<wire::Lock> {
        let locks = self.locks.coordination().list_locks(filter, after, page.fetch_limit()?).await?;
        let hidden = self.hidden_tasks(locks.iter().map(|view| &view.lock), caller).await?;
        let mut shown = page.page(locks, |view| view.lock.to_string(), convert::lock)?;
        shown.items.retain(|lock| !hidden.contains(&lock.lock));
        Ok(shown)
    }

    /// Those of these locks that belong to tasks that the caller may not see.
    async fn hidden_tasks<'a>(
        &self,
        locks: impl Iterator<Item = &'a LockName>,
        caller: &Caller,
    ) -> ApiResult<BTreeSet<String>> {
        let mut hidden = BTreeSet::new();
        // Many waits may be for one lock.
        let of_tasks: BTreeSet<&LockName> =
            locks.filter(|lock| lock.kind() == LockKind::Task && !caller.can_see_all()).collect();
        for lock in of_tasks {
            match self.tasks.require_visible_if_exists(lock.id(), caller).await {
                Err(Error::NotFound(_)) => drop(hidden.insert(lock.to_string())),
                checked => checked?,
            }
        }
        Ok(hidden)
    }

    /// The lock of a task is for those who see the task: others could keep it from being applied.
    async fn check_task_visible(&self, lock: &LockName, caller: &Caller) -> ApiResult<()> {
        if lock.kind() == LockKind::Task {
            self.tasks.require_visible_if_exists(lock.id(), caller).await?;
        }
        Ok(())
    }

    /// The holder of locks: the caller itself, or the named agent if the caller may act for it.
    async fn holder(
        &self,
        caller: &Caller,
        agent_id: Option<&str>,
        holder_id: Option<&str>,
    ) -> ApiResult<Holder> {
        let invalid_holder_id = |error| Problem::invalid_at("/holder_id", error);
        // Validated first, because acting for an unknown agent registers it.
        if let Some(agent_id) = agent_id {
            Holder::new(agent_id, None).map_err(|error| Problem::invalid_at("/agent_id", error))?;
            Holder::new(agent_id, holder_id).map_err(invalid_holder_id)?;
        }
        let agent_id = self.agents.resolve_agent(caller, agent_id).await?;
        Holder::new(&agent_id, holder_id).map_err(invalid_holder_id)
    }
}

fn held_locks(locks: &[wire::LockToken]) -> ApiResult<Vec<HeldToken>> {
    if locks.is_empty() || locks.len() > MAX_HELD_LOCKS {
        let detail = format!("must have between 1 and {MAX_HELD_LOCKS} items");
        return Err(Problem::invalid_at("/locks", detail));
    }
    let mut errors = Vec::new();
    let mut held = Vec::with_capacity(locks.len());
    for (index, wire::LockToken { lock, fencing_token }) in locks.iter().enumerate() {
        match lock.parse::<LockName>() {
            Ok(lock) => held.push(HeldToken { lock, token: FencingToken::from_number(*fencing_token) }),
            Err(error) => {
                errors
                    .push(FieldError { pointer: format!("/locks/{index}/lock"), detail: error.to_string() });
            }
        }
    }
    if errors.is_empty() { Ok(held) } else { Err(Problem::invalid(errors)) }
}

/// Replaces the normal form of a name by the spelling of the request.
fn restore_spelling(lock: &mut String, given: &[&str]) {
    if !given.contains(&lock.as_str())
        && let Some(spelling) = given.iter().find(|given| fold(given) == *lock)
    {
        (*spelling).clone_into(lock);
    }
}

/// The results of all locks; a problem if any lock is lost.
fn held_lock_response(
    app: &AppState,
    results: Result<Vec<HeldLockResult>, LockError>,
    given: &[wire::LockToken],
) -> ApiResult {
    let results = results.map_err(|error| app.lock_problem(error))?;
    let lost = results.iter().filter(|result| result.result.is_err()).count();
    let mut results: Vec<wire::HeldLockResult> = results.iter().map(convert::held_lock_result).collect();
    let given: Vec<&str> = given.iter().map(|held| held.lock.as_str()).collect();
    results.iter_mut().for_each(|result| restore_spelling(&mut result.lock, &given));
    if lost == 0 {
        return Ok(Json(wire::HeldLockResults { results, stored: false }).into_response());
    }
    let detail = format!(
        "{lost} of {} not held with these tokens; stop all work that relies on them",
        counted(results.len(), "lock is", "locks are")
    );
    Err(Problem::lock_lost(detail).with("results", results))
}
