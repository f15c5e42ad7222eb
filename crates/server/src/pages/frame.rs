//! The frame of pages that say why there is no page: a visitor who is signed in keeps the navigation. Whether somebody is, only the request
//! itself tells; nobody is authenticated here.

use std::sync::{Arc, OnceLock};

use ade_client::wire;
use ade_dashboard::{ErrorPage, Section};
use axum::extract::{FromRequestParts, Request};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::respond::html;
use super::visit::{PageError, Visit};
use crate::api::AppState;
use crate::http::problem::Problem;

/// Who made the request, as soon as it is known.
#[derive(Debug, Clone, Default)]
pub(super) struct Frame(Arc<OnceLock<Visit>>);

impl Frame {
    pub(super) fn set(&self, visit: &Visit) {
        // A request has one visitor.
        let _ = self.0.set(visit.clone());
    }
}

/// Why there is no page, in the response that says so without a frame.
#[derive(Debug, Clone)]
pub(super) struct Refusal(pub(super) wire::Problem);

/// Renders a refusal once more, for its visitor.
pub(super) async fn with_frame(mut request: Request, next: Next) -> Response {
    let section = Section::of_path(request.uri().path());
    let frame = Frame::default();
    request.extensions_mut().insert(frame.clone());
    let response = next.run(request).await;
    match frame.0.get() {
        Some(visit) => framed(visit, section, response).await,
        None => response,
    }
}

async fn framed(visit: &Visit, section: Section, mut response: Response) -> Response {
    // A visitor whose session has ended meanwhile is signed in no more.
    let refusal =
        response.extensions_mut().remove::<Refusal>().filter(|Refusal(problem)| problem.status != 401);
    let Some(Refusal(problem)) = refusal else { return response };
    match visit.shell(section, "Error", "").await {
        Ok(shell) => (response.status(), html(&ErrorPage { shell, problem })).into_response(),
        Err(_) => response,
    }
}

/// The page for a browser that asks for a path without one.
pub(crate) async fn not_found(app: &AppState, request: Request) -> Response {
    let section = Section::of_path(request.uri().path());
    let problem = Problem::not_found("NOT_FOUND", "there is no page at this address");
    let response = PageError::from(problem).into_response();
    let (mut parts, _) = request.into_parts();
    match Visit::from_request_parts(&mut parts, app).await {
        Ok(visit) => framed(&visit, section, response).await,
        Err(_) => response,
    }
}
