//! Pages of the settings, by tab.

mod changes;
mod operations;
mod tokens;
mod users;
mod webhooks;

use ade_client::wire;
use ade_dashboard::settings::Tabs;
use axum::Router;
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;

use super::visit::{PageResult, REAUTHENTICATE, Visit, with_query};
use crate::api::AppState;
use crate::http::problem::Problem;

const PAGE_LIMIT: &str = "50";

pub(super) fn routes() -> Router<AppState> {
    Router::new()
        .route("/settings", get(first))
        .merge(users::routes())
        .merge(tokens::routes())
        .merge(webhooks::routes())
        .merge(operations::routes())
        .merge(changes::routes())
}

/// Opens the first tab that the visitor may see.
async fn first(visit: Visit) -> Redirect {
    Redirect::to(Tabs::new("/settings", visit.viewer()).first())
}

/// The page to open instead of the one with the form: the change waits for a second administrator, or it needs the password.
fn elsewhere(visit: &Visit, problem: &wire::Problem, next: &str) -> Option<Response> {
    match problem.code.as_str() {
        "AWAITS_CONFIRMATION" => Some(visit.done("/settings/changes", "confirmation")),
        REAUTHENTICATE => {
            Some(Redirect::to(&with_query("/reauthenticate", &[("next", next)])).into_response())
        }
        _ => None,
    }
}

/// The answer to a form of a page that has no such form.
fn no_such_form() -> PageResult {
    Err(Problem::not_found("NOT_FOUND", "this page has no such form").into())
}
