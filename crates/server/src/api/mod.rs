//! Routes by noun, and what their handlers share.

mod agents;
mod answers;
mod approvals;
mod audit;
pub(crate) mod convert;
mod execution;
pub(crate) mod extract;
mod jobs;
mod locks;
pub(crate) mod made;
mod objects;
mod ops;
mod people;
mod rules;
pub(crate) mod settings;
mod simulations;
mod tasks;
mod tickets;

use std::sync::Arc;

use ade_app::agents::AgentService;
use ade_app::jobs::Archives;
use ade_app::rules::RuleService;
use ade_app::worker::Pulls;
use ade_app::{AccountService, AuditService, Jobs, LockService, TaskService};
use ade_store::Database;
use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::StatusCode;
use axum::middleware;
use axum::routing::get;
use serde::Deserialize;
use tokio::sync::watch;
use utoipa::OpenApi;
use utoipa::openapi::path::{Operation, PathItem};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{RefOr, Required};
use utoipa_axum::router::OpenApiRouter;

use crate::auth::AdminToken;
use crate::posted::InFlight;
use crate::problem::{Answer, Problem};
use crate::{docs, edge};
use settings::OwnSetting;

/// Bytes of a body.
const MAX_BODY: usize = 1 << 20;

/// A body without fields.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Nothing {}

/// What handlers work with.
#[derive(Debug, Clone)]
pub(crate) struct App {
    pub(crate) locks: LockService,
    pub(crate) agents: AgentService,
    pub(crate) accounts: AccountService,
    pub(crate) reviews: TaskService,
    pub(crate) pulls: Pulls,
    pub(crate) jobs: Jobs,
    pub(crate) archives: Archives,
    pub(crate) rules: RuleService,
    pub(crate) audits: AuditService,
    pub(crate) record: Database,
    pub(crate) own_settings: Arc<[OwnSetting]>,
    pub(crate) in_flight: InFlight,
    pub(crate) admin: AdminToken,
    /// Who this server is, for the audit log.
    pub(crate) service: Arc<str>,
    pub(crate) requests_per_minute: u32,
    pub(crate) sign_ins_per_minute: u32,
    pub(crate) hosts: Arc<[String]>,
    pub(crate) stopping: watch::Receiver<bool>,
}

#[derive(OpenApi)]
#[openapi(
    info(title = "ADE", description = "Approvals and locks for fleets of agents."),
    components(schemas(ade_client::wire::Problem, ade_client::wire::FieldError, ade_client::wire::CycleEdge)),
    security(("token" = [])),
    tags(
        (name = "tasks", description = "Propose, submit, change and give up what is to be done."),
        (name = "approvals", description = "Who is asked, and what they say."),
        (name = "rules", description = "Policies, delegations, the registry of resources, and what would happen if."),
        (name = "people", description = "People, how they sign in, and their tokens."),
        (name = "audit", description = "What was recorded, whether it is as it was written, and numbers about it."),
        (name = "settings", description = "Settings and flags that all servers share."),
        (name = "locks", description = "Take, hold and give back locks; see who holds and who waits."),
        (name = "agents", description = "Who takes locks, and whether it is alive."),
        (name = "operations", description = "Health, readiness, metrics."),
    )
)]
struct Description;

fn described() -> OpenApiRouter<App> {
    let api = OpenApiRouter::new()
        .merge(people::routes())
        .merge(tasks::routes())
        .merge(execution::routes())
        .merge(approvals::routes())
        .merge(rules::routes())
        .merge(simulations::routes())
        .merge(audit::routes())
        .merge(settings::routes())
        .merge(locks::routes())
        .merge(tickets::routes())
        .merge(agents::routes())
        .merge(jobs::routes());
    OpenApiRouter::with_openapi(Description::openapi()).nest("/api/v1", api).merge(ops::routes())
}

/// The description of the API.
#[must_use]
pub fn openapi() -> utoipa::openapi::OpenApi {
    let mut description = described().into_openapi();
    let bearer = SecurityScheme::Http(HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build());
    description.components.get_or_insert_default().add_security_scheme("token", bearer);
    for item in description.paths.paths.values_mut() {
        let PathItem { get, put, post, delete, patch, .. } = item;
        for operation in [get, put, post, delete, patch].into_iter().flatten() {
            problems_are_told(operation);
            bodies_may_be_missing(operation);
        }
    }
    description
}

/// Where nothing needs to be said, no body at all will do.
fn bodies_may_be_missing(operation: &mut Operation) {
    let nothing_is_needed =
        matches!(operation.operation_id.as_deref(), Some("cancel_task" | "approve" | "claim_task"));
    if let Some(RefOr::T(body)) = operation.request_body.as_mut().filter(|_| nothing_is_needed) {
        body.required = Some(Required::False);
    }
}

/// Failures have a type of their own, on every route.
fn problems_are_told(operation: &mut Operation) {
    for (status, response) in &mut operation.responses.responses {
        let RefOr::T(response) = response else { continue };
        if status.as_str() >= "400"
            && let Some(body) = response.content.shift_remove("application/json")
        {
            response.content.insert("application/problem+json".to_owned(), body);
        }
    }
}

/// Every route, with what all requests pass.
pub(crate) fn router(app: App) -> Router {
    let (router, _) = described().split_for_parts();
    router
        .merge(docs::routes())
        .route("/", get(docs::home))
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(middleware::from_fn_with_state(app.clone(), edge::pass))
        .with_state(app)
}

async fn not_found() -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "NOT_FOUND", "there is nothing at this path; see /docs")
}

async fn method_not_allowed() -> Problem {
    Problem::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "METHOD_NOT_ALLOWED",
        "this path has other methods; see /docs",
    )
}

impl App {
    /// Runs something that may take long, unless the server stops first.
    pub(crate) async fn unless_stopping<T>(&self, work: impl Future<Output = Answer<T>>) -> Answer<T> {
        let mut stopping = self.stopping.clone();
        tokio::select! {
            done = work => done,
            // The sender lives as long as the server: an error means that it is gone.
            _ = stopping.wait_for(|stopping| *stopping) => Err(Problem::stopping()),
        }
    }
}
