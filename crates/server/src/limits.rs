//! How often one caller may ask for the same: counted per user and endpoint, with the keys of the schema when there is a
//! Redis. Locks count acquisitions per agent by themselves; the bootstrap token belongs to whoever runs the server.

use ade_app::Caller;
use ade_store::coordination::RateCount;
use axum::http::{Method, StatusCode};

use crate::api::App;
use crate::problem::{Answer, Problem};

/// Seconds of a window.
const WINDOW: u64 = 60;

/// Which limit a route counts against; none for locks and for what is not under the base.
fn endpoint(method: &Method, route: &str) -> Option<&'static str> {
    let path = route.strip_prefix("/api/v1/")?;
    let (noun, rest) = path.split_once('/').unwrap_or((path, ""));
    let reads = matches!(*method, Method::GET | Method::HEAD);
    Some(match (noun, reads) {
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

/// Counts a request, or refuses it.
pub(crate) async fn count(app: &App, caller: &Caller, method: &Method, route: &str) -> Answer<()> {
    let Some(endpoint) = endpoint(method, route) else { return Ok(()) };
    let Some(user) = &caller.user else { return Ok(()) };
    let who = caller.agent_id.as_deref().unwrap_or(user.user_id.as_str());
    within(app, endpoint, who, app.requests_per_minute).await
}

/// Counts a try to sign in: by name and by address, so that neither one account nor one machine tries for long.
pub(crate) async fn sign_in(app: &App, user_id: &str, address: Option<std::net::IpAddr>) -> Answer<()> {
    if let Some(address) = address {
        // Several people may share an address.
        within(app, "sessions:create", &address.to_string(), app.sign_ins_per_minute.saturating_mul(5))
            .await?;
    }
    within(app, "sessions:create", user_id, app.sign_ins_per_minute).await
}

async fn within(app: &App, endpoint: &'static str, who: &str, most: u32) -> Answer<()> {
    let coordination = app.locks.coordination();
    // Whoever cannot be counted is served: approvals do not depend on the locks.
    let Ok(counted) = coordination.count(endpoint.to_owned(), who.to_owned(), most).await else {
        return Ok(());
    };
    let RateCount { allowed, most, remaining, reset_at } = counted;
    if allowed {
        return Ok(());
    }
    let seconds = reset_at.ms_since(coordination.now()).div_ceil(1_000).max(1);
    let detail = format!("{most} requests a minute are served for {endpoint}; try again in {seconds} s");
    Err(Problem::new(StatusCode::TOO_MANY_REQUESTS, "RATE_LIMITED", detail)
        .retry_after(seconds)
        .header("ratelimit-limit", most.to_string())
        .header("ratelimit-remaining", remaining.to_string())
        .header("ratelimit-reset", seconds.to_string())
        .header("ratelimit-policy", format!("{most};w={WINDOW}")))
}
