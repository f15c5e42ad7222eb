//! Client methods of locks, tickets and agents.

use std::time::Duration;

use reqwest::Method;

use super::{Client, RESPONSE_TIMEOUT, Result, path, routes};
use crate::wire::{
    AcquireRequest, Agent, AgentHealth, AgentRequest, BrokenLock, Grants, HeartbeatRequest, HeldLockResults,
    HeldLocksRequest, InboxMessage, Lock, Ticket, Token, TokenRequest, VerifiedToken, VerifyTokenRequest,
    WaitGraph,
};

/// The response to a lock request.
#[derive(Debug, Clone, PartialEq)]
pub enum AcquireOutcome {
    /// All locks are granted.
    Granted(Grants),
    /// The request is queued.
    Queued(Ticket),
}

routes! {
    /// Extends leases. If any lock is lost, the problem has the results of all.
    send lock_heartbeat() "/locks/heartbeat": HeartbeatRequest => HeldLockResults;
    /// Releases locks. If any lock is lost, the problem has the results of all.
    send release_locks() "/locks/release": HeldLocksRequest => HeldLockResults;
    /// Downgrades locks from exclusive to shared. If any lock is lost, the problem has the results of all.
    send downgrade_locks() "/locks/downgrade": HeldLocksRequest => HeldLockResults;
    /// Verifies a fencing token. Fails with `LOCK_LOST` if no current holder has it.
    send verify_token() "/locks/verify": VerifyTokenRequest => VerifiedToken;
    /// Lists locks that are held or waited for. Filters: `agent`, `resource_type`, `kind`, `limit`, `cursor`.
    list locks() "/locks" => Lock;
    /// Gets a lock.
    get lock(lock) "/locks/{}" => Lock;
    /// Gets a ticket. Fails if its request has ended.
    get ticket(ticket) "/locks/tickets/{}" => Ticket;
    /// Cancels a ticket.
    delete cancel_ticket(ticket) "/locks/tickets/{}" => ();
    /// Gets the wait graph.
    get wait_graph() "/locks/graph" => WaitGraph;
    /// Registers an agent.
    send register_agent() "/agents": AgentRequest => Agent;
    /// Lists agents. Filters: `limit`, `cursor`.
    list agents() "/agents" => Agent;
    /// Gets an agent.
    get agent(agent_id) "/agents/{}" => Agent;
    /// Removes an agent that holds no locks, and revokes its tokens.
    delete remove_agent(agent_id) "/agents/{}" => ();
    /// Lists the valid tokens of an agent, without their secrets.
    list agent_tokens(agent_id) "/agents/{}/tokens" => Token;
    /// Lists how agents are, those that need attention first. Filters: `status`, `sponsor`, `text`, `limit`, `cursor`.
    list agents_health() "/stats/agents" => AgentHealth;
    /// Gets how an agent is.
    get agent_health(agent_id) "/stats/agents/{}" => AgentHealth;
    /// Creates a token that acts as an agent.
    post create_agent_token(agent_id) "/agents/{}/tokens": TokenRequest => Token;
    /// Lists the inbox of an agent. Filters: `limit`, `cursor`.
    list agent_inbox(agent_id) "/agents/{}/inbox" => InboxMessage;
}

impl Client {
    /// Changes an agent; absent fields stay unchanged.
    pub async fn update_agent(&self, agent_id: &str, change: &AgentRequest) -> Result<Agent> {
        self.update(Method::PATCH, &path("/agents/{}", &[agent_id]), None, change).await
    }

    /// Acquires locks, or queues for them.
    pub async fn acquire_locks(&self, request: &AcquireRequest) -> Result<AcquireOutcome> {
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

    /// Claims a ready ticket: its leases start now.
    pub async fn claim_ticket(&self, ticket: &str) -> Result<Ticket> {
        self.post(&path("/locks/tickets/{}/claim", &[ticket]), &()).await
    }

    /// Breaks a lock: takes it from its holders (admin).
    pub async fn break_lock(&self, lock: &str, reason: &str) -> Result<BrokenLock> {
        let request = self.request(Method::DELETE, &path("/locks/{}", &[lock]));
        let (_, body) = self.send(self.with_query(request, &[("reason", reason)])).await?;
        self.parse(&body)
    }
}
