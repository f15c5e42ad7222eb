//! Pages of the visitor's own tokens.

use std::collections::BTreeSet;

use ade_client::wire;
use ade_dashboard::Section;
use ade_dashboard::settings::{Tabs, TokenPage, TokensPage, TypedToken};
use axum::Router;
use axum::extract::Path;
use axum::http::Method;
use axum::routing::{get, post};
use serde_json::Value;

use super::elsewhere;
use crate::api::AppState;
use crate::pages::form::Form;
use crate::pages::respond::secret;
use crate::pages::visit::{PageResult, Visit, path};

const PATH: &str = "/settings/tokens";

pub(super) fn routes() -> Router<AppState> {
    Router::new()
        .route(PATH, get(list))
        .route("/settings/tokens/create", post(create))
        .route("/settings/tokens/{id}/revoke", post(revoke))
}

async fn load(visit: &Visit) -> PageResult<TokensPage> {
    let (shell, tokens) = tokio::join!(
        visit.shell(Section::Settings, "Your tokens", "token"),
        visit.get::<wire::Page<wire::Token>>("/users/me/tokens")
    );
    let tabs = Tabs::new(PATH, visit.viewer());
    Ok(TokensPage { shell: shell?, tabs, tokens: tokens?.items, typed: TypedToken::default(), problem: None })
}

async fn list(visit: Visit) -> PageResult {
    let page = load(&visit).await?;
    Ok(visit.render(&page, &page.shell))
}

async fn create(visit: Visit, form: Form) -> PageResult {
    let names = form.all("scopes");
    let scopes: BTreeSet<wire::Scope> =
        names.iter().filter_map(|name| serde_json::from_value(Value::from(*name)).ok()).collect();
    let request = wire::TokenRequest {
        name: form.get("name").to_owned(),
        // None at all is refused by the API, which must not take it for the usual ones.
        scopes: Some(scopes),
        ttl_seconds: form.get("ttl_seconds").parse().ok(),
    };
    match visit.send::<wire::Token>(Method::POST, "/users/me/tokens", &form, &request).await {
        Ok(token) => {
            let shell = visit.shell(Section::Settings, "New token", "").await?;
            Ok(secret(&TokenPage { shell, token, origin: visit.address().to_owned() }))
        }
        Err(problem) => match elsewhere(&visit, &problem, PATH) {
            Some(response) => Ok(response),
            None => {
                let typed = TypedToken {
                    name: request.name,
                    scopes: names.into_iter().map(str::to_owned).collect(),
                    ttl_seconds: form.get("ttl_seconds").to_owned(),
                };
                let page = TokensPage { typed, problem: Some(problem.clone()), ..load(&visit).await? };
                Ok(visit.refused(&page, &problem))
            }
        },
    }
}

async fn revoke(visit: Visit, Path(id): Path<String>, form: Form) -> PageResult {
    let api = path(&["users", "me", "tokens", &id]);
    match visit.send::<Value>(Method::DELETE, &api, &form, &Value::Null).await {
        Ok(_) => Ok(visit.done(PATH, "deleted")),
        Err(problem) => {
            let page = TokensPage { problem: Some(problem.clone()), ..load(&visit).await? };
            Ok(visit.refused(&page, &problem))
        }
    }
}
