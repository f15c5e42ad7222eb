//! The authenticated caller: a person by session or token, or an agent acting for its sponsor. All permissions are derived
//! from it and from nothing else.

use std::collections::BTreeSet;

use ade_domain::Moment;
use ade_domain::audience::Viewer;
use ade_domain::audit::{AuditActor, Principal};
use ade_domain::dual_control::ProposedChange;
use ade_domain::people::{ADMIN, AUDITOR, User, UserId};
use ade_domain::permission::{ActorRole, Scope, actor_roles};
use ade_domain::task::{Actor, Task, TaskCommand};
use ade_store::database::{StoredTask, Versioned};

use crate::{Error, Result};

#[derive(Debug, Clone)]
pub struct Caller {
    /// `None` for the bootstrap token.
    pub user: Option<User>,
    /// Set if the caller is an agent; `user` is then its sponsor.
    pub agent_id: Option<String>,
    /// The scopes of the token; a session has all of them.
    pub scopes: BTreeSet<Scope>,
    /// Who created the caller's token.
    pub token_created_by: Option<UserId>,
    /// Further people who count as authors of what the caller proposes.
    pub further_authors: BTreeSet<UserId>,
    /// The hash of the session's secret.
    pub session_hash: Option<String>,
    /// Until when a session decides without the password being given again.
    pub decides_until: Option<Moment>,
    /// When the password of the session was given, or of the one in which the token was made.
    pub password_at: Option<Moment>,
    /// Somebody else set the password of the session: it can only be used to set an own one.
    pub password_change_required: bool,
    /// How audit entries name the caller.
    pub audit_actor: AuditActor,
    /// The revision in `If-Match`: the change applies to this revision only.
    pub if_match: Option<u64>,
    /// When the caller's token expires, if it uses one.
    pub token_expires_at: Option<Moment>,
    /// Whether this is the service itself, which acts with the role `system`.
    pub is_service: bool,
    /// Whether the caller was authenticated before the database became unavailable, and may only use locks.
    pub is_unverified: bool,
    /// Set if the request has an idempotency key: its outcome is stored in the transaction of its changes.
    pub idempotent_request: Option<IdempotentRequest>,
    /// The change of another administrator that the caller confirms and thereby makes.
    pub confirms: Option<Box<Versioned<ProposedChange>>>,
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

impl From<&Caller> for Principal {
    fn from(caller: &Caller) -> Self {
        Self::Caller(caller.audit_actor.clone())
    }
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
            further_authors: BTreeSet::new(),
            session_hash: None,
            decides_until: None,
            password_at: None,
            password_change_required: false,
            audit_actor,
            if_match: None,
            token_expires_at: None,
            is_service: false,
            is_unverified: false,
            idempotent_request: None,
            confirms: None,
        }
    }

    /// The service itself: it may cancel tasks and view the audit log, as the role `system` permits, and nothing else.
    #[must_use]
    pub fn service(audit_actor: AuditActor) -> Self {
        let scopes = BTreeSet::from([Scope::Read, Scope::Propose]);
        Self { is_service: true, ..Self::new(None, scopes, audit_actor) }
    }

    /// The user, or the sponsor of the agent; `None` for the bootstrap token.
    #[must_use]
    pub fn user_id(&self) -> Option<&UserId> {
        self.user.as_ref().map(|user| &user.user_id)
    }

    /// The people who make what the caller changes: the caller, and who proposed it. The operator is none of them.
    pub(crate) fn makers(&self) -> impl Iterator<Item = &UserId> {
        let proposed_by = self.confirms.as_ref().and_then(|change| change.value.proposed_by.as_ref());
        self.user_id().into_iter().chain(proposed_by)
    }

    /// Whether the caller is this user, and not one of the user's agents.
    pub(crate) fn is_user(&self, id: &str) -> bool {
        self.agent_id.is_none() && self.user_id().is_some_and(|own| own.as_str() == id)
    }

    /// Addresses for e-mail are for the person and for administrators.
    #[must_use]
    pub fn may_see_email_of(&self, user_id: &UserId) -> bool {
        self.is_admin() || self.is_user(user_id.as_str())
    }

    /// Who created the caller's token, or the caller itself in a session.
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
        match scope {
            _ if self.scopes.contains(&scope) => Ok(()),
            _ if self.is_unverified => Err(Error::unverified_caller()),
            _ if self.password_change_required => Err(Error::PasswordChangeRequired),
            Scope::Decide if self.decides_until.is_some() => Err(Error::Reauthenticate),
            _ => Err(Error::Scope(scope)),
        }
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
            | TaskCommand::Archive
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
            _ if self.is_service => vec![ActorRole::System],
            (Some(_), Some(_)) => vec![ActorRole::Author],
            (Some(user), None) => actor_roles(user),
            // The bootstrap token administers, but is not a person: it makes no decisions.
            (None, _) => vec![ActorRole::Admin],
        };
        Actor {
            user: self.user_id().cloned(),
            roles,
            token_issuer: self.token_created_by.clone(),
            agent_id: self.agent_id.clone(),
            has_admin_scope: self.scopes.contains(&Scope::Admin),
            password_at: self.password_at,
        }
    }

    /// Authors, reviewers, administrators and auditors see a task.
    #[must_use]
    pub fn can_see(&self, task: &StoredTask) -> bool {
        self.can_see_all() || task.is_participant(&self.actor())
    }

    /// The caller as a follower of events, to whom audiences are matched.
    #[must_use]
    pub fn viewer(&self) -> Viewer {
        let (user_id, agent_id) = (self.user_id().cloned(), self.agent_id.clone());
        Viewer { user_id, agent_id, sees_all: self.can_see_all() }
    }

    /// A task without what only its reviewers may read.
    #[must_use]
    pub fn visible_part_of(&self, stored: &StoredTask) -> Task {
        let mut task = stored.task.clone();
        if !task.shows_full_preview(&self.actor(), self.can_see_all()) {
            task.preview = task.preview.restricted();
        }
        task
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
