//! Registering, changing and removing agents.

use ade_domain::agent::AgentProfile;
use ade_domain::people::UserId;
use ade_domain::permission::Scope;
use ade_store::DatabaseError;
use ade_store::coordination::{AgentUpdate, AgentView, LockFilter};
use ade_store::database::{Commit, StoredAgent, StoredToken, Write};

use super::acting::may_act_for;
use super::{AgentDetails, AgentService};
use crate::events::AuditedAction;
use crate::{Caller, Error, Result};

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
            last_seen_at: self.context.now(),
            revision: 1,
        }
    }

    pub(super) async fn insert(&self, agent: StoredAgent, caller: &Caller) -> Result<()> {
        let agent_id = agent.agent_id.clone();
        let action = AuditedAction::new("agent.create", &agent_id).with_revision(1);
        let writes = vec![Write::Agent { agent: Box::new(agent), expected: None }];
        let commit = action.commit(writes, Some(caller), self.context.now());
        match self.context.database.commit(commit).await {
            Err(DatabaseError::AlreadyExists { .. }) => Err(Error::AgentExists(agent_id)),
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
    ) -> Result<AgentDetails> {
        caller.require_scope(Scope::Lock)?;
        self.require_may_create(caller, id).await?;
        let sponsor_id = self.choose_sponsor(sponsor, caller).await?;
        let agent = self.new_agent(id, sponsor_id.clone(), &profile, max_tasks, false);
        if let Some(existing) = self.context.database.agent(id).await? {
            // Only an implicitly registered agent can be registered again.
            if !existing.is_auto_registered || !may_act_for(caller, id, existing.sponsor_id.as_ref()) {
                return Err(Error::AgentExists(id.to_owned()));
            }
            let revision = existing.revision + 1;
            let agent = StoredAgent { revision, ..agent };
            self.replace(agent, existing.revision, "agent.create", caller).await?;
        } else {
            self.insert(agent, caller).await?;
        }
        let update = AgentUpdate { profile: Some(profile), max_tasks, draining: None };
        let view = self.put(id, update, true).await?;
        Ok(AgentDetails { sponsor_id, view })
    }

    async fn choose_sponsor(&self, named: Option<&str>, caller: &Caller) -> Result<Option<UserId>> {
        let Some(named) = named.map(UserId::new) else { return Ok(caller.user_id().cloned()) };
        if caller.user_id() != Some(&named) && !caller.is_admin() {
            return Err(Error::forbidden("only an administrator can name another user as sponsor"));
        }
        let user = self.context.database.user(&named).await?;
        if user.is_none_or(|user| !user.user.active) {
            return Err(Error::invalid("sponsor_id", format!("{named} is not an active user")));
        }
        Ok(Some(named))
    }

    async fn replace(&self, agent: StoredAgent, expected: u64, action: &str, caller: &Caller) -> Result<()> {
        let agent_id = agent.agent_id.clone();
        let action = AuditedAction::new(action, &agent_id).with_revision(agent.revision);
        let writes = vec![Write::Agent { agent: Box::new(agent), expected: Some(expected) }];
        self.commit(action.commit(writes, Some(caller), self.context.now())).await
    }

    async fn commit(&self, commit: Commit) -> Result<()> {
        if self.context.commit(commit).await? { Ok(()) } else { Err(Error::Conflict) }
    }

    /// Updates an agent in coordination, which may know it already or have forgotten it; `is_new` is the more probable.
    async fn put(&self, id: &str, update: AgentUpdate, is_new: bool) -> Result<AgentView> {
        let coordination = &self.context.coordination;
        let view = match coordination.put_agent(id.to_owned(), update.clone(), is_new).await? {
            Some(view) => Some(view),
            None => coordination.put_agent(id.to_owned(), update, !is_new).await?,
        };
        view.ok_or_else(|| Error::AgentNotFound(id.to_owned()))
    }

    /// Changes an agent: by itself, its sponsor, or an administrator.
    pub async fn update(
        &self,
        id: &str,
        change: impl FnOnce(AgentProfile) -> AgentUpdate,
        caller: &Caller,
    ) -> Result<AgentDetails> {
        caller.require_scope(Scope::Lock)?;
        let agent = self.load_for(id, caller).await?;
        let update = change(agent.view.profile);
        if let Some(stored) = self.context.database.agent(id).await? {
            let (max_tasks, sponsor) = (update.max_tasks.or(stored.max_tasks), stored.sponsor_id.clone());
            let after = match &update.profile {
                Some(profile) => self.new_agent(id, sponsor, profile, max_tasks, stored.is_auto_registered),
                None => StoredAgent { max_tasks, ..stored.clone() },
            };
            let draining = update.draining.unwrap_or(stored.draining);
            let after = StoredAgent { revision: stored.revision + 1, draining, ..after };
            self.replace(after, stored.revision, "agent.update", caller).await?;
        }
        let view = self.put(id, update, false).await?;
        Ok(AgentDetails { sponsor_id: agent.sponsor_id, view })
    }

    /// Removes an agent that holds no locks, and revokes its tokens.
    pub async fn remove(&self, id: &str, caller: &Caller) -> Result<()> {
        caller.require_scope(Scope::Lock)?;
        self.load_for(id, caller).await?;
        let filter = LockFilter { agent: Some(id.to_owned()), ..Default::default() };
        if !self.context.coordination.list_locks(filter, None, 1).await?.is_empty() {
            return Err(Error::AgentBusy(id.to_owned()));
        }
        if let Some(stored) = self.context.database.agent(id).await? {
            self.delete(&stored, Some(caller)).await?;
        }
        self.context.coordination.remove_agent(id.to_owned()).await?;
        Ok(())
    }

    async fn delete(&self, agent: &StoredAgent, caller: Option<&Caller>) -> Result<()> {
        let (now, agent_id) = (self.context.now(), agent.agent_id.clone());
        let tokens = self.context.database.agent_tokens(&agent_id).await?.into_iter();
        let mut writes: Vec<Write> =
            tokens.map(|token| Write::Token(StoredToken { revoked_at: Some(now), ..token })).collect();
        writes.push(Write::DeleteAgent { agent_id: agent_id.clone(), expected: agent.revision });
        self.commit(AuditedAction::new("agent.delete", &agent_id).commit(writes, caller, now)).await
    }

    /// Removes implicitly registered agents without a heartbeat for a day; returns how many.
    pub(crate) async fn remove_idle(&self) -> Result<usize> {
        let now = self.context.now();
        let before = ade_domain::Moment::from_micros(now.micros().saturating_sub(IDLE_TTL_MS * 1_000));
        let mut removed = 0;
        for agent in self.context.database.idle_agents(before, IDLE_BATCH_SIZE).await? {
            match self.live(&agent.agent_id).await? {
                Some(live) if live.last_heartbeat > before => {
                    let (last_seen_at, expected) = (live.last_heartbeat, Some(agent.revision));
                    let seen = StoredAgent { last_seen_at, revision: agent.revision + 1, ..agent };
                    let write = Write::Agent { agent: Box::new(seen), expected };
                    self.context.database.commit(Commit { writes: vec![write], ..Commit::default() }).await?;
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
