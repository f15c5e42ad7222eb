//! Routes of events: pages with long polling, an event stream (SSE), and a WebSocket.
//!
//! A follower is authenticated when it connects, again before any event that follows a change of its account, and from time to time.

mod connections;
mod follower;
mod origin;
mod stream;
mod websocket;

use std::sync::Arc;
use std::time::Duration;

use ade_app::{FeedError, FeedEvent, FollowerIdentity};
use ade_domain::event_filter::EventFilter;
use ade_domain::permission::Scope;
use axum::http::header;
use tokio::time::{Instant, timeout_at};

use super::prelude::*;
use crate::auth::Credentials;

pub(crate) use connections::EventConnections;

const DEFAULT_LIMIT: usize = 50;
const MAX_LIMIT: usize = 200;
const MAX_WAIT_SECONDS: u64 = 60;
/// How long one request may look for events that match.
const MAX_SCAN_TIME: Duration = Duration::from_secs(2);

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(stream::stream))
        .routes(routes!(websocket::websocket))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListParams {
    /// Id of an event: those after it are listed. Absent: none, and `next_cursor` is the present end.
    after: Option<String>,
    /// Id of an event: those before it are listed, newest first. `end`: the last ones. `next_cursor` is then the `before` of the next
    /// page, and 0 after the last one.
    before: Option<String>,
    /// Seconds to wait for the first event that matches; at most 60.
    #[param(maximum = 60)]
    wait: Option<u64>,
    /// Page size; 50 by default, at most 200.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<usize>,
    /// Nouns such as `task`, with commas between them.
    topics: Option<String>,
    /// Names, with `*` for any characters, such as `approval:*`; with commas between them.
    events: Option<String>,
    /// Only events of this task.
    task_id: Option<String>,
}

/// List events that the caller may see, in order. Lock events that are not stored are not among them.
#[utoipa::path(get, path = "/events", operation_id = "list_events", tag = "events", params(ListParams), responses(
    (status = 200, description = "Events, and where the next page begins", body = wire::EventPage), ReadErrors,
    (status = 410, description = "EVENTS_EXPIRED: the next events have been deleted; `oldest` is the first that is kept", body = wire::Problem),
    (status = 429, description = "RATE_LIMITED or TOO_MANY_FOLLOWERS", body = wire::Problem),
    (status = 503, description = "UNAVAILABLE or TOO_MANY_FOLLOWERS", body = wire::Problem),
))]
async fn list(
    app: App,
    caller: Caller,
    credentials: Credentials,
    Params(params): Params<ListParams>,
) -> ApiResult {
    let ListParams { after, before, wait, limit, topics, events, task_id } = params;
    let limit = limit.unwrap_or(DEFAULT_LIMIT);
    if !(1..=MAX_LIMIT).contains(&limit) {
        return Err(Problem::invalid_at("?limit", format!("must be between 1 and {MAX_LIMIT}, not {limit}")));
    }
    let wait = wait.unwrap_or(0);
    if wait > MAX_WAIT_SECONDS {
        return Err(Problem::invalid_at("?wait", format!("must be at most {MAX_WAIT_SECONDS}, not {wait}")));
    }
    caller.require_scope(Scope::Read)?;
    let filter = query_filter(topics, events, task_id)?;
    let after = after.as_deref().map(|id| parse_id("?after", id)).transpose()?;
    let _connection = app.event_connections.open(&caller)?;
    if let Some(before) = before {
        if after.is_some() || wait > 0 {
            return Err(Problem::invalid_at("?before", "cannot be combined with after and wait"));
        }
        return list_before(&app, &credentials, &before, &filter, limit).await;
    }
    let mut cursor = app.feed.cursor(after, filter).await?;
    let (mut stopping, start) = (app.stopping.clone(), Instant::now());
    // Authenticated once more, because the request may wait: nothing changes unnoticed after `head`, nor after `until`.
    let head = app.feed.head();
    let (caller, until) = credentials.check(&app).await?;
    let mut identity = FollowerIdentity::new(&caller, head)?;
    let remaining = until.map(|until| Duration::from_millis(until.ms_since(app.tasks.now())));
    let wait = Duration::from_secs(wait).min(remaining.unwrap_or(Duration::MAX));
    let (deadline, scan_until) = (start + wait, start + MAX_SCAN_TIME);
    let mut items: Vec<Arc<FeedEvent>> = Vec::new();
    loop {
        let batch = cursor.next_batch(&identity, limit - items.len()).await?;
        items.extend(batch.events);
        if batch.needs_authentication {
            let head = app.feed.head();
            let (caller, _) = credentials.check(&app).await?;
            identity = FollowerIdentity::new(&caller, head)?;
            continue;
        }
        if items.len() == limit {
            break;
        }
        if !cursor.is_at_end() {
            // Few events match. The next request continues here.
            if Instant::now() >= scan_until.max(deadline) {
                break;
            }
            continue;
        }
        if !items.is_empty() || Instant::now() >= deadline {
            break;
        }
        let woken = async {
            tokio::select! {
                () = cursor.changed() => true,
                _ = stopping.wait_for(|stopping| *stopping) => false,
            }
        };
        if !matches!(timeout_at(deadline, woken).await, Ok(true)) {
            break;
        }
    }
    Ok(page(&items, cursor.position()))
}

/// The events before an event, newest first.
async fn list_before(
    app: &App,
    credentials: &Credentials,
    before: &str,
    filter: &EventFilter,
    limit: usize,
) -> ApiResult {
    let end = app.feed.end().await?;
    let before = if before == "end" { end + 1 } else { parse_id("?before", before)?.min(end + 1) };
    // After the end was read: nothing up to it changes unnoticed what the caller may see.
    let (caller, _) = credentials.check(app).await?;
    let identity = FollowerIdentity::new(&caller, end)?;
    let scan_until = Instant::now() + MAX_SCAN_TIME;
    let found = app.feed.page_before(before, filter, &identity, limit, scan_until).await?;
    Ok(page(&found.events, found.before))
}

fn page(events: &[Arc<FeedEvent>], next_cursor: u64) -> Response {
    let mut body = Vec::from(b"{\"items\":[");
    for (at, event) in events.iter().enumerate() {
        body.extend_from_slice(if at == 0 { b"{" } else { b",{" });
        body.extend_from_slice(event.fields());
    }
    body.extend_from_slice(format!("],\"next_cursor\":\"{next_cursor}\"}}").as_bytes());
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}

fn query_filter(
    topics: Option<String>,
    events: Option<String>,
    task_id: Option<String>,
) -> ApiResult<EventFilter> {
    let list = |text: Option<String>| {
        let text = text.unwrap_or_default();
        text.split(',').map(str::trim).filter(|item| !item.is_empty()).map(str::to_owned).collect()
    };
    let filter = EventFilter { topics: list(topics), events: list(events), task_id };
    filter.validate().map_err(|invalid| {
        let pointer = format!("?{}", invalid.path.names().join("."));
        Problem::invalid_at(&pointer, invalid.detail)
    })?;
    Ok(filter)
}

fn parse_id(pointer: &str, id: &str) -> ApiResult<u64> {
    id.parse().map_err(|_| Problem::invalid_at(pointer, format!("must be the id of an event, not {id:?}")))
}

impl From<FeedError> for Problem {
    fn from(error: FeedError) -> Self {
        let detail = error.to_string();
        match error {
            FeedError::Expired { oldest } => {
                Self::new(StatusCode::GONE, "EVENTS_EXPIRED", detail).with("oldest", oldest.to_string())
            }
            FeedError::BeyondEnd { .. } => Self::invalid_at("?after", detail),
            FeedError::TooSlow => Self::unavailable("TOO_SLOW", detail).retry_after(1),
            FeedError::Database(error) => error.into(),
        }
    }
}
