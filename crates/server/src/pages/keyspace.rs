//! Pages of the keyspace: the key catalogs, one entry, and what a key means.

use ade_client::wire;
use ade_dashboard::{KeyFilters, KeyPage, KeyspacePage, Section};
use axum::Router;
use axum::extract::Path;
use axum::routing::get;

use super::visit::{PageResult, Visit, path, with_query};
use crate::api::AppState;

pub(super) fn routes() -> Router<AppState> {
    Router::new().route("/keyspace", get(list)).route("/keyspace/{catalog}/{name}", get(show))
}

async fn list(visit: Visit) -> PageResult {
    let param = |name| visit.param(name).trim().to_owned();
    let filters = KeyFilters {
        text: param("q"),
        catalog: param("catalog"),
        kind: param("type"),
        owner: param("owner"),
        key: param("key"),
    };
    let explain = async {
        if filters.key.is_empty() {
            return Ok(None);
        }
        let found =
            visit.get::<wire::KeyExplanation>(&with_query("/keys/explain", &[("key", &filters.key)])).await;
        found.map(Some)
    };
    let (shell, catalogs, explained) = tokio::join!(
        visit.shell(Section::Keyspace, "Keyspace", ""),
        visit.get::<wire::Page<wire::KeyCatalog>>("/keys"),
        explain
    );
    let (explanation, problem) = match explained {
        Ok(explanation) => (explanation, None),
        Err(problem) => (None, Some(problem)),
    };
    let number = visit.param("page").parse().unwrap_or(1);
    let catalogs = catalogs?.items;
    let page = KeyspacePage { shell: shell?, catalogs, number, filters, explanation, problem };
    Ok(visit.render(&page, &page.shell))
}

async fn show(visit: Visit, Path((catalog, name)): Path<(String, String)>) -> PageResult {
    let api = path(&["keys", &catalog, &name]);
    let (shell, details) =
        tokio::join!(visit.shell(Section::Keyspace, &name, ""), visit.get::<wire::KeyDetails>(&api));
    let page = KeyPage { shell: shell?, details: details? };
    Ok(visit.render(&page, &page.shell))
}
