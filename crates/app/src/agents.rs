//! Agents: registered by whoever answers for them, known in the record; alive or not, known by coordination. Who acts for
//! whom is decided here and nowhere else.

use std::collections::BTreeMap;
use std::sync::Arc;

use ade_domain::Clock;
use ade_domain::agent::{Profile, Status};
use ade_domain::people::UserId;
use ade_domain::permission::{ActorRole, Scope};
use ade_store::coordination::{AgentUpdate, AgentView, Filter};
use ade_store::database::{Commit, InboxMessage, StoredAgent, StoredToken, Write};
use ade_store::{Coordination, CoordinationError, Database, DatabaseError};

use crate::acts::Act;
use crate::{Caller, Error};

/// Agents that are known only because somebody used their names, for each sponsor.
const MOST_BY_NAME: u64 = 100;
/// So long such an agent stays without being heard of.
const IDLE_MS: u64 = 86_400_000;
/// Agents that are removed at once.
const BATCH: u32 = 100;
/// As whom the bootstrap token holds locks, if it names nobody.
const BOOTSTRAP: &str = "admin";
/// How many tasks at once, unless said.
const USUAL_TASKS: u32 = 5;

/// Use cases around agents.
#[derive(Clone)]
pub struct AgentService {
    coordination: Arc<dyn Coordination>,
    record: Database,
    clock: Arc<dyn Clock>,
}

/// An agent: who answers for it, and how it is doing.
#[derive(Debug, Clone)]
pub struct Known {
    /// Who answers for it; nobody for agents of the bootstrap token.
    pub sponsor_id: Option<UserId>,
    /// How it is doing.
    pub view: AgentView,
}

/// Whether an agent takes one more task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Room {
    /// It does.
    Free,
    /// It does as much as it may.
    Full,
    /// It takes nothing new.
    Draining,
}

/// Why an agent cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// Nobody is known by this id.
    #[error("agent {0} is not known")]
    Unknown(String),
    /// The id is taken.
    #[error("agent {0} exists already; change it with PATCH /api/v1/agents/{0}")]
    Taken(String),
    /// It holds locks, or waits for some.
    #[error("agent {0} still holds or waits for locks; release or break them first")]
    Busy(String),
    /// The caller may not, or the record did not do it.
    #[error(transparent)]
    Refused(#[from] Error),
    /// Coordination does not answer.
    #[error(transparent)]
    Unavailable(#[from] CoordinationError),
}

impl From<DatabaseError> for AgentError {
    fn from(error: DatabaseError) -> Self {
        Self::Refused(error.into())
    }
}

#[expect(clippy::needless_pass_by_value, reason = "it is what errors are mapped with")]
fn away(error: CoordinationError) -> Error {
    Error::Record(DatabaseError::Unavailable(error.to_string()))
}

fn forbidden(detail: impl Into<String>) -> Error {
    Error::Forbidden(detail.into())
}

/// Whoever answers for an agent, or administers, or is the agent itself.
fn may_act_for(caller: &Caller, agent_id: &str, sponsor: Option<&UserId>) -> bool {
    match (&caller.agent_id, &caller.user) {
        (Some(own), _) => own == agent_id,
        (None, None) => true,
        (None, Some(user)) => sponsor == Some(&user.user_id) || caller.administers(),
    }
}

impl AgentService {
    /// Agents of a backend and a record.
    #[must_use]
    pub fn new(coordination: Arc<dyn Coordination>, record: Database, clock: Arc<dyn Clock>) -> Self {
        Self { coordination, record, clock }
    }

    /// As whom the caller holds locks and takes work: an agent's token acts as that agent only; a person as itself, or as an
    /// agent that it answers for; an administrator as any. A name that nobody has becomes an agent of the caller.
    pub async fn acts_as(&self, caller: &Caller, named: Option<&str>) -> Result<String, Error> {
        caller.require(Scope::Lock)?;
        let Some(user) = &caller.user else { return Ok(named.unwrap_or(BOOTSTRAP).to_owned()) };
        if let Some(own) = &caller.agent_id {
            return match named {
                Some(other) if other != own => {
                    Err(forbidden(format!("the token acts as the agent {own} only, and not as {other}")))
                }
                _ => Ok(own.clone()),
            };
        }
        let Some(name) = named.filter(|name| *name != user.user_id.as_str()) else {
            return Ok(user.user_id.to_string());
        };
        match self.record.agent(name).await? {
            Some(agent) if may_act_for(caller, name, agent.sponsor_id.as_ref()) => {}
            Some(_) => return Err(forbidden(format!("somebody else answers for the agent {name}"))),
            None => self.know(name, user.user_id.clone(), caller).await?,
        }
        Ok(name.to_owned())
    }

    /// Whether the caller acts for an agent that is there; nobody becomes one by this.
    pub async fn acts_for(&self, caller: &Caller, agent_id: &str) -> Result<bool, Error> {
        caller.require(Scope::Lock)?;
        let own = caller.agent_id.is_none()
            && caller.user.as_ref().is_some_and(|user| user.user_id.as_str() == agent_id);
        let sponsor = self.record.agent(agent_id).await?.and_then(|agent| agent.sponsor_id);
        Ok(own || may_act_for(caller, agent_id, sponsor.as_ref()))
    }

    /// An agent that is known from now on because somebody used its name.
    async fn know(&self, name: &str, sponsor: UserId, caller: &Caller) -> Result<(), Error> {
        self.may_create(caller, name).await?;
        if self.record.agents_of(&sponsor).await? >= MOST_BY_NAME {
            let detail = format!(
                "{sponsor} answers for {MOST_BY_NAME} agents already; register this one, or remove some"
            );
            return Err(forbidden(detail));
        }
        let profile = Profile { name: name.to_owned(), ..Profile::default() };
        let agent = self.stored(name, Some(sponsor), &profile, None, true);
        match self.add(agent, caller).await {
            // Somebody was faster: whether it may be used is looked at with the next request.
            Err(Error::Exists(_)) => Err(Error::Overtaken),
            done => done,
        }
    }

    async fn may_create(&self, caller: &Caller, name: &str) -> Result<(), Error> {
        let parts = caller.actor().parts;
        if caller.agent_id.is_some()
            || !(parts.contains(&ActorRole::Author) || parts.contains(&ActorRole::Admin))
        {
            return Err(forbidden("agents are made by authors and administrators"));
        }
        if caller.is_borrowed() {
            return Err(forbidden("agents are not made with what somebody else made"));
        }
        if name.contains('\0') {
            return Err(Error::invalid("/agent_id", "must not contain the character NUL"));
        }
        // Known without a row: the bootstrap token uses this name.
        let in_use = self.coordination.agent(name.to_owned()).await.map_err(away)?.is_some();
        if in_use && !caller.administers() && self.record.agent(name).await?.is_none() {
            return Err(forbidden(format!("the name {name} is in use; an administrator may register it")));
        }
        if self.record.user(&UserId::new(name)).await?.is_some() {
            return Err(forbidden(format!("{name} is a person, and no agent can have its name")));
        }
        Ok(())
    }

    fn stored(
        &self,
        agent_id: &str,
        sponsor_id: Option<UserId>,
        profile: &Profile,
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
            // Only what is JSON is stored.
            config: serde_json::from_str(&profile.config).unwrap_or_default(),
            by_name,
            seen_at: self.clock.now(),
            revision: 1,
        }
    }

    async fn add(&self, agent: StoredAgent, caller: &Caller) -> Result<(), Error> {
        let mut commit = Commit::default();
        let object_id = agent.agent_id.clone();
        commit.writes.push(Write::Agent { agent: Box::new(agent), expected: None });
        let act = Act { action: "agent.create", object_id: &object_id, revision: Some(1), ..Act::default() };
        act.add(&mut commit, Some(caller), self.clock.now());
        match self.record.commit(commit).await {
            Err(DatabaseError::Exists { .. }) => Err(Error::Exists(format!("agent {object_id}"))),
            done => Ok(done?),
        }
    }

    /// Registers an agent under a new id. Whoever does so answers for it; an administrator may name somebody else.
    pub async fn register(
        &self,
        id: &str,
        profile: Profile,
        max_tasks: Option<u32>,
        sponsor: Option<&str>,
        caller: &Caller,
    ) -> Result<Known, AgentError> {
        caller.require(Scope::Lock)?;
        self.may_create(caller, id).await?;
        let sponsor_id = self.sponsor(sponsor, caller).await?;
        let agent = self.stored(id, sponsor_id.clone(), &profile, max_tasks, false);
        if let Some(known) = self.record.agent(id).await? {
            // Known only by its name, until now.
            if !known.by_name || !may_act_for(caller, id, known.sponsor_id.as_ref()) {
                return Err(AgentError::Taken(id.to_owned()));
            }
            let revision = known.revision + 1;
            let agent = StoredAgent { revision, ..agent };
            self.replace(agent, known.revision, "agent.create", caller).await?;
        } else {
            match self.add(agent, caller).await {
                Err(Error::Exists(_)) => return Err(AgentError::Taken(id.to_owned())),
                done => done?,
            }
        }
        let update = AgentUpdate { profile: Some(profile), max_tasks, draining: None };
        let view = match self.coordination.put(id.to_owned(), update.clone(), true).await? {
            Some(view) => view,
            None => self.put(id, update).await?,
        };
        Ok(Known { sponsor_id, view })
    }

    async fn sponsor(&self, named: Option<&str>, caller: &Caller) -> Result<Option<UserId>, Error> {
        let own = caller.user.as_ref().map(|user| user.user_id.clone());
        let Some(named) = named.map(UserId::new) else { return Ok(own) };
        if own.as_ref() != Some(&named) && !caller.administers() {
            return Err(forbidden("only an administrator names somebody else as sponsor"));
        }
        let known = self.record.user(&named).await?;
        if known.is_none_or(|known| !known.user.active) {
            return Err(Error::invalid("/sponsor_id", "is no active user"));
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
        Act { action, object_id: &object_id, revision, ..Act::default() }.add(
            &mut commit,
            Some(caller),
            self.clock.now(),
        );
        match self.record.commit(commit).await {
            Err(DatabaseError::Conflict { .. }) => Err(Error::Overtaken),
            done => Ok(done?),
        }
    }

    async fn put(&self, id: &str, update: AgentUpdate) -> Result<AgentView, AgentError> {
        let changed = self.coordination.put(id.to_owned(), update, false).await?;
        changed.ok_or_else(|| AgentError::Unknown(id.to_owned()))
    }

    /// Changes what is known of an agent: by its sponsor, an administrator, or itself.
    pub async fn update(
        &self,
        id: &str,
        change: impl FnOnce(Profile) -> AgentUpdate,
        caller: &Caller,
    ) -> Result<Known, AgentError> {
        caller.require(Scope::Lock)?;
        let known = self.known(id).await?;
        self.permit(&known, caller)?;
        let update = change(known.view.profile);
        if let Some(stored) = self.record.agent(id).await? {
            let (max_tasks, sponsor) = (update.max_tasks.or(stored.max_tasks), stored.sponsor_id.clone());
            let after = match &update.profile {
                Some(profile) => self.stored(id, sponsor, profile, max_tasks, stored.by_name),
                None => StoredAgent { max_tasks, ..stored.clone() },
            };
            let draining = update.draining.unwrap_or(stored.draining);
            let after = StoredAgent { revision: stored.revision + 1, draining, ..after };
            self.replace(after, stored.revision, "agent.update", caller).await?;
        }
        let view = match self.coordination.put(id.to_owned(), update.clone(), false).await? {
            Some(view) => view,
            // In the record alone: coordination has forgotten it.
            None => {
                let made = self.coordination.put(id.to_owned(), update, true).await?;
                made.ok_or_else(|| AgentError::Unknown(id.to_owned()))?
            }
        };
        Ok(Known { sponsor_id: known.sponsor_id, view })
    }

    /// Whether an agent has room for one more task, as far as can be told without taking one. How much it may do is known in the
    /// record: what coordination has forgotten is told it again first.
    pub(crate) async fn room(&self, id: &str) -> Result<Room, Error> {
        let live = self.coordination.agent(id.to_owned()).await.map_err(away)?;
        let stored = self.record.agent(id).await?;
        let draining = stored.as_ref().is_some_and(|stored| stored.draining);
        let live = match stored.as_ref().and_then(|stored| forgotten(stored, live.as_ref())) {
            Some(update) => {
                let is_new = live.is_none();
                self.coordination.put(id.to_owned(), update, is_new).await.map_err(away)?.or(live)
            }
            None => live,
        };
        Ok(match live {
            _ if draining => Room::Draining,
            Some(live) if live.status == Status::Draining => Room::Draining,
            Some(live) if live.active_tasks >= live.max_tasks as usize => Room::Full,
            _ => Room::Free,
        })
    }

    fn permit(&self, known: &Known, caller: &Caller) -> Result<(), Error> {
        let id = &known.view.agent_id;
        if may_act_for(caller, id, known.sponsor_id.as_ref()) {
            return Ok(());
        }
        Err(forbidden(format!("somebody else answers for the agent {id}")))
    }

    async fn known(&self, id: &str) -> Result<Known, AgentError> {
        let (stored, live) = (self.record.agent(id).await?, self.coordination.agent(id.to_owned()).await?);
        let unknown = || AgentError::Unknown(id.to_owned());
        merge(stored, live).ok_or_else(unknown)
    }

    /// One agent.
    pub async fn get(&self, id: &str, caller: &Caller) -> Result<Known, AgentError> {
        caller.require(Scope::Read)?;
        self.known(id).await
    }

    /// Agents by id: those of the record, and those that are known to coordination alone.
    pub async fn list(
        &self,
        after: Option<String>,
        limit: usize,
        caller: &Caller,
    ) -> Result<Vec<Known>, AgentError> {
        caller.require(Scope::Read)?;
        let stored = self.record.agents(after.as_deref(), u32::try_from(limit).unwrap_or(u32::MAX)).await?;
        let live = self.coordination.agents(after, limit).await?;
        let mut all: BTreeMap<String, (Option<StoredAgent>, Option<AgentView>)> = BTreeMap::new();
        for agent in stored {
            let id = agent.agent_id.clone();
            all.entry(id).or_default().0 = Some(agent);
        }
        for view in live {
            let id = view.agent_id.clone();
            all.entry(id).or_default().1 = Some(view);
        }
        let known = all.into_values().filter_map(|(stored, live)| merge(stored, live));
        Ok(known.take(limit).collect())
    }

    /// Heartbeat of an agent.
    pub async fn heartbeat(&self, id: &str, caller: &Caller) -> Result<Known, AgentError> {
        caller.require(Scope::Lock)?;
        let known = self.known(id).await?;
        self.permit(&known, caller)?;
        self.coordination.heard(id.to_owned()).await?;
        self.known(id).await
    }

    /// Removes an agent that holds nothing; its tokens end with it.
    pub async fn remove(&self, id: &str, caller: &Caller) -> Result<(), AgentError> {
        caller.require(Scope::Lock)?;
        let known = self.known(id).await?;
        self.permit(&known, caller)?;
        let filter = Filter { agent: Some(id.to_owned()), ..Default::default() };
        if !self.coordination.list(filter, None, 1).await?.is_empty() {
            return Err(AgentError::Busy(id.to_owned()));
        }
        if let Some(stored) = self.record.agent(id).await? {
            self.forget(&stored, Some(caller)).await?;
        }
        self.coordination.remove(id.to_owned()).await?;
        Ok(())
    }

    async fn forget(&self, agent: &StoredAgent, caller: Option<&Caller>) -> Result<(), Error> {
        let (now, agent_id) = (self.clock.now(), agent.agent_id.clone());
        let mut commit = Commit::default();
        for token in self.record.tokens_of_agent(&agent_id).await? {
            commit.writes.push(Write::Token(StoredToken { revoked_at: Some(now), ..token }));
        }
        commit.writes.push(Write::DeleteAgent { agent_id: agent_id.clone(), expected: agent.revision });
        Act { action: "agent.delete", object_id: &agent_id, ..Act::default() }.add(&mut commit, caller, now);
        match self.record.commit(commit).await {
            Err(DatabaseError::Conflict { .. }) => Err(Error::Overtaken),
            done => Ok(done?),
        }
    }

    /// Removes agents that are known by name alone and were not heard of for a day; how many.
    pub async fn forget_idle(&self) -> Result<usize, AgentError> {
        let now = self.clock.now();
        let before = ade_domain::Moment::from_micros(now.micros().saturating_sub(IDLE_MS * 1_000));
        let mut forgotten = 0;
        for agent in self.record.idle_agents(before, BATCH).await? {
            match self.coordination.agent(agent.agent_id.clone()).await? {
                Some(live) if live.last_heartbeat > before => {
                    let seen = StoredAgent {
                        seen_at: live.last_heartbeat,
                        revision: agent.revision + 1,
                        ..agent.clone()
                    };
                    let write = Write::Agent { agent: Box::new(seen), expected: Some(agent.revision) };
                    self.record.commit(Commit { writes: vec![write], ..Commit::default() }).await?;
                }
                _ => {
                    self.forget(&agent, None).await?;
                    forgotten += 1;
                }
            }
        }
        Ok(forgotten)
    }

    /// Who answers for an agent, and must do so before it has tokens: for its sponsor or an administrator.
    pub async fn sponsor_of(&self, id: &str, caller: &Caller) -> Result<UserId, AgentError> {
        let known = self.known(id).await?;
        if caller.agent_id.is_some() {
            return Err(forbidden("agents make no tokens").into());
        }
        self.permit(&known, caller)?;
        let none =
            || forbidden(format!("nobody answers for the agent {id}: register it with a sponsor_id first"));
        Ok(known.sponsor_id.ok_or_else(none)?)
    }

    /// What an agent was told, in order: for itself, its sponsor, or an administrator.
    pub async fn inbox(
        &self,
        id: &str,
        after: Option<&str>,
        limit: u32,
        caller: &Caller,
    ) -> Result<Vec<InboxMessage>, AgentError> {
        caller.require(Scope::Read)?;
        let known = self.known(id).await?;
        self.permit(&known, caller)?;
        Ok(self.record.inbox(id, after, limit).await?)
    }
}

/// What the record knows of an agent and coordination does not, if anything.
fn forgotten(stored: &StoredAgent, live: Option<&AgentView>) -> Option<AgentUpdate> {
    let max_tasks = stored.max_tasks.filter(|most| live.is_none_or(|live| live.max_tasks != *most));
    let draining = stored.draining && live.is_none_or(|live| live.status != Status::Draining);
    let profile = live.is_none().then(|| profile(stored.clone()));
    let is_known = profile.is_none() && max_tasks.is_none() && !draining;
    (!is_known).then(|| AgentUpdate { profile, max_tasks, draining: draining.then_some(true) })
}

fn profile(stored: StoredAgent) -> Profile {
    Profile {
        name: stored.name,
        model: stored.model,
        version: stored.version,
        capabilities: stored.capabilities,
        config: serde_json::Value::Object(stored.config).to_string(),
    }
}

/// What is known in both places. Whoever is in the record alone is not alive.
fn merge(stored: Option<StoredAgent>, live: Option<AgentView>) -> Option<Known> {
    let sponsor_id = stored.as_ref().and_then(|stored| stored.sponsor_id.clone());
    let view = match (live, stored) {
        (Some(view), _) => view,
        (None, Some(stored)) => AgentView {
            agent_id: stored.agent_id.clone(),
            max_tasks: stored.max_tasks.unwrap_or(USUAL_TASKS),
            active_tasks: 0,
            queued_tasks: 0,
            status: Status::Offline,
            last_heartbeat: stored.seen_at,
            profile: profile(stored),
        },
        (None, None) => return None,
    };
    Some(Known { sponsor_id, view })
}

impl std::fmt::Debug for AgentService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AgentService").finish_non_exhaustive()
    }
}
