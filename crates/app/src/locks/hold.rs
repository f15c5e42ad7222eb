//! What holders do with their locks: heartbeat, release, downgrade; and what others do: verify, break.

use ade_domain::lock::{Grant, HeldBy, Holder, LockCommand, LockName, Outcome, Token};
use ade_store::CoordinationError;

use super::{LockError, LockService};
use crate::notices::LockNotice;

/// A lock and the token by which somebody says to hold it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// The lock.
    pub lock: LockName,
    /// The token.
    pub token: Token,
}

/// What became of one lock of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HoldResult {
    /// The lock.
    pub lock: LockName,
    /// Its grant now, `None` after a release; an error if the token is not a current holder's.
    pub result: Result<Option<Grant>, LockLost>,
}

/// The token is not a current holder's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the token is not a current holder's")]
pub struct LockLost;

impl LockService {
    /// Extends leases. The agent counts as alive.
    pub async fn heartbeat(
        &self,
        holder: &Holder,
        held: &[Held],
        ms: u64,
    ) -> Result<Vec<HoldResult>, LockError> {
        self.each(holder, held, |holder, token| LockCommand::Extend { holder, token, ms }).await
    }

    /// Gives locks up.
    pub async fn release(&self, holder: &Holder, held: &[Held]) -> Result<Vec<HoldResult>, LockError> {
        self.each(holder, held, |holder, token| LockCommand::Release { holder, token }).await
    }

    /// From exclusive to shared.
    pub async fn downgrade(&self, holder: &Holder, held: &[Held]) -> Result<Vec<HoldResult>, LockError> {
        self.each(holder, held, |holder, token| LockCommand::Downgrade { holder, token }).await
    }

    /// Whose token this is, if it is a current holder's.
    pub async fn verify(&self, lock: LockName, token: Token) -> Result<Option<HeldBy>, CoordinationError> {
        match self.run_one(lock, LockCommand::Verify { token }).await? {
            Outcome::Valid(by) => Ok(Some(by)),
            _ => Ok(None),
        }
    }

    /// Takes a lock from all its holders, and tells the record who did so and why.
    pub async fn break_lock(
        &self,
        actor: &str,
        lock: LockName,
        reason: &str,
    ) -> Result<Vec<HeldBy>, CoordinationError> {
        match self.run_one(lock.clone(), LockCommand::Break).await? {
            Outcome::Broken(holders) => {
                if !holders.is_empty() {
                    self.notices.tell(LockNotice::Broken { actor, lock: &lock, reason, holders: &holders });
                }
                Ok(holders)
            }
            _ => Ok(Vec::new()),
        }
    }

    async fn each(
        &self,
        holder: &Holder,
        held: &[Held],
        command: impl Fn(Holder, Token) -> LockCommand,
    ) -> Result<Vec<HoldResult>, LockError> {
        match self.coordination.heard(holder.agent_id().to_owned()).await {
            Ok(true) => {}
            Ok(false) => return Err(LockError::TooManyAgents),
            // Whether the agent can be written down does not decide about its locks.
            Err(error) => tracing::debug!(%error, "not written down that an agent is alive"),
        }
        let commands =
            held.iter().map(|held| (held.lock.clone(), command(holder.clone(), held.token))).collect();
        let outcomes = self.run(commands).await?;
        let result = |(held, outcome): (&Held, Outcome)| {
            let result = match outcome {
                Outcome::Kept(grant) => Ok(Some(grant)),
                Outcome::Done => Ok(None),
                _ => Err(LockLost),
            };
            HoldResult { lock: held.lock.clone(), result }
        };
        Ok(held.iter().zip(outcomes).map(result).collect())
    }
}
