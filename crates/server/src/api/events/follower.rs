//! One follower of events on an open connection: what it is sent next, and when it must end.

use std::sync::Arc;
use std::time::Duration;

use ade_app::{EventCursor, FeedError, FeedEvent, FollowerIdentity};
use ade_domain::Moment;
use ade_domain::event_filter::EventFilter;
use ade_store::DatabaseError;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::sync::{broadcast, watch};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, sleep, sleep_until};

use super::connections::EventConnection;
use crate::api::AppState;
use crate::auth::Credentials;
use crate::http::connections::Connection;
use crate::http::problem::ApiResult;

/// Besides events about its account: what changes without one, such as the bootstrap token, ends a follower within this time.
const CHECK_INTERVAL: Duration = Duration::from_secs(30);
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(15);
/// While the database is unavailable.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Events that are sent together.
const BATCH_SIZE: usize = 256;

/// What a follower is sent.
#[derive(Debug)]
pub(super) enum Update {
    Events(Vec<Arc<FeedEvent>>),
    /// Nothing happened for a while.
    Heartbeat,
    /// The last one.
    End(EndReason),
}

/// Why a follower ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum EndReason {
    Stopping,
    Unauthenticated(String),
    Expired(String),
    Slow,
    /// No subscription arrived.
    Idle,
    TooManyMessages,
    Unavailable,
}

impl EndReason {
    /// For programs.
    pub(super) const fn code(&self) -> &'static str {
        match self {
            Self::Stopping => "stopping",
            Self::Unauthenticated(_) => "unauthenticated",
            Self::Expired(_) => "expired",
            Self::Slow => "slow",
            Self::Idle => "idle",
            Self::TooManyMessages => "too_many_messages",
            Self::Unavailable => "unavailable",
        }
    }

    /// Why, and what to do.
    pub(super) fn detail(&self) -> String {
        match self {
            Self::Unauthenticated(detail) | Self::Expired(detail) => detail.clone(),
            Self::Stopping => "the server is shutting down; reconnect with the last event id".to_owned(),
            Self::Slow => FeedError::TooSlow.to_string(),
            Self::Idle => {
                "no subscription arrived in time; send a subscribe message after connecting".to_owned()
            }
            Self::TooManyMessages => "too many messages; subscribe once for each connection".to_owned(),
            Self::Unavailable => {
                "events cannot be read at the moment; reconnect with the last event id".to_owned()
            }
        }
    }
}

/// An authenticated connection that may follow events.
#[derive(Debug)]
pub(super) struct Follower {
    app: AppState,
    credentials: Credentials,
    identity: FollowerIdentity,
    /// When the credentials are checked again. In the past if nothing may be sent before.
    check_at: Instant,
    stopping: watch::Receiver<bool>,
    heartbeat: Interval,
    subscription: Option<Subscription>,
    _connection: EventConnection,
    /// Counts the connection itself, also after it has become a WebSocket.
    _http: Option<Connection>,
}

#[derive(Debug)]
struct Subscription {
    cursor: EventCursor,
    /// Absent if the filter excludes them.
    lock_events: Option<broadcast::Receiver<Arc<FeedEvent>>>,
}

impl Follower {
    pub(super) fn new(
        app: &AppState,
        caller: &ade_app::Caller,
        credentials: Credentials,
        http: Option<Connection>,
    ) -> ApiResult<Self> {
        let identity = FollowerIdentity::new(caller, app.feed.head())?;
        let connection = app.event_connections.open(caller)?;
        let mut heartbeat = interval_at(Instant::now() + HEARTBEAT_INTERVAL, HEARTBEAT_INTERVAL);
        heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Ok(Self {
            identity,
            credentials,
            // When the credentials end is found out before anything is sent.
            check_at: Instant::now(),
            stopping: app.stopping.clone(),
            heartbeat,
            subscription: None,
            app: app.clone(),
            _connection: connection,
            _http: http,
        })
    }

    /// Follows events after a number, or from now on, instead of what it followed before. Returns the number after which it begins.
    pub(super) async fn subscribe(
        &mut self,
        after: Option<u64>,
        filter: EventFilter,
    ) -> Result<u64, FeedError> {
        // Subscribed first: no lock event after the answer is missed.
        let lock_events = filter.may_match_topic("lock").then(|| self.app.feed.lock_events());
        let cursor = self.app.feed.cursor(after, filter).await?;
        let position = cursor.position();
        self.subscription = Some(Subscription { cursor, lock_events });
        Ok(position)
    }

    /// The number up to which events were sent or are not for the follower.
    pub(super) fn position(&self) -> u64 {
        self.subscription.as_ref().map_or(0, |subscription| subscription.cursor.position())
    }

    /// What to send next. It can be dropped while it waits: nothing is lost.
    pub(super) async fn next(&mut self) -> Update {
        loop {
            if *self.stopping.borrow() {
                return Update::End(EndReason::Stopping);
            }
            if Instant::now() >= self.check_at
                && let Some(end) = self.authenticate().await
            {
                return Update::End(end);
            }
            // After a failed check nothing is sent.
            let may_send = Instant::now() < self.check_at;
            let Some(subscription) = self.subscription.as_mut().filter(|_| may_send) else {
                tokio::select! {
                    () = stopped(&mut self.stopping) => {}
                    () = sleep_until(self.check_at.max(Instant::now() + RETRY_INTERVAL)) => {}
                }
                continue;
            };
            let lock_event = async {
                match &mut subscription.lock_events {
                    Some(events) => events.recv().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = stopped(&mut self.stopping) => {}
                () = sleep_until(self.check_at) => {}
                () = subscription.cursor.changed() => {
                    match subscription.cursor.next_batch(&self.identity, BATCH_SIZE).await {
                        Ok(batch) => {
                            if batch.needs_authentication {
                                self.check_at = Instant::now();
                            }
                            if !batch.events.is_empty() {
                                return Update::Events(batch.events);
                            }
                        }
                        Err(FeedError::Database(DatabaseError::Unavailable(_))) => sleep(RETRY_INTERVAL).await,
                        Err(error) => return Update::End(end_reason(&error)),
                    }
                }
                received = lock_event => match received {
                    Ok(event) => {
                        let mut events = vec![event];
                        events.extend(further(&mut subscription.lock_events));
                        let filter = subscription.cursor.filter();
                        events.retain(|event| event.is_for(self.identity.viewer(), filter));
                        if !events.is_empty() {
                            return Update::Events(events);
                        }
                    }
                    // Their sequence numbers show it.
                    Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => subscription.lock_events = None,
                },
                _ = self.heartbeat.tick() => return Update::Heartbeat,
            }
        }
    }

    /// Authenticates the follower again: by the present roles, tokens and sessions. Returns why it ends, if it does.
    async fn authenticate(&mut self) -> Option<EndReason> {
        let (head, now) = (self.app.feed.head(), Instant::now());
        let checked = self.credentials.check(&self.app).await;
        let identity = checked.and_then(|(caller, until)| Ok((FollowerIdentity::new(&caller, head)?, until)));
        match identity {
            Ok((identity, until)) => {
                self.identity = identity;
                self.check_at = now + until.map_or(CHECK_INTERVAL, |until| self.remaining(until));
                None
            }
            Err(problem) if problem.is_unavailable() => None,
            Err(problem) => Some(EndReason::Unauthenticated(problem.detail().to_owned())),
        }
    }

    fn remaining(&self, until: Moment) -> Duration {
        let ms = until.ms_since(self.app.tasks.now());
        Duration::from_millis(ms).min(CHECK_INTERVAL)
    }
}

fn end_reason(error: &FeedError) -> EndReason {
    match error {
        FeedError::Expired { .. } => EndReason::Expired(error.to_string()),
        FeedError::TooSlow => EndReason::Slow,
        FeedError::BeyondEnd { .. } | FeedError::Database(_) => {
            tracing::error!(%error, "cannot read events for a follower");
            EndReason::Unavailable
        }
    }
}

async fn stopped(stopping: &mut watch::Receiver<bool>) {
    // The sender is dropped only when the server has stopped.
    let _ = stopping.wait_for(|stopping| *stopping).await;
}

/// The lock events that wait already.
fn further(lock_events: &mut Option<broadcast::Receiver<Arc<FeedEvent>>>) -> Vec<Arc<FeedEvent>> {
    let mut found = Vec::new();
    while let Some(events) = lock_events
        && found.len() < BATCH_SIZE
    {
        match events.try_recv() {
            Ok(event) => found.push(event),
            Err(TryRecvError::Lagged(_)) => {}
            Err(TryRecvError::Empty | TryRecvError::Closed) => break,
        }
    }
    found
}
