//! Changes that wait for a second administrator: the list, and the forms that confirm or reject one. Other pages show them too.

use ade_client::wire;
use ade_dashboard::settings::Tabs;
use ade_dashboard::{ChangesPage, PendingChanges, Section};
use axum::Router;
use axum::extract::Path;
use axum::routing::{get, post};
use serde_json::{Map, Value};

use super::{PAGE_LIMIT, elsewhere, no_such_form};
use crate::api::AppState;
use crate::pages::form::Form;
use crate::pages::visit::{PageResult, Visit, path, safe_next, with_query};

const PATH: &str = "/settings/changes";

pub(super) fn routes() -> Router<AppState> {
    Router::new().route(PATH, get(show)).route("/settings/changes/{id}/{decision}", post(decide))
}

async fn load(visit: &Visit) -> PageResult<ChangesPage> {
    let api = with_query("/changes", &[("cursor", visit.param("cursor")), ("limit", PAGE_LIMIT)]);
    let (shell, changes) = tokio::join!(
        visit.shell(Section::Settings, "Waiting changes", "change"),
        visit.get::<wire::Page<wire::Change>>(&api)
    );
    let changes = changes?;
    Ok(ChangesPage {
        shell: shell?,
        tabs: Tabs::new(PATH, visit.viewer()),
        pending: PendingChanges { changes: changes.items, viewer: visit.viewer().clone(), next: PATH },
        next_cursor: changes.next_cursor,
        problem: None,
    })
}

async fn show(visit: Visit) -> PageResult {
    let page = load(&visit).await?;
    Ok(visit.render(&page, &page.shell))
}

async fn decide(visit: Visit, Path((id, decision)): Path<(String, String)>, form: Form) -> PageResult {
    let (notice, body) = match decision.as_str() {
        "confirm" => ("confirmed", Map::<String, Value>::new()),
        "reject" => ("refused", form.object(&["reason"])),
        _ => return no_such_form(),
    };
    let next = safe_next(form.get("next"));
    match visit.post(&path(&["changes", &id, &decision]), &form, &body).await {
        Ok(_) => Ok(visit.done(next, notice)),
        Err(problem) => match elsewhere(&visit, &problem, next) {
            Some(response) => Ok(response),
            None => {
                let page = ChangesPage { problem: Some(problem.clone()), ..load(&visit).await? };
                Ok(visit.refused(&page, &problem))
            }
        },
    }
}
