//! What scenarios run on: a backend, shorthands for lock commands, and a namespace of its own for each scenario.

#![expect(clippy::expect_used, clippy::panic, reason = "helpers of tests fail like tests")]

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ade_domain::Moment;
use ade_domain::lock::{
    AcquireStatus, Acquisition, Cycle, Deadlock, EndReason, FencingToken, Grant, Holder, LockCommand,
    LockLimits, LockMode, LockName, LockOutcome, LockRefusal, LockReply, RequestKey, WaitOptions,
};
use ade_store::Coordination;
use ade_store::coordination::{LockView, Subscription};
use tokio::time::timeout;

use super::{BackendFactory, BackendSettings, TestBackend};

/// Far longer than any expected reply or notification takes.
const EVENT_TIMEOUT: Duration = Duration::from_secs(20);

/// Scenarios share servers: a number keeps their names apart, also when one runs twice.
static NEXT_NAMESPACE: AtomicU64 = AtomicU64::new(0);

pub(super) struct Fixture {
    test_backend: Arc<dyn TestBackend>,
    pub(super) backend: Arc<dyn Coordination>,
    /// Part of every lock name and agent id of this scenario.
    pub(super) namespace: String,
}

/// The default settings with changed limits.
pub(super) fn with_limits(change: impl FnOnce(&mut LockLimits)) -> BackendSettings {
    let mut settings = BackendSettings::default();
    change(&mut settings.limits);
    settings
}

impl Fixture {
    pub(super) async fn new(factory: &BackendFactory) -> Self {
        Self::with_settings(factory, BackendSettings::default()).await
    }

    pub(super) async fn with_settings(factory: &BackendFactory, settings: BackendSettings) -> Self {
        let test_backend = factory(settings).await;
        let namespace = format!("scenario{}", NEXT_NAMESPACE.fetch_add(1, Ordering::Relaxed));
        Self { backend: test_backend.coordination(), test_backend, namespace }
    }

    /// A resource lock whose resource type is the namespace.
    pub(super) fn lock(&self, name: &str) -> LockName {
        format!("resource:{}:{name}", self.namespace).parse().expect("valid")
    }

    pub(super) fn agent(&self, name: &str) -> String {
        format!("{}-{name}", self.namespace)
    }

    pub(super) fn holder(&self, name: &str) -> Holder {
        Holder::new(&self.agent(name), None).expect("valid")
    }

    pub(super) fn key(&self, who: &str, request_id: &str) -> RequestKey {
        RequestKey::derive(&self.holder(who), request_id)
    }

    /// An acquisition that waits up to a minute in a long poll.
    pub(super) fn request(&self, who: &str, request_id: &str, mode: LockMode) -> Acquisition {
        Acquisition {
            holder: self.holder(who),
            request: self.key(who, request_id),
            leave_tombstone: true,
            mode,
            ttl_ms: 60_000,
            claimed: true,
            wait: Some(WaitOptions { timeout_ms: 60_000, served_by: Some("server".into()) }),
            purpose: "".into(),
            priority: 0,
        }
    }

    pub(super) fn no_wait(&self, who: &str, request_id: &str, mode: LockMode) -> Acquisition {
        Acquisition { wait: None, ..self.request(who, request_id, mode) }
    }

    /// An acquisition whose long poll is served by the named server.
    pub(super) fn served_by(&self, server: &str, who: &str, request_id: &str) -> Acquisition {
        let wait = Some(WaitOptions { timeout_ms: 60_000, served_by: Some(server.into()) });
        Acquisition { wait, ..self.request(who, request_id, LockMode::Exclusive) }
    }

    /// An acquisition that waits with a ticket.
    pub(super) fn ticket(&self, who: &str, request_id: &str, mode: LockMode) -> Acquisition {
        Acquisition {
            wait: Some(WaitOptions { timeout_ms: 60_000, served_by: None }),
            ..self.request(who, request_id, mode)
        }
    }

    /// The clock of the store.
    pub(super) fn now(&self) -> Moment {
        self.backend.now()
    }

    pub(super) async fn advance(&self, ms: u64) {
        self.test_backend.advance(ms).await;
    }

    pub(super) fn has_manual_clock(&self) -> bool {
        self.test_backend.has_manual_clock()
    }

    pub(super) async fn sweep(&self) -> Vec<Deadlock> {
        self.backend.sweep().await.expect("sweeps")
    }

    pub(super) async fn command(&self, lock: &LockName, command: LockCommand) -> LockReply {
        let mut replies =
            self.backend.execute_commands(vec![(lock.clone(), command)]).await.expect("replies");
        assert_eq!(replies.len(), 1, "one reply to one command");
        replies.pop().expect("one reply")
    }

    pub(super) async fn send(&self, name: &str, command: LockCommand) -> LockOutcome {
        self.command(&self.lock(name), command).await.outcome
    }

    /// Acquires a lock; also returns the deadlocks that this resolved.
    pub(super) async fn acquire_with_deadlocks(
        &self,
        name: &str,
        request: Acquisition,
    ) -> (AcquireStatus, Vec<Deadlock>) {
        let reply = self.command(&self.lock(name), LockCommand::Acquire(request)).await;
        match reply.outcome {
            LockOutcome::Status(standing) => (standing, reply.deadlocks),
            other => panic!("not a reply to acquire: {other:?}"),
        }
    }

    pub(super) async fn acquire(&self, name: &str, request: Acquisition) -> AcquireStatus {
        self.acquire_with_deadlocks(name, request).await.0
    }

    pub(super) async fn expect_grant(&self, name: &str, request: Acquisition) -> Grant {
        match self.acquire(name, request).await {
            AcquireStatus::Held(grant) => grant,
            other => panic!("not granted: {other:?}"),
        }
    }

    /// Returns the position in the queue, from 1.
    pub(super) async fn expect_queued(&self, name: &str, request: Acquisition) -> usize {
        match self.acquire(name, request).await {
            AcquireStatus::Waiting { position, .. } => position,
            other => panic!("not queued: {other:?}"),
        }
    }

    pub(super) async fn expect_refused(&self, name: &str, request: Acquisition) -> LockRefusal {
        match self.acquire(name, request).await {
            AcquireStatus::Refused(refusal) => refusal,
            other => panic!("not refused: {other:?}"),
        }
    }

    pub(super) async fn expect_ended(&self, name: &str, request: Acquisition) -> EndReason {
        match self.acquire(name, request).await {
            AcquireStatus::Ended(end) => end,
            other => panic!("not ended: {other:?}"),
        }
    }

    pub(super) async fn expect_deadlock(&self, name: &str, request: Acquisition) -> Arc<Cycle> {
        match self.expect_ended(name, request).await {
            EndReason::Deadlock(cycle) => cycle,
            other => panic!("not a deadlock: {other:?}"),
        }
    }

    pub(super) async fn extend(&self, name: &str, who: &str, token: FencingToken, ms: u64) -> LockOutcome {
        self.send(name, LockCommand::Extend { holder: self.holder(who), token, ttl_ms: ms }).await
    }

    pub(super) async fn claim(&self, name: &str, who: &str, request_id: &str, ttl_ms: u64) -> LockOutcome {
        let (holder, request) = (self.holder(who), self.key(who, request_id));
        self.send(name, LockCommand::Claim { holder, request, ttl_ms }).await
    }

    pub(super) async fn cancel(&self, name: &str, who: &str, request_id: &str, reason: EndReason) {
        let (holder, request) = (self.holder(who), self.key(who, request_id));
        let cancel = LockCommand::Cancel { holder, request, reason, include_claimed: false };
        assert_eq!(self.send(name, cancel).await, LockOutcome::Done);
    }

    pub(super) async fn server_heartbeat(&self, name: &str, server: &str) {
        assert_eq!(
            self.send(name, LockCommand::ServerHeartbeat { server: server.into() }).await,
            LockOutcome::Done
        );
    }

    /// Releases the lock with the holder's current token.
    pub(super) async fn release(&self, name: &str, who: &str) {
        self.release_by(None, name, who).await;
    }

    /// The same, sent by a server that answers the waiters it serves from the reply.
    pub(super) async fn release_by(&self, server: Option<&str>, name: &str, who: &str) {
        let (holder, server) = (self.holder(who), server.map(Into::into));
        let token = self.token_of(name, who).await.unwrap_or_default();
        let outcome = self.send(name, LockCommand::Release { holder, token, server }).await;
        assert_eq!(outcome, LockOutcome::Done, "{who} {name}");
    }

    pub(super) async fn token_of(&self, name: &str, who: &str) -> Option<FencingToken> {
        let (view, holder) = (self.view(name).await, self.holder(who));
        view.holders.iter().find(|held| held.holder == holder).map(|held| held.grant.token)
    }

    pub(super) async fn view(&self, name: &str) -> LockView {
        self.backend.lock_view(self.lock(name)).await.expect("a view")
    }

    /// Short names of the holders, sorted.
    pub(super) async fn holders(&self, name: &str) -> Vec<String> {
        let view = self.view(name).await;
        let mut names: Vec<String> = view.holders.iter().map(|held| self.short_name(&held.holder)).collect();
        names.sort();
        names
    }

    /// Short names of the waiters, in queue order.
    pub(super) async fn queue(&self, name: &str) -> Vec<String> {
        let view = self.view(name).await;
        assert_eq!(view.queue.len(), view.queue_length, "a view has the whole queue");
        view.queue.iter().map(|waiter| self.short_name(&waiter.holder)).collect()
    }

    /// A holder without the namespace.
    pub(super) fn short_name(&self, holder: &Holder) -> String {
        let name = holder.to_string();
        name.strip_prefix(&format!("{}-", self.namespace)).unwrap_or(&name).to_owned()
    }

    pub(super) async fn heartbeat(&self, name: &str) {
        assert!(
            self.backend.record_heartbeat(self.agent(name)).await.expect("a reply"),
            "{name} may register itself"
        );
    }

    /// Removes agents, so that they do not count in other scenarios on the same server.
    pub(super) async fn remove_agents(&self, names: &[&str]) {
        for name in names {
            self.backend.remove_agent(self.agent(name)).await.expect("a reply");
        }
    }
}

/// The grant of a command that updates one.
pub(super) fn expect_updated(outcome: LockOutcome) -> Grant {
    match outcome {
        LockOutcome::Updated(grant) => grant,
        other => panic!("not updated: {other:?}"),
    }
}

pub(super) async fn expect_notification(subscription: &Subscription) {
    timeout(EVENT_TIMEOUT, subscription.changed()).await.expect("a notification");
}

pub(super) async fn in_time<T>(future: impl Future<Output = T>) -> T {
    timeout(EVENT_TIMEOUT, future).await.expect("in time")
}

/// When something may end that starts within `start` and lasts for `ms`.
pub(super) fn end_range(start: RangeInclusive<Moment>, ms: u64) -> RangeInclusive<Moment> {
    start.start().plus_ms(ms)..=start.end().plus_ms(ms)
}
