//! The author set of a task: who proposes, changes and submits it, and therefore never decides on it; and the lineage that an
//! author may declare.

use std::collections::BTreeMap;

use super::{Actor, Lineage, Result, Task, TaskState};
use crate::InvalidField;
use crate::people::{AuthorReason, AuthorSet, Sponsors, UserId};

/// An agent as it is registered.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RegisteredAgent {
    pub sponsor: Option<UserId>,
    /// The agent that instructs it.
    pub parent: Option<String>,
}

/// Registered agents, by id.
pub type RegisteredAgents = BTreeMap<String, RegisteredAgent>;

impl Lineage {
    /// The lineage of a task of this actor that asks for this one: the agent itself or an agent of the caller, its parent as
    /// registered, and the caller as sponsor. Anybody else whom it could name would lose the right to review the task.
    pub fn resolve(&self, actor: &Actor, agents: &RegisteredAgents) -> Result<Self, InvalidField> {
        let agent_id = self.agent_id.as_ref().or(actor.agent_id.as_ref());
        if let (Some(own), Some(named)) = (&actor.agent_id, agent_id)
            && own != named
        {
            return Err(InvalidField::at(
                "lineage.agent_id",
                format!("must be {own}: an agent names only itself"),
            ));
        }
        let registered = agent_id.and_then(|agent| agents.get(agent));
        if let Some(named) = agent_id
            && actor.agent_id.is_none()
            && !registered.is_some_and(|agent| agent.sponsor.is_some() && agent.sponsor == actor.user)
        {
            let detail = format!("must be an agent that you sponsor, not {named}");
            return Err(InvalidField::at("lineage.agent_id", detail));
        }
        if let Some(named) = self.sponsor_id.as_ref().filter(|named| Some(*named) != actor.user.as_ref()) {
            let detail = format!("must be you or left out, not {named}: you cannot name others as sponsors");
            return Err(InvalidField::at("lineage.sponsor_id", detail));
        }
        let parent = registered.and_then(|agent| agent.parent.as_ref());
        if let Some(named) = self.parent_agent_id.as_ref().filter(|named| Some(*named) != parent) {
            let detail = format!(
                "must be the parent_agent_id that the agent is registered with, not {named}; or leave it out"
            );
            return Err(InvalidField::at("lineage.parent_agent_id", detail));
        }
        let sponsor_id = if agent_id.is_some() { actor.user.clone() } else { self.sponsor_id.clone() };
        Ok(Self { agent_id: agent_id.cloned(), parent_agent_id: parent.cloned(), sponsor_id })
    }
}

impl Actor {
    /// The author set of what this actor proposes, without the sponsors that its lineage adds.
    pub fn author_set(&self) -> AuthorSet {
        let mut authors = AuthorSet::default();
        if let Some(user) = &self.user {
            let reason = if self.is_agent() { AuthorReason::SponsorsAgent } else { AuthorReason::Author };
            authors.add(user.clone(), reason);
        }
        if let Some(issuer) = &self.token_issuer {
            authors.add(issuer.clone(), AuthorReason::TokenIssuer);
        }
        authors
    }
}

impl Task {
    /// The author set once this actor has changed the task to this lineage. Earlier authors remain; only sponsors of a
    /// replaced lineage leave, and the lineage of a submitted task is fixed: naming one sponsor after the other would let the
    /// author choose who decides.
    pub fn author_set_after_edit(
        &self,
        lineage: &Lineage,
        sponsors: &Sponsors,
        actor: &Actor,
    ) -> Result<AuthorSet, InvalidField> {
        let mut authors = self.author_set.clone();
        if *lineage != self.metadata.lineage {
            if self.state != TaskState::Draft {
                return Err(InvalidField::at("lineage", "cannot be changed once the task was submitted"));
            }
            authors.remove_lineage();
        }
        let mut editors = self.authors_by(actor, AuthorReason::Editor);
        editors.add_lineage(lineage, sponsors);
        authors.merge(editors);
        Ok(authors)
    }

    /// The author set of an actor who does something else than create the task.
    fn authors_by(&self, actor: &Actor, reason: AuthorReason) -> AuthorSet {
        let mut authors = AuthorSet::default();
        if let Some(user) = actor.user.as_ref().filter(|user| !actor.is_agent() && **user != self.author_id) {
            authors.add(user.clone(), reason);
        }
        authors.merge(actor.author_set());
        authors
    }

    /// Checks that an actor may submit the task, and adds the actor to its authors. Call it before reviewers are chosen.
    pub fn prepare_submission(&mut self, actor: &Actor) -> Result {
        self.authorize_submit(actor)?;
        self.author_set.merge(self.authors_by(actor, AuthorReason::Submitter));
        self.record_agent(actor);
        Ok(())
    }

    /// Records that the agent of an actor, if one acts, has written or submitted the task, and the agent of its lineage.
    pub fn record_agent(&mut self, actor: &Actor) {
        self.by_agent.extend(actor.agent_id.clone());
        self.by_agent.extend(self.metadata.lineage.agent_id.clone());
    }

    /// Whether an agent wrote or submitted any of it.
    pub fn is_by_agent(&self) -> bool {
        !self.by_agent.is_empty()
    }

    /// The author set of a draft that this actor makes of this task: nobody who could not decide on this one decides on the
    /// draft.
    pub fn author_set_for_resubmission(&self, sponsors: &Sponsors, actor: &Actor) -> AuthorSet {
        let mut authors = actor.author_set();
        for user in self.author_set.iter() {
            let reason = AuthorReason::PredecessorAuthor { task_id: self.task_id.clone() };
            authors.add(user.clone(), reason);
        }
        authors.add_lineage(&self.metadata.lineage, sponsors);
        authors
    }
}
