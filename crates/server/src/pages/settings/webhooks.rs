//! Pages of webhooks with their deliveries, and of inbound hooks.

use ade_client::wire;
use ade_dashboard::Section;
use ade_dashboard::settings::{
    HookPage, NewHookPage, NewWebhookPage, SecretPage, Tabs, TypedWebhook, WebhookPage, WebhooksPage,
};
use axum::Router;
use axum::extract::Path;
use axum::http::Method;
use axum::routing::{get, post};
use serde_json::{Map, Value};

use super::{PAGE_LIMIT, no_such_form};
use crate::api::AppState;
use crate::http::problem::{ApiResult, Problem};
use crate::pages::form::Form;
use crate::pages::respond::{self, html};
use crate::pages::visit::{PageResult, Visit, path, with_query};

const PATH: &str = "/settings/webhooks";

pub(super) fn routes() -> Router<AppState> {
    Router::new()
        .route(PATH, get(list))
        .route("/settings/webhooks/new", get(new_webhook).post(create_webhook))
        .route("/settings/webhooks/{id}", get(show_webhook))
        .route("/settings/webhooks/{id}/{action}", post(act_on_webhook))
        .route("/settings/webhooks/{id}/deliveries/{delivery}", post(redeliver))
        .route("/settings/hooks/new", get(new_hook).post(create_hook))
        .route("/settings/hooks/{id}", get(show_hook))
        .route("/settings/hooks/{id}/{action}", post(act_on_hook))
}

async fn list(visit: Visit) -> PageResult {
    let page =
        |base: &str, param: &str| with_query(base, &[("cursor", visit.param(param)), ("limit", PAGE_LIMIT)]);
    let (webhooks, hooks) = (page("/webhooks", "cursor"), page("/hooks", "hooks"));
    let (shell, webhooks, hooks) = tokio::join!(
        visit.shell(Section::Settings, "Webhooks", "webhook,hook"),
        visit.get::<wire::Page<wire::Webhook>>(&webhooks),
        visit.get::<wire::Page<wire::Hook>>(&hooks)
    );
    let (webhooks, hooks) = (webhooks?, hooks?);
    let page = WebhooksPage {
        shell: shell?,
        tabs: Tabs::new(PATH, visit.viewer()),
        webhooks: webhooks.items,
        next_webhooks: webhooks.next_cursor,
        hooks: hooks.items,
        next_hooks: hooks.next_cursor,
    };
    Ok(visit.render(&page, &page.shell))
}

async fn new_webhook(visit: Visit) -> PageResult {
    let shell = visit.shell(Section::Settings, "New webhook", "").await?;
    let mut typed = TypedWebhook::default();
    if !visit.param("format").is_empty() {
        visit.param("format").clone_into(&mut typed.format);
    }
    Ok(html(&NewWebhookPage { shell, typed, problem: None }))
}

fn webhook_request(form: &Form) -> ApiResult<wire::WebhookRequest> {
    let invalid = |pointer: &str, detail: &str| Problem::invalid_at(pointer, detail);
    let format = serde_json::from_value(Value::from(form.get("format")));
    let format =
        format.map_err(|_| invalid("/format", "is not a format of webhooks; choose one of the list"))?;
    let digest = form.optional("digest_minutes").map(|text| text.parse()).transpose();
    let digest_minutes = digest.map_err(|_| invalid("/digest_minutes", "must be a number of minutes"))?;
    let addresses = form.words("addresses");
    Ok(wire::WebhookRequest {
        name: Some(form.get("name").to_owned()),
        url: form.optional("url"),
        format: Some(format),
        events: Some(form.words("events")),
        task_types: Some(form.words("task_types")),
        active: None,
        credential: form.optional("credential"),
        channel: form.optional("channel"),
        addresses: (!addresses.is_empty()).then_some(addresses),
        digest_minutes,
        signing_secret: form.optional("signing_secret"),
    })
}

async fn create_webhook(visit: Visit, form: Form) -> PageResult {
    let created = match webhook_request(&form) {
        Ok(request) => visit.send::<wire::Webhook>(Method::POST, "/webhooks", &form, &request).await,
        Err(problem) => Err(problem.to_wire()),
    };
    match created {
        Ok(webhook) => {
            let back = path(&["settings", "webhooks", &webhook.webhook_id]);
            secret_page(&visit, webhook.name, webhook.secret, false, None, back).await
        }
        Err(problem) => {
            let text = |name: &str| form.get(name).to_owned();
            let typed = TypedWebhook {
                name: text("name"),
                url: text("url"),
                format: text("format"),
                events: text("events"),
                task_types: text("task_types"),
                channel: text("channel"),
                addresses: text("addresses"),
                digest_minutes: text("digest_minutes"),
            };
            let shell = visit.shell(Section::Settings, "New webhook", "").await?;
            Ok(visit.refused(&NewWebhookPage { shell, typed, problem: Some(problem.clone()) }, &problem))
        }
    }
}

async fn secret_page(
    visit: &Visit,
    title: String,
    secret: Option<String>,
    is_rotated: bool,
    receives_at: Option<String>,
    back: String,
) -> PageResult {
    let shell = visit.shell(Section::Settings, "Secret", "").await?;
    let page = SecretPage { shell, title, secret, is_rotated, receives_at, back };
    Ok(respond::secret(&page))
}

async fn load_webhook(visit: &Visit, id: &str) -> PageResult<WebhookPage> {
    let status = visit.param("status").to_owned();
    let params = [("status", status.as_str()), ("cursor", visit.param("cursor")), ("limit", PAGE_LIMIT)];
    let (webhook, deliveries) =
        (path(&["webhooks", id]), with_query(&path(&["webhooks", id, "deliveries"]), &params));
    // Whatever happens may be sent.
    let topics = "approval,lock,task,webhook";
    let waiting =
        with_query(&path(&["webhooks", id, "deliveries"]), &[("status", "pending"), ("limit", PAGE_LIMIT)]);
    let (shell, webhook, deliveries, waiting) = tokio::join!(
        visit.shell(Section::Settings, "Webhook", topics),
        visit.get::<wire::Webhook>(&webhook),
        visit.get::<wire::Page<wire::Delivery>>(&deliveries),
        visit.get::<wire::Page<wire::Delivery>>(&waiting)
    );
    let (mut shell, webhook, deliveries, waiting) = (shell?, webhook?, deliveries?, waiting?);
    shell.title.clone_from(&webhook.name);
    let (deliveries, next_cursor) = (deliveries.items, deliveries.next_cursor);
    Ok(WebhookPage { shell, webhook, deliveries, waiting, status, next_cursor, problem: None })
}

async fn show_webhook(visit: Visit, Path(id): Path<String>) -> PageResult {
    let page = load_webhook(&visit, &id).await?;
    Ok(visit.render(&page, &page.shell))
}

async fn webhook_refused(visit: &Visit, id: &str, problem: wire::Problem) -> PageResult {
    let page = WebhookPage { problem: Some(problem.clone()), ..load_webhook(visit, id).await? };
    Ok(visit.refused(&page, &problem))
}

fn nothing() -> Map<String, Value> {
    Map::new()
}

async fn act_on_webhook(visit: Visit, Path((id, action)): Path<(String, String)>, form: Form) -> PageResult {
    let (api, page) = (path(&["webhooks", &id]), path(&["settings", "webhooks", &id]));
    let set_active =
        |active| wire::WebhookRequest { active: Some(active), ..wire::WebhookRequest::default() };
    let changed = match action.as_str() {
        "rotate" => {
            let rotated =
                visit.send::<wire::Webhook>(Method::POST, &format!("{api}/rotate"), &form, &nothing()).await;
            return match rotated {
                Ok(webhook) => secret_page(&visit, webhook.name, webhook.secret, true, None, page).await,
                Err(problem) => webhook_refused(&visit, &id, problem).await,
            };
        }
        "test" => {
            visit.post(&format!("{api}/test"), &form, &nothing()).await.map(|_| visit.done(&page, "tested"))
        }
        "activate" | "deactivate" => {
            let body = set_active(action == "activate");
            visit.send::<Value>(Method::PATCH, &api, &form, &body).await.map(|_| visit.done(&page, "saved"))
        }
        "delete" => {
            let deleted = visit.send::<Value>(Method::DELETE, &api, &form, &nothing()).await;
            deleted.map(|_| visit.done(PATH, "deleted"))
        }
        _ => return no_such_form(),
    };
    match changed {
        Ok(response) => Ok(response),
        Err(problem) => webhook_refused(&visit, &id, problem).await,
    }
}

async fn redeliver(visit: Visit, Path((id, delivery)): Path<(String, String)>, form: Form) -> PageResult {
    let api = path(&["webhooks", &id, "deliveries", &delivery, "redeliver"]);
    match visit.post(&api, &form, &nothing()).await {
        Ok(_) => Ok(visit.done(&path(&["settings", "webhooks", &id]), "sent")),
        Err(problem) => webhook_refused(&visit, &id, problem).await,
    }
}

async fn new_hook(visit: Visit) -> PageResult {
    let shell = visit.shell(Section::Settings, "New inbound hook", "").await?;
    let page = NewHookPage {
        shell,
        name: String::new(),
        owner_id: visit.viewer().user_id.clone(),
        template: NewHookPage::EXAMPLE.to_owned(),
        problem: None,
    };
    Ok(html(&page))
}

async fn create_hook(visit: Visit, form: Form) -> PageResult {
    let template = serde_json::from_str::<wire::HookTemplate>(form.get("template"));
    let created = match template {
        Ok(template) => {
            let request = wire::HookRequest {
                name: Some(form.get("name").to_owned()),
                owner_id: Some(form.get("owner_id").to_owned()),
                active: None,
                submit: Some(form.is_checked("submit")),
                template: Some(template),
            };
            visit.send::<wire::Hook>(Method::POST, "/hooks", &form, &request).await
        }
        Err(error) => {
            Err(Problem::invalid_at("/template", format!("the template cannot be read: {error}")).to_wire())
        }
    };
    match created {
        Ok(hook) => {
            let url = format!("{}/api/v1/hooks/{}", visit.address(), hook.hook_id);
            let back = path(&["settings", "hooks", &hook.hook_id]);
            secret_page(&visit, hook.name, hook.secret, false, Some(url), back).await
        }
        Err(problem) => {
            let text = |name: &str| form.get(name).to_owned();
            let page = NewHookPage {
                shell: visit.shell(Section::Settings, "New inbound hook", "").await?,
                name: text("name"),
                owner_id: text("owner_id"),
                template: text("template"),
                problem: Some(problem.clone()),
            };
            Ok(visit.refused(&page, &problem))
        }
    }
}

async fn load_hook(visit: &Visit, id: &str) -> PageResult<HookPage> {
    let api = path(&["hooks", id]);
    let (shell, hook) =
        tokio::join!(visit.shell(Section::Settings, "Inbound hook", "hook"), visit.get::<wire::Hook>(&api));
    let (mut shell, hook) = (shell?, hook?);
    shell.title.clone_from(&hook.name);
    Ok(HookPage { shell, hook, origin: visit.address().to_owned(), problem: None })
}

async fn show_hook(visit: Visit, Path(id): Path<String>) -> PageResult {
    let page = load_hook(&visit, &id).await?;
    Ok(visit.render(&page, &page.shell))
}

async fn act_on_hook(visit: Visit, Path((id, action)): Path<(String, String)>, form: Form) -> PageResult {
    let (api, page) = (path(&["hooks", &id]), path(&["settings", "hooks", &id]));
    let changed = match action.as_str() {
        "rotate" => {
            match visit.send::<wire::Hook>(Method::POST, &format!("{api}/rotate"), &form, &nothing()).await {
                Ok(hook) => {
                    let url = format!("{}/api/v1/hooks/{}", visit.address(), hook.hook_id);
                    return secret_page(&visit, hook.name, hook.secret, true, Some(url), page).await;
                }
                Err(problem) => Err(problem),
            }
        }
        "activate" | "deactivate" => {
            let active = Some(action == "activate");
            let body = wire::HookRequest { active, ..wire::HookRequest::default() };
            visit.send::<Value>(Method::PATCH, &api, &form, &body).await.map(|_| visit.done(&page, "saved"))
        }
        "delete" => {
            let deleted = visit.send::<Value>(Method::DELETE, &api, &form, &nothing()).await;
            deleted.map(|_| visit.done(PATH, "deleted"))
        }
        _ => return no_such_form(),
    };
    match changed {
        Ok(response) => Ok(response),
        Err(problem) => {
            let page = HookPage { problem: Some(problem.clone()), ..load_hook(&visit, &id).await? };
            Ok(visit.refused(&page, &problem))
        }
    }
}
