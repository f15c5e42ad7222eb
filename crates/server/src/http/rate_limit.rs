//! Rate limits per user or agent and endpoint group, and for sign-ins. Each process counts its own requests, and Redis those of all
//! processes. Lock requests have their own limit per agent; the bootstrap token has none.

use ade_app::Caller;
use ade_app::accounts::SignInAttempt;
use ade_domain::Moment;
use ade_store::coordination::{Counting, RateCount};
use axum::http::{Method, StatusCode};

use super::problem::{ApiResult, Problem};
use crate::api::AppState;
use crate::auth::PasswordOrigin;
use crate::http::client_address::ClientAddress;

const WINDOW_SECONDS: u64 = 60;
/// The group of messages to inbound hooks.
const HOOKS: &str = "hooks:receive";
/// Several users may share an address.
const SIGN_INS_PER_ADDRESS_FACTOR: u32 = 5;

/// Acquiring a lock is limited per agent; the others only keep or give back what was acquired.
const LOCK_STEPS: [&str; 5] = ["acquire", "heartbeat", "release", "downgrade", "verify"];

/// What decides about a task, besides the responses to approval requests.
const TASK_DECISIONS: [&str; 5] = ["override", "override/confirm", "revoke", "force-apply", "rollback"];

/// Decisions, and changes of rules, people and settings, are counted one by one. So are passwords ([`check_sign_in`]).
fn counting(method: &Method, group: &str, route: &str) -> Counting {
    let is_decision = TASK_DECISIONS
        .iter()
        .any(|decision| route.strip_suffix(decision).is_some_and(|before| before.ends_with("{id}/")));
    match group {
        "tasks:create" | "simulations" | "agents" | "locks" => Counting::InBlocks,
        "tasks:change" if !is_decision => Counting::InBlocks,
        "pages" => Counting::InBlocks,
        _ if matches!(*method, Method::GET | Method::HEAD) => Counting::InBlocks,
        _ => Counting::Exact,
    }
}

/// The group that a route counts for; `None` for the steps of holding a lock. Routes outside of `/api/v1` with a caller are pages:
/// each is counted once, whatever it reads. The changes of forms are counted as requests to the API.
fn endpoint_group(method: &Method, route: &str) -> Option<&'static str> {
    let Some(path) = route.strip_prefix("/api/v1/") else { return Some("pages") };
    let (noun, rest) = path.split_once('/').unwrap_or((path, ""));
    let is_read = matches!(*method, Method::GET | Method::HEAD);
    Some(match (noun, is_read) {
        ("tasks", true) => "tasks:read",
        ("tasks", false) if rest.is_empty() => "tasks:create",
        ("tasks", false) => "tasks:change",
        ("approvals", true) => "approvals:read",
        ("approvals", false) => "approvals:respond",
        ("policies" | "delegations" | "resources" | "changes", true) => "rules:read",
        ("policies" | "delegations" | "resources" | "changes", false) => "rules:change",
        ("simulations", _) => "simulations",
        ("audit" | "stats" | "archives" | "projections", _) => "audit",
        ("agents", _) => "agents",
        ("config" | "features" | "executors" | "jobs" | "keys", _) => "settings",
        ("webhooks" | "hooks", true) => "webhooks:read",
        ("webhooks" | "hooks", false) => "webhooks:change",
        ("users" | "sessions", _) => "people",
        ("events" | "ws", _) => "events",
        ("locks", _) if !LOCK_STEPS.contains(&rest) && !rest.starts_with("tickets/") => "locks",
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
    let counting = counting(method, group, route);
    // Sessions and tokens are counted apart: a program must not lock its user out.
    if caller.audit_actor.session_id.is_some() {
        let subject = format!("session:{}", user.user_id);
        return check(app, group, subject, app.requests_per_minute, counting).await;
    }
    let subject = match &caller.agent_id {
        Some(agent) => format!("agent:{agent}"),
        None => format!("token:{}", user.user_id),
    };
    match app.token_rate_limit.per_minute().await {
        None => Ok(()),
        Some(limit) => check(app, group, subject, limit, counting).await,
    }
}

/// Limits attempts to give a password both by user id and by address, against guessing from one machine and on one account; then by the
/// delays after failed ones. A known device is limited by itself.
pub(crate) async fn check_sign_in(
    app: &AppState,
    user_id: &str,
    origin: &PasswordOrigin,
) -> ApiResult<SignInAttempt> {
    let (group, limit) = ("sessions:create", app.sign_ins_per_minute);
    let address = origin.client.map(|client| client.ip.to_string());
    let device_secret = origin.device_secret.as_deref();
    let attempt = app.accounts.begin_sign_in(user_id, address.clone(), device_secret).await?;
    if let Some(device) = attempt.as_ref().ok().and_then(SignInAttempt::device_hash) {
        check(app, group, format!("device:{device}"), limit, Counting::Exact).await?;
    } else {
        if let Some(address) = address {
            let limit = limit.saturating_mul(SIGN_INS_PER_ADDRESS_FACTOR);
            check(app, group, format!("address:{address}"), limit, Counting::Exact).await?;
        }
        // Nobody has an empty id; such attempts are limited by address only.
        if !user_id.is_empty() {
            check(app, group, format!("name:{user_id}"), limit, Counting::Exact).await?;
        }
    }
    attempt.map_err(|next_at| {
        let seconds = seconds_until(next_at, app.tasks.now());
        let detail = format!("too many failed sign-ins; the next attempt is allowed in {seconds} s");
        Problem::new(StatusCode::TOO_MANY_REQUESTS, "RATE_LIMITED", detail).retry_after(seconds)
    })
}

/// Limits messages to inbound hooks by the address of their sender, before their signature is verified.
pub(crate) async fn check_hook_sender(app: &AppState, client: Option<ClientAddress>) -> ApiResult<()> {
    let Some(client) = client else { return Ok(()) };
    check(app, HOOKS, format!("address:{}", client.ip), app.requests_per_minute, Counting::InBlocks).await
}

/// Limits the verified messages of one inbound hook, or of one Slack app.
pub(crate) async fn check_hook(app: &AppState, hook_id: &str) -> ApiResult<()> {
    match app.token_rate_limit.per_minute().await {
        None => Ok(()),
        Some(limit) => check(app, HOOKS, format!("hook:{hook_id}"), limit, Counting::InBlocks).await,
    }
}

async fn check(
    app: &AppState,
    group: &'static str,
    subject: String,
    limit: u32,
    counting: Counting,
) -> ApiResult<()> {
    let coordination = app.locks.coordination();
    let count = coordination.count_request(group.to_owned(), subject, limit, counting).await?;
    let RateCount { allowed, limit, remaining, reset_at } = count;
    if allowed {
        return Ok(());
    }
    let seconds = seconds_until(reset_at, coordination.now());
    let detail =
        format!("rate limit of {limit} requests per minute for {group} exceeded; retry in {seconds} s");
    Err(Problem::new(StatusCode::TOO_MANY_REQUESTS, "RATE_LIMITED", detail)
        .retry_after(seconds)
        .header("ratelimit-limit", limit.to_string())
        .header("ratelimit-remaining", remaining.to_string())
        .header("ratelimit-reset", seconds.to_string())
        .header("ratelimit-policy", format!("{limit};w={WINDOW_SECONDS}")))
}

fn seconds_until(moment: Moment, now: Moment) -> u64 {
    moment.ms_since(now).div_ceil(1_000).max(1)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_authenticated_route_counts_for_a_group() {
        let document = serde_json::to_value(crate::openapi()).expect("JSON");
        let mut ungrouped = Vec::new();
        for (path, operations) in document["paths"].as_object().expect("paths") {
            for (method, operation) in operations.as_object().expect("operations") {
                let is_public = operation["security"].as_array().is_some_and(|all| all.contains(&json!({})));
                let method = method.to_uppercase().parse().expect("a method");
                if !is_public && endpoint_group(&method, path).is_none() {
                    ungrouped.push(path.trim_start_matches("/api/v1/locks/").to_owned());
                }
            }
        }
        ungrouped.retain(|step| !step.starts_with("tickets/"));
        ungrouped.sort_unstable();
        let mut steps = LOCK_STEPS;
        steps.sort_unstable();
        assert_eq!(ungrouped, steps, "only the steps of holding a lock have a limit of their own");
    }

    #[test]
    fn decisions_and_changes_of_rules_are_counted_one_by_one() {
        let document = serde_json::to_value(crate::openapi()).expect("JSON");
        let mut exact = Vec::new();
        for (path, operations) in document["paths"].as_object().expect("paths") {
            for method in operations.as_object().expect("operations").keys() {
                let method: Method = method.to_uppercase().parse().expect("a method");
                let Some(group) = endpoint_group(&method, path) else { continue };
                if counting(&method, group, path) == Counting::Exact {
                    assert!(!matches!(method, Method::GET | Method::HEAD), "{path}");
                    exact.push(path.trim_start_matches("/api/v1/"));
                }
            }
        }
        let of_tasks: Vec<&str> = exact.iter().filter_map(|path| path.strip_prefix("tasks/{id}/")).collect();
        let mut decisions = TASK_DECISIONS;
        decisions.sort_unstable();
        assert_eq!(of_tasks, decisions);
        for decision in
            ["approvals/{id}/approve", "approvals/batch", "changes/{id}/confirm", "users/{id}/confirm"]
        {
            assert!(exact.contains(&decision), "{decision}");
        }
        assert!(exact.iter().all(|path| !path.starts_with("locks") && *path != "tasks"));
    }
}
