//! Error responses that many routes share, for the OpenAPI document. A route that lists a status again overrides it.

use std::collections::BTreeMap;

use utoipa::IntoResponses;
use utoipa::openapi::response::{Response, ResponseBuilder};
use utoipa::openapi::{ContentBuilder, Ref, RefOr};

fn problem(codes: &str) -> RefOr<Response> {
    let body = ContentBuilder::new().schema(Some(Ref::from_schema_name("Problem"))).build();
    ResponseBuilder::new().description(codes).content("application/json", body).build().into()
}

/// Defines groups of responses by status and codes. A group may include others.
macro_rules! responses {
    ($($(#[$doc:meta])* $name:ident: [$($included:ident),*] { $($status:literal: $codes:literal),* })+) => {$(
        $(#[$doc])*
        #[derive(Debug)]
        pub(crate) enum $name {}

        impl IntoResponses for $name {
            fn responses() -> BTreeMap<String, RefOr<Response>> {
                let mut responses = BTreeMap::new();
                $(responses.extend($included::responses());)*
                $(responses.insert($status.to_string(), problem($codes));)*
                responses
            }
        }
    )+};
}

responses! {
    /// Of every authenticated route.
    CommonErrors: [] {
        401: "UNAUTHENTICATED",
        403: "FORBIDDEN, SCOPE_MISSING, CSRF, REAUTHENTICATE or PASSWORD_CHANGE_REQUIRED",
        429: "RATE_LIMITED",
        503: "UNAVAILABLE"
    }
    /// Of routes with parameters.
    ReadErrors: [CommonErrors] { 422: "INVALID_REQUEST" }
    /// Of routes with a body.
    BodyErrors: [ReadErrors, ParseErrors] {}
    ParseErrors: [] { 400: "MALFORMED_JSON", 408: "BODY_TOO_SLOW", 413: "BODY_TOO_LARGE" }
    /// Of routes that delete an object and accept If-Match.
    DeleteErrors: [ReadErrors] { 412: "STALE: the object has a newer revision", 503: "UNAVAILABLE or CONTENTION" }
    /// Of routes that update an object and accept If-Match.
    UpdateErrors: [BodyErrors, DeleteErrors] {}
    /// Of routes that compute a preview.
    PreviewErrors: [] { 503: "UNAVAILABLE, CONTENTION, PREVIEW_PENDING or PREVIEW_BUSY" }
    /// Of routes that accept an Idempotency-Key.
    PostErrors: [BodyErrors] {
        409: "IN_FLIGHT",
        422: "INVALID_REQUEST or IDEMPOTENCY_KEY_REUSED",
        503: "UNAVAILABLE or CONTENTION"
    }
    /// Of routes that accept both an Idempotency-Key and If-Match.
    ActionErrors: [PostErrors] { 412: "STALE: the object has a newer revision" }
    /// Of routes that decide about a task.
    DecisionErrors: [ActionErrors] {
        403: "OWN_TASK, NOT_INDEPENDENT, NOT_A_REVIEWER, SAME_ADMIN, FORBIDDEN, SCOPE_MISSING, CSRF, REAUTHENTICATE or PASSWORD_CHANGE_REQUIRED",
        404: "TASK_NOT_FOUND or APPROVAL_NOT_FOUND",
        409: "INVALID_TRANSITION, EDITED_TASK, RESTORED_TASK, ALREADY_DECIDED, DIGEST_MISMATCH, STALE_SCOPE, APPROVAL_CLOSED, NO_OVERRIDE or IN_FLIGHT",
        422: "INVALID_REQUEST, FRICTION_REQUIRED, REASON_REQUIRED, TICKET_REQUIRED, INVALID_REVIEWER or IDEMPOTENCY_KEY_REUSED"
    }
    /// Of routes that change who decides, or by which rules.
    SecondAdmin: [] {
        202: "AWAITS_CONFIRMATION: with dual control, the change waits for a second administrator",
        429: "RATE_LIMITED or TOO_MANY_CHANGES"
    }
    /// Of routes that decide about such a change.
    ConfirmationErrors: [PostErrors] {
        403: "NOT_INDEPENDENT, FORBIDDEN, SCOPE_MISSING, CSRF, REAUTHENTICATE or PASSWORD_CHANGE_REQUIRED",
        404: "CHANGE_NOT_FOUND, or what it changes was not found",
        409: "CHANGE_OUTDATED, ALREADY_EXISTS or IN_FLIGHT"
    }
    AgentNotFound: [] { 404: "AGENT_NOT_FOUND" }
    ArchiveNotFound: [] { 404: "ARCHIVE_NOT_FOUND" }
    DelegationNotFound: [] { 404: "DELEGATION_NOT_FOUND" }
    DeliveryNotFound: [] { 404: "WEBHOOK_NOT_FOUND or DELIVERY_NOT_FOUND" }
    FeatureNotFound: [] { 404: "FEATURE_NOT_FOUND" }
    HookNotFound: [] { 404: "HOOK_NOT_FOUND" }
    PolicyNotFound: [] { 404: "POLICY_NOT_FOUND" }
    ResourceNotFound: [] { 404: "RESOURCE_NOT_FOUND" }
    SettingNotFound: [] { 404: "SETTING_NOT_FOUND" }
    TaskNotFound: [] { 404: "TASK_NOT_FOUND" }
    TicketNotFound: [] { 404: "TICKET_NOT_FOUND" }
    TokenNotFound: [] { 404: "TOKEN_NOT_FOUND" }
    UserNotFound: [] { 404: "USER_NOT_FOUND" }
    WebhookNotFound: [] { 404: "WEBHOOK_NOT_FOUND" }
}
