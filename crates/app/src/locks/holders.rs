//! Operations on held locks: heartbeat, release and downgrade by their holders; verify and break by others.

use std::sync::atomic::Ordering;

use ade_domain::lock::{FencingToken, Grant, HoldView, Holder, LockCommand, LockName, LockOutcome};
use ade_store::CoordinationError;

use super::{LockError, LockService, Result};
use crate::LockNotice;

/// A lock, and the fencing token by which the caller claims to hold it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldToken {
    pub lock: LockName,
    pub token: FencingToken,
}

/// The result for one lock of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldLockResult {
    pub lock: LockName,
    /// The current grant; `None` after a release.
    pub result: Result<Option<Grant>, LockLost>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReleaseOutcome {
    Released(Vec<HeldLockResult>),
    /// The release is stored until coordination is available again.
    Stored,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the token does not belong to a current holder of the lock")]
pub struct LockLost;

impl LockService {
    /// Extends leases. It also counts as a heartbeat of the agent.
    pub async fn heartbeat(
        &self,
        holder: &Holder,
        held: &[HeldToken],
        ms: u64,
    ) -> Result<Vec<HeldLockResult>> {
        self.for_each(holder, held, |holder, token| LockCommand::Extend { holder, token, ttl_ms: ms }).await
    }

    /// Releases locks. While coordination is unavailable, the release is stored.
    pub async fn release(&self, holder: &Holder, held: &[HeldToken]) -> Result<ReleaseOutcome> {
        let released = match self.check_reachable() {
            Ok(()) => self.release_now(holder, held).await,
            Err(error) => Err(error),
        };
        match released {
            // It may have been executed. Executed once more, it changes nothing.
            Err(LockError::Unavailable(_)) if self.outages.is_some() => {
                self.store_release(holder, held).await?;
                Ok(ReleaseOutcome::Stored)
            }
            released => Ok(ReleaseOutcome::Released(released?)),
        }
    }

    async fn release_now(&self, holder: &Holder, held: &[HeldToken]) -> Result<Vec<HeldLockResult>> {
        let (service, holder, held) = (self.clone(), holder.clone(), held.to_vec());
        // A task of its own: the reply may bring a lease to a waiter of this server, also if the caller has disconnected.
        let released = tokio::spawn(async move {
            // A server that stops has dropped its waiters, who come back elsewhere.
            let is_stopping = service.is_stopping.load(Ordering::SeqCst);
            let server = (!is_stopping).then(|| service.server.clone());
            let release = |holder, token| LockCommand::Release { holder, token, server: server.clone() };
            service.for_each(&holder, &held, release).await
        });
        let stopped = |_| Err(CoordinationError("the release was stopped".to_owned()).into());
        released.await.unwrap_or_else(stopped)
    }

    /// Turns exclusive locks into shared ones.
    pub async fn downgrade(&self, holder: &Holder, held: &[HeldToken]) -> Result<Vec<HeldLockResult>> {
        self.for_each(holder, held, |holder, token| LockCommand::Downgrade { holder, token }).await
    }

    /// The holder of a token, if it is a current one.
    pub async fn verify(
        &self,
        lock: LockName,
        token: FencingToken,
    ) -> Result<Option<HoldView>, CoordinationError> {
        match self.run_one(lock, LockCommand::Verify { token }).await? {
            LockOutcome::Valid(by) => Ok(Some(by)),
            _ => Ok(None),
        }
    }

    /// Takes a lock from all its holders, and notifies them.
    pub async fn break_lock(
        &self,
        actor: &str,
        lock: LockName,
        reason: &str,
    ) -> Result<Vec<HoldView>, CoordinationError> {
        let LockOutcome::Broken(holders) = self.run_one(lock.clone(), LockCommand::Break).await? else {
            return Ok(Vec::new());
        };
        if !holders.is_empty() {
            self.event_sink.publish(LockNotice::Broken { actor, lock: &lock, reason, holders: &holders });
        }
        Ok(holders)
    }

    async fn for_each(
        &self,
        holder: &Holder,
        held: &[HeldToken],
        command: impl Fn(Holder, FencingToken) -> LockCommand,
    ) -> Result<Vec<HeldLockResult>> {
        self.check_reachable()?;
        match self.coordination.record_heartbeat(holder.agent_id().to_owned()).await {
            Ok(true) => {}
            Ok(false) => return Err(LockError::TooManyAgents),
            // A heartbeat that cannot be stored does not affect the locks.
            Err(error) => tracing::debug!(%error, "cannot store the heartbeat of an agent"),
        }
        let commands =
            held.iter().map(|held| (held.lock.clone(), command(holder.clone(), held.token))).collect();
        let outcomes = self.run(commands).await?;
        let result = |(held, outcome): (&HeldToken, LockOutcome)| {
            let result = match outcome {
                LockOutcome::Updated(grant) => Ok(Some(grant)),
                LockOutcome::Done => Ok(None),
                _ => Err(LockLost),
            };
            HeldLockResult { lock: held.lock.clone(), result }
        };
        Ok(held.iter().zip(outcomes).map(result).collect())
    }
}
