//! The authenticated caller: a person by session or token, or an agent acting for its sponsor. All permissions are derived
//! from it and from nothing else.

use std::collections::BTreeSet;

use ade_domain::Moment;
use ade_domain::audit::AuditActor;
use ade_domain::people::{ADMIN, AUDITOR, User, UserId};
use ade_domain::permission::{ActorRole, Scope, actor_roles};
use ade_domain::task::Actor;
use ade_domain::task::TaskCommand;
use ade_store::database::StoredTask;

use crate::{Error, Result};

#[derive(Debug, Clone)]
pub struct Caller {
    /// `None` for the bootstrap token.
    pub user: Option<User>,
    /// Set if the caller is an agent; `user` is then its sponsor.
    pub agent_id: Option<String>,
    /// The scopes of the token; a session has all of them.
    pub scopes: BTreeSet<Scope>,
    pub token_created_by: Option<UserId>,
    /// How audit entries name the caller.
    pub audit_actor: AuditActor,
    /// The revision in `If-Match`: the change applies to this revision only.
    pub if_match: Option<u64>,
    /// When the caller's token expires, if it uses one.
    pub token_expires_at: Option<Moment>,
    /// Set if the request has an idempotency key: its outcome is stored in the transaction of its changes.
    pub idempotent_request: Option<IdempotentRequest>,
}

/// A request with an idempotency key.
#[derive(Debug, Clone)]
pub struct IdempotentRequest {
    /// Whose key it is: keys of different owners are independent.
    pub owner: String,
    pub key: String,
    /// A digest of the request: the same key with another digest is an error.
    pub request_digest: String,
    /// The response shows the commands that are allowed at this time.
    pub received_at: Moment,
}

impl Caller {
    /// A caller whose credentials nobody else created, and which do not expire.
    #[must_use]
    pub const fn new(user: Option<User>, scopes: BTreeSet<Scope>, audit_actor: AuditActor) -> Self {
        Self {
            user,
            agent_id: None,
            scopes,
            token_created_by: None,
            audit_actor,
            if_match: None,
            token_expires_at: None,
            idempotent_request: None,
        }
    }

    /// The user, or the sponsor of the agent; `None` for the bootstrap token.
    #[must_use]
    pub fn user_id(&self) -> Option<&UserId> {
        self.user.as_ref().map(|user| &user.user_id)
    }

    /// Whether the caller is this user, and not one of the user's agents.
    pub(crate) fn is_user(&self, id: &str) -> bool {
        self.agent_id.is_none() && self.user_id().is_some_and(|own| own.as_str() == id)
    }

    /// Who created the credentials of the caller.
    pub(crate) fn credentials_creator(&self) -> Option<UserId> {
        self.token_created_by.as_ref().or(self.user_id()).cloned()
    }

    /// Checks `If-Match` against the current revision.
    pub(crate) fn check_revision(&self, now: u64) -> Result<()> {
        if self.if_match.is_none_or(|expected| expected == now) { Ok(()) } else { Err(Error::Stale { now }) }
    }

    /// Fails unless the caller has the scope and the role of an administrator.
    pub(crate) fn require_admin(&self) -> Result<()> {
        self.require_scope(Scope::Admin)?;
        if self.is_admin() { Ok(()) } else { Err(Error::forbidden("only an administrator can do this")) }
    }

    /// Fails if the token lacks the scope. Roles permit, scopes limit: both are checked.
    pub fn require_scope(&self, scope: Scope) -> Result<()> {
        if self.scopes.contains(&scope) { Ok(()) } else { Err(Error::Scope(scope)) }
    }

    /// Fails if the token lacks a scope that the command needs.
    pub(crate) fn require_scopes_for(&self, command: TaskCommand) -> Result<()> {
        let scopes: &[Scope] = match command {
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
        scopes.iter().try_for_each(|scope| self.require_scope(*scope))
    }

    /// The commands that the caller can give to a task now.
    pub(crate) fn allowed_commands(&self, task: &StoredTask, now: Moment) -> Vec<TaskCommand> {
        let open = task.allowed_commands(&self.actor(), now).into_iter();
        open.filter(|command| self.require_scopes_for(*command).is_ok()).collect()
    }

    /// The actor that `domain` decides about. An agent acts as an author for its sponsor, whatever roles the sponsor has.
    #[must_use]
    pub fn actor(&self) -> Actor {
        let roles = match (&self.user, &self.agent_id) {
            (Some(_), Some(_)) => vec![ActorRole::Author],
            (Some(user), None) => actor_roles(user),
            // The bootstrap token administers, but is not a person: it makes no decisions.
            (None, _) => vec![ActorRole::Admin],
        };
        Actor {
            user: self.user_id().cloned(),
            roles,
            token_issuer: self.token_created_by.clone(),
            is_agent: self.agent_id.is_some(),
            has_admin_scope: self.scopes.contains(&Scope::Admin),
        }
    }

    /// Authors, reviewers, administrators and auditors see a task.
    #[must_use]
    pub fn can_see(&self, task: &StoredTask) -> bool {
        self.can_see_all() || task.is_participant(&self.actor())
    }

    /// Administrators, auditors and the bootstrap token see everything.
    #[must_use]
    pub fn can_see_all(&self) -> bool {
        self.user
            .as_ref()
            .is_none_or(|user| self.agent_id.is_none() && (user.has_role(ADMIN) || user.has_role(AUDITOR)))
    }

    /// Whether the caller has both the role and the scope of an administrator.
    #[must_use]
    pub fn is_admin(&self) -> bool {
        self.actor().is_admin()
    }

    /// Whether somebody else created the caller's token. Such a caller must not create anything that outlives the token or
    /// hides its creator.
    #[must_use]
    pub fn uses_foreign_credentials(&self) -> bool {
        self.token_created_by.as_ref().is_some_and(|creator| Some(creator) != self.user_id())
    }
}
