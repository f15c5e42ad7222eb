//! Registering, changing and removing agents.

use ade_domain::agent::{AgentProfile, RemovedAgent};
use ade_domain::audit::{Principal, Trigger};
use ade_domain::capability::{ClaimRights, GrantRefusal, Granter};
use ade_domain::people::UserId;
use ade_domain::permission::Scope;
use ade_store::DatabaseError;
use ade_store::coordination::{AgentUpdate, AgentView, LockFilter};
use ade_store::database::{Commit, StoredAgent, StoredToken, Versioned, Write};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::acting::may_act_for;
use super::{AgentChange, AgentDetails, AgentService, merge};
use crate::error::require_valid;
use crate::events::AuditedAction;
use crate::idempotency::stored_response;
use crate::{Caller, Error, Outcome, Result};

/// How long an implicitly registered agent is kept without a heartbeat.
const IDLE_TTL_MS: u64 = 86_400_000;
/// Idle agents that are removed in one run.
const IDLE_BATCH_SIZE: u32 = 100;

/// A change of what an agent may claim, which waits for a second administrator.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct RightsProposal {
    before: ClaimRights,
    after: ClaimRights,
    sponsor: Option<UserId>,
}

fn granter(caller: &Caller) -> Granter {
    Granter { user: caller.user_id().cloned(), is_admin: caller.is_admin() }
}

#[expect(clippy::needless_pass_by_value, reason = "used as a function in map_err")]
fn refused(refusal: GrantRefusal) -> Error {
    Error::Forbidden(refusal.to_string())
}

/// What an audit entry says about changed rights; nothing if they are the same.
fn audit_details(before: &ClaimRights, after: &ClaimRights) -> Map<String, Value> {
    let missing_in = |rights: &ClaimRights, grants: &ClaimRights| -> Vec<Value> {
        let missing = grants.grants.iter().filter(|grant| !rights.grants.contains(grant));
        missing.map(|grant| json!({ "capability": grant.capability, "scope": grant.scope })).collect()
    };
    let (granted, revoked) = (missing_in(before, after), missing_in(after, before));
    let mut details = Map::new();
    for (name, list) in [("granted", granted), ("revoked", revoked)] {
        if !list.is_empty() {
            details.insert(name.to_owned(), list.into());
        }
    }
    if before.accepts != after.accepts {
        details.insert("accepts".to_owned(), json!(after.accepts));
    }
    details
}

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
            parent_agent_id: None,
            rights: ClaimRights::default(),
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
        let details = audit_details(&ClaimRights::default(), &agent.rights);
        let action =
            AuditedAction { details, ..AuditedAction::new("agent.create", &agent_id).with_revision(1) };
        let writes = vec![Write::Agent { agent: Box::new(agent), expected: None }];
        let commit = action.commit(writes, caller, self.context.now());
        match self.context.database.commit(commit).await {
            Err(DatabaseError::AlreadyExists { .. }) => Err(Error::AgentExists(agent_id)),
            committed => Ok(committed?),
        }
    }

    /// Registers an agent under a new id. The caller becomes its sponsor; an administrator can name another.
    pub async fn register(
        &self,
        id: &str,
        change: AgentChange,
        sponsor: Option<&str>,
        caller: &Caller,
    ) -> Result<AgentDetails> {
        let (agent, existing) = self.checked_agent(id, change, sponsor, caller).await?;
        match existing {
            Some(existing) => self.replace(agent.clone(), &existing, "agent.create", caller).await?,
            None => self.insert(agent.clone(), caller).await?,
        }
        let max_tasks = agent.max_tasks;
        let update = AgentUpdate { profile: Some(super::profile(agent.clone())), max_tasks, draining: None };
        let view = self.put(id, update, true).await?;
        merge(Some(agent), Some(view)).ok_or_else(|| Error::AgentNotFound(id.to_owned()))
    }

    /// What registering an agent would make of it; refused for the same reasons. Nothing changes.
    pub async fn check_registration(
        &self,
        id: &str,
        change: AgentChange,
        sponsor: Option<&str>,
        caller: &Caller,
    ) -> Result<AgentDetails> {
        let (agent, _) = self.checked_agent(id, change, sponsor, caller).await?;
        merge(Some(agent), None).ok_or_else(|| Error::AgentNotFound(id.to_owned()))
    }

    /// The agent that a request would register, and the implicitly registered one that it would replace.
    async fn checked_agent(
        &self,
        id: &str,
        change: AgentChange,
        sponsor: Option<&str>,
        caller: &Caller,
    ) -> Result<(StoredAgent, Option<StoredAgent>)> {
        caller.require_scope(Scope::Lock)?;
        self.require_may_create(caller, id).await?;
        require_valid(change.rights.validate())?;
        let sponsor_id = self.choose_sponsor(sponsor, caller).await?;
        let AgentChange { profile, max_tasks, draining: _, parent_agent_id, rights } = change;
        let parent_agent_id = parent_agent_id.flatten();
        self.check_parent(id, parent_agent_id.as_deref(), caller).await?;
        let rights = ClaimRights::default().changed(&rights, &granter(caller), self.context.now());
        let rights = rights.map_err(refused)?;
        if rights.widens(&ClaimRights::default()) && self.context.needs_second_admin(caller).await? {
            let detail = format!(
                "need a second administrator: register the agent without them, and grant them afterwards with ade agent grant {id}"
            );
            return Err(Error::invalid("capabilities", detail));
        }
        let mut agent = self.new_agent(id, sponsor_id, &profile.unwrap_or_default(), max_tasks, false);
        agent.parent_agent_id = parent_agent_id;
        agent.rights = rights;
        let existing = self.context.database.agent(id).await?;
        if let Some(existing) = &existing {
            // Only an implicitly registered agent can be registered again.
            if !existing.is_auto_registered || !may_act_for(caller, id, existing.sponsor_id.as_ref()) {
                return Err(Error::AgentExists(id.to_owned()));
            }
            agent.revision = existing.revision + 1;
        }
        Ok((agent, existing))
    }

    /// A parent is an agent that the caller sponsors, or any if an administrator registers it: the sponsor of a parent does not
    /// review what the agent proposes, so naming one is not up to everybody.
    async fn check_parent(&self, id: &str, parent: Option<&str>, caller: &Caller) -> Result<()> {
        let Some(parent) = parent else { return Ok(()) };
        let invalid = |detail: String| Err(Error::invalid("parent_agent_id", detail));
        if parent == id {
            return invalid("must be another agent".to_owned());
        }
        match self.context.database.agent(parent).await? {
            None => invalid(format!("must be a registered agent, not {parent}")),
            Some(agent) if !may_act_for(caller, parent, agent.sponsor_id.as_ref()) => {
                invalid(format!("must be an agent that you sponsor; an administrator can set {parent}"))
            }
            Some(_) => Ok(()),
        }
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

    async fn replace(
        &self,
        agent: StoredAgent,
        before: &StoredAgent,
        action: &str,
        caller: &Caller,
    ) -> Result<()> {
        let (agent_id, details) = (agent.agent_id.clone(), audit_details(&before.rights, &agent.rights));
        let action =
            AuditedAction { details, ..AuditedAction::new(action, &agent_id).with_revision(agent.revision) };
        let writes = vec![Write::Agent { agent: Box::new(agent), expected: Some(before.revision) }];
        let mut commit = action.commit(writes, caller, self.context.now());
        commit.response = stored_response(caller, |_| Outcome::Done)?;
        self.commit(commit).await
    }

    async fn propose_rights(
        &self,
        agent: &StoredAgent,
        after: ClaimRights,
        caller: &Caller,
    ) -> Result<Error> {
        let mut details = audit_details(&agent.rights, &after);
        details.insert("sponsor_id".to_owned(), json!(agent.sponsor_id));
        let action = AuditedAction { details, ..AuditedAction::new("agent.update", &agent.agent_id) };
        let request =
            RightsProposal { before: agent.rights.clone(), after, sponsor: agent.sponsor_id.clone() };
        self.context.propose(&action, None, json!(request), caller).await
    }

    /// Makes a confirmed change of what an agent may claim.
    pub(crate) async fn replace_rights(
        &self,
        id: &str,
        proposal: &RightsProposal,
        caller: &Caller,
    ) -> Result<()> {
        let not_found = || Error::AgentNotFound(id.to_owned());
        let before = self.context.database.agent(id).await?.ok_or_else(not_found)?;
        if before.rights != proposal.before || before.sponsor_id != proposal.sponsor {
            return Err(Error::ChangeOutdated);
        }
        let (rights, revision) = (proposal.after.clone(), before.revision + 1);
        let after = StoredAgent { rights, revision, ..before.clone() };
        let capabilities = after.rights.capabilities();
        self.replace(after, &before, "agent.update", caller).await?;
        // Coordination only shows them; the database decides about claims.
        let Some(live) = self.live(id).await? else { return Ok(()) };
        let profile = AgentProfile { capabilities, ..live.profile };
        let update = AgentUpdate { profile: Some(profile), max_tasks: None, draining: None };
        self.put(id, update, false).await.map(drop)
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

    /// Changes an agent: by its sponsor or an administrator. The agent itself changes only whether it takes new tasks.
    pub async fn update(
        &self,
        id: &str,
        change: impl FnOnce(AgentProfile) -> AgentChange,
        caller: &Caller,
    ) -> Result<AgentDetails> {
        caller.require_scope(Scope::Lock)?;
        let agent = self.load_for(id, caller).await?;
        let AgentChange { mut profile, max_tasks, draining, parent_agent_id, rights } =
            change(agent.view.profile.clone());
        require_valid(rights.validate())?;
        let changes_rights = !rights.is_empty() || parent_agent_id.is_some();
        if caller.agent_id.is_some() && (profile.is_some() || max_tasks.is_some() || changes_rights) {
            let detail =
                "an agent changes only its heartbeat and its status (draining); ask its sponsor for the rest";
            return Err(Error::forbidden(detail));
        }
        if changes_rights && caller.uses_foreign_credentials() {
            let detail = "a token or password that somebody else created cannot grant capabilities";
            return Err(Error::forbidden(detail));
        }
        let stored = self.context.database.agent(id).await?;
        if changes_rights && stored.is_none() {
            let detail = format!(
                "cannot be granted: agent {id} is not registered. Register it with POST /api/v1/agents"
            );
            return Err(Error::invalid("capabilities", detail));
        }
        let mut details = AgentDetails {
            sponsor_id: agent.sponsor_id,
            parent_agent_id: None,
            rights: agent.rights,
            revision: agent.revision,
            view: agent.view,
        };
        if let Some(before) = stored {
            caller.check_revision(before.revision)?;
            if let Some(parent) = &parent_agent_id {
                self.check_parent(id, parent.as_deref(), caller).await?;
            }
            let changed = before.rights.changed(&rights, &granter(caller), self.context.now());
            let named = profile.as_ref().map(|profile| {
                self.new_agent(id, before.sponsor_id.clone(), profile, None, before.is_auto_registered)
            });
            let after = StoredAgent {
                parent_agent_id: parent_agent_id.unwrap_or_else(|| before.parent_agent_id.clone()),
                rights: changed.map_err(refused)?,
                max_tasks: max_tasks.or(before.max_tasks),
                draining: draining.unwrap_or(before.draining),
                revision: before.revision + 1,
                ..named.unwrap_or_else(|| before.clone())
            };
            if after.rights.widens(&before.rights) && self.context.needs_second_admin(caller).await? {
                let other =
                    StoredAgent { rights: before.rights.clone(), revision: before.revision, ..after.clone() };
                if other != before {
                    let detail =
                        "need a second administrator, so they must be changed alone, without other fields";
                    return Err(Error::invalid("capabilities", detail));
                }
                return Err(self.propose_rights(&before, after.rights, caller).await?);
            }
            details.parent_agent_id.clone_from(&after.parent_agent_id);
            details.rights = after.rights.clone();
            details.revision = Some(after.revision);
            self.replace(after, &before, "agent.update", caller).await?;
        }
        if !rights.is_empty() || profile.is_some() {
            let known = profile.get_or_insert(details.view.profile);
            known.capabilities = details.rights.capabilities();
        }
        let update = AgentUpdate { profile, max_tasks, draining };
        details.view = self.put(id, update, false).await?;
        details.view.profile.capabilities = details.rights.capabilities();
        Ok(details)
    }

    /// Removes an agent that holds no locks, and revokes its tokens.
    pub async fn remove(&self, id: &str, caller: &Caller) -> Result<()> {
        caller.require_scope(Scope::Lock)?;
        self.load_for(id, caller).await?;
        if caller.agent_id.is_some() {
            return Err(Error::forbidden("an agent cannot remove itself; ask its sponsor"));
        }
        let filter = LockFilter { agent: Some(id.to_owned()), ..Default::default() };
        if !self.context.coordination.list_locks(filter, None, 1).await?.is_empty() {
            return Err(Error::AgentBusy(id.to_owned()));
        }
        if let Some(stored) = self.context.database.agent(id).await? {
            self.delete(&stored, caller.into()).await?;
        }
        self.context.coordination.remove_agent(id.to_owned()).await?;
        Ok(())
    }

    async fn delete(&self, agent: &StoredAgent, by: Principal) -> Result<()> {
        let (now, agent_id) = (self.context.now(), agent.agent_id.clone());
        let tokens = self.context.database.agent_tokens(&agent_id).await?.into_iter();
        let mut writes: Vec<Write> =
            tokens.map(|token| Write::Token(StoredToken { revoked_at: Some(now), ..token })).collect();
        writes.push(Write::DeleteAgent { agent_id: agent_id.clone(), expected: agent.revision });
        // A name that anybody may use without registering it stays free.
        if let Some(sponsor) = agent.sponsor_id.clone().filter(|_| !agent.is_auto_registered) {
            let before = self.context.database.document::<RemovedAgent>(&agent_id).await?;
            let expected = before.map(|before| before.revision);
            let (revision, value) = (expected.unwrap_or(0) + 1, RemovedAgent { sponsor });
            writes.push(Write::document(&Versioned { id: agent_id.clone(), revision, value }, expected));
        }
        self.commit(AuditedAction::new("agent.delete", &agent_id).commit_as(by, writes, now)).await
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
                    let job = Trigger::Job("agent_liveness".to_owned());
                    self.delete(&agent, self.context.service("jobs", job)).await?;
                    removed += 1;
                }
            }
        }
        Ok(removed)
    }
}
