//! Who may act for which agent. No other module decides this.

use ade_domain::agent::{AgentProfile, RemovedAgent};
use ade_domain::people::UserId;
use ade_domain::permission::{ActorRole, Scope};
use ade_domain::text::is_shown;

use super::{AgentDetails, AgentService};
use crate::{Caller, Error, Result};

/// Implicitly registered agents of one sponsor.
const MAX_IMPLICIT_AGENTS: u64 = 100;
/// The agent as which the bootstrap token holds locks, unless it names another.
const BOOTSTRAP_AGENT: &str = "admin";

/// The agent itself, its sponsor, and administrators may act for it.
pub(super) fn may_act_for(caller: &Caller, agent_id: &str, sponsor: Option<&UserId>) -> bool {
    match (&caller.agent_id, &caller.user) {
        (Some(own), _) => own == agent_id,
        // The bootstrap token, but not the service itself.
        (None, None) => !caller.is_service,
        (None, Some(user)) => sponsor == Some(&user.user_id) || caller.is_admin(),
    }
}

/// Why a new agent cannot have this name. Reviewers read it as that of the proposer, within a sentence, so it must look like what it is.
fn name_fault(name: &str) -> Option<&'static str> {
    if name.is_empty() || !name.chars().all(|c| is_shown(c) && !c.is_whitespace()) {
        return Some("must be a word without spaces and invisible characters");
    }
    // Segments of paths that mean something else.
    matches!(name, "." | ".." | "new" | "me").then_some("is reserved; choose another")
}

impl AgentService {
    /// The id as which the caller holds locks and claims tasks. A token of an agent acts as that agent only; a user acts as itself
    /// or as an agent that it sponsors; an administrator as any. An unknown name is registered implicitly for the caller.
    pub async fn resolve_agent(&self, caller: &Caller, named: Option<&str>) -> Result<String> {
        caller.require_scope(Scope::Lock)?;
        let Some(user) = &caller.user else { return Ok(named.unwrap_or(BOOTSTRAP_AGENT).to_owned()) };
        if let Some(own) = &caller.agent_id {
            return match named {
                Some(other) if other != own => Err(Error::forbidden(format!(
                    "the token belongs to agent {own} and cannot act as {other}"
                ))),
                _ => Ok(own.clone()),
            };
        }
        let Some(name) = named.filter(|name| *name != user.user_id.as_str()) else {
            return Ok(user.user_id.to_string());
        };
        if caller.is_unverified {
            // The database is unavailable: only what was allowed recently.
            return if self.recent_agents.contains(&user.user_id, name, &self.context.database) {
                Ok(name.to_owned())
            } else {
                Err(Error::unverified_caller())
            };
        }
        let revocations = self.context.database.revocations();
        match self.context.database.agent(name).await? {
            Some(agent) if may_act_for(caller, name, agent.sponsor_id.as_ref()) => {}
            Some(_) => return Err(Error::forbidden(format!("agent {name} has another sponsor"))),
            None => self.register_implicitly(name, user.user_id.clone(), caller).await?,
        }
        self.recent_agents.remember(&user.user_id, name, revocations);
        Ok(name.to_owned())
    }

    /// Whether the caller may act for an existing agent. An unknown agent is not registered.
    pub async fn can_act_for(&self, caller: &Caller, agent_id: &str) -> Result<bool> {
        caller.require_scope(Scope::Lock)?;
        if caller.agent_id.is_some() || caller.is_user(agent_id) {
            return Ok(caller.is_user(agent_id) || may_act_for(caller, agent_id, None));
        }
        if caller.is_unverified {
            let (user, database) = (caller.user_id(), &self.context.database);
            return Ok(user.is_some_and(|user| self.recent_agents.contains(user, agent_id, database)));
        }
        let sponsor = self.context.database.agent(agent_id).await?.and_then(|agent| agent.sponsor_id);
        Ok(may_act_for(caller, agent_id, sponsor.as_ref()))
    }

    async fn register_implicitly(&self, name: &str, sponsor: UserId, caller: &Caller) -> Result<()> {
        self.require_may_create(caller, name).await?;
        if self.context.database.count_sponsored_agents(&sponsor).await? >= MAX_IMPLICIT_AGENTS {
            let detail = format!(
                "{sponsor} already has {MAX_IMPLICIT_AGENTS} unregistered agents; register this one, or remove some"
            );
            return Err(Error::forbidden(detail));
        }
        let profile = AgentProfile { name: name.to_owned(), ..AgentProfile::default() };
        let agent = self.new_agent(name, Some(sponsor), &profile, None, true);
        match self.insert(agent, caller).await {
            // Another request registered it first: the repeated request checks whether the caller may use it.
            Err(Error::AgentExists(_)) => Err(Error::Conflict),
            inserted => inserted,
        }
    }

    pub(super) async fn require_may_create(&self, caller: &Caller, name: &str) -> Result<()> {
        let roles = caller.actor().roles;
        if caller.agent_id.is_some()
            || !(roles.contains(&ActorRole::Author) || roles.contains(&ActorRole::Admin))
        {
            return Err(Error::forbidden("only authors and administrators can create agents"));
        }
        if caller.uses_foreign_credentials() {
            return Err(Error::forbidden(
                "a token or password that somebody else created cannot create agents",
            ));
        }
        if let Some(fault) = name_fault(name) {
            return Err(Error::invalid("agent_id", fault));
        }
        // An agent that only coordination knows belongs to the bootstrap token.
        let is_live = self.live(name).await?.is_some();
        if is_live && !caller.is_admin() && self.context.database.agent(name).await?.is_none() {
            return Err(Error::forbidden(format!(
                "the name {name} is in use; an administrator can register it"
            )));
        }
        if self.context.database.user(&UserId::new(name)).await?.is_some() {
            return Err(Error::forbidden(format!("{name} is a user; choose another name for the agent")));
        }
        let removed = self.context.database.document::<RemovedAgent>(name).await?;
        if removed.is_some_and(|removed| Some(&removed.value.sponsor) != caller.user_id())
            && !caller.is_admin()
        {
            return Err(Error::forbidden(format!(
                "{name} was an agent of somebody else; choose another name, or ask an administrator to register it"
            )));
        }
        Ok(())
    }

    /// An agent for which the caller may act.
    pub(super) async fn load_for(&self, id: &str, caller: &Caller) -> Result<AgentDetails> {
        let agent = self.load(id).await?;
        if may_act_for(caller, id, agent.sponsor_id.as_ref()) {
            return Ok(agent);
        }
        Err(Error::forbidden(format!("agent {id} has another sponsor")))
    }

    /// The sponsor of an agent, without whom it cannot have tokens: for the sponsor or an administrator.
    pub async fn require_sponsor(&self, id: &str, caller: &Caller) -> Result<UserId> {
        let sponsor = self.load_for(id, caller).await?.sponsor_id;
        if caller.agent_id.is_some() {
            return Err(Error::forbidden("agents cannot create tokens"));
        }
        let none = || format!("agent {id} has no sponsor; register it with a sponsor_id first");
        sponsor.ok_or_else(|| Error::Forbidden(none()))
    }
}
