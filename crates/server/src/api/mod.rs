//! The routes of the HTTP API, one file per noun, and the state that their handlers share.
//!
//! A handler translates a request into a call of `app` and its result into a response. It makes no decisions.

#![expect(unused_qualifications, reason = "the macro that describes parameters qualifies them")]

mod agents;
mod approvals;
mod audit;
mod changes;
pub(crate) mod convert;
mod delegations;
pub(crate) mod events;
mod execution;
mod executors;
mod hooks;
mod jobs;
mod keys;
mod locks;
mod operations;
mod policies;
mod prelude;
mod projections;
mod resources;
pub(crate) mod sessions;
pub(crate) mod settings;
mod simulations;
mod slack;
mod stats;
mod tasks;
mod tickets;
mod users;
mod webhooks;

use std::convert::Infallible;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use ade_app::agents::AgentService;
use ade_app::jobs::ArchiveService;
use ade_app::locks::LockError;
use ade_app::rules::RuleService;
use ade_app::webhooks::{InboundHookService, SlackService};
use ade_app::worker::AgentWorkService;
use ade_app::{
    AccountService, Alerts, AuditService, ChangeService, EventFeed, Jobs, LockService, Relay, TaskService,
    TokenRateLimit, WebhookService,
};
use ade_store::Database;
use axum::extract::{FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Router};
use tokio::sync::watch;
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;

use crate::auth::BootstrapToken;
use crate::http::client_address::TrustedProxies;
use crate::http::connections::Connections;
use crate::http::idempotency::InFlightKeys;
use crate::http::problem::{ApiResult, Problem};
use crate::http::{middleware, openapi};
use crate::pages;
use events::EventConnections;
use settings::ServerSetting;

/// What handlers work with. It is cloned several times for each request.
#[derive(Debug, Clone)]
pub(crate) struct AppState(Arc<Services>);

impl From<Services> for AppState {
    fn from(services: Services) -> Self {
        Self(Arc::new(services))
    }
}

impl Deref for AppState {
    type Target = Services;

    fn deref(&self) -> &Services {
        &self.0
    }
}

#[derive(Debug)]
pub(crate) struct Services {
    pub(crate) locks: LockService,
    pub(crate) agents: AgentService,
    pub(crate) accounts: AccountService,
    pub(crate) tasks: TaskService,
    pub(crate) agent_work: AgentWorkService,
    pub(crate) jobs: Jobs,
    pub(crate) archives: ArchiveService,
    /// In distributed mode.
    pub(crate) relay: Option<Relay>,
    pub(crate) rules: RuleService,
    pub(crate) changes: ChangeService,
    pub(crate) webhooks: WebhookService,
    pub(crate) hooks: InboundHookService,
    pub(crate) slack: SlackService,
    pub(crate) audits: AuditService,
    pub(crate) database: Database,
    pub(crate) alerts: Alerts,
    pub(crate) server_settings: Arc<[ServerSetting]>,
    pub(crate) in_flight: InFlightKeys,
    pub(crate) bootstrap_token: BootstrapToken,
    /// Version and address of this server, for the audit log.
    pub(crate) service: Arc<str>,
    /// What clients use before they are authenticated.
    pub(crate) connections: Connections,
    pub(crate) trusted_proxies: TrustedProxies,
    pub(crate) allow_plain_http: bool,
    pub(crate) read_timeout: Duration,
    pub(crate) write_timeout: Duration,
    pub(crate) feed: EventFeed,
    pub(crate) event_connections: EventConnections,
    /// Of the sessions of one user.
    pub(crate) requests_per_minute: u32,
    pub(crate) token_rate_limit: TokenRateLimit,
    pub(crate) sign_ins_per_minute: u32,
    /// Allowed host names.
    pub(crate) hosts: Arc<[String]>,
    /// Opens the dashboard of a demo as its reviewer.
    pub(crate) demo_key: Option<Arc<str>>,
    /// Becomes true when the server shuts down.
    pub(crate) stopping: watch::Receiver<bool>,
}

/// Short for the arguments of handlers.
type App = AppState;

impl FromRequestParts<Self> for AppState {
    type Rejection = Infallible;

    async fn from_request_parts(_: &mut Parts, app: &Self) -> Result<Self, Infallible> {
        Ok(app.clone())
    }
}

pub(crate) fn routes() -> OpenApiRouter<AppState> {
    let api = OpenApiRouter::new()
        .merge(sessions::routes())
        .merge(users::routes())
        .merge(tasks::routes())
        .merge(execution::routes())
        .merge(approvals::routes())
        .merge(changes::routes())
        .merge(policies::routes())
        .merge(delegations::routes())
        .merge(resources::routes())
        .merge(executors::routes())
        .merge(simulations::routes())
        .merge(events::routes())
        .merge(audit::routes())
        .merge(stats::routes())
        .merge(settings::routes())
        .merge(locks::routes())
        .merge(tickets::routes())
        .merge(agents::routes())
        .merge(jobs::routes())
        .merge(keys::routes())
        .merge(projections::routes())
        .merge(webhooks::routes())
        .merge(hooks::routes())
        .merge(slack::routes());
    OpenApiRouter::with_openapi(openapi::Document::openapi()).nest("/api/v1", api).merge(operations::routes())
}

/// All routes with their middleware.
pub(crate) fn router(app: AppState) -> Router {
    let (api, _) = routes().split_for_parts();
    let api_of_pages = pages::Api::new(api.clone().with_state(app.clone()));
    api.merge(openapi::routes())
        .merge(pages::routes())
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(Extension(api_of_pages))
        .layer(from_fn_with_state(app.clone(), middleware::handle))
        .with_state(app)
}

async fn not_found(State(app): State<AppState>, request: Request) -> Response {
    let accept = request.headers().get(header::ACCEPT).and_then(|value| value.to_str().ok());
    let is_page = !request.uri().path().starts_with("/api/");
    if is_page && accept.is_some_and(|accept| accept.contains("text/html")) {
        return pages::not_found(&app, request).await;
    }
    Problem::not_found("NOT_FOUND", "there is no route for this path; see /docs").into_response()
}

async fn method_not_allowed() -> Problem {
    let detail = "this path does not support this method; see /docs";
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, "METHOD_NOT_ALLOWED", detail)
}

impl AppState {
    /// Runs a long operation, and cancels it when the server shuts down.
    pub(crate) async fn unless_stopping<T>(
        &self,
        operation: impl Future<Output = ApiResult<T>>,
    ) -> ApiResult<T> {
        let mut stopping = self.stopping.clone();
        tokio::select! {
            result = operation => result,
            // The sender is dropped only when the server has stopped.
            _ = stopping.wait_for(|stopping| *stopping) => Err(Problem::stopping()),
        }
    }

    pub(crate) fn lock_problem(&self, error: LockError) -> Problem {
        Problem::from_lock_error(error, self.locks.coordination().now())
    }
}
