//! Slack routes: users link their accounts, and the route that Slack sends buttons and commands to.

use std::collections::BTreeMap;

use ade_domain::webhook::slack_request::{SignedSlackRequest, SlackRequest};
use axum::extract::{FromRequestParts, Request};
use axum::http::header::CONTENT_TYPE;
use url::form_urlencoded;

use super::hooks::header_text;
use super::prelude::*;
use crate::auth::{client_address, request_origin};
use crate::http::{json, rate_limit};

const FORM: &str = "application/x-www-form-urlencoded";

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(create_code, unlink)).routes(routes!(receive))
}

/// Create a code with which you link your account of Slack.
///
/// Only for yourself, in a session that may decide. The code is valid for 10 minutes and replaces an earlier one. It is shown only in this
/// response; a repeated request with the same Idempotency-Key does not show it again.
#[utoipa::path(post, path = "/users/{id}/slack-link", operation_id = "create_slack_code", tag = "people", params(("id" = String, Path, description = "`me`, or your user id")), responses(
    (status = 201, description = "The code", body = wire::SlackCode), PostErrors,
))]
async fn create_code(app: App, Param(id): Param, request: IdempotentPost<EmptyBody, 201>) -> ApiResult {
    let created = app.slack.create_code(&request.caller.resolve_me(id), &request.caller).await?;
    let body = wire::SlackCode { code: created.code, expires_at: created.expires_at.convert() };
    Ok((StatusCode::CREATED, Json(body)).into_response())
}

/// End the link of a user with Slack: your own in a session, or as an administrator that of any user.
#[utoipa::path(delete, path = "/users/{id}/slack-link", operation_id = "unlink_slack", tag = "people", params(("id" = String, Path)), responses(
    (status = 204, description = "The user is not linked"), ReadErrors, UserNotFound,
))]
async fn unlink(app: App, caller: Caller, Param(id): Param) -> ApiResult<StatusCode> {
    app.slack.unlink(&caller.resolve_me(id), &caller).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The fields of a form. A name that comes twice could mean something else to somebody who checked the form before.
fn unique_fields(body: &[u8]) -> ApiResult<BTreeMap<String, String>> {
    let mut fields = BTreeMap::new();
    for (name, value) in form_urlencoded::parse(body).into_owned() {
        if fields.contains_key(&name) {
            let detail = format!("the form has the field {name:?} more than once");
            return Err(Problem::new(StatusCode::BAD_REQUEST, "BAD_BODY", detail));
        }
        fields.insert(name, value);
    }
    Ok(fields)
}

/// Receive a button or a command of Slack.
///
/// The body is a form, as Slack sends it: the field `payload` of a button, or the fields of a command. It is signed with the signing secret
/// of the webhook (`X-Slack-Request-Timestamp`, `X-Slack-Signature`), and accepted once.
#[utoipa::path(post, path = "/hooks/slack/{id}", operation_id = "receive_slack", tag = "webhooks", security(()), params(
    ("id" = String, Path, description = "Id of the webhook"),
    ("x-slack-request-timestamp" = Option<String>, Header, description = "Seconds since 1970"),
    ("x-slack-signature" = Option<String>, Header, description = "`v0=` and the signature in hexadecimal digits"),
), request_body(content = String, content_type = "application/x-www-form-urlencoded"), responses(
    (status = 200, description = "What the sender is shown, also if the decision was refused"), ParseErrors,
    (status = 400, description = "BAD_BODY: a field of the form comes more than once", body = wire::Problem),
    (status = 401, description = "UNAUTHENTICATED: no signing secret, invalid signature, or an old timestamp", body = wire::Problem),
    (status = 409, description = "REPLAYED: the request was accepted already", body = wire::Problem),
    (status = 415, description = "UNSUPPORTED_MEDIA_TYPE: the body is not a form", body = wire::Problem),
    (status = 422, description = "INVALID_REQUEST", body = wire::Problem),
    (status = 429, description = "RATE_LIMITED", body = wire::Problem),
    (status = 503, description = "UNAVAILABLE or CONTENTION", body = wire::Problem),
))]
async fn receive(app: App, request: Request) -> ApiResult {
    let (mut parts, body) = request.into_parts();
    let Param(id) = Param::from_request_parts(&mut parts, &app).await?;
    rate_limit::check_hook_sender(&app, client_address(&parts)).await?;
    let origin = request_origin(&parts, &app);
    let [timestamp, signature] =
        ["x-slack-request-timestamp", "x-slack-signature"].map(|name| header_text(&parts.headers, name));
    // Without them, nothing of the body is read.
    if timestamp.is_empty() || signature.is_empty() {
        let detail = "sign the request: send X-Slack-Request-Timestamp and X-Slack-Signature";
        return Err(Problem::unauthenticated(detail));
    }
    let content_type = header_text(&parts.headers, CONTENT_TYPE.as_str());
    let media_type = content_type.split(';').next().unwrap_or_default().trim();
    if !media_type.eq_ignore_ascii_case(FORM) {
        let detail = format!("the body must be a form: Content-Type {FORM}, not {content_type:?}");
        return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "UNSUPPORTED_MEDIA_TYPE", detail));
    }
    let body = json::read_body(Request::from_parts(parts, body), &app).await?;
    let signed = SignedSlackRequest { timestamp: &timestamp, signature: &signature, body: &body };
    let verified = app.slack.verify(&id, signed).await?;
    rate_limit::check_hook(&app, verified.webhook_id()).await?;
    let fields = unique_fields(&body)?;
    let request = SlackRequest::parse(&fields).map_err(|fault| ade_app::Error::Invalid(vec![fault]))?;
    let answer = app.slack.handle(&verified, request, origin).await?;
    if answer.is_null() {
        return Ok(StatusCode::OK.into_response());
    }
    Ok(Json(answer).into_response())
}
