//! What reviews are decided by: policies, delegations, the registry of resources.

use ade_app::Outcome;
use ade_app::rules::{DelegationChange, PolicyChange, ResourceChange};
use ade_client::wire;
use ade_domain::Moment;
use ade_domain::glob::Pattern;
use ade_domain::people::UserId;
use ade_store::DatabaseError;
use ade_store::database::StoredDocument;
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::answers::{Always, Guarded, OfBody, OfChange, OfMatch, OfPost};
use super::convert::reviews as told;
use super::extract::{Body, PageParams, Params, Segment};
use super::{App, Nothing};
use crate::caller::Caller;
use crate::posted::Posted;
use crate::problem::Answer;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(policies, create_policy))
        .routes(routes!(policy, update_policy, delete_policy))
        .routes(routes!(activate))
        .routes(routes!(replay))
        .routes(routes!(delegations, create_delegation))
        .routes(routes!(delegation, update_delegation, delete_delegation))
        .routes(routes!(resources, create_resource))
        .routes(routes!(resource, update_resource, delete_resource))
}

/// A page of things, of which there are few: they are read whole, and cut here.
fn page<T>(
    things: Vec<StoredDocument>,
    page: &PageParams,
    told: impl Fn(&StoredDocument) -> Result<T, DatabaseError>,
) -> Answer<Json<wire::Page<T>>> {
    let (limit, after) = (page.limit()?, page.cursor.clone().unwrap_or_default());
    let found: Vec<StoredDocument> =
        things.into_iter().filter(|thing| thing.id > after).take(limit + 1).collect();
    let mut told_all = found.iter().map(told).collect::<Result<Vec<T>, _>>()?;
    let more = told_all.len() > limit;
    told_all.truncate(limit);
    let next_cursor = found.get(limit.saturating_sub(1)).filter(|_| more).map(|last| last.id.clone());
    Ok(Json(wire::Page { items: told_all, next_cursor }))
}

pub(super) fn policy_change(body: wire::PolicyRequest) -> PolicyChange {
    PolicyChange {
        name: body.name,
        task_types: body.task_types,
        resource_patterns: body.resource_patterns.map(|all| all.into_iter().map(Pattern::new).collect()),
        min_approvers: body.min_approvers,
        required_roles: body.required_roles,
        reviewers: body.reviewers.map(|all| all.into_iter().map(UserId::new).collect()),
        risk_threshold: body.risk_threshold,
        auto_approve_if: body.auto_approve_if,
        escalation_role: body.escalation_role,
        reject_threshold: body.reject_threshold,
        priority: body.priority,
        window: body.window,
        active: body.active,
    }
}

/// Policies
#[utoipa::path(get, path = "/policies", operation_id = "list_policies", tag = "rules", params(PageParams), responses(
    (status = 200, description = "A page of policies, in the order in which they were made", body = wire::Page<wire::Policy>),
    Always,
    Guarded,
    (status = 422, description = "INVALID_REQUEST", body = wire::Problem),
))]
async fn policies(
    State(app): State<App>,
    caller: Caller,
    Params(params): Params<PageParams>,
) -> Answer<Json<wire::Page<wire::Policy>>> {
    page(app.rules.policies(&caller).await?, &params, told::policy)
}

/// A new policy (admin); it is drafted, unless it says that it is active
#[utoipa::path(post, path = "/policies", operation_id = "create_policy", tag = "rules", request_body = wire::PolicyRequest, responses(
    (status = 201, description = "Made", body = wire::Policy),
    OfBody,
    Always,
    Guarded,
    OfPost,
    (status = 409, description = "ALREADY_EXISTS or IN_FLIGHT", body = wire::Problem),
))]
async fn create_policy(State(app): State<App>, posted: Posted<wire::PolicyRequest, 201>) -> Answer<Response> {
    let made = app.rules.create_policy(&policy_change(posted.body.clone()), &posted.caller).await?;
    Ok(posted.answer(Outcome::Thing(&made)))
}

/// One policy
#[utoipa::path(get, path = "/policies/{id}", operation_id = "show_policy", tag = "rules", params(("id" = String, Path)), responses(
    (status = 200, description = "The policy", body = wire::Policy),
    Always,
    Guarded,
    (status = 404, description = "POLICY_NOT_FOUND", body = wire::Problem),
    (status = 422, description = "INVALID_REQUEST", body = wire::Problem),
))]
async fn policy(State(app): State<App>, caller: Caller, Segment(id): Segment) -> Answer<Json<wire::Policy>> {
    Ok(Json(told::policy(&app.rules.policy(&id, &caller).await?)?))
}

/// Change a policy (admin): what is in force stays until it is activated
#[utoipa::path(patch, path = "/policies/{id}", operation_id = "update_policy", tag = "rules", params(("id" = String, Path)), request_body = wire::PolicyRequest, responses(
    (status = 200, description = "The policy as it is now", body = wire::Policy),
    OfBody,
    Always,
    Guarded,
    OfChange,
    (status = 404, description = "POLICY_NOT_FOUND", body = wire::Problem),
    (status = 409, description = "ALREADY_EXISTS: another policy has this name", body = wire::Problem),
))]
async fn update_policy(
    State(app): State<App>,
    caller: Caller,
    Segment(id): Segment,
    Body(body): Body<wire::PolicyRequest>,
) -> Answer<Json<wire::Policy>> {
    Ok(Json(told::policy(&app.rules.update_policy(&id, &policy_change(body), &caller).await?)?))
}

/// Delete a policy (admin)
#[utoipa::path(delete, path = "/policies/{id}", operation_id = "delete_policy", tag = "rules", params(("id" = String, Path)), responses(
    (status = 204, description = "It is gone"),
    Always,
    Guarded,
    OfChange,
    (status = 404, description = "POLICY_NOT_FOUND", body = wire::Problem),
))]
async fn delete_policy(State(app): State<App>, caller: Caller, Segment(id): Segment) -> Answer<StatusCode> {
    app.rules.delete_policy(&id, &caller).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Put what is drafted in force (admin)
#[utoipa::path(post, path = "/policies/{id}/activate", operation_id = "activate_policy", tag = "rules", params(("id" = String, Path)), responses(
    (status = 200, description = "The policy as it is now", body = wire::Policy),
    OfBody,
    Always,
    Guarded,
    OfPost,
    OfMatch,
    (status = 404, description = "POLICY_NOT_FOUND", body = wire::Problem),
    (status = 409, description = "IN_FLIGHT", body = wire::Problem),
))]
async fn activate(State(app): State<App>, Segment(id): Segment, posted: Posted<Nothing>) -> Answer<Response> {
    let made = app.rules.activate_policy(&id, &posted.caller).await?;
    Ok(posted.answer(Outcome::Thing(&made)))
}

/// The past tasks that would have gone another way with what is drafted (admin or auditor)
#[utoipa::path(post, path = "/policies/{id}/replay", operation_id = "replay_policy", tag = "rules", params(("id" = String, Path)), responses(
    (status = 200, description = "Those of the last 10,000, the newest first; nothing is changed", body = wire::Replay),
    Always,
    Guarded,
    (status = 404, description = "POLICY_NOT_FOUND", body = wire::Problem),
    (status = 422, description = "INVALID_REQUEST", body = wire::Problem),
))]
async fn replay(State(app): State<App>, caller: Caller, Segment(id): Segment) -> Answer<Json<wire::Replay>> {
    let differs = app.rules.replay(&id, &app.reviews, &caller);
    let differs = app.unless_stopping(async { Ok(differs.await?) }).await?;
    let told = |one: ade_app::tasks::Differs| wire::ReplayedTask {
        task_id: one.task_id,
        was: one.was,
        would_be: one.would_be,
    };
    Ok(Json(wire::Replay { policy_id: id, differs: differs.into_iter().map(told).collect() }))
}

fn delegation_change(body: wire::DelegationRequest) -> DelegationChange {
    let moment = |time: wire::Time| Moment::from(time.0);
    DelegationChange {
        owner_id: body.owner_id.map(UserId::new),
        delegate_to: body.delegate_to.map(UserId::new),
        kind: body.kind,
        conditions: body.conditions,
        cascade: body.cascade,
        active: body.active,
        valid_from: body.valid_from.map(|time| time.map(moment)),
        valid_until: body.valid_until.map(|time| time.map(moment)),
    }
}

/// Delegations that the caller may see: its own, those to it, or all
#[utoipa::path(get, path = "/delegations", operation_id = "list_delegations", tag = "rules", params(PageParams), responses(
    (status = 200, description = "A page of delegations, in the order in which they were made", body = wire::Page<wire::Delegation>),
    Always,
    Guarded,
    (status = 422, description = "INVALID_REQUEST", body = wire::Problem),
))]
async fn delegations(
    State(app): State<App>,
    caller: Caller,
    Params(params): Params<PageParams>,
) -> Answer<Json<wire::Page<wire::Delegation>>> {
    page(app.rules.delegations(&caller).await?, &params, told::delegation)
}

/// A new delegation: one's own, or by an administrator for others
#[utoipa::path(post, path = "/delegations", operation_id = "create_delegation", tag = "rules", request_body = wire::DelegationRequest, responses(
    (status = 201, description = "Made", body = wire::Delegation),
    OfBody,
    Always,
    Guarded,
    OfPost,
    (status = 409, description = "IN_FLIGHT", body = wire::Problem),
))]
async fn create_delegation(
    State(app): State<App>,
    posted: Posted<wire::DelegationRequest, 201>,
) -> Answer<Response> {
    let made = app.rules.create_delegation(&delegation_change(posted.body.clone()), &posted.caller).await?;
    Ok(posted.answer(Outcome::Thing(&made)))
}

/// One delegation
#[utoipa::path(get, path = "/delegations/{id}", operation_id = "show_delegation", tag = "rules", params(("id" = String, Path)), responses(
    (status = 200, description = "The delegation", body = wire::Delegation),
    Always,
    Guarded,
    (status = 404, description = "DELEGATION_NOT_FOUND", body = wire::Problem),
    (status = 422, description = "INVALID_REQUEST", body = wire::Problem),
))]
async fn delegation(
    State(app): State<App>,
    caller: Caller,
    Segment(id): Segment,
) -> Answer<Json<wire::Delegation>> {
    Ok(Json(told::delegation(&app.rules.delegation(&id, &caller).await?)?))
}

/// Change a delegation
#[utoipa::path(patch, path = "/delegations/{id}", operation_id = "update_delegation", tag = "rules", params(("id" = String, Path)), request_body = wire::DelegationRequest, responses(
    (status = 200, description = "The delegation as it is now", body = wire::Delegation),
    OfBody,
    Always,
    Guarded,
    OfChange,
    (status = 404, description = "DELEGATION_NOT_FOUND", body = wire::Problem),
))]
async fn update_delegation(
    State(app): State<App>,
    caller: Caller,
    Segment(id): Segment,
    Body(body): Body<wire::DelegationRequest>,
) -> Answer<Json<wire::Delegation>> {
    Ok(Json(told::delegation(&app.rules.update_delegation(&id, &delegation_change(body), &caller).await?)?))
}

/// Delete a delegation
#[utoipa::path(delete, path = "/delegations/{id}", operation_id = "delete_delegation", tag = "rules", params(("id" = String, Path)), responses(
    (status = 204, description = "It is gone"),
    Always,
    Guarded,
    OfChange,
    (status = 404, description = "DELEGATION_NOT_FOUND", body = wire::Problem),
))]
async fn delete_delegation(
    State(app): State<App>,
    caller: Caller,
    Segment(id): Segment,
) -> Answer<StatusCode> {
    app.rules.delete_delegation(&id, &caller).await?;
    Ok(StatusCode::NO_CONTENT)
}

fn resource_change(body: wire::ResourceRequest) -> ResourceChange {
    let wire::ResourceRequest { pattern, criticality, dependents } = body;
    ResourceChange { pattern: pattern.map(Pattern::new), criticality, dependents }
}

/// How critical resources are
#[utoipa::path(get, path = "/resources", operation_id = "list_resources", tag = "rules", params(PageParams), responses(
    (status = 200, description = "A page of the registry, by pattern", body = wire::Page<wire::RegisteredResource>),
    Always,
    Guarded,
    (status = 422, description = "INVALID_REQUEST", body = wire::Problem),
))]
async fn resources(
    State(app): State<App>,
    caller: Caller,
    Params(params): Params<PageParams>,
) -> Answer<Json<wire::Page<wire::RegisteredResource>>> {
    page(app.rules.resources(&caller).await?, &params, told::resource)
}

/// Register resources (admin)
#[utoipa::path(post, path = "/resources", operation_id = "create_resource", tag = "rules", request_body = wire::ResourceRequest, responses(
    (status = 201, description = "Registered", body = wire::RegisteredResource),
    OfBody,
    Always,
    Guarded,
    OfPost,
    (status = 409, description = "ALREADY_EXISTS or IN_FLIGHT", body = wire::Problem),
))]
async fn create_resource(
    State(app): State<App>,
    posted: Posted<wire::ResourceRequest, 201>,
) -> Answer<Response> {
    let made = app.rules.create_resource(&resource_change(posted.body.clone()), &posted.caller).await?;
    Ok(posted.answer(Outcome::Thing(&made)))
}

/// What is registered for one pattern
#[utoipa::path(get, path = "/resources/{pattern}", operation_id = "show_resource", tag = "rules", params(("pattern" = String, Path, description = "Percent-encoded")), responses(
    (status = 200, description = "What the registry says", body = wire::RegisteredResource),
    Always,
    Guarded,
    (status = 404, description = "RESOURCE_NOT_FOUND", body = wire::Problem),
    (status = 422, description = "INVALID_REQUEST", body = wire::Problem),
))]
async fn resource(
    State(app): State<App>,
    caller: Caller,
    Segment(pattern): Segment,
) -> Answer<Json<wire::RegisteredResource>> {
    Ok(Json(told::resource(&app.rules.resource(&pattern, &caller).await?)?))
}

/// Change what is registered (admin)
#[utoipa::path(patch, path = "/resources/{pattern}", operation_id = "update_resource", tag = "rules", params(("pattern" = String, Path, description = "Percent-encoded")), request_body = wire::ResourceRequest, responses(
    (status = 200, description = "What the registry says now", body = wire::RegisteredResource),
    OfBody,
    Always,
    Guarded,
    OfChange,
    (status = 404, description = "RESOURCE_NOT_FOUND", body = wire::Problem),
))]
async fn update_resource(
    State(app): State<App>,
    caller: Caller,
    Segment(pattern): Segment,
    Body(body): Body<wire::ResourceRequest>,
) -> Answer<Json<wire::RegisteredResource>> {
    Ok(Json(told::resource(&app.rules.update_resource(&pattern, &resource_change(body), &caller).await?)?))
}

/// Take resources out of the registry (admin)
#[utoipa::path(delete, path = "/resources/{pattern}", operation_id = "delete_resource", tag = "rules", params(("pattern" = String, Path, description = "Percent-encoded")), responses(
    (status = 204, description = "They are not registered any more"),
    Always,
    Guarded,
    OfChange,
    (status = 404, description = "RESOURCE_NOT_FOUND", body = wire::Problem),
))]
async fn delete_resource(
    State(app): State<App>,
    caller: Caller,
    Segment(pattern): Segment,
) -> Answer<StatusCode> {
    app.rules.delete_resource(&pattern, &caller).await?;
    Ok(StatusCode::NO_CONTENT)
}
