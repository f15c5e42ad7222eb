//! Serves style sheet, scripts and icon. A browser keeps them: another version has another URL.

use ade_dashboard::{Asset, asset, assets_version};
use axum::extract::Path;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

pub(super) async fn serve(Path((version, name)): Path<(String, String)>) -> Response {
    let Some(Asset { content_type, text, .. }) = asset(&name) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    // After an update, an old page may still ask for the old version: it gets the new one, but does not keep it.
    let is_current = version == assets_version();
    let cache = if is_current { "public, max-age=31536000, immutable" } else { "no-store" };
    ([(header::CONTENT_TYPE, *content_type), (header::CACHE_CONTROL, cache)], *text).into_response()
}
