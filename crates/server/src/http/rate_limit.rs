//! Rate limits per user or agent and endpoint group, and for sign-ins. Counters live in the coordination store. Lock
//! requests have their own limit per agent; the bootstrap token has none.

use ade_app::Caller;
use ade_store::coordination::RateCount;
use axum::http::{Method, StatusCode};

use super::problem::{ApiResult, Problem};
use crate::api::AppState;

const WINDOW_SECONDS: u64 = 60;
/// Several users may share an address.
const SIGN_INS_PER_ADDRESS_FACTOR: u32 = 5;

/// The group that a route counts for; `None` for lock routes and routes outside of `/api/v1`.
fn endpoint_group(method: &Method, route: &str) -> Option<&'static str> {
    let path = route.strip_prefix("/api/v1/")?;
    let (noun, rest) = path.split_once('/').unwrap_or((path, ""));
    let is_read = matches!(*method, Method::GET | Method::HEAD);
    Some(match (noun, is_read) {
        ("tasks", true) => "tasks:read",
        ("tasks", false) if rest.is_empty() => "tasks:create",
        ("tasks", false) => "tasks:change",
        ("approvals", true) => "approvals:read",
        ("approvals", false) => "approvals:respond",
        ("policies" | "delegations" | "resources", true) => "rules:read",
        ("policies" | "delegations" | "resources", false) => "rules:change",
        ("simulations", _) => "simulations",
        ("audit" | "stats", _) => "audit",
        ("agents", _) => "agents",
        ("config" | "features", _) => "settings",
        ("users" | "sessions", _) => "people",
        _ => return None,
    })
}

pub(crate) async fn check_request(
    app: &AppState,
    caller: &Caller,
    method: &Method,
    route: &str,
) -> ApiResult<()> {
    let Some(group) = endpoint_group(method, route) else { return Ok(()) };
    let Some(user) = &caller.user else { return Ok(()) };
    let subject = caller.agent_id.as_deref().unwrap_or(user.user_id.as_str());
    check(app, group, subject, app.requests_per_minute).await
}

/// Limits sign-in attempts both by user id and by address, against guessing from one machine and on one account.
pub(crate) async fn check_sign_in(
    app: &AppState,
    user_id: &str,
    address: Option<std::net::IpAddr>,
) -> ApiResult<()> {
    let limit = app.sign_ins_per_minute;
    if let Some(address) = address {
        let limit = limit.saturating_mul(SIGN_INS_PER_ADDRESS_FACTOR);
        check(app, "sessions:create", &address.to_string(), limit).await?;
    }
    check(app, "sessions:create", user_id, limit).await
}

async fn check(app: &AppState, group: &'static str, subject: &str, limit: u32) -> ApiResult<()> {
    let coordination = app.locks.coordination();
    // Without counters requests are served: approvals must work while the coordination store is unavailable.
    let Ok(count) = coordination.count_request(group.to_owned(), subject.to_owned(), limit).await else {
        return Ok(());
    };
    let RateCount { allowed, limit, remaining, reset_at } = count;
    if allowed {
        return Ok(());
    }
    let seconds = reset_at.ms_since(coordination.now()).div_ceil(1_000).max(1);
    let detail =
        format!("rate limit of {limit} requests per minute for {group} exceeded; retry in {seconds} s");
    Err(Problem::new(StatusCode::TOO_MANY_REQUESTS, "RATE_LIMITED", detail)
        .retry_after(seconds)
        .header("ratelimit-limit", limit.to_string())
        .header("ratelimit-remaining", remaining.to_string())
        .header("ratelimit-reset", seconds.to_string())
        .header("ratelimit-policy", format!("{limit};w={WINDOW_SECONDS}")))
}
