//! Registering, changing and removing agents.

use ade_domain::agent::AgentProfile;
use ade_domain::people::UserId;
use ade_domain::permission::Scope;
use ade_store::DatabaseError;
use ade_store::coordination::{AgentUpdate, AgentView, LockFilter};
use ade_store::database::{Commit, StoredAgent, StoredToken, Write};

use super::acting::may_act_for;
use super::{AgentDetails, AgentError, AgentService, forbidden};
use crate::audit::AuditedAction;
use crate::{Caller, Error};

/// How long an implicitly registered agent is kept without a heartbeat.
const IDLE_TTL_MS: u64 = 86_400_000;
/// Idle agents that are removed in one run.
const IDLE_BATCH_SIZE: u32 = 100;

impl AgentService {
    pub(super) fn new_agent(
        &self,
        agent_id: &str,
        sponsor_id: Option<UserId>,
        profile: &AgentProfile,
        max_tasks: Option<u32>,
        by_name: bool,
    ) -> StoredAgent {
        StoredAgent {
            agent_id: agent_id.to_owned(),
            sponsor_id,
            name: profile.name.clone(),
            model: profile.model.clone(),
            version: profile.version.clone(),
            capabilities: profile.capabilities.clone(),
            max_tasks,
            draining: false,
            // Anything but a JSON object is dropped.
            config: serde_json::from_str(&profile.config).unwrap_or_default(),
            is_auto_registered: by_name,
            last_seen_at: self.clock.now(),
            revision: 1,
        }
    }

    pub(super) async fn insert(&self, agent: StoredAgent, caller: &Caller) -> Result<(), Error> {
        let mut commit = Commit::default();
        let object_id = agent.agent_id.clone();
        commit.writes.push(Write::Agent { agent: Box::new(agent), expected: None });
        let action = AuditedAction { revision: Some(1), ..AuditedAction::new("agent.create", &object_id) };
        action.add_to(&mut commit, Some(caller), self.clock.now());
        match self.database.commit(commit).await {
            Err(DatabaseError::AlreadyExists { .. }) => Err(Error::Exists(format!("agent {object_id}"))),
            committed => Ok(committed?),
        }
    }

    /// Registers an agent under a new id. The caller becomes its sponsor; an administrator can name another.
    pub async fn register(
        &self,
        id: &str,
        profile: AgentProfile,
        max_tasks: Option<u32>,
        sponsor: Option<&str>,
        caller: &Caller,
    ) -> Result<AgentDetails, AgentError> {
        caller.require_scope(Scope::Lock)?;
        self.require_may_create(caller, id).await?;
        let sponsor_id = self.choose_sponsor(sponsor, caller).await?;
        let agent = self.new_agent(id, sponsor_id.clone(), &profile, max_tasks, false);
        if let Some(existing) = self.database.agent(id).await? {
            // Only an implicitly registered agent can be registered again.
            if !existing.is_auto_registered || !may_act_for(caller, id, existing.sponsor_id.as_ref()) {
                return Err(AgentError::Exists(id.to_owned()));
            }
            let revision = existing.revision + 1;
            let agent = StoredAgent { revision, ..agent };
            self.replace(agent, existing.revision, "agent.create", caller).await?;
        } else {
            match self.insert(agent, caller).await {
                Err(Error::Exists(_)) => return Err(AgentError::Exists(id.to_owned())),
                inserted => inserted?,
            }
        }
        let update = AgentUpdate { profile: Some(profile), max_tasks, draining: None };
        let view = match self.coordination.put_agent(id.to_owned(), update.clone(), true).await? {
            Some(view) => view,
            None => self.put(id, update, false).await?,
        };
        Ok(AgentDetails { sponsor_id, view })
    }

    async fn choose_sponsor(&self, named: Option<&str>, caller: &Caller) -> Result<Option<UserId>, Error> {
        let own = caller.user.as_ref().map(|user| user.user_id.clone());
        let Some(named) = named.map(UserId::new) else { return Ok(own) };
        if own.as_ref() != Some(&named) && !caller.is_admin() {
            return Err(forbidden("only an administrator can name another user as sponsor"));
        }
        let user = self.database.user(&named).await?;
        if user.is_none_or(|user| !user.user.active) {
            return Err(Error::invalid("sponsor_id", format!("{named} is not an active user")));
        }
        Ok(Some(named))
    }

    async fn replace(
        &self,
        agent: StoredAgent,
        expected: u64,
        action: &str,
        caller: &Caller,
    ) -> Result<(), Error> {
        let mut commit = Commit::default();
        let (object_id, revision) = (agent.agent_id.clone(), Some(agent.revision));
        commit.writes.push(Write::Agent { agent: Box::new(agent), expected: Some(expected) });
        let action = AuditedAction { revision, ..AuditedAction::new(action, &object_id) };
        action.add_to(&mut commit, Some(caller), self.clock.now());
        match self.database.commit(commit).await {
            Err(DatabaseError::Conflict { .. }) => Err(Error::Conflict),
            committed => Ok(committed?),
        }
    }

    async fn put(&self, id: &str, update: AgentUpdate, is_new: bool) -> Result<AgentView, AgentError> {
        let view = self.coordination.put_agent(id.to_owned(), update, is_new).await?;
        view.ok_or_else(|| AgentError::NotFound(id.to_owned()))
    }

    /// Changes an agent: by itself, its sponsor, or an administrator.
    pub async fn update(
        &self,
        id: &str,
        change: impl FnOnce(AgentProfile) -> AgentUpdate,
        caller: &Caller,
    ) -> Result<AgentDetails, AgentError> {
        caller.require_scope(Scope::Lock)?;
        let agent = self.load(id).await?;
        self.require_permission(&agent, caller)?;
        let update = change(agent.view.profile);
        if let Some(stored) = self.database.agent(id).await? {
            let (max_tasks, sponsor) = (update.max_tasks.or(stored.max_tasks), stored.sponsor_id.clone());
            let after = match &update.profile {
                Some(profile) => self.new_agent(id, sponsor, profile, max_tasks, stored.is_auto_registered),
                None => StoredAgent { max_tasks, ..stored.clone() },
            };
            let draining = update.draining.unwrap_or(stored.draining);
            let after = StoredAgent { revision: stored.revision + 1, draining, ..after };
            self.replace(after, stored.revision, "agent.update", caller).await?;
        }
        let view = match self.coordination.put_agent(id.to_owned(), update.clone(), false).await? {
            Some(view) => view,
            // Coordination has forgotten the agent.
            None => self.put(id, update, true).await?,
        };
        Ok(AgentDetails { sponsor_id: agent.sponsor_id, view })
    }

    /// Removes an agent that holds no locks, and revokes its tokens.
    pub async fn remove(&self, id: &str, caller: &Caller) -> Result<(), AgentError> {
        caller.require_scope(Scope::Lock)?;
        let agent = self.load(id).await?;
        self.require_permission(&agent, caller)?;
        let filter = LockFilter { agent: Some(id.to_owned()), ..Default::default() };
        if !self.coordination.list_locks(filter, None, 1).await?.is_empty() {
            return Err(AgentError::Busy(id.to_owned()));
        }
        if let Some(stored) = self.database.agent(id).await? {
            self.delete(&stored, Some(caller)).await?;
        }
        self.coordination.remove_agent(id.to_owned()).await?;
        Ok(())
    }

    async fn delete(&self, agent: &StoredAgent, caller: Option<&Caller>) -> Result<(), Error> {
        let (now, agent_id) = (self.clock.now(), agent.agent_id.clone());
        let mut commit = Commit::default();
        for token in self.database.agent_tokens(&agent_id).await? {
            commit.writes.push(Write::Token(StoredToken { revoked_at: Some(now), ..token }));
        }
        commit.writes.push(Write::DeleteAgent { agent_id: agent_id.clone(), expected: agent.revision });
        AuditedAction::new("agent.delete", &agent_id).add_to(&mut commit, caller, now);
        match self.database.commit(commit).await {
            Err(DatabaseError::Conflict { .. }) => Err(Error::Conflict),
            committed => Ok(committed?),
        }
    }

    /// Removes implicitly registered agents without a heartbeat for a day; returns how many.
    pub(crate) async fn remove_idle(&self) -> Result<usize, AgentError> {
        let now = self.clock.now();
        let before = ade_domain::Moment::from_micros(now.micros().saturating_sub(IDLE_TTL_MS * 1_000));
        let mut removed = 0;
        for agent in self.database.idle_agents(before, IDLE_BATCH_SIZE).await? {
            match self.coordination.agent(agent.agent_id.clone()).await? {
                Some(live) if live.last_heartbeat > before => {
                    let seen = StoredAgent {
                        last_seen_at: live.last_heartbeat,
                        revision: agent.revision + 1,
                        ..agent.clone()
                    };
                    let write = Write::Agent { agent: Box::new(seen), expected: Some(agent.revision) };
                    self.database.commit(Commit { writes: vec![write], ..Commit::default() }).await?;
                }
                _ => {
                    self.delete(&agent, None).await?;
                    removed += 1;
                }
            }
        }
        Ok(removed)
    }
}
