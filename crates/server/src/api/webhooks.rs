//! Webhook routes: where events are sent, and what became of them.

use ade_store::database::{DeliveryFilter, DeliveryStatus};

use super::prelude::*;
use crate::http::extract::PathParams;
use crate::http::idempotency::etag;
use crate::http::paging::parse_word;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(list, create))
        .routes(routes!(show, update, delete))
        .routes(routes!(rotate))
        .routes(routes!(test))
        .routes(routes!(deliveries))
        .routes(routes!(redeliver))
}

/// A response with a secret, which is never stored and so not part of an outcome.
pub(super) fn with_secret<T: serde::Serialize>(status: StatusCode, body: T, revision: u64) -> Response {
    let mut response = (status, Json(body)).into_response();
    if let Some(tag) = etag(revision) {
        response.headers_mut().insert(axum::http::header::ETAG, tag);
    }
    response
}

/// List webhooks (admin, auditor).
#[utoipa::path(get, path = "/webhooks", operation_id = "list_webhooks", tag = "webhooks", params(PageParams), responses(
    (status = 200, description = "A page of webhooks, oldest first", body = wire::Page<wire::Webhook>), ReadErrors,
))]
async fn list(app: App, caller: Caller, Params(page): Params<PageParams>) -> PageResult<wire::Webhook> {
    page.page_of_documents(app.webhooks.list(&caller).await?, |stored| convert::webhook(&stored.value, None))
}

/// Create a webhook (admin).
///
/// The response contains the secret that signs what is sent. It is shown only once: a repeated request with the same
/// Idempotency-Key does not show it again.
#[utoipa::path(post, path = "/webhooks", operation_id = "create_webhook", tag = "webhooks", request_body = wire::WebhookRequest, responses(
    (status = 201, description = "The webhook with its secret", body = wire::Webhook), PostErrors,
))]
async fn create(app: App, request: IdempotentPost<wire::WebhookRequest, 201>) -> ApiResult {
    let created = app.webhooks.create(&request.body.clone().convert(), &request.caller).await?;
    let (revision, webhook) = (created.view.revision, convert::webhook_with_secret(&created));
    Ok(with_secret(StatusCode::CREATED, webhook, revision))
}

/// Get a webhook (admin, auditor).
#[utoipa::path(get, path = "/webhooks/{id}", operation_id = "show_webhook", tag = "webhooks", params(("id" = String, Path)), responses(
    (status = 200, description = "The webhook", body = wire::Webhook), ReadErrors, WebhookNotFound,
))]
async fn show(app: App, caller: Caller, Param(id): Param) -> JsonResult<wire::Webhook> {
    Ok(Json(convert::webhook(&app.webhooks.get(&id, &caller).await?, None)))
}

/// Update a webhook (admin).
#[utoipa::path(patch, path = "/webhooks/{id}", operation_id = "update_webhook", tag = "webhooks", params(("id" = String, Path)), request_body = wire::WebhookRequest, responses(
    (status = 200, description = "The updated webhook", body = wire::Webhook), UpdateErrors, WebhookNotFound,
))]
async fn update(
    app: App,
    caller: Caller,
    Param(id): Param,
    JsonBody(body): JsonBody<wire::WebhookRequest>,
) -> JsonResult<wire::Webhook> {
    Ok(Json(convert::webhook(&app.webhooks.update(&id, &body.convert(), &caller).await?, None)))
}

/// Delete a webhook (admin). What still waits is not sent.
#[utoipa::path(delete, path = "/webhooks/{id}", operation_id = "delete_webhook", tag = "webhooks", params(("id" = String, Path)), responses(
    (status = 204, description = "The webhook is deleted"), DeleteErrors, WebhookNotFound,
))]
async fn delete(app: App, caller: Caller, Param(id): Param) -> ApiResult<StatusCode> {
    app.webhooks.delete(&id, &caller).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Replace the secret of a webhook (admin).
///
/// The response contains the new secret, which is shown only once. For 24 hours both secrets sign.
#[utoipa::path(post, path = "/webhooks/{id}/rotate", operation_id = "rotate_webhook", tag = "webhooks", params(("id" = String, Path)), responses(
    (status = 200, description = "The webhook with its new secret", body = wire::Webhook), ActionErrors, WebhookNotFound,
))]
async fn rotate(app: App, Param(id): Param, request: IdempotentPost<EmptyBody>) -> ApiResult {
    let rotated = app.webhooks.rotate(&id, &request.caller).await?;
    let (revision, webhook) = (rotated.view.revision, convert::webhook_with_secret(&rotated));
    Ok(with_secret(StatusCode::OK, webhook, revision))
}

/// Send a test message to a webhook (admin).
#[utoipa::path(post, path = "/webhooks/{id}/test", operation_id = "test_webhook", tag = "webhooks", params(("id" = String, Path)), responses(
    (status = 202, description = "The delivery, which is sent at once", body = wire::Delivery), PostErrors, WebhookNotFound,
))]
async fn test(app: App, Param(id): Param, request: IdempotentPost<EmptyBody, 202>) -> ApiResult {
    let delivery = app.webhooks.test(&id, &request.caller).await?;
    Ok(request.respond(Outcome::Delivery(Box::new(delivery))))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct DeliveryParams {
    /// Only deliveries with this status: `pending`, `delivered` or `failed`.
    status: Option<String>,
    /// Page size; 50 by default, at most 200.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<usize>,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
}

/// List the deliveries of a webhook (admin, auditor). They are kept for 30 days.
#[utoipa::path(get, path = "/webhooks/{id}/deliveries", operation_id = "list_deliveries", tag = "webhooks", params(("id" = String, Path), DeliveryParams), responses(
    (status = 200, description = "A page of deliveries, newest first", body = wire::Page<wire::Delivery>), ReadErrors, WebhookNotFound,
))]
async fn deliveries(
    app: App,
    caller: Caller,
    Param(id): Param,
    Params(params): Params<DeliveryParams>,
) -> PageResult<wire::Delivery> {
    let status: Option<DeliveryStatus> =
        parse_word("?status", params.status, "pending, delivered or failed")?;
    let page = PageParams::new(params.limit, params.cursor);
    let filter = DeliveryFilter { webhook_id: &id, status, before: page.uuid_cursor()? };
    let found = app.webhooks.deliveries(filter, page.fetch_limit_u32()?, &caller).await?;
    page.page(found, |delivery| delivery.delivery_id.clone(), convert::delivery)
}

/// Send a delivery again, with the same id (admin).
#[utoipa::path(post, path = "/webhooks/{id}/deliveries/{delivery}/redeliver", operation_id = "redeliver", tag = "webhooks", params(("id" = String, Path), ("delivery" = String, Path)), responses(
    (status = 202, description = "The delivery, which is sent at once", body = wire::Delivery), PostErrors, DeliveryNotFound,
))]
async fn redeliver(
    app: App,
    PathParams(ids): PathParams<2>,
    request: IdempotentPost<EmptyBody, 202>,
) -> ApiResult {
    let [id, delivery] = ids;
    let delivery = app.webhooks.redeliver(&id, &delivery, &request.caller).await?;
    Ok(request.respond(Outcome::Delivery(Box::new(delivery))))
}
