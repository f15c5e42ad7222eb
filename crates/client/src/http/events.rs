//! Client methods of events.

use std::time::Duration;

use reqwest::header::{AUTHORIZATION, COOKIE, HeaderName, ORIGIN};
use reqwest::{Method, Response};

use super::{Client, Credentials, RESPONSE_TIMEOUT, Result};
use crate::events::EventFollower;
use crate::wire::EventPage;

/// An event stream has no end; its reader notices when nothing arrives any more.
const STREAM_TIMEOUT: Duration = Duration::from_secs(86_400 * 365);

impl Client {
    /// Lists events in order, and waits for the first one that matches, at most 60 s. Filters: `after`, `limit`, `topics`, `events`,
    /// `task_id`. [`follow_events`](Self::follow_events) is more convenient.
    pub async fn events(&self, filters: &[(&str, &str)], wait: Duration) -> Result<EventPage> {
        let request = self.request(Method::GET, "/events").timeout(RESPONSE_TIMEOUT + wait);
        let request = request.query(&[("wait", wait.as_secs())]);
        let (_, body) = self.send(self.with_query(request, filters)).await?;
        self.parse(&body)
    }

    /// Follows events from now on; see [`EventFollower`] for other starts and for filters.
    #[must_use]
    pub fn follow_events(&self) -> EventFollower {
        EventFollower::new(self.clone())
    }

    /// The open response of the event stream.
    pub(crate) async fn event_stream(&self, query: &[(&str, &str)]) -> Result<Response> {
        let request = self.request(Method::GET, "/events/stream").timeout(STREAM_TIMEOUT);
        self.open(self.with_query(request, query)).await
    }

    /// The address of the WebSocket.
    pub(crate) fn websocket_url(&self) -> String {
        // http becomes ws, and https becomes wss.
        let rest = self.base.strip_prefix("http").unwrap_or(&self.base);
        format!("ws{rest}/api/v1/ws")
    }

    /// The headers that authenticate a WebSocket.
    pub(crate) fn websocket_headers(&self) -> Vec<(HeaderName, String)> {
        match &self.credentials {
            Credentials::None => Vec::new(),
            Credentials::Token(token) => vec![(AUTHORIZATION, format!("Bearer {token}"))],
            Credentials::Session { cookie, .. } => {
                vec![(COOKIE, cookie.clone()), (ORIGIN, self.base.clone())]
            }
        }
    }
}
