//! The description of the API and a page to browse it, both without any request to elsewhere.

use axum::Json;
use axum::Router;
use axum::http::header;
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;

use crate::api::{self, App};

const PAGE: &str = include_str!("docs/page.html");
const SCRIPT: &str = include_str!("docs/page.js");
const STYLE: &str = include_str!("docs/page.css");

pub(crate) fn routes() -> Router<App> {
    Router::new()
        .route("/openapi.json", get(|| async { Json(api::openapi()) }))
        .route("/docs", get(|| async { asset("text/html; charset=utf-8", PAGE) }))
        .route("/docs/page.js", get(|| async { asset("text/javascript; charset=utf-8", SCRIPT) }))
        .route("/docs/page.css", get(|| async { asset("text/css; charset=utf-8", STYLE) }))
}

/// Until there is a dashboard, the description is the first thing to see.
pub(crate) async fn home() -> Redirect {
    Redirect::temporary("/docs")
}

fn asset(kind: &'static str, text: &'static str) -> Response {
    let policy =
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:";
    ([(header::CONTENT_TYPE, kind), (header::CONTENT_SECURITY_POLICY, policy)], text).into_response()
}
