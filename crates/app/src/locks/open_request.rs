//! A request that is held open, and what follows when it ends without a grant for its caller.
//!
//! A release may have started the lease of the request although its reply never arrived here. Nobody was told of such a lease, so
//! that it must not run its whole length: this server gives it back by the request.

use std::sync::atomic::Ordering;
use std::time::Duration;

use ade_domain::lock::saga::AcquireSaga;
use ade_domain::lock::{LockCommand, LockName, LockRequest, RequestKey, UnreportedLease};
use ade_store::coordination::Subscription;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};

use super::LockService;
use super::open_requests::{GivenUp, OpenGuard};

const RETRY_INTERVAL: Duration = Duration::from_millis(200);

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
    /// for it. So the last one to close knows that nobody was told of a lease that nobody asked for.
    pub(super) subscription: Subscription,
    /// Whether the request was seen waiting. A lease that started before may have been reported over an earlier connection.
    pub(super) has_waited: bool,
    pub(super) when_closed: WhenClosed,
}

impl LockService {
    pub(super) fn open<'a>(&'a self, request: &'a LockRequest) -> OpenRequest<'a> {
        OpenRequest {
            service: self,
            request,
            open: self.open_requests.open(&request.key),
            subscription: self.coordination.subscribe(request.key),
            has_waited: false,
            when_closed: WhenClosed::Cancel,
        }
    }

    /// Ends a request that no connection has open, unless the caller repeats it meanwhile.
    async fn give_up(
        self,
        request: LockRequest,
        given_up: GivenUp<RequestKey>,
        when_closed: WhenClosed,
        has_waited: bool,
    ) {
        let unreported = has_waited.then(|| self.return_command(&request)).flatten();
        match when_closed {
            WhenClosed::Cancel => {
                if !given_up.is_current() {
                    return;
                }
                let mut commands = AcquireSaga::disconnect_commands(&request, &self.server);
                commands.extend(unreported.clone());
                let cancelled = self.run(commands).await;
                if let Err(error) = self.coordination.forget_request(request.key).await {
                    tracing::warn!(%error, "cannot forget the request of a caller that disconnected");
                }
                let Err(error) = cancelled else { return };
                // A wait ends when the server heartbeat expires, or, if others wait here for the same lock, when orphaned waits are
                // cancelled. A grant ends with its lease, unless it can be given back.
                tracing::warn!(%error, "cannot cancel the request of a caller that disconnected");
            }
            WhenClosed::KeepPlace => {
                sleep(Duration::from_millis(self.coordination.limits().long_poll_claim_ms)).await;
            }
            WhenClosed::ReturnLease | WhenClosed::Nothing => {}
        }
        let Some(command) = unreported else { return };
        let started_at = Instant::now();
        while given_up.is_current() {
            match self.run(vec![command.clone()]).await {
                Ok(_) => return,
                Err(error) if started_at.elapsed() >= Duration::from_millis(request.ttl_ms) => {
                    tracing::debug!(%error, "cannot give back a lock; its lease has ended meanwhile");
                    return;
                }
                Err(_) => sleep(RETRY_INTERVAL).await,
            }
        }
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

impl Drop for OpenRequest<'_> {
    fn drop(&mut self) {
        let Ok(runtime) = Handle::try_current() else { return };
        // When this process stops, a dropped request does not mean that its caller disconnected.
        let is_stopping = self.service.is_stopping.load(Ordering::SeqCst);
        let is_cancelled = self.when_closed == WhenClosed::Cancel;
        let is_kept = is_cancelled && is_stopping && self.request.has_request_id;
        if is_kept || !is_cancelled && !self.has_waited || self.when_closed == WhenClosed::Nothing {
            return;
        }
        // The same request may be open over another connection.
        let Some(given_up) = self.open.give_up() else { return };
        let (service, request) = (self.service.clone(), self.request.clone());
        runtime.spawn(service.give_up(request, given_up, self.when_closed, self.has_waited));
    }
}
