//! The pages of the dashboard. A page is a client of the HTTP API within the process: it reads and changes only through the routes
//! under `/api/v1`, so it can do nothing that its visitor could not do there. It makes no decisions and touches no service of `app`.
//!
//! The crate `dashboard` renders what the API answers.

mod activity;
mod agents;
mod api_client;
mod assets;
mod audit;
mod delegations;
mod form;
mod inbox;
mod keyspace;
mod locks;
mod notice;
mod policies;
mod respond;
mod session;
mod settings;
mod tasks;
mod visit;

use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};

use crate::api::AppState;
use crate::http::problem::Problem;
use api_client::Api;
use visit::PageError;

/// The page for a browser that asks for a path without one.
pub(crate) fn not_found() -> Response {
    PageError::from(Problem::not_found("NOT_FOUND", "there is no page at this address")).into_response()
}

/// The pages, on top of the routes of the API.
pub(crate) fn routes(api: Router) -> Router<AppState> {
    Router::new()
        .route("/", get(session::start))
        .route("/sign-in", get(session::sign_in_page).post(session::sign_in))
        .route("/sign-out", post(session::sign_out))
        .route("/join", get(session::join_page).post(session::join))
        .route("/password", get(session::password_page).post(session::change_password))
        .route("/reauthenticate", get(session::reauthenticate_page).post(session::reauthenticate))
        .route("/demo/{key}", get(session::demo))
        .merge(inbox::routes())
        .merge(tasks::routes())
        .merge(policies::routes())
        .merge(delegations::routes())
        .merge(activity::routes())
        .merge(audit::routes())
        .merge(keyspace::routes())
        .merge(settings::routes())
        .route("/assets/{version}/{name}", get(assets::serve))
        .merge(agents::routes())
        .merge(locks::routes())
        .layer(Extension(Api::new(api)))
}
