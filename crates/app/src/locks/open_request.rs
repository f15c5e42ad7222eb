//! A request that is held open, and what follows when it ends without a grant for its caller.
//!
//! A release may have started the lease of the request although its reply never arrived here. No caller knows of such a lease, so
//! that it must not run its whole length: this server gives it back by the request.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use ade_domain::Moment;
use ade_domain::lock::saga::AcquireSaga;
use ade_domain::lock::{LockCommand, LockName, LockRequest, RequestKey, UnreportedLease};
use ade_store::coordination::Subscription;
use futures_util::future::join_all;
use tokio::runtime::Handle;

use super::LockService;
use super::open_requests::{GivenUp, OpenGuard};

/// Closed requests that wait for a sweep. The leases of further ones run out.
const MAX_CLOSED: usize = 100_000;
/// Leases that are given back at once.
const BATCH_SIZE: usize = 1_000;

/// What follows when the request is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WhenClosed {
    /// The caller disconnected: the request leaves the queue and releases the locks that it has.
    Cancel,
    /// The caller may come back with the same request and keeps its place, for as long as a grant waits for its claim. What was
    /// granted unnoticed is given back then.
    KeepPlace,
    /// The request has failed: what was granted unnoticed is given back.
    ReturnLease,
    /// The caller gets the grant.
    Nothing,
}

pub(super) struct OpenRequest<'a> {
    service: &'a LockService,
    pub(super) request: &'a LockRequest,
    open: OpenGuard<RequestKey>,
    /// Outlives `open`. While several connections have the same request open, no notification brings its grant and each of them asks
    /// for it. So the last one to close knows that no caller got a lease that nobody asked for.
    pub(super) subscription: Arc<Subscription>,
    /// Whether the request was seen waiting. A lease that started before may have been reported over an earlier connection.
    pub(super) has_waited: bool,
    pub(super) when_closed: WhenClosed,
}

/// A request that no connection has open.
#[derive(Debug)]
pub(super) struct ClosedRequest {
    request: LockRequest,
    given_up: GivenUp<RequestKey>,
    /// Kept until the commands below are answered. If the request is repeated meanwhile, no notification brings its grant: the caller
    /// gets it by a command, and what is under way does not end a lease that a command has asked for.
    _subscription: Arc<Subscription>,
    /// Gives back the lease that a release by this server may have started.
    return_lease: Option<(LockName, LockCommand)>,
    /// When it is to be given back.
    due: Moment,
}

impl LockService {
    pub(super) fn open<'a>(&'a self, request: &'a LockRequest) -> OpenRequest<'a> {
        OpenRequest {
            service: self,
            request,
            open: self.open_requests.open(&request.key),
            subscription: Arc::new(self.coordination.subscribe(request.key)),
            has_waited: false,
            when_closed: WhenClosed::Cancel,
        }
    }

    /// Cancels a request, unless its caller has repeated it.
    async fn cancel_closed(self, closed: ClosedRequest) {
        if !closed.given_up.is_current() {
            return;
        }
        let mut commands = AcquireSaga::disconnect_commands(&closed.request, &self.server);
        commands.extend(closed.return_lease.clone());
        if let Err(error) = self.run(commands).await {
            // A wait ends when the server heartbeat expires, or, if others wait here for the same lock, when orphaned waits are
            // cancelled. A grant ends with its lease, unless it can be given back.
            tracing::warn!(%error, "cannot cancel the request of a caller that disconnected");
            self.return_later(closed);
        }
    }

    /// Leaves the lease of a closed request to the next sweep.
    fn return_later(&self, closed: ClosedRequest) {
        let mut all = self.closed_requests.lock().unwrap_or_else(PoisonError::into_inner);
        if closed.return_lease.is_some() && all.len() < MAX_CLOSED {
            all.push(closed);
        }
    }

    /// Gives back leases that no caller knows of, unless their requests were repeated. What fails is left to the next sweep.
    pub(super) async fn return_leases(&self) {
        let now = self.coordination.now();
        let due: Vec<ClosedRequest> = {
            let mut all = self.closed_requests.lock().unwrap_or_else(PoisonError::into_inner);
            all.extract_if(.., |closed| closed.due <= now).take(BATCH_SIZE).collect()
        };
        let due = due.into_iter().filter(|closed| closed.given_up.is_current());
        join_all(due.map(|closed| async {
            if let Err(error) = self.run(closed.return_lease.iter().cloned().collect()).await {
                tracing::debug!(%error, "cannot give back a lock; the next sweep retries");
                self.return_later(closed);
            }
        }))
        .await;
    }

    /// Gives back the lease that a release by this server may have started for the request. Only the lease of a single lock starts
    /// with a release.
    fn return_command(&self, request: &LockRequest) -> Option<(LockName, LockCommand)> {
        let [requested] = request.locks.as_slice() else { return None };
        let lease = UnreportedLease::StartedBy(self.server.clone(), request.key);
        Some((
            requested.lock.clone(),
            LockCommand::ReturnUnreported { holder: request.holder.clone(), lease },
        ))
    }
}

impl OpenRequest<'_> {
    /// Closes it. Returns what is to be ended, unless the same request is open over another connection.
    fn close(&mut self) -> Option<ClosedRequest> {
        let given_up = self.open.give_up()?;
        let coordination = &self.service.coordination;
        let is_place_kept = self.when_closed == WhenClosed::KeepPlace;
        let keep_ms = if is_place_kept { coordination.limits().long_poll_claim_ms } else { 0 };
        Some(ClosedRequest {
            request: self.request.clone(),
            given_up,
            _subscription: self.subscription.clone(),
            return_lease: self.has_waited.then(|| self.service.return_command(self.request)).flatten(),
            due: coordination.now().plus_ms(keep_ms),
        })
    }
}

impl Drop for OpenRequest<'_> {
    fn drop(&mut self) {
        // When this process stops, a dropped request does not mean that its caller disconnected.
        let is_stopping = self.service.is_stopping.load(Ordering::SeqCst);
        let is_cancelled = self.when_closed == WhenClosed::Cancel;
        let is_kept = is_cancelled && is_stopping && self.request.has_request_id;
        if is_kept || self.when_closed == WhenClosed::Nothing {
            return;
        }
        let Some(closed) = self.close() else { return };
        if !is_cancelled {
            self.service.return_later(closed);
        } else if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(self.service.clone().cancel_closed(closed));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::Pin;
    use std::sync::Arc;
    use std::task::Poll;
    use std::time::Duration;

    use ade_domain::lock::saga::SagaAction;
    use ade_domain::lock::{FencingToken, Holder, LockLimits, LockRequestDraft};
    use ade_store::coordination::{LockEvent, LockEventKind};
    use ade_store::embedded::EmbeddedOptions;
    use ade_store::redis::RedisOptions;
    use ade_store::{Coordination, EmbeddedCoordination, RedisCoordination};
    use ade_testkit::{ManualClock, Redis};
    use futures_util::FutureExt;
    use tokio::sync::broadcast;
    use tokio::time::timeout;

    use super::*;
    use crate::LogEventSink;
    use crate::locks::{Acquisition, Result};

    const LOCK: &str = "resource:database:prod";
    /// Reached on failure only.
    const LONG: Duration = Duration::from_secs(60);

    /// A server, and who sends its releases.
    struct Fixture {
        service: LockService,
        /// On Redis it is a client of its own, so that the replies to its releases never reach the server.
        releasing: Arc<dyn Coordination>,
        events: broadcast::Receiver<Arc<LockEvent>>,
        redis: Option<Redis>,
        /// Of the embedded backend.
        clock: ManualClock,
        _folder: Option<tempfile::TempDir>,
    }

    impl Fixture {
        fn new(coordination: Arc<dyn Coordination>, releasing: Arc<dyn Coordination>) -> Self {
            let events = coordination.subscribe_events();
            let service = LockService::new(coordination, Arc::new(LogEventSink));
            Self { service, releasing, events, redis: None, clock: clock(), _folder: None }
        }

        fn embedded() -> Self {
            let folder = tempfile::tempdir().expect("folder");
            let limits = LockLimits { long_poll_claim_ms: 1, ..LockLimits::default() };
            let options = EmbeddedOptions { limits, ..EmbeddedOptions::default() };
            let clock = clock();
            let embedded = EmbeddedCoordination::open(folder.path(), options, Arc::new(clock.clone()));
            let embedded = Arc::new(embedded.expect("opens"));
            Self { clock, _folder: Some(folder), ..Self::new(embedded.clone(), embedded) }
        }

        async fn redis() -> Self {
            let redis = Redis::start().expect("server starts");
            let open = async || {
                let options = RedisOptions { max_clock_skew: Duration::ZERO, ..RedisOptions::default() };
                let url = redis.url().parse().expect("valid");
                Arc::new(RedisCoordination::open(&url, options).await.expect("connected"))
            };
            let fixture = Self::new(open().await, open().await);
            Self { redis: Some(redis), ..fixture }
        }

        /// Redis refuses every command that writes while it misses a replica.
        fn require_replicas(&self, count: &str) {
            let redis = self.redis.as_ref().expect("Redis");
            let _: () = redis.query(&["CONFIG", "SET", "min-replicas-to-write", count]).expect("reply");
        }

        fn request(&self, agent: &str, queue: bool) -> LockRequest {
            let draft = LockRequestDraft {
                locks: vec![(LOCK, None)],
                ttl_seconds: Some(300.0),
                wait_seconds: Some(60.0),
                request_id: Some("1"),
                queue,
                ..LockRequestDraft::default()
            };
            let holder = Holder::new(agent, None).expect("valid");
            LockRequest::new(holder, &draft, &self.service.limits(), 0).expect("valid")
        }

        /// Ann holds the lock, and Cem waits for it with a ticket, behind Ben.
        async fn with_waiting_ben(&self, connections: usize) -> (FencingToken, Vec<OpenAcquisition<'_>>) {
            let held = self.service.acquire(self.request("ann", false)).await;
            let mut open = Vec::new();
            for _ in 0..connections {
                open.push(self.waiting_ben().await);
            }
            let queued = self.service.acquire(self.request("cem", true)).await;
            assert!(matches!(queued, Ok(Acquisition::Waiting(_))), "{queued:?}");
            (token(held), open)
        }

        /// One more connection over which Ben waits.
        async fn waiting_ben(&self) -> OpenAcquisition<'_> {
            let mut ben: OpenAcquisition<'_> = Box::pin(self.service.acquire(self.request("ben", false)));
            let connections = self.service.awaited_locks.count(&lock());
            poll_fn(|context| match ben.as_mut().poll(context) {
                Poll::Pending if self.service.awaited_locks.count(&lock()) > connections => Poll::Ready(()),
                Poll::Pending => Poll::Pending,
                Poll::Ready(ended) => unreachable!("{ended:?}"),
            })
            .await;
            ben
        }

        /// Queues the request of an agent without a connection.
        async fn queue(&self, agent: &str) {
            let saga = AcquireSaga::new(self.request(agent, false), self.service.server.clone());
            let SagaAction::Execute(acquire) = saga.next_action(60_000) else { unreachable!("no command") };
            self.service.run(acquire).await.expect("queued");
        }

        /// Ann's release, which starts the lease of Ben.
        async fn release(&self, token: FencingToken) {
            self.release_by(&self.releasing, token).await;
        }

        async fn release_by(&self, sender: &Arc<dyn Coordination>, token: FencingToken) {
            let (holder, server) =
                (Holder::new("ann", None).expect("valid"), Some(self.service.server.clone()));
            let release = LockCommand::Release { holder, token, server };
            sender.execute_commands(vec![(lock(), release)]).await.expect("released");
            assert_eq!(self.holder().await, "ben");
        }

        async fn holder(&self) -> String {
            let view = self.releasing.lock_view(lock()).await.expect("a view");
            view.holders.into_iter().map(|held| held.holder.agent_id().to_owned()).collect()
        }

        /// Waits until Cem has the lock.
        async fn expect_promotion_of_cem(&mut self) {
            let is_cem = |event: &LockEvent| matches!(&event.kind, LockEventKind::Promoted(holder, _) if holder.agent_id() == "cem");
            let promoted = async { while !is_cem(&self.events.recv().await.expect("an event")) {} };
            timeout(LONG, promoted).await.expect("promoted");
            assert_eq!(self.holder().await, "cem");
        }
    }

    fn clock() -> ManualClock {
        ManualClock::new(Moment::from_micros(1_000_000).timestamp())
    }

    fn lock() -> LockName {
        LOCK.parse().expect("valid")
    }

    type OpenAcquisition<'a> = Pin<Box<dyn Future<Output = Result<Acquisition>> + 'a>>;

    fn token(acquired: Result<Acquisition>) -> FencingToken {
        match acquired {
            Ok(Acquisition::Granted(locks)) => {
                locks.into_iter().map(|lock| lock.grant.token).max().expect("one")
            }
            other => unreachable!("{other:?}"),
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn the_next_waiter_gets_the_lease_of_a_caller_that_vanished_before_it_was_notified() {
        for connections in [1, 2] {
            for mut fixture in [Fixture::embedded(), Fixture::redis().await] {
                let (token, open) = fixture.with_waiting_ben(connections).await;
                fixture.release(token).await;
                drop(open);
                fixture.expect_promotion_of_cem().await;
            }
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_caller_that_stays_gets_the_lease_although_the_reply_is_lost() {
        for fixture in [Fixture::embedded(), Fixture::redis().await] {
            let (released, mut open) = fixture.with_waiting_ben(2).await;
            fixture.release(released).await;
            let stays = open.pop().expect("two");
            drop(open);
            assert!(token(timeout(LONG, stays).await.expect("in time")) > released);
            assert_eq!(fixture.holder().await, "ben");
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_request_that_is_repeated_meanwhile_is_not_given_up() {
        for (is_repeated, holder) in [(true, "ben"), (false, "cem")] {
            let fixture = Fixture::embedded();
            let service = &fixture.service;
            let held = token(service.acquire(fixture.request("ann", false)).await);
            for agent in ["ben", "cem"] {
                fixture.queue(agent).await;
            }
            fixture.release(held).await;
            let ben = fixture.request("ben", false);
            let mut open = service.open(&ben);
            (open.has_waited, open.when_closed) = (true, WhenClosed::KeepPlace);
            drop(open);
            if is_repeated {
                drop(service.open_requests.open(&ben.key));
            }
            service.return_leases().await;
            assert_eq!(fixture.holder().await, "ben", "keeps its place for a while");
            fixture.clock.advance(Duration::from_millis(1));
            service.return_leases().await;
            assert_eq!(fixture.holder().await, holder);
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_lease_that_cannot_be_given_back_is_left_to_the_next_sweep() {
        let fixture = Fixture::redis().await;
        let service = &fixture.service;
        let released = token(service.acquire(fixture.request("ann", false)).await);
        fixture.queue("ben").await;
        fixture.queue("cem").await;
        fixture.release(released).await;
        let ben = fixture.request("ben", false);
        let mut open = service.open(&ben);
        open.has_waited = true;
        let closed = open.close().expect("the only one");
        drop(open);
        fixture.require_replicas("1");
        service.clone().cancel_closed(closed).await;
        service.return_leases().await;
        fixture.require_replicas("0");
        assert_eq!(fixture.holder().await, "ben", "nothing is tried between two sweeps");
        service.return_leases().await;
        assert_eq!(fixture.holder().await, "cem");
        assert!(service.closed_requests.lock().expect("not poisoned").is_empty());
    }

    #[tokio::test]
    async fn a_caller_that_repeats_its_request_while_it_is_cancelled_keeps_the_lease() {
        let fixture = Fixture::redis().await;
        let service = &fixture.service;
        let released = token(service.acquire(fixture.request("ann", false)).await);
        fixture.queue("ben").await;
        let ben = fixture.request("ben", false);
        let mut open = service.open(&ben);
        open.has_waited = true;
        let mut cancelling = Box::pin(service.clone().cancel_closed(open.close().expect("the only one")));
        drop(open);
        // The first of its commands is under way, and its reply arrives while nobody polls.
        assert!(cancelling.as_mut().now_or_never().is_none());
        let repeated = fixture.waiting_ben().await;
        fixture.release_by(&service.coordination, released).await;
        assert!(token(timeout(LONG, repeated).await.expect("in time")) > released);
        cancelling.await;
        assert_eq!(fixture.holder().await, "ben");
    }
}
