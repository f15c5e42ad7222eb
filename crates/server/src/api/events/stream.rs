//! The event stream (server-sent events). Events have no name of their own in it, so that `onmessage` of a browser receives all of them.

use axum::Extension;
use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, header};
use bytes::Bytes;
use futures_util::stream;

use super::follower::{EndReason, Follower, Update};
use super::{parse_id, query_filter};
use crate::api::prelude::*;
use crate::auth::Credentials;
use crate::http::connections::Connection;

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
/// Keeps proxies from collecting events before they send them.
const X_ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct StreamParams {
    /// Id of an event: those after it follow. Absent: from now on. The header `Last-Event-ID` takes precedence.
    last_event_id: Option<String>,
    /// Nouns such as `task`, with commas between them.
    topics: Option<String>,
    /// Names, with `*` for any characters, such as `approval:*`; with commas between them.
    events: Option<String>,
    /// Only events of this task.
    task_id: Option<String>,
}

/// Follow events as server-sent events.
///
/// The first one is named `subscribed`, the last one `dropped` with the reason. The others have no name, and an id if they are numbered.
#[utoipa::path(get, path = "/events/stream", operation_id = "stream_events", tag = "events", params(StreamParams), responses(
    (status = 200, description = "A stream without end", body = String, content_type = "text/event-stream"), ReadErrors,
    (status = 410, description = "EVENTS_EXPIRED: the next events have been deleted; `oldest` is the first that is kept", body = wire::Problem),
    (status = 429, description = "RATE_LIMITED or TOO_MANY_FOLLOWERS", body = wire::Problem),
    (status = 503, description = "UNAVAILABLE or TOO_MANY_FOLLOWERS", body = wire::Problem),
))]
pub(super) async fn stream(
    app: App,
    caller: Caller,
    credentials: Credentials,
    http: Option<Extension<Connection>>,
    headers: HeaderMap,
    Params(params): Params<StreamParams>,
) -> ApiResult {
    let StreamParams { last_event_id, topics, events, task_id } = params;
    let resumed = headers.get(LAST_EVENT_ID).map(|id| id.to_str().unwrap_or_default().to_owned());
    let after = match (resumed, last_event_id) {
        (Some(id), _) => Some(parse_id("Last-Event-ID", &id)?),
        (None, id) => id.map(|id| parse_id("?last_event_id", &id)).transpose()?,
    };
    let filter = query_filter(topics, events, task_id)?;
    let mut follower = Follower::new(&app, &caller, credentials, http.map(|Extension(http)| http))?;
    let position = follower.subscribe(after, filter).await?;
    let head = app.feed.head();
    let first = format!("retry: 1000\nid: {position}\nevent: subscribed\ndata: {{\"head\":\"{head}\"}}\n\n");
    let frames = stream::unfold((Some(follower), Some(Bytes::from(first))), |(follower, first)| async move {
        let mut follower = follower?;
        if let Some(first) = first {
            return Some((Ok::<_, std::convert::Infallible>(first), (Some(follower), None)));
        }
        let (frame, is_last) = match follower.next().await {
            Update::Events(events) => {
                let frames: Vec<Bytes> = events.iter().map(|event| event.frame()).collect();
                (Bytes::from(frames.concat()), false)
            }
            // The id alone moves the position of a browser, without an event.
            Update::Heartbeat => (format!(": heartbeat\nid: {}\n\n", follower.position()).into(), false),
            Update::End(reason) => (last_frame(&reason), true),
        };
        Some((Ok(frame), (Some(follower).filter(|_| !is_last), None)))
    });
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-store"),
        (X_ACCEL_BUFFERING, "no"),
    ];
    Ok((headers, Body::from_stream(frames)).into_response())
}

fn last_frame(reason: &EndReason) -> Bytes {
    let data = serde_json::json!({ "reason": reason.code(), "detail": reason.detail() });
    format!("event: dropped\ndata: {data}\n\n").into()
}
