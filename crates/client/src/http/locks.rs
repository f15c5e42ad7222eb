//! Client methods of locks, tickets and agents.

use std::time::Duration;

use reqwest::Method;

use super::{Client, RESPONSE_TIMEOUT, segment};
use crate::Error;
use crate::wire::{
    AcquireRequest, Agent, AgentRequest, BrokenLock, Grants, HeartbeatRequest, HeldLockResults,
    HeldLocksRequest, InboxMessage, Lock, Page, Ticket, Token, TokenRequest, VerifiedToken,
    VerifyTokenRequest, WaitGraph,
};

/// The response to a lock request.
#[derive(Debug, Clone, PartialEq)]
pub enum AcquireOutcome {
    /// All locks are granted.
    Granted(Grants),
    /// The request is queued.
    Queued(Ticket),
}

impl Client {
    /// Acquires locks, or queues for them.
    pub async fn acquire_locks(&self, request: &AcquireRequest) -> Result<AcquireOutcome, Error> {
        let wait = if request.queue { 0.0 } else { request.wait_seconds.unwrap_or(0.0) };
        let wait = Duration::try_from_secs_f64(wait).unwrap_or(Duration::ZERO);
        let request =
            self.request(Method::POST, "/locks/acquire").timeout(wait + RESPONSE_TIMEOUT).json(request);
        let (status, body) = self.send(request).await?;
        if status == 202 {
            self.parse(&body).map(AcquireOutcome::Queued)
        } else {
            self.parse(&body).map(AcquireOutcome::Granted)
        }
    }

    /// Gets a ticket. Fails if its request has ended.
    pub async fn ticket(&self, ticket: &str) -> Result<Ticket, Error> {
        self.get(&format!("/locks/tickets/{}", segment(ticket)), &[]).await
    }

    /// Claims a ready ticket: its leases start now.
    pub async fn claim_ticket(&self, ticket: &str) -> Result<Ticket, Error> {
        self.post(&format!("/locks/tickets/{}/claim", segment(ticket)), &()).await
    }

    /// Cancels a ticket.
    pub async fn cancel_ticket(&self, ticket: &str) -> Result<(), Error> {
        self.send(self.request(Method::DELETE, &format!("/locks/tickets/{}", segment(ticket))))
            .await
            .map(|_| ())
    }

    /// Extends leases. If any lock is lost, the problem has the results of all.
    pub async fn lock_heartbeat(&self, request: &HeartbeatRequest) -> Result<HeldLockResults, Error> {
        self.post("/locks/heartbeat", request).await
    }

    /// Releases locks. If any lock is lost, the problem has the results of all.
    pub async fn release_locks(&self, request: &HeldLocksRequest) -> Result<HeldLockResults, Error> {
        self.post("/locks/release", request).await
    }

    /// Downgrades locks from exclusive to shared. If any lock is lost, the problem has the results of all.
    pub async fn downgrade_locks(&self, request: &HeldLocksRequest) -> Result<HeldLockResults, Error> {
        self.post("/locks/downgrade", request).await
    }

    /// Verifies a fencing token. Fails with `LOCK_LOST` if no current holder has it.
    pub async fn verify_token(&self, request: &VerifyTokenRequest) -> Result<VerifiedToken, Error> {
        self.post("/locks/verify", request).await
    }

    /// Lists locks that are held or waited for. Filters: `agent`, `resource_type`, `kind`, `limit`, `cursor`.
    pub async fn locks(&self, filters: &[(&str, &str)]) -> Result<Page<Lock>, Error> {
        self.get("/locks", filters).await
    }

    /// Gets a lock.
    pub async fn lock(&self, lock: &str) -> Result<Lock, Error> {
        self.get(&format!("/locks/{}", segment(lock)), &[]).await
    }

    /// Breaks a lock: takes it from its holders (admin).
    pub async fn break_lock(&self, lock: &str, reason: &str) -> Result<BrokenLock, Error> {
        let request = self.request(Method::DELETE, &format!("/locks/{}", segment(lock)));
        let (_, body) = self.send(self.with_query(request, &[("reason", reason)])).await?;
        self.parse(&body)
    }

    /// Gets the wait graph.
    pub async fn wait_graph(&self) -> Result<WaitGraph, Error> {
        self.get("/locks/graph", &[]).await
    }

    /// Registers an agent.
    pub async fn register_agent(&self, agent: &AgentRequest) -> Result<Agent, Error> {
        self.post("/agents", agent).await
    }

    /// Lists agents. Filters: `limit`, `cursor`.
    pub async fn agents(&self, filters: &[(&str, &str)]) -> Result<Page<Agent>, Error> {
        self.get("/agents", filters).await
    }

    /// Creates a token that acts as an agent.
    pub async fn create_agent_token(&self, agent_id: &str, token: &TokenRequest) -> Result<Token, Error> {
        self.post_idempotent(&format!("/agents/{}/tokens", segment(agent_id)), token).await
    }

    /// Lists the inbox of an agent. Filters: `limit`, `cursor`.
    pub async fn agent_inbox(
        &self,
        agent_id: &str,
        filters: &[(&str, &str)],
    ) -> Result<Page<InboxMessage>, Error> {
        self.get(&format!("/agents/{}/inbox", segment(agent_id)), filters).await
    }
}
