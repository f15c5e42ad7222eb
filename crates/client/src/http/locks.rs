//! Locks, and the agents that hold them.

use std::time::Duration;

use reqwest::Method;

use super::{Client, PATIENCE, segment};
use crate::Error;
use crate::wire::{
    AcquireRequest, Agent, AgentRequest, Broken, Grants, Graph, HeartbeatRequest, HoldRequest, HoldResults,
    InboxMessage, Lock, Page, Ticket, Token, TokenRequest, Verified, VerifyRequest,
};

/// What an acquisition gives.
#[derive(Debug, Clone, PartialEq)]
pub enum Acquired {
    /// Every lock is held.
    Granted(Grants),
    /// The request waits with a ticket.
    Ticket(Ticket),
}

impl Client {
    /// Takes locks, or queues for them.
    ///
    /// # Errors
    /// They cannot be had.
    pub async fn acquire(&self, request: &AcquireRequest) -> Result<Acquired, Error> {
        let open = if request.queue { 0.0 } else { request.wait_seconds.unwrap_or(0.0) };
        let open = Duration::try_from_secs_f64(open).unwrap_or(Duration::ZERO);
        let call = self.call(Method::POST, "/locks/acquire").timeout(open + PATIENCE).json(request);
        let (status, body) = self.send(call).await?;
        if status == 202 {
            self.read(&body).map(Acquired::Ticket)
        } else {
            self.read(&body).map(Acquired::Granted)
        }
    }

    /// How a ticket stands.
    ///
    /// # Errors
    /// There is no such ticket, or it came to its end.
    pub async fn ticket(&self, ticket: &str) -> Result<Ticket, Error> {
        self.get(&format!("/locks/tickets/{}", segment(ticket)), &[]).await
    }

    /// Starts the leases of a ticket.
    ///
    /// # Errors
    /// It came to its end.
    pub async fn claim(&self, ticket: &str) -> Result<Ticket, Error> {
        self.post(&format!("/locks/tickets/{}/claim", segment(ticket)), &()).await
    }

    /// Gives a ticket up.
    ///
    /// # Errors
    /// There is no such ticket.
    pub async fn cancel(&self, ticket: &str) -> Result<(), Error> {
        self.send(self.call(Method::DELETE, &format!("/locks/tickets/{}", segment(ticket)))).await.map(|_| ())
    }

    /// Extends leases.
    ///
    /// # Errors
    /// Some are lost; the problem has the results of all.
    pub async fn heartbeat(&self, request: &HeartbeatRequest) -> Result<HoldResults, Error> {
        self.post("/locks/heartbeat", request).await
    }

    /// Gives locks up.
    ///
    /// # Errors
    /// Some are lost; the problem has the results of all.
    pub async fn release(&self, request: &HoldRequest) -> Result<HoldResults, Error> {
        self.post("/locks/release", request).await
    }

    /// From exclusive to shared.
    ///
    /// # Errors
    /// Some are lost; the problem has the results of all.
    pub async fn downgrade(&self, request: &HoldRequest) -> Result<HoldResults, Error> {
        self.post("/locks/downgrade", request).await
    }

    /// Whose token it is.
    ///
    /// # Errors
    /// It is not a current holder's.
    pub async fn verify(&self, request: &VerifyRequest) -> Result<Verified, Error> {
        self.post("/locks/verify", request).await
    }

    /// Locks by name. Filters are `agent`, `resource_type`, `kind`, `limit` and `cursor`.
    ///
    /// # Errors
    /// A filter is wrong.
    pub async fn locks(&self, filters: &[(&str, &str)]) -> Result<Page<Lock>, Error> {
        self.get("/locks", filters).await
    }

    /// One lock.
    ///
    /// # Errors
    /// Its name is not one.
    pub async fn lock(&self, lock: &str) -> Result<Lock, Error> {
        self.get(&format!("/locks/{}", segment(lock)), &[]).await
    }

    /// Takes a lock from its holders.
    ///
    /// # Errors
    /// The caller may not.
    pub async fn break_lock(&self, lock: &str, reason: &str) -> Result<Broken, Error> {
        let call = self.call(Method::DELETE, &format!("/locks/{}", segment(lock)));
        let (_, body) = self.send(self.with_query(call, &[("reason", reason)])).await?;
        self.read(&body)
    }

    /// Who waits for whom.
    ///
    /// # Errors
    /// The server does not answer.
    pub async fn graph(&self) -> Result<Graph, Error> {
        self.get("/locks/graph", &[]).await
    }

    /// Registers an agent.
    ///
    /// # Errors
    /// Its id is taken.
    pub async fn register(&self, agent: &AgentRequest) -> Result<Agent, Error> {
        self.post("/agents", agent).await
    }

    /// Agents by id.
    ///
    /// # Errors
    /// The server does not answer.
    pub async fn agents(&self, filters: &[(&str, &str)]) -> Result<Page<Agent>, Error> {
        self.get("/agents", filters).await
    }

    /// Makes a token that acts as an agent.
    ///
    /// # Errors
    /// There is no such agent, or it is not the caller's.
    pub async fn make_agent_token(&self, agent_id: &str, token: &TokenRequest) -> Result<Token, Error> {
        self.make(&format!("/agents/{}/tokens", segment(agent_id)), token).await
    }

    /// What an agent must hear of. Filters are `limit` and `cursor`.
    ///
    /// # Errors
    /// There is no such agent, or it is not the caller's.
    pub async fn inbox(&self, agent_id: &str, filters: &[(&str, &str)]) -> Result<Page<InboxMessage>, Error> {
        self.get(&format!("/agents/{}/inbox", segment(agent_id)), filters).await
    }
}
