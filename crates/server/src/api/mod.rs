//! Routes by noun, and what their handlers share.

mod agents;
mod answers;
pub(crate) mod convert;
mod extract;
mod locks;
mod ops;
mod tickets;

use std::sync::Arc;

use ade_app::LockService;
use ade_app::agents::AgentService;
use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::StatusCode;
use axum::middleware;
use axum::routing::get;
use tokio::sync::watch;
use utoipa::OpenApi;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa_axum::router::OpenApiRouter;

use crate::auth::AdminToken;
use crate::problem::{Answer, Problem};
use crate::{docs, edge};

/// Bytes of a body.
const MAX_BODY: usize = 1 << 20;

/// What handlers work with.
#[derive(Debug, Clone)]
pub(crate) struct App {
    pub(crate) locks: LockService,
    pub(crate) agents: AgentService,
    pub(crate) admin: AdminToken,
    pub(crate) hosts: Arc<[String]>,
    pub(crate) stopping: watch::Receiver<bool>,
}

#[derive(OpenApi)]
#[openapi(
    info(title = "ADE", description = "Approvals and locks for fleets of agents."),
    components(schemas(ade_client::wire::Problem, ade_client::wire::FieldError, ade_client::wire::CycleEdge)),
    security(("token" = [])),
    tags(
        (name = "locks", description = "Take, hold and give back locks; see who holds and who waits."),
        (name = "agents", description = "Who takes locks, and whether it is alive."),
        (name = "operations", description = "Health, readiness, metrics."),
    )
)]
struct Description;

fn described() -> OpenApiRouter<App> {
    let api = OpenApiRouter::new().merge(locks::routes()).merge(tickets::routes()).merge(agents::routes());
    OpenApiRouter::with_openapi(Description::openapi()).nest("/api/v1", api).merge(ops::routes())
}

/// The description of the API.
#[must_use]
pub fn openapi() -> utoipa::openapi::OpenApi {
    let mut description = described().into_openapi();
    let bearer = SecurityScheme::Http(HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build());
    description.components.get_or_insert_default().add_security_scheme("token", bearer);
    description
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
