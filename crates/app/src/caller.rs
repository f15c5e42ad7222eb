//! Who calls, and on which conditions: a person by session or token, or an agent for its sponsor. What it may do follows from
//! this and nothing else.

use std::collections::BTreeSet;

use ade_domain::Moment;
use ade_domain::audit::AuditActor;
use ade_domain::people::{ADMIN, AUDITOR, User, UserId};
use ade_domain::permission::{ActorRole, Scope, actor_roles};
use ade_domain::task::Actor;
use ade_domain::task::TaskCommand;
use ade_store::database::StoredTask;

use crate::{Error, IdempotentRequest};

/// Whoever calls, as the edge has recognised it.
#[derive(Debug, Clone)]
pub struct Caller {
    /// The person; nobody for the bootstrap token.
    pub user: Option<User>,
    /// The agent, if it is one: then the person is its sponsor.
    pub agent_id: Option<String>,
    /// What its token is good for; everything for a session.
    pub scopes: BTreeSet<Scope>,
    /// Who made its token.
    pub token_made_by: Option<UserId>,
    /// What the audit log says about it.
    pub who: AuditActor,
    /// Only if what is changed has this revision.
    pub if_match: Option<u64>,
    /// When its token ends, if it acts with one.
    pub ends_at: Option<Moment>,
    /// The request may be repeated: what it is answered is kept in the transaction of what it changes.
    pub keep: Option<IdempotentRequest>,
}

impl Caller {
    /// Refuses whoever's token is not good for something. Roles permit, scopes limit: both are asked.
    pub fn require(&self, scope: Scope) -> Result<(), Error> {
        if self.scopes.contains(&scope) { Ok(()) } else { Err(Error::Scope(scope)) }
    }

    /// The same for what something that is asked of a task needs.
    pub(crate) fn require_for(&self, verb: TaskCommand) -> Result<(), Error> {
        let scopes: &[Scope] = match verb {
            TaskCommand::Comment if self.scopes.contains(&Scope::Decide) => &[],
            TaskCommand::Modify
            | TaskCommand::Delete
            | TaskCommand::Submit
            | TaskCommand::Resubmit
            | TaskCommand::Cancel
            | TaskCommand::Comment => &[Scope::Propose],
            TaskCommand::Approve | TaskCommand::Reject | TaskCommand::Revoke => &[Scope::Decide],
            TaskCommand::Override | TaskCommand::ConfirmOverride | TaskCommand::ForceApply => {
                &[Scope::Decide, Scope::Admin]
            }
            TaskCommand::Stop | TaskCommand::RollBack => &[Scope::Admin],
            TaskCommand::Assign
            | TaskCommand::GoStale
            | TaskCommand::Expire
            | TaskCommand::BeginApply
            | TaskCommand::Complete
            | TaskCommand::Fail
            | TaskCommand::Retry => &[],
        };
        scopes.iter().try_for_each(|scope| self.require(*scope))
    }

    /// What it may ask of a task now.
    #[must_use]
    pub fn allowed(&self, task: &StoredTask, now: Moment) -> Vec<TaskCommand> {
        let open = task.open_to(&self.actor(), now).into_iter();
        open.filter(|verb| self.require_for(*verb).is_ok()).collect()
    }

    /// In which parts it acts. An agent acts as author for its sponsor, whatever roles the sponsor has.
    #[must_use]
    pub fn actor(&self) -> Actor {
        let user = self.user.as_ref();
        let parts = match (user, &self.agent_id) {
            (Some(_), Some(_)) => vec![ActorRole::Author],
            (Some(user), None) => actor_roles(user),
            // The bootstrap token administers, and counts as nobody: it decides nothing.
            (None, _) => vec![ActorRole::Admin],
        };
        let token_made_by = self.token_made_by.clone();
        Actor {
            user: user.map(|user| user.user_id.clone()),
            parts,
            token_made_by,
            by_agent: self.agent_id.is_some(),
            administers: self.scopes.contains(&Scope::Admin),
        }
    }

    /// Whether it may look at a task: its authors, its reviewers, administrators, auditors.
    #[must_use]
    pub fn may_see(&self, task: &StoredTask) -> bool {
        self.sees_all() || task.is_participant(&self.actor())
    }

    /// Whether it sees everything by its role: administrators, auditors, and the bootstrap token.
    #[must_use]
    pub fn sees_all(&self) -> bool {
        self.user
            .as_ref()
            .is_none_or(|user| self.agent_id.is_none() && (user.has(ADMIN) || user.has(AUDITOR)))
    }

    /// Whether it has the role and a token for what administrators do.
    #[must_use]
    pub fn administers(&self) -> bool {
        let actor = self.actor();
        actor.administers && actor.parts.contains(&ActorRole::Admin)
    }

    /// Whether somebody else made what it acts with: then it makes nothing that would outlive or hide that.
    #[must_use]
    pub fn is_borrowed(&self) -> bool {
        let own = self.user.as_ref().map(|user| &user.user_id);
        self.token_made_by.as_ref().is_some_and(|maker| Some(maker) != own)
    }
}
