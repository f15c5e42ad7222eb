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
mod frame;
mod inbox;
mod keyspace;
mod locks;
mod notice;
mod policies;
mod respond;
mod session;
mod settings;
mod tasks;
mod titles;
mod visit;

use axum::Router;
use axum::middleware::from_fn;
use axum::routing::{get, post};

use crate::api::AppState;
pub(crate) use api_client::Api;
pub(crate) use frame::not_found;

/// The pages. Their requests have the routes of the [`Api`] as an extension.
pub(crate) fn routes() -> Router<AppState> {
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
        .layer(from_fn(frame::with_frame))
}
